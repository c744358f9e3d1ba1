"""What the programs of a world live in. It knows none of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koord.process.life import Life
from roles.sandbox.nodes import fleet
from roles.sandbox.world import beside, configuration
from roles.sandbox.world.faults import FaultRules
from roles.sandbox.world.history import History
from roles.sandbox.world.loop import VirtualLoop
from roles.sandbox.world.network import Network
from roles.sandbox.world.process import Clock, Process
from roles.sandbox.world.spec import Spec

if TYPE_CHECKING:
    from koord.decisions.record import Record

NAME = "api.world"
ADDRESSES = ("10.0.0.1", "10.0.0.2")
"""What the API server's name stands for."""
API_SERVER = (ADDRESSES[0], 6443)


@dataclass(slots=True)
class Program:
    """A program and its present process. `number` counts its lives."""

    name: str
    make: Callable[[Program], Callable[[], Awaitable[None]]]
    process: Process | None = None
    number: int = 0
    wanted: bool = True
    life: Life | None = None
    release: beside.Release = field(default_factory=beside.running)
    ends: list[str] = field(default_factory=list)


class _Sink:
    """Keeps the decision records of a role for the story."""

    def __init__(self, world: Environment, name: str) -> None:
        self._world, self._name = world, name

    def write(self, record: Record) -> None:
        self._world.records.append((self._world.loop.time(), self._name, record))


class Environment:
    """What the programs of a world live in: its loop and clocks, network, faults, history, and the processes of all programs."""

    def __init__(self, spec: Spec, scratch: Path) -> None:
        self.spec = spec
        self.scratch = scratch
        self.seed = f"world/{spec.seed}"
        self.rng = random.Random(self.seed)
        self.loop = VirtualLoop()
        self.history = History(self.loop.time, pace=spec.report / configuration.REPORT)
        if spec.keep:
            self.history.thin(spec.keep)
        self.history.ailments = self._ailments
        self.rules = FaultRules(self.loop, self.history, random.Random(f"{self.seed}/faults"))
        self.network = Network(self.loop, self.rules)
        self.addresses: dict[str, str] = {"apiserver": API_SERVER[0]}
        self.clocks: dict[str, Clock] = {}
        self.programs: dict[str, Program] = {}
        self.records = self.history.records
        self.releases = beside.Mixture(self.seed, spec.beside, alone=spec.alone)
        self.silent: set[str] = set()  # kubelets whose agent reports nothing
        self.graveyard: list[Process] = []
        self.retry = random.Random(f"{self.seed}/retry").choice((2.0, 5.0, 5.0))  # seconds between looks at a lease
        self.open: Callable[[], bool] = lambda: True  # whether the world has to go on before it can be judged
        self.accuse: Callable[[str, str], None] = _ignored  # what a program finds wrong with itself: a rule and what happened

    # -- names ---------------------------------------------------------------------------------------------------------------

    def sink(self, name: str) -> Any:
        """A sink for the decision records of a process."""
        return _Sink(self, name)

    def number(self, name: str) -> int:
        """A number of its own for each life of a program."""
        return random.Random(f"{self.seed}/{name}/{self.programs[name].number}").getrandbits(32)

    def about(self, author: str) -> str:
        """Whether a process is of the other release, in words."""
        program = self.programs.get(author)
        former = program is not None and self.releases.is_former(author, program.number)
        return f" ({author} is of the other release)" if former else ""

    @property
    def tended(self) -> bool:
        """Whether people keep its nodes and pods in order, with the community's plugins."""
        return self.spec.profiles != "load"

    @staticmethod
    def address_of(node: str) -> str:
        """The address in the status of a node."""
        return fleet.address(int(node.rpartition("-")[2]))

    def clock(self, host: str) -> Clock:
        """The clocks of a host."""
        return self.clocks.setdefault(host, Clock(self.loop))

    # -- processes -----------------------------------------------------------------------------------------------------------

    def add(self, name: str, make: Callable[[Program], Callable[[], Awaitable[None]]], host: str = "") -> None:
        """A program that runs from now on, whatever ends it."""
        self.addresses.setdefault(name, f"10.0.{len(self.addresses) // 200}.{len(self.addresses) % 200 + 10}")
        self.clocks.setdefault(name, self.clock(host or name))
        self.programs[name] = Program(name, make)
        self.history.programs.append(name)
        self.start(name)

    def start(self, name: str) -> None:
        """Start the next life of a program."""
        program = self.programs[name]
        if program.process is not None and not program.process.dead and not program.process.ended:
            return  # somebody else was earlier
        program.number += 1
        program.release = self.releases.of(name, program.number)
        program.life = program.release.life()
        program.process = Process(self.loop, name, program.number, self.clocks[name], self.seed, self.addresses[name])
        program.release.enter(program.process)
        self.history.tell("started", name, "of the other release" if self.releases.is_former(name, program.number) else "")
        program.process.start(program.make(program))

    def _ailments(self) -> list[tuple[str, str]]:
        """What is wrong inside the living processes: dead tasks, failed health checks."""
        found = []
        for name, program in self.programs.items():
            process = program.process
            if process is None or process.dead or process.frozen or process.ended:
                continue
            found += [(name, f"task {text}") for text in process.failed()]
            if process.health is not None:
                _, checks = process.context.run(process.health.report, "healthz")
                found += [(name, f"{check}: {detail}") for check, ok, detail in checks if not ok]
        return found

    async def _keep_running(self) -> None:
        """What a kubelet does for the pods of the roles: who ended is started again after a second."""
        while True:
            await asyncio.sleep(1.0)
            for program in self.programs.values():
                process = program.process
                if process is not None and process.ended and not process.dead:
                    program.ends.append(process.ended)
                    self.history.tell("ended", program.name, process.ended)
                    self.graveyard.append(process)
                    program.process = None
                    if program.wanted:
                        self.start(program.name)


def _ignored(rule: str, text: str) -> None:
    """Nobody judges this world."""
