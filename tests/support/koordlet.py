"""A node for whole-agent tests: an API server, a kubelet, a machine of plain files, and koordlet between them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry

from koord.api.kinds import NODERESOURCETOPOLOGIES, NODES, NODESLOS, PODS
from koord.apiserver.testing import running_server
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from koord.process.metrics import expose
from roles.koordlet.app import App
from roles.koordlet.options import Options
from tests.support import patience

CPUS = 16
GI = 1 << 30
BE_TIER = "kubepods.slice/kubepods-besteffort.slice"
OFF = ("BECPUSuppress", "CPUBurst", "RdtResctrl", "GroupIdentity", "CPUSetAllocator", "BatchResource", "NodeTopologyReport")


def exposed(registry: CollectorRegistry) -> str:
    """A registry's metrics as text."""
    return expose(registry)[0].decode()


class Cluster:
    """An API server with one node, its kubelet, and its machine."""

    def __init__(self, base: Path, client: Any, *, v2: bool = False) -> None:
        self.base, self.client, self.v2 = base, client, v2
        self.kubeconfig = ""
        self.pods: list[dict[str, Any]] = []
        self.classes: dict[str, str] = {}
        """Kubernetes' QoS class by uid."""
        self.kubelet_says: tuple[int, bytes] | None = None
        """What the kubelet answers instead of the pods: status and body."""
        self.use: dict[str, float] = {"node": 1.0}
        self.started = time.monotonic()

    # -- the machine ---------------------------------------------------------------------------------------------------------

    def file(self, path: str, text: str) -> None:
        made = self.base / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)

    def cgroup(self, controller: str, directory: str, name: str, text: str) -> None:
        """Make a cgroup file; on v2 every controller is in one tree."""
        self.file(f"sys/fs/cgroup/{'' if self.v2 else f'{controller}/'}{directory}/{name}", text)

    def read(self, controller: str, directory: str, name: str) -> str:
        """A file's value. A plain file, unlike one of the kernel's, is empty for a moment while a running agent writes it."""
        path = self.base / "sys/fs/cgroup" / ("" if self.v2 else controller) / directory / name
        for _ in patience.tries(20):
            if text := path.read_text().strip():
                return text
            time.sleep(0.005)
        return ""

    def machine(self) -> None:
        for cpu in range(CPUS):
            top = f"sys/devices/system/cpu/cpu{cpu}/topology"
            pair = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
            for name, text in (("core_id", str(cpu // 2)), ("physical_package_id", "0"), ("core_cpus_list", pair)):
                self.file(f"{top}/{name}", text)
            self.file(f"{top}/package_cpus_list", f"0-{CPUS - 1}")
        self.file("sys/devices/system/cpu/online", f"0-{CPUS - 1}")
        self.file("sys/devices/system/node/node0/cpulist", f"0-{CPUS - 1}")
        self.file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 67108864 kB\nNode 0 MemFree: 60000000 kB\n")
        self.memory(10)
        for directory in ("kubepods.slice", BE_TIER, "kubepods.slice/kubepods-burstable.slice"):
            self.directory(directory)
        (self.base / "var/run/koordlet").mkdir(parents=True)

    def memory(self, used_percent: int) -> None:
        total = 64 * 1024 * 1024
        self.file("proc/meminfo", f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {total * (100 - used_percent) // 100} kB\n")

    def directory(self, directory: str, quota: int = -1, memory: int = 0) -> None:
        if self.v2:
            self._directory_v2(directory, quota, memory)
            return
        self.cgroup("cpu", directory, "cpu.cfs_quota_us", str(quota))
        self.cgroup("cpu", directory, "cpu.cfs_period_us", "100000")
        self.cgroup("cpu", directory, "cpu.cfs_burst_us", "0")
        self.cgroup("cpu", directory, "cpu.shares", "1024")
        self.cgroup("cpuset", directory, "cpuset.cpus", f"0-{CPUS - 1}")
        self.cgroup(
            "memory",
            directory,
            "memory.stat",
            f"total_active_anon {memory}\n"
            + "".join(f"total_{k} 0\n" for k in ("cache", "rss", "inactive_file", "active_file", "inactive_anon", "unevictable")),
        )
        for name in ("memory.min", "memory.low", "memory.high"):
            self.cgroup("memory", directory, name, "0")

    def _directory_v2(self, directory: str, quota: int, memory: int) -> None:
        self.file("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids")
        rows = {
            "cpu.max": f"{quota if quota > 0 else 'max'} 100000",
            "cpu.max.burst": "0",
            "cpu.weight": "100",
            "cpuset.cpus": f"0-{CPUS - 1}",
            "cpuset.cpus.effective": f"0-{CPUS - 1}",
            "memory.min": "0",
            "memory.low": "0",
            "memory.high": "max",
            "memory.max": "max",
            "memory.current": str(memory),
            "memory.stat": f"active_anon {memory}\n"
            + "".join(f"{k} 0\n" for k in ("file", "anon", "inactive_file", "active_file", "inactive_anon", "unevictable")),
        }
        for name, text in rows.items():
            self.cgroup("", directory, name, text)

    def _use_of(self, directory: str, used: int, periods: int = 0, throttled: int = 0) -> None:
        """CPU counters of a group: nanoseconds used, CFS periods."""
        if self.v2:
            text = f"usage_usec {used // 1000}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 0\n"
            self.cgroup("cpu", directory, "cpu.stat", text)
            return
        self.cgroup("cpuacct", directory, "cpuacct.usage", str(used))
        if directory != BE_TIER:
            self.cgroup("cpu", directory, "cpu.stat", f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 0\n")

    def counters(self) -> None:
        """Everything that counts up, as of now."""
        seconds = time.monotonic() - self.started
        ticks = int(self.use["node"] * seconds * 100)
        self.file("proc/stat", f"cpu  {100_000 + ticks} 0 0 {1_000_000 + int((CPUS - self.use['node']) * seconds * 100)} 0 0 0 0 0 0\n")
        self._use_of(BE_TIER, int(10**10 + self.use.get("tier", 0.0) * seconds * 1e9))
        for pod in self.pods:
            name = pod["metadata"]["name"]
            used = int(10**10 + self.use.get(name, 0.0) * seconds * 1e9)
            throttled = int(1000 * seconds * self.use.get(f"{name}.throttled", 0.0))
            for directory in self.dirs(pod):
                self._use_of(directory, used, int(1000 * seconds), throttled)

    def dirs(self, pod: dict[str, Any]) -> tuple[str, str]:
        uid = pod["metadata"]["uid"].replace("-", "_")
        tier = pod["status"]["qosClass"].lower()
        parent = f"kubepods.slice/kubepods-{tier}.slice/kubepods-{tier}-pod{uid}.slice"
        return parent, f"{parent}/cri-containerd-{pod['metadata']['name']}.scope"

    def values(self) -> dict[str, str]:
        """All files that the agent may write, but not those that count."""
        skipped = {"cpuacct.usage", "cpu.stat", "memory.stat"}
        root = self.base / "sys/fs/cgroup"
        return {str(p): p.read_text().strip() for p in root.rglob("*") if p.is_file() and p.name not in skipped}

    # -- objects -------------------------------------------------------------------------------------------------------------

    async def node(self, slo: dict[str, Any], **extended: str) -> None:
        resources = {"cpu": str(CPUS), "memory": "64Gi", "pods": "110", **{f"kubernetes.io/{k}": v for k, v in extended.items()}}
        await self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        status = {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        }
        await self.client.patch(NODES, "n1", {"status": status}, subresource="status")
        await self.client.create(
            NODESLOS, {"apiVersion": NODESLOS.api_version, "kind": NODESLOS.kind, "metadata": {"name": "n1"}, "spec": slo}
        )
        nrt = {"apiVersion": NODERESOURCETOPOLOGIES.api_version, "kind": NODERESOURCETOPOLOGIES.kind, "metadata": {"name": "n1"}}
        await self.client.create(NODERESOURCETOPOLOGIES, {**nrt, "topologyPolicies": ["None"], "zones": []})

    async def pod(
        self,
        name: str,
        *,
        qos: str,
        kube_qos: str,
        quota: int = -1,
        memory: int = 0,
        resources: Any = None,
        annotations: dict[str, str] | None = None,
        volumes: list[Any] | None = None,
        **labels: str,
    ) -> Any:
        meta = {"name": name, "namespace": "default", "labels": {"koordinator.sh/qosClass": qos, **labels}}
        wire = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "annotations": annotations or {}},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "main", "image": "i", "resources": resources or {}}],
                "volumes": volumes or [],
            },
        }
        await self.client.create(PODS, wire)
        return await self.running(name, kube_qos=kube_qos, quota=quota, memory=memory)

    async def running(self, name: str, *, kube_qos: str, quota: int = -1, memory: int = 0) -> Any:
        """As if the kubelet had started a pod that is on the node."""
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "main", "containerID": f"containerd://{name}", "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
                 "state": {"running": {}}}
            ],
        }  # fmt: skip
        made = await self.client.patch(PODS, name, {"status": status}, "default", subresource="status")
        self.classes[made["metadata"]["uid"]] = kube_qos
        self.classify(made)
        self.pods.append(made)
        for directory in self.dirs(made):
            self.directory(directory, quota, memory)
        return made

    def classify(self, pod: dict[str, Any]) -> None:
        """The class as the kubelet sees it: stories need not ask for the resources that make it so."""
        if (kube_qos := self.classes.get(pod["metadata"]["uid"])) is not None:
            pod["status"]["qosClass"] = kube_qos

    async def evicted(self, name: str) -> bool:
        pod = await self.client.get(PODS, name, "default")
        return pod["metadata"].get("deletionTimestamp") is not None


