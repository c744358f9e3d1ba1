"""The scheduler through its own door: objects in the API server in, bindings, conditions and events out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from koord.api.kinds import EVENTS, LEASES, NODES, PODS
from koord.api.times import parse_time
from koord.process.errors import FatalError
from tests.support import patience

GPU_TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


async def events_of(live: Any, name: str, reason: str) -> list[dict[str, Any]]:
    for _ in patience.tries(200):
        listed = await live.client.list(EVENTS, "default")
        found = [event for event in listed.items if event["regarding"]["name"] == name and event["reason"] == reason]
        if found:
            return found
        await asyncio.sleep(0.02)
    return []


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-KS-02")
def test_pods_are_bound_spread_and_announced(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            for number in range(3):
                await live.node(f"n{number}", cpu="2")
            for number in range(6):
                await live.pod(f"p{number}")
            nodes = [await live.bound(f"p{number}") for number in range(6)]
            assert sorted(nodes) == ["n0", "n0", "n1", "n1", "n2", "n2"]
            (event,) = await events_of(live, "p0", "Scheduled")
            assert event["note"] == f"Successfully assigned default/p0 to {nodes[0]}"
            assert event["reportingController"] == "koord-scheduler"
            assert event["action"] == "Binding"
            assert (await live.get("p0"))["status"]["conditions"][0]["status"] == "True"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.feature("SCH-KS-04")
def test_a_refused_pod_is_explained_and_retried_when_a_node_comes(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("small-1", cpu="500m")
            await live.node("small-2", cpu="500m")
            await live.node("gpu-1", taints=[GPU_TAINT])
            await live.pod("p", cpu="1")
            condition = await live.refused("p")
            assert condition["reason"] == "Unschedulable"
            text = "0/3 nodes are available: 1 node(s) had untolerated taint {gpu: yes}, 2 Insufficient cpu."
            assert condition["message"].startswith(text)
            assert "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling." in condition["message"]
            (event,) = await events_of(live, "p", "FailedScheduling")
            assert event["type"] == "Warning"
            assert event["note"] == condition["message"]
            await live.node("big", cpu="2")
            assert await live.bound("p") == "big"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-11")
def test_gates_hold_a_pod_until_they_are_removed(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await live.pod("p", schedulingGates=[{"name": "example.com/wait"}])
            await live.pod("q")
            await live.bound("q")
            assert live.app.queue.counts()["gated"] == 1
            await live.client.patch(PODS, "p", [{"op": "remove", "path": "/spec/schedulingGates"}], "default", type="json")
            assert await live.bound("p") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_a_higher_priority_pod_makes_room(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="2")
            low = await live.pod("low", cpu="2", terminationGracePeriodSeconds=0)
            await live.bound("low")
            await live.client.create(
                PODS_PRIORITY, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            )
            await live.pod("high", cpu="2", priorityClassName="high")
            assert await live.bound("high") == "n"
            assert not [p for p in (await live.client.list(PODS, "default")).items if p["metadata"]["uid"] == low["metadata"]["uid"]]
            assert await events_of(live, "low", "Preempted")

    from koord.api.kinds import PRIORITYCLASSES as PODS_PRIORITY

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-01")
def test_two_profiles_and_a_foreign_pod(scheduler: Any) -> None:
    async def run() -> None:
        packed = {
            "schedulerName": "packer",
            "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}],
        }
        async with scheduler({"profiles": [{"schedulerName": "koord-scheduler"}, packed]}) as live:
            await live.node("a", cpu="8")
            await live.node("b", cpu="8")
            await live.pod("first")
            used = await live.bound("first")
            await live.pod("spread")
            assert await live.bound("spread") != used
            await live.client.delete(PODS, "spread", "default", grace_period_seconds=0)
            await live.pod("foreign", scheduler="somebody-else")
            await asyncio.sleep(0.1)
            await live.pod("relabelled", scheduler="somebody-else", meta={"labels": {"scheduling.koordinator.sh/scheduler-name": "packer"}})
            assert await live.bound("relabelled") == used
            assert not (await live.get("foreign"))["spec"].get("nodeName")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-02")
def test_health_config_and_decisions_are_served(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live, aiohttp.ClientSession() as session:
            await live.node("n")
            await live.pod("p")
            await live.pod("huge", cpu="64")
            await live.bound("p")
            await live.refused("huge")
            assert (await session.get(f"{live.ops.url}/healthz")).status == 200
            config = await (await session.get(f"{live.ops.url}/configz")).json()
            assert config["kubescheduler.config.k8s.io"]["profiles"][0]["schedulerName"] == "koord-scheduler"
            placed = await (await session.get(f"{live.ops.url}/debug/decisions?kind=Pod&namespace=default&name=p")).json()
            assert placed[-1]["verdict"] == "Scheduled"
            assert placed[-1]["numbers"]["node"] == "n"
            assert {term["name"] for term in placed[-1]["terms"]} >= {"NodeResourcesFit", "TaintToleration"}
            refused = await (await session.get(f"{live.ops.url}/debug/decisions?kind=Pod&namespace=default&name=huge")).json()
            assert refused[-1]["verdict"] == "Unschedulable"
            assert refused[-1]["rule"] == "NodeResourcesFit"
            assert refused[-1]["terms"] == [{"name": "Insufficient cpu", "value": 1, "unit": "nodes"}]
            metrics = await (await session.get(f"{live.ops.url}/metrics")).text()
            assert 'scheduler_schedule_attempts_total{profile="koord-scheduler",result="scheduled"} 1.0' in metrics

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-03")
def test_losing_the_lease_stops_binding_and_ends_the_process(scheduler: Any) -> None:
    async def run() -> None:
        lease, renew = patience.lease()
        election = {
            "leaderElect": True, "leaseDuration": f"{lease * 2000:.0f}ms", "renewDeadline": f"{renew * 2000:.0f}ms", "retryPeriod": "500ms",
            "resourceName": "koord-scheduler", "resourceNamespace": "kube-system",
        }  # fmt: skip
        async with scheduler({"leaderElection": election}, leader_elect=True) as live:
            await live.node("n")
            await live.pod("before")
            assert await live.bound("before") == "n"
            thief = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 3600, "renewTime": "2030-01-01T00:00:00.000000Z"}}
            await live.client.patch(LEASES, "koord-scheduler", thief, "kube-system")
            for _ in patience.tries(200):
                if not live.app.may_write():
                    break
                await asyncio.sleep(0.02)
            assert not live.app.may_write()
            await live.pod("after")
            with pytest.raises(FatalError):
                await asyncio.wait_for(live.running, patience.seconds(5))
            assert not (await live.get("after"))["spec"].get("nodeName")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
def test_deleting_a_pod_lets_a_waiting_one_in(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="1")
            await live.pod("first")
            await live.bound("first")
            await live.pod("second")
            await live.refused("second")
            await live.client.delete(PODS, "first", "default", grace_period_seconds=0)
            assert await live.bound("second") == "n"
            await live.client.delete(NODES, "n")
            await live.pod("third")
            assert (await live.refused("third"))["message"] == "no nodes available to schedule pods"

    asyncio.run(run())


@pytest.mark.feature("SCH-LA-10")
@pytest.mark.feature("SCH-FW-10")
def test_what_is_known_of_a_node_can_be_asked(scheduler: Any) -> None:
    async def run() -> None:
        profile = {"schedulerName": "koord-scheduler", "plugins": {"filter": {"enabled": [{"name": "LoadAwareScheduling"}]}}}
        async with scheduler({"profiles": [profile]}, crds=True) as live, aiohttp.ClientSession(f"{live.ops.url}/apis/v1/") as session:
            await live.node("n", cpu="4")
            await live.pod("p", cpu="1")
            await live.bound("p")
            paths = await (await session.get("__services__")).json()
            assert paths == {"GET": ["/apis/v1/nodes/{name}", "/apis/v1/plugins/LoadAwareScheduling/node/{name}"]}
            node = await (await session.get("nodes/n")).json()
            assert (node["pods"], node["requested"]["cpu"], node["remaining"]["cpu"]) == (["default/p"], 1000, 3000)
            assert (await session.get("nodes/none")).status == 404
            load = await (await session.get("plugins/LoadAwareScheduling/node/n")).json()
            assert [entry["pod"] for entry in load["pods"]] == ["default/p"]
            assert abs(parse_time(load["pods"][0]["timestamp"]) - time.time()) < 3600
            assert load["nodeEstimated"]["cpu"] == 850
            assert await (await session.get("plugins/LoadAwareScheduling/node/none")).json() == {}

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-04")
def test_nothing_is_scheduled_on_an_old_picture(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roles.scheduler.live._LOOK_EVERY", 0.05)

    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await live.pod("before")
            assert await live.bound("before") == "n"
            real = live.app.informers.age
            live.app.informers.age = lambda *kinds: 61.0
            while not live.app.scheduler._outdated:
                await asyncio.sleep(0.01)
            await live.pod("after")
            while not len(live.app.queue):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert not (await live.get("after"))["spec"].get("nodeName")
            live.app.informers.age = real
            assert await live.bound("after") == "n"

    asyncio.run(run())
