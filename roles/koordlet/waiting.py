"""Waiting for the end, for one of several events, or for so long."""

from __future__ import annotations

import asyncio


async def pause(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait so long; whether it is time to stop instead."""
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def either(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait for one of the events, or so long."""
    waiters = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
