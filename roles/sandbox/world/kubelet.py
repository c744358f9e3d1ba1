"""A kubelet in a model: it admits, starts, runs and ends the pods of its node.

On a node with a modelled host it makes their cgroups and tells the agent of them; elsewhere it reports what they use in place of an agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from koord import seams
from koord.api.kinds import NODEMETRICS, NODES, PODS
from koord.api.times import format_time
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from koord.kube.informers import InformerFactory
from roles.sandbox.nodes import fleet, metrics
from roles.sandbox.process_kubelet.node import conditions
from roles.sandbox.world.host import podlist
from roles.sandbox.world.programs import connection

if TYPE_CHECKING:
    from roles.sandbox.world.environment import Environment
    from roles.sandbox.world.host.running import Running

Obj = dict[str, Any]
T = TypeVar("T")
HEARTBEAT = 60.0  # seconds between status writes of a node on which nothing has changed
LOOK = 1.0  # seconds between two looks at a modelled host, and until a step that failed is tried again
IDLE = 15.0  # seconds between two looks where there is nothing to do
GRAIN = 0.5  # seconds in which changes are gathered
PERIOD = 600.0  # seconds of a simulated day
BACK_OFF = 2.0  # seconds from the end of a container to its next start


class Kubelet:
    """The kubelet of one node. `start_seconds` pass at least from the binding to Running, more where a modelled host is short of CPU; an
    end takes `grace` seconds at most."""

    def __init__(self, world: Environment, node: str, host: Running | None = None) -> None:
        self.world = world
        self.node = node
        self.start_seconds = 1.0
        self.stop_seconds = 2.0
        self._since: dict[str, float] = {}
        self._running: dict[str, float] = {}
        self._leaving: dict[str, float] = {}
        self._ended: dict[str, float] = {}  # since when a container of a pod has ended
        self._reported = -1e9
        self.host = host
        self.name = f"kubelet-{node}"

    async def main(self) -> None:
        """Live for ever."""
        async with Client(connection(f"kubelet-{self.node}"), role="kubelet") as client:
            informers, changed = InformerFactory(client), asyncio.Event()
            pods = informers.informer(PODS, field_selector=f"spec.nodeName={self.node}")
            nodes = informers.informer(NODES, field_selector=f"metadata.name={self.node}")
            reported = informers.informer(NODEMETRICS, field_selector=f"metadata.name={self.node}", optional=True)
            pods.add_handler(*[lambda *_: changed.set()] * 3)
            for one in (nodes, reported):
                one.add_handler(lambda _: changed.set())
            informers.start()
            await informers.wait_synced()
            beat = float("-inf")
            if self.host is not None:
                await podlist.serve(self.world.address_of(self.node), lambda path: self._document(path, pods.list()))
            while True:
                changed.clear()
                now = seams.monotonic()
                due: list[float | None] = [now + (IDLE if self.host is None else LOOK)]
                ordered = sorted(pods.list(), key=lambda pod: str(pod["metadata"]["uid"]))
                for pod in ordered:
                    due.append(await self._try(self.advance(client, pod, now)))
                self._tidy(ordered)
                if self.host is not None:
                    self.host.reconcile(now)
                if now >= beat:
                    beat = await self._try(self._beat(client))
                due.append(beat)
                node, metric = nodes.get(self.node), reported.get(self.node)
                if self.host is None and node is not None and metric is not None and f"kubelet-{self.node}" not in self.world.silent:
                    due.append(await self._try(self.report(client, node, metric, pods.list())))
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, min(time for time in due if time is not None) - seams.monotonic() - GRAIN)):
                        await changed.wait()
                await seams.sleep(GRAIN)

    @staticmethod
    async def _try(step: Awaitable[T]) -> T | float:
        """What a step returns; when it is to be tried again if it fails."""
        try:
            return await step
        except ApiError:
            return seams.monotonic() + LOOK

    async def advance(self, client: Client, pod: Obj, now: float) -> float | None:
        """Do what a pod is due for. Returns when something is due next if the pod does not change; None: nothing."""
        meta, status = pod["metadata"], pod.get("status") or {}
        uid = meta["uid"]
        if meta.get("deletionTimestamp"):
            grace = float(meta.get("deletionGracePeriodSeconds") or 0)
            due = self._leaving.setdefault(uid, now + min(grace, self.stop_seconds))
            if now >= due:
                try:
                    self._stop(uid)
                    await client.delete(PODS, meta["name"], meta["namespace"], grace_period_seconds=0, preconditions={"uid": uid})
                except NotFound:
                    return None
                return None
            return due
        if status.get("phase") in ("Succeeded", "Failed"):
            self._stop(uid)
            return None
        self._admit(pod)
        if status.get("phase") != "Running":
            since = self._since.setdefault(uid, now)
            if now - since < self.start_seconds:
                return since + self.start_seconds
            if self.host is not None and not self.host.started(uid):
                return now + 1.0
            host = self.world.addresses.get(self.node, "10.1.0.1")
            await self._status(client, pod, fleet.running_status(pod, host, seams.now()))
            self._running[uid] = now
            return None
        if self.host is not None:
            self.host.run(pod)
            await self._restart(client, pod, now)
            if self.host.resize(pod):
                await self._status(client, pod, {"containerStatuses": [_sized(one, pod) for one in status.get("containerStatuses") or []]})
        limit = (meta.get("annotations") or {}).get(fleet.RUN_SECONDS_ANNOTATION, "")
        if not limit.isdigit():
            return None
        ends = self._running.setdefault(uid, now) + int(limit)
        if now >= ends:
            await self._status(client, pod, fleet.succeeded_status(status, seams.now()))
            return None
        return ends

    # -- on a modelled host --------------------------------------------------------------------------------------------------

    def _admit(self, pod: Obj) -> None:
        if self.host is not None:
            self.host.admit(pod)

    async def _restart(self, client: Client, pod: Obj, now: float) -> None:
        """Containers that have ended are started again after a while."""
        assert self.host is not None
        uid = pod["metadata"]["uid"]
        again = self.host.restarts(pod)
        if again is None:
            self._ended.pop(uid, None)
        elif now - self._ended.setdefault(uid, now) >= BACK_OFF:
            await self._status(client, pod, {"containerStatuses": again})

    def _stop(self, uid: str) -> None:
        if self.host is not None:
            self.host.stop(uid)

    def _tidy(self, pods: list[Obj]) -> None:
        """Pods that were taken off the API server without a word to this kubelet."""
        if self.host is not None:
            for uid in sorted(set(self.host.machine.residents) - {pod["metadata"]["uid"] for pod in pods}):
                self._stop(uid)

    def _document(self, path: str, pods: list[Obj]) -> Obj | None:
        if path == "/pods/":
            ordered = sorted(pods, key=lambda pod: str(pod["metadata"]["uid"]))
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": ordered}
        if path == "/configz":
            return {"kubeletconfig": self.host.configuration if self.host is not None else {}}
        return None

    # -- the API server ------------------------------------------------------------------------------------------------------

    async def _status(self, client: Client, pod: Obj, status: Obj) -> None:
        meta = pod["metadata"]
        await client.patch(
            PODS,
            meta["name"],
            {"metadata": {"uid": meta["uid"]}, "status": status},
            meta["namespace"],
            type="strategic",  # what others have to say about the pod stays
            subresource="status",
        )

    async def _beat(self, client: Client) -> float:
        await self.heartbeat(client)
        return seams.monotonic() + HEARTBEAT

    async def heartbeat(self, client: Client) -> None:
        """Say that the node is well."""
        await client.patch(NODES, self.node, {"status": {"conditions": conditions(seams.now())}}, subresource="status")

    async def report(self, client: Client, node: Obj, metric: Obj, pods: list[Obj]) -> float:
        """Report what the node and its pods use, if that is due. Returns when the next report is."""
        policy = (metric.get("spec") or {}).get("metricCollectPolicy") or {}
        interval = float(policy.get("reportIntervalSeconds") or 60)
        now = seams.monotonic()
        if now - self._reported < interval:
            return self._reported + interval
        running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
        capacity = fleet.capacity_of(node)
        each, rest = metrics.node_usage(running, capacity, seams.now(), PERIOD)
        total = sum(each, rest)
        resources = {"resources": fleet.resources(total)}
        windows = [{"duration": "5m0s", "usage": dict.fromkeys(("avg", "p50", "p90", "p95", "p99"), resources)}]
        status: Obj = {
            "updateTime": format_time(seams.now()),
            "nodeMetric": {
                "nodeUsage": resources,
                "systemUsage": {"resources": fleet.resources(rest)},
                "aggregatedNodeUsages": windows,
                "aggregatedSystemUsages": [],
            },
            "podsMetric": [metrics.pod_entry(pod, one) for pod, one in zip(running, each, strict=True)],
            "prodReclaimableMetric": {"resource": {}},
        }
        await client.patch(NODEMETRICS, self.node, {"status": status}, subresource="status")
        self._reported = now
        return now + interval

    def forget(self, uid: str) -> None:
        """A pod is no more."""
        for times in (self._since, self._running, self._leaving, self._ended):
            times.pop(uid, None)


def _sized(status: Obj, pod: Obj) -> Obj:
    """The status of a container that has the resources that its pod requests now."""
    bodies = {body["name"]: body.get("resources") or {} for body in pod["spec"].get("containers") or []}
    resources = bodies.get(status["name"], {})
    return {**status, "resources": resources, "allocatedResources": resources.get("requests") or {}}


def program(world: Environment, node: str, host: Running | None) -> Callable[[], Awaitable[None]]:
    """The program of a node's kubelet."""
    return Kubelet(world, node, host).main
