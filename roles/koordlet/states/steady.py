"""Time that keeps step with the wall clock and never leaps (KA-QOS-01)."""

from __future__ import annotations

#: A wall clock that is so far (seconds) from where it should be was set.
_LEAP = 1.0


class SteadyClock:
    """The wall clock as long as it runs like the monotonic one; from a leap of it on, the monotonic one goes on alone."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._now = float("-inf")

    def time(self, wall: float, mono: float) -> float:
        """Unix seconds as if nobody had set the clock; never less than before."""
        offset = wall - mono
        if self._offset is None or abs(offset - self._offset) < _LEAP:
            self._offset = offset
        self._now = max(self._now, mono + self._offset)
        return self._now
