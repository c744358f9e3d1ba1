"""Pods that are resized in place, as the scheduler counts them and as it wakes those that wait for room, through the API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import PODS, PRIORITYCLASSES
from tests.support import patience

Obj = dict[str, Any]
STATES = json.loads((Path(__file__).parents[2] / "fixtures" / "resize-states.json").read_text())


def container(cpu: str, memory: str = "64Mi", name: str = "main") -> Obj:
    return {"name": name, "image": "i", "resources": {"requests": {"cpu": cpu, "memory": memory}}}


def held(allocated: str, actual: str, name: str = "main") -> Obj:
    """A container's status by what is allocated and what is in force."""
    status = {"name": name, "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    return {**status, "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual}}}


async def status(live: Any, name: str, **change: Any) -> None:
    await live.client.patch(PODS, name, {"status": change}, "default", subresource="status")


async def resize(live: Any, name: str, cpu: str) -> None:
    body = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
    await live.client.patch(PODS, name, body, "default", type="strategic", subresource="resize")


@pytest.mark.feature("SCH-RSZ-01")
@pytest.mark.feature("SCH-RSZ-02")
def test_a_node_has_room_for_exactly_what_its_resized_pods_do_not_hold(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            for state in STATES:
                name, room = state["name"], state["requests"]["cpu"] + 1000
                await live.node(name, cpu=f"{room}m", memory="100Gi")
                await live.pod(f"there-{name}", nodeName=name, **state["spec"])
                await status(live, f"there-{name}", **state["status"])
            for state in STATES:
                name = state["name"]
                for kind, cpu in (("more", "1001m"), ("fits", "1")):
                    await live.pod(f"{kind}-{name}", cpu=cpu, nodeSelector={"kubernetes.io/hostname": name})
            for state in STATES:
                assert await live.bound(f"fits-{state['name']}") == state["name"]
                assert "Insufficient cpu" in (await live.refused(f"more-{state['name']}"))["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-RSZ-03")
def test_a_pod_that_waits_for_room_comes_back_when_a_shrink_is_through(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="4")
            await live.pod("there", cpu="3", nodeName="n")
            await status(live, "there", phase="Running", containerStatuses=[held("3", "3")])
            await live.pod("waits", cpu="2")
            await live.refused("waits")
            await resize(live, "there", "1")
            await status(live, "there", containerStatuses=[held("1", "3")])  # allocated, not in force yet
            tried = live.app.queue.get((await live.get("waits"))["metadata"]["uid"]).attempts
            await status(live, "there", containerStatuses=[held("1", "1")])
            assert await live.bound("waits") == "n"
            assert tried == 1, "nothing was free before the kubelet was through"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSZ-03")
def test_a_pod_that_waits_for_room_comes_back_when_a_growth_turns_out_to_be_impossible(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="4")
            await live.pod("there", cpu="1", nodeName="n")
            await status(live, "there", phase="Running", containerStatuses=[held("1", "1")])
            await resize(live, "there", "40")
            await live.pod("waits", cpu="2")
            await live.refused("waits")
            pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
            await status(live, "there", conditions=[pending])
            assert await live.bound("waits") == "n"

    asyncio.run(run())


GATES = {"InPlacePodVerticalScalingSchedulerPreemption": True}
DEFERRED = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "Node didn't have enough resource: cpu"}


async def classes(live: Any, **values: int) -> None:
    for name, value in values.items():
        await live.client.create(PRIORITYCLASSES, {"metadata": {"name": name}, "value": value})


async def grows(live: Any, name: str, held_cpu: str, wanted: str) -> None:
    """The kubelet has no room for a resize."""
    await status(live, name, phase="Running", containerStatuses=[held(held_cpu, held_cpu)])
    await resize(live, name, wanted)
    await status(live, name, conditions=[DEFERRED])


async def gone(live: Any, name: str) -> None:
    for _ in patience.tries(400):
        if name not in {pod["metadata"]["name"] for pod in (await live.client.list(PODS, "default")).items}:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} stays")


async def told(live: Any, name: str, verdict: str) -> Obj:
    """The numbers of the record about a pod's resize, once there is one."""
    for _ in patience.tries(400):
        for record in live.ops.recorder.ring.find("Pod", "default", name):
            if record.verdict == verdict:
                return {term.name: term.value for term in record.terms}
        await asyncio.sleep(0.02)
    raise AssertionError(f"no record {verdict} of {name}")


@pytest.mark.feature("SCH-RSZ-04")
def test_pods_of_lower_priority_leave_for_a_deferred_resize_and_no_more_than_it_takes(scheduler: Any) -> None:
    """Two CPUs are missing: what somebody else of lower priority asks for, too, is not held against the service."""

    async def run() -> None:
        async with scheduler(gates=GATES) as live:
            await classes(live, low=10, mid=20, high=1000)
            await live.node("n", cpu="8")
            await live.pod("service", cpu="2", nodeName="n", priorityClassName="high")
            for name, cpu, priority in (("small", "1", "low"), ("large", "2", "low"), ("better", "2", "mid"), ("also", "1", "low")):
                await live.pod(name, cpu=cpu, nodeName="n", priorityClassName=priority, terminationGracePeriodSeconds=0)
            await grows(live, "also", "1", "2")
            await grows(live, "service", "2", "4")
            assert await told(live, "service", "Preempting") == {"missing cpu": 2000, "victim": "default/large"}
            await gone(live, "large")
            assert await told(live, "also", "ResizeWaits") == {"missing cpu": 1000}
            await status(live, "service", conditions=[], containerStatuses=[held("4", "4")])
            live.app.resizes.look()
            left = {pod["metadata"]["name"] for pod in (await live.client.list(PODS, "default")).items}
            assert left == {"service", "small", "better", "also"}

    asyncio.run(run())


@pytest.mark.feature("SCH-RSZ-04")
@pytest.mark.parametrize(("gates", "wanted"), [({}, "3"), (GATES, "6")])
def test_nobody_leaves_for_a_resize_without_the_gate_or_where_it_does_not_help(scheduler: Any, gates: Obj, wanted: str) -> None:
    async def run() -> None:
        async with scheduler(gates=gates) as live:
            await classes(live, low=10, high=1000)
            await live.node("n", cpu="4")
            await live.pod("service", cpu="1", nodeName="n", priorityClassName="high")
            await live.pod("peer", cpu="1", nodeName="n", priorityClassName="high")
            await live.pod("batch", cpu="2", nodeName="n", priorityClassName="low", terminationGracePeriodSeconds=0)
            await grows(live, "service", "1", wanted)
            if gates:
                await told(live, "service", "ResizeWaits")
            else:
                live.app.resizes.look()
            assert "deletionTimestamp" not in (await live.get("batch"))["metadata"]

    asyncio.run(run())
