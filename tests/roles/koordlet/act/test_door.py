"""The whole agent against an API server and a machine of plain files: objects in, files and evictions out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from koord.api.kinds import EVENTS, NODERESOURCETOPOLOGIES, NODES, NODESLOS, PODDISRUPTIONBUDGETS, PODS
from koord.apiserver.testing import running_server
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.koordlet.app import App
from roles.koordlet.app import restore as restore_command
from roles.koordlet.options import Options

CPUS = 16
GI = 1 << 30
BE_TIER = "kubepods.slice/kubepods-besteffort.slice"
OFF = ("BECPUSuppress", "CPUBurst", "RdtResctrl", "GroupIdentity", "CPUSetAllocator", "BatchResource", "NodeTopologyReport")


class Cluster:
    """An API server with one node, its kubelet, and its machine."""

    def __init__(self, base: Path, client: Any) -> None:
        self.base, self.client = base, client
        self.pods: list[dict[str, Any]] = []
        self.use: dict[str, float] = {"node": 1.0}
        self.started = time.monotonic()

    # -- the machine ---------------------------------------------------------------------------------------------------------

    def file(self, path: str, text: str) -> None:
        made = self.base / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)

    def cgroup(self, controller: str, directory: str, name: str, text: str) -> None:
        self.file(f"sys/fs/cgroup/{controller}/{directory}/{name}", text)

    def read(self, controller: str, directory: str, name: str) -> str:
        return (self.base / "sys/fs/cgroup" / controller / directory / name).read_text().strip()

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

    def counters(self) -> None:
        """Everything that counts up, as of now."""
        seconds = time.monotonic() - self.started
        ticks = int(self.use["node"] * seconds * 100)
        self.file("proc/stat", f"cpu  {100_000 + ticks} 0 0 {1_000_000 + int((CPUS - self.use['node']) * seconds * 100)} 0 0 0 0 0 0\n")
        self.cgroup("cpuacct", BE_TIER, "cpuacct.usage", str(int(10**10 + self.use.get("tier", 0.0) * seconds * 1e9)))
        for pod in self.pods:
            name = pod["metadata"]["name"]
            used = int(10**10 + self.use.get(name, 0.0) * seconds * 1e9)
            throttled = int(1000 * seconds * self.use.get(f"{name}.throttled", 0.0))
            for directory in self.dirs(pod):
                self.cgroup("cpuacct", directory, "cpuacct.usage", str(used))
                self.cgroup("cpu", directory, "cpu.stat", f"nr_periods {int(1000 * seconds)}\nnr_throttled {throttled}\nthrottled_time 0\n")

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
        self, name: str, *, qos: str, kube_qos: str, quota: int = -1, memory: int = 0, resources: Any = None, **labels: str
    ) -> Any:
        wire = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"koordinator.sh/qosClass": qos, **labels}},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "i", "resources": resources or {}}]},
        }
        made = await self.client.create(PODS, wire)
        status = {
            "phase": "Running",
            "qosClass": kube_qos,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "main", "containerID": f"containerd://{name}", "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
                 "state": {"running": {}}}
            ],
        }  # fmt: skip
        made = await self.client.patch(PODS, name, {"status": status}, "default", subresource="status")
        self.pods.append(made)
        for directory in self.dirs(made):
            self.directory(directory, quota, memory)
        return made

    async def evicted(self, name: str) -> bool:
        pod = await self.client.get(PODS, name, "default")
        return pod["metadata"].get("deletionTimestamp") is not None


@contextlib.asynccontextmanager
async def kubelet(cluster: Cluster) -> AsyncIterator[int]:
    async def pods(_: web.Request) -> web.Response:
        listed = [p for p in (await cluster.client.list(PODS)).items if p["spec"].get("nodeName") == "n1"]
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
            await asyncio.wait_for(running, 10)
            await life.finish()
            mover.cancel()
            await informers.stop()
        assert life.failure == ""
        cluster.options = opts


async def until(check: Callable[[], Any], what: str, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while True:
        result = check()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < end, f"{what} did not come about"
        await asyncio.sleep(0.1)


def run(tmp_path: Path, story: Callable[[Cluster], Any]) -> None:
    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            cluster = Cluster(tmp_path, client)
            cluster.machine()
            await story(cluster)

    asyncio.run(main())


@pytest.mark.feature("KA-SLO-01")
@pytest.mark.feature("KA-SUP-01")
@pytest.mark.feature("KA-SUP-02")
@pytest.mark.feature("KA-SUP-03")
@pytest.mark.feature("KA-BST-01")
@pytest.mark.feature("KA-BST-02")
@pytest.mark.feature("KA-MEM-01")
@pytest.mark.feature("KA-EXE-01")
@pytest.mark.feature("BEY-JRN-01")
def test_a_node_under_load_and_back(tmp_path) -> None:
    """Suppress by quota, then by cpuset, burst, memory protection; afterwards everything is as it was."""

    async def story(c: Cluster) -> None:
        threshold = {"enable": True, "cpuSuppressPolicy": "cfsQuota"}
        spec = {
            "resourceUsedThresholdWithBE": threshold,
            "cpuBurstStrategy": {"policy": "cfsQuotaBurstOnly", "cfsQuotaBurstPercent": 150},
            "resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}},
        }
        await c.node(spec)
        limits = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
        ls = await c.pod("ls", qos="LS", kube_qos="Burstable", quota=100_000, resources=limits)
        be = await c.pod("be", qos="BE", kube_qos="BestEffort")
        before = c.values()
        c.use.update({"node": 6.4, "ls": 5.0, "be": 1.0, "ls.throttled": 0.3})
        async with agent(c, "BECPUSuppress", "CPUBurst", "CgroupReconcile") as app:

            def quota() -> int:
                return int(c.read("cpu", BE_TIER, "cpu.cfs_quota_us"))

            # 16 × 65 % − 5 (ls) − 0.4 (system)
            await until(lambda: abs(quota() - 500_000) < 20_000, "the quota of the tier")
            await until(lambda: c.read("cpu", c.dirs(ls)[1], "cpu.cfs_quota_us") == "150000", "the burst of the throttled container")
            assert c.read("memory", c.dirs(ls)[1], "memory.min") == str(GI // 2)
            assert c.read("memory", "kubepods.slice", "memory.min") == str(GI // 2)

            await c.client.patch(NODESLOS, "n1", {"spec": {"resourceUsedThresholdWithBE": {"cpuSuppressPolicy": "cpuset"}}})
            await until(lambda: quota() == -1, "the quota given back")
            await until(lambda: c.read("cpuset", c.dirs(be)[1], "cpuset.cpus") in {"0-4", "0-5"}, "the CPUs of the tier")

            why = app.recorder.ring.find("Pod", "default", "be")[-1]
            assert (why.verdict, why.rule) == ("Suppressed", "BECPUSuppress")
            assert {"allowance_milli", "threshold_percent", "non_be_pods_milli"} <= set(why.numbers)

            await c.client.patch(NODESLOS, "n1", {"spec": {"resourceUsedThresholdWithBE": {"enable": False}}})
            await until(lambda: c.read("cpuset", c.dirs(be)[1], "cpuset.cpus") == "0-15", "the CPUs given back")
        assert c.values() != before
        assert restore_command(c.options) == 0
        assert c.values() == before

    run(tmp_path, story)


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.feature("KA-MEV-01")
def test_memory_eviction_through_the_api_honours_disruption_budgets(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70}})
        c.memory(72)
        await c.pod("big", qos="BE", kube_qos="BestEffort", memory=5 * GI, app="guarded")
        await c.pod("middle", qos="BE", kube_qos="BestEffort", memory=4 * GI)
        await c.pod("small", qos="BE", kube_qos="BestEffort", memory=1 * GI)
        await c.pod("ls", qos="LS", kube_qos="Burstable", memory=20 * GI)
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guard", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        }
        await c.client.create(PODDISRUPTIONBUDGETS, budget)
        async with agent(c, "BEMemoryEvict") as app:
            await until(lambda: c.evicted("middle"), "the eviction of the second")
            c.memory(10)
            await asyncio.sleep(1.5)
            assert [await c.evicted(n) for n in ("big", "small", "ls")] == [False, False, False]

            async def told() -> bool:
                events = (await c.client.list(EVENTS, "default")).items
                return {"evictPodFail", "evictPodSuccess"} <= {e["reason"] for e in events}

            await until(told, "events about both")
            verdicts = {r.subject.name: r.verdict for r in app.recorder.ring.find("Pod") if r.rule == "BEMemoryEvict"}
            assert verdicts == {"big": "EvictionRefused", "middle": "Evicted"}
            assert 'koordlet_pod_eviction{node="n1",reason="evicted"} 1' in app.metrics.internal_text()

    run(tmp_path, story)


@pytest.mark.feature("BEY-MODE-01")
@pytest.mark.feature("KA-CEV-02")
@pytest.mark.feature("KA-MEV-02")
def test_observe_mode_touches_nothing(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        threshold = {
            "enable": True,
            "memoryEvictThresholdPercent": 50,
            "cpuEvictThresholdPercent": 30,
            "evictEnabledPriorityThreshold": 9999,
        }
        await c.node({"resourceUsedThresholdWithBE": threshold})
        c.memory(60)
        be = await c.pod("be", qos="BE", kube_qos="BestEffort", memory=9 * GI, **{"koordinator.sh/eviction-enabled": "true"})
        c.use.update({"node": 9.0, "be": 8.0})
        before = c.values()
        gates = ("BECPUSuppress", "MemoryEvict", "CPUEvict")
        async with agent(c, *gates, mode="observe", cpu_evict_cool_time_seconds=1) as app:

            def verdicts() -> set[tuple[str, str]]:
                return {(r.rule, r.verdict) for r in app.recorder.ring.find("Pod", "default", "be")}

            wanted = {("BECPUSuppress", "WouldSuppress"), ("MemoryEvict", "WouldEvict"), ("CPUEvict", "WouldEvict")}
            await until(lambda: wanted <= verdicts(), "records of all three")
        assert c.values() == before
        assert not await c.evicted("be")
        assert be["metadata"]["uid"]

    run(tmp_path, story)


@pytest.mark.feature("KA-CEV-01")
@pytest.mark.feature("KA-CEV-03")
@pytest.mark.feature("KA-MEV-03")
def test_unsatisfied_and_overcommitted_pods_go(tmp_path) -> None:
    """BE CPU satisfaction takes one pod; batch CPU and memory that the node no longer offers take the opted-in ones."""

    async def story(c: Cluster) -> None:
        threshold = {
            "enable": True,
            "cpuEvictTimeWindowSeconds": 3,
            "cpuEvictBESatisfactionLowerPercent": 60,
            "cpuEvictBESatisfactionUpperPercent": 70,
        }
        await c.node({"resourceUsedThresholdWithBE": threshold}, **{"batch-cpu": "30000", "batch-memory": "40Gi"})

        def asks(cpu: str, memory: str) -> dict[str, Any]:
            wanted = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}
            return {"requests": wanted, "limits": wanted}

        opt_in = {"koordinator.sh/eviction-enabled": "true"}
        await c.pod("busy", qos="BE", kube_qos="BestEffort", memory=GI, resources=asks("9000", "4Gi"))
        await c.pod("calm", qos="BE", kube_qos="BestEffort", memory=GI, resources=asks("9000", "4Gi"))
        await c.pod("opted", qos="BE", kube_qos="BestEffort", memory=GI, resources=asks("12000", "20Gi"), **opt_in)
        c.use.update({"node": 16.0, "tier": 15.8, "busy": 9.0, "calm": 4.0, "opted": 2.8})
        gates = ("BECPUEvict", "CPUAllocatableEvict", "MemoryAllocatableEvict")
        async with agent(c, *gates, cpu_evict_cool_time_seconds=2) as app:
            # 16 of 30 cores: 53 %, to 70 %: 5 cores to release
            await until(lambda: c.evicted("busy"), "the eviction of the busiest")
            assert not await c.evicted("opted")
            patch = {
                "memoryAllocatableEvictThresholdPercent": 100,
                "memoryAllocatableEvictLowerPercent": 90,
                "cpuAllocatableEvictThresholdPercent": 100,
                "cpuAllocatableEvictLowerPercent": 90,
                "allocatableEvictPriorityThreshold": 5999,
                "cpuEvictBESatisfactionLowerPercent": 1,
            }
            await c.client.patch(NODESLOS, "n1", {"spec": {"resourceUsedThresholdWithBE": patch}})
            await c.client.patch(NODES, "n1", {"status": {"allocatable": {"kubernetes.io/batch-memory": "10Gi"}}}, subresource="status")
            await until(lambda: c.evicted("opted"), "the eviction for memory that is no longer offered")
            assert not await c.evicted("calm"), "who did not opt in stays"
            rules = {r.rule for r in app.recorder.ring.find("Pod", "default", "opted") if r.verdict == "Evicted"}
            assert rules == {"MemoryAllocatableEvict"}

    run(tmp_path, story)


@pytest.mark.feature("KA-RDT-01")
@pytest.mark.feature("KA-SYS-01")
@pytest.mark.feature("KA-MET-01")
def test_caches_and_knobs_of_a_node_without_pods(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        c.file("proc/cpuinfo", "processor : 0\nvendor_id : GenuineIntel\nmodel name : T\nflags : fpu cat_l3 mba\n")
        c.file("sys/fs/resctrl/info/L3/cbm_mask", "fff\n")
        for group in ("", "LSR/", "LS/", "BE/"):
            c.file(f"sys/fs/resctrl/{group}schemata", "    L3:0=fff\n    MB:0=100\n")
            c.file(f"sys/fs/resctrl/{group}tasks", "")
        c.file("proc/sys/vm/watermark_scale_factor", "10\n")
        c.file("proc/sys/vm/min_free_kbytes", "67584\n")
        spec = {
            "resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True, "mbaPercent": 12}}},
            "systemStrategy": {"watermarkScaleFactor": 150, "minFreeKbytesFactor": 1},
        }
        await c.node(spec)
        async with agent(c, "RdtResctrl", "SystemConfig") as app:
            schemata = tmp_path / "sys/fs/resctrl/BE/schemata"
            await until(lambda: "MB:0=20;" in schemata.read_text(), "the bandwidth of BE")
            assert "L3:0=f;" in schemata.read_text()
            await until(lambda: (tmp_path / "proc/sys/vm/watermark_scale_factor").read_text() == "150", "the knob")
            assert (tmp_path / "proc/sys/vm/min_free_kbytes").read_text() == "67584\n", "out of range"
            assert any(r.verdict == "InvalidConfig" for r in app.recorder.ring.find("Node", "", "n1"))
            text = app.metrics.internal_text()
            assert 'koordlet_resource_update_duration_milliseconds_count{status="success",type="resctrl-schema"}' in text
        assert restore_command(c.options) == 0
        assert (tmp_path / "proc/sys/vm/watermark_scale_factor").read_text().strip() == "10"
        assert schemata.read_text().splitlines()[-2:] == ["L3:0=fff", "MB:0=100"]

    run(tmp_path, story)
