"""One series: timestamps and values in two flat arrays, bounded by age (KLO-TSDB-01).

Sixteen bytes a point. Points older than the window are skipped by moving a start index and cut off in bulk, so that an append
costs amortised O(1) and a series never holds more than about a third over its window.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Samples may arrive out of order by this much (ms).
OUT_OF_ORDER_MS = 60_000
_CUT_AT_LEAST = 64


class SampleRejectedError(ValueError):
    """A sample that the series cannot take: too old, or another value at a timestamp that it already holds."""


class Points:
    """Timestamps (ms, ascending) and values of one series."""

    __slots__ = ("_start", "_times", "_values", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self._times = array("q")
        self._values = array("d")
        self._start = 0
        self.window_ms = window_ms

    def __len__(self) -> int:
        return len(self._times) - self._start

    @property
    def allocated(self) -> int:
        """Points held in memory, expired ones included."""
        return len(self._times)

    @property
    def last_time(self) -> int | None:
        times = self._times
        return times[-1] if len(times) > self._start else None

    def check(self, time_ms: int, value: float) -> None:
        """Raise :class:`SampleRejectedError` if :meth:`add` would refuse the sample."""
        if not len(self) or time_ms > self._times[-1]:
            return
        if time_ms < self._times[-1] - OUT_OF_ORDER_MS:
            raise SampleRejectedError(f"sample is {self._times[-1] - time_ms} ms older than the newest, {OUT_OF_ORDER_MS} are accepted")
        at = bisect_left(self._times, time_ms, self._start)
        if at < len(self._times) and self._times[at] == time_ms and self._values[at] != value:
            raise SampleRejectedError(f"series already holds another value at {time_ms}")

    def add(self, time_ms: int, value: float) -> None:
        """Add one sample; see :meth:`check` for what is refused. The same sample twice is accepted once."""
        times = self._times
        if len(times) == self._start or time_ms > times[-1]:
            times.append(time_ms)
            self._values.append(value)
        else:
            self.check(time_ms, value)
            at = bisect_left(times, time_ms, self._start)
            if times[at] == time_ms:
                return
            times.insert(at, time_ms)
            self._values.insert(at, value)
        start, oldest = self._start, times[-1] - self.window_ms
        if times[start] >= oldest:
            return
        while times[start] < oldest:
            start += 1
        self._start = start
        if start > _CUT_AT_LEAST and start * 4 > len(times):
            self.compact()

    def compact(self) -> None:
        """Give the memory of expired points back."""
        del self._times[: self._start]
        del self._values[: self._start]
        self._start = 0

    def drop_before(self, oldest: int) -> None:
        """Forget points before a time (ms)."""
        self._start = bisect_left(self._times, oldest, self._start)
        self.compact()

    def keep(self, share: float) -> None:
        """Forget the oldest points but for that share of all, and the newest one."""
        self._start = len(self._times) - max(int(len(self) * share), min(len(self), 1))
        self.compact()

    def shift(self, by_ms: int, newest: int) -> None:
        """Move all points by so much, and forget those that are after a time (ms) then: they would block every later sample."""
        self._times = array("q", [time + by_ms for time in self._times])
        end = max(bisect_right(self._times, newest), self._start)
        del self._times[end:]
        del self._values[end:]

    def span(self, begin: int, end: int) -> tuple[array[int], array[float]]:
        """Copies of the points of [begin, end], both inclusive."""
        low = bisect_left(self._times, begin, self._start)
        high = bisect_right(self._times, end, self._start)
        return self._times[low:high], self._values[low:high]

    def last_in(self, begin: int, end: int) -> tuple[int, float] | None:
        """Newest point of [begin, end]."""
        at = bisect_right(self._times, end, self._start) - 1
        if at < self._start or self._times[at] < begin:
            return None
        return self._times[at], self._values[at]

    def dump(self) -> tuple[bytes, bytes]:
        """Timestamps and values as native-endian bytes."""
        return self._times[self._start :].tobytes(), self._values[self._start :].tobytes()

    def load(self, times: bytes, values: bytes) -> None:
        """Replace the content by what :meth:`dump` gave. A pair that does not fit together is a ValueError."""
        new_times, new_values = array("q"), array("d")
        new_times.frombytes(times)
        new_values.frombytes(values)
        if len(new_times) != len(new_values) or any(a >= b for a, b in pairwise(new_times)):
            raise ValueError("timestamps and values do not fit together")
        self._times, self._values, self._start = new_times, new_values, 0


PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def percentile(ordered: Sequence[float], p: float) -> float:
    """Value at index max(floor(n*p) - 1, 0) of an ascending, non-empty sequence; no interpolation."""
    # n * p is exact enough only after rounding away the binary tail: 20 * 0.95 must be 19, not 18.999…
    return ordered[max(math.floor(round(len(ordered) * p, 9)) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a query, all matching series merged; ``times`` in ms.

    ``covered_ms`` is the last minus the first timestamp of the series (of the last merged one when several matched).
    """

    times: Sequence[int]
    values: Sequence[float]
    covered_ms: int

    def __len__(self) -> int:
        return len(self.values)

    def aggregate(self, how: str) -> float | None:
        """One of :data:`AGGREGATIONS`; another name means avg. None on no points, except for count."""
        if how == "count":
            return float(len(self.values))
        if not self.values:
            return None
        if how == "last":
            newest = max(range(len(self.times)), key=lambda i: (self.times[i], -i))
            return self.values[newest]
        p = PERCENTILES.get(how)
        if p is not None:
            return percentile(sorted(self.values), p)
        return math.fsum(self.values) / len(self.values)

    def aggregates(self) -> dict[str, float]:
        """avg and the four percentiles with one sort; empty on no points."""
        if not self.values:
            return {}
        ordered = sorted(self.values)
        out = {"avg": math.fsum(ordered) / len(ordered)}
        out.update({name: percentile(ordered, p) for name, p in PERCENTILES.items()})
        return out
