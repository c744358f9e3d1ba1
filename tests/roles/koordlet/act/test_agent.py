"""The whole agent against an API server and a machine of plain files: objects in, files and evictions out."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

import pytest

from koord.api.kinds import EVENTS, NODEMETRICS, NODES, NODESLOS, PODDISRUPTIONBUDGETS
from roles.koordlet.app import restore as restore_command
from tests.support.koordlet import BE_TIER, GI, OFF, Cluster, agent, exposed, run, until


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
            await until(lambda: abs(quota() - 500_000) < 60_000, "the quota of the tier")
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


@pytest.mark.feature("KLO-TSDB-01")
@pytest.mark.parametrize(("evict", "window"), [(None, 7200), (10_000, 10_000)])
def test_series_are_kept_as_long_as_the_objects_of_the_node_ask(tmp_path, evict, window) -> None:
    """Before they are there nobody knows for how long: what an earlier run kept is not cut."""

    async def story(c: Cluster) -> None:
        await c.node({"resourceUsedThresholdWithBE": {"cpuEvictTimeWindowSeconds": evict}} if evict else {})
        policy = {"metricCollectPolicy": {"nodeAggregatePolicy": {"durations": ["5m", "2h"]}}}
        body = {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": "n1"}, "spec": policy}
        await c.client.create(NODEMETRICS, body)
        async with agent(c) as app:
            asked, want = [], app.store.want

            def watched(**windows: float) -> None:
                asked.append(windows)
                want(**windows)

            app.store.want = watched
            await until(lambda: asked, "the windows")
            assert asked[0] == {"node_window": window, "window": 300}

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
            assert 'koordlet_pod_eviction{node="n1",reason="evicted"} 1' in exposed(app.metrics.internal)

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
            text = exposed(app.metrics.internal)
            assert 'koordlet_resource_update_duration_milliseconds_count{status="success",type="resctrl-schema"}' in text
        assert restore_command(c.options) == 0
        assert (tmp_path / "proc/sys/vm/watermark_scale_factor").read_text().strip() == "10"
        assert schemata.read_text().splitlines()[-2:] == ["L3:0=fff", "MB:0=100"]

    run(tmp_path, story)


@pytest.mark.feature("KA-MEM-01")
@pytest.mark.feature("KA-MEM-02")
@pytest.mark.feature("KA-FS-01")
@pytest.mark.feature("KA-BST-01")
def test_page_cache_limits_and_burst_on_cgroup_v2(tmp_path) -> None:
    """By size, by percentage, switched off and overruled by an annotation; a burst never above its quota."""

    async def story(c: Cluster) -> None:
        memory = {"enable": True, "pageCacheLimitPercent": 50, "throttlingPercent": 80}
        spec = {
            "resourceQOSStrategy": {
                "lsClass": {"memoryQOS": memory},
                "beClass": {"memoryQOS": {"enable": True, "pageCacheLimitSize": 5 * GI}},
            },
            "cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 1000},
        }
        await c.node(spec)
        limits = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
        batch = {"kubernetes.io/batch-memory": "3Gi"}
        ls = await c.pod("ls", qos="LS", kube_qos="Burstable", quota=100_000, resources=limits)
        own = {"koordinator.sh/memoryQOS": '{"pageCacheEnable": false, "pageCacheReclaimSync": true, "pageCacheLimitSize": 1048576}'}
        odd = await c.pod("odd", qos="LS", kube_qos="Burstable", quota=100_000, resources=limits, annotations=own)
        be = await c.pod("be", qos="BE", kube_qos="BestEffort", resources={"requests": batch, "limits": batch})
        unlimited = await c.pod("unlimited", qos="LS", kube_qos="Burstable")
        files = ("enable", "size", "sync")
        for pod in (ls, odd, be, unlimited):
            for name in files:
                c.cgroup("memory", c.dirs(pod)[0], f"memory.pagecache_limit.{name}", "0")
        before = c.values()

        def cache(pod: dict[str, Any]) -> list[str]:
            return [c.read("memory", c.dirs(pod)[0], f"memory.pagecache_limit.{name}") for name in files]

        async with agent(c, "CgroupReconcile", "CPUBurst"):
            await until(lambda: cache(ls) == ["1", str(GI), "0"], "half of the limit")
            await until(lambda: cache(odd) == ["0", "1048576", "1"], "the annotation")
            assert cache(be) == ["1", str(3 * GI), "0"], "never above the pod's own limit"
            assert cache(unlimited) == ["0", "0", "0"], "no limit to take a share of"
            assert c.read("memory", c.dirs(ls)[1], "memory.high") == str((GI + GI * 80 // 100) // 4096 * 4096)
            await until(lambda: c.read("cpu", c.dirs(ls)[1], "cpu.max.burst") == "100000", "a burst as large as the quota")
            off = {"lsClass": {"memoryQOS": {"pageCacheLimitPercent": 0}}}
            await c.client.patch(NODESLOS, "n1", {"spec": {"resourceQOSStrategy": off}})
            await until(lambda: cache(ls) == ["0", "0", "0"], "the limit taken away")
        assert restore_command(c.options) == 0
        assert c.values() == before

    run(tmp_path, story, v2=True)


@pytest.mark.feature("KA-SUP-03")
def test_the_be_cpu_manager_mode_gives_the_tier_back_but_keeps_placed_containers(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 30}})
        parts = [{"node": 0, "resources": {"kubernetes.io/batch-cpu": "2"}}]
        placed = {"scheduling.koordinator.sh/resource-status": json.dumps({"numaNodeResources": parts})}
        exclusive = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "14-15"}'}
        own = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
        await c.pod("lse", qos="LSE", kube_qos="Burstable", resources=own, annotations=exclusive)
        plain = await c.pod("plain", qos="BE", kube_qos="BestEffort")
        kept = await c.pod("kept", qos="BE", kube_qos="BestEffort", annotations=placed)
        c.use.update({"node": 4.0, "plain": 1.0, "kept": 1.0})

        def cpus(directory: str) -> str:
            return c.read("cpuset", directory, "cpuset.cpus")

        async with agent(c, "BECPUSuppress"):
            await until(lambda: cpus(c.dirs(plain)[1]) not in ("0-15", "0-13"), "the tier suppressed")
        for directory in c.dirs(kept)[1:]:
            c.cgroup("cpuset", directory, "cpuset.cpus", "2-3")
        c.cgroup("cpu", BE_TIER, "cpu.cfs_quota_us", "50000")
        async with agent(c, "BECPUSuppress", "BECPUManager"):
            await until(lambda: cpus(BE_TIER) == "0-13", "everything but the exclusive CPUs for the tier")
            await until(lambda: [cpus(d) for d in c.dirs(plain)] == ["0-13", "0-13"], "and for a pod that nobody placed")
            assert [cpus(d) for d in c.dirs(kept)] == ["0-13", "2-3"], "a placed container keeps its CPUs"
            assert c.read("cpu", BE_TIER, "cpu.cfs_quota_us") == "-1"

    run(tmp_path, story)


#: Values that nobody would guess: somebody else's will, that is.
ODD = {
    "cpu": {"cpu.bvt_warp_ns": "1", "cpu.idle": "0", "cpu.cfs_burst_us": "7000", "cpu.shares": "77"},
    "memory": {
        "memory.min": "40960", "memory.low": "8192", "memory.high": "9999360", "memory.wmark_ratio": "50", "memory.wmark_min_adj": "7",
        "memory.priority": "3", "memory.use_priority_oom": "1", "memory.oom.group": "1",
    },
    "cpuset": {"cpuset.cpus": "0-11"},
    "blkio": {"blkio.cost.weight": "77"},
}  # fmt: skip
SWITCHES = {
    "proc/sys/vm/min_free_kbytes": "12345", "proc/sys/vm/watermark_scale_factor": "33", "proc/sys/kernel/sched_group_identity_enabled": "1",
    "proc/sys/kernel/sched_core": "1", "sys/kernel/mm/memcg_reaper/reap_background": "1",
    "sys/kernel/mm/kidled/scan_period_in_seconds": "0",
}  # fmt: skip


@pytest.mark.feature("KA-EXE-01")
@pytest.mark.parametrize("v2", [False, True])
def test_where_nothing_is_asked_for_nothing_is_changed(tmp_path, v2) -> None:
    """Whatever values it finds, with all strategies and hooks that need a configuration on."""

    async def story(c: Cluster) -> None:
        await c.node({})
        cpu = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
        pods = [
            await c.pod(name, qos=qos, kube_qos=kube_qos, resources=resources, quota=quota)
            for name, qos, kube_qos, resources, quota in (
                ("unlimited", "LS", "Burstable", cpu, -1),
                ("short", "", "Burstable", cpu, 20_000),
                ("resized", "LS", "Burstable", cpu, 123_456),
                ("batch", "BE", "BestEffort", None, -1),
                ("plain", "", "BestEffort", None, 5000),
            )
        ]
        for directory in ("kubepods.slice", BE_TIER, "kubepods.slice/kubepods-burstable.slice", *(d for pod in pods for d in c.dirs(pod))):
            if v2:
                c.directory(directory)
            for controller, files in ODD.items():
                for name, text in files.items():
                    if controller != "cpuset" or "besteffort" in directory:  # where services run is what the published pools say
                        c.cgroup(controller, directory, name, text)
        for path, text in SWITCHES.items():
            c.file(path, text)
        c.use.update({"node": 9.0, "unlimited": 2.0, "batch": 3.0, "unlimited.throttled": 0.5})
        before = {**c.values(), **{path: (c.base / path).read_text() for path in SWITCHES}}
        gates = ("CgroupReconcile", "BlkIOReconcile", "SystemConfig", "CoreSched", "CPUNormalization", "BEMemoryEvict", "BECPUEvict")
        async with agent(c, *OFF, *gates, runtime_hooks_reconcile_interval=0.2) as app:
            told = app.recorder.ring
            await until(lambda: any(r.verdict == "Unrestricted" for r in told.find("Node")), "a decision of the strategies", 30)
            passes: list[int] = []
            once = app.acting.hooks.once

            async def counted() -> Any:
                passes.append(1)
                return await once()

            app.acting.hooks.once = counted
            await until(lambda: len(passes) > 3, "hooks that were asked", 30)
        assert {**c.values(), **{path: (c.base / path).read_text() for path in SWITCHES}} == before

    run(tmp_path, story, v2=v2)


@pytest.mark.feature("KLO-LIFE-01")
@pytest.mark.parametrize("work", ["roles.koordlet.prediction.models.Models.train", "roles.koordlet.states.pods.PodCache.take"])
def test_a_mistake_in_one_task_ends_no_other(tmp_path, monkeypatch, work) -> None:
    owner, _, method = work.rpartition(".")
    module, _, name = owner.rpartition(".")
    real = getattr(getattr(importlib.import_module(module), name), method)
    calls: list[int] = []

    def at_first_not(self, *arguments):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a mistake")
        return real(self, *arguments)

    monkeypatch.setattr(work, at_first_not)

    async def story(c: Cluster) -> None:
        await c.node({})
        await c.pod("one", qos="LS", kube_qos="Burstable")
        async with agent(c, prediction_training_interval=1.0) as app:
            await until(lambda: len(calls) > 1, "it is begun again")
            await until(lambda: app.pod_cache.pods, "the pods")

    run(tmp_path, story)
