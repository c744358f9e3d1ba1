"""Carrying evictions out: victims get the DisruptionTarget condition, are deleted, and an event tells why.

Who is asked when, and what an answer means, the machine decides (planner/evictions.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from koord.api.kinds import PODS
from koord.api.times import format_time
from koord.kube.client import Client
from koord.kube.errors import ApiError, Conflict, NotFound, ServerError, Unreachable
from koord.kube.ratelimit import Priority
from roles.scheduler.binding.readback import ReadBack
from roles.scheduler.binding.reporter import Reporter
from roles.scheduler.binding.waiting import WaitingPods
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.steps import Steps, at_once
from roles.scheduler.gate import Gate
from roles.scheduler.journal.journal import Journal
from roles.scheduler.journal.lines import Operation
from roles.scheduler.planner.evictions import GRACE, Answer, Do, Effect, Evictions
from roles.scheduler.tasks import Tasks

log = logging.getLogger(__name__)

_A_STEP = 64  # victims
ASK_WITHIN = 5.0  # seconds from a decision in which its victims are asked: later there may be room that nobody has to leave for

Issued = Callable[[str, bool], None]
"""Told of the UID of a preemptor whose victims have all been asked, and whether some of them stay."""


def grace_of(pod: PodInfo) -> float:
    """How long a pod may take to end once it was asked to, in seconds."""
    meta, spec = pod.pod.metadata, pod.pod.spec
    own = meta.deletion_grace_period_seconds if pod.deleting else spec.termination_grace_period_seconds
    return GRACE if own is None else float(own)


class Evictor:
    """Asks victims to leave. Waiting pods are rejected instead of deleted: they are not on the node yet."""

    def __init__(
        self,
        client: Client,
        evictions: Evictions,
        reporter: Reporter,
        waiting: WaitingPods,
        *,
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        readback: ReadBack,
        gate: Gate | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal or Journal()
        self._client = client
        self._evictions = evictions
        self._reporter = reporter
        self._waiting = waiting
        self._may_write = may_write
        self._clock = clock
        self._readback = readback
        self._gate = gate or Gate()
        self._preemptors: dict[str, tuple[PodInfo, str]] = {}
        self._victims: dict[str, PodInfo] = {}
        self._tasks = Tasks()
        self.issued: Issued = lambda uid, failed: None
        self.cleared: Callable[[str], None] = lambda uid: None  # told of preemptors whose victims are gone

    def evict(self, preemptor: PodInfo, victims: Iterable[PodInfo], node: str, members: Iterable[str] = ()) -> None:
        """Victims are to leave a node (or the nodes of a job) for a pod and the members of its job. `issued` is told when all were."""
        at_once(self.evicting(preemptor, victims, node, members))

    def evicting(self, preemptor: PodInfo, victims: Iterable[PodInfo], node: str, members: Iterable[str] = ()) -> Steps[None]:
        """As `evict`, in steps."""
        graces: dict[str, float] = {}
        leaving: list[str] = []
        self._preemptors[preemptor.uid] = (preemptor, node)
        for number, victim in enumerate(victims, 1):
            self._victims[victim.uid] = victim
            graces[victim.uid] = grace_of(victim)
            if victim.deleting:
                leaving.append(victim.uid)
            if not number % _A_STEP:
                yield
        yield
        self.run(self._evictions.plan(preemptor.uid, graces, members, leaving, self._clock()))

    def run(self, effects: Iterable[Effect]) -> None:
        """Carry out what the machine wants."""
        for effect in effects:
            if effect.do is Do.EVICT:
                self._ask(effect)
            elif effect.do is Do.READ:
                self._start(f"reading victim {effect.victim}", self._read, effect.victim)
            elif effect.do is Do.CLEARED:
                self.cleared(effect.preemptor)
            else:
                self._preemptors.pop(effect.preemptor, None)
                self.issued(effect.preemptor, effect.failed)
        if len(self._victims) > 2 * self._evictions.victim_count + 64:
            self._victims = {uid: pod for uid, pod in self._victims.items() if self._evictions.victim(uid) is not None}

    async def stop(self) -> None:
        """Cancel what is under way."""
        await self._tasks.stop()

    def _start(self, name: str, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        self._tasks.start(self._gate.drive(function, *args), name)

    def _ask(self, effect: Effect) -> None:
        if self._waiting.reject(effect.victim, "DefaultPreemption", "preempted"):
            self.run(self._evictions.left(effect.victim))
            return
        preemptor, node = self._preemptors[effect.preemptor]
        self._start(f"eviction of {effect.victim}", self._evict, preemptor, self._victims[effect.victim], node)

    async def _evict(self, preemptor: PodInfo, victim: PodInfo, node: str) -> None:
        answer = Answer.FAILED
        try:
            if self._may_write():
                answer = await self._answer_to(preemptor, victim, node)
        except Exception:
            log.exception("preemption: removing pod %s from %s failed", victim.key, node)
        self._journal.happened(Operation.ANSWERED, self._clock(), victim.uid, answer.value)
        self.run(self._evictions.answered(victim.uid, answer, self._clock()))

    async def _answer_to(self, preemptor: PodInfo, victim: PodInfo, node: str) -> Answer:
        try:
            await self._remove(preemptor, victim)
        except NotFound:
            return Answer.DONE
        except (Conflict, ServerError, Unreachable) as failure:
            log.warning("preemption: pod %s may not have been removed from %s: %s", victim.key, node, failure)
            return Answer.LOST
        except ApiError as failure:
            log.warning("preemption: pod %s could not be removed from %s: %s", victim.key, node, failure)
            return Answer.FAILED
        self._reporter.event(
            victim, "Normal", "Preempted", f"Preempted by pod {preemptor.uid} on node {victim.node_name or node}", "Preempting"
        )
        return Answer.DONE

    async def _read(self, uid: str) -> None:
        leaving: bool | None = None
        try:
            leaving = await self._readback.leaving(self._victims[uid])
        except Exception:
            log.exception("preemption: victim %s could not be read", uid)
        self._journal.happened(Operation.SEEN, self._clock(), uid, leaving)
        self.run(self._evictions.found(uid, leaving, self._clock()))

    async def _remove(self, preemptor: PodInfo, victim: PodInfo) -> None:
        uid = victim.pod.metadata.uid
        condition = {
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": f"{preemptor.shape.scheduler_name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": format_time(self._clock()),
        }  # fmt: skip
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        client = self._client.within(ASK_WITHIN).ranked(Priority.BIND)
        await client.patch(PODS, victim.name, body, victim.namespace, type="strategic", subresource="status")
        await client.delete(PODS, victim.name, victim.namespace, preconditions={"uid": uid}, repeat=False)
