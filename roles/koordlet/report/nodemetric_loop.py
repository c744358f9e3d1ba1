"""Reports NodeMetric once per interval, and as gauges (KLO-SI-04): reads the store, asks the predictor, writes the status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.kinds import NODEMETRICS
from koord.api.quantity import parse_milli, parse_value
from koord.kube.errors import ApiError, Conflict, NotFound
from koord.kube.ratelimit import TokenBucket
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.metrics.series import Gauge
from roles.koordlet.prediction.reclaimable import ReclaimableReporter
from roles.koordlet.report.contention import CONDITIONS, FINDINGS
from roles.koordlet.report.nodemetric import Reporter, ReportInput, build_status
from roles.koordlet.states.model import PodState
from roles.koordlet.states.nodestate import NodeState
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from roles.koordlet.waiting import pause

if TYPE_CHECKING:
    from koord.kube.client import Client
    from roles.koordlet.metrics.registry import Metrics

_UNITS = {"cpu": "core", "memory": "byte"}


def _set(gauge: Gauge, usage: dict[str, Any], *labels: str) -> None:
    for resource, quantity in (usage.get("resources") or {}).items():
        value = parse_milli(quantity) / 1000 if resource == "cpu" else float(parse_value(quantity))
        gauge.set(value, *labels, resource, _UNITS.get(resource, "integer"))


def export_gauges(metrics: Metrics, node_metric: dict[str, Any]) -> None:
    """Reset and fill the gauges from a report's ``nodeMetric``; what was not reported has no series."""
    for gauge in (metrics.report_node, metrics.report_system, metrics.report_numa_node, metrics.report_numa_system):
        gauge.clear()
    _set(metrics.report_node, node_metric.get("nodeUsage") or {})
    _set(metrics.report_system, node_metric.get("systemUsage") or {})
    for entry in node_metric.get("numaUsages") or []:
        number = str(entry["numaNodeID"])
        _set(metrics.report_numa_node, entry.get("nodeUsage") or {}, number)
        _set(metrics.report_numa_system, entry.get("systemUsage") or {}, number)


log = logging.getLogger(__name__)

WRITES_PER_SECOND, WRITE_BURST = 0.1, 2
CONFLICT_RETRIES = 3


@dataclass(eq=False, kw_only=True)
class NodeMetricLoop:
    """First report one interval after everything is synced, then one an interval; the interval is read anew each time."""

    client: Client
    state: NodeState
    pods: Callable[[], Sequence[PodState]]
    store: MetricStore
    metrics: Metrics
    reclaimable: ReclaimableReporter
    export: bool
    cold_memory: Callable[[], bool]

    def __post_init__(self) -> None:
        self._bucket = TokenBucket(WRITES_PER_SECOND, WRITE_BURST)

    async def run(self, stopping: asyncio.Event, synced: asyncio.Event) -> None:
        await synced.wait()
        while not await pause(stopping, self.state.policy.interval):
            await self.report(seams.now())

    async def report(self, now: float) -> None:
        """Build and write one report; without a NodeMetric object nothing is written."""
        state = self.state
        if not state.has_node_metric:
            return
        slo = state.slo
        data = ReportInput(
            now=now,
            view=MetricsView(self.store, now),
            policy=state.policy,
            pods=self.pods(),
            host_apps=slo.host_applications if slo is not None else (),
            cold_memory=self.cold_memory(),
            findings=self.store.snapshot(FINDINGS) or {},
        )
        entries = Reporter(data).pods()
        prod, peak = self.reclaimable.compute(now, state.node, [pod for pod, _ in entries])
        status = build_status(data, entries, prod, peak)
        conditions = self.store.snapshot(CONDITIONS)
        if conditions:
            status["conditions"] = conditions
        if self.export:
            export_gauges(self.metrics, status["nodeMetric"])
        await self._write(status)

    async def _write(self, status: dict[str, object]) -> None:
        """Replace the status as a whole; a merge would keep what is not reported any more."""
        loop = asyncio.get_running_loop()
        for attempt in range(CONFLICT_RETRIES):
            if not self._bucket.take(loop.time()):
                log.error("NodeMetric %s is not written: more than %s writes a second", self.state.node_name, WRITES_PER_SECOND)
                return
            try:
                body = [{"op": "add", "path": "/status", "value": status}]
                await self.client.patch(NODEMETRICS, self.state.node_name, body, type="json", subresource="status")
                return
            except NotFound:
                return
            except Conflict:
                log.debug("NodeMetric %s changed meanwhile, attempt %d", self.state.node_name, attempt + 1)
            except ApiError as error:
                log.error("NodeMetric %s cannot be written, next try in one interval: %s", self.state.node_name, error)
                return
