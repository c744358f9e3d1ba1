"""Keeps the pods of the node fresh: by interval, and at once when a pod's cgroup appears; gauges of their resources (KLO-SI-02)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord import seams
from koord.api.quantity import QuantityError, parse_value
from koord.kube.ratelimit import TokenBucket
from roles.koordlet import waiting
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.states.kubelet import KubeletClient, KubeletError
from roles.koordlet.states.model import PodState
from roles.koordlet.states.nodestate import EXTENDED_UNITS
from roles.koordlet.states.pods import PodCache, PodListError

if TYPE_CHECKING:
    from koord.api.objects import Node

log = logging.getLogger(__name__)

TRIGGERS_PER_SECOND = 5.0
TRIGGER_BURST = 10
#: While the kubelet has never named a pod it is asked again this often (seconds): the agent waits for it, it does not die of it.
RETRY_UNSYNCED = 1.0
#: The Node says where the kubelet is; until it has been seen nothing is asked, and the first question follows at once.
AWAIT_NODE = 0.1
#: Who was not asked for the pods for so long (seconds, or three rounds) stood still: a frozen process, a machine that slept.
STOOD_STILL = 5.0
#: How long (seconds) a kubelet that does not answer keeps everybody waiting after that.
PATIENCE = 2.0


@dataclass(eq=False)
class PodInformer:
    """Asks the kubelet and tells ``on_change`` after every list that changed something.

    An interval of zero or less turns it off (it then never becomes synced, and says so once). ``trigger`` asks for a fetch now;
    at most one is pending, a fetched list restarts the interval.
    """

    pod_cache: PodCache
    kubelet: KubeletClient
    node: Callable[[], Node | None]
    interval: float
    on_change: Callable[[], None]
    round_interval: float = 1.0

    def __post_init__(self) -> None:
        self._wanted = asyncio.Event()
        self._last_error = ""
        self._standstill = max(STOOD_STILL, 3 * self.round_interval)
        self._looked: float | None = None
        self._woke: float | None = None
        self._asked = float("-inf")

    def trigger(self) -> None:
        """Fetch soon."""
        self._wanted.set()

    def current(self, now: float) -> bool:
        """Whether the pods may be acted on, asked at least once a round; `now` in seconds since boot, sleep included.

        After a standstill the pods that are known may be gone and their CPUs somebody else's: not before the kubelet was asked anew.
        """
        if self._looked is not None and now - self._looked > self._standstill:
            self._woke = now
            self.trigger()
        self._looked = now
        if self._woke is not None and (self._asked >= self._woke or now - self._woke > PATIENCE):
            self._woke = None
        return self._woke is None

    async def run(self, stopping: asyncio.Event) -> None:
        if self.interval <= 0:
            log.error("--kubelet-sync-interval is %s: pods are not listed, so nothing about pods is reported or enforced", self.interval)
            await stopping.wait()
            return
        loop = asyncio.get_running_loop()
        bucket = TokenBucket(TRIGGERS_PER_SECOND, TRIGGER_BURST)
        while not stopping.is_set():
            await self.fetch()
            pause = self.interval if self.pod_cache.confirmed else min(RETRY_UNSYNCED if self.node() else AWAIT_NODE, self.interval)
            if await self._sleep(pause, stopping):
                await waiting.pause(stopping, bucket.reserve(loop.time()))

    async def fetch(self) -> bool:
        """One request; whether a usable list came. Of two at the same time the older answer may come last, and is dropped then."""
        node = self.node()
        if node is None:
            return False
        asked = seams.boot_time()
        try:
            body = await self.kubelet.pods(node)
            if asked < self._asked:
                return True
            changed = self.pod_cache.take(body)
        except (KubeletError, PodListError) as error:
            if str(error) != self._last_error:
                log.error("the last pod list is kept: %s", error)
            self._last_error = str(error)
            return False
        self._asked = asked
        if self._last_error:
            log.info("the kubelet answers again")
            self._last_error = ""
        if changed:
            self.on_change()
        return True

    async def _sleep(self, seconds: float, stopping: asyncio.Event) -> bool:
        """Wait; whether a trigger ended it."""
        await waiting.either(self._wanted, stopping, seconds=seconds)
        triggered = self._wanted.is_set()
        self._wanted.clear()
        return triggered


def export_container_resources(metrics: Metrics, pods: Sequence[PodState]) -> None:
    """Requests carry the unit ``integer`` and limits ``byte`` whatever the resource, as consumers of these names expect."""
    metrics.container_requests.clear()
    metrics.container_limits.clear()
    for pod in pods:
        for container in pod.containers:
            if container.spec is None or container.status is None:
                continue
            labels = (pod.uid, pod.name, pod.namespace, container.id, container.name)
            resources = container.spec.resources
            for gauge, values, unit in (
                (metrics.container_requests, resources.requests, "integer"),
                (metrics.container_limits, resources.limits, "byte"),
            ):
                for name in EXTENDED_UNITS:
                    if name not in values:
                        continue
                    try:
                        gauge.set(parse_value(values[name]), name, unit, *labels)
                    except QuantityError:
                        continue
