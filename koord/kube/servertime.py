"""The API server's time: objects have their times from there, and an age must not be the difference of two clocks."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from koord import seams
from koord.process.steady import SteadyClock

TOLERATED = 30.0
"""Seconds by which the API server's clock and this machine's may differ without anything being made of it."""

_QUICK = 5.0  # seconds that an answer may have taken and still tell the time
_EVERY = 10.0  # seconds between two answers that are looked at


class ServerTime:
    """This machine's wall clock, or where that is wrong the API server's, told by the dates of its answers (by the whole second)."""

    def __init__(self, wall: Callable[[], float] = seams.now, monotonic: Callable[[], float] = seams.monotonic) -> None:
        self._wall, self.monotonic = wall, monotonic
        self._told: float | None = None  # the API server's time when the monotonic clock was at 0
        self._next = float("-inf")

    @property
    def known(self) -> bool:
        """Whether an answer has told it."""
        return self._told is not None

    def answered(self, date: str | None, sent: float) -> None:
        """An answer has come; when the request was sent, by the monotonic clock. A date that cannot be read says nothing."""
        now = self.monotonic()
        if date is None or now < self._next or now - sent > _QUICK:
            return
        try:
            self._told = parsedate_to_datetime(date).timestamp() - now
        except ValueError:
            return
        self._next = now + _EVERY

    def __call__(self) -> float:
        """Seconds since 1970. Right also when this machine's clock was set since the last answer."""
        wall = self._wall()
        if self._told is None or abs(told := self._told + self.monotonic() - wall) <= TOLERATED:
            return wall
        return wall + told


class ServerClock:
    """The same without jumps but one: it begins anew with the first answer."""

    def __init__(self, time: ServerTime) -> None:
        self._time = time
        self._steady = SteadyClock(time, time.monotonic)
        self._begun = time.known

    def __call__(self) -> float:
        """Seconds since 1970."""
        if not self._begun and self._time.known:
            self._steady, self._begun = SteadyClock(self._time, self._time.monotonic), True
        return self._steady()


def clock_of(client: Any) -> Callable[[], float]:
    """The clock for ages of what this client reads and writes; for one without connections this machine's."""
    transport = getattr(client, "transport", None)
    return ServerClock(transport.time) if transport is not None else SteadyClock()
