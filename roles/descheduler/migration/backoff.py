"""Pods and workloads whose migrations failed wait, twice as long each time (DS-MC-01). Pure: time is an argument.

What failed once will probably fail at once again, and meanwhile others can leave. A failure during the wait prolongs nothing: several
jobs of one workload that fail together are one failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from koord.api.times import format_time

FIRST = 30.0  # seconds
LONGEST = 1800.0
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
            failures = wait.failures + 1 if wait is not None and at < wait.until + FORGET else 1
            self._waits[key] = _Wait(failures, at + min(FIRST * 2.0 ** (failures - 1), LONGEST), cause)

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
