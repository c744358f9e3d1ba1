"""Files that make the kernel work as long as a write to them lasts (memory.reclaim), so that a slow disk holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from koord import seams
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.target import Target

#: So long (seconds) what was asked for may wait for its turn. Later it is not done: whoever asked has seen more since, and asks again.
FRESH = 5.0
#: Takes how long a write took (seconds), and what stood against it.
Ended = Callable[[Target, float, WriteError | None], None]


class Triggers:
    """One write after the other, in a thread; without an event loop at once. Such a file holds no value, so that nothing is to be put on
    record before, and nobody waits for the end."""

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._waiting: dict[str, tuple[Target, str, float]] = {}
        self._work: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def put(self, target: Target, rule: str) -> None:
        """Raises WriteError where the last write to the file is not over yet."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._ended(target, *_put(target, rule))
            return
        if target.path in self._waiting:
            raise WriteError(Trouble.BUSY, target.path, "the kernel is not done with what it was asked before")
        self._waiting[target.path] = (target, rule, seams.monotonic())
        if self._work is None or self._work.done():
            self._work = loop.create_task(self._one_by_one(), name="memory reclaim")

    async def _one_by_one(self) -> None:
        while self._waiting:
            path, (target, rule, since) = next(iter(self._waiting.items()))
            try:
                if seams.monotonic() - since <= FRESH:
                    self._ended(target, *await seams.to_thread(_put, target, rule))
            finally:
                self._waiting.pop(path, None)

    async def stop(self) -> None:
        """Ask for nothing more. What the kernel is doing it ends by itself."""
        self._waiting.clear()
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.wait([self._work])


def _put(target: Target, rule: str) -> tuple[float, WriteError | None]:
    seams.files().because(rule)
    begun = seams.perf_counter()
    try:
        target.put(target.text)
    except WriteError as error:
        return seams.perf_counter() - begun, error
    return seams.perf_counter() - begun, None
