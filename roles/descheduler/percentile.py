"""Judging nodes by a percentile of their usage instead of its average, so that a node with peaks counts as hot (DS-LNL-01). Pure.

A NodeMetric has percentiles of the node as a whole only. How far the percentile lies above the node's average is added to the usage of the
system and of the pods that stay; so pods that left since the report count as little as without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from koord.accounting import resources
from koord.api.objects import NodeMetric
from koord.api.times import parse_duration
from roles.descheduler.snapshot import NodeView, Vector

Shifts = Mapping[str, Vector]
"""By node: what is added to its usage. Not to the view of the node, by which other plugins go, too."""


@dataclass(frozen=True, slots=True)
class Percentile:
    """Which aggregate of NodeMetrics counts, over a window of so many seconds; 0: the longest that is reported."""

    aggregate: str
    window: float = 0.0


def usage_of(view: NodeView, shift: Vector | None, *, prod: bool) -> Vector:
    """What counts as used on a node, never less than nothing; of Prod pods there are no percentiles."""
    usage = (view.prod_usage if prod else view.usage) or {}
    return usage if prod or not shift else {name: max(value + shift.get(name, 0), 0) for name, value in usage.items()}


def shift(metric: NodeMetric | None, by: Percentile | None) -> Vector:
    """What is added to the node's usage, per resource (less than 0 where the percentile is below the average).

    Empty when nothing is asked for, or when the node does not report it. Raises QuantityError or TimeError for values that cannot be read.
    """
    info = metric.status.node_metric if metric is not None else None
    if by is None or info is None:
        return {}
    windows = {
        parse_duration(window.duration) if window.duration else 0.0: window.usage[by.aggregate].resources
        for window in info.aggregated_node_usages
        if by.aggregate in window.usage
    }
    length = by.window or max(windows, default=0.0)
    if length not in windows:
        return {}
    usual = resources.parse(info.node_usage.resources)
    # Nothing uses less than 0: where one of the two says so, the average counts.
    return {name: value - usual[name] for name, value in resources.parse(windows[length]).items() if min(value, usual.get(name, -1)) >= 0}
