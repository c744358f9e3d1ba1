"""Pacing: a token bucket that waits its turn, and back-off with jitter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from koord import seams


class TokenBucket:
    """At most `qps` tokens a second on average, `burst` at once. Time is an argument, so that it can be tested."""

    def __init__(self, qps: float, burst: int) -> None:
        self.qps = qps
        self.burst = max(1, burst)
        self._tokens = float(self.burst)
        self._at: float | None = None

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(float(self.burst), self._tokens + max(0.0, now - self._at) * self.qps)
        self._at = now

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is a token; 0 if there is one."""
        self._refill(now)
        return max(0.0, (1.0 - self._tokens) / self.qps)

    def give_back(self) -> None:
        """A token that was taken was not needed."""
        self._tokens = min(float(self.burst), self._tokens + 1.0)

    def reserve(self, now: float) -> float:
        """Take a token, in advance if need be; returns the seconds to wait before using it."""
        self._refill(now)
        self._tokens -= 1.0
        return 0.0 if self._tokens >= 0.0 else -self._tokens / self.qps

    def full(self, now: float) -> bool:
        """Whether nothing has been taken for long enough that the bucket is as new."""
        self._refill(now)
        return self._tokens >= self.burst


class RateLimiter:
    """Requests wait here, in order of arrival; without a rate they do not wait."""

    def __init__(self, qps: float | None, burst: int | None) -> None:
        self._bucket = TokenBucket(qps, burst or max(1, int(qps))) if qps and qps > 0 else None

    async def acquire(self) -> float:
        """Wait for a token; returns the seconds waited."""
        if self._bucket is None:
            return 0.0
        delay = self._bucket.reserve(asyncio.get_running_loop().time())
        if delay > 0.0:
            await seams.sleep(delay)
        return delay


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
