"""A kubelet in a model: it admits, starts, runs and ends the pods of its node, and reports what they use in place of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.kinds import NODEMETRICS, NODES, PODS
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from koord.kube.informers import InformerFactory
from roles.sandbox.nodes import fleet, metrics
from roles.sandbox.process_kubelet.node import conditions
from roles.sandbox.process_kubelet.status import rfc3339
from roles.sandbox.world.programs import connection

if TYPE_CHECKING:
    from roles.sandbox.world.world import World

Obj = dict[str, Any]
HEARTBEAT = 10.0  # seconds between status writes of a node
PERIOD = 600.0  # seconds of a simulated day


class Kubelet:
    """The kubelet of one node. `start_seconds` pass from the binding to Running; an end takes `grace` seconds at most."""

    def __init__(self, world: World, node: str) -> None:
        self.world = world
        self.node = node
        self.start_seconds = 1.0
        self.stop_seconds = 2.0
        self._since: dict[str, float] = {}
        self._running: dict[str, float] = {}
        self._leaving: dict[str, float] = {}
        self._reported = -1e9

    async def main(self) -> None:
        """Live for ever."""
        async with Client(connection(f"kubelet-{self.node}"), role="kubelet") as client:
            informers = InformerFactory(client)
            pods = informers.informer(PODS, field_selector=f"spec.nodeName={self.node}")
            nodes = informers.informer(NODES, field_selector=f"metadata.name={self.node}")
            reported = informers.informer(NODEMETRICS, field_selector=f"metadata.name={self.node}", optional=True)
            informers.start()
            await informers.wait_synced()
            beat = -1e9
            while True:
                now = seams.monotonic()
                for pod in sorted(pods.list(), key=lambda pod: str(pod["metadata"]["uid"])):
                    await self._try(self._advance(client, pod, now))
                if now - beat >= HEARTBEAT:
                    beat = now
                    await self._try(self._heartbeat(client))
                node, metric = nodes.get(self.node), reported.get(self.node)
                if node is not None and metric is not None and f"kubelet-{self.node}" not in self.world.silent:
                    await self._try(self._report(client, node, metric, pods.list()))
                await seams.sleep(1.0)

    async def _try(self, step: Awaitable[None]) -> None:
        try:
            await step
        except ApiError:
            return

    async def _advance(self, client: Client, pod: Obj, now: float) -> None:
        meta, status = pod["metadata"], pod.get("status") or {}
        uid = meta["uid"]
        if meta.get("deletionTimestamp"):
            grace = float(meta.get("deletionGracePeriodSeconds") or 0)
            due = self._leaving.setdefault(uid, now + min(grace, self.stop_seconds))
            if now >= due:
                try:
                    await client.delete(PODS, meta["name"], meta["namespace"], grace_period_seconds=0, preconditions={"uid": uid})
                except NotFound:
                    return
            return
        if status.get("phase") in ("Succeeded", "Failed"):
            return
        if status.get("phase") != "Running":
            if now - self._since.setdefault(uid, now) >= self.start_seconds:
                host = self.world.addresses.get(self.node, "10.1.0.1")
                await self._status(client, pod, fleet.running_status(pod, host, seams.now()))
                self._running[uid] = now
            return
        limit = (meta.get("annotations") or {}).get(fleet.RUN_SECONDS_ANNOTATION, "")
        if limit.isdigit() and now - self._running.setdefault(uid, now) >= int(limit):
            await self._status(client, pod, fleet.succeeded_status(status, seams.now()))

    async def _status(self, client: Client, pod: Obj, status: Obj) -> None:
        meta = pod["metadata"]
        await client.patch(
            PODS, meta["name"], {"metadata": {"uid": meta["uid"]}, "status": status}, meta["namespace"], subresource="status"
        )

    async def _heartbeat(self, client: Client) -> None:
        await client.patch(NODES, self.node, {"status": {"conditions": conditions(seams.now())}}, subresource="status")

    async def _report(self, client: Client, node: Obj, metric: Obj, pods: list[Obj]) -> None:
        policy = (metric.get("spec") or {}).get("metricCollectPolicy") or {}
        interval = float(policy.get("reportIntervalSeconds") or 60)
        now = seams.monotonic()
        if now - self._reported < interval:
            return
        running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
        capacity = fleet.capacity_of(node)
        each, rest = metrics.node_usage(running, capacity, seams.now(), PERIOD)
        total = sum(each, rest)
        resources = {"resources": fleet.resources(total)}
        windows = [{"duration": "5m0s", "usage": dict.fromkeys(("avg", "p50", "p90", "p95", "p99"), resources)}]
        status: Obj = {
            "updateTime": rfc3339(seams.now()),
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


def program(world: World, node: str) -> Callable[[], Awaitable[None]]:
    """The program of a node's kubelet."""
    return Kubelet(world, node).main
