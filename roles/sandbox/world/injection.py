"""Letting faults happen: what each kind does to the processes, hosts and connections of a world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from roles.sandbox.world.faults import HOST, NETWORK, Fault

if TYPE_CHECKING:
    from roles.sandbox.world.process import Process
    from roles.sandbox.world.world import World

LASTING = frozenset({"silence"})
"""Kinds that last to the end: whatever must hold when all is calm must hold in spite of them."""


class Injector:
    """Hurts one world. `until`: when the last fault that ends is over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.until = 0.0
        self._kinds: dict[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "terminate": self._terminate,
            "clock": self._clock,
            "silence": self._silence,
            "compact": self._compact,
            "cut": self._cut,
        }

    async def run(self, plan: list[Fault]) -> None:
        """Let a plan happen, at its times from now on."""
        loop = self.world.loop
        begun = loop.time()
        for fault in plan:
            await asyncio.sleep(max(0.0, begun + fault.at - loop.time()))
            self.apply(fault)

    def apply(self, fault: Fault) -> None:
        """Let one fault happen now."""
        self.world.history.tell("fault", fault.kind, str(fault))
        if fault.kind not in LASTING:
            self.until = max(self.until, self.world.loop.time() + fault.seconds)
        if fault.kind in NETWORK:
            self._connections(fault)
        elif fault.kind in HOST:
            self.world.hosts.hurt(fault)
        else:
            self._kinds[fault.kind](fault)

    def _process(self, name: str) -> Process | None:
        """The living process of a program."""
        program = self.world.programs.get(name)
        process = program.process if program is not None else None
        return process if process is not None and not process.dead else None

    def _later(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        self.world.network.at(seconds, callback, *args)

    # -- connections ---------------------------------------------------------------------------------------------------------

    def _connections(self, fault: Fault) -> None:
        active = self.world.rules.active
        active.append(fault)
        self._later(fault.seconds, active.remove, fault)
        process = self._process(fault.target)
        if fault.kind == "stall" and process is not None:
            for end in [end for end in process.connections if not end.stalled]:
                end.stalled = end.other.stalled = True

    def _cut(self, fault: Fault) -> None:
        for name in [fault.target] if fault.target else list(self.world.programs):
            process = self._process(name)
            for end in list(process.connections) if process is not None else ():
                end.abort()

    # -- processes and hosts -------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        process = self._process(fault.target)
        if process is not None:
            process.kill()
            self.world.graveyard.append(process)
            self._later(fault.seconds, self.world.start, fault.target)

    def _freeze(self, fault: Fault) -> None:
        process = self._process(fault.target)
        if process is not None:
            process.freeze()
            self._later(fault.seconds, process.thaw)

    def _terminate(self, fault: Fault) -> None:
        process = self._process(fault.target)
        life = self.world.programs[fault.target].life if process is not None else None
        if process is not None and life is not None:
            process.context.run(self.world.loop.call_soon, life.begin_end)

    def _clock(self, fault: Fault) -> None:
        self.world.clocks[fault.target].offset += fault.amount

    def _silence(self, fault: Fault) -> None:
        self.world.silent.add(fault.target)
        self._later(fault.seconds, self.world.silent.discard, fault.target)

    # -- the API server ------------------------------------------------------------------------------------------------------

    def _compact(self, fault: Fault) -> None:
        self.world.server.core.store.compact()
