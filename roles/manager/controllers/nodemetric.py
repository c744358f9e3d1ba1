"""NodeMetric controller: one NodeMetric a Node, with the collection policy of its strategy (MGR-NM-01)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koord.api.kinds import NODEMETRICS, NODES
from koord.api.objects import Node, NodeMetric
from koord.config import slo_schema
from koord.config.colocation import DEFAULT_STRATEGY, ColocationStrategy
from koord.config.durations import format_duration, parse_duration
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from roles.manager.controllers.base import EVERYTHING, Controller
from roles.manager.controllers.world import World
from roles.manager.controllers.writer import Writer
from roles.manager.metrics import Metrics


def policy(strategy: ColocationStrategy) -> dict[str, Any]:
    """`spec.metricCollectPolicy` for a strategy: its own while it is enabled, else the defaults."""
    used = strategy if strategy.enable else DEFAULT_STRATEGY
    return {
        "aggregateDurationSeconds": used.metric_aggregate_duration_seconds,
        "reportIntervalSeconds": used.metric_report_interval_seconds,
        "nodeAggregatePolicy": {"durations": [format_duration(parse_duration(text)) for text in used.metric_aggregate_durations]},
        "nodeMemoryCollectPolicy": used.metric_memory_collect_policy,
    }


def present(metric: NodeMetric) -> dict[str, Any]:
    """The policy that stands in a NodeMetric, in the same form."""
    found = metric.spec.metric_collect_policy
    if found is None:
        return {}
    durations = found.node_aggregate_policy.durations if found.node_aggregate_policy else ()
    return {
        "aggregateDurationSeconds": found.aggregate_duration_seconds,
        "reportIntervalSeconds": found.report_interval_seconds,
        "nodeAggregatePolicy": {"durations": [_canonical(text) for text in durations]},
        "nodeMemoryCollectPolicy": found.node_memory_collect_policy,
    }


def _canonical(text: str) -> str:
    """A duration in one form; what cannot be read stays as it is, and so differs from everything that is wanted."""
    try:
        return format_duration(parse_duration(text))
    except ValueError:
        return text


class NodeMetricController(Controller):
    """Keys are node names."""

    name = "nodemetric"

    def __init__(self, world: World, writer: Writer, metrics: Metrics) -> None:
        super().__init__()
        self.world, self.writer, self.metrics = world, writer, metrics

    def attach(self) -> None:
        """Listen."""
        self.world.nodes.add_handler(
            on_add=lambda node: self.queue.add(node.metadata.name),
            on_update=self._on_node,
            on_delete=lambda node: self.queue.add(node.metadata.name),
        )
        self.world.node_metrics.add_handler(
            on_add=lambda metric: self.queue.add(metric.metadata.name),
            on_update=lambda old, new: self.queue.add(new.metadata.name) if old.spec != new.spec else None,
            on_delete=lambda metric: self.queue.add(metric.metadata.name),
        )
        self.world.on_config(self._on_config)

    def _on_node(self, old: Node, new: Node) -> None:
        before, after = old.metadata, new.metadata
        if (old.status.allocatable, before.labels, before.annotations) != (new.status.allocatable, after.labels, after.annotations):
            self.queue.add(after.name)

    def _on_config(self, changed: frozenset[str]) -> None:
        if slo_schema.COLOCATION in changed:
            self.queue.add(EVERYTHING)

    def keys(self) -> Iterable[str]:
        """All nodes."""
        return (name for name, _ in self.world.nodes.items())

    async def reconcile(self, key: str) -> float | None:
        """Create, correct or delete the node's NodeMetric."""
        node, metric = self.world.nodes.get(key), self.world.node_metrics.get(key)
        try:
            if node is None:
                if metric is not None:
                    await self._delete(key)
                return None
            config = self.world.config
            if not config.available:
                return None
            wanted = policy(config.colocation_for(node))
            if metric is None:
                await self._create(key, wanted)
            elif present(metric) != wanted and not config.stale(slo_schema.COLOCATION):
                # A refused configuration must not rewrite what a good one has set.
                await self.writer.patch(NODEMETRICS, key, {"spec": {"metricCollectPolicy": wanted}})
                self.metrics.node_metric_reconciled(True, "updateNodeMetric")
        except (ApiError, ValueError):
            self.metrics.node_metric_reconciled(False, "updateNodeMetric" if metric else "createNodeMetric")
            raise
        return None

    async def _create(self, name: str, wanted: dict[str, Any]) -> None:
        body = {
            "apiVersion": NODEMETRICS.api_version,
            "kind": NODEMETRICS.kind,
            "metadata": {"name": name},
            "spec": {"metricCollectPolicy": wanted},
        }
        try:
            await self.writer.create(NODEMETRICS, body)
        except AlreadyExists:
            return  # the watch will show it
        self.metrics.node_metric_reconciled(True, "createNodeMetric")

    async def _delete(self, name: str) -> None:
        if not await node_is_gone(self.writer, name):
            return
        try:
            await self.writer.delete(NODEMETRICS, name)
        except NotFound:
            return
        self.metrics.node_metric_reconciled(True, "deleteNodeMetric")


async def node_is_gone(writer: Writer, name: str) -> bool:
    """Whether the API server itself says that the Node is gone: a cache is no ground for deleting."""
    try:
        await writer.client.get(NODES, name)
    except NotFound:
        return True
    return False
