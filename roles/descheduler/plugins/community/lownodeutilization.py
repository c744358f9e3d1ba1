"""LowNodeUtilization: from nodes with much requested to nodes with little (DS-K8S-09)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pydantic import Field, model_validator

from koord.config.errors import ConfigError
from roles.descheduler.framework.effects import PAUSE, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.plugins.community.common import LenientModel
from roles.descheduler.plugins.community.requested import (
    BASIC,
    ExcludedNamespaces,
    Leaving,
    Percentages,
    Requested,
    check_percentages,
    headroom,
    why_not,
)
from roles.descheduler.reading import EXPIRES, KUBERNETES_METRICS, MEASURED, METRIC_RESOURCE, PROMETHEUS, WHOLE, Reading, key_of
from roles.descheduler.snapshot import NodeView, PodView, Vector


class EvictionLimits(LenientModel):
    """How many pods may leave one node in a round."""

    node: int | None = Field(None, ge=0)
    """Pods that leave one node in a round at most; unset: no limit."""


class PrometheusQuery(LenientModel):
    """What Prometheus is asked."""

    query: str = Field("instance:node_cpu:rate:sum", min_length=1)
    """A query with a sample a node: label `instance` is the node's name, the value a share from 0 to 1."""


class MetricsUtilization(LenientModel):
    """Where real usage comes from."""

    source: str = ""
    """`KubernetesMetrics`: the NodeMetrics of koordlet, and the metrics server for nodes without one. `Prometheus`: a query."""
    metrics_server: bool = False
    """Older form of source KubernetesMetrics."""
    prometheus: PrometheusQuery | None = None
    """With source Prometheus: what it is asked. The file's metricsProviders say where it is."""

    @model_validator(mode="after")
    def _accepted(self) -> MetricsUtilization:
        if not self.source and self.metrics_server:
            self.source = KUBERNETES_METRICS
        if self.source not in (KUBERNETES_METRICS, PROMETHEUS):
            raise ConfigError("source", f"{self.source!r} is not served; accepted: {KUBERNETES_METRICS}, {PROMETHEUS}")
        return self

    @property
    def key(self) -> str:
        """By what the reading of this source is found."""
        return key_of(self.source, (self.prometheus or PrometheusQuery()).query if self.source == PROMETHEUS else "")


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
    """Real usage instead of requests. With Prometheus the one threshold is `MetricResource`."""
    evictable_namespaces: ExcludedNamespaces | None = None
    """Namespaces whose pods stay."""
    eviction_limits: EvictionLimits | None = None
    """How many pods may leave in a round. With Prometheus one a node if unset, as what a pod's leaving does to the answer is not known;
    pods that are still on their way out count."""

    @model_validator(mode="after")
    def _accepted(self) -> LowNodeUtilizationArgs:
        check_percentages("thresholds", self.thresholds)
        check_percentages("targetThresholds", self.target_thresholds)
        if self.thresholds.keys() != self.target_thresholds.keys():
            raise ConfigError("targetThresholds", "must name the same resources as thresholds")
        for name, low in self.thresholds.items():
            if not self.use_deviation_thresholds and low > self.target_thresholds[name]:
                raise ConfigError(f"thresholds.{name}", f"{low} must not be above targetThresholds.{name}, {self.target_thresholds[name]}")
        metrics = self.metrics_utilization
        if metrics is not None and metrics.source == PROMETHEUS and self.thresholds.keys() != {METRIC_RESOURCE}:
            raise ConfigError("thresholds", f"with source Prometheus the one resource is {METRIC_RESOURCE}")
        if self.evictable_namespaces is not None:
            self.evictable_namespaces.check("evictableNamespaces")
        return self


class LowNodeUtilization:
    """A Balance plugin without memory."""

    name: ClassVar[str] = "LowNodeUtilization"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: LowNodeUtilizationArgs, interval: float) -> None:
        self.args = args
        self._metrics = args.metrics_utilization
        self.reads = self._metrics.key if self._metrics is not None else ""
        self._stay = frozenset(args.evictable_namespaces.exclude if args.evictable_namespaces is not None else ())

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Classify, then let pods leave while their node is above target and the targets have room."""
        reading = handle.readings.get(self.reads)
        measured: list[Requested] = []
        for node in nodes:
            if handle.pause():
                yield PAUSE
            found = self._measured(node, reading)
            if found is not None:
                measured.append(found)
            else:
                handle.note(f"node {node.name} is left out: it is not known what it uses")
        if handle.pause(len(measured)):
            yield PAUSE
        low_limits, high_limits = self._limits(measured)
        low: list[Requested] = []
        high: list[Requested] = []
        for found in measured:
            if handle.pause():
                yield PAUSE
            if found.under(low_limits) and not found.view.node.spec.unschedulable:
                low.append(found)
            elif found.over(high_limits):
                high.append(found)
        few = why_not(len(low), len(measured), self.args.number_of_nodes)
        if why := few or ("" if high else "no node is above its target utilization"):
            handle.note(why)
            return
        yield from Leaving(
            taken=self._taken(reading),
            sources=sorted(high, key=lambda node: -node.weight),
            targets=low,
            budget=headroom(low, high_limits),
            still=lambda node: bool(node.over(high_limits)),
            allowed=lambda view: view.pod.metadata.namespace not in self._stay and not handle.filter(view.pod),
            reason=lambda node: _reason(node, high_limits, "usage" if self._metrics is not None else "requests"),
            per_node=self._per_node,
            pause=handle.pause,
            now=handle.now,
        ).turn()

    def _measured(self, node: NodeView, reading: Reading | None) -> Requested | None:
        """What counts of a node; None if that is not known."""
        if self._metrics is None:
            return Requested.of(node, self.args.thresholds)
        reported = node.usage is not None and node.usage.keys() >= MEASURED & self.args.thresholds.keys() and node.metric_age < EXPIRES
        if self._metrics.source == KUBERNETES_METRICS and node.usage is not None and reported:
            return Requested.used(node, self.args.thresholds, node.usage, lambda view: view.usage or {})
        usage = reading.nodes.get(node.name) if reading is not None else None
        if reading is None or usage is None:
            return None
        if self._metrics.source == PROMETHEUS:
            return Requested(node, dict(usage), {METRIC_RESOURCE: WHOLE})
        return Requested.used(node, self.args.thresholds, usage, self._taken(reading))

    def _taken(self, reading: Reading | None) -> Callable[[PodView], Vector]:
        """What a pod's leaving takes from its node."""
        if self._metrics is None:
            return lambda view: view.requests
        told = reading.pods if reading is not None else {}
        return lambda view: view.usage or told.get((view.pod.metadata.namespace, view.pod.metadata.name), {})

    def _per_node(self, node: NodeView) -> int | None:
        """How many pods may leave a node now. What Prometheus tells still has those that are on their way out in it."""
        given = self.args.eviction_limits.node if self.args.eviction_limits is not None else None
        if self._metrics is None or self._metrics.source != PROMETHEUS:
            return given
        return (1 if given is None else given) - sum(view.leaving for view in node.pods)

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


def _reason(node: Requested, limits: dict[str, float], what: str) -> str:
    parts = (f"{name} {what}({node.percent(name):.2f}%)>target({limits[name]:.2f}%)" for name in node.over(limits))
    return f"node is overutilized, {', '.join(parts)}"
