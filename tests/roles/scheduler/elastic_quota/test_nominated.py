"""Room that was made for a pod which its quota refuses afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api.kinds import ELASTICQUOTAS, PODS, PRIORITYCLASSES

NAME = "quota.scheduling.koordinator.sh/name"


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
            for name, value in (("high", 1000), ("mid", 500)):
                body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
                await live.client.create(PRIORITYCLASSES, body)
            body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, "metadata": {"name": "team"}}
            await live.client.create(ELASTICQUOTAS, {**body, "spec": {"max": {"cpu": "2"}, "min": {"cpu": "2"}}}, "default")
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
