"""Bringing raw scores to 0..100. A normalizer sees the lowest and highest raw value among the feasible nodes and nothing else,
so that a changed row costs one row unless it moved one of the two."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from roles.scheduler.cluster.columns import Vector

MAX_SCORE = 100.0


class Normalizer(Protocol):
    """Maps raw scores to 0..100 given the extremes over feasible nodes. Raw values equal to `ignored` take no part in the extremes."""

    ignored: float | None = None

    def apply(self, raw: Any, low: float, high: float) -> Any:
        """Works on a vector and on a single number alike; whole numbers come out."""


class Proportional(Normalizer):
    """raw·100/max, floored; all 0 when the maximum is 0."""

    def apply(self, raw: Any, low: float, high: float) -> Any:
        if high <= 0:
            return raw * 0.0
        return np.floor(raw * MAX_SCORE / high)


class ReverseProportional(Normalizer):
    """100 - raw·100/max; all 100 when the maximum is 0."""

    def apply(self, raw: Any, low: float, high: float) -> Any:
        if high <= 0:
            return raw * 0.0 + MAX_SCORE
        return MAX_SCORE - np.floor(raw * MAX_SCORE / high)


class Spread(Normalizer):
    """100·(raw - min)/(max - min), floored; all 0 when the two are equal."""

    def apply(self, raw: Any, low: float, high: float) -> Any:
        if high <= low:
            return raw * 0.0
        return np.floor(MAX_SCORE * (raw - low) / (high - low))


class Fine(Normalizer):
    """As Spread, in steps of 1/1024: what differs little still differs, and any order still adds up alike."""

    def apply(self, raw: Any, low: float, high: float) -> Any:
        if high <= low:
            return raw * 0.0
        return np.floor(1024.0 * MAX_SCORE * (raw - low) / (high - low)) / 1024.0


PROPORTIONAL = Proportional()
REVERSE_PROPORTIONAL = ReverseProportional()
SPREAD = Spread()
FINE = Fine()


def extremes(raw: Vector, feasible: Any, ignored: float | None = None) -> tuple[float, float]:
    """Lowest and highest raw value among feasible rows, leaving out the value `ignored`; (0, 0) when there is none."""
    values = raw[feasible]
    if ignored is not None:
        values = values[values != ignored]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
