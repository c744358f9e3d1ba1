"""What is usual for a signal, and who moves with it (BEY-INT-01). Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

#: A value is out of the ordinary when it is above the mean by this many standard deviations, by this share of the mean, and by
#: the signal's own floor.
DEVIATIONS, SHARE = 3.0, 0.5
#: After so long (seconds) a past value counts half.
HALF_LIFE = 3600.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """Decayed mean and variance of a signal; ``at`` is the time of the newest value (Unix seconds)."""

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0
    at: float = 0.0

    def learned(self, value: float, now: float) -> Baseline:
        """With one more value. The first ones weigh alike, later ones by their age."""
        weight = max(1.0 - 0.5 ** (max(now - self.at, 0.0) / HALF_LIFE), 1.0 / (self.count + 1)) if self.count else 1.0
        away = value - self.mean
        variance = (1.0 - weight) * (self.variance + weight * away * away)
        return Baseline(self.mean + weight * away, variance, self.count + 1, now)

    def limit(self, floor: float) -> float:
        """Above this a value is out of the ordinary."""
        return self.mean + max(DEVIATIONS * math.sqrt(self.variance), SHARE * self.mean, floor)


def covariance(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """Covariance and correlation (-1..1; 0 where one of them does not move) of two equally long series."""
    n = len(left)
    if n < 2:
        return 0.0, 0.0
    mean_left, mean_right = math.fsum(left) / n, math.fsum(right) / n
    both = math.fsum((a - mean_left) * (b - mean_right) for a, b in zip(left, right, strict=True)) / n
    spread = math.fsum((a - mean_left) ** 2 for a in left) / n, math.fsum((b - mean_right) ** 2 for b in right) / n
    scale = math.sqrt(spread[0] * spread[1])
    return both, max(-1.0, min(1.0, both / scale)) if scale > 0 else 0.0


def aligned(times: Sequence[int], other_times: Sequence[int], other: Sequence[float], before_ms: int) -> list[float | None]:
    """For each time the mean of another series over the ``before_ms`` before it; None where it has no point. Times ascend."""
    out: list[float | None] = []
    for time in times:
        first, last = bisect.bisect_right(other_times, time - before_ms), bisect.bisect_right(other_times, time)
        points = other[first:last]
        out.append(math.fsum(points) / len(points) if points else None)
    return out
