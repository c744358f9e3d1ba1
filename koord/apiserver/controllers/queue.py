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


class Controller(Generic[K]):
    """Each key waits at most once; `work(key)` runs synchronously. An error is logged and ends that key only."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._keys: dict[K, None] = {}
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
        if self._keys and not self._stopped:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)
