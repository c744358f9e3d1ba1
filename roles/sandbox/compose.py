"""The composition root: embedded API server, one client, one informer cache, nodes, and all roles on them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from koord.api import names
from koord.api.kinds import NODEMETRICS, NODES, PODS
from koord.api.quantity import parse_milli, parse_value
from koord.apiserver import kubeconfig, manifests
from koord.apiserver.config import ServerConfig
from koord.apiserver.server import ApiServer
from koord.decisions.record import Record
from koord.decisions.recorder import Recorder
from koord.kube import config as kube_config
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from koord.process import certificates
from koord.process.http import OpsServer
from roles.sandbox import bootstrap, objects, reload, resource_metrics, state
from roles.sandbox.builders import APP_LABEL
from roles.sandbox.localnode import LocalNode
from roles.sandbox.nodes.simulator import Simulator
from roles.sandbox.process_kubelet.kubelet import ProcessKubelet
from roles.sandbox.process_kubelet.node import SANDBOX_LABEL
from roles.sandbox.scenario import Scenario
from roles.sandbox.view.frame import Frame, SimulatedNode
from roles.tools.explain import amount

if TYPE_CHECKING:
    from koord.process.life import Life

log = logging.getLogger(__name__)

QPS, BURST = 500.0, 1000
ROLE_SECONDS = 1.0
OFFER_TERMS = (
    ("cpu.total", "CPUs"), ("cpu.margin", "kept free"), ("cpu.system", "used outside pods"), ("cpu.hpUsed", "used by services"),
)  # fmt: skip


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


class App(Protocol):
    """What a role is in this process."""

    def run(self, life: Life) -> Coroutine[Any, Any, Any]: ...


class Newest:
    """A sink that keeps the newest record of each role, for the view."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def write(self, record: Record) -> None:
        self.records[record.role] = record


