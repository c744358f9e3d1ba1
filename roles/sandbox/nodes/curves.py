"""Usage curves of simulated pods: what share of its request a pod uses at a time. Pure and repeatable: no clock, no global randomness."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

Shape = Callable[[float, float, float], float]
"""(time in seconds, period in seconds, phase 0..1) -> level 0..1."""


def steady(time: float, period: float, phase: float) -> float:
    """The same level all the time."""
    return 1.0


def diurnal(time: float, period: float, phase: float) -> float:
    """A day of `period` seconds: lowest at its start, highest in its middle."""
    return 0.5 - 0.5 * math.cos(2 * math.pi * (time / period + phase))


def bursty(time: float, period: float, phase: float) -> float:
    """Idle most of the time, with a burst of a fifth of the period and a smaller one between."""
    position = (time / period + phase) % 1.0
    if position < 0.2:
        return 1.0
    if 0.55 <= position < 0.65:
        return 0.6
    return 0.1


# A curve is one function and one row.
SHAPES: dict[str, Shape] = {"steady": steady, "diurnal": diurnal, "bursty": bursty}


def spread(key: str) -> float:
    """A number in [0, 1) that depends only on the key: spreads phases and levels over pods, the same in every run."""
    return zlib.crc32(key.encode()) / 2**32


@dataclass(frozen=True, slots=True)
class Curve:
    """A usage curve between `low` and `high` (fractions of the request), with a little noise that is a function of time."""

    shape: str
    low: float
    high: float
    period: float
    phase: float = 0.0
    noise: float = 0.0

    def level(self, time: float, key: str = "") -> float:
        """Fraction of the request used at `time`; never negative. `key` tells pods with equal curves apart."""
        base = self.low + (self.high - self.low) * SHAPES[self.shape](time, self.period, self.phase)
        jitter = self.noise * (2 * spread(f"{key}/{int(time)}") - 1)
        return max(0.0, base * (1 + jitter))
