"""How many jobs are worked on at the same time, not counting those that wait for an eviction to be answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

WAITING = 16  # evictions that may wait for their answers at the same time


class Turns:
    """Turns for `count` jobs; `count` may be set until work begins."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._free: asyncio.Semaphore | None = None

    @property
    def workers(self) -> int:
        """Workers that it takes so that none is missing while others wait."""
        return self.count + WAITING

    def _semaphore(self) -> asyncio.Semaphore:
        if self._free is None:
            self._free = asyncio.Semaphore(self.count)
        return self._free

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Work on a job."""
        async with self._semaphore():
            yield

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Give the turn away for a while, within `turn`."""
        free = self._semaphore()
        free.release()
        try:
            yield
        finally:
            await free.acquire()
