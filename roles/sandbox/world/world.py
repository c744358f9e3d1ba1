"""A world: the whole product on one loop and virtual time, from a seed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from koord.api import names
from koord.api.kinds import (
    CLUSTERCOLOCATIONPROFILES,
    CONFIGMAPS,
    DEVICES,
    ELASTICQUOTAS,
    NAMESPACES,
    NODERESOURCETOPOLOGIES,
    NODES,
    PRIORITYCLASSES,
    SECRETS,
)
from koord.api.objects_meta import Projection, decoder
from koord.kube.client import Client
from koord.process.life import Life
from roles.sandbox import objects
from roles.sandbox.bootstrap import ensure
from roles.sandbox.nodes import fleet
from roles.sandbox.process_kubelet.node import LEASE_NAMESPACE
from roles.sandbox.world import beside, configuration, herd, kubelet, programs, tenant, upkeep, workloads
from roles.sandbox.world import faults as fault_plans
from roles.sandbox.world.configuration import QUOTAS
from roles.sandbox.world.faults import Fault, FaultRules
from roles.sandbox.world.history import History
from roles.sandbox.world.host.fleet import Hosts
from roles.sandbox.world.host.layout import ALL, Drawn
from roles.sandbox.world.injection import Injector
from roles.sandbox.world.loop import VirtualLoop, run
from roles.sandbox.world.network import Network
from roles.sandbox.world.process import EPOCH, Clock, Process
from roles.sandbox.world.programs import API_SERVER
from roles.sandbox.world.server import Server
from roles.sandbox.world.workloads import NAMESPACE, Workload

if TYPE_CHECKING:
    from koord.decisions.record import Record

log = logging.getLogger(__name__)

_CRDS: list[dict[str, Any]] = []
_SECRETS: list[dict[str, Any]] = []


@dataclass(frozen=True, slots=True)
class Spec:
    """What a world consists of. `minutes` of virtual time with workloads and faults; `calm` seconds after the last fault."""

    seed: int = 0
    nodes: int = 3
    pods: int = 20
    minutes: float = 1.0
    faults: int = 6
    calm: float = 60.0
    cpus: int = 6
    memory_gib: int = 16
    gpu_nodes: int = 2
    gpus: int = 2
    schedulers: int = 2
    managers: int = 2
    deschedulers: int = 2
    webhooks: bool = True
    hostile: int = 4  # attacks of a tenant (roles/sandbox/hostile.py)
    policies: bool = False  # the admission policies of configs/install, for which the tenant's rights are enforced
    koordlets: int = 1  # nodes on a modelled host with an agent of their own
    host: Drawn = ALL  # what is fixed of these
    kinds: tuple[str, ...] = ()
    sorts: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()
    plan: tuple[Fault, ...] | None = None
    chores: tuple[upkeep.Chore, ...] | None = None  # what operators do; None: drawn
    profiles: str = "load"  # of configuration.PROFILES
    report: int = configuration.REPORT  # seconds between two reports of a node
    herd: bool = False  # one program serves all nodes (herd.py)
    keep: int = 0  # entries of the history that are kept; 0: all
    beside: str = ""  # the directory of another release, of which one of two replicas is
    alone: bool = False  # all of the replicas are


_PROFILES = (*("load",) * 6, "both", "both", "community")
LARGE = 50
"""Nodes beyond which a world is modelled more coarsely."""


def sized(spec: Spec) -> Spec:
    """A world of many nodes as it can be lived: one program for all kubelets, a report each four minutes, machines that hold ten pods, and
    a history that remembers its last entries. The roles are the same. It stays calm until the last reports have had their effect."""
    if spec.nodes <= LARGE:
        return spec
    return replace(spec, cpus=32, memory_gib=128, report=240, herd=True, keep=5_000, calm=1200.0)


def drawn(seed: int) -> Spec:
    """A small world as a seed draws it: 2 to 4 nodes, 10 to 26 pods, 5 to 12 faults. Each role has a standby in every second world, one in
    two has an agent on a modelled host and a tenant who attacks: what is not there cannot hide what the rest does, and costs nothing.
    In one of three the descheduler runs the community's plugins, mostly beside its own."""
    rng = random.Random(f"world/{seed}/size")
    return Spec(
        seed,
        schedulers=rng.choice((1, 2)),
        managers=rng.choice((1, 2)),
        deschedulers=rng.choice((1, 2)),
        nodes=rng.choice((2, 3, 3, 4)),
        pods=rng.randint(10, 26),
        faults=rng.randint(5, 12),
        koordlets=rng.choice((0, 1)),
        hostile=rng.choice((0, 4)),
        profiles=random.Random(f"world/{seed}/profiles").choice(_PROFILES),
    )


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

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def write(self, record: Record) -> None:
        self._world.records.append((self._world.loop.time(), self._name, record))


