"""When a hook server is not asked, because waiting for it costs too much. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

WINDOW = 30.0  # seconds over which waiting is added up
REST = 10.0  # seconds for which a server is left alone, and after a trial that failed again
_TIMEOUTS = 2.5  # hook timeouts' worth of waiting in a window that opens the breaker
_SLOW = 0.5  # part of the time it was given that a call takes at least to count: many quick calls at once are no waiting


class Pass(Enum):
    """How a call was admitted."""

    FREELY = auto()
    ON_TRIAL = auto()


class Breaker:
    """Closed: everybody asks. Open: nobody does. Half open after a rest: one call tries, the others go past."""

    def __init__(self, timeout: float) -> None:
        self._limit = timeout * _TIMEOUTS
        self._waits: deque[tuple[float, float]] = deque()  # when a slow call ended, and its seconds
        self._until: float | None = None  # None: closed
        self._trying = False

    def admit(self, now: float) -> Pass | None:
        """Whether a call may ask; None when not. Who was admitted must call `note` or `abandon`."""
        if self._until is None:
            return Pass.FREELY
        if now < self._until or self._trying:
            return None
        self._trying = True
        return Pass.ON_TRIAL

    def note(self, admitted: Pass, waited: float, given: float, now: float) -> None:
        """A call ended after `waited` of the `given` seconds. An error that came quickly is no waiting."""
        slow = waited >= given * _SLOW and waited > 0
        if admitted is Pass.ON_TRIAL:
            self._trying = False
            self._until = now + REST if slow else None
            self._waits.clear()
            return
        if not slow or self._until is not None:
            return
        self._waits.append((now, waited))
        while self._waits[0][0] < now - WINDOW:
            self._waits.popleft()
        if sum(seconds for _, seconds in self._waits) >= self._limit:
            self._until = now + REST

    def abandon(self, admitted: Pass) -> None:
        """A call's caller gave up: if it was the trial, the next one is."""
        if admitted is Pass.ON_TRIAL:
            self._trying = False
