"""Waiting for something that tells nobody when it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL = 0.1


async def until(condition: Callable[[], bool], seconds: float, *, interval: float = POLL) -> bool:
    """Look at `condition` again and again for at most `seconds`; whether it came true."""
    deadline = time.monotonic() + seconds
    while True:
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(interval)
