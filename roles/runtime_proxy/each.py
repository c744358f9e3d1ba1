"""The same question for many objects, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

_AT_A_TIME = 16


async def each(items: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Do `work` for each item, never more than a few at once, so that a restart on a full node does not flood the engine."""
    slots = asyncio.Semaphore(_AT_A_TIME)

    async def one(item: str) -> None:
        async with slots:
            await work(item)

    await asyncio.gather(*(one(item) for item in items))
