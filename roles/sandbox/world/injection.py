"""Letting faults happen: what each kind does to the processes, hosts and connections of a world."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from koord.apiserver.watch import Watcher
from roles.sandbox.world.environment import ADDRESSES
from roles.sandbox.world.faults import AGENT, ARMED, NETWORK, Fault, Fuse

if TYPE_CHECKING:
    from roles.sandbox.world.environment import Environment
    from roles.sandbox.world.history import Entry
    from roles.sandbox.world.host.fleet import Hosts
    from roles.sandbox.world.process import Process
    from roles.sandbox.world.server import Server

LASTING = frozenset({"silence", "dead-address"})
"""Kinds that last to the end: whatever must hold when all is calm must hold in spite of them."""
USER_TIMEOUT = 30.0  # seconds until TCP gives a connection up whose bytes are not acknowledged
IN_FLIGHT = 0.01  # seconds in which the bytes of a process that has died still arrive
MARKED = 0.5  # seconds from a bookmark to the end of the watch
UNCOUNTED = frozenset({"lease.coordination.k8s.io", "event", "event.events.k8s.io"})


class Injector:
    """Hurts one world. `until`: when the last fault that ends is over."""

    def __init__(self, world: Environment, hosts: Hosts, bootstrap: Callable[[], Awaitable[None]]) -> None:
        self.world = world
        self.server: Server  # there is one as soon as faults happen
        self._hosts, self._bootstrap = hosts, bootstrap
        self.until = 0.0
        self._commits: list[Fuse] = []
        self._restarting: asyncio.Future[None] | None = None
        world.history.watchers.append(self._see)
        self._kinds: dict[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "terminate": self._terminate,
            "clock": self._clock,
            "silence": self._silence,
            "kill-step": self._kill_at_step,
            "kill-before-write": self._kill_at_write,
            "kill-after-write": self._kill_at_write,
            "kill-after-commit": self._kill_at_commit,
            "bookmark": self._bookmark,
            "restart": self._restart,
            "wipe": self._restart,
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

    async def calm(self) -> None:
        """Wait until nothing is hurt any more."""
        left = self.until - self.world.loop.time()
        if left > 0:
            await asyncio.sleep(left)
            await self.calm()

    def apply(self, fault: Fault) -> None:
        """Let one fault happen now."""
        self.world.history.tell("fault", fault.kind, str(fault))
        if fault.kind not in LASTING:
            self._lasts(fault.seconds + (ARMED if fault.count else 0.0))
        if fault.kind in NETWORK:
            self._connections(fault)
        elif fault.kind in AGENT:
            self._hosts.hurt(fault)
        else:
            self._kinds[fault.kind](fault)

    def _lasts(self, seconds: float) -> None:
        self.until = max(self.until, self.world.loop.time() + seconds)

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
        if fault.kind == "dead-address":
            self._no_answer(ADDRESSES[0])
        elif process is None:
            return
        elif fault.kind == "stall":
            for end in [end for end in process.connections if not end.stalled]:
                end.stalled = end.other.stalled = True
        elif fault.kind == "resume":
            for end in [end for end in process.connections if "watch=" in end.about]:
                end.abort()
        elif fault.kind == "slow-reader":
            process.pace = fault.amount
            self._later(fault.seconds, setattr, process, "pace", 0.0)

    def _no_answer(self, address: str) -> None:
        """Nothing comes back from an address any more; TCP gives its connections up after a while."""
        self.world.rules.dead |= {address}
        for program in self.world.programs.values():
            for end in list(program.process.connections) if program.process is not None else ():
                if end.client and end.get_extra_info("peername")[0] == address and not end.stalled:
                    end.stalled = end.other.stalled = True
                    self._later(USER_TIMEOUT, end.abort)

    def _cut(self, fault: Fault) -> None:
        for name in [fault.target] if fault.target else list(self.world.programs):
            process = self._process(name)
            for end in list(process.connections) if process is not None else ():
                end.abort()

    # -- processes and hosts -------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        process = self._process(fault.target)
        if process is not None:
            self._strike(process, fault)

    def _strike(self, process: Process, fault: Fault, last: float = 0.0) -> None:
        """Kill a process; it is started again after the fault's time."""
        if process.dead:
            return
        process.kill(last)
        self.world.graveyard.append(process)
        self._lasts(fault.seconds)
        self._later(fault.seconds, self.world.start, fault.target)

    def _struck(self, process: Process, fault: Fault, last: float = 0.0) -> Callable[[], None]:
        """Kill it at a moment that was counted; or the next life, where it was killed by something else meanwhile."""

        def strike() -> None:
            self.world.history.tell("struck", fault.target, fault.kind)
            self._strike(self._process(fault.target) or process, fault, last)

        return strike

    def _kill_at_step(self, fault: Fault) -> None:
        process = self._process(fault.target)
        if process is not None:
            process.arm(fault.count, self._struck(process, fault))
            self._later(ARMED, process.disarm)

    def _kill_at_write(self, fault: Fault) -> None:
        process, fuses = self._process(fault.target), self.world.rules.fuses
        if process is None:
            return
        after = fault.kind == "kill-after-write"
        fuse = Fuse(fault.target, fault.count, after, self._struck(process, fault, IN_FLIGHT if after else 0.0))
        fuses.append(fuse)
        self._later(ARMED, _discard, fuses, fuse)

    def _kill_at_commit(self, fault: Fault) -> None:
        process = self._process(fault.target)
        if process is not None:
            fuse = Fuse(fault.target, fault.count, True, self._struck(process, fault))
            self._commits.append(fuse)
            self._later(ARMED, _discard, self._commits, fuse)

    def _see(self, entry: Entry) -> None:
        """A write has taken place: its author may die of it."""
        for fuse in [fuse for fuse in self._commits if fuse.target == entry.author and entry.bucket not in UNCOUNTED]:
            fuse.left -= 1
            if fuse.left <= 0:
                self._commits.remove(fuse)
                fuse.then()

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
        self.server.store.compact()

    def _bookmark(self, fault: Fault) -> None:
        """All watches are told how far they have come; then what was before is forgotten, and they are cut."""
        store = self.server.store
        for bucket in store.buckets.values():
            for listener in list(bucket.listeners):
                watcher = getattr(listener, "__self__", None)
                if isinstance(watcher, Watcher):
                    watcher.bookmark(store.rv)
        self._later(MARKED, self._cut_and_forget, store.rv)

    def _cut_and_forget(self, version: int) -> None:
        self.world.history.tell("cut after a bookmark", "apiserver", str(version))
        self.server.store.compact(version)
        self._cut(Fault(0.0, "cut"))

    def _restart(self, fault: Fault) -> None:
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.ensure_future(self._come_back(fault))

    async def _come_back(self, fault: Fault) -> None:
        """It dies, and lives again after a while: with its disk, or with nothing, so that people install everything anew."""
        world, server = self.world, self.server
        server.crash()
        if fault.kind == "wipe":
            server.wipe()
        await asyncio.sleep(fault.seconds)
        await server.start()
        if fault.kind == "wipe":
            await self._bootstrap()
            for name in ("users", "operators"):
                people = self._process(name)
                if people is not None:
                    people.kill()
                    world.graveyard.append(people)
                if name in world.programs:
                    world.start(name)


def _discard(fuses: list[Fuse], fuse: Fuse) -> None:
    if fuse in fuses:
        fuses.remove(fuse)
