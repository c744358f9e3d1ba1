"""The whole agent on this machine's own cgroups with hostile pods beside others; run in a mount namespace of its own, as root.

usage: python -m tests.support.hostilehost hostile|clean   prints what every group and process has in the end, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from koord.api import names
from koord.apiserver.testing import running_server
from roles.sandbox import mounts
from roles.sandbox.hostile import ATTACKS
from tests.support import patience
from tests.support.koordlet import BE_TIER, Cluster, agent, until

CONTROLLERS = tuple(name for name in ("cpu", "cpuacct", "cpuset", "memory", "blkio") if Path("/sys/fs/cgroup", name).is_dir())
FILES = ("cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.shares", "cpu.idle", "cpuset.cpus", "memory.limit_in_bytes",
         "memory.soft_limit_in_bytes", "memory.oom_control", "memory.min", "memory.low", "memory.high", "blkio.bfq.weight", "blkio.weight",
         "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")  # fmt: skip
LIMIT = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "128Mi"}}
WHOLE = {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}
SLO = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"},
    "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300},
    "resourceQOSStrategy": {
        "lsClass": {
            "memoryQOS": {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 50},
            "cpuQOS": {"enable": True, "groupIdentity": 2},
        },
        "beClass": {"memoryQOS": {"enable": True}},
    },
}
BURN = "import time\nend = time.time() + 90\nwhile time.time() < end: pass"


class Real(Cluster):
    """Groups of the kernel's instead of files; everything else of the machine is files."""

    def __init__(self, base: Path, client: Any, name: str) -> None:
        super().__init__(base, client)
        self.name = name
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.cpus = os.cpu_count() or 1
        for controller in CONTROLLERS:
            target = base / "sys/fs/cgroup" / controller
            target.mkdir(parents=True)
            real = Path("/sys/fs/cgroup", controller, name)
            real.mkdir()
            if controller == "cpuset":
                self._inherit(real)
            mounts.bind(real, target)

    @staticmethod
    def _inherit(directory: Path) -> None:
        for name in ("cpuset.cpus", "cpuset.mems"):
            (directory / name).write_bytes((directory.parent / name).read_bytes())

    def machine(self) -> None:
        for cpu in range(self.cpus):
            top = f"sys/devices/system/cpu/cpu{cpu}/topology"
            for name, text in (("core_id", cpu), ("physical_package_id", 0), ("core_cpus_list", cpu)):
                self.file(f"{top}/{name}", str(text))
            self.file(f"{top}/package_cpus_list", f"0-{self.cpus - 1}")
        for name in ("sys/devices/system/cpu/online", "sys/devices/system/node/node0/cpulist"):
            self.file(name, f"0-{self.cpus - 1}")
        self.file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 67108864 kB\nNode 0 MemFree: 60000000 kB\n")
        for directory in ("kubepods.slice", BE_TIER, "kubepods.slice/kubepods-burstable.slice"):
            self.directory(directory)
        (self.base / "var/run/koordlet").mkdir(parents=True)

    def directory(self, directory: str, quota: int = -1, memory: int = 0) -> None:
        for controller in CONTROLLERS:
            path = self.base / "sys/fs/cgroup" / controller
            for part in directory.split("/"):
                path = path / part
                if not path.exists():
                    path.mkdir()
                    if controller == "cpuset":
                        self._inherit(path)
        (self.base / "sys/fs/cgroup/cpu" / directory / "cpu.cfs_quota_us").write_text(str(quota))

    def dirs(self, pod: dict[str, Any]) -> tuple[str, str]:
        if pod["status"]["qosClass"] != "Guaranteed":
            return super().dirs(pod)
        parent = f"kubepods.slice/kubepods-pod{pod['metadata']['uid'].replace('-', '_')}.slice"
        return parent, f"{parent}/cri-containerd-{pod['metadata']['name']}.scope"

    def counters(self) -> None:
        """The kernel counts."""

    def run(self, pod: Any, program: str) -> None:
        """A process in the pod's container."""
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes[pod["metadata"]["name"]] = child
        for controller in CONTROLLERS:
            (self.base / "sys/fs/cgroup" / controller / self.dirs(pod)[1] / "cgroup.procs").write_text(str(child.pid))

    def values_of(self, directory: str) -> dict[str, str]:
        found = {}
        for controller in CONTROLLERS:
            for name in FILES:
                with contextlib.suppress(OSError):
                    found[name] = (self.base / "sys/fs/cgroup" / controller / directory / name).read_text().strip()
        return found

    def end(self) -> None:
        for child in self.processes.values():
            child.kill()
            child.wait()
        for controller in CONTROLLERS:
            mounts._libc().umount2(os.fsencode(self.base / "sys/fs/cgroup" / controller), mounts.MNT_DETACH)
            root = Path("/sys/fs/cgroup", controller, self.name)
            for path in sorted((p for p in root.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
                _rmdir(path)
            _rmdir(root)


def _rmdir(path: Path) -> None:
    for _ in patience.tries(100):
        with contextlib.suppress(OSError):
            path.rmdir()
            return
        time.sleep(0.02)


async def story(c: Real, hostile: bool) -> dict[str, Any]:
    """Three pods of others and as many hostile ones as there are attacks; what all of them have when the agent has done its rounds."""
    await c.node(SLO)
    exclusive = {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0"}'}
    others = [
        await c.pod("exclusive", qos="LSR", kube_qos="Guaranteed", quota=100_000, resources=WHOLE, annotations=exclusive),
        await c.pod("service", qos="LS", kube_qos="Burstable", quota=50_000, resources=LIMIT),
        await c.pod("batch", qos="BE", kube_qos="BestEffort"),
    ]
    pods = []
    for attack in ATTACKS:
        given, labels = (attack.annotations, attack.labels) if hostile else ({}, {})
        name = f"h-{attack.name}"
        pods.append(await c.pod(name, qos="LS", kube_qos="Burstable", quota=10_000, resources=LIMIT, annotations=given, **labels))
    for pod in (*others, *pods):
        burns = pod["metadata"]["name"] in ("h-burst-auto-1000000", "h-burst-in-bounds", "h-cpus-1", "h-memory-in-bounds")
        c.run(pod, BURN if burns else "import time; time.sleep(90)")
    before = {name: _score(child.pid) for name, child in c.processes.items()}
    on = ("CPUSetAllocator", "CPUBurst", "CgroupReconcile", "BlkIOReconcile", "BatchResource", "GroupIdentity", "NodeTopologyReport",
          "BECPUSuppress", "OOMScoreAdj", "CoreSched", "RdtResctrl")  # fmt: skip
    async with agent(c, *on, proc_root_dir="/proc", runtime_hooks_reconcile_interval=1.0) as app:
        await until(lambda: hasattr(app, "pod_cache") and len(app.pod_cache.pods) == len(pods) + len(others), "all pods", 60)
        pool = f"1-{c.cpus - 1}" if c.cpus > 2 else "1"
        await until(lambda: c.values_of(c.dirs(others[1])[1])["cpuset.cpus"] == pool, "the service is kept off the exclusive CPU", 60)
        if hostile:

            def told() -> int:
                records = [r for pod in app.pod_cache.pods for r in app.recorder.ring.find("Pod", pod.namespace, pod.name)]
                return len({r.subject.name for r in records if r.verdict == "Ignored"})

            await until(lambda: told() >= 25, "what is ignored is on record", 60)
        await asyncio.sleep(8.0)  # some rounds of every strategy
        tiers = ("", "kubepods.slice", BE_TIER, "kubepods.slice/kubepods-burstable.slice")
        return {
            "tiers": {tier: c.values_of(tier) for tier in tiers},
            "others": {p["metadata"]["name"]: [c.values_of(directory) for directory in c.dirs(p)] for p in others},
            "hostile": {p["metadata"]["name"]: [c.values_of(directory) for directory in c.dirs(p)] for p in pods},
            "scores": {name: [before[name], _score(child.pid)] for name, child in c.processes.items()},
            "events": [] if not hostile else [told()],
        }


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def main(hostile: bool) -> dict[str, Any]:
    mounts.private_namespace()
    with tempfile.TemporaryDirectory(prefix="koord-hostile-") as directory:
        async with running_server(crds=True) as server, server.client() as client:
            cluster = Real(Path(directory), client, f"koord-hostile-{os.getpid()}")
            try:
                cluster.machine()
                return await story(cluster, hostile)
            finally:
                cluster.end()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1] == "hostile"))))