class World:
    """Everything of one run."""

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
        self.server: Server
        self.silent: set[str] = set()  # kubelets whose agent reports nothing
        self.graveyard: list[Process] = []
        self.hosts = Hosts(self)
        self.injector = Injector(self)
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

    # -- the API server ------------------------------------------------------------------------------------------------------

    async def bootstrap(self) -> None:
        """What the roles count on."""
        async with Client(programs.connection("admin")) as client:
            for name in ("default", "kube-system", LEASE_NAMESPACE, objects.SYSTEM_NAMESPACE, NAMESPACE):
                await ensure(client, NAMESPACES, objects.namespace(name))
            for name, value in objects.PRIORITY_CLASSES:
                await ensure(client, PRIORITYCLASSES, objects.priority_class(name, value))
            await ensure(client, CLUSTERCOLOCATIONPROFILES, objects.profile())
            if self.spec.webhooks:
                await ensure(client, SECRETS, _secret(), objects.SYSTEM_NAMESPACE)
            strategies = self.hosts.strategies(configuration.colocation(self.spec.report))
            await ensure(client, CONFIGMAPS, objects.slo_config(strategies), objects.SYSTEM_NAMESPACE)
            for index in range(self.spec.nodes):
                body = fleet.node(index, cpus=self.spec.cpus, memory=self.spec.memory_gib * 2**30, now=self.clock("apiserver").now())
                if self.tended:
                    body["metadata"]["labels"][configuration.POOL] = configuration.HERE
                made = await client.create(NODES, body)
                name = made["metadata"]["name"]
                await client.patch(NODES, name, {"status": body["status"]}, subresource="status")
                await ensure(client, NODERESOURCETOPOLOGIES, _topology(name, self.spec.cpus))
                if index < self.spec.gpu_nodes:
                    await ensure(client, DEVICES, _device(name, self.spec.gpus))
            for name, (least, most) in QUOTAS.items():
                await ensure(client, ELASTICQUOTAS, _quota(name, least, most), NAMESPACE)
            if self.spec.policies:
                await tenant.policies(client)

    # -- the run -------------------------------------------------------------------------------------------------------------

    def _replicas(self) -> tuple[tuple[str, int], ...]:
        spec = self.spec
        return (("scheduler", spec.schedulers), ("manager", spec.managers), ("descheduler", spec.deschedulers))

    def _kubelets(self) -> tuple[list[str], list[str]]:
        """Nodes with a kubelet of their own, and those that one program serves."""
        nodes = [fleet.node_name(index) for index in range(self.spec.nodes)]
        if not self.spec.herd:
            return nodes, []
        return [node for node in nodes if node in self.hosts.names], [node for node in nodes if node not in self.hosts.names]

    def drawn(self) -> tuple[list[Workload], list[Fault]]:
        """Workloads and faults of the seed."""
        spec = self.spec
        works = list(spec.workloads) or workloads.draw(random.Random(f"{self.seed}/workloads"), spec.pods, spec.minutes, spec.sorts)
        if self.hosts.names and not spec.workloads:
            more = random.Random(f"{self.seed}/pinned")
            works += workloads.pinned(more, spec.minutes, bool(self.hosts.static)) + workloads.hungry(more, spec.minutes)
            works += workloads.flexible(more, spec.minutes)
        if self.tended and not spec.workloads:
            works += upkeep.workloads(random.Random(f"{self.seed}/tended"), spec.nodes, spec.minutes)
        names = [f"{role}-{letter}" for role, count in self._replicas() for letter in "ab"[:count]]
        alone, together = self._kubelets()
        names += [f"kubelet-{node}" for node in alone] + [herd.NAME] * bool(together)
        agents = [f"koordlet-{node}" for node in self.hosts.names]
        plan = list(spec.plan) if spec.plan is not None else fault_plans.draw(
            random.Random(f"{self.seed}/plan"), spec.minutes * 60, spec.faults, names, spec.kinds
        )  # fmt: skip
        if spec.plan is None:
            plan = fault_plans.with_hosts(random.Random(f"{self.seed}/hosts"), plan, spec.minutes * 60, spec.faults, agents, spec.kinds)
            plan = sorted([*plan, *self.releases.turns(spec.minutes * 60)], key=lambda fault: (fault.at, fault.kind, fault.target))
        return works, plan

    def chores(self) -> list[upkeep.Chore]:
        """What the operators of the seed do."""
        spec = self.spec
        if spec.chores is not None:
            return list(spec.chores)
        return upkeep.draw(random.Random(f"{self.seed}/upkeep"), spec.nodes, spec.minutes)

    def _compose(self, role: str, given: Path, program: Program) -> programs.Main:
        """What a replica of a role runs: with its configuration, a manager with a directory of its own for its certificates."""
        return program.release.compose(role, self, program.name, program.life, given / program.name if role == "manager" else given)

    async def _main(self) -> None:
        spec = self.spec
        works, plan = self.drawn()
        self.server = Server(self, _crds(), fails_over=any(fault.kind == "dead-address" for fault in plan))
        if any(fault.kind == "restart" for fault in plan):
            self.server.use_disk()
        await self.server.start()
        if self.tended:
            self.history.profiles = spec.profiles
            self.history.tell("profiles", spec.profiles)
        await self.bootstrap()
        first, second = programs.write_configurations(
            self.scratch,
            configuration.scheduler(self.retry, spec.report),
            configuration.descheduler(self.retry, spec.report, spec.profiles),
        )
        certificates = self.scratch / "certificates"
        self.hosts.lay()
        alone, together = self._kubelets()
        if together:
            self.add(herd.NAME, lambda program: herd.Herd(self, together).main)
        for node in alone:
            self.add(f"kubelet-{node}", partial(_kubelet, self, node), host=node)
        self.hosts.start()
        for role, count, given in (
            ("manager", spec.managers, certificates),
            ("scheduler", spec.schedulers, first),
            ("descheduler", spec.deschedulers, second),
        ):
            for letter in "ab"[:count]:
                self.add(f"{role}-{letter}", partial(self._compose, role, given))
        self.add("controllers", lambda program: workloads.Controllers(self).main)
        keeper = asyncio.ensure_future(self._keep_running())
        await asyncio.sleep(5.0)
        self.history.tell("phase", "begin")
        users = workloads.Users(self, works)
        self.add("users", lambda program: users.main)
        self.programs["users"].wanted = False
        attacks = tenant.draw(random.Random(f"{self.seed}/hostile"), spec.hostile if spec.webhooks else 0)
        self.add(tenant.NAME, lambda program: tenant.Tenant(self, attacks, spec.minutes * 30).main)
        self.programs[tenant.NAME].wanted = False
        if self.tended:
            operators = upkeep.Operators(self, self.chores())
            self.add(upkeep.NAME, lambda program: operators.main)
            self.programs[upkeep.NAME].wanted = False
        hurting = asyncio.ensure_future(self.injector.run(plan))
        await asyncio.sleep(spec.minutes * 60)
        await hurting
        await self.injector.calm()
        self.history.tell("phase", "calm")
        await self.hosts.calm(spec.calm)
        self.history.tell("phase", "end")
        keeper.cancel()

    def run(self) -> History:
        """Live the whole history."""
        run(self.loop, self._main())
        return self.history

    def bury(self) -> None:
        """End everything without running anything again; the world cannot be used after it."""
        for program in self.programs.values():
            if program.process is not None:
                program.process.dead = True


