"""The simulated nodes at work: a kubelet that runs pods in name only, and an agent that reports what their curves say."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.kinds import NODEMETRICS, NODES, PODS
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from koord.kube.informers import InformerFactory
from roles.sandbox.bootstrap import ensure
from roles.sandbox.nodes import fleet, metrics
from roles.sandbox.process_kubelet.node import SANDBOX_LABEL

log = logging.getLogger(__name__)

DEFAULT_REPORT_SECONDS = 60.0
DEFAULT_AGGREGATE_SECONDS = 300.0
TICK_SECONDS = 0.5


class Simulator:
    """Owns the nodes labelled as simulated. `period` is the length in seconds of a simulated day."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        *,
        count: int,
        cpus: int = 32,
        memory: int = 128 * 2**30,
        pods_per_node: int = 3,
        namespace: str = "web",
        period: float = 600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.client = client
        self.pods = informers.informer(PODS)
        self.nodes = informers.informer(NODES)
        self.node_metrics = informers.informer(NODEMETRICS)
        self.count, self.cpus, self.memory = count, cpus, memory
        self.pods_per_node, self.namespace, self.period = pods_per_node, namespace, period
        self.clock = clock
        self._reported: dict[str, float] = {}
        self._running_since: dict[str, float] = {}
        self.pods.index("sandbox/node", lambda pod: [pod.get("spec", {}).get("nodeName") or ""])

    async def start(self) -> None:
        """Create nodes and their services. Objects that exist already are left as they are. Raises ApiError."""
        for index in range(self.count):
            body = fleet.node(index, cpus=self.cpus, memory=self.memory, now=self.clock())
            await ensure(self.client, NODES, body)
            await self.client.patch(NODES, fleet.node_name(index), {"status": body["status"]}, subresource="status")
            for pod in range(self.pods_per_node):
                await ensure(self.client, PODS, fleet.service_pod(index, pod, self.namespace), self.namespace)

    def is_ours(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and (node["metadata"].get("labels") or {}).get(SANDBOX_LABEL) == "simulated"

    async def run(self) -> None:
        """Serve the nodes for ever: pods twice a second, reports on the interval that each NodeMetric asks for."""
        while True:
            await self.tick()
            await asyncio.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        """One round over all simulated nodes; an error of one object does not stop the others."""
        now = self.clock()
        for node in list(self.nodes.list()):
            name = node["metadata"]["name"]
            if not self.is_ours(name):
                continue
            pods = list(self.pods.by_index("sandbox/node", name))
            for pod in pods:
                await self._attempt(self._advance(pod, now))
            await self._attempt(self._report(node, pods, now))

    async def _attempt(self, step: Awaitable[None]) -> None:
        try:
            await step
        except NotFound:
            return
        except ApiError as error:
            log.warning("simulated node: %s", error)

    async def _advance(self, pod: dict[str, Any], now: float) -> None:
        """Bring one pod on by one step: run it, end it when its time is over, or let it go when it is deleted."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        uid, name, namespace = metadata["uid"], metadata["name"], metadata["namespace"]
        if metadata.get("deletionTimestamp"):
            self._running_since.pop(uid, None)
            await self.client.delete(PODS, name, namespace, grace_period_seconds=0, preconditions={"uid": uid})
            return
        phase = status.get("phase", "Pending")
        if phase in ("Succeeded", "Failed"):
            self._running_since.pop(uid, None)
            return
        if phase != "Running":
            host = self._host_of(pod["spec"]["nodeName"])
            await self._write_status(pod, fleet.running_status(pod, host, now))
            return
        since = self._running_since.setdefault(uid, now)
        limit = (metadata.get("annotations") or {}).get(fleet.RUN_SECONDS_ANNOTATION, "")
        if limit.isdigit() and now - since >= int(limit):
            await self._write_status(pod, fleet.succeeded_status(status, now))

    def _host_of(self, node: str) -> str:
        addresses = (self.nodes.get(node) or {}).get("status", {}).get("addresses") or []
        return next((a["address"] for a in addresses if a["type"] == "InternalIP"), "")

    async def _write_status(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        await self.client.patch(PODS, metadata["name"], {"status": status}, metadata["namespace"], subresource="status")

    async def _report(self, node: dict[str, Any], pods: list[dict[str, Any]], now: float) -> None:
        """Write the NodeMetric status when its interval is over; the object itself is the manager's to create."""
        name = node["metadata"]["name"]
        metric = self.node_metrics.get(name)
        if metric is None:
            self._reported.pop(name, None)
            return
        policy = (metric.get("spec") or {}).get("metricCollectPolicy") or {}
        interval = float(policy.get("reportIntervalSeconds") or DEFAULT_REPORT_SECONDS)
        if now - self._reported.get(name, -interval) < interval:
            return
        running = [p for p in pods if (p.get("status") or {}).get("phase") == "Running"]
        status = metrics.status(
            running,
            node,
            now,
            period=self.period,
            aggregate_seconds=float(policy.get("aggregateDurationSeconds") or DEFAULT_AGGREGATE_SECONDS),
            durations=(300.0, 600.0, 1800.0),
        )
        await self.client.patch(NODEMETRICS, name, {"status": status}, subresource="status")
        self._reported[name] = now
