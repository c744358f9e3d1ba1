"""The metric store: typed series in memory, bounded by age and by bytes (KLO-TSDB-01), and the latest snapshots (KLO-TSDB-02)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from roles.koordlet.store import kinds
from roles.koordlet.store.series import Points, SampleRejectedError, Series

log = logging.getLogger(__name__)

_POINT_BYTES = 16
DEFAULT_NODE_WINDOW = 30 * 60.0
DEFAULT_WINDOW = 5 * 60.0
#: Room beyond a window, so that a query that ends a little late still covers it.
_SLACK = 30.0

Key = tuple[str, ...]
Sample = tuple[str, tuple[str, ...], float]


class UnknownKindError(ValueError):
    """A kind or a property that no schema lists."""


class MetricStore:
    """Series by (kind, property values).

    ``retention`` (seconds) caps every window, ``max_bytes`` the whole store; 0 or less caps nothing. Windows grow when a reader
    asks for longer ones (:meth:`want`): a series is kept as long as somebody looks at it and no longer.
    """

    def __init__(self, *, retention: float = 12 * 3600.0, max_bytes: int = 100 << 20) -> None:
        self._series: dict[str, dict[tuple[str, ...], Points]] = {kind: {} for kind in kinds.SCHEMAS}
        self._retention = retention if retention > 0 else math.inf
        self._max_bytes = max_bytes
        self._node_window = min(DEFAULT_NODE_WINDOW, self._retention)
        self._window = min(DEFAULT_WINDOW, self._retention)
        self._snapshots: dict[str, Any] = {}
        self.rejected = 0
        self.evictions = 0

    # -- windows -----------------------------------------------------------------------------------------------------------

    def want(self, *, node_window: float | None = None, window: float | None = None) -> None:
        """Keep node-level series, or all others, at least that long (seconds; capped by the retention)."""
        before = self.windows
        if node_window is not None:
            self._node_window = min(max(node_window, DEFAULT_NODE_WINDOW), self._retention)
        if window is not None:
            self._window = min(max(window, DEFAULT_WINDOW), self._retention)
        if before == self.windows:
            return  # asked for on every tick
        for kind, group in self._series.items():
            for points in group.values():
                points.window_ms = self._window_ms(kind)

    @property
    def windows(self) -> tuple[float, float]:
        """Seconds that node-level series, and all others, are kept."""
        return self._node_window, self._window

    def _window_ms(self, kind: str) -> int:
        return int((self._node_window if kind in kinds.NODE_LEVEL else self._window) * 1000 + _SLACK * 1000)

    # -- writing -----------------------------------------------------------------------------------------------------------

    def append(self, time: float, samples: Iterable[Sample]) -> None:
        """Add a batch of (kind, property values in schema order, value) at one time (Unix seconds), all or none.

        Raises :class:`UnknownKindError` or :class:`SampleRejectedError`; then nothing of the batch was added.
        """
        time_ms = round(time * 1000)
        batch = samples if isinstance(samples, list) else list(samples)
        targets: list[Points] = []
        fresh: dict[tuple[str, tuple[str, ...]], Points] = {}
        for kind, properties, value in batch:
            group = self._series.get(kind)
            if group is None:
                raise UnknownKindError(f"kind {kind!r} is not known")
            points = group.get(properties)
            if points is None:
                schema = kinds.SCHEMAS[kind]
                if len(properties) != len(schema):
                    raise UnknownKindError(f"kind {kind!r} needs the properties {schema}, got {properties}")
                points = fresh.setdefault((kind, properties), Points(self._window_ms(kind)))
            last = points.last_time
            if last is not None and time_ms <= last:
                try:
                    points.check(time_ms, value)
                except SampleRejectedError:
                    self.rejected += len(batch)
                    raise
            targets.append(points)
        for (kind, properties), points in fresh.items():
            self._series[kind][properties] = points
        for (_, _, value), points in zip(batch, targets, strict=True):
            points.add(time_ms, value)

    def drop(self, kind: str, **properties: str) -> int:
        """Remove the matching series (a pod or container that is gone); returns how many."""
        matching = [key for key, _ in self._matching(kind, properties)]
        for key in matching:
            del self._series[kind][key]
        return len(matching)

    def clock_stepped(self, by: float, now: float) -> None:
        """The wall clock was set by so much (seconds; back: negative) to ``now``: points keep their age, so that no window has a gap."""
        by_ms, newest = round(by * 1000), round(now * 1000)
        for group in self._series.values():
            for key, points in list(group.items()):
                points.shift(by_ms, newest)
                if not points:
                    del group[key]

    def clock_jumped_back(self, now: float) -> None:
        """The wall clock was set back to ``now``, nobody knows by how much: the newest point counts as one of a second ago."""
        times = [points.last_time for group in self._series.values() for points in group.values() if points.last_time is not None]
        newest = max(times, default=0) / 1000
        if newest > now:
            self.clock_stepped(now - 1.0 - newest, now)

    def expire(self, now: float) -> None:
        """Drop series without a point inside their window and keep the whole within ``max_bytes``. Call once a minute."""
        for kind, group in self._series.items():
            oldest = round(now * 1000) - self._window_ms(kind)
            for key in [k for k, p in group.items() if p.last_time is None or p.last_time < oldest]:
                del group[key]
        if 0 < self._max_bytes < self.size_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Give back what has expired, then shorten the series of pods and their like, and those of the node only where that does not do."""
        for group in self._series.values():
            for points in group.values():
                points.compact()
        size, allowed = self.size_bytes, self._max_bytes * 0.9
        if size <= self._max_bytes:
            return
        self.evictions += 1
        log.warning("metric store holds %d bytes, %d are allowed: shortening its series", size, self._max_bytes)
        node = sum(len(points) for kind in kinds.NODE_LEVEL for points in self._series[kind].values()) * _POINT_BYTES
        spared = kinds.NODE_LEVEL if node < allowed / 2 else frozenset()
        kept = node if spared else 0
        factor = (allowed - kept) / (size - kept)
        for kind, group in self._series.items():
            if kind not in spared:
                for points in group.values():
                    points.keep(factor)

    # -- reading -----------------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Bytes of all points."""
        return sum(p.allocated for group in self._series.values() for p in group.values()) * _POINT_BYTES

    @property
    def series_count(self) -> int:
        return sum(len(group) for group in self._series.values())

    def keys(self, kind: str) -> list[tuple[str, ...]]:
        """Property values of all series of a kind."""
        return list(self._series[kind])

    def _matching(self, kind: str, properties: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Points]]:
        schema = kinds.SCHEMAS.get(kind)
        if schema is None:
            raise UnknownKindError(f"kind {kind!r} is not known")
        unknown = [p for p in properties if p not in schema]
        if unknown:
            raise UnknownKindError(f"kind {kind!r} has the properties {schema}, not {unknown}")
        group = self._series[kind]
        if len(properties) == len(schema):
            key = tuple(properties[p] for p in schema)
            points = group.get(key)
            if points is not None:
                yield key, points
            return
        wanted = [(schema.index(name), value) for name, value in properties.items()]
        for key, points in group.items():
            if all(key[i] == value for i, value in wanted):
                yield key, points

    def query(self, kind: str, properties: Mapping[str, str], begin_ms: int, end_ms: int) -> Series:
        """All points of the matching series within [begin, end] (ms, inclusive)."""
        times: list[int] = []
        values: list[float] = []
        covered = 0
        single: Series | None = None
        for _, points in self._matching(kind, properties):
            some_times, some_values = points.span(begin_ms, end_ms)
            if not some_times:
                continue
            covered = some_times[-1] - some_times[0]
            if single is None and not times:
                single = Series(some_times, some_values, covered)
                continue
            if single is not None:
                times.extend(single.times)
                values.extend(single.values)
                single = None
            times.extend(some_times)
            values.extend(some_values)
        return single or Series(times, values, covered)

    def last(self, kind: str, properties: Mapping[str, str], begin_ms: int, end_ms: int) -> float | None:
        """Newest value within [begin, end]; ties go to the series met first."""
        best: tuple[int, float] | None = None
        for _, points in self._matching(kind, properties):
            found = points.last_in(begin_ms, end_ms)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        return best[1] if best is not None else None

    # -- latest snapshots --------------------------------------------------------------------------------------------------

    def put_snapshot(self, name: str, value: object) -> None:
        """Keep the newest value of a name (``node_cpu_info``, ``node_numa_info``, ``GPU``, …); no history."""
        self._snapshots[name] = value

    def snapshot(self, name: str) -> Any | None:
        return self._snapshots.get(name)

    # -- carrying over a restart -------------------------------------------------------------------------------------------

    def dump(self) -> list[tuple[str, tuple[str, ...], bytes, bytes]]:
        """All series as (kind, property values, timestamps, values)."""
        return [(kind, key, *points.dump()) for kind, group in self._series.items() for key, points in group.items()]

    def load(self, rows: Iterable[tuple[str, tuple[str, ...], bytes, bytes]], now: float) -> int:
        """Take over what :meth:`dump` gave, without points of the future or beyond the window; returns the series kept.

        All or nothing: timestamps and values that do not fit together are a ValueError.
        """
        kept: dict[tuple[str, tuple[str, ...]], Points] = {}
        for kind, key, times, values in rows:
            schema = kinds.SCHEMAS.get(kind)
            if schema is None or len(key) != len(schema):
                continue
            points = Points(self._window_ms(kind))
            points.load(times, values)
            points.drop_before(round(now * 1000) - points.window_ms)
            if points.last_time is not None and points.last_time <= round(now * 1000):
                kept[kind, key] = points
        for (kind, key), points in kept.items():
            self._series[kind][key] = points
        return len(kept)
