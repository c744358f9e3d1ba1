"""Waiting for something that tells nobody when it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from koord.process.life import Life

POLL = 0.1
FRAME_SECONDS = 0.25
"""Between two looks at what is shown."""


async def until(condition: Callable[[], bool], seconds: float, *, interval: float = POLL) -> bool:
    """Look at `condition` again and again for at most `seconds`; whether it came true."""
    deadline = time.monotonic() + seconds
    while True:
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(interval)


async def beside(life: Life, work: Coroutine[Any, Any, None], look: Callable[[], None]) -> tuple[asyncio.Task[None], bool]:
    """Let `work` run until it ends or its process is to end, and `look` meanwhile. Returns its task, which is over, and whether it was cut
    short."""
    task, stop = asyncio.create_task(work), asyncio.create_task(life.stopping.wait(), name="stopping")
    try:
        while not task.done() and not stop.done():
            look()
            await asyncio.wait({task, stop}, timeout=FRAME_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        cut = not task.done()
    finally:
        for one in (task, stop):
            one.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)
    return task, cut
