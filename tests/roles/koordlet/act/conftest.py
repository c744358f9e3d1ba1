"""A machine made of plain files, and what every test of the acting half builds on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.objects import Node, Pod
from koord.api.objects_meta import decoder
from koord.decisions.recorder import Recorder
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import journal_path
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.storage import LocalStorage
from roles.koordlet.host.topology import CPU, CPUTopology, make_topology
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.states.model import HostState, PodState, Snapshot, TopologyState
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import SLO, effective_slo
from roles.koordlet.store import kinds
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from tests.support.realcgroups import Tree


@dataclass
class Machine:
    """A host root in a temporary directory, its cgroup tree, and an executor on it."""

    base: Path
    v2: bool
    root: HostRoot
    host: HostState = field(init=False)
    recorder: Recorder = field(default_factory=lambda: Recorder("koordlet"))
    metrics: Metrics = field(default_factory=lambda: Metrics("node-a"))
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.metrics.node_known = True
        self.host = HostState(self.root, Cgroups.detect(self.root), HostFiles())
        self.journal = Journal(journal_path(self.root))
        self.journal.open()
        self.executor = Executor(self.host, self.journal, metrics=self.metrics, recorder=self.recorder, clock=lambda: self.now)

    def restart(self) -> None:
        """Another life of the agent: of the one before it knows what is on disk."""
        self.journal.close()
        self.__post_init__()

    def put(self, resource: str, directory: str, text: str) -> Path:
        """Make a cgroup file, and its directory."""
        spec = self.host.cgroups.spec(resource)
        parts = (directory, spec.file) if self.v2 and not spec.v1_layout else (spec.subsystem, directory, spec.file)
        path = Path(self.root.cgroup, *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        return path

    def get(self, resource: str, directory: str) -> str:
        return Path(self.host.cgroups.file(resource, directory)).read_text().strip()

    def file(self, path: str, text: str) -> Path:
        """Make a file below the host root."""
        made = self.base / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        return made


def build(base: Path, *, v2: bool = False) -> Machine:
    for sub in ("sys/fs/cgroup", "proc/sys/vm", "var/run/koordlet", "sys/kernel"):
        (base / sub).mkdir(parents=True, exist_ok=True)
    if v2:
        (base / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    for sub in ("", "cpu", "cpuset", "memory", "cpuacct", "blkio", "net_cls"):
        if v2 and sub:
            continue
        os.makedirs(base / "sys/fs/cgroup" / sub / "kubepods.slice", exist_ok=True)
    return Machine(base, v2, HostRoot.at(str(base)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """cgroup v1."""
    return build(tmp_path)


@pytest.fixture
def machine_v2(tmp_path: Path) -> Machine:
    return build(tmp_path, v2=True)


@pytest.fixture(scope="session")
def make_machine() -> Callable[..., Machine]:
    return build


# -- objects -----------------------------------------------------------------------------------------------------------------


def make_pod(
    machine: Machine,
    name: str,
    *,
    qos: str = "",
    kube_qos: str = "Burstable",
    requests: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    containers: int = 1,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    priority: int | None = None,
    phase: str = "Running",
    namespace: str = "default",
    running: bool = True,
) -> PodState:
    """A pod as the kubelet lists it; its containers are c0, c1, … with the same resources."""
    if qos:
        labels = {"koordinator.sh/qosClass": qos, **(labels or {})}
    state: dict[str, Any] = {"running": {}} if running else {"terminated": {"exitCode": 0}}
    wire = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {}, "annotations": annotations or {}},
        "spec": {
            "priority": priority,
            "nodeName": "node-a",
            "containers": [{"name": f"c{i}", "resources": {"requests": requests or {}, "limits": limits or {}}} for i in range(containers)],
        },
        "status": {
            "phase": phase,
            "qosClass": kube_qos,
            "containerStatuses": [{"name": f"c{i}", "containerID": f"containerd://{name}-c{i}", "state": state} for i in range(containers)],
        },
    }
    return pod_state(decoder(Pod)(msgspec.json.encode(wire)), machine.host.cgroups)


def make_node(
    cpu: str = "16",
    memory: str = "64Gi",
    *,
    allocatable: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Node:
    wire = {
        "metadata": {"name": "node-a", "annotations": annotations or {}},
        "status": {"capacity": {"cpu": cpu, "memory": memory}, "allocatable": {"cpu": cpu, "memory": memory, **(allocatable or {})}},
    }
    return decoder(Node)(msgspec.json.encode(wire))


def flat_topology(cpus: int = 16, *, nodes: int = 1, threads: int = 2) -> CPUTopology:
    """CPUs in order: neighbours share a core, equal runs share a NUMA node."""
    per_node = cpus // nodes
    return make_topology(CPU(i, i // threads, i // per_node, i // per_node) for i in range(cpus))


class World:
    """A machine with samples and objects; hands out snapshots."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.store = MetricStore()
        self.leaving: dict[str, float] = {}
        self.now = 1_700_000_000.0
        self.node: Node | None = make_node()
        self.pods: list[PodState] = []
        self.spec: dict[str, Any] | None = {}
        self.topology: CPUTopology | None = flat_topology()
        self.nrt: dict[str, str] | None = {}
        self.storage: LocalStorage | None = None

    def sample(self, kind: str, value: float, *properties: str, ago: float = 0.0) -> None:
        self.store.append(self.now - ago, [(kind, properties, value)])

    def use(self, node: float | None = None, **pods: float) -> None:
        """CPU samples of now: of the node, and of pods by name."""
        if node is not None:
            self.sample(kinds.NODE_CPU, node)
        for name, value in pods.items():
            self.sample(kinds.POD_CPU, value, f"uid-{name}")

    def load(self, node: float, **pods: float) -> None:
        """CPU samples of now of the node and of every pod: 0 for those not named."""
        self.use(node, **{**{p.name: 0.0 for p in self.pods}, **pods})

    def pod(self, name: str, **options: Any) -> PodState:
        made = make_pod(self.machine, name, **options)
        self.pods.append(made)
        return made

    @property
    def slo(self) -> SLO | None:
        return None if self.spec is None else effective_slo(self.spec)[0]

    def snapshot(self, *, fresh: bool = True) -> Snapshot:
        """The picture of now; ``fresh`` reads all files anew."""
        if fresh:
            self.machine.host.files.begin_tick()
        return Snapshot(
            time=self.now,
            node_name="node-a",
            host=self.machine.host,
            node=self.node,
            slo=self.slo,
            pods=tuple(self.pods),
            topology=self.topology,
            nrt=None if self.nrt is None else TopologyState(self.nrt, {}),
            metrics=MetricsView(self.store, self.now),
            collect_interval=1.0,
            pods_synced=True,
            storage=self.storage,
            changed=self.machine.executor.changed,
            holds_ours=self.machine.executor.holds_ours,
            leaving=self.leaving,
        )

    def decide(self, strategy: Strategy[Any], state: Any = None) -> Outcome[Any]:
        snapshot = self.snapshot()
        assert snapshot.slo is not None
        return strategy.decide(snapshot, snapshot.slo, strategy.initial() if state is None else state, self.now)

    def run(self, strategy: Strategy[Any], state: Any = None) -> Any:
        """Decide and carry out; the next state."""
        outcome = self.decide(strategy, state)
        applied = self.machine.executor.apply(outcome.batches, rule=strategy.name, now=self.now)
        assert applied.failed == []
        return outcome.state


def make_gate(*on: str) -> Callable[[str], bool]:
    """Gates that are on, whatever their defaults."""
    return lambda name: name in on


@pytest.fixture
def world(machine: Machine) -> World:
    return World(machine)


@pytest.fixture(scope="session")
def make_world() -> Callable[[Machine], World]:
    return World


@pytest.fixture
def world_v2(machine_v2: Machine) -> World:
    return World(machine_v2)


@pytest.fixture
def tree(machine: Machine) -> Iterator[Tree]:
    """Real cgroup v1 groups behind the machine of files (marker root)."""
    made = Tree(machine)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="session")
def build_topology() -> Callable[..., CPUTopology]:
    return flat_topology


@pytest.fixture(scope="session")
def build_node() -> Callable[..., Node]:
    return make_node


@pytest.fixture(scope="session")
def gates() -> Callable[..., Callable[[str], bool]]:
    return make_gate
