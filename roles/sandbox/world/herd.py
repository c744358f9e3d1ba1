"""The kubelets of many nodes in one program, for worlds of hundreds of nodes.

A kubelet of its own looks at its pods every second and keeps three watches. Here one watch serves all nodes, and a pod is looked at when
it has changed or when something is due. What is done then is the same (`kubelet.py`).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.kinds import NODEMETRICS, NODES, PODS
from koord.kube.client import Client
from koord.kube.errors import ApiError
from koord.kube.informers import InformerFactory
from roles.sandbox.world.kubelet import Kubelet
from roles.sandbox.world.programs import connection

if TYPE_CHECKING:
    from roles.sandbox.world.environment import Environment

Obj = dict[str, Any]
NAME = "kubelet-herd"
HEARTBEAT = 300.0
"""Seconds between status writes of a node: as a kubelet's nodeStatusReportFrequency is by default."""
TICK = 0.5  # seconds between two looks at what is due
LANES = 16  # requests on their way at a time
_AGAIN = 2.0  # seconds after which a failed step is tried again


class Agenda:
    """What is due when. Each item is on it once, at the earliest time that was said."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str, str]] = []
        self._at: dict[tuple[str, str], float] = {}

    def put(self, at: float, kind: str, name: str) -> None:
        """Something is due at a time, or earlier if it was already to be."""
        if at < self._at.get((kind, name), float("inf")):
            self._at[kind, name] = at
            heapq.heappush(self._heap, (at, kind, name))

    def take(self, now: float) -> Iterator[tuple[str, str]]:
        """Take what is due, in the order of its times."""
        while self._heap and self._heap[0][0] <= now:
            at, kind, name = heapq.heappop(self._heap)
            if self._at.get((kind, name)) == at:
                del self._at[kind, name]
                yield kind, name


class Herd:
    """The kubelets of these nodes."""

    def __init__(self, world: Environment, nodes: list[str]) -> None:
        self.world = world
        self._kubelets = {node: Kubelet(world, node) for node in nodes}
        self._agenda = Agenda()

    async def main(self) -> None:
        """Live for ever."""
        async with Client(connection(NAME), role="kubelet") as client:
            informers = InformerFactory(client)
            pods, nodes = informers.informer(PODS), informers.informer(NODES)
            metrics = informers.informer(NODEMETRICS, optional=True)
            pods.index("node", lambda pod: pod["spec"].get("nodeName"))
            pods.add_handler(self._changed, lambda _, pod: self._changed(pod), self._gone)
            informers.start()
            await informers.wait_synced()
            begun, count = seams.monotonic(), len(self._kubelets)
            for index, node in enumerate(self._kubelets):  # spread evenly, as those of a real cluster are
                self._agenda.put(begun + HEARTBEAT * index / count, "beat", node)
                self._agenda.put(begun + 10.0 * index / count, "report", node)

            async def report(node: str) -> float | None:
                known, metric = nodes.get(node), metrics.get(node)
                if known is None or metric is None or NAME in self.world.silent:
                    return seams.monotonic() + 10.0
                return await self._kubelets[node].report(client, known, metric, pods.by_index("node", node))

            async def beat(node: str) -> float | None:
                await self._kubelets[node].heartbeat(client)
                return seams.monotonic() + HEARTBEAT

            async def pod(key: str) -> float | None:
                found = pods.get(key)
                if found is None:
                    return None
                return await self._kubelets[found["spec"]["nodeName"]].advance(client, found, seams.monotonic())

            steps: dict[str, Callable[[str], Awaitable[float | None]]] = {"beat": beat, "pod": pod, "report": report}
            lanes = asyncio.Semaphore(LANES)
            while True:
                due = list(self._agenda.take(seams.monotonic()))
                await asyncio.gather(*(self._do(steps[kind](name), kind, name, lanes) for kind, name in due))
                await seams.sleep(TICK)

    async def _do(self, step: Awaitable[float | None], kind: str, name: str, lanes: asyncio.Semaphore) -> None:
        async with lanes:
            again: float | None = seams.monotonic() + _AGAIN
            with suppress(ApiError):
                again = await step
            if again is not None:
                self._agenda.put(again, kind, name)

    def _changed(self, pod: Obj) -> None:
        if pod["spec"].get("nodeName") in self._kubelets:
            meta = pod["metadata"]
            self._agenda.put(seams.monotonic(), "pod", f"{meta['namespace']}/{meta['name']}")

    def _gone(self, pod: Obj) -> None:
        kubelet = self._kubelets.get(pod["spec"].get("nodeName") or "")
        if kubelet is not None:
            kubelet.forget(pod["metadata"]["uid"])
