"""What controllers have in common: keys that are worked off on the event loop, after the write that put them there is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from koord.apiserver.core import Core

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
# keys worked off before other callbacks get their turn
_BATCH = 256
# seconds until the next try of what failed: doubled with each failure in a row
_FIRST_RETRY, _LAST_RETRY = 0.05, 30.0


class Controller(Generic[K]):
    """Each key waits at most once; `work(key)` runs synchronously. A key whose work failed is logged and tried again later."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._keys: dict[K, None] = {}
        # how often the work on a key failed in a row, and what calls for its next try
        self._failures: dict[K, int] = {}
        self._retries: dict[K, asyncio.TimerHandle] = {}
        self._scheduled: asyncio.Handle | None = None
        self._stopped = False

    def start(self) -> None:
        """Look at what is stored, and follow."""
        raise NotImplementedError

    def work(self, key: K) -> None:
        """Bring one thing into the state that it should have."""
        raise NotImplementedError

    def add(self, key: K) -> None:
        """Work on `key` soon."""
        if self._stopped:
            return
        self._keys[key] = None
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def stop(self) -> None:
        """Forget what waits."""
        self._stopped = True
        self._keys.clear()
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _run(self) -> None:
        self._scheduled = None
        for _ in range(min(len(self._keys), _BATCH)):
            key = next(iter(self._keys))
            del self._keys[key]
            try:
                self.work(key)
            except Exception:
                log.exception("%s failed on %s", type(self).__name__, key)
                self._try_later(key)
            else:
                self._done(key)
        if self._keys and not self._stopped and self._scheduled is None:  # work that adds a key has seen to it
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _try_later(self, key: K) -> None:
        """Nobody else may ask for this key again: the object that it stands for need not change any more."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(_LAST_RETRY, _FIRST_RETRY * 2.0 ** min(failures - 1, 16))
        if (waiting := self._retries.pop(key, None)) is not None:
            waiting.cancel()
        self._retries[key] = asyncio.get_running_loop().call_later(pause, self._retry, key)

    def _retry(self, key: K) -> None:
        self._retries.pop(key, None)
        self.add(key)

    def _done(self, key: K) -> None:
        if self._failures.pop(key, None) is not None and (waiting := self._retries.pop(key, None)) is not None:
            waiting.cancel()
