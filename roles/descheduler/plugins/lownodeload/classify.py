"""Which nodes are low, normal, hot (DS-LNL-01..03). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from roles.descheduler.percentile import Shifts, usage_of
from roles.descheduler.plugins.lownodeload.args import Pool
from roles.descheduler.snapshot import NodeView, Vector


class NodeClass(StrEnum):
    """Where a node stands against its thresholds."""

    LOW = "low"
    BOTH_LOW = "bothLow"
    PROD_LOW = "prodLow"
    NORMAL = "normal"
    HOT = "hot"
    PROD_HOT = "prodHot"


@dataclass(slots=True)
class Bounds:
    """Thresholds of one node in base units."""

    low: Vector
    high: Vector
    prod_low: Vector
    prod_high: Vector


@dataclass(slots=True)
class Placed:
    """A node with its thresholds and its class."""

    view: NodeView
    bounds: Bounds
    node_class: NodeClass
    shift: Vector | None = None

    def usage(self, *, prod: bool) -> Vector:
        """What counts as used there now."""
        return usage_of(self.view, self.shift, prod=prod)

    def high(self, *, prod: bool) -> Vector:
        """Above which usage it is hot."""
        return self.bounds.prod_high if prod else self.bounds.high


def quantity_at(percent: float, allocatable: int) -> int:
    """trunc((p × 0.01) × allocatable) in IEEE doubles, in this order."""
    return int((percent * 0.01) * allocatable)


def average_percent(views: Iterable[NodeView], resources: Iterable[str], shifts: Shifts, *, prod: bool) -> dict[str, float]:
    """Mean utilisation of each resource in percent over the nodes with metrics."""
    measured = [(usage_of(view, shifts.get(view.name), prod=prod), view.capacity) for view in views if view.usage is not None]
    averages: dict[str, float] = {}
    for name in resources:
        total = sum(usage.get(name, 0) / capacity[name] * 100.0 for usage, capacity in measured if capacity.get(name))
        averages[name] = total / len(measured) if measured else 0.0
    return averages


def bounds_of(view: NodeView, pool: Pool, averages: Mapping[str, float], prod_averages: Mapping[str, float]) -> Bounds:
    """Thresholds of one node; averages matter in deviation mode only."""
    low, high = _pair(view, pool, pool.low, pool.high, averages)
    prod_low, prod_high = _pair(view, pool, pool.prod_low, pool.prod_high, prod_averages)
    return Bounds(low, high, prod_low, prod_high)


def _pair(
    view: NodeView, pool: Pool, low: Mapping[str, float], high: Mapping[str, float], averages: Mapping[str, float]
) -> tuple[Vector, Vector]:
    lows: Vector = {}
    highs: Vector = {}
    for name in pool.resources:
        capacity = view.capacity.get(name, 0)
        if not pool.deviation:
            lows[name], highs[name] = quantity_at(low[name], capacity), quantity_at(high[name], capacity)
        elif low[name] == 0:
            lows[name] = highs[name] = capacity
        else:
            lows[name] = quantity_at(_clamp(averages[name] - low[name]), capacity)
            highs[name] = quantity_at(_clamp(averages[name] + high[name]), capacity)
    return lows, highs


def _clamp(percent: float) -> float:
    return min(max(percent, 0.0), 100.0)


def is_under(usage: Mapping[str, int], bounds: Mapping[str, int]) -> bool:
    """Every resource that has a usage value is at or below its bound."""
    return all(usage[name] <= bound for name, bound in bounds.items() if name in usage)


def over(usage: Mapping[str, int], bounds: Mapping[str, int]) -> list[str]:
    """The resources above their bound, in name order."""
    return sorted(name for name, bound in bounds.items() if name in usage and usage[name] > bound)


def class_of(usage: Vector, prod_usage: Vector, bounds: Bounds, *, cordoned: bool) -> NodeClass:
    """The table of DS-LNL-01."""
    prod_hot = bool(over(prod_usage, bounds.prod_high))
    if is_under(usage, bounds.low) and not cordoned:
        if prod_hot:
            return NodeClass.PROD_HOT
        return NodeClass.BOTH_LOW if is_under(prod_usage, bounds.prod_low) else NodeClass.LOW
    if over(usage, bounds.high):
        return NodeClass.HOT
    if prod_hot:
        return NodeClass.PROD_HOT
    return NodeClass.PROD_LOW if is_under(prod_usage, bounds.prod_low) and not cordoned else NodeClass.NORMAL


class Classifier:
    """Classes of the nodes of a pool that have metrics; the averages over all of them are taken once."""

    def __init__(self, views: Iterable[NodeView], pool: Pool, shifts: Shifts) -> None:
        self.measured = [view for view in views if view.usage is not None]
        self._pool, self._shifts = pool, shifts
        self._averages = average_percent(self.measured, pool.resources, shifts, prod=False) if pool.deviation else {}
        self._prod_averages = average_percent(self.measured, pool.resources, shifts, prod=True) if pool.deviation else {}

    def place(self, view: NodeView) -> Placed:
        """A node with its thresholds and class."""
        bounds = bounds_of(view, self._pool, self._averages, self._prod_averages)
        shift = self._shifts.get(view.name)
        used, prod_used = usage_of(view, shift, prod=False), usage_of(view, shift, prod=True)
        return Placed(view, bounds, class_of(used, prod_used, bounds, cordoned=view.node.spec.unschedulable), shift)


def classify(views: Iterable[NodeView], pool: Pool) -> list[Placed]:
    """Every node that has metrics, with its thresholds and class, in the order given."""
    classifier = Classifier(views, pool, {})
    return [classifier.place(view) for view in classifier.measured]
