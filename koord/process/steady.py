"""A wall clock that does not jump: ages are measured by it."""

from __future__ import annotations

from collections.abc import Callable

from koord import seams

SLEW = 0.1
"""How far it follows the machine's clock, as a share of the time that passes. 0 where no times are compared that others wrote:
durations are exact then."""


class SteadyClock:
    """Unix time that goes on by the monotonic clock, and follows the wall clock slowly when that was set."""

    def __init__(self, wall: Callable[[], float] = seams.now, monotonic: Callable[[], float] = seams.monotonic, slew: float = SLEW) -> None:
        self._wall, self._monotonic, self._slew = wall, monotonic, slew
        self._now: float | None = None
        self._at = 0.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.at(self._wall(), self._monotonic())

    def at(self, wall: float, monotonic: float) -> float:
        """The same for a moment at which the clocks showed this. It begins with the first."""
        passed, self._at = monotonic - self._at, monotonic
        if self._now is None:
            self._now = wall
            return wall
        now, most = self._now + passed, self._slew * passed
        off = wall - now
        self._now = now = now + (-most if off < -most else min(off, most))
        return now
