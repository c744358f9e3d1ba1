"""Pods and workloads whose migrations failed wait, twice as long each time (DS-MC-01). Pure: time is an argument.

What failed once will probably fail at once again, and meanwhile others can leave. How long that takes is a matter of the cause: an
eviction that was refused has cost nothing and may be allowed any moment; a job that timed out held a place all the time. A failure
during the wait prolongs nothing: several jobs of one workload that fail together are one failure. One of another cause is the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from koord.api.times import format_time
from roles.descheduler.migration.words import Reason

FIRST = 30.0  # seconds
LONGEST = 1800.0
WAITS: dict[str, tuple[float, float]] = {Reason.FAILED_EVICT: (15.0, 300.0), Reason.TIMEOUT: (60.0, LONGEST)}  # others: FIRST and LONGEST
FORGET = 3600.0  # seconds after the end of a wait in which nothing failed


@dataclass(slots=True)
class _Wait:
    failures: int
    until: float
    cause: str


class Backoff:
    """Waits by key (the uid of a pod or of a workload)."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    def failed(self, keys: Iterable[str], cause: str, at: float) -> None:
        """A migration failed at this time, in seconds since the epoch."""
        for key in filter(None, keys):
            wait = self._waits.get(key)
            if wait is not None and at < wait.until:
                continue
            again = wait is not None and at < wait.until + FORGET and wait.cause == cause
            failures = wait.failures + 1 if wait is not None and again else 1
            first, longest = WAITS.get(cause, (FIRST, LONGEST))
            self._waits[key] = _Wait(failures, at + min(first * 2.0 ** (failures - 1), longest), cause)

    def succeeded(self, keys: Iterable[str]) -> None:
        """A migration succeeded: what was before does not count."""
        for key in keys:
            self._waits.pop(key, None)

    def refuse(self, keys: Iterable[str], now: float) -> str:
        """Why a migration has to wait, "" when it need not."""
        waits = [wait for key in keys if (wait := self._waits.get(key)) is not None and now < wait.until]
        if not waits:
            return ""
        wait = max(waits, key=lambda each: each.until)
        times = "" if wait.failures == 1 else f" {wait.failures} times"
        return f"a migration has failed{times} ({wait.cause}); the next one may begin at {format_time(wait.until)}"

    def forget(self, now: float) -> None:
        """Drop what is long over."""
        for key in [key for key, wait in self._waits.items() if now >= wait.until + FORGET]:
            del self._waits[key]
