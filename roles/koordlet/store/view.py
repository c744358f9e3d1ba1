"""Queries over points, and the view of the store that a tick hands to its readers (KLO-TSDB-01 §6.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roles.koordlet.store.store import MetricStore

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
AGGREGATIONS = ("avg", *PERCENTILES, "last", "count")


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


class MetricsView:
    """The store as of one moment; implements ``states.model.MetricsReader``."""

    __slots__ = ("_collect_interval", "_now_ms", "_store")

    def __init__(self, store: MetricStore, now: float, collect_interval: float = 1.0) -> None:
        self._store = store
        self._now_ms = round(now * 1000)
        self._collect_interval = collect_interval

    def last(self, kind: str, *, within: float | None = None, **properties: str) -> float | None:
        """Newest value of the last ``within`` seconds (default: twice the collect interval)."""
        age = within if within is not None else 2 * self._collect_interval
        return self._store.last(kind, properties, self._now_ms - round(age * 1000), self._now_ms)

    def avg(self, kind: str, window: float, **properties: str) -> float | None:
        return self.query(kind, window, **properties).aggregate("avg")

    def aggregate(self, kind: str, how: str, window: float, **properties: str) -> float | None:
        return self.query(kind, window, **properties).aggregate(how)

    def count(self, kind: str, window: float, **properties: str) -> int:
        return len(self.query(kind, window, **properties))

    def keys(self, kind: str) -> list[tuple[str, ...]]:
        """Property values of all series of a kind, in schema order."""
        return self._store.keys(kind)

    def query(self, kind: str, window: float, **properties: str) -> Series:
        return self._store.query(kind, properties, self._now_ms - round(window * 1000), self._now_ms)
