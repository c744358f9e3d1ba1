"""A wall clock that does not jump: ages of reports are measured by it."""

from __future__ import annotations

from collections.abc import Callable

from koord import seams

SLEW = 0.1
"""How far it follows the machine's clock, as a share of the time that passes."""


class SteadyClock:
    """Unix time that goes on by the monotonic clock, and follows the wall clock slowly when that was set."""

    def __init__(self, wall: Callable[[], float] = seams.now, monotonic: Callable[[], float] = seams.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._now, self._at = wall(), monotonic()

    def __call__(self) -> float:
        """Seconds since 1970."""
        at = self._monotonic()
        passed, self._at = at - self._at, at
        self._now += passed
        off = self._wall() - self._now
        self._now += max(-SLEW * passed, min(SLEW * passed, off))
        return self._now
