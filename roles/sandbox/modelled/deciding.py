"""What koord decides on the calculated node: the manager's formula and koordlet's suppression themselves, on figures of the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from koord.api.objects import Node, Pod
from koord.api.objects_meta import decoder
from koord.decisions.record import Record
from roles.koordlet.host.cgroup import BESTEFFORT, Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.topology import CPU, make_topology
from roles.koordlet.options import Options
from roles.koordlet.qos.suppress import BECPUSuppress, SuppressState
from roles.koordlet.states.model import HostState, Snapshot
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store import kinds
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from roles.manager.noderesource.formula import Balance

PERIOD_US = 100_000


def offered(cpus: int, reclaim_percent: int, used: float) -> int:
    """batch-cpu in milli-CPU of a node whose services use so many cores, by the manager's formula."""
    return Balance(
        policy="usage", total=cpus * 1000, reclaim_percent=reclaim_percent, cap=None, reserved=0, system=0, used=int(used * 1000),
        request=0, max=0,
    ).amount  # fmt: skip


class Agent:
    """koordlet's suppression strategy on a machine that is one directory. `pods` are as a kubelet lists them."""

    def __init__(self, directory: Path, node: str, cpus: int, threshold: dict[str, Any], pods: Sequence[dict[str, Any]]) -> None:
        self.name = node
        root = HostRoot.at(str(directory))
        for name in ("cpu", "cpuset", "memory", "cpuacct"):
            (directory / "sys/fs/cgroup" / name / "kubepods").mkdir(parents=True, exist_ok=True)
        self.host = HostState(root, Cgroups.detect(root), HostFiles())
        self.tier = self.host.cgroups.qos_dir(BESTEFFORT)
        self.file = Path(self.host.cgroups.file("cpu.cfs_quota_us", self.tier))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("-1\n")
        self.slo = effective_slo({"resourceUsedThresholdWithBE": threshold})[0]
        amount = {"cpu": str(cpus), "memory": "8Gi"}
        self.node = decoder(Node)(msgspec.json.encode({"metadata": {"name": node}, "status": {"capacity": amount, "allocatable": amount}}))
        self.pods = tuple(pod_state(decoder(Pod)(msgspec.json.encode(pod)), self.host.cgroups) for pod in pods)
        self.topology = make_topology(CPU(index, index, 0, 0) for index in range(cpus))
        self.store = MetricStore()
        self.strategy = BECPUSuppress(Options(), lambda gate: gate == "BECPUSuppress")
        self.state: SuppressState = self.strategy.initial()
        self.records: list[Record] = []

    def decide(self, now: float, service: float, batch: float) -> float | None:
        """One tick: the cores that service and batch jobs used since the last. Returns the tier's quota in cores, None for no limit."""
        samples: list[tuple[str, tuple[str, ...], float]] = [(kinds.NODE_CPU, (), service + batch)]
        for used, group in ((batch, [p for p in self.pods if p.best_effort]), (service, [p for p in self.pods if not p.best_effort])):
            samples += [(kinds.POD_CPU, (pod.uid,), used / len(group)) for pod in group]
        self.store.append(now, samples)
        self.host.files.begin_tick()
        snapshot = Snapshot(
            time=now,
            node_name=self.name,
            host=self.host,
            node=self.node,
            slo=self.slo,
            pods=self.pods,
            topology=self.topology,
            nrt=None,
            metrics=MetricsView(self.store, now),
            collect_interval=1.0,
            pods_synced=True,
        )
        outcome = self.strategy.decide(snapshot, self.slo, self.state, now)
        self.state = outcome.state
        self.records += outcome.records
        for write in (write for writes in outcome.batches for write in writes):
            if write.target == self.tier and write.resource == "cpu.cfs_quota_us":
                self.file.write_text(f"{write.value}\n")
        quota = int(self.file.read_text())
        return None if quota < 0 else quota / PERIOD_US


def listed(name: str, namespace: str, uid: str, qos: str) -> dict[str, Any]:
    """A running pod as a kubelet lists it, service or best effort (BE)."""
    status = {"name": "main", "containerID": f"containerd://{name}", "state": {"running": {}}}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "labels": {"koordinator.sh/qosClass": qos}},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort" if qos == "BE" else "Burstable", "containerStatuses": [status]},
    }
