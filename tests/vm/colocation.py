"""Runs inside the virtual machine: a service beside batch jobs on cgroup v2, unmanaged (A) and under koordlet's own code (B), in turns.

Prints one line of JSON: the service alone, then a row a phase. A: the jobs are ordinary pods of as much CPU as the service asked for. B:
the same jobs are best-effort pods; koordlet's collectors, its suppression and its executor run once a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from koord.api.objects import Node, Pod
from koord.api.objects_meta import decoder
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import journal_path, restore
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options
from roles.koordlet.qos.suppress import BECPUSuppress
from roles.koordlet.sensing.base import Round, SensingContext
from roles.koordlet.sensing.be import BECollector
from roles.koordlet.sensing.node import NodeCollector
from roles.koordlet.sensing.nodeinfo import CPU_INFO, NodeInfoCollector
from roles.koordlet.sensing.pods import PodsCollector
from roles.koordlet.states.model import HostState, PodState, Snapshot, TopologyState
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = "+cpu +cpuset +memory +io"
PAIRS, SECONDS, EVERY, HOGS = 6, 10.0, 0.05, 4
SPEC = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 80}}
#: One request each 50 ms by the clock, whether or not the one before is done; latency counts from when it was due.
SERVICE = f"""
import json, sys, time
seconds = float(sys.argv[1])
def work():
    for _ in range(4000): pass
out, due = [], time.perf_counter()
end = due + seconds
while due < end:
    wait = due - time.perf_counter()
    if wait > 0: time.sleep(wait)
    work()
    out.append(time.perf_counter() - due)
    due += {EVERY}
print(json.dumps(out))
"""


def wire(name: str, qos: str, groups: Cgroups) -> PodState:
    labels = {"koordinator.sh/qosClass": "BE"} if qos == "BestEffort" else {}
    text = {
        "metadata": {"name": name, "namespace": "d", "uid": f"u-{name}", "labels": labels},
        "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        "status": {
            "phase": "Running", "qosClass": qos,
            "containerStatuses": [{"name": "c", "containerID": f"containerd://{name}", "state": {"running": {}}}],
        },
    }  # fmt: skip
    return pod_state(decoder(Pod)(json.dumps(text).encode()), groups)


class Guest:
    def __init__(self) -> None:
        (ROOT / "cgroup.subtree_control").write_text(CONTROLLERS)
        for directory in ("kubepods.slice", "kubepods.slice/kubepods-burstable.slice", "kubepods.slice/kubepods-besteffort.slice"):
            self._make(directory)
        self.root = HostRoot.at("/")
        groups = Cgroups.detect(self.root)
        self.host = HostState(self.root, groups, HostFiles())
        self.web, self.plain = (wire(name, "Burstable", groups) for name in ("web", "plain"))
        self.batch = wire("batch", "BestEffort", groups)
        for pod in (self.web, self.plain, self.batch):
            self._make(pod.cgroup_dir)
            (ROOT / pod.containers[0].cgroup_dir).mkdir()
        # as a kubelet sets them: a request of half a core each, and none
        for pod in (self.web, self.plain):
            (ROOT / pod.cgroup_dir / "cpu.weight").write_text("20")
        (ROOT / "kubepods.slice/kubepods-burstable.slice/cpu.weight").write_text("39")
        (ROOT / "kubepods.slice/kubepods-besteffort.slice/cpu.weight").write_text("1")
        os.makedirs("/var/run/koordlet", exist_ok=True)

    def _make(self, directory: str) -> None:
        (ROOT / directory).mkdir()
        (ROOT / directory / "cgroup.subtree_control").write_text(CONTROLLERS)

    def _start(self, pod: PodState, *command: str) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, "-S", "-c", *command], stdout=subprocess.PIPE, text=True)
        (ROOT / pod.containers[0].cgroup_dir / "cgroup.procs").write_text(str(child.pid))
        return child

    def _used(self, pod: PodState) -> float:
        line = (ROOT / pod.cgroup_dir / "cpu.stat").read_text().split("\n")[0]
        return int(line.split()[1]) / 1e6

    def phase(self, jobs: PodState | None, *, managed: bool) -> dict[str, Any]:
        hogs = [self._start(jobs, "while True: pass") for _ in range(HOGS)] if jobs is not None else []
        agent = Agent(self, (self.web, self.batch)) if managed else None
        try:
            for _ in range(3):  # until the agent has seen a rate, and as long without one
                time.sleep(1.0)
                if agent is not None:
                    agent.tick()
            used, began = self._used(jobs) if jobs is not None else 0.0, time.monotonic()
            service = self._start(self.web, SERVICE, str(SECONDS))
            while service.poll() is None and time.monotonic() - began < SECONDS - 0.5:
                time.sleep(1.0)
                if agent is not None:
                    agent.tick()
            out, _ = service.communicate()
            took = time.monotonic() - began
            cores = (self._used(jobs) - used) / took if jobs is not None else 0.0
            latencies = sorted(json.loads(out))
            return {"p50": latencies[len(latencies) // 2], "p99": latencies[int(len(latencies) * 0.99)], "jobs": cores}
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
            if agent is not None:
                agent.end()


class Agent:
    """What koordlet does in a tick, on the machine's own files."""

    def __init__(self, guest: Guest, pods: tuple[PodState, ...]) -> None:
        self.guest, self.pods = guest, pods
        self.journal = Journal(journal_path(guest.root), guest.root)
        self.journal.open()
        self.executor = Executor(guest.host, self.journal)
        self.store, self.slo = MetricStore(), effective_slo(SPEC)[0]
        context = SensingContext(
            guest.host, self.store, Metrics("n"), lambda: pods, lambda: self.slo, lambda: "", lambda _: True,
        )  # fmt: skip
        self.collectors = (NodeInfoCollector(context, 60.0), NodeCollector(context), PodsCollector(context), BECollector(context))
        self.strategy = BECPUSuppress(Options(), lambda name: name == "BECPUSuppress")
        self.state = self.strategy.initial()
        amounts = {"cpu": str(os.cpu_count()), "memory": "512Mi"}
        node = {"metadata": {"name": "n"}, "status": {"capacity": amounts, "allocatable": amounts}}
        self.node = decoder(Node)(json.dumps(node).encode())

    def tick(self) -> None:
        now, mono = time.time(), time.monotonic()
        self.guest.host.files.begin_tick()
        for collector in self.collectors:
            collector.run(Round(now, mono))
        assert self.slo is not None
        snapshot = Snapshot(
            time=now, node_name="n", host=self.guest.host, node=self.node, slo=self.slo, pods=self.pods,
            topology=self.store.snapshot(CPU_INFO), nrt=TopologyState({}, {}), metrics=MetricsView(self.store, now),
            collect_interval=1.0, pods_synced=True, changed=self.executor.changed,
        )  # fmt: skip
        outcome = self.strategy.decide(snapshot, self.slo, self.state, now)
        self.state = outcome.state
        failed = self.executor.apply(outcome.batches, rule="BECPUSuppress", now=now).failed
        if failed:
            raise RuntimeError(str(failed[0]))

    def end(self) -> None:
        self.journal.close()
        left = restore(self.guest.root)
        if left.failed or left.lost:
            raise RuntimeError(f"not put back: {left.failed} {left.lost}")


def main() -> None:
    found: dict[str, Any] = {}
    try:
        guest = Guest()
        found["alone"] = guest.phase(None, managed=False)
        found["A"], found["B"] = [], []
        for _ in range(PAIRS):
            found["A"].append(guest.phase(guest.plain, managed=False))
            found["B"].append(guest.phase(guest.batch, managed=True))
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    print(f"RESULT {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
