"""Times that other machines wrote, told by this machine's clock: an age must not be the difference of two clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import LRUCache
from msgspec import structs

from koord import seams
from koord.api.objects import NodeMetric
from koord.api.times import TimeError, format_time, parse_time

TOLERATED = 30.0
"""Seconds that two clocks may differ, and a report may take, without anything being made of it."""

_LATE = 10.0
"""How much later or earlier (seconds) than its predecessor a report may come and still tell the difference of the clocks."""

_NEEDED = 3
"""Reports in step that tell it."""

_REPORTERS = 50_000


@dataclass(slots=True)
class _Reporter:
    stamp: float
    seen: float
    local: float
    ahead: float = 0.0
    """How far (seconds) this machine's clock is ahead of the reporter's, as far as that is known."""
    in_step: list[float] = field(default_factory=list)


class ReporterClocks:
    """How far the clocks of those who report are from this machine's, learnt from reports that come in step.

    Who reports each minute, and whose reports say so by their own clock, tells that clock: the reports arrive as far apart as they
    were written, each as old as the clocks differ. One late report, a burst after a stalled watch, or the first ones of a process tell
    nothing, and their times are taken as written, but none is later than its arrival. A delay that stays the same cannot be told from a
    clock.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float] = seams.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._reporters: LRUCache[str, _Reporter] = LRUCache(_REPORTERS)

    def local(self, reporter: str, stamp: float) -> float:
        """`stamp` (Unix seconds by the reporter's clock) by this machine's; to be asked as soon as a report arrives."""
        known = self._reporters.get(reporter)
        if known is not None and known.stamp == stamp:
            return known.local
        now, seen = self._wall(), self._monotonic()
        if known is None:
            known = self._reporters[reporter] = _Reporter(stamp, seen, stamp, in_step=[now - stamp])
        else:
            _learn(known, stamp - known.stamp, seen - known.seen, now - stamp)
            known.stamp, known.seen = stamp, seen
        ahead = known.ahead if abs(known.ahead) > TOLERATED else 0.0
        known.local = min(stamp + ahead, now)
        return known.local


def _learn(one: _Reporter, written: float, arrived: float, age: float) -> None:
    """Take a report that was written and arrived so many seconds after the one before it, and looks so old."""
    in_step = written > 0 and abs(written - arrived) <= min(_LATE, written / 2)
    one.in_step = [*one.in_step[1 - _NEEDED :], age] if in_step else [age]
    if len(one.in_step) == _NEEDED:
        one.ahead = min(one.in_step)
    elif one.ahead > 0:
        one.ahead = max(min(one.ahead, age), 0.0)  # nothing was written after it arrived: a clock that was put right


class ReportTimes:
    """A transform for informers: NodeMetrics whose `status.updateTime` is by this machine's clock where the node's differs."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float] = seams.monotonic) -> None:
        self._clocks = ReporterClocks(wall, monotonic)

    def __call__(self, metric: NodeMetric) -> NodeMetric:
        """The object, or a copy; a time that cannot be read stays for who says what is wrong with it."""
        written = metric.status.update_time
        if not written:
            return metric
        try:
            stamp = parse_time(written)
        except TimeError:
            return metric
        local = self._clocks.local(metric.metadata.name, stamp)
        if local == stamp:
            return metric
        return structs.replace(metric, status=structs.replace(metric.status, update_time=format_time(local)))
