"""When the caller of a call gives up, and how much of the time until then hooks may take."""

from __future__ import annotations

from collections.abc import Callable

from koord import seams


class Deadline:
    """Counts down from the call's begin. None seconds: the caller waits for ever."""

    __slots__ = ("_clock", "_end")

    def __init__(self, seconds: float | None, clock: Callable[[], float] = seams.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    def left(self) -> float | None:
        """Seconds until the caller gives up, never negative; None without a deadline."""
        return None if self._end is None else max(self._end - self._clock(), 0.0)


def share(deadline: Deadline | None, part: float) -> float | None:
    """That part of what is left, in seconds; None without a deadline."""
    left = None if deadline is None else deadline.left()
    return None if left is None else left * part
