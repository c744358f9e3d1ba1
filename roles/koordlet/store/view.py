"""The view of the store that a tick hands to its readers (KLO-TSDB-01)."""

from __future__ import annotations

from roles.koordlet.store.series import Series
from roles.koordlet.store.store import MetricStore


class MetricsView:
    """The store as of one moment, the snapshot's time: all queries end there.

    ``kind`` is a constant of :mod:`roles.koordlet.store.kinds`; properties select series (``pod_uid=…``). A query that fixes
    only some properties merges all matching series. None means that there is no sample, never zero.
    """

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
        """Mean of the samples of the last ``window`` seconds."""
        return self.query(kind, window, **properties).aggregate("avg")

    def aggregate(self, kind: str, how: str, window: float, **properties: str) -> float | None:
        """``avg``, ``p50``, ``p90``, ``p95``, ``p99``, ``last`` or ``count`` over the last ``window`` seconds."""
        return self.query(kind, window, **properties).aggregate(how)

    def count(self, kind: str, window: float, **properties: str) -> int:
        """Number of samples of the last ``window`` seconds."""
        return len(self.query(kind, window, **properties))

    def keys(self, kind: str) -> list[tuple[str, ...]]:
        """Property values of all series of a kind, in schema order: also of objects that nobody knows (any more)."""
        return self._store.keys(kind)

    def query(self, kind: str, window: float, **properties: str) -> Series:
        """The points themselves."""
        return self._store.query(kind, properties, self._now_ms - round(window * 1000), self._now_ms)
