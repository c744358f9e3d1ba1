"""Several schedulers on one API server, and one whose writes fail: nothing is bound twice, nothing is counted that is not there."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest

from koord.api.kinds import EVENTS, LEASES, PODS, PRIORITYCLASSES
from koord.kube.errors import ApiError, Conflict, Unreachable
from koord.process.errors import FatalError
from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.framework.interfaces import PreBind
from roles.scheduler.framework.status import SUCCESS, Status
from tests.support import patience

LEASE, RENEW = patience.lease()
ELECTION = {
    "leaderElect": True, "leaseDuration": f"{LEASE * 1000:.0f}ms", "renewDeadline": f"{RENEW * 1000:.0f}ms", "retryPeriod": "200ms",
    "resourceName": "koord-scheduler", "resourceNamespace": "kube-system",
}  # fmt: skip


class Stall(PreBind):
    """Holds every binding up between its last look at the pod and the writing."""

    name = "Stall"

    def __init__(self) -> None:
        self.held = 0
        self.release = asyncio.Event()

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        self.held += 1
        await self.release.wait()
        return SUCCESS


def count_binds(live: Any, done: list[str]) -> list[str]:
    """Names of pods that a scheduler asks to bind, in order; `done` gets those that the API server agreed to."""
    asked: list[str] = []
    bind = live.app.client.bind

    async def counted(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
        asked.append(pod)
        await bind(namespace, pod, node, uid)
        done.append(pod)

    live.app.client.bind = counted
    return asked


async def homes(live: Any) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in (await live.client.list(PODS, "default")).items}


async def until(test: Any, seconds: float = 15.0) -> None:
    for _ in range(int(patience.seconds(seconds) / 0.02)):
        found = test()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came to that")


@pytest.mark.feature("SCH-FW-03")
def test_a_standby_knows_for_whom_the_leader_made_room(scheduler: Any) -> None:
    """A pod that the standby has known for long gets a nomination: when it leads, the room goes to nobody else."""

    async def run() -> None:
        async with scheduler({"leaderElection": ELECTION}, leader_elect=True) as first:
            await first.node("n", cpu="2")
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            await first.client.create(PRIORITYCLASSES, body)
            await first.pod("low", cpu="2")
            await first.bound("low")
            async with first.another() as second:
                uid = (await first.pod("high", cpu="2", priorityClassName="high"))["metadata"]["uid"]
                await first.until("high", lambda pod: pod["status"].get("nominatedNodeName") == "n")
                await until(lambda: second.app.engine.state.nominations.node_of(uid) == "n")
                await first.client.patch(PODS, "high", {"status": {"nominatedNodeName": None}}, "default", subresource="status")
                await until(lambda: not second.app.engine.state.nominations.node_of(uid))
                assert first.app.engine.state.nominations.node_of(uid) == "n", "who led and chose the node goes by its own word"
                await first.client.delete(PODS, "low", "default", grace_period_seconds=0)
                assert await first.bound("high") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-03")
@pytest.mark.feature("SCH-FW-06")
def test_a_leader_that_loses_its_lease_mid_binding_leaves_the_rest_to_the_next(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler({"leaderElection": ELECTION}, leader_elect=True) as first:
            for number in range(3):
                await first.node(f"n{number}", cpu="4")
            stall = Stall()
            first.app.engine.frameworks["koord-scheduler"].pre_binds.append(stall)
            by_first = count_binds(first, [])
            for number in range(12):
                await first.pod(f"p{number}", cpu="1")
            await until(lambda: stall.held == 12)  # every pod has a place in the first one's books, and none at the API server
            async with first.another() as second:
                by_second = count_binds(second, [])
                stolen = {"holderIdentity": "nobody", "leaseDurationSeconds": 1, "renewTime": "2030-01-01T00:00:00.000000Z"}
                await first.client.patch(LEASES, "koord-scheduler", {"spec": stolen}, "kube-system")
                await until(lambda: not first.app.may_write())
                stall.release.set()
                with pytest.raises(FatalError):
                    await asyncio.wait_for(first.running, patience.seconds(10))
                await until(second.app.may_write)
                for number in range(12):
                    await second.bound(f"p{number}")
                assert by_first == []
                assert sorted(by_second) == sorted(f"p{number}" for number in range(12))
                assert max(Counter((await homes(second)).values()).values()) == 4

                async def told() -> bool:
                    """Who led, on the lease, as kube-scheduler tells it."""
                    events = (await second.client.list(EVENTS, "kube-system")).items
                    notes = [event["note"] for event in events if event["regarding"]["name"] == "koord-scheduler"]
                    return [sum(what in note for note in notes) for what in ("became leader", "stopped leading")] == [2, 1]

                await until(told)

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_two_schedulers_that_both_believe_to_lead_bind_no_pod_twice(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as first, first.another() as second:
            done: list[str] = []
            asked = [count_binds(live, done) for live in (first, second)]
            for number in range(4):
                await first.node(f"n{number}", cpu="16")
            for number in range(40):
                await first.pod(f"p{number}", cpu="100m")
            seen = {f"p{number}": await first.bound(f"p{number}") for number in range(40)}
            assert sorted(done) == sorted(seen)
            assert all(asked)  # both were at it
            for live in (first, second):
                await live.consistent()
            assert await homes(first) == seen  # what was bound stayed there

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_binds_that_fail_in_every_way_leak_nothing(scheduler: Any, seed: int) -> None:
    """Refused, unreachable, or done although the answer was lost: in the end each pod is bound once and the books are right."""
    dice = random.Random(seed)

    async def run() -> None:
        async with scheduler({"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}) as live:
            bind = live.client.bind

            async def rough(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                roll = dice.randrange(5)
                if roll == 0:
                    raise Conflict(409, "Conflict", "try again")
                if roll == 1:
                    raise Unreachable("the connection was lost")
                if roll == 2:
                    raise ApiError(500, "InternalError", "etcd is away")
                await bind(namespace, pod, node, uid)
                if roll == 3:
                    raise Unreachable("the answer was lost")

            live.client.bind = rough
            for number in range(3):
                await live.node(f"n{number}", cpu="4")
            for number in range(12):
                await live.pod(f"p{number}", cpu="1")
            for number in range(12):
                await live.until(f"p{number}", lambda pod: pod["spec"].get("nodeName"), seconds=40)
            await live.consistent()
            assert Counter((await homes(live)).values()) == {"n0": 4, "n1": 4, "n2": 4}

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-10")
def test_the_audit_finds_what_is_counted_wrongly(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live, aiohttp.ClientSession() as session:

            async def differences() -> list[str]:
                async with session.get(f"{live.ops.url}/debug/cache") as response:
                    return list((await response.json())["differences"])

            await live.node("n", cpu="4")
            await live.pod("p", cpu="1")
            await live.bound("p")
            await live.consistent()
            assert await differences() == []
            cluster = live.app.engine.cluster
            slot = cluster.slot_of("n")
            cluster.free[0][slot] -= 500
            assert await differences() == ["free[cpu] of node n is 2500, counted afresh 3000"]
            cluster.free[0][slot] += 500
            pod = cluster.remove_pod((await live.get("p"))["metadata"]["uid"])
            assert await differences() == ["pod default/p is on node n and is not counted"]
            cluster.place(pod, slot)

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_a_victim_that_cannot_be_removed_is_tried_again(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="4")
            await live.pod("low", cpu="4", terminationGracePeriodSeconds=0)
            await live.bound("low")
            delete, refusals = live.client.delete, [ApiError(500, "InternalError", "etcd is away")]

            async def rough(*arguments: Any, **more: Any) -> Any:
                if refusals:
                    raise refusals.pop()
                return await delete(*arguments, **more)

            live.client.delete = rough
            await live.client.create(PRIORITYCLASSES, {"metadata": {"name": "high"}, "value": 1000})
            await live.pod("high", cpu="4", priorityClassName="high")
            assert await live.bound("high") == "n"
            assert not refusals

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-10")
def test_the_page_of_a_node_tells_what_counts_there(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live, aiohttp.ClientSession() as session:
            await live.node("n", cpu="4")
            term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
            affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            await live.pod("apart", cpu="1", affinity=affinity)
            await live.pod("bare", containers=[{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 8080}]}])
            await live.bound("apart")
            await live.bound("bare")
            async with session.get(f"{live.ops.url}/apis/v1/nodes/n") as response:
                page = await response.json()
            assert page["pods"] == ["default/apart", "default/bare"]
            assert page["podsWithAffinity"] == page["podsWithRequiredAntiAffinity"] == ["default/apart"]
            assert page["requested"]["cpu"] == 1000
            assert page["nonZeroRequested"] == {"cpu": 1100, "memory": (64 + 200) << 20}
            assert page["usedPorts"] == [["TCP", "0.0.0.0", 8080]]
            assert (page["imageStates"], page["pvcRefCounts"]) == ({}, {})

    asyncio.run(run())
