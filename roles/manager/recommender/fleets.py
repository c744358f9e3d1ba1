"""Synthetic usage in the shapes that fleets are known for: diurnal, bursty, leaking, idle (BEY-REC-01). Pure, and the same for one seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from roles.manager.recommender.backtest import Series, Usage
from roles.manager.recommender.policy import DAY

MEBIBYTE = float(1 << 20)
STEP = 300.0
Shape = Callable[[random.Random, float, float], Callable[[float], tuple[float, float]]]


def _diurnal(rng: random.Random, cpu: float, memory: float) -> Callable[[float], tuple[float, float]]:
    """A day's wave, quieter at weekends; memory follows the load a little."""
    depth, phase, noise = rng.uniform(0.3, 0.8), rng.uniform(0, DAY), rng.uniform(0.02, 0.12)

    def at(time: float) -> tuple[float, float]:
        wave = 1 - depth * (0.5 + 0.5 * math.cos((time - phase) / DAY * 2 * math.pi))
        wave *= 0.75 if int(time // DAY) % 7 >= 5 else 1.0
        return cpu * wave * rng.lognormvariate(0, noise), memory * (0.8 + 0.2 * wave) * rng.lognormvariate(0, noise / 6)

    return at


def _bursty(rng: random.Random, cpu: float, memory: float) -> Callable[[float], tuple[float, float]]:
    """Low most of the time, several times as much for some minutes; memory stays near its level."""
    often, height, left = rng.uniform(0.005, 0.03), rng.uniform(3, 8), 0

    def at(time: float) -> tuple[float, float]:
        nonlocal left
        left = rng.randrange(2, 8) if left <= 0 and rng.random() < often else left - 1
        busy = left > 0
        return cpu * (height if busy else 1) * rng.lognormvariate(0, 0.15), memory * (1.12 if busy else 1.0) * rng.lognormvariate(0, 0.02)

    return at


def _leaking(rng: random.Random, cpu: float, memory: float) -> Callable[[float], tuple[float, float]]:
    """Memory grows until the container is restarted, every few days."""
    period, growth = rng.uniform(1.5, 5) * DAY, rng.uniform(0.2, 0.6)

    def at(time: float) -> tuple[float, float]:
        return cpu * rng.lognormvariate(0, 0.1), memory * (1 + growth * (time % period) / period) * rng.lognormvariate(0, 0.01)

    return at


def _idle(rng: random.Random, cpu: float, memory: float) -> Callable[[float], tuple[float, float]]:
    """Next to nothing, always."""

    def at(time: float) -> tuple[float, float]:
        return cpu * 0.05 * rng.lognormvariate(0, 0.3), memory * rng.lognormvariate(0, 0.005)

    return at


SHAPES: dict[str, Shape] = {"diurnal": _diurnal, "bursty": _bursty, "leaking": _leaking, "idle": _idle}


def fleet(shape: str, *, containers: int = 40, days: int = 14, seed: int = 1) -> list[Series]:
    """Usage of single-container workloads, a sample every five minutes. Raises KeyError for an unknown shape."""
    rng = random.Random(f"{shape}/{seed}")
    made = []
    for number in range(containers):
        at = SHAPES[shape](rng, rng.lognormvariate(-0.7, 0.8), rng.lognormvariate(6.8, 0.7) * MEBIBYTE)
        times = (n * STEP for n in range(int(days * DAY / STEP)))
        made.append(Series(f"{shape}-{number}", "main", "r", tuple(Usage(time, *at(time)) for time in times)))
    return made
