"""koordlet on every layout of a machine that people have (KLO-SYS-01, BEY-JRN-01): it writes where the kernel looks, leaves alone what is
not its own, and puts everything back, seen from wherever.

cgroup v1, v2, hybrid × cgroupfs, systemd × the top, kind's root × containerd, CRI-O, Docker × kubelet's settings × where the machine is
seen: all 288 with KOORD_MATRIX=all. With KOORD_BINARY (a frozen executable) its ``--restore`` puts back, in a mount namespace of its
own. The kernel's own v2 is in tests/vm.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.accounting.cpuset import CPUSet
from koord.api.objects import Node, Pod
from koord.api.objects_meta import decoder
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import journal_path, restore
from roles.koordlet.hooks.asking import Asking
from roles.koordlet.hooks.reconciler import Reconciler
from roles.koordlet.hooks.registry import make_hooks
from roles.koordlet.host.cgroup import BESTEFFORT, CgroupDriver, Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.topology import CPU, make_topology
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options
from roles.koordlet.qos.burst import CPUBurst
from roles.koordlet.qos.suppress import BECPUSuppress
from roles.koordlet.states.model import HostState, PodState, Snapshot, TopologyState
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store import kinds
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from tests.support import patience

CPUS = 8
VERSIONS, DRIVERS, TOPS = ("v1", "v2", "hybrid"), ("cgroupfs", "systemd"), ("", "kubelet")
RUNTIMES, KUBELETS, SEEN = ("containerd", "cri-o", "docker"), ("plain", "static", "no quota", "10 ms"), ("/", "/host")
#: Every fifth layout has each value of each row, and most pairs of values; nightly all of them.
LAYOUTS = list(itertools.product(VERSIONS, DRIVERS, TOPS, RUNTIMES, KUBELETS, SEEN))[:: 1 if os.environ.get("KOORD_MATRIX") == "all" else 5]
V1 = {
    "cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "cpu.cfs_burst_us": "0", "cpu.shares": "1024"},
    "cpuset": {"cpuset.cpus": f"0-{CPUS - 1}"},
    "memory": {"memory.limit_in_bytes": "9223372036854771712"},
}
SCOPES = {"containerd": "cri-containerd-{}.scope", "cri-o": "crio-{}.scope", "docker": "docker-{}.scope"}
"""What runtimes call their groups beside systemd, by their own sources, not koordlet's; so below."""
PLAIN = {"containerd": "{}", "cri-o": "crio-{}", "docker": "{}"}
V2 = {"cpu.max": "max 100000", "cpu.max.burst": "0", "cpu.weight": "100", "cpuset.cpus": f"0-{CPUS - 1}", "memory.max": "max"}


