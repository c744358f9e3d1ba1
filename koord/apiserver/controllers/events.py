"""Events live for a while and then go."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from koord.apiserver.store import DELETED, Event

if TYPE_CHECKING:
    from koord.apiserver.core import Core

_BUCKET = "/events"
_SWEEP_SECONDS = 15.0


class EventExpiry:
    """Removes events that nobody wrote to for as long as `event_ttl` says."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._written: deque[tuple[float, str, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        bucket = self.core.store.bucket(_BUCKET)
        for entry in bucket.entries.values():
            self._written.append((loop.time(), entry.key, entry.rv))
        bucket.listeners.append(self._on_event)
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_event(self, event: Event) -> None:
        if event.type != DELETED:
            self._written.append((asyncio.get_running_loop().time(), event.entry.key, event.rv))

    def _arm(self) -> None:
        pause = min(_SWEEP_SECONDS, max(0.05, self.core.config.event_ttl / 4))
        self._timer = asyncio.get_running_loop().call_later(pause, self._sweep)

    def _sweep(self) -> None:
        oldest = asyncio.get_running_loop().time() - self.core.config.event_ttl
        bucket = self.core.store.bucket(_BUCKET)
        while self._written and self._written[0][0] <= oldest:
            _, key, rv = self._written.popleft()
            entry = bucket.entries.get(key)
            if entry is not None and entry.rv == rv:
                bucket.remove(entry.namespace, entry.name)
        self._arm()
