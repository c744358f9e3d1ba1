"""A unit of CPU work that every workload of the sandbox counts in, so that work done in one phase compares with another."""

from __future__ import annotations

import time

MODULUS = 0x7FFF_FFFF


def spin(iterations: int, seed: int = 1) -> int:
    """Burn CPU for so many iterations of a linear congruential step; the result depends on every one of them."""
    value = seed
    for _ in range(iterations):
        value = (value * 1_103_515_245 + 12_345) & MODULUS
    return value


def calibrate(milliseconds: float, *, rounds: int = 9) -> int:
    """Iterations of `spin` that take so many milliseconds of CPU time here: from the fastest of several rounds."""
    probe = 20_000
    best = min(_cpu_seconds(probe) for _ in range(rounds))
    return max(1, round(probe * milliseconds / 1000 / best))


def _cpu_seconds(iterations: int) -> float:
    began = time.process_time_ns()
    spin(iterations)
    return max(time.process_time_ns() - began, 1) / 1e9
