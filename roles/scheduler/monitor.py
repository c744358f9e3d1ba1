"""The scheduler monitor (SCH-FW-09): pods whose cycle or binding takes too long are reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

log = logging.getLogger(__name__)


class Running(NamedTuple):
    """A pod on its way: since when (seconds), under which profile."""

    key: str
    profile: str
    since: float


class Monitor:
    """Told of starts and ends; `check` finds those that take longer than `timeout` seconds. Time spent held by permit plugins does not
    count: it is they who set its limit."""

    def __init__(self, timeout: float, exceeded: Callable[[str], None]) -> None:
        self._timeout = timeout
        self._exceeded = exceeded
        self._running: dict[str, Running] = {}

    def started(self, uid: str, key: str, profile: str, now: float) -> None:
        """A pod was popped, or a permit plugin let it go."""
        self._running[uid] = Running(key, profile, now)

    def ended(self, uid: str, now: float) -> None:
        """It is bound, has failed, or waits for permission."""
        entry = self._running.pop(uid, None)
        if entry is not None and now - entry.since > self._timeout:
            self._report(entry, now)

    def check(self, now: float) -> int:
        """Report everything that takes too long by now; returns how many."""
        slow = [entry for entry in self._running.values() if now - entry.since > self._timeout]
        for entry in slow:
            self._report(entry, now)
        return len(slow)

    def _report(self, entry: Running, now: float) -> None:
        log.critical("scheduling of pod %s takes %.1f s, more than %.1f s", entry.key, now - entry.since, self._timeout)
        self._exceeded(entry.profile)

    def __len__(self) -> int:
        return len(self._running)
