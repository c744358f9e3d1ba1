"""Which of several reservations a pod gets, and what nodes score for it (SCH-RSV-07)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roles.scheduler.framework.normalize import MAX_SCORE
from roles.scheduler.plugins.reservation.fit import score
from roles.scheduler.plugins.reservation.ledger import Held

_STEP = 128.0  # above any score: raw values of ordered reservations are (a number above 0) * 128 + score
_FURTHEST = 1 << 43  # orders beyond count as this; keeps raw values exact


def pick(amounts: Mapping[str, int], candidates: Sequence[Held]) -> Held:
    """The candidate with the smallest order if any has one, else the one that the pod fills best. Ties go by name."""
    ordered = [held for held in candidates if held.terms.order]
    if ordered:
        return min(ordered, key=lambda held: (held.terms.order, held.terms.name))
    return min(candidates, key=lambda held: (-score(amounts, held), held.terms.name))


def raw(amounts: Mapping[str, int], held: Held) -> float:
    """The raw node score of a nominated reservation; smaller orders come out higher, above all that have none."""
    points = float(score(amounts, held))
    order = held.terms.order
    if not order:
        return points
    return (float(_FURTHEST) - max(-_FURTHEST + 1, min(order, _FURTHEST - 1))) * _STEP + points


class ByOrder:
    """The node with the smallest order counts as 1000 points; all are brought to 0..100 in proportion to the highest."""

    ignored: float | None = None

    def apply(self, raw: Any, low: float, high: float) -> Any:
        if high <= 0:
            return raw * 0.0
        points = np.mod(raw, _STEP)
        if high < _STEP:
            return np.floor(raw * MAX_SCORE / high)
        first = np.floor_divide(raw, _STEP) == high // _STEP
        return np.where(first, MAX_SCORE, np.floor(points * MAX_SCORE / 1000.0))


BY_ORDER = ByOrder()
