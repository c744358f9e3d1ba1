"""Long work on the event loop, a slice at a time: probes, watches, bindings and other roles have their turn in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from koord import seams
from koord.seams import perf_counter
from roles.scheduler.framework.steps import Steps
from roles.scheduler.gate import Gate

T = TypeVar("T")

SLICE = 0.004
"""Seconds after which others have their turn."""
_ROUNDS = 3  # of the loop between two slices: a request is accepted, read and answered in as many
CATCH_UP: Any = object()
"""Yielded by work that wants to know what has happened meanwhile, before it goes on."""


class Turns:
    """Takes work in slices with the gate closed, and tells `held` how long each slice kept the loop."""

    STEPS: ClassVar[int] = 0  # where set, so many steps end a slice whatever the time: tests and worlds whose clock stands still

    def __init__(self, gate: Gate, held: Callable[[float], None]) -> None:
        self.gate = gate
        self._held = held
        self.sliced = 0  # works that took more than one slice
        self.gave_way = False  # whether others had a turn during the last one
        self.steps = self.STEPS

    async def take(self, work: Steps[T], since: float | None = None) -> T:
        """Do all of the work; returns its result. `since` (of `perf_counter`): when the caller's own turn began, which the first slice goes
        on with. It is the caller's still if nobody else has had one (`gave_way`)."""
        began = await self.others(perf_counter() if since is None else since)
        self.gate.close()
        slices = 0
        try:
            while True:
                done, result = self._slice(work, began)
                if done:
                    return result  # type: ignore[no-any-return]
                if result is CATCH_UP:
                    if not slices:
                        continue  # nobody else had a turn
                    self.gate.open()
                    await self.let_in()
                    self.gate.close()
                slices += 1
                self.sliced += slices == 1
                for _ in range(_ROUNDS):
                    await seams.sleep(0)
                began = perf_counter()
        finally:
            work.close()
            self.gate.open()
            self.gave_way = slices > 0
            if slices:
                await self.let_in()

    async def others(self, began: float) -> float:
        """Wait while somebody else has work that sees all of the state; returns when the caller's turn began."""
        while self.gate.closed:
            await self.gate.passed()
            began = perf_counter()
        return began

    async def let_in(self) -> None:
        """Tell what was held back, and let those go on who waited at the gate."""
        delivery = self.gate.deliver()
        while not self._slice(delivery, perf_counter())[0]:
            await seams.sleep(0)
        await seams.sleep(0)

    def _slice(self, work: Any, began: float) -> tuple[bool, Any]:
        """The rest of a slice that began then: whether the work is done, with its result, or what ended the slice."""
        left, ends = self.steps, began + SLICE
        try:
            while True:
                marker = next(work)
                left -= 1
                if marker is CATCH_UP or not left or perf_counter() >= ends:
                    return False, marker
        except StopIteration as end:
            return True, end.value
        finally:
            self._held(perf_counter() - began)