@contextlib.asynccontextmanager
async def kubelet(cluster: Cluster) -> AsyncIterator[int]:
    async def pods(_: web.Request) -> web.Response:
        if cluster.kubelet_says is not None:
            return web.Response(status=cluster.kubelet_says[0], body=cluster.kubelet_says[1])
        listed = [p for p in (await cluster.client.list(PODS)).items if p["spec"].get("nodeName") == "n1"]
        for pod in listed:
            cluster.classify(pod)
        return web.Response(body=orjson.dumps({"kind": "PodList", "items": listed}))

    async def config(_: web.Request) -> web.Response:
        return web.json_response({"kubeletconfig": {"cpuManagerPolicy": "none"}})

    app = web.Application()
    app.router.add_get("/pods/", pods)
    app.router.add_get("/configz", config)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def agent(cluster: Cluster, *gates: str, **options: Any) -> AsyncIterator[App]:
    """A running koordlet with only the given gates on."""
    async with kubelet(cluster) as port:
        opts = Options(
            host_root=str(cluster.base),
            node_name="n1",
            kubelet_insecure_tls=True,
            kubelet_read_only_port=port,
            kubelet_sync_interval=1.0,
            tsdb_path="",
            prediction_checkpoint_filepath=str(cluster.base / "checkpoints"),
            runtime_hooks_addr=str(cluster.base / "var/run/koordlet/koordlet.sock"),
            only_evict_by_api=True,
            feature_gates=",".join([*(f"{g}=false" for g in OFF if g not in gates), *(f"{g}=true" for g in gates)]),
            **options,
        )
        informers, life = InformerFactory(cluster.client), Life()
        app = App(opts, client=cluster.client, informers=informers, recorder=Recorder("koordlet"), ops=OpsServer("127.0.0.1", 0))

        async def move() -> None:
            while True:
                cluster.counters()
                await asyncio.sleep(0.1)

        mover = asyncio.create_task(move())
        running = asyncio.create_task(app.run(life))
        try:
            yield app
        finally:
            life.stop()
            await asyncio.wait_for(running, patience.seconds(10))
            await life.finish()
            mover.cancel()
            await informers.stop()
        assert life.failure == ""
        cluster.options = opts


async def until(check: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + patience.seconds(seconds)
    while True:
        result = check()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < end, f"{what} did not come about"
        await asyncio.sleep(0.1)


def run(tmp_path: Path, story: Callable[[Cluster], Any], *, v2: bool = False) -> None:
    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            cluster = Cluster(tmp_path, client, v2=v2)
            cluster.kubeconfig = str(server.kubeconfig_path)
            cluster.machine()
            await story(cluster)

    asyncio.run(main())
