"""Work that is done after a caller has its answer, bounded in number and ended with the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from roles.runtime_proxy.locks import KeyedLocks

_LIMIT = 512  # pieces of work that may wait at once; each waits for one hook call, whose time is bounded


class Background:
    """Runs work in the background. Work of one key is done in the order in which it was given."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._locks = KeyedLocks()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, key: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Begin `work` once what was given before for `key` is done. False when too much waits."""
        if len(self._tasks) >= self._limit:
            return False
        task = asyncio.get_running_loop().create_task(self._do(key, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _do(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        async with self._locks.of(key):
            await work()

    async def close(self, grace: float) -> None:
        """Give what is under way `grace` seconds to end, then cancel it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
