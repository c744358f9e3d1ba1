"""The modelled hosts of a world: which nodes have one, what passes there, what goes wrong, and how they are left."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import orjson

from roles.sandbox.nodes.fleet import node_name
from roles.sandbox.world import programs, settling
from roles.sandbox.world.host.files import ProcessFiles
from roles.sandbox.world.host.layout import BURST, BVT, CPUS, IDLE, LEVELS, LIMIT, MEMSW, PSI, QUOTA, SHARES, Layout
from roles.sandbox.world.host.machine import Machine
from roles.sandbox.world.host.running import Running
from roles.sandbox.world.process import EPOCH, Process

if TYPE_CHECKING:
    from roles.sandbox.world.environment import Environment, Program
    from roles.sandbox.world.faults import Fault
    from roles.sandbox.world.server import Server

T = TypeVar("T")
ADMINISTRATOR = "administrator"
MEDDLED = {QUOTA: "45000", SHARES: "77", LIMIT: str(200 << 20), CPUS: "0-1", BVT: "1"}
STEP = 1.0
"""Seconds between two looks of a kernel at its clock."""
UNINSTALL = 20
"""Steps that agents have to end before they are killed."""


def _or(fixed: T | None, drawn: T) -> T:
    return drawn if fixed is None else fixed


class Hosts:
    """The machines of a world by node."""

    def __init__(self, world: Environment) -> None:
        self.world = world
        self.server: Server  # there is one before time passes on the machines
        self.rng = random.Random(f"{world.seed}/layout")
        self.names = [node_name(index) for index in range(min(world.spec.koordlets, world.spec.nodes))]
        self.machines: dict[str, Machine] = {}
        self._roots: dict[str, str] = {}
        self._files: dict[str, ProcessFiles] = {}
        self._disturbed: dict[str, float] = {}
        self._still: float | None = None
        self._strategies: dict[str, str] = {}
        evicts = self.rng.choice((False, True))
        self.gates = "BEMemoryEvict=true,BECPUEvict=true" if _or(world.spec.host.evicts, evicts) else ""
        self.running: dict[str, Running] = {}
        more = random.Random(f"{world.seed}/kubelets")
        odds = 0.3 if world.spec.host.static is None else float(world.spec.host.static)
        self.static = {node for node in self.names if more.random() < odds}  # where the kubelet gives out CPUs itself
        self.told = {node for node in self.names if more.random() < 0.3}  # where the kernel tells pressure: it is polled

    def get(self, node: str) -> Machine | None:
        """The machine of a node that has one."""
        return self.machines.get(node)

    def strategies(self, colocation: str) -> dict[str, str]:
        """What the cluster asks of its agents: drawn once, also where the API server has to be filled again."""
        if self._strategies or not self.names:
            return {"colocation-config": colocation, **self._strategies}
        fixed, draw = self.world.spec.host, self.rng.choice
        threshold = {
            "enable": True,
            "cpuSuppressThresholdPercent": 65,
            "cpuSuppressPolicy": _or(fixed.suppress, draw(("cpuset", "cfsQuota"))),
            "memoryEvictThresholdPercent": _or(fixed.memory, draw((10, 16, 70))),
            "cpuEvictBESatisfactionLowerPercent": 50,
            "cpuEvictBESatisfactionUpperPercent": 60,
        }
        burst = {"policy": _or(fixed.burst, draw(("none", "auto")))}
        self._strategies = {
            "resource-threshold-config": orjson.dumps({"clusterStrategy": threshold}).decode(),
            "cpu-burst-config": orjson.dumps({"clusterStrategy": burst}).decode(),
        }
        return {"colocation-config": colocation, **self._strategies}

    # -- life ----------------------------------------------------------------------------------------------------------------

    def lay(self) -> None:
        """Make the machines, before anybody looks at them."""
        world, spec = self.world, self.world.spec
        for node in self.names:
            optional = frozenset(knob for knob in (BURST, BVT, IDLE, MEMSW) if self.rng.random() < 0.6)
            optional |= {PSI} if node in self.told else frozenset()
            layout = Layout(_or(spec.host.version, self.rng.choice((1, 1, 2))), _or(spec.host.knobs, optional))
            machine = Machine(
                node,
                world.scratch / "hosts" / node,
                cpus=spec.cpus,
                memory=spec.memory_gib * 2**30,
                layout=layout,
                history=world.history,
                clock=world.loop.time,
            )
            machine.wall = self._wall
            machine.undisturbed = partial(self._undisturbed, node)
            self._disturbed[node] = 0.0
            machine.reserved = frozenset({0}) if node in self.static else frozenset()
            self.machines[node] = machine
            self.running[node] = Running(machine, f"kubelet-{node}")
            self._roots[node] = str(machine.root)

    def start(self) -> None:
        """Let time pass on the machines, and their agents live."""
        for node in self.names:
            self.world.add(f"koordlet-{node}", partial(self._agent, node), host=node)
        if self.names:
            self.world.loop.call_later(STEP, self._step)

    def _wall(self) -> float:
        return EPOCH + (self.world.loop.time() if self._still is None else self._still)

    def _step(self) -> None:
        for node, machine in self.machines.items():
            if self._in_the_way(node):
                self._disturbed[node] = self.world.loop.time()
            machine.advance()
        self.world.loop.call_later(STEP, self._step)

    def _undisturbed(self, node: str) -> float:
        return self.world.loop.time() - self._disturbed[node]

    def _in_the_way(self, node: str) -> bool:
        """Whether an agent cannot do its work now: it, its kubelet, their machine, the API server or a connection is hurt."""
        machine = self.machines[node]
        if machine.disk_full or machine.write_errors or machine.failing or self.server.process.dead:
            return True
        watches = {f"koordlet-{node}": "/nodeslos?watch=", f"kubelet-{node}": "/pods?watch="}
        for name, watch in watches.items():
            process = self.world.programs[name].process
            if process is None or process.dead or process.frozen or process.ended:
                return True
            if any(end.stalled for end in process.connections):
                return True  # it has not noticed yet
            if not any(watch in end.about for end in process.connections):
                return True  # it waits before it asks again
        return any(fault.target in ("", *watches) for fault in self.world.rules.active)

    def _agent(self, node: str, program: Program) -> Callable[[], Awaitable[None]]:
        process = program.process
        assert process is not None
        process.surroundings.files = self._files_of(program.name, process, node)
        machine, root = self.machines[node], self._roots[node]
        return program.release.compose("koordlet", self.world, program.name, program.life, machine, root, self.gates)

    def _files_of(self, name: str, process: Process, node: str) -> ProcessFiles:
        """The machine's files for a process; what the one before it had open is closed."""
        if name in self._files:
            self._files[name].abandon()
        machine = self.machines[node]
        machine.steps_to_live = 0
        files = self._files[name] = ProcessFiles(machine, name, lambda: process.dead, lambda: self._fell(name, process))
        return files

    def _fell(self, name: str, process: Process) -> None:
        self.world.history.tell("crash", name, "between two changes")
        process.kill()
        self.world.graveyard.append(process)
        self.world.network.at(1.0, self.world.start, name)

    # -- faults --------------------------------------------------------------------------------------------------------------

    def hurt(self, fault: Fault) -> None:
        """A fault of a host or of the agent's way to it."""
        node = fault.target.partition("-")[2]
        machine, program = self.machines.get(node), self.world.programs.get(fault.target)
        later = self.world.network.at
        if machine is None or program is None:
            return
        if fault.kind == "crash":
            machine.steps_to_live = int(fault.amount)
            later(fault.seconds, setattr, machine, "steps_to_live", 0)
        elif fault.kind == "disk-full":
            machine.disk_full = True
            later(fault.seconds, self._room, machine)
        elif fault.kind == "read-error":
            machine.failing = fault.method
            later(fault.seconds, setattr, machine, "failing", "")
        elif fault.kind == "write-error":
            machine.write_errors = True
            later(fault.seconds, self._room, machine)
        elif fault.kind == "container-exit":
            self._exit(machine)
        elif fault.kind == "meddle":
            self._meddle(machine)
        elif fault.kind == "remount" and program.process is not None and not program.process.dead:
            self._roots[node] = self._another_path(node)
            process = program.process
            process.kill()
            self.world.graveyard.append(process)
            later(fault.seconds, self.world.start, program.name)

    def _room(self, machine: Machine) -> None:
        machine.disk_full = machine.write_errors = False
        self.world.history.tell("room", machine.node)

    def _exit(self, machine: Machine) -> None:
        """A container ends by itself; its kubelet starts it again."""
        there = [(uid, name) for uid, resident in machine.residents.items() for name in resident.containers]
        if there:
            uid, name = self.rng.choice(there)
            self.world.history.tell("container-exit", machine.node, f"{name} of pod {uid}")
            machine.exit(uid, name)

    def _meddle(self, machine: Machine) -> None:
        """An administrator sets a file that the agent has set, to something else.

        To something that the kernel takes without the agent, too: less than before, and where nothing is below.
        """
        groups = machine.kernel.groups
        touched = [
            (name, knob)
            for name, knob in machine.touched
            if knob in MEDDLED and name in groups and not groups[name].children and (knob == QUOTA or name not in LEVELS.values())
        ]
        if touched:
            group, knob = self.rng.choice(touched)
            machine.set(group, knob, MEDDLED[knob], ADMINISTRATOR, "meddle")

    def _another_path(self, node: str) -> str:
        machine = self.machines[node]
        path = f"{machine.root.parent}/remounted-{node}"
        if self._roots[node] == path:
            return str(machine.root)
        if not os.path.lexists(path):
            os.symlink(machine.root, path)
            machine.mounted_at(path)
        return path

    # -- the end -------------------------------------------------------------------------------------------------------------

    async def calm(self, seconds: float) -> None:
        """The last part of a history: use stays as it is, then the agents are taken off their nodes and what they changed is put back."""
        self._still = self.world.loop.time()
        await settling.settled(self.world.history, self.world.open, seconds, agents=bool(self.names))
        if not self.names:
            return
        self.world.history.tell("phase", "uninstall")
        for node in self.names:
            program = self.world.programs[f"koordlet-{node}"]
            program.wanted = False
            if program.process is not None and program.life is not None:
                program.process.context.run(self.world.loop.call_soon, program.life.begin_end)
        agents = [self.world.programs[f"koordlet-{node}"] for node in self.names]
        for _ in range(UNINSTALL):
            await asyncio.sleep(STEP)
            if all(agent.process is None or agent.process.ended for agent in agents):
                break
        for node in self.names:
            self._restore(node)

    def _restore(self, node: str) -> None:
        """`koord koordlet --restore` on the machine."""
        name = f"koordlet-{node}"
        program = self.world.programs[name]
        if program.process is not None and not program.process.ended:
            program.process.kill()
        process = Process(self.world.loop, name, program.number + 1, self.world.clocks[name], self.world.seed, self.world.addresses[name])
        process.surroundings.files = self._files_of(name, process, node)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = process.context.run(_put_back, self._roots[node])
        self.running[node].set_cpus()  # a restore follows the checkpoint, before the kubelet's next look
        text = said.getvalue().replace(self._roots[node], "")
        self.world.history.tell("restored", node, f"status {status}: {text.strip().splitlines()[-1] if text.strip() else ''}")


def _put_back(root: str) -> int:
    from roles.koordlet.app import restore
    from roles.koordlet.options import Options

    return restore(Options(**programs.settings("", root)))
