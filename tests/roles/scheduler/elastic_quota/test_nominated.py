"""Room that was made for a pod which its quota refuses afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api.kinds import ELASTICQUOTAS, PODS, PRIORITYCLASSES

NAME = "quota.scheduling.koordinator.sh/name"
PARENT = "quota.scheduling.koordinator.sh/parent"
IS_PARENT = "quota.scheduling.koordinator.sh/is-parent"


GANG = "gang.scheduling.koordinator.sh"


async def make_classes(live: Any, **values: int) -> None:
    for name, value in values.items():
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        await live.client.create(PRIORITYCLASSES, body)


async def make_quota(live: Any, name: str, most: str, least: str, **labels: str) -> None:
    body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, "metadata": {"name": name, "labels": labels}}
    await live.client.create(ELASTICQUOTAS, {**body, "spec": {"max": {"cpu": most}, "min": {"cpu": least}}}, "default")


@pytest.mark.feature("SCH-KS-12")
def test_a_pod_that_its_quota_refuses_leaves_the_room_made_for_it_to_others(scheduler: Any) -> None:
    quota = {"enabled": [{"name": "ElasticQuota"}]}
    profile = {
        "schedulerName": "koord-scheduler",
        "pluginConfig": [
            {"name": "Coscheduling", "args": {"enablePreemption": True}},
            {"name": "ElasticQuota", "args": {"quotaGroupNamespace": "default", "enableRuntimeQuota": False}},
        ],
        "plugins": {
            "preFilter": quota,
            "reserve": quota,
            "postFilter": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}, {"name": "ElasticQuota"}]},
        },
    }

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, crds=True) as live:
            await live.node("n", cpu="2")
            await make_classes(live, high=1000, mid=500)
            await make_quota(live, "team", "2", "2")
            await live.pod("low", cpu="2", meta={"finalizers": ["example.com/keep"]})
            assert await live.bound("low") == "n"
            await live.pod("high", cpu="2", priorityClassName="high", meta={"labels": {NAME: "team"}})
            await live.until("high", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            await live.pod("mid", cpu="2", priorityClassName="mid")
            await live.refused("mid")
            less = {"spec": {"max": {"cpu": "1"}, "min": {"cpu": "1"}}}
            await live.client.patch(ELASTICQUOTAS, "team", less, "default")
            await live.client.patch(PODS, "low", {"metadata": {"finalizers": None}}, "default")
            await live.client.delete(PODS, "low", "default", grace_period_seconds=0)
            assert await live.bound("mid") == "n"
            assert not (await live.until("high", lambda pod: not pod["status"].get("nominatedNodeName")))["spec"].get("nodeName")

    asyncio.run(run())


@pytest.mark.feature("SCH-EQ-08")
@pytest.mark.parametrize("its", ["team", "others"], ids=["same quota", "same parent"])
def test_nobody_takes_what_a_victim_leaves_of_the_quota_from_the_pod_that_waits_for_it(scheduler: Any, its: str) -> None:
    """There is room on the node for all; what is left of the quota while the victim goes is part of what was made for `waits`."""
    profile = {
        "schedulerName": "koord-scheduler",
        "pluginConfig": [
            {
                "name": "ElasticQuota",
                "args": {"quotaGroupNamespace": "default", "enableRuntimeQuota": False, "enableCheckParentQuota": True},
            }
        ],
        "plugins": {point: {"enabled": [{"name": "ElasticQuota"}]} for point in ("preFilter", "reserve", "postFilter")},
    }

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, crds=True) as live:
            await live.node("n", cpu="20")
            await make_classes(live, high=1000, low=1)
            await make_quota(live, "both", "10", "10", **{IS_PARENT: "true"})
            for name in ("team", "others"):
                await make_quota(live, name, "10", "4", **{PARENT: "both"})
            team, small = ({"meta": {"labels": {NAME: name}}} for name in ("team", its))
            await live.pod("stays", cpu="4", priorityClassName="high", **team)
            assert await live.bound("stays") == "n"
            await live.pod("victim", cpu="4", priorityClassName="low", **team)
            assert await live.bound("victim") == "n"
            await live.pod("waits", cpu="6", priorityClassName="high", **team)
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            await live.pod("small", cpu="2", priorityClassName="low", **small)
            pod = await live.until("small", lambda pod: pod["spec"].get("nodeName") or pod["status"].get("conditions"))
            assert not pod["spec"].get("nodeName"), "it took what the nominated pod waits for"
            await live.client.delete(PODS, "victim", "default", grace_period_seconds=0)
            assert await live.bound("waits") == "n"
            await live.client.delete(PODS, "stays", "default", grace_period_seconds=0)
            assert await live.bound("small") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-EQ-08")
def test_a_gang_makes_no_room_where_a_nominated_pod_will_fill_the_quota(scheduler: Any) -> None:
    """Without `low` the quota holds the gang, but not beside the pod that waits for room on a node."""
    every = {"enabled": [{"name": name} for name in ("Coscheduling", "ElasticQuota", "DefaultPreemption")]}
    profile = {
        "schedulerName": "koord-scheduler",
        "pluginConfig": [
            {"name": "Coscheduling", "args": {"enablePreemption": True}},
            {"name": "ElasticQuota", "args": {"quotaGroupNamespace": "default", "enableRuntimeQuota": False}},
        ],
        "plugins": {"multiPoint": {"enabled": every["enabled"][:2]}, "postFilter": {"disabled": [{"name": "*"}], **every}},
    }

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, crds=True) as live:
            for name in ("n", "m"):
                await live.node(name, cpu="10", labels={"name": name})
            await make_classes(live, high=1000, mid=500, low=1)
            await make_quota(live, "team", "10", "10")

            async def placed(name: str, cpu: str, priority: str, node: str, **labels: str) -> None:
                meta = {"labels": labels}
                await live.pod(name, cpu=cpu, priorityClassName=priority, meta=meta, nodeSelector={"name": node})

            await placed("victim", "8", "low", "n")
            await placed("low", "4", "low", "m", **{NAME: "team"})
            assert [await live.bound(name) for name in ("victim", "low")] == ["n", "m"]
            await placed("waits", "6", "high", "n", **{NAME: "team"})
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            gang = {"labels": {NAME: "team"}, "annotations": {f"{GANG}/name": "g", f"{GANG}/min-available": "2"}}
            for name in ("g0", "g1"):
                await live.pod(name, cpu="3", priorityClassName="mid", meta=gang, nodeSelector={"name": "m"})
            for name in ("g0", "g1"):
                await live.refused(name)
            await live.client.delete(PODS, "victim", "default", grace_period_seconds=0)
            assert await live.bound("waits") == "n"
            assert not (await live.get("low"))["metadata"].get("deletionTimestamp")
            await live.client.delete(PODS, "waits", "default", grace_period_seconds=0)
            assert [await live.bound(name) for name in ("g0", "g1")] == ["m", "m"]

    asyncio.run(run())


@pytest.mark.feature("SCH-EQ-08")
def test_what_a_nominated_pod_had_of_its_quota_is_free_once_it_is_outbid(scheduler: Any) -> None:
    profile = {
        "schedulerName": "koord-scheduler",
        "pluginConfig": [{"name": "ElasticQuota", "args": {"quotaGroupNamespace": "default", "enableRuntimeQuota": False}}],
        "plugins": {"multiPoint": {"enabled": [{"name": "ElasticQuota"}]}},
    }

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, crds=True) as live:
            for name in ("n", "m"):
                await live.node(name, cpu="10", labels={"name": name})
            await make_classes(live, high=1000, mid=500, low=1)
            await make_quota(live, "team", "10", "10")
            team = {"meta": {"labels": {NAME: "team"}}}
            await live.pod("victim", cpu="8", priorityClassName="low", nodeSelector={"name": "n"})
            assert await live.bound("victim") == "n"
            await live.pod("waits", cpu="6", priorityClassName="mid", nodeSelector={"name": "n"}, **team)
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            await live.pod("small", cpu="6", priorityClassName="low", nodeSelector={"name": "m"}, **team)
            await live.refused("small")
            await live.pod("outbids", cpu="8", priorityClassName="high", nodeSelector={"name": "n"})
            assert await live.bound("small") == "m"

    asyncio.run(run())
