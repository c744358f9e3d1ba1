"""Evicting one pod: the Eviction API first, so that disruption budgets hold; stopping containers as configured (KA-EVX-01).

With ``--only-evict-by-api=true`` the API is everything. Otherwise containers are also stopped through the CRI, without grace: after
the API agreed, so that what they hold is free at once, and instead of it when the API server is silent and the need is critical.
Silence is no connection, no answer within :data:`ANSWER` from a server that does not tell of the node either, or 504. Every other answer
is one, a refusal above all: a disruption budget, an admission policy, missing rights, a server that failed. An admission webhook that takes
its time may be about to protect the pod.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from koord import seams
from koord.api.kinds import NODES
from koord.decisions.record import Record, Subject
from koord.kube import errors
from roles.koordlet.audit.log import AuditEvent
from roles.koordlet.states.model import PodState

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from koord.kube.client import Client
    from roles.koordlet.audit.log import AuditLog
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

#: So long (seconds) an eviction may take. The node may not have the time, and a lost answer does no harm: the uid is a precondition.
ANSWER = 5.0
#: So long (seconds) a server that did not answer that has to tell of the node, which it reads from its store.
SIGN_OF_LIFE = 2.0
#: So long (seconds) a pod is passed over whose eviction took longer than that: others may be evicted in its place.
PASSED_OVER = 60.0
#: An evicted pod is not evicted again for this long (seconds); it may take that long to go away.
REMEMBER = 120.0
#: So long (seconds) after its eviction a pod counts as gone that is not known to be about to go. It may have a long grace, or have been
#: stopped without the API: then its kubelet starts it again, and after so long it may be stopped again.
LINGERS = 30.0
EVENT_SUCCESS, EVENT_FAIL = "evictPodSuccess", "evictPodFail"
REASON_LABEL = "evicted"

EVENT_STOPPED, EVENT_NOT_STOPPED = "containersStopped", "containersNotStopped"
#: HTTP statuses of a server that had no time: none at all, and 504.
_SILENT = frozenset({0, 504})


class Answer(Enum):
    AGREED = auto()
    REFUSED = auto()
    """Or gone already."""
    SILENCE = auto()
    HELD_UP = auto()
    """The API server answers others meanwhile."""


class Unanswered(str):
    """A refusal for which the API server's silence is the only reason, or that of an admission webhook. Asking for the next pod may take as
    long, and end as this."""

    __slots__ = ()


class PassedOver(str):
    """A refusal for the reason that was told a moment ago."""

    __slots__ = ()


#: Tells about a pod: (pod, reason, message); the event is a Warning.
Tell = Callable[[PodState, str, str], None]
#: Stops all containers of a pod at once; what went wrong, or None.
StopContainers = Callable[[PodState], Awaitable[str | None]]


class Evictor(Protocol):
    """Evicts pods. A replacement of this is an extension point (KA-PLG-01). One whose ``hastens`` is False cannot make a pod go that was
    told to leave already."""

    def recently_evicted(self, uid: str) -> bool:
        """Whether the pod was evicted and may not be gone yet."""

    async def evict(self, pod: PodState, gate: str, why: str) -> str | None:
        """Evict a pod; what stood against it, or None. One that also takes ``critical`` is told whether the need is (bool)."""


@dataclass(eq=False)
class PodEvictor:
    """The evictor of koordlet."""

    client: Client
    _: KW_ONLY
    only_api: bool
    stop_containers: StopContainers | None
    tell: Tell
    metrics: Metrics | None = None
    recorder: Recorder | None = None
    audit: AuditLog | None = None
    clock: Callable[[], float] = seams.monotonic

    def __post_init__(self) -> None:
        self._evicted: dict[str, float] = {}
        """Until when (by the clock) a pod is not evicted again."""
        self._passed_over: dict[str, float] = {}

    @property
    def hastens(self) -> bool:
        """Whether a pod that was told to leave already goes sooner when it is evicted: the API only gives it the grace that it has."""
        return self.stop_containers is not None and not self.only_api

    def recently_evicted(self, uid: str) -> bool:
        return self.clock() < self._evicted.get(uid, -math.inf)

    async def evict(self, pod: PodState, gate: str, why: str, *, critical: bool = True) -> str | None:
        """Evict a pod; what stood against it, or None. Never raises.

        ``critical``: the need is such that containers are stopped rather than to wait for an API server that is silent.
        """
        if self.recently_evicted(pod.uid):
            return None
        held_up = self.clock() < self._passed_over.get(pod.uid, -math.inf)
        # an API server that fails often begins with this: the silence that follows is not to go unseen when the need is critical
        if held_up and (not (critical and self.hastens) or await self._answers_others(pod.pod.spec.node_name)):
            return PassedOver("its eviction was held up a moment ago")
        refusal, answer = await self._by_api(pod)
        message = f"trigger by koordlet feature {gate}, kill pod: {pod.name}"
        if self.hastens and answer is Answer.AGREED:
            stopped = await self._stop(pod, gate, "the API server agreed to evict it")
            if not stopped and pod.pod.metadata.deletion_timestamp is not None:
                refusal = "it was told to leave already, and its containers were not all stopped"
                self._remember(pod, REMEMBER)
        elif self.hastens and answer is Answer.SILENCE and critical:
            stopped = await self._stop(pod, gate, f"the API server is silent ({refusal}) and the need is critical: {why}")
            why, refusal = (f"containers stopped without the API server, which is silent; {why}", None) if stopped else (why, refusal)
        elif answer is Answer.SILENCE:
            refusal = Unanswered(f"{refusal}; no container is stopped below the critical threshold" if self.hastens else refusal)
        elif answer is Answer.HELD_UP:
            self._passed_over = {uid: until for uid, until in self._passed_over.items() if self.clock() < until}
            self._passed_over[pod.uid] = self.clock() + PASSED_OVER
            refusal = Unanswered(refusal)
        if refusal is not None:
            self.tell(pod, EVENT_FAIL, f"{message}: {refusal}")
            return refusal
        self._remember(pod, LINGERS if answer is Answer.SILENCE else REMEMBER)
        self.tell(pod, EVENT_SUCCESS, f"{message}: {why}")
        if self.audit is not None:
            self.audit.emit(AuditEvent("pod", pod.namespace, pod.name, reason="EvictPod", message=f"{gate}: {why}"), 1)
        if self.metrics is not None:
            self.metrics.pod_eviction.inc(REASON_LABEL)
            self.metrics.pod_eviction_detail.inc(pod.namespace, pod.name, REASON_LABEL)
        return None

    def _remember(self, pod: PodState, seconds: float) -> None:
        now = self.clock()
        self._evicted = {uid: until for uid, until in self._evicted.items() if now < until}
        self._evicted[pod.uid] = now + seconds

    async def _stop(self, pod: PodState, gate: str, why: str) -> bool:
        """Stop all containers; whether that worked. Told with an event, a record and an audit line, whatever came of it."""
        assert self.stop_containers is not None
        failure = await self.stop_containers(pod)
        done = failure is None
        message = f"all containers stopped without grace: {why}" if done else f"containers were not all stopped: {failure}; {why}"
        if not done:
            log.warning("pod %s: %s", pod.key, message)
        self.tell(pod, EVENT_STOPPED if done else EVENT_NOT_STOPPED, message)
        if self.recorder is not None:
            subject = Subject("Pod", pod.namespace, pod.name, pod.uid)
            verdict = "ContainersStopped" if done else "ContainersNotStopped"
            self.recorder.record(Record("koordlet", subject, seams.now(), verdict, rule=gate, message=message, features=("KA-EVX-01",)))
        if self.audit is not None:
            event = AuditEvent("pod", pod.namespace, pod.name, reason="StopContainers", message=f"{gate}: {message}")
            self.audit.emit(event, 1)
        return done

    async def _by_api(self, pod: PodState) -> tuple[str | None, Answer]:
        """What stood against it (None: nothing), and what kind of answer that is."""
        try:
            async with asyncio.timeout(ANSWER):
                await self.client.evict(pod.namespace, pod.name, uid=pod.uid)
        except TimeoutError:
            if await self._answers_others(pod.pod.spec.node_name):
                return f"the API server answers, but not to an eviction within {ANSWER:g} s (a slow admission webhook?)", Answer.HELD_UP
            return f"the API server does not answer: nothing came within {ANSWER:g} s", Answer.SILENCE
        except errors.NotFound:
            return None, Answer.REFUSED  # it is gone already: there is nothing to stop
        except errors.TooManyRequests as error:
            return f"a disruption budget does not allow it now: {error.message}", Answer.REFUSED
        except errors.ApiError as error:
            silent = _is_silence(error)
            what = "the API server does not answer" if silent else "the API server refuses"
            return f"{what}: {error}", Answer.SILENCE if silent else Answer.REFUSED
        return None, Answer.AGREED

    async def _answers_others(self, node: str) -> bool:
        """Whether the API server tells of the node, or why it does not."""
        try:
            async with asyncio.timeout(SIGN_OF_LIFE):
                await self.client.get(NODES, node)
        except errors.ApiError as error:
            return not _is_silence(error)
        except Exception:  # the time is up, or whatever else: no sign of life
            return False
        return True


def _is_silence(error: errors.ApiError) -> bool:
    return isinstance(error, errors.Unreachable) or error.status in _SILENT
