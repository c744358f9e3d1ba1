"""How devices and nodes are preferred (SCH-DEV-13). Pure. Every percentage is floored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from koord.api import names
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.plugins.device_share.amounts import GPU, WHOLE, Wanted
from roles.scheduler.plugins.device_share.args import DeviceScoringStrategy
from roles.scheduler.plugins.device_share.view import Unit

_PERCENTS = (names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY_RATIO)


@dataclass(frozen=True, slots=True)
class Scorer:
    """A scoring strategy: (resource, weight) pairs, and whether full or empty is better. `worth` is what a card is worth by the percent
    free on it, in any unit; where it is given, shares go to the card that loses least."""

    most: bool
    weights: tuple[tuple[str, int], ...]
    worth: tuple[int, ...] = ()

    @classmethod
    def of(cls, strategy: DeviceScoringStrategy) -> Scorer:
        """The scorer of a strategy from the arguments."""
        return cls(strategy.type != "LeastAllocated", tuple((entry.name, entry.weight) for entry in strategy.resources))

    def device(self, unit: Unit, wanted: Wanted) -> int:
        """How good one device is for one unit of what is wanted, 0..100; with `worth`, what is lost, below 0."""
        if self.worth and wanted.type == GPU:
            return self._kept(unit, wanted)
        amounts, free = unit.card.amounts, unit.free
        return self._rate((weight, amounts.get(name, 0), free.get(name, 0), wanted.of(name)) for name, weight in self.weights)

    def _kept(self, unit: Unit, wanted: Wanted) -> int:
        free = min((unit.free[name] for name in _PERCENTS if name in unit.free), default=0)
        taken = dict(unit.takes(wanted))
        rest = free - max((taken.get(name, 0) for name in _PERCENTS), default=0)
        return self.worth[max(rest, 0)] - self.worth[min(free, WHOLE)]

    def node(self, units: Iterable[Unit], wanted: Wanted) -> int:
        """How good the devices of a type are together for all that is wanted, 0..100."""
        cards = tuple(units)
        return self._rate(
            (
                weight,
                sum(unit.card.amounts.get(name, 0) for unit in cards),
                sum(unit.free.get(name, 0) for unit in cards),
                wanted.of(name) * wanted.count,
            )
            for name, weight in self.weights
        )

    def _rate(self, sums: Iterable[tuple[int, int, int, int]]) -> int:
        """(weight, total, free, wanted) by resource."""
        total_score = total_weight = 0
        for weight, total, free, amount in sums:
            if total > 0:
                total_score += weight * self._percent(total, total - free + amount)
                total_weight += weight
        return total_score // total_weight if total_weight else 0

    def _percent(self, total: int, used: int) -> int:
        if self.most:
            return 100 * min(used, total) // total
        return 100 * (total - used) // total if used <= total else 0

    def vector(self, sums: Iterable[tuple[int, Vector, Vector, float]]) -> Vector:
        """The same for many nodes: (weight, total, free, wanted in all) by resource, as vectors over nodes."""
        score: Any = None
        weights: Any = None
        for weight, total, free, amount in sums:
            some = total > 0
            used = total - free + amount
            over = np.minimum(used, total) if self.most else np.maximum(total - used, 0.0)
            part = np.floor(np.divide(100.0 * over, total, out=np.zeros_like(total), where=some)) * weight
            score = part if score is None else score + part
            weights = some * float(weight) if weights is None else weights + some * float(weight)
        return np.asarray(np.floor(np.divide(score, weights, out=np.zeros_like(score), where=weights > 0)))
