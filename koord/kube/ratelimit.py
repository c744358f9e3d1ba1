"""Pacing: a token bucket that waits its turn, and back-off with jitter."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from enum import IntEnum

from koord import seams


class Priority(IntEnum):
    """Classes of requests: one never waits for a place or a turn that a lower one (a greater number) was given before it.

    The lease is in none of them: it has a client of its own.
    """

    ADMISSION = 0
    """What a review waits for."""
    BIND = 1
    """Bindings and evictions."""
    STATUS = 2
    """All other reads and writes."""
    BULK = 3
    """What may come late: events."""


_LEAST_WAIT = 1e-4  # seconds: a shorter one may not move a clock
_ROUNDING = 1e-6  # of a token: what sums of small times may lose


class TokenBucket:
    """At most `qps` tokens a second on average, `burst` at once. Time is an argument, so that it can be tested."""

    __slots__ = ("_at", "_tokens", "burst", "qps")

    def __init__(self, qps: float, burst: int) -> None:
        self.qps = qps
        self.burst = max(1, burst)
        self._tokens = float(self.burst)
        self._at: float | None = None

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(float(self.burst), self._tokens + max(0.0, now - self._at) * self.qps)
        self._at = now

    def take(self, now: float, keep: int = 0) -> bool:
        """Take a token if there is one more than `keep`."""
        self._refill(now)
        if self._tokens < keep + 1.0 - _ROUNDING:
            return False
        self._tokens -= 1.0
        return True

    def wait(self, now: float, keep: int = 0) -> float:
        """Seconds until there is one token more than `keep`; 0 if there is."""
        self._refill(now)
        missing = keep + 1.0 - self._tokens
        return max(_LEAST_WAIT, missing / self.qps) if missing > _ROUNDING else 0.0

    def give_back(self) -> None:
        """A token that was taken was not needed."""
        self._tokens = min(float(self.burst), self._tokens + 1.0)

    def reserve(self, now: float) -> float:
        """Take a token, in advance if need be; returns the seconds to wait before using it."""
        self._refill(now)
        self._tokens -= 1.0
        return 0.0 if self._tokens >= 0.0 else -self._tokens / self.qps


class RateLimiter:
    """Requests wait here, the most urgent class first, in order of arrival within one; without a rate they do not wait.

    A tenth of the burst is left for reviews, bindings and evictions: one of them does not wait for the next token because a flood of
    status writes took the last one.
    """

    def __init__(self, qps: float | None, burst: int | None) -> None:
        self._bucket = TokenBucket(qps, burst or max(1, int(qps))) if qps and qps > 0 else None
        self._kept = self._bucket.burst // 10 if self._bucket is not None else 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, priority: Priority = Priority.STATUS) -> float:
        """Wait for a token; returns the seconds waited. A wait that is cancelled takes none."""
        if self._bucket is None:
            return 0.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not self._waiting and self._bucket.take(began, self._keep(priority)):
            return 0.0
        turn: asyncio.Future[None] = loop.create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (priority, self._arrivals, turn))
        self._serve(loop)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._bucket.give_back()
            self._serve(loop)
            raise
        return loop.time() - began

    def _keep(self, priority: int) -> int:
        """How many tokens a class leaves alone."""
        return self._kept if priority >= Priority.STATUS else 0

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand out the tokens that are there, and come back for the next one."""
        assert self._bucket is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = loop.time()
        while self._waiting:
            if self._waiting[0][2].done():  # cancelled meanwhile
                heapq.heappop(self._waiting)
            elif self._bucket.take(now, keep := self._keep(self._waiting[0][0])):
                heapq.heappop(self._waiting)[2].set_result(None)
            else:
                self._timer = loop.call_later(self._bucket.wait(now, keep), self._serve, loop)
                return


class Backoff:
    """Growing pauses: `first` seconds, times `factor` up to `limit`, each shortened by up to half at random."""

    def __init__(self, first: float = 0.1, limit: float = 30.0, factor: float = 2.0, jitter: Callable[[], float] | None = None) -> None:
        self.first, self.limit, self.factor = first, limit, factor
        self._jitter = jitter or (lambda: seams.rng().random())
        self._next = first

    def next(self) -> float:
        """Seconds to pause now."""
        pause, self._next = self._next, min(self.limit, self._next * self.factor)
        return pause * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        """Start small again, after a success."""
        self._next = self.first
