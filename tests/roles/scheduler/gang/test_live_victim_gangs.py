"""Through the API server: a running gang is taken as a whole or not at all, and within a quota room is made for a whole gang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api.kinds import ELASTICQUOTAS, PODS
from koord.kube.errors import NotFound
from tests.support import patience

from .conftest import profile

LABEL = {"quota.scheduling.koordinator.sh/name": "q"}


async def left(g: Any, *names: str) -> None:
    """Until just these pods are there."""
    found: set[str] = set()
    for _ in patience.tries(400):
        found = {pod["metadata"]["name"] for pod in (await g.client.list(PODS, "default")).items}
        if found == set(names):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"pods {sorted(found)} are there")


@pytest.mark.feature("SCH-JP-01")
@pytest.mark.feature("SCH-KS-12")
def test_a_running_gang_loses_what_it_can_spare_or_goes_as_a_whole(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4", "4", "4"), enablePreemption=True, post_filter=("Coscheduling",)) as g:
            await g.priority("low", 10)
            await g.priority("high", 900)
            await g.group("team", 2)
            for number in range(3):
                await g.member(f"t{number}", "team", cpu="4", priorityClassName="low")
            await g.bound("t0", "t1", "t2")
            for name, expected in (("one", 2), ("two", 0)):
                await g.live.pod(name, cpu="4", priorityClassName="high")
                await g.live.bound(name)
                await g.quiet()
                names = set(await g.nodes_of())
                assert len([pod for pod in names if pod.startswith("t") and pod != "two"]) == expected
            with pytest.raises(NotFound):
                await g.client.get(PODS, "t0", "default")

    asyncio.run(run())


@pytest.mark.feature("SCH-EQ-08")
@pytest.mark.feature("SCH-JP-01")
def test_in_a_full_quota_a_gang_gets_room_for_all_of_it_or_nobody_goes(gangs: Any) -> None:
    async def run() -> None:
        given = profile("ElasticQuota", enablePreemption=True, post_filter=("Coscheduling", "ElasticQuota", "DefaultPreemption"))
        given["plugins"]["reserve"]["enabled"].append({"name": "ElasticQuota"})
        async with gangs(nodes=("8", "8"), profiles=[given]) as g:
            for name, value in (("low", 10), ("mid", 50), ("high", 900)):
                await g.priority(name, value)
            body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, "metadata": {"name": "q"}}
            await g.client.create(ELASTICQUOTAS, {**body, "spec": {"max": {"cpu": "4"}, "min": {"cpu": "4"}}}, "default")
            cache = g.live.app.engine.frameworks["koord-scheduler"].plugins["ElasticQuota"].cache
            while cache.quota("q") is None:
                await asyncio.sleep(0.02)
            for number, priority in enumerate(("low", "low", "low", "mid")):
                meta = {"labels": LABEL}
                await g.live.pod(f"held-{number}", meta=meta, priorityClassName=priority, terminationGracePeriodSeconds=0)
            await g.bound(*(f"held-{number}" for number in range(4)))
            await g.live.pod("foreign", priorityClassName="low")
            await g.group("wide", 5)
            for number in range(5):
                await g.member(f"wide-{number}", "wide", labels=LABEL, priorityClassName="high")
            await g.said("wide-0", "Insufficient quotas")
            await g.quiet()
            assert {"held-0", "held-1", "held-2", "held-3", "foreign"} <= set(await g.nodes_of())
            for number in range(5):
                await g.client.delete(PODS, f"wide-{number}", "default", grace_period_seconds=0)
            await g.group("job", 3)
            for number in range(3):
                await g.member(f"job-{number}", "job", labels=LABEL, priorityClassName="high")
            await g.bound("job-0", "job-1", "job-2")
            await left(g, "held-3", "foreign", "job-0", "job-1", "job-2")

    asyncio.run(run())
