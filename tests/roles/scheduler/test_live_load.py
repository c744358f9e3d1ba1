"""LoadAwareScheduling through the scheduler's door: Node, NodeMetric and Pod in the API server in, bindings and conditions out."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from koord.api.kinds import NODEMETRICS, NODES
from koord.api.times import format_time

Obj = dict[str, Any]
POINT = {"enabled": [{"name": "LoadAwareScheduling"}]}
DOMAIN = "scheduling.koordinator.sh"
BATCH = {"koordinator.sh/priority-class": "koord-batch", "koordinator.sh/qosClass": "BE"}


def config(**args: Any) -> Obj:
    plugins = dict.fromkeys(("filter", "score", "reserve"), POINT)
    content = {"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": [{"name": "LoadAwareScheduling", "args": args}]}
    return {"profiles": [content]}


async def report(live: Any, node: str, cpu: str, *, age: float = 0.0, pods: tuple[tuple[str, str, str], ...] = (), **usage: Any) -> None:
    """A NodeMetric that says how much CPU a node uses (memory: 1Gi)."""
    spec = {"metricCollectPolicy": {"reportIntervalSeconds": 60}}
    meta = {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": node}}
    await live.client.create(NODEMETRICS, {**meta, "spec": spec})
    reported = [{"namespace": "default", "name": n, "priority": c, "podUsage": {"resources": {"cpu": u}}} for n, c, u in pods]
    status = {
        "updateTime": format_time(time.time() - age), "podsMetric": reported,
        "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}, **usage},
    }  # fmt: skip
    await live.client.patch(NODEMETRICS, node, {"status": status}, subresource="status")


def container(request: str | None, limit: str | None = None, resource: str = "cpu") -> Obj:
    resources: Obj = {"requests": {resource: request} if request else {}, "limits": {resource: limit} if limit else {}}
    return {"containers": [{"name": "main", "image": "i", "resources": resources}]}


@pytest.mark.feature("SCH-LA-06")
@pytest.mark.feature("SCH-LA-01")
@pytest.mark.parametrize(
    ("percent", "meta", "spec"),
    [
        (17, {}, container("2")),  # 85 % of the request
        (34, {}, container("1", "4")),  # 85 % of the larger limit
        (3, {}, container(None)),  # 250m when nothing is asked for, rounded
        (10, {"annotations": {f"{DOMAIN}/load-estimated-scaling-factors": '{"cpu": 50}'}}, container("2")),
        (26, {"labels": BATCH}, container("3000", "3000", "kubernetes.io/batch-cpu")),
    ],
)
def test_usage_and_estimate_decide(scheduler: Any, percent: int, meta: Obj, spec: Obj) -> None:
    """Of ten CPUs half may be used: on one node the estimate just fits, on the other it is a hundredth of the node too much."""

    async def run() -> None:
        async with scheduler(config(usageThresholds={"cpu": 50}, allowCustomizeEstimation=True), crds=True) as live:
            await report(live, "full", f"{(51 - percent) * 100}m")
            await live.node("full", cpu="10", allocatable={"kubernetes.io/batch-cpu": "10000"})
            await live.pod("p", meta=meta, **spec)
            condition = await live.refused("p")
            assert condition["message"].startswith("0/1 nodes are available: 1 node(s) cpu usage exceed threshold.")
            await report(live, "fits", f"{(50 - percent) * 100}m")
            await live.node("fits", cpu="10", allocatable={"kubernetes.io/batch-cpu": "10000"})
            assert await live.bound("p") == "fits"

    asyncio.run(run())


@pytest.mark.feature("SCH-LA-02")
def test_prod_pods_see_prod_usage(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(usageThresholds={"cpu": 50}, prodUsageThresholds={"cpu": 40}), crds=True) as live:
            await report(live, "n", "9", pods=(("web", "koord-prod", "1"), ("spark", "koord-batch", "7")))
            await live.node("n", cpu="10")
            await live.pod("batch", cpu="100m", meta={"labels": {"koordinator.sh/priority-class": "koord-batch"}})
            assert "node(s) cpu usage exceed threshold" in (await live.refused("batch"))["message"]
            await live.pod("prod", cpu="1", meta={"labels": {"koordinator.sh/priority-class": "koord-prod"}})
            assert await live.bound("prod") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-LA-03")
@pytest.mark.feature("SCH-LA-05")
def test_percentiles_and_reports_that_are_too_old(scheduler: Any) -> None:
    async def run() -> None:
        args = {
            "usageThresholds": {"cpu": 10}, "nodeMetricExpirationSeconds": 100, "filterExpiredNodeMetrics": True,
            "aggregated": {"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95"},
        }  # fmt: skip
        async with scheduler(config(**args), crds=True) as live:
            windows = [{"duration": d, "usage": {"p95": {"resources": {"cpu": c}}}} for d, c in (("5m0s", "9"), ("30m0s", "4"))]
            await report(live, "old", "1", age=200)
            await live.node("old", cpu="10")
            await live.pod("p", cpu="1")
            assert "node(s) nodeMetric expired" in (await live.refused("p"))["message"]
            await report(live, "n", "9", aggregatedNodeUsages=windows)
            await live.node("n", cpu="10")
            assert await live.bound("p") == "n"  # the longest window counts
            await live.pod("more", cpu="2")
            assert "1 node(s) cpu aggregated usage exceed threshold" in (await live.refused("more"))["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-LA-04")
@pytest.mark.feature("SCH-LA-07")
@pytest.mark.feature("SCH-LA-09")
def test_pods_just_bound_are_charged_and_a_node_may_set_its_own_threshold(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(usageThresholds={"cpu": 50}), crds=True) as live:
            await report(live, "n", "1")
            await live.node("n", cpu="10")
            for number in range(2):
                await live.pod(f"p{number}", cpu="2")
                await live.bound(f"p{number}")  # 1 + 1.7 + 1.7
            await live.pod("p2", cpu="2")
            assert "node(s) cpu usage exceed threshold" in (await live.refused("p2"))["message"]
            owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
            await live.pod("everywhere", cpu="2", meta={"ownerReferences": [owner]})
            assert await live.bound("everywhere") == "n"
            own = json.dumps({"usageThresholds": {"cpu": 90}})
            await live.client.patch(NODES, "n", {"metadata": {"annotations": {f"{DOMAIN}/usage-thresholds": own}}})
            assert await live.bound("p2") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-LA-08")
def test_the_least_used_node_is_chosen(scheduler: Any) -> None:
    async def run() -> None:
        wanted = config(usageThresholds={"cpu": 0, "memory": 0})
        wanted["profiles"][0]["plugins"]["score"] = {"disabled": [{"name": "*"}], **POINT}
        async with scheduler(wanted, crds=True) as live:
            for name, cpu in (("busy", "6"), ("idle", "1"), ("half", "4")):
                await report(live, name, cpu)
                await live.node(name, cpu="10")
            await live.consistent()
            await live.pod("p", cpu="1")
            assert await live.bound("p") == "idle"

    asyncio.run(run())