class Layout:
    """One machine. What the kubelet made of it, and one pod of each sort."""

    def __init__(self, base: Path, version: str, driver: str, top: str, runtime: str, kubelet: str) -> None:
        self.base, self.v2, self.runtime, self.kubelet = base, version == "v2", runtime, kubelet
        self.cgroup = base / "sys/fs/cgroup"
        for path in ("proc/sys/kernel/random", "var/run/koordlet"):
            (base / path).mkdir(parents=True)
        (base / "proc/sys/kernel/random/boot_id").write_text("one\n")
        self.cgroup.mkdir(parents=True)
        if self.v2:
            (self.cgroup / "cgroup.controllers").write_text("cpu cpuset memory\n")
        if version == "hybrid":
            (self.cgroup / "unified").mkdir()
            (self.cgroup / "unified/cgroup.controllers").write_text("")
        for sub in () if self.v2 else V1:
            (self.cgroup / sub).mkdir()
        root = HostRoot.at(str(base))
        self.names = Cgroups(root, Cgroups.detect(root).version, CgroupDriver(driver), top)
        self.period = 10_000 if kubelet == "10 ms" else 100_000
        for directory in (self.names.kubepods, self.names.qos_dir("Burstable"), self.names.qos_dir("BestEffort")):
            self.group(directory)
        self.boxes: dict[str, str] = {}
        self.pods = [
            self.pod("web", "LS", "Burstable", "2"),
            self.pod("batch", "BE", "BestEffort"),
            self.pod("pinned", "", "Guaranteed", "2"),
        ]

    def group(self, directory: str, quota: int = -1, cpus: str = f"0-{CPUS - 1}") -> None:
        files = {"": V2} if self.v2 else V1
        for sub, rows in files.items():
            where = self.cgroup / sub / directory
            where.mkdir(parents=True, exist_ok=True)
            for name, text in rows.items():
                text = {
                    "cpu.cfs_quota_us": str(quota), "cpu.cfs_period_us": str(self.period), "cpuset.cpus": cpus,
                    "cpu.max": f"{quota if quota > 0 else 'max'} {self.period}",
                }.get(name, text)  # fmt: skip
                (where / name).write_text(text + "\n")
            if self.v2:
                (where / "cpuset.cpus.effective").write_text(cpus + "\n")

    def pod(self, name: str, qos: str, kube_qos: str, cpu: str = "") -> PodState:
        native = {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": cpu, "memory": "1Gi"}} if cpu else {}
        batch = {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}
        resources = native or {"requests": batch, "limits": batch}
        wire = {
            "metadata": {"name": name, "namespace": "d", "uid": f"aa-{name}", "labels": {"koordinator.sh/qosClass": qos} if qos else {}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": resources}]},
            "status": {
                "phase": "Running", "qosClass": kube_qos,
                "containerStatuses": [{"name": "c", "containerID": f"{self.runtime}://{name}1", "state": {"running": {}}}],
            },
        }  # fmt: skip
        state = pod_state(decoder(Pod)(msgspec.json.encode(wire)), self.names)
        names = (SCOPES if self.names.driver is CgroupDriver.SYSTEMD else PLAIN)[self.runtime]
        quota = int(cpu) * self.period if cpu and self.kubelet != "no quota" else -1
        pinned = "2-3" if self.kubelet == "static" and kube_qos == "Guaranteed" else f"0-{CPUS - 1}"
        self.group(state.cgroup_dir, quota)
        self.boxes[name] = f"{state.cgroup_dir}/{names.format(f'{name}1')}"
        self.group(self.boxes[name], quota, pinned)
        for other in ("sandbox", *(("conmon-sandbox", f"conmon-{name}1") if self.runtime == "cri-o" else ())):
            self.group(f"{state.cgroup_dir}/{names.format(other)}")
        return state

    def limit(self, name: str) -> str:
        """The memory limit of a pod's container."""
        sub, file = ("", "memory.max") if self.v2 else ("memory", "memory.limit_in_bytes")
        return (self.cgroup / sub / self.boxes[name] / file).read_text()

    def values(self) -> dict[str, str]:
        return {str(p.relative_to(self.base)): p.read_text().strip() for p in self.cgroup.rglob("*") if p.is_file()}


class Agent:
    """What a koordlet does in a tick, on a machine that it sees somewhere."""

    def __init__(self, layout: Layout, root: HostRoot) -> None:
        self.host = HostState(root, Cgroups.detect(root), HostFiles())
        self.journal = Journal(journal_path(root), root)
        self.journal.open()
        self.executor = Executor(self.host, self.journal)
        self.pods = tuple(pod_state(pod.pod, self.host.cgroups) for pod in layout.pods)
        self.store = MetricStore()
        for pod in self.pods:
            self.store.append(1000.0, [(kinds.POD_CPU, (pod.uid,), 1.0)])
        self.store.append(1000.0, [(kinds.NODE_CPU, (), 5.0)])
        allocations = '[{"namespace": "d", "name": "pinned", "uid": "aa-pinned", "cpuset": "2-3", "managedByKubelet": true}]'
        static = layout.kubelet == "static"
        self.nrt = {
            "kubelet.koordinator.sh/cpu-manager-policy": '{"policy": "%s"}' % ("static" if static else "none"),
            **({"node.koordinator.sh/pod-cpu-allocs": allocations} if static else {}),
        }

    def snapshot(self, spec: dict[str, Any]) -> Snapshot:
        self.host.files.begin_tick()
        amounts = {"cpu": str(CPUS), "memory": "16Gi"}
        node = {"metadata": {"name": "n"}, "status": {"capacity": amounts, "allocatable": amounts}}
        return Snapshot(
            time=1000.0, node_name="n", host=self.host, node=decoder(Node)(msgspec.json.encode(node)), slo=effective_slo(spec)[0],
            pods=self.pods, topology=make_topology(CPU(i, i // 2, 0, 0) for i in range(CPUS)), nrt=TopologyState(self.nrt, {}),
            metrics=MetricsView(self.store, 1000.0), collect_interval=1.0, pods_synced=True, changed=self.executor.changed,
            holds_ours=self.executor.holds_ours,
        )  # fmt: skip

    def tick(self, spec: dict[str, Any]) -> None:
        snapshot = self.snapshot(spec)
        assert snapshot.slo is not None
        for strategy in (
            BECPUSuppress(Options(), lambda name: name == "BECPUSuppress"),
            CPUBurst(Options(), lambda name: name == "CPUBurst"),
        ):
            outcome: Any = strategy.decide(snapshot, snapshot.slo, strategy.initial(), 1000.0)
            applied = self.executor.apply(outcome.batches, rule=strategy.name, now=1000.0)
            assert applied.failed == []
        hooks = make_hooks(Options(node_name="n"), lambda name: name in ("BatchResource", "CPUSetAllocator"))
        reconciler = Reconciler(asking := Asking(hooks), executor=self.executor, modes=lambda _: Mode.ENFORCE, metrics=Metrics("n"))
        assert asyncio.run(reconciler.run(snapshot, asking.learn(snapshot))).failed == 0

    def killed(self) -> None:
        self.journal.close()
        self.host.files.close_all()


def seen_at(layout: Layout, where: str, tmp_path: Path, number: int) -> HostRoot:
    """The machine's own root, or a mount of it, another one for each process."""
    if where == "/":
        return HostRoot.at(str(layout.base))
    there = tmp_path / f"host{number}"
    there.symlink_to(layout.base)
    return HostRoot.at(str(there))


@pytest.mark.feature("KLO-SYS-01")
@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize(("version", "driver", "top", "runtime", "kubelet", "seen"), LAYOUTS)
def test_any_machine(tmp_path: Path, version: str, driver: str, top: str, runtime: str, kubelet: str, seen: str) -> None:
    layout = Layout(tmp_path / "machine", version, driver, top, runtime, kubelet)
    before = layout.values()
    agent = Agent(layout, seen_at(layout, seen, tmp_path, 0))
    assert agent.host.cgroups.layout == layout.names.layout
    for policy in ("cfsQuota", "cpuset"):
        agent.tick({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": policy}})
        tier = agent.host.cgroups.qos_dir(BESTEFFORT)
        if policy == "cfsQuota":
            quota = Path(agent.host.cgroups.file("cpu.cfs_quota_us", tier)).read_text().split()[0]
            assert quota.isdigit(), "the tier is limited where the kernel looks"
        elif kubelet == "static":
            batch = agent.pods[1].containers[0].cgroup_dir
            cpus = Path(agent.host.cgroups.file("cpuset.cpus", batch)).read_text()
            assert not CPUSet.parse(cpus) & CPUSet.parse("2-3"), "CPUs that the kubelet gave away are nobody else's"
    assert int(layout.limit("batch")) == 1 << 30, "its container is found by the name that the runtime gave it"
    now = layout.values()
    theirs = [path for path in now if "besteffort" not in path and now[path] != before[path]]
    assert [path for path in theirs if not path.endswith("cpuset.cpus")] == [], "limits of others are the kubelet's, whatever its period"
    agent.killed()
    if binary := os.environ.get("KOORD_BINARY"):
        script = f"mkdir -p {tmp_path}/m && mount --bind {layout.base} {tmp_path}/m && {binary} koordlet --restore --host-root={tmp_path}/m"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=patience.seconds(60), check=False
        )
        assert done.returncode == 0, done.stderr
    else:
        result = restore(seen_at(layout, seen, tmp_path, 1))
        assert (result.failed, result.lost, result.theirs) == ([], [], [])
    assert _plain(layout.values()) == _plain(before)


def _plain(values: dict[str, str]) -> dict[str, str]:
    """No limit of memory in the kernel's words and in ours."""
    return {path: "none" if "memory" in path and text in ("-1", "max", "9223372036854771712") else text for path, text in values.items()}
