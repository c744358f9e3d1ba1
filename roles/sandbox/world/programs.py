"""The programs of a world: each role as it is composed in production, on what the world hands it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from koord.config.gates import MANAGER, FeatureGates
from koord.decisions.recorder import Recorder
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.informers import InformerFactory
from koord.process import life as lives
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.sandbox.world.environment import API_SERVER, NAME, Environment
from roles.sandbox.world.history import HEADER
from roles.sandbox.world.process import PROCESS

if TYPE_CHECKING:
    from roles.sandbox.world.host.machine import Machine

_STEPS = 3  # after so many steps of a long decision others have their turn: no time passes inside a decision
_STEPS_AMONG_MANY = 100  # among many nodes a decision has thousands of steps
_VERIFY = 3  # every so many decisions a scheduler compares what it kept with fresh answers
_VERIFY_SELDOM = 50  # among many nodes, where that takes long
CONTRACT = 1
"""The number of what these functions and a world expect of each other (`beside.py`): another one when that changes."""
Main = Callable[[], Awaitable[None]]


def connection(name: str) -> ClientConfig:
    """How a process reaches the API server; it names itself, so that the history knows who wrote."""
    return ClientConfig(server=f"http://{NAME}:{API_SERVER[1]}", headers=((HEADER, name),))


async def live(life: Life, main: Callable[[Life], Awaitable[object]], name: str) -> None:
    """A role's life, with the orderly end that SIGTERM brings. Raises RuntimeError for an end with status 1."""
    task = asyncio.ensure_future(main(life))
    stopping = asyncio.get_running_loop().create_task(life.stopping.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    status = await lives._end(life, task, name)
    stopping.cancel()
    if status:
        error = task.exception() if task.done() and not task.cancelled() else None
        raise RuntimeError(life.failure or repr(error or f"{name} ended with status {status}"))


def _role(world: Environment, name: str, life: Life, role: str, build: Callable[..., Any], client: str = "", **flow: Any) -> Main:
    """The life of a role on a client and a cache of its own: `build` makes its App of them. `client`: what the client is called where
    that is not the role."""

    async def main(life: Life) -> None:
        recorder = Recorder(role, [world.sink(name)])
        ops = OpsServer(recorder=recorder, role=role)
        process = PROCESS.get()
        if process is not None:
            process.health = ops.health  # it is asked in the end how it is
        async with Client(connection(name), role=client or role, **flow) as own:
            informers = InformerFactory(own)
            app = build(client=own, informers=informers, recorder=recorder, ops=ops)
            life.on_stop(informers.stop, "informers")
            await app.run(life)

    return lambda: live(life, main, name)


def scheduler(world: Environment, name: str, life: Life, config: Path) -> Main:
    """A scheduler with leader election."""
    from koord.config.scheduler import load
    from roles.scheduler.app import App
    from roles.scheduler.options import Options

    def build(**parts: Any) -> App:
        options = Options(load(str(config)), seed=world.number(name), verify=_VERIFY_SELDOM if world.spec.herd else _VERIFY)
        app = App(options, **parts)
        app.scheduler.turns.steps = _STEPS_AMONG_MANY if world.spec.herd else _STEPS
        for framework in app.engine.frameworks.values():
            framework.trust.told = lambda plugin, why: world.accuse("kept-answers", f"{name}: plugin {plugin}: {why}")
        return app

    return _role(world, name, life, "scheduler", build)


def manager(world: Environment, name: str, life: Life, certificates: Path) -> Main:
    """A manager with leader election and webhooks."""
    from roles.manager.app import App
    from roles.manager.options import Options, WebhookOptions

    def build(**parts: Any) -> App:
        gates = FeatureGates(MANAGER)
        gates.set("WebhookFramework", world.spec.webhooks)
        gates.set("DeviceResourceSlices", world.spec.claims)
        options = Options(
            enable_leader_election=True,
            leader_election_namespace="koordinator-system",
            gates=gates,
            webhook=WebhookOptions(cert_dir=str(certificates)),
            qps=30,
            burst=50,
            lease_duration=15,
            renew_deadline=10,
            retry_period=world.retry,
        )
        return App(options, **parts)

    return _role(world, name, life, "manager", build, "koordinator-manager", qps=30, burst=50)


def descheduler(world: Environment, name: str, life: Life, config: Path) -> Main:
    """A descheduler with leader election."""
    from roles.descheduler.app import App
    from roles.descheduler.cli import read

    def build(**parts: Any) -> App:
        return App(read(str(config), {"scheduler_config": str(config.with_name("scheduler.yaml"))}), **parts)

    return _role(world, name, life, "descheduler", build, qps=50, burst=100)


def koordlet(world: Environment, name: str, life: Life, machine: Machine, root: str, gates: str) -> Main:
    """The node agent on a modelled host whose files it sees below `root`."""
    from roles.koordlet.app import App
    from roles.koordlet.options import Options

    async def main(life: Life) -> None:
        recorder = Recorder("koordlet", [world.sink(name)])
        ops = OpsServer(recorder=recorder, role="koordlet")
        options = Options(feature_gates=gates, **settings(machine.node, root))
        async with Client(connection(name), qps=options.kube_api_qps, burst=options.kube_api_burst, role="koordlet") as client:
            informers = InformerFactory(client)
            app = App(options, client=client, informers=informers, recorder=recorder, ops=ops)
            life.on_stop(informers.stop, "informers")
            await app.run(life)

    return lambda: live(life, main, name)


def settings(node: str, root: str) -> dict[str, Any]:
    """The flags of a node agent: its own directories on the machine, the kubelet's read-only port."""
    return {
        "node_name": node,
        "host_root": root,
        "tsdb_path": f"{root}/var/lib/koordlet/metrics",
        "prediction_checkpoint_filepath": f"{root}/var/lib/koordlet/checkpoints",
        "audit_log_dir": f"{root}/var/log/koordlet",
        "runtime_hooks_addr": f"{root}/var/run/koordlet/koordlet.sock",
        "kubelet_insecure_tls": True,
        "kubelet_sync_interval": 3.0,
    }


def write_configurations(folder: Path, scheduler_config: dict[str, Any], descheduler_config: dict[str, Any]) -> tuple[Path, Path]:
    """The component configurations as files (JSON is YAML)."""
    first, second = folder / "scheduler.yaml", folder / "descheduler.yaml"
    first.write_bytes(orjson.dumps(scheduler_config))
    second.write_bytes(orjson.dumps(descheduler_config))
    return first, second
