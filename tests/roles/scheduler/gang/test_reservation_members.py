"""Reservations whose template is of a gang are members of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.kinds import RESERVATIONS
from koord.api.names import ANNOTATION_BIND_GANG_MEMBER_COUNT, LABEL_POD_GROUP
from tests.support import patience

from .conftest import profile

Obj = dict[str, Any]


def with_reservations(**args: Any) -> Obj:
    """A profile with both; `args` are Reservation's."""
    found = profile(post_filter=("Reservation", "Coscheduling"), enablePreemption=True)
    found["pluginConfig"].append({"name": "Reservation", "args": args})
    for point in ("preFilter", "filter", "preScore", "score", "reserve", "preBind", "bind"):
        held = found["plugins"].setdefault(point, {"enabled": []})
        held["enabled"] = [{"name": "Reservation"}, *held["enabled"]]
    found["plugins"]["bind"] = {"disabled": [{"name": "*"}], "enabled": [{"name": "Reservation"}, {"name": "DefaultBinder"}]}
    return found


async def reservation(g: Any, name: str, gang: str, cpu: str) -> None:
    """A Reservation, of a gang unless that is ""."""
    container = {"name": "main", "image": "registry.k8s.io/pause:3.9", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    template = {
        "metadata": {"namespace": "default", "labels": {LABEL_POD_GROUP: gang} if gang else {}},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
    }
    body = {
        "apiVersion": RESERVATIONS.api_version, "kind": "Reservation", "metadata": {"name": name},
        "spec": {"template": template, "owners": [{"labelSelector": {"matchLabels": {"app": "x"}}}], "ttl": "1h"},
    }  # fmt: skip
    await g.client.create(RESERVATIONS, body)


async def until(g: Any, name: str, test: Callable[[Obj], Any]) -> Obj:
    """The Reservation once it passes the test."""
    found: Obj = {}
    for _ in patience.tries(400):
        found = {"status": {}, **await g.client.get(RESERVATIONS, name)}
        if test(found):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"Reservation {name} never got there: {found}")


@pytest.mark.feature("SCH-GANG-01")
@pytest.mark.feature("SCH-GANG-08")
def test_a_pod_and_a_reservation_of_one_gang_wait_for_each_other(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",), profiles=[with_reservations()]) as g:
            await g.group("mixed", 2)
            await g.member("p0", "mixed", cpu="2")
            await g.said("p0", "default/mixed has 1 of 2 pods")
            await reservation(g, "r0", "mixed", "2")
            assert await g.live.bound("p0") == "n0"
            found = await until(g, "r0", lambda found: found["status"].get("nodeName") == "n0")
            assert found["metadata"]["annotations"][ANNOTATION_BIND_GANG_MEMBER_COUNT] == "2"

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-07")
def test_a_reservation_that_does_not_fit_holds_its_gang_back(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",), profiles=[with_reservations()]) as g:
            await g.group("mixed", 2)
            await reservation(g, "r0", "mixed", "8")
            await g.member("p0", "mixed", cpu="2")
            await g.said("p0", "Insufficient cpu")
            await g.quiet()
            assert not (await g.nodes_of())["p0"]
            assert not ((await g.client.get(RESERVATIONS, "r0")).get("status") or {}).get("nodeName")

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-13")
@pytest.mark.parametrize("gang", ["", "held"])
def test_reservations_displace_nobody_unless_their_own_argument_says_so(gangs: Any, gang: str) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",), profiles=[with_reservations()]) as g:
            await g.priority("vital", 1_000_000)
            await g.live.pod("runs", cpu="4", priorityClassName="vital", terminationGracePeriodSeconds=0)
            await g.live.bound("runs")
            await g.group("held", 2)
            for name in ("r0", "r1"):
                await reservation(g, name, gang, "2")
            for name in ("r0", "r1"):
                refused = await until(g, name, lambda found: found["status"].get("conditions"))
                assert "Insufficient cpu" in refused["status"]["conditions"][0].get("message", "")
            await g.quiet()
            assert await g.nodes_of() == {"runs": "n0"}

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-13")
def test_a_gang_of_reservations_gets_room_where_reservations_may_preempt(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",), profiles=[with_reservations(enablePreemption=True)]) as g:
            await g.live.pod("runs", cpu="4", terminationGracePeriodSeconds=0)
            await g.live.bound("runs")
            await g.group("held", 2)
            for name in ("r0", "r1"):
                await reservation(g, name, "held", "2")
            for name in ("r0", "r1"):
                await until(g, name, lambda found: found["status"].get("nodeName") == "n0")
            assert "runs" not in await g.nodes_of()

    asyncio.run(run())


@pytest.mark.feature("SCH-JP-01")
def test_a_job_with_a_reservation_gets_room_by_the_priority_of_its_pods(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4", "4"), profiles=[with_reservations()]) as g:
            for name, value in (("low", 10), ("mid", 50), ("high", 900)):
                await g.priority(name, value)
            for node, priority in (("n0", "low"), ("n1", "high")):
                await g.live.pod(f"on-{node}", cpu="4", nodeName=node, priorityClassName=priority, terminationGracePeriodSeconds=0)
            await g.group("mixed", 2)
            await reservation(g, "r0", "mixed", "2")
            await g.member("p0", "mixed", cpu="2", priorityClassName="mid")
            assert await g.live.bound("p0") == "n0"
            await until(g, "r0", lambda found: found["status"].get("nodeName") == "n0")
            assert "on-n1" in await g.nodes_of()

    asyncio.run(run())
