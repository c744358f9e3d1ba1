"""What controllers have in common: keys that are worked off on the event loop, after the write that put them there is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from koord.apiserver.turns import SLICE, Turn

if TYPE_CHECKING:
    from koord.apiserver.core import Core

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
# keys worked off before other callbacks get their turn, if it does not take longer than a slice
_BATCH = 256
# seconds until the next try of what failed: doubled with each failure in a row
_FIRST_RETRY, _LAST_RETRY = 0.05, 30.0


class Controller(Generic[K]):
    """Each key waits at most once. A key whose work failed is logged and tried again later.

    `work(key)` runs synchronously, or gives an iterator: each step does a part of the work, and between two others may have written.
    """

    # a key whose work took long is left alone for so many times as long: what is counted anew need not be after each of many writes
    rests = 0

    def __init__(self, core: Core) -> None:
        self.core = core
        self._keys: dict[K, None] = {}
        # how often the work on a key failed in a row, and what calls for its next try
        self._failures: dict[K, int] = {}
        self._retries: dict[K, asyncio.TimerHandle] = {}
        self._resting: dict[K, float] = {}
        # the key whose work has begun, and what is left of that
        self._begun: tuple[K, Iterator[None]] | None = None
        # seconds that the work on a key that is not over has had
        self._spent = 0.0
        self._scheduled: asyncio.Handle | None = None
        self._stopped = False

    def start(self) -> None:
        """Look at what is stored, and follow."""
        raise NotImplementedError

    def work(self, key: K) -> Iterable[None] | None:
        """Bring one thing into the state that it should have."""
        raise NotImplementedError

    def add(self, key: K) -> None:
        """Work on `key` soon."""
        if self._stopped or (self._resting and self._rests(key)):
            return
        self._keys[key] = None
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _rests(self, key: K) -> bool:
        """Whether a key is left alone now; then it is seen to that it is worked on later."""
        left = self._resting.get(key, 0.0) - asyncio.get_running_loop().time()
        if left > 0 and key not in self._retries:
            self._retries[key] = asyncio.get_running_loop().call_later(left, self._retry, key)
        return left > 0

    def stop(self) -> None:
        """Forget what waits."""
        self._stopped = True
        self._keys.clear()
        self._begun = None
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _run(self) -> None:
        self._scheduled = None
        turn, left = Turn(), min(len(self._keys) + (self._begun is not None), _BATCH)
        loop = asyncio.get_running_loop()
        while left and not self._stopped:
            key, rest = self._begun or self._next()
            self._begun, began = None, loop.time()
            try:
                if not rest:
                    self._resting.pop(key, None)
                    rest = iter(self.work(key) or ())
                for _ in rest:
                    if turn.over:
                        self._begun = key, rest
                        break
            except Exception:
                log.exception("%s failed on %s", type(self).__name__, key)
                self._spent = 0.0
                self._try_later(key)
            else:
                self._spent += loop.time() - began
                if self._begun is None:
                    self._done(key)
            left = 0 if turn.over else left - 1
        if (self._keys or self._begun) and not self._stopped and self._scheduled is None:  # work that adds a key has seen to it
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _next(self) -> tuple[K, Iterator[None] | None]:
        key = next(iter(self._keys))
        del self._keys[key]
        return key, None

    def _try_later(self, key: K) -> None:
        """Nobody else may ask for this key again: the object that it stands for need not change any more."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(_LAST_RETRY, _FIRST_RETRY * 2.0 ** min(failures - 1, 16))
        if (waiting := self._retries.pop(key, None)) is not None:
            waiting.cancel()
        self._retries[key] = asyncio.get_running_loop().call_later(pause, self._retry, key)

    def _retry(self, key: K) -> None:
        self._retries.pop(key, None)
        self._resting.pop(key, None)
        self.add(key)

    def _done(self, key: K) -> None:
        if self._failures.pop(key, None) is not None and (waiting := self._retries.pop(key, None)) is not None:
            waiting.cancel()
        took, self._spent = self._spent, 0.0
        if self.rests and took > SLICE:
            self._resting[key] = asyncio.get_running_loop().time() + self.rests * took
            if key in self._keys:  # asked for again meanwhile
                del self._keys[key]
                self._rests(key)