class Sandbox:
    """Everything of one run, in the order in which it starts. `stop` undoes it in reverse and may be called at any time."""

    def __init__(
        self, life: Life, scenario: Scenario, run: state.Run, scratch: Path, local: LocalNode | None, *,
        processes: bool = False, scheduler_config: str | None = None,
    ) -> None:  # fmt: skip
        self.life = life
        self.scenario = scenario
        self.run = run
        self.scratch = scratch
        self.local = local
        self.processes = processes
        self.scheduler_config = scheduler_config
        self.kubeconfig = scratch / state.KUBECONFIG
        self.told: Callable[[str], None] = reload.say
        """Shows the user a line; the view takes it over."""
        self.endpoints: dict[str, str] = {}
        self.recorders: dict[str, Recorder] = {}
        self.ops: dict[str, OpsServer] = {}
        self.ports: dict[str, int] = {}
        self.environment: dict[str, dict[str, str]] = {}
        self._newest = Newest()
        self.kubelet: ProcessKubelet | None = None
        self.children: list[asyncio.subprocess.Process] = []
        self.server: ApiServer
        self.client: Client
        self.informers: InformerFactory
        self._undo: list[Any] = []
        self._roles: list[asyncio.Task[Any]] = []

    # --- start and end ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything. Raises ApiError, OSError, LayoutError or ConfigurationError."""
        from koord.api.crdgen import all_crds

        token = secrets.token_urlsafe(32)
        # The server decides what runs as root here, so it is never open to everybody on the machine.
        self.server = ApiServer(ServerConfig(token=token, pod_log=self._pod_log))
        # kubectl sends no token without TLS.
        where, names = self.scratch / "certs", certificates.API_SERVER_NAMES
        made = certificates.ensure(where, "127.0.0.1", names)
        context = made.context()
        self.server.background(certificates.keep(where, "127.0.0.1", context, names), "certificate")
        await self.server.start(tls=context)
        self._undo.append(self.server.stop)
        await manifests.install(self.server.core, [*all_crds(), *resource_metrics.crds()])
        kubeconfig.write(self.kubeconfig, kubeconfig.build(self.server.url, token, made.ca))
        self.client = Client(kube_config.load(str(self.kubeconfig)), qps=QPS, burst=BURST, role="koord-sandbox")
        self._undo.append(self.client.close)
        self.informers = InformerFactory(self.client)
        self._undo.append(self.informers.stop)
        self.pods = self.informers.informer(PODS)
        self.nodes = self.informers.informer(NODES)
        reports = self.informers.informer(NODEMETRICS)
        await bootstrap.bootstrap(self.client, self.scenario, strategies=True)
        await self._start_nodes()
        self.informers.start()
        await self.informers.wait_synced()
        self.life.spawn(resource_metrics.ResourceMetrics(self.client, reports).run(), "metrics.k8s.io")

    def _pod_log(self, namespace: str, pod: str, container: str) -> Path | None:
        return self.kubelet.log_path(namespace, pod, container) if self.kubelet is not None else None

    async def _start_nodes(self) -> None:
        nodes = self.scenario.nodes
        self.simulator = Simulator(
            self.client,
            self.informers,
            count=nodes.count,
            cpus=nodes.cpus,
            memory=nodes.memory_gib * 2**30,
            pods_per_node=nodes.pods_per_node,
            namespace=self.scenario.service.namespace,
            period=nodes.period_seconds,
        )
        await self.simulator.start()
        self.life.spawn(self.simulator.run(), "simulated nodes")
        if self.local is None:
            return
        self.kubelet = ProcessKubelet(self.client, self.informers, self.local.groups, log_dir=self.scratch / "logs")
        self._undo.append(self.kubelet.stop)
        await self.kubelet.start()
        self.life.spawn(self.kubelet.heartbeat(), "heartbeat")
        # As on any node something runs from the start: an agent takes an empty list of pods for a kubelet that is not ready.
        await bootstrap.ensure(self.client, PODS, objects.resident_pod(self.kubelet.name), "kube-system")

    async def stop(self) -> None:
        """End the roles, the pods and the server; an error in one does not keep the others running."""
        self.life.stop()
        if self._roles:
            await asyncio.wait(self._roles, timeout=ROLE_SECONDS)
        while self._undo:
            step = self._undo.pop()
            try:
                await step()
            except Exception:
                log.exception("ending the sandbox: %s", getattr(step, "__qualname__", step))

    def say(self, text: str) -> None:
        """A line for the user."""
        self.told(text)

    def endpoint(self, role: str) -> OpsServer:
        """The HTTP server of a role in this process, on a free port, with a recorder of its own; not started yet."""
        recorder = self.recorders[role] = Recorder(role, [self._newest])
        ops = self.ops[role] = OpsServer("127.0.0.1", self.port(role), recorder=recorder, role=role)
        return ops

    def undo(self, step: Callable[[], Awaitable[Any]]) -> None:
        """Take this step when the sandbox ends, before those that were there already."""
        self._undo.append(step)

    def live(self, work: Coroutine[Any, Any, Any], role: str) -> None:
        """Run a role's App for as long as the sandbox lives; at the end it gets a moment to finish by itself."""
        self._roles.append(self.life.spawn(work, role))

    async def serve(self, role: str, app: App) -> None:
        """Open the port of a role and let its App live."""
        ops = self.ops[role]
        await ops.start()
        self.life.on_stop(ops.stop, f"{role}'s HTTP server")
        self.live(app.run(self.life), role)

    def port(self, role: str) -> int:
        """The port of a role (or of a part of it): free when first asked for, and the same ever after."""
        return self.ports.setdefault(role, free_port())

    # --- what the demo and the view ask -------------------------------------------------------------------------------

    def batch_cpu(self, node: str = "local") -> int | None:
        """batch-cpu that a node offers now, milli-CPU; None when it offers none."""
        allocatable = (self.nodes.get(node) or {}).get("status", {}).get("allocatable") or {}
        value = allocatable.get(names.RESOURCE_BATCH_CPU)
        return None if value is None else parse_value(value)

    def offer_terms(self, node: str) -> str:
        """The CPU terms of the manager's last decision on what a node offers; "" where it has decided nothing yet."""
        recorder = self.recorders.get("manager")
        records = recorder.ring.find("Node", "", node, limit=1) if recorder is not None else []
        terms = {term.name: term for term in records[-1].terms} if records else {}
        return ", ".join(f"{word} {amount(name, terms[name].value, terms[name].unit)}" for name, word in OFFER_TERMS if name in terms)

    def decisions(self, began: float) -> list[str]:
        """What the node agent decided on this machine, oldest first, with the seconds since `began` (monotonic)."""
        recorder = self.recorders.get("koordlet")
        if recorder is None or self.kubelet is None:
            return []
        start = time.time() - (time.monotonic() - began)
        records = recorder.ring.find("Node", "", self.kubelet.name, limit=100)
        return [f"{record.time - start:.0f} s: {record.message}" for record in sorted(records, key=lambda record: record.time)]

    async def submit_simulated_batch(self) -> None:
        """Create the scenario's batch pods for the simulated nodes. Raises ApiError."""
        if self.scenario.nodes.count == 0:
            return
        for pod in objects.simulated_batch_pods(self.scenario):
            await bootstrap.ensure(self.client, PODS, pod, pod["metadata"]["namespace"])

    def simulated_batch_done(self) -> bool:
        """Whether every simulated batch pod has a node."""
        mine = [p for p in self.pods.list() if (p["metadata"].get("labels") or {}).get(APP_LABEL) == "etl"]
        return len(mine) >= self.scenario.nodes.batch_pods and all(p["spec"].get("nodeName") for p in mine)

    def simulated_nodes(self) -> list[SimulatedNode]:
        """The simulated nodes by name, with what they report and offer."""
        rows = []
        for node in self.nodes.list():
            name = node["metadata"]["name"]
            if (node["metadata"].get("labels") or {}).get(SANDBOX_LABEL) != "simulated":
                continue
            metric = self.simulator.node_metrics.get(name) or {}
            used = ((metric.get("status") or {}).get("nodeMetric") or {}).get("nodeUsage", {}).get("resources", {}).get("cpu")
            rows.append(
                SimulatedNode(
                    name=name,
                    cpus=parse_value(node["status"]["capacity"]["cpu"]),
                    used=None if used is None else parse_milli(used) / 1000,
                    batch_cpu=self.batch_cpu(name),
                    pods=len(self.pods.by_index("sandbox/node", name)),
                )
            )
        return sorted(rows, key=lambda row: row.name)

    def simulated_totals(self) -> tuple[int, int, int]:
        """(simulated nodes, pods on them, batch-cpu they offer in milli-CPU)."""
        rows = self.simulated_nodes()
        return len(rows), sum(row.pods for row in rows), sum(row.batch_cpu or 0 for row in rows)

    def last_decision(self) -> str:
        """The newest record of the node agent, as a line."""
        newest = self._newest.records.get("koordlet")
        return "" if newest is None else f"{newest.role}: {newest}"

    def frame(self, elapsed: float, phase: str) -> Frame:
        """What the view shows now, without the measurements of the demo."""
        return Frame(
            elapsed=elapsed,
            phase=phase,
            cpus=self.kubelet.machine.cpus if self.kubelet is not None else 0,
            batch_cpu=self.batch_cpu() if self.kubelet is not None else None,
            batch_pods=self._local_batch_pods(),
            last_decision=self.last_decision(),
            nodes=tuple(self.simulated_nodes()),
        )

    def _local_batch_pods(self) -> int:
        if self.kubelet is None:
            return 0
        return sum(
            1
            for pod in self.pods.by_index("sandbox/node", self.kubelet.name)
            if (pod["metadata"].get("labels") or {}).get(APP_LABEL) == "burner" and pod.get("status", {}).get("phase") == "Running"
        )