def _ignored(rule: str, text: str) -> None:
    """Nobody judges this world."""


def _kubelet(world: World, node: str, program: Program) -> Callable[[], Awaitable[None]]:
    return kubelet.program(world, node)


def warm() -> None:
    """Import and make what all worlds of this process share."""
    import roles.descheduler.app
    import roles.koordlet.app
    import roles.manager.app
    import roles.scheduler.app  # noqa: F401

    _crds()
    _secret()
    kinds = [Projection]
    for kind in kinds:  # grows meanwhile
        decoder(kind)
        kinds.extend(kind.__subclasses__())
    gc.collect()
    gc.freeze()


def _crds() -> list[dict[str, Any]]:
    if not _CRDS:
        from koord.api.crdgen import all_crds

        _CRDS.extend(all_crds())
    return _CRDS


def _device(node: str, cards: int) -> dict[str, Any]:
    """What koordlet reports of a node with so many cards."""
    gpu = "koordinator.sh/gpu"
    amounts = {f"{gpu}-core": "100", f"{gpu}-memory-ratio": "100", f"{gpu}-memory": "80Gi"}
    devices = [{"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": True, "resources": amounts} for minor in range(cards)]
    return {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "metadata": {"name": node}, "spec": {"devices": devices}}


def _topology(node: str, cpus: int) -> dict[str, Any]:
    """What koordlet reports of a node's CPUs: cores of two threads on one socket."""
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": 0} for cpu in range(cpus)]
    metadata = {"name": node, "annotations": {names.ANNOTATION_NRT_CPU_TOPOLOGY: orjson.dumps({"detail": detail}).decode()}}
    return {
        "apiVersion": NODERESOURCETOPOLOGIES.api_version,
        "kind": NODERESOURCETOPOLOGIES.kind,
        "metadata": metadata,
        "topologyPolicies": ["None"],
        "zones": [],
    }


def _quota(name: str, least: int, most: int) -> dict[str, Any]:
    """A quota that is guaranteed so many CPUs and may use so many at most."""
    spec = {bound: {"cpu": str(cpus), "memory": f"{cpus * 4}Gi"} for bound, cpus in (("min", least), ("max", most))}
    kind = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind}
    return {**kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def _secret() -> dict[str, Any]:
    """The webhooks' certificates: making them takes a second, so that all worlds of this process share them."""
    if not _SECRETS:
        from roles.manager.options import WebhookOptions
        from roles.manager.webhooks.certs import renew

        options = WebhookOptions()
        made = renew(None, options.dns_name, datetime.fromtimestamp(EPOCH, UTC))
        data = {name: base64.b64encode(content).decode() for name, content in made.files().items()}
        metadata = {"name": options.secret, "namespace": options.namespace}
        _SECRETS.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    return _SECRETS[0]


@contextlib.contextmanager
def quiet() -> Any:
    """No log lines but those of the world itself."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
