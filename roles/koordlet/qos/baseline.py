"""What is usual for a signal, and who moves with it (BEY-INT-01). Pure."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: A value is out of the ordinary above this share of all values, and then by this much of it or by the signal's floor.
QUANTILE, SHARE = 0.995, 0.1
#: So many values are never enough to raise it.
IGNORED = 2.5
#: While little is known the floor counts so many times; from so many values (an hour of them) on less, until it counts once.
CAUTION, EXPERIENCE = 4.0, 360
#: Values closer than this (seconds) say little that is new, and count less by as much; a gap counts for no more than one value.
APART = 10.0
#: After so long (seconds) a past value counts half: a burst an hour is remembered over a quiet day.
HALF_LIFE = 12 * 3600.0
#: Time in which nobody looked ages them by no more than this (seconds): the agent was away, or the clock was set meanwhile.
LONGEST_GAP = 3600.0
#: Buckets of values: the first one reaches to LEAST, every next one to GROWTH times as much.
LEAST, GROWTH, BUCKETS = 0.01, 1.1, 128
_LOG_GROWTH = math.log(GROWTH)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Decayed mean, variance and distribution of a signal; ``at`` is the time of the newest value (Unix seconds).

    It learns all values that it is given: a distribution without its upper end would call that end unusual for ever.
    """

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0
    at: float = 0.0
    experience: float = 0.0
    """Values as far as they say something new: all of them at ten seconds, a tenth of them at one."""
    weights: array[float] = field(default_factory=lambda: array("f", bytes(4 * BUCKETS)))

    def row(self) -> list[Any]:
        """As plain values, for a file."""
        return [self.mean, self.variance, self.count, self.at, self.experience, self.weights.tobytes()]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Baseline:
        """What :meth:`row` gave. Raises ValueError."""
        mean, variance, count, at, experience, data = row
        weights = array("f")
        weights.frombytes(data)
        numbers = [float(number) for number in (mean, variance, at, experience)]
        if len(weights) != BUCKETS or not all(math.isfinite(number) for number in (*numbers, *weights)) or int(count) < 0:
            raise ValueError("not a baseline")
        return cls(numbers[0], numbers[1], int(count), numbers[2], numbers[3], weights)

    def learned(self, value: float, now: float) -> Baseline:
        """With one more value. The first ones weigh alike, later ones by their age."""
        kept = 0.5 ** (min(max(now - self.at, 0.0), LONGEST_GAP) / HALF_LIFE) if self.count else 0.0
        weight = max(1.0 - kept, 1.0 / (self.count + 1)) if self.count else 1.0
        away = value - self.mean
        variance = (1.0 - weight) * (self.variance + weight * away * away)
        weights = array("f", [w * kept for w in self.weights])
        weights[_bucket(value)] += 1.0
        news = min(max(now - self.at, 0.0) / APART, 1.0) if self.count else 1.0
        return Baseline(self.mean + weight * away, variance, self.count + 1, now, self.experience + news, weights)

    def quantile(self, share: float) -> float:
        """The value that this share of all values does not exceed, between the edges of its bucket."""
        total = math.fsum(self.weights)
        if total <= 0:
            return 0.0
        above = max((1.0 - share) * total, min(IGNORED, total / 2))
        for index in range(BUCKETS - 1, -1, -1):
            weight = self.weights[index]
            if weight > above:
                low, high = _edge(index - 1), _edge(index)
                return high - (high - low) * above / weight
            above -= weight
        return 0.0

    def limit(self, floor: float) -> float:
        """Above this a value is out of the ordinary."""
        # values that come ten times as often are too high ten times as often
        rare = (1.0 - QUANTILE) * self.experience / max(self.count, 1)
        usual = max(self.quantile(1.0 - rare), self.mean)
        caution = min(max(CAUTION * EXPERIENCE / max(self.experience, 1.0), 1.0), CAUTION)
        return usual + max(SHARE * usual, caution * floor)


def _bucket(value: float) -> int:
    if not value > LEAST:
        return 0
    return min(int(math.log(value / LEAST) / _LOG_GROWTH) + 1, BUCKETS - 1)


def _edge(index: int) -> float:
    """Upper edge of a bucket."""
    return LEAST * GROWTH**index if index >= 0 else 0.0


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


def smoothed(values: Sequence[float]) -> list[float]:
    """Medians of three neighbours: no single sample makes or breaks a likeness."""
    last = len(values) - 1
    return [sorted((values[max(i - 1, 0)], values[i], values[min(i + 1, last)]))[1] for i in range(len(values))]


def chance(points: int, candidates: int, risk: float) -> float:
    """The correlation that one of so many innocent series reaches by chance with at most this risk.

    Fisher's transformation with a bound of the normal distribution's tail; neighbouring points count half, for they are alike.
    """
    free = points / 2 - 3
    if free <= 0:
        return 1.0
    return math.tanh(math.sqrt(2 * math.log(max(candidates, 1) / risk) / free))


def aligned(times: Sequence[int], other_times: Sequence[int], other: Sequence[float], before_ms: int) -> list[float | None]:
    """For each time the mean of another series over the ``before_ms`` before it; None where it has no point. Times ascend."""
    out: list[float | None] = []
    for time in times:
        first, last = bisect.bisect_right(other_times, time - before_ms), bisect.bisect_right(other_times, time)
        points = other[first:last]
        out.append(math.fsum(points) / len(points) if points else None)
    return out
