"""Long work on the event loop, in slices: others get their turn between two of them."""

from __future__ import annotations

import asyncio

from koord import seams

SLICE = 0.005  # seconds


class Turn:
    """How long we have had the event loop."""

    __slots__ = ("_loop", "_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + SLICE

    @property
    def over(self) -> bool:
        """Others are to have it now."""
        return self._loop.time() > self._until

    async def give_way(self) -> None:
        """Let others have it if it has been long."""
        if self.over:
            await seams.sleep(0)
            self._until = self._loop.time() + SLICE
