"""NodeMetric as LoadAwareScheduling reads it: usage vectors over the plugin's resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from koord.accounting.resources import parse_quantity
from koord.api.objects import NodeMetric
from koord.api.priority import PriorityClass
from koord.api.times import parse_duration, parse_time

DEFAULT_REPORT_INTERVAL = 60.0

Usage = tuple[float, ...]


class PodUsage(NamedTuple):
    """Reported usage of a pod, and whether it was reported as koord-prod."""

    usage: Usage
    prod: bool


class Metric:
    """One NodeMetric. `updated` is None when it never reported; `usage` is None without status.nodeMetric. Seconds and base units.

    Raises ValueError for a malformed time, duration or quantity.
    """

    __slots__ = ("aggregated", "interval", "pods", "system", "updated", "usage")

    def __init__(self, metric: NodeMetric, resources: Sequence[str]) -> None:
        status = metric.status
        policy = metric.spec.metric_collect_policy
        self.updated = parse_time(status.update_time) if status.update_time else None
        interval = policy.report_interval_seconds if policy is not None else None
        self.interval = float(interval) if interval is not None else DEFAULT_REPORT_INTERVAL
        info = status.node_metric
        self.usage: Usage | None = None
        self.system: Usage = (0.0,) * len(resources)
        self.aggregated: dict[tuple[str, float], Usage] = {}
        if info is not None:
            self.usage = vector(info.node_usage.resources, resources)
            self.system = vector(info.system_usage.resources, resources)
            for window in info.aggregated_node_usages:
                length = parse_duration(window.duration) if window.duration else 0.0
                for kind, usage in window.usage.items():
                    if usage.resources:
                        self.aggregated[kind, length] = vector(usage.resources, resources)
        self.pods: dict[str, PodUsage] = {
            f"{pod.namespace}/{pod.name}": PodUsage(vector(pod.pod_usage.resources, resources), pod.priority == PriorityClass.PROD)
            for pod in status.pods_metric
            if pod.pod_usage.resources
        }

    def window(self, kind: str, duration: float) -> Usage | None:
        """Usage by type over a window; duration 0 takes the longest one recorded, else plain usage. None: that window is not reported."""
        if duration > 0:
            return self.aggregated.get((kind, duration))
        lengths = [length for known, length in self.aggregated if known == kind]
        return self.aggregated[kind, max(lengths)] if lengths else self.usage


def vector(amounts: Mapping[str, str | int | float], resources: Sequence[str]) -> Usage:
    """Amounts of the plugin's resources in base units, 0 for those that are not given."""
    return tuple(float(parse_quantity(name, amounts[name])) if name in amounts else 0.0 for name in resources)
