"""NodeMetric and NodeResourceTopology through the API server: objects in, host files in, objects out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.kinds import NODEMETRICS, NODES, NODESLOS
from koord.kube.errors import NotFound
from roles.koordlet.states.callbacks import StateKind
from roles.koordlet.store import kinds

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def run(agent, kubelet, make_node, world) -> Callable[..., None]:
    """``run(story, **options)``: an async function of a World, in a world of its own."""

    def start(story: Callable[[Any], Awaitable[None]], *, node: dict[str, Any] | None = None, **options: Any) -> None:
        async def main() -> None:
            async with world(agent, kubelet, node or make_node(), **options) as w:
                await story(w)

        asyncio.run(main())

    return start


POLICY = {"metricCollectPolicy": {"aggregateDurationSeconds": 60, "nodeAggregatePolicy": {"durations": ["20s", "10m"]}}}


@pytest.mark.feature("KLO-SI-04")
class TestNodeMetric:
    def test_the_whole_status(self, run, make_pod) -> None:
        async def story(w: Any) -> None:
            a = w.agent
            directory = a.tree.pod_dir("Burstable", "u-1")
            a.tree.cgroup(directory, anon=300 * MIB)
            a.tree.cgroup("host-latency-sensitive/nginx", anon=64 * MIB)
            a.tree.numa(0, total_kb=8 << 20, free_kb=5 << 20)
            a.slo = w.state.slo
            a.list(make_pod("web", "u-1", priority=9500, namespace="prod"), make_pod("ghost", "u-2"))
            for i in range(31):
                a.tree.burn({0: 1.0, 1: 1.0}, 1.0)
                a.tree.cpu(directory, 10**9 + i * 500_000_000)
                a.tree.cpu("host-latency-sensitive/nginx", 10**9 + i * 250_000_000)
                a.tick()
            status = await w.metric()
            node = status["nodeMetric"]
            assert node["nodeUsage"]["resources"] == {"cpu": "2", "memory": "2Gi"}
            assert [u["duration"] for u in node["aggregatedNodeUsages"]] == ["20s", "10m0s"]
            assert node["aggregatedNodeUsages"][0]["usage"]["p95"]["resources"]["cpu"] == "2"
            assert node["aggregatedNodeUsages"][1]["usage"] == {k: {} for k in ("avg", "p50", "p90", "p95", "p99")}, "window too empty"
            assert node["systemUsage"]["resources"]["cpu"] == "1250m"
            assert node["numaUsages"][0]["numaNodeID"] == 0
            assert node["numaUsages"][0]["nodeUsage"]["resources"]["memory"] == "3Gi"
            assert node["numaUsages"][0]["systemUsage"]["resources"]["memory"] == "2772Mi"
            assert status["podsMetric"] == [
                {
                    "namespace": "prod",
                    "name": "web",
                    "priority": "koord-prod",
                    "qos": "LS",
                    "podUsage": {"resources": {"cpu": "500m", "memory": "300Mi"}},
                }
            ]
            app = {"name": "nginx", "usage": {"resources": {"cpu": "250m", "memory": "64Mi"}}, "priority": "koord-prod", "qos": "LS"}
            assert status["hostApplicationMetric"] == [app]
            assert status["prodReclaimableMetric"] == {"resource": {}}
            assert "prodPeakMetric" not in status
            assert a.metrics.report_node.get("cpu", "core") == 2
            assert a.metrics.report_numa_system.get("0", "memory", "byte") == 2772 * MIB

        run(story, metric=POLICY, slo={"hostApplications": [{"name": "nginx", "priority": "koord-prod", "qos": "LS"}]})

    def test_graphics_cards_of_the_node_now_and_over_the_windows(self, run) -> None:
        async def story(w: Any) -> None:
            a = w.agent
            for i in range(1, 21):
                a.tick()
                card, used = ("1", "GPU-b"), [(kinds.NODE_GPU_CORE, 5.0 * i), (kinds.NODE_GPU_MEMORY, 100.0 * MIB * i)]
                a.store.append(a.now, [(kind, card, value) for kind, value in (*used, (kinds.NODE_GPU_MEMORY_TOTAL, 8.0 * GIB))])
            node = (await w.metric())["nodeMetric"]
            assert node["nodeUsage"]["devices"][0]["resources"]["koordinator.sh/gpu-core"] == "52"
            usage = node["aggregatedNodeUsages"][0]["usage"]
            cores = {name: [d["resources"]["koordinator.sh/gpu-core"] for d in usage[name]["devices"]] for name in usage}
            assert cores == {"avg": ["52"], "p50": ["50"], "p90": ["90"], "p95": ["95"], "p99": ["95"]}
            resources = {"koordinator.sh/gpu-core": "95", "koordinator.sh/gpu-memory": "1900Mi", "koordinator.sh/gpu-memory-ratio": "23"}
            assert usage["p95"]["devices"] == [{"id": "GPU-b", "minor": 1, "type": "gpu", "health": False, "resources": resources}]
            assert node["aggregatedNodeUsages"][1]["usage"] == {k: {} for k in ("avg", "p50", "p90", "p95", "p99")}, "window too empty"
            assert "devices" not in node["aggregatedSystemUsages"][0]["usage"]["p95"]

        run(story, metric=POLICY)

    def test_what_is_not_reported_any_more_is_gone(self, run) -> None:
        async def story(w: Any) -> None:
            a = w.agent
            a.tick()
            a.tick()
            assert (await w.metric())["nodeMetric"]["nodeUsage"] != {}
            a.now += 3600
            a.mono += 3600
            status = await w.metric()
            assert status["nodeMetric"]["nodeUsage"] == {}, "old data is no data"
            assert status["podsMetric"] == []

        run(story, metric=POLICY)

    def test_memory_policy_and_writes_limit(self, run, make_pod) -> None:
        async def story(w: Any) -> None:
            a = w.agent
            directory = a.tree.pod_dir("Burstable", "u-1")
            a.tree.cgroup(directory, anon=2 * MIB, cache=5 * MIB)
            a.list(make_pod("web", "u-1"))
            a.policy = w.state.policy.memory
            assert a.policy == "usageWithPageCache"
            for _ in range(3):
                a.tick()
            status = await w.metric()
            assert status["nodeMetric"]["nodeUsage"]["resources"]["memory"] == "4Gi"
            assert status["podsMetric"][0]["podUsage"]["resources"]["memory"] == "7Mi"
            assert status["nodeMetric"]["systemUsage"]["resources"]["memory"] == "2046Mi", "always without page cache"
            version = (await w.client.get(NODEMETRICS, "n1"))["metadata"]["resourceVersion"]
            for _ in range(3):
                a.now += 1
                await w.metric()
            after = (await w.client.get(NODEMETRICS, "n1"))["metadata"]["resourceVersion"]
            assert after != version
            stamp = (await w.client.get(NODEMETRICS, "n1"))["status"]["updateTime"]
            a.now += 5
            assert (await w.metric())["updateTime"] == stamp, "more than two writes at once are dropped"

        run(story, metric={"metricCollectPolicy": {"nodeMemoryCollectPolicy": "usageWithPageCache"}}, slo={})

    def test_never_created_by_the_agent(self, run) -> None:
        async def story(w: Any) -> None:
            w.agent.tick()
            w.agent.tick()
            await w.report.report(w.agent.now)
            with pytest.raises(NotFound):
                await w.client.get(NODEMETRICS, "n1")

        run(story)

    def test_a_bad_policy_leaves_the_last_good_one(self, run, caplog) -> None:
        async def story(w: Any) -> None:
            assert (w.state.policy.aggregate, w.state.policy.interval) == (60, 30), "values below the minimum are lifted"
            before = w.state.policy
            bad = {"spec": {"metricCollectPolicy": {"nodeAggregatePolicy": {"durations": ["-5s"]}}}}
            await w.client.patch(NODEMETRICS, "n1", bad)
            await w.until(lambda: any("durations" in r.getMessage() for r in caplog.records))
            assert w.state.policy is before

        run(story, metric={"metricCollectPolicy": {"aggregateDurationSeconds": 5, "reportIntervalSeconds": 1}})

    @pytest.mark.parametrize(
        ("fields", "priority", "qos"),
        [
            ({"qos": "Guaranteed"}, "koord-prod", "LSR"),
            ({"qos": "BestEffort"}, "koord-batch", "BE"),
            ({"qos": "BestEffort", "priority": 7500}, "koord-mid", "BE"),
            ({"labels": {"koordinator.sh/qosClass": "LSE"}}, "koord-prod", "LSE"),
            ({"labels": {"koordinator.sh/qosClass": "bogus"}}, "koord-prod", "LS"),
            ({"labels": {"koordinator.sh/priority-class": "bogus"}, "priority": 5500}, "koord-prod", "LS"),
            ({"labels": {"koordinator.sh/priority-class": "koord-free"}, "priority": 9500}, "koord-free", "LS"),
        ],
    )
    def test_classes_of_pods(self, run, make_pod, fields, priority, qos) -> None:
        async def story(w: Any) -> None:
            a = w.agent
            a.tree.cgroup(a.tree.pod_dir(fields.get("qos", "Burstable"), "u-1"))
            a.list(make_pod("web", "u-1", **fields))
            a.tick()
            a.tick()
            entry = (await w.metric())["podsMetric"][0]
            assert (entry["priority"], entry["qos"]) == (priority, qos)

        run(story, metric=POLICY)


@pytest.mark.feature("KLO-SI-01")
def test_node_state_and_gauges(run, make_node) -> None:
    async def story(w: Any) -> None:
        gauge = w.agent.metrics.node_allocatable
        assert gauge.get("kubernetes.io/batch-cpu", "integer") == 2500
        assert gauge.get("kubernetes.io/mid-cpu", "integer") == 0
        seen: list[str] = []
        w.callbacks.register(StateKind.NODE_METADATA, "test", lambda: seen.append("metadata"))
        task = asyncio.create_task(w.callbacks.run(StateKind.NODE_METADATA))
        await asyncio.sleep(0.02)
        assert seen == ["metadata"], "first seen, kept until now"
        await w.client.patch(NODES, "n1", {"metadata": {"labels": {"a": "b"}}})
        await w.until(lambda: len(seen) == 2)
        await w.client.patch(NODES, "n1", {"status": {"allocatable": {"kubernetes.io/batch-cpu": "1k"}}}, subresource="status")
        await w.until(lambda: gauge.get("kubernetes.io/batch-cpu", "integer") == 1000)
        assert len(seen) == 2, "neither labels nor annotations changed"
        task.cancel()

    capacity = {"cpu": "4", "memory": "8Gi", "kubernetes.io/batch-cpu": "2500"}
    run(story, node=make_node(allocatable=capacity))


@pytest.mark.feature("KLO-SI-03")
def test_nodeslo_is_merged_and_the_last_good_section_stays(run, caplog) -> None:
    async def story(w: Any) -> None:
        slo = w.state.slo
        assert slo is not None
        assert (slo.threshold.enable, slo.threshold.cpu_suppress_threshold_percent) == (True, 65)
        assert slo.qos.ls.cpu.group_identity == 2, "enabled without values"
        assert (slo.qos.be.cpu.group_identity, slo.qos.be.memory.wmark_ratio) == (0, 0), "disabled"
        broken = {"spec": {"cpuBurstStrategy": {"policy": "auto"}, "resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 50}}}
        await w.client.patch(NODESLOS, "n1", broken)
        await w.until(lambda: w.state.slo is not slo)
        assert (w.state.slo.cpu_burst.policy, w.state.slo.threshold.cpu_suppress_threshold_percent) == ("auto", 50)
        w.state._on_slo({"metadata": {"name": "n1"}, "spec": {"cpuBurstStrategy": {"cpuBurstPercent": "many"}}})
        assert w.state.slo.cpu_burst.policy == "auto"
        assert any("cpuBurstStrategy" in r.getMessage() for r in caplog.records)

    run(
        story,
        slo={
            "resourceUsedThresholdWithBE": {"enable": True},
            "resourceQOSStrategy": {"lsClass": {"cpuQOS": {"enable": True}}, "beClass": {"cpuQOS": {"enable": False, "groupIdentity": -1}}},
        },
    )
