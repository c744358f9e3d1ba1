"""A work queue of keys: each key once, failures back off exponentially (5 ms doubling, at most 1000 s unless told otherwise)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from koord.seams import monotonic

if TYPE_CHECKING:
    from koord.process.metrics import Timing

FIRST_DELAY, MAX_DELAY = 0.005, 1000.0


class WorkQueue:
    """Keys to work on, for one event loop. A key that is added while it is worked on comes again afterwards."""

    def __init__(self, name: str, *, longest: float = MAX_DELAY) -> None:
        self.name = name
        self.longest = longest  # seconds that a key which keeps failing waits at most
        self._ready: dict[str, None] = {}
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._wake = asyncio.Event()
        self.held = False
        self.adds = 0
        self.retries = 0
        # who is told how long a key waited and was worked on, in seconds
        self.waited: Timing | None = None
        self.worked: Timing | None = None
        self._since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def hold(self) -> None:
        """Nobody works here for now, perhaps never: no key is kept until `resume`, after which everything has to be added that there is."""
        self.held = True
        self.close()
        self._ready.clear()
        self._since.clear()
        self._failures.clear()

    def resume(self) -> None:
        """Keep keys from here on."""
        self.held = False

    def add(self, key: str) -> None:
        """Work on the key soon."""
        if self.held:
            return
        self.adds += 1
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._since[key] = monotonic()
            self._wake.set()

    def add_all(self, keys: Iterable[str]) -> None:
        """Work on all of them soon."""
        for key in keys:
            self.add(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Work on the key in that many seconds; the earlier of two times counts."""
        if self.held:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def get(self) -> str:
        """The next key. Must be followed by `done` or `failed`."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = self._first()
        del self._ready[key]
        self._working.add(key)
        now = monotonic()
        if self.waited is not None:
            self.waited.observe(now - self._since[key])
        self._since[key] = now
        return key

    def _first(self) -> str:
        """The ready key that comes next: the one that waits longest."""
        return next(iter(self._ready))

    def done(self, key: str) -> None:
        """The key is worked off."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: str) -> float:
        """The key has to come again; the delay in seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        self.retries += 1
        delay = min(FIRST_DELAY * 2.0 ** min(count, 30), self.longest)
        self._release(key)
        self.add_after(key, delay)
        return delay

    def _release(self, key: str) -> None:
        self._working.discard(key)
        began = self._since.pop(key, None)
        if began is not None and self.worked is not None:
            self.worked.observe(monotonic() - began)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def forget(self, key: str) -> None:
        """The key is of no interest any more: no timer and no memory of failures stays."""
        self._failures.pop(key, None)
        if key in self._ready:
            del self._ready[key]
            del self._since[key]
        self._again.discard(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Cancel the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
