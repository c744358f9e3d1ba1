"""Evicting one pod: the Eviction API first, so that disruption budgets hold; stopping containers as configured (KA-EVX-01).

With ``--only-evict-by-api=true`` the API is everything. Otherwise containers are also stopped through the CRI, without grace: after
the API agreed, so that what they hold is free at once, and instead of it when no answer is to be had. A refusal by a disruption
budget (429) is a refusal in both cases.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from koord import seams
from koord.kube import errors
from roles.koordlet.states.model import PodState

if TYPE_CHECKING:
    from koord.kube.client import Client
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

#: An evicted pod is not evicted again for this long (seconds); it may take that long to go away.
REMEMBER = 120.0
EVENT_SUCCESS, EVENT_FAIL = "evictPodSuccess", "evictPodFail"
REASON_LABEL = "evicted"

#: Tells about a pod: (pod, reason, message); the event is a Warning.
Tell = Callable[[PodState, str, str], None]
#: Stops all containers of a pod at once; what went wrong, or None.
StopContainers = Callable[[PodState], Awaitable[str | None]]


class Evictor(Protocol):
    """Evicts pods. A replacement of this is an extension point (KA-PLG-01)."""

    def recently_evicted(self, uid: str) -> bool:
        """Whether the pod was evicted and may not be gone yet."""

    async def evict(self, pod: PodState, gate: str, why: str) -> str | None:
        """Evict a pod; what stood against it, or None."""


class PodEvictor:
    """The evictor of koordlet."""

    def __init__(
        self,
        client: Client,
        *,
        only_api: bool,
        stop_containers: StopContainers | None,
        tell: Tell,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = seams.monotonic,
    ) -> None:
        self._client = client
        self._only_api = only_api
        self._stop_containers = stop_containers
        self._tell = tell
        self._metrics = metrics
        self._clock = clock
        self._evicted: dict[str, float] = {}

    def recently_evicted(self, uid: str) -> bool:
        at = self._evicted.get(uid)
        return at is not None and self._clock() - at < REMEMBER

    async def evict(self, pod: PodState, gate: str, why: str) -> str | None:
        """Evict a pod; what stood against it, or None. Never raises."""
        if self.recently_evicted(pod.uid):
            return None
        refusal, answered = await self._by_api(pod)
        if not self._only_api and self._stop_containers is not None and (refusal is None or not answered):
            failure = await self._stop_containers(pod)
            if failure is not None:
                log.warning("containers of pod %s were not all stopped: %s", pod.key, failure)
            elif not answered:
                refusal = None
        message = f"trigger by koordlet feature {gate}, kill pod: {pod.name}"
        if refusal is not None:
            self._tell(pod, EVENT_FAIL, f"{message}: {refusal}")
            return refusal
        now = self._clock()
        self._evicted = {uid: at for uid, at in self._evicted.items() if now - at < REMEMBER}
        self._evicted[pod.uid] = now
        self._tell(pod, EVENT_SUCCESS, f"{message}: {why}")
        if self._metrics is not None:
            self._metrics.pod_eviction.inc(REASON_LABEL)
            self._metrics.pod_eviction_detail.inc(pod.namespace, pod.name, REASON_LABEL)
        return None

    async def _by_api(self, pod: PodState) -> tuple[str | None, bool]:
        """What stood against it (None: nothing), and whether the API server decided that."""
        try:
            await self._client.evict(pod.namespace, pod.name, uid=pod.uid)
        except errors.NotFound:
            return None, True  # it is gone already
        except errors.TooManyRequests as error:
            return f"a disruption budget does not allow it now: {error.message}", True
        except (errors.Unreachable, errors.ServerError, errors.Forbidden, errors.Unauthorized) as error:
            return f"the API server did not carry it out: {error}", False
        except errors.ApiError as error:
            return str(error), True
        return None, True
