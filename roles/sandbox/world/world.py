"""A world: the whole product on one loop and virtual time, from a seed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from koord.api import names
from koord.api.kinds import (
    CONFIGMAPS,
    DEVICES,
    ELASTICQUOTAS,
    NODERESOURCETOPOLOGIES,
    NODES,
    SECRETS,
)
from koord.api.objects_meta import Projection, decoder
from koord.kube.client import Client
from roles.sandbox import objects
from roles.sandbox.bootstrap import ensure, ground
from roles.sandbox.builders import obj
from roles.sandbox.nodes import fleet
from roles.sandbox.process_kubelet.node import LEASE_NAMESPACE
from roles.sandbox.world import configuration, herd, kubelet, programs, tenant, upkeep, workloads
from roles.sandbox.world import faults as fault_plans
from roles.sandbox.world.configuration import QUOTAS
from roles.sandbox.world.environment import Environment, Program
from roles.sandbox.world.faults import Fault
from roles.sandbox.world.history import History
from roles.sandbox.world.host.fleet import Hosts
from roles.sandbox.world.injection import Injector
from roles.sandbox.world.loop import run
from roles.sandbox.world.process import EPOCH
from roles.sandbox.world.server import Server
from roles.sandbox.world.spec import NAMESPACE, Chore, Spec, Workload

log = logging.getLogger(__name__)

_CRDS: list[dict[str, Any]] = []
_SECRETS: list[dict[str, Any]] = []


class World(Environment):
    """Everything of one run."""

    def __init__(self, spec: Spec, scratch: Path) -> None:
        super().__init__(spec, scratch)
        self.server: Server
        self.hosts = Hosts(self)
        self.injector = Injector(self, self.hosts, self.bootstrap)

    # -- the API server ------------------------------------------------------------------------------------------------------

    async def bootstrap(self) -> None:
        """What the roles count on."""
        async with Client(programs.connection("admin")) as client:
            await ground(client, [(name, {}) for name in ("default", "kube-system", LEASE_NAMESPACE, objects.SYSTEM_NAMESPACE, NAMESPACE)])
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
            for kind, body in configuration.claims(NAMESPACE) if self.spec.claims else ():
                await ensure(client, kind, body, body["metadata"].get("namespace"))
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
        if spec.claims and not spec.workloads:
            works += workloads.claiming(random.Random(f"{self.seed}/claiming"), spec.minutes)
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

    def chores(self) -> list[Chore]:
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
        self.hosts.server = self.injector.server = self.server
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
        if self.tended or spec.chores:
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


def _kubelet(world: World, node: str, program: Program) -> Callable[[], Awaitable[None]]:
    return kubelet.program(world, node, world.hosts.running.get(node))


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
    return obj(DEVICES, node, spec={"devices": devices})


def _topology(node: str, cpus: int) -> dict[str, Any]:
    """What koordlet reports of a node's CPUs: cores of two threads on one socket."""
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": 0} for cpu in range(cpus)]
    annotations = {names.ANNOTATION_NRT_CPU_TOPOLOGY: orjson.dumps({"detail": detail}).decode()}
    return obj(NODERESOURCETOPOLOGIES, node, annotations=annotations, topologyPolicies=["None"], zones=[])


def _quota(name: str, least: int, most: int) -> dict[str, Any]:
    """A quota that is guaranteed so many CPUs and may use so many at most."""
    spec = {bound: {"cpu": str(cpus), "memory": f"{cpus * 4}Gi"} for bound, cpus in (("min", least), ("max", most))}
    return obj(ELASTICQUOTAS, name, NAMESPACE, spec=spec)


def _secret() -> dict[str, Any]:
    """The webhooks' certificates: making them takes a second, so that all worlds of this process share them."""
    if not _SECRETS:
        from roles.manager.options import WebhookOptions
        from roles.manager.webhooks.certs import renew

        options = WebhookOptions()
        made = renew(None, options.dns_name, datetime.fromtimestamp(EPOCH, UTC))
        data = {name: base64.b64encode(content).decode() for name, content in made.files().items()}
        _SECRETS.append(obj(SECRETS, options.secret, options.namespace, data=data))
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
