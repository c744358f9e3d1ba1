"""NodeMetric controller: one NodeMetric a Node, with the collection policy of its strategy (MGR-NM-01)."""

from __future__ import annotations

from typing import Any

from koord.api.kinds import NODEMETRICS
from koord.api.objects import Node, NodeMetric
from koord.api.times import format_duration, parse_duration
from koord.config import slo_schema
from koord.config.colocation import DEFAULT_STRATEGY, ColocationStrategy
from roles.manager.controllers.pernode import PerNodeController
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.metrics import Metrics
from roles.manager.noderesource.inputs import reported_at


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


class NodeMetricController(PerNodeController[NodeMetric]):
    """Keys are node names."""

    name = "nodemetric"
    kind = NODEMETRICS
    config_keys = frozenset({slo_schema.COLOCATION})

    def __init__(self, state: ClusterState, writer: Writer, metrics: Metrics) -> None:
        super().__init__(state, writer, state.node_metrics, metrics.node_metric_reconciled)

    def concerns(self, old: Node, new: Node) -> bool:
        """Strategies are chosen by labels, and annotations may change them."""
        before, after = old.metadata, new.metadata
        return (old.status.allocatable, before.labels, before.annotations) != (new.status.allocatable, after.labels, after.annotations)

    def change(self, node: Node, found: NodeMetric | None) -> dict[str, Any]:
        """The policy, where it is another one. A refused configuration must not rewrite what a good one has set."""
        config = self.state.config_of(node.metadata.name)
        if found is None or self._silent(found, config.colocation_for(node)):
            # How its agent is asked may be why a node is silent, and turns come only while nodes report.
            config = self.state.config
        if not config.available:
            return {}
        wanted = policy(config.colocation_for(node))
        if found is not None and (present(found) == wanted or config.stale(slo_schema.COLOCATION)):
            return {}
        return {"metricCollectPolicy": wanted}

    def _silent(self, found: NodeMetric, strategy: ColocationStrategy) -> bool:
        """Whether a node does not report, or has not for so long that its report is not trusted any more."""
        reported = reported_at(found)
        return reported is None or self.state.clock() - reported > strategy.degrade_time_minutes * 60
