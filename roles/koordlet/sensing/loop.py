"""The sensing loop: runs the collectors that are due, then hands the tick on (KLO-LIFE-01)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass

from koord import seams
from roles.koordlet.host.files import HostFiles
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.sensing.base import Collector, Round
from roles.koordlet.store.store import MetricStore

log = logging.getLogger(__name__)

#: The wall clock may differ from the monotonic one by this much between two ticks before it counts as a jump (seconds).
_JUMP = 5.0
#: Collectors whose numbers strategies act on; they join a tick out of turn.
_FAST = ("node", "pods", "be", "host applications", "system")
#: Starting a collector this much early saves a wake-up of its own (seconds).
_EARLY = 0.02


@dataclass(eq=False)
class SensingLoop:
    """One tick a collect interval; slower collectors join the first tick after they are due.

    ``on_tick`` is called after the collectors, within the same reading of the files, so that strategies see the same numbers;
    ``sweep`` once a minute, to forget what is gone.
    """

    collectors: Sequence[Collector]
    _: KW_ONLY
    files: HostFiles
    store: MetricStore
    metrics: Metrics
    interval: float
    least_distance: float = 0.25
    on_tick: Callable[[Round], None] | None = None
    sweep: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._collectors = [c for c in self.collectors if c.enabled]
        self._due: dict[str, float] = {}
        self._woken = asyncio.Event()
        self._clock_offset: float | None = None
        self._next_expiry = 0.0
        self.ticks = 0
        self.longest_tick = 0.0

    def wake(self) -> None:
        """Tick soon: something happened that must not wait for the interval."""
        self._woken.set()
        self._due.update(dict.fromkeys(_FAST, 0.0))

    @property
    def started(self) -> bool:
        """Whether every enabled collector had a first successful round."""
        return all(c.started for c in self._collectors)

    @property
    def waiting_for(self) -> list[str]:
        """Names of collectors without a successful round yet."""
        return [c.name for c in self._collectors if not c.started]

    def tick(self, now: float, mono: float, clock: Callable[[], float] | None = None) -> None:
        """Run what is due at this moment. ``clock`` tells how late in the tick a collector runs; None: time stands still meanwhile."""
        self._watch_clock(now, mono)
        begun = seams.perf_counter()
        self.files.begin_tick()
        at = Round(now, mono)
        for collector in self._collectors:
            if self._due.get(collector.name, 0.0) <= mono + _EARLY:
                # a counter's time is when it is read: what ran before it in this tick (opening files, asking tools) must not
                # shorten the next rate
                collector.run(Round(now, mono + clock() - begun) if clock is not None else at)
                self._due[collector.name] = mono + collector.interval
        if self.on_tick is not None:
            self.on_tick(at)
        if mono >= self._next_expiry:
            self.store.expire(now)
            self.metrics.sweep()
            self.files.sweep()
            self.sweep()
            self._next_expiry = mono + 60.0
        took = seams.perf_counter() - begun
        self.ticks += 1
        self.longest_tick = max(self.longest_tick, took)
        self.metrics.tick_seconds.set(took, "last")
        self.metrics.tick_seconds.set(self.longest_tick, "longest")

    def _watch_clock(self, now: float, mono: float) -> None:
        offset = now - mono
        before, self._clock_offset = self._clock_offset, offset
        if before is None or abs(offset - before) < _JUMP:
            return
        log.warning("the wall clock jumped by %.1f s", offset - before)
        self.store.clock_stepped(offset - before, now)

    async def run(self, stopping: asyncio.Event) -> None:
        """Tick until ``stopping`` is set."""
        loop = asyncio.get_running_loop()
        ended = asyncio.ensure_future(stopping.wait())
        ended.add_done_callback(lambda _: self._woken.set())
        try:
            while not stopping.is_set():
                begun = loop.time()
                self.tick(seams.now(), seams.monotonic(), seams.perf_counter)
                await self._pause(max(self.interval - (loop.time() - begun), 0.05), stopping)
        finally:
            ended.cancel()

    async def _pause(self, seconds: float, stopping: asyncio.Event) -> None:
        """Until the next tick: the interval, or earlier when woken, but never sooner than the least distance."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        earliest = loop.time() + self.least_distance
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()
        left = min(earliest, until) - loop.time()
        if left > 0 and not stopping.is_set():
            await seams.sleep(left)
