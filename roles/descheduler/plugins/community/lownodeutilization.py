"""LowNodeUtilization: from nodes with much requested to nodes with little (DS-K8S-09)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from koord.config.errors import ConfigError
from roles.descheduler.framework.effects import PAUSE, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.picture import NodeView
from roles.descheduler.plugins.community.common import LenientModel
from roles.descheduler.plugins.community.requested import (
    BASIC,
    ExcludedNamespaces,
    Leaving,
    Percentages,
    Requested,
    check_percentages,
    headroom,
)

KUBERNETES_METRICS = "KubernetesMetrics"
METRIC_EXPIRES = 180.0  # seconds after which a NodeMetric says nothing any more


class EvictionLimits(LenientModel):
    """How many pods may leave one node in a round."""

    node: int | None = Field(None, ge=0)
    """Pods that leave one node in a round at most; unset: no limit."""


class MetricsUtilization(LenientModel):
    """Where real usage comes from."""

    source: str = ""
    """`KubernetesMetrics`: the NodeMetrics of koordlet. Prometheus is not served."""
    metrics_server: bool = False
    """Older form of source KubernetesMetrics."""

    @model_validator(mode="after")
    def _accepted(self) -> MetricsUtilization:
        if self.source != KUBERNETES_METRICS and not (self.metrics_server and not self.source):
            raise ConfigError(
                "source", f"{self.source!r} is not served; accepted: {KUBERNETES_METRICS}, which reads koordlet's NodeMetrics"
            )
        return self


class LowNodeUtilizationArgs(LenientModel):
    """LowNodeUtilization; thresholds in percent of allocatable, or around the average with useDeviationThresholds."""

    use_deviation_thresholds: bool = False
    """Thresholds are distances from the average."""
    thresholds: Percentages = {}
    """Percent of allocatable by resource, 0 to 100; a node that requests less of all takes pods."""
    target_thresholds: Percentages = {}
    """Percent of allocatable by resource, 0 to 100; pods leave a node that requests more of any."""
    number_of_nodes: int = Field(0, ge=0)
    """Pods leave only if more than so many nodes are below the thresholds."""
    metrics_utilization: MetricsUtilization | None = None
    """Real usage instead of requests, as koordlet reports it."""
    evictable_namespaces: ExcludedNamespaces | None = None
    """Namespaces whose pods stay."""
    eviction_limits: EvictionLimits | None = None
    """How many pods may leave in a round."""

    @model_validator(mode="after")
    def _accepted(self) -> LowNodeUtilizationArgs:
        check_percentages("thresholds", self.thresholds)
        check_percentages("targetThresholds", self.target_thresholds)
        if self.thresholds.keys() != self.target_thresholds.keys():
            raise ConfigError("targetThresholds", "must name the same resources as thresholds")
        for name, low in self.thresholds.items():
            if not self.use_deviation_thresholds and low > self.target_thresholds[name]:
                raise ConfigError(f"thresholds.{name}", f"{low} must not be above targetThresholds.{name}, {self.target_thresholds[name]}")
        if self.evictable_namespaces is not None:
            self.evictable_namespaces.check("evictableNamespaces")
        return self


class LowNodeUtilization:
    """A Balance plugin without memory."""

    name: ClassVar[str] = "LowNodeUtilization"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: LowNodeUtilizationArgs, interval: float) -> None:
        self.args = args
        self._by_usage = args.metrics_utilization is not None
        self._stay = frozenset(args.evictable_namespaces.exclude if args.evictable_namespaces is not None else ())

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Classify, then let pods leave while their node is above target and the targets have room."""
        measured: list[Requested] = []
        for node in nodes:
            if handle.pause():
                yield PAUSE
            if not self._by_usage:
                measured.append(Requested.of(node, self.args.thresholds))
            elif node.usage is not None and node.metric_age < METRIC_EXPIRES:
                measured.append(Requested.used(node, self.args.thresholds))
            else:
                handle.note(f"node {node.name} is left out: it does not report its usage")
        low_limits, high_limits = self._limits(measured)
        low = [node for node in measured if node.under(low_limits) and not node.view.node.spec.unschedulable]
        is_low = {node.view.name for node in low}
        high = [node for node in measured if node.view.name not in is_low and node.over(high_limits)]
        if why := self._why_not(len(low), len(high), len(measured)):
            handle.note(why)
            return
        yield from Leaving(
            by_usage=self._by_usage,
            sources=sorted(high, key=lambda node: -node.weight),
            targets=low,
            budget=headroom(low, high_limits),
            still=lambda node: bool(node.over(high_limits)),
            allowed=lambda view: view.pod.metadata.namespace not in self._stay and not handle.filter(view.pod),
            reason=lambda node: _reason(node, high_limits, "usage" if self._by_usage else "requests"),
            per_node=self.args.eviction_limits.node if self.args.eviction_limits is not None else None,
            pause=handle.pause,
        ).turn()

    def _limits(self, nodes: list[Requested]) -> tuple[dict[str, float], dict[str, float]]:
        """Low and high limits in percent. With deviations a low threshold of 0 ignores the resource."""
        low: dict[str, float] = dict.fromkeys(BASIC, 100.0)
        high: dict[str, float] = dict.fromkeys(BASIC, 100.0)
        for name, threshold in self.args.thresholds.items():
            target = self.args.target_thresholds[name]
            if not self.args.use_deviation_thresholds:
                low[name], high[name] = threshold, target
            elif threshold == 0 or not nodes:
                low[name] = high[name] = 100.0
            else:
                average = sum(node.percent(name) for node in nodes) / len(nodes)
                low[name], high[name] = max(0.0, average - threshold), min(100.0, average + target)
        return low, high

    def _why_not(self, low: int, high: int, total: int) -> str:
        if not low:
            return "no node is underutilized"
        if low <= self.args.number_of_nodes:
            return f"{low} nodes are underutilized, more than {self.args.number_of_nodes} are asked for"
        if low == total:
            return "all nodes are underutilized"
        return "" if high else "no node is above its target utilization"


def _reason(node: Requested, limits: dict[str, float], what: str) -> str:
    parts = (f"{name} {what}({node.percent(name):.2f}%)>target({limits[name]:.2f}%)" for name in node.over(limits))
    return f"node is overutilized, {', '.join(parts)}"
