"""A node of plain files for tests of strategies and pod policies: samples, pods and the NodeSLO by call. No API server, no kubelet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from koord.api.objects import Node, Pod
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.extensions import Extensions
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.qos.outcome import Outcome, Strategy, check_outcome
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView

NODE = "node-a"


class FakeNode:
    """A host below `base` with cgroup v1, or (`v2`) v2; `cpu` and `memory` are the node's amounts, `register` the function of an extension
    whose NodeSLO extensions are to have their defaults. `slo` is the spec of the NodeSLO. `now` (seconds) moves by hand."""

    def __init__(
        self,
        base: Path,
        *,
        cpu: str = "16",
        memory: str = "64Gi",
        register: Callable[[Extensions], None] | None = None,
        v2: bool = False,
    ) -> None:
        v1_layout = "cpu/kubepods.slice", "cpuset/kubepods.slice", "memory/kubepods.slice", "cpuacct/kubepods.slice", "blkio"
        for directory in ("kubepods.slice",) if v2 else v1_layout:
            (base / "sys/fs/cgroup" / directory).mkdir(parents=True, exist_ok=True)
        if v2:
            (base / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (base / "proc").mkdir(exist_ok=True)
        root = HostRoot.at(str(base))
        self.host = HostState(root, Cgroups.detect(root), HostFiles())
        amounts = {"cpu": cpu, "memory": memory, "pods": "110"}
        self.node = msgspec.convert({"metadata": {"name": NODE}, "status": {"capacity": amounts, "allocatable": amounts}}, Node)
        self.pods: list[PodState] = []
        self.slo: dict[str, Any] = {}
        self.now = 1_700_000_000.0
        self._extensions = Extensions()
        if register is not None:
            register(self._extensions)
        self._store = MetricStore()
        self._metrics = Metrics(NODE)
        self._executor = Executor(self.host, Journal(str(base / "journal")), clock=lambda: self.now)

    def put(self, resource: str, directory: str, text: str) -> None:
        """What a cgroup file holds; `resource` and `directory` as in a Write, `text` as this version of cgroups spells it. The executor
        changes only files that are there."""
        path = Path(self.host.cgroups.file(resource, directory))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def get(self, resource: str, directory: str) -> str:
        """What a cgroup file holds now."""
        return Path(self.host.cgroups.file(resource, directory)).read_text().strip()

    def sample(self, kind: str, value: float, *properties: str) -> None:
        """A measured value of now; `kind` is one of `roles.koordlet.store.kinds`, `properties` whom it is about (a pod's uid, say)."""
        self._store.append(self.now, [(kind, properties, value)])

    def pod(self, name: str, *, qos: str = "", kube_qos: str = "Burstable", **metadata: Any) -> PodState:
        """A running pod with one container, as the kubelet lists it; `qos` is koord's class (LS, BE, …), `kube_qos` that of Kubernetes."""
        labels = {**({"koordinator.sh/qosClass": qos} if qos else {}), **metadata.pop("labels", {})}
        status = {"name": "main", "containerID": f"containerd://{name}", "state": {"running": {}}}
        wire = {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels, **metadata},
            "spec": {"nodeName": NODE, "containers": [{"name": "main"}]},
            "status": {"phase": "Running", "qosClass": kube_qos, "containerStatuses": [status]},
        }
        made = pod_state(msgspec.convert(wire, Pod), self.host.cgroups)
        self.pods.append(made)
        return made

    def snapshot(self) -> Snapshot:
        """The snapshot that a strategy gets now."""
        self.host.files.begin_tick()
        return Snapshot(
            time=self.now,
            node_name=NODE,
            host=self.host,
            node=self.node,
            slo=effective_slo(self.slo, extensions=self._extensions.slo_defaults)[0],
            pods=tuple(self.pods),
            topology=None,
            nrt=None,
            metrics=MetricsView(self._store, self.now),
            collect_interval=1.0,
            pods_synced=True,
            holder=self._executor.holds.holder,
        )

    def decide(self, strategy: Strategy[Any], state: Any = None) -> Outcome[Any]:
        """What a strategy decides now; nothing is written. Raises OutcomeError for what koordlet would refuse."""
        snapshot = self.snapshot()
        assert snapshot.slo is not None
        outcome = strategy.decide(snapshot, snapshot.slo, strategy.initial() if state is None else state, self.now)
        check_outcome(outcome, self._metrics)
        return outcome

    def run(self, strategy: Strategy[Any], state: Any = None) -> Outcome[Any]:
        """What a strategy decides now, carried out by the executor. Raises WriteError for the first write that fails."""
        outcome = self.decide(strategy, state)
        for error in self._executor.apply(outcome.batches, rule=strategy.name, now=self.now).failed:
            raise error
        return outcome
