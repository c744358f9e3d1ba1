"""How work on pods and containers is ordered (one at a time for each), done in the background, and bounded in number."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable


class KeyedLocks:
    """A lock for each key that somebody holds or waits for; keys that nobody uses take no memory."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of `key`. Waiters are served in the order in which they came."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]


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


_AT_A_TIME = 16


async def each(items: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Do `work` for each item, never more than a few at once, so that a restart on a full node does not flood the engine."""
    slots = asyncio.Semaphore(_AT_A_TIME)

    async def one(item: str) -> None:
        async with slots:
            await work(item)

    await asyncio.gather(*(one(item) for item in items))
