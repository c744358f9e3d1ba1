"""Machines as directories, a kubelet, and the parts of the agent between them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from koord.api.kinds import NODEMETRICS, NODERESOURCETOPOLOGIES, NODES, NODESLOS
from koord.apiserver.testing import running_server
from koord.config.gates import KOORDLET, FeatureGates
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import WriteError
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options
from roles.koordlet.prediction.models import Models, PredictionOptions
from roles.koordlet.prediction.reclaimable import ReclaimableReporter
from roles.koordlet.report.nodemetric_loop import NodeMetricLoop
from roles.koordlet.report.topology_loop import TopologyLoop
from roles.koordlet.sensing.base import SensingContext
from roles.koordlet.sensing.loop import SensingLoop
from roles.koordlet.sensing.registry import make_collectors
from roles.koordlet.states.callbacks import Callbacks
from roles.koordlet.states.kubelet import KubeletClient, KubeletOptions
from roles.koordlet.states.model import HostState
from roles.koordlet.states.nodestate import NodeState
from roles.koordlet.states.pods import PodCache
from roles.koordlet.states.slo import SLO, effective_slo
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from tests.support import patience


def _load_hosttree() -> ModuleType:
    path = Path(__file__).parents[3] / "fixtures" / "hosts" / "hosttree.py"
    spec = importlib.util.spec_from_file_location("koord_test_hosttree", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


HostTree = _load_hosttree().HostTree

T0 = 1_700_000_000.0


def pod(name: str, uid: str, *, qos: str = "Burstable", phase: str = "Running", **fields: Any) -> dict[str, Any]:
    """A pod as the kubelet lists it. ``containers`` maps names to bare ids, ``requests`` are of the first container."""
    containers: dict[str, str] = fields.get("containers") or {"main": f"{name}-main"}
    specs: list[dict[str, Any]] = [{"name": n, "image": "x", "resources": {}} for n in containers]
    specs[0]["resources"] = {k: fields[k] for k in ("requests", "limits") if k in fields}
    spec: dict[str, Any] = {"nodeName": "n1", "containers": specs}
    if "priority" in fields:
        spec["priority"] = fields["priority"]
    return {
        "metadata": {
            "name": name,
            "namespace": fields.get("namespace", "default"),
            "uid": uid,
            "labels": fields.get("labels", {}),
            "annotations": fields.get("annotations", {}),
            "creationTimestamp": fields.get("created", "2020-01-01T00:00:00Z"),
        },
        "spec": spec,
        "status": {
            "phase": phase,
            "qosClass": qos,
            "containerStatuses": [
                {"name": n, "containerID": f"containerd://{i}", "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}}}
                for n, i in containers.items()
            ],
        },
    }


def pod_list(*pods: dict[str, Any]) -> bytes:
    return orjson.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods)})


def write_directly(name: str, path: str, value: str) -> str:
    """Set a file as the executor would."""
    try:
        kernel.write(path, value)
    except WriteError as error:
        return str(error)
    return ""


@dataclass
class Agent:
    """The sensing half on one machine, driven by hand: time only passes in :meth:`tick`."""

    tree: Any
    gates: str = ""
    interval: float = 1.0
    now: float = T0
    mono: float = 100.0
    slo: SLO | None = field(default_factory=lambda: effective_slo({})[0])
    policy: str = "usageWithoutPageCache"
    flags: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gates = FeatureGates(KOORDLET)
        gates.set_from_flag(self.gates)
        root = HostRoot.at(str(self.tree.root))
        self.files = HostFiles()
        self.host = HostState(root, Cgroups.detect(root), self.files)
        self.pod_cache = PodCache(self.host.cgroups)
        self.store = MetricStore()
        self.metrics = Metrics("n1")
        self.metrics.node_known = True
        self.context = SensingContext(
            host=self.host,
            store=self.store,
            metrics=self.metrics,
            pods=lambda: self.pod_cache.pods,
            slo=lambda: self.slo,
            memory_policy=lambda: self.policy,
            gate=gates.enabled,
            options=Options(collect_res_used_interval=self.interval, xpu_device_infos_dir=str(self.tree.root / "xpu"), **self.flags),
            change=write_directly,
        )
        self.loop = SensingLoop(
            make_collectors(self.context),
            files=self.files,
            store=self.store,
            metrics=self.metrics,
            interval=self.interval,
        )

    def list(self, *pods: dict[str, Any]) -> None:
        self.pod_cache.take(pod_list(*pods))

    def tick(self, seconds: float = 1.0, *, jump: float = 0.0) -> None:
        """Let time pass and run one sensing tick; ``jump`` moves the wall clock alone."""
        self.mono += seconds
        self.now += seconds + jump
        self.loop.tick(self.now, self.mono)

    @property
    def view(self) -> MetricsView:
        return MetricsView(self.store, self.now, self.interval)


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., Any]:
    """``host(version=1, driver="systemd", …)``: a machine below a temporary directory."""

    def make(**options: Any) -> Any:
        return HostTree(tmp_path / "host", **options)

    return make


@pytest.fixture
def agent(host: Callable[..., Any]) -> Iterator[Callable[..., Agent]]:
    """``agent(tree=…)`` or ``agent(version=2)``: the sensing half on a machine; its files are closed after the test."""
    made: list[Agent] = []

    def make(tree: Any = None, *, gates: str = "", **options: Any) -> Agent:
        keys = {k: options.pop(k) for k in list(options) if k in {"version", "driver", "sockets", "cores", "threads", "memory_kb"}}
        made.append(Agent(tree if tree is not None else host(**keys), gates=gates, **options))
        return made[-1]

    yield make
    for one in made:
        one.files.close_all()


@pytest.fixture
def make_pod() -> Callable[..., dict[str, Any]]:
    return pod


class FakeKubelet:
    """``/pods/`` and ``/configz`` with answers that a test changes."""

    def __init__(self) -> None:
        self.pods = pod_list()
        self.config: dict[str, Any] = {"cpuManagerPolicy": "none"}
        self.status = 200
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0

    async def _answer(self, request: Any) -> Any:
        from aiohttp import web

        self.requests.append(request.path)
        self.headers.append(dict(request.headers))
        body = self.pods if request.path.startswith("/pods") else orjson.dumps({"kubeletconfig": self.config})
        return web.Response(status=self.status, body=body, content_type="application/json")


@contextlib.asynccontextmanager
async def serve_kubelet(tls: Any = None) -> AsyncIterator[FakeKubelet]:
    from aiohttp import web

    kubelet = FakeKubelet()
    app = web.Application()
    app.router.add_get("/{path:.*}", kubelet._answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    kubelet.port = runner.addresses[0][1]
    try:
        yield kubelet
    finally:
        await runner.cleanup()


@pytest.fixture
def kubelet() -> Callable[..., Any]:
    return serve_kubelet


def node_object(name: str = "n1", port: int = 10250, **fields: Any) -> dict[str, Any]:
    """A Node whose kubelet is at 127.0.0.1."""
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": fields.get("labels", {}), "annotations": fields.get("annotations", {})},
        "spec": {},
        "status": {
            "capacity": fields.get("capacity", capacity),
            "allocatable": fields.get("allocatable", capacity),
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }


@pytest.fixture
def make_node() -> Callable[..., dict[str, Any]]:
    return node_object


@dataclass
class World:
    """One node: an API server, a kubelet, a machine, and the observing half between them."""

    client: Client
    agent: Any
    state: NodeState
    models: Models
    report: NodeMetricLoop
    topology: TopologyLoop
    kubelet: Any
    callbacks: Callbacks

    async def metric(self) -> dict[str, Any]:
        """One report; the status as the API server then has it."""
        await self.report.report(self.agent.now)
        return (await self.client.get(NODEMETRICS, "n1")).get("status") or {}

    async def nrt(self) -> dict[str, Any]:
        """Topology rounds until nothing moves; the object."""
        for _ in range(3):
            await self.topology.step()
            await asyncio.sleep(0.05)
        return await self.client.get(NODERESOURCETOPOLOGIES, "n1")

    async def annotation(self, name: str) -> Any:
        return orjson.loads((await self.nrt())["metadata"]["annotations"][name])

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in patience.tries(1000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the watch did not bring what was waited for")


def typed(kind: Any, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "n1"}, "spec": spec}


@contextlib.asynccontextmanager
async def make_world(
    make_agent, kubelet, node: dict[str, Any], *, metric=None, slo=None, query=True, **options: Any
) -> AsyncIterator[World]:
    async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
        status = node.pop("status")
        await client.create(NODES, node)
        await client.patch(NODES, "n1", {"status": status}, subresource="status")
        if metric is not None:
            await client.create(NODEMETRICS, typed(NODEMETRICS, metric))
        if slo is not None:
            await client.create(NODESLOS, typed(NODESLOS, slo))
        agent = make_agent(**options)
        informers = InformerFactory(client)
        callbacks = Callbacks()
        state = NodeState("n1", informers, agent.metrics, callbacks)
        informers.start()
        await informers.wait_synced()
        models = Models(PredictionOptions(directory=str(agent.tree.root / "checkpoints"), training_interval=60))
        report = NodeMetricLoop(
            client=client,
            state=state,
            pods=lambda: agent.pod_cache.pods,
            store=agent.store,
            metrics=agent.metrics,
            reclaimable=ReclaimableReporter(models, agent.metrics),
            export=True,
            cold_memory=lambda: agent.context.shared.cold_memory,
        )
        reader = KubeletClient(KubeletOptions(insecure=True, read_only_port=served.port), agent.metrics, None)
        topology = TopologyLoop(
            client=client,
            state=state,
            pod_cache=agent.pod_cache,
            store=agent.store,
            kubelet=reader,
            root=agent.host.root,
            interval=3.0,
            query_kubelet=query,
            publish=True,
        )
        try:
            yield World(client, agent, state, models, report, topology, served, callbacks)
        finally:
            await reader.close()
            await informers.stop()


@pytest.fixture
def world() -> Callable[..., Any]:
    return make_world
