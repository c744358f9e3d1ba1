"""Reservations through the API server: objects in; status, conditions, bindings, annotations and events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from koord import seams
from koord.api.kinds import EVENTS, NODES, PODS, RESERVATIONS
from koord.api.times import format_time
from koord.kube.servertime import ServerTime
from tests.roles.scheduler.reservation.worlds import AFFINITY, ALLOCATED, BY_LABEL, OWNER, body, profile
from tests.support import patience

Obj = dict[str, Any]


class Reservations:
    """Short ways to make and watch Reservations."""

    def __init__(self, live: Any) -> None:
        self.live = live

    async def make(self, name: str, **more: Any) -> Obj:
        created: Obj = await self.live.client.create(RESERVATIONS, body(name, **more))
        return created

    async def until(self, name: str, test: Callable[[Obj], Any]) -> Obj:
        found: Obj = {}
        for _ in patience.tries(1000):
            found = await self.live.client.get(RESERVATIONS, name)
            if test(found):
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"reservation {name} never got there: {found.get('status')}")

    async def phase(self, name: str, phase: str) -> Obj:
        return await self.until(name, lambda r: r.get("status", {}).get("phase") == phase)

    async def events(self, name: str, reason: str) -> list[Obj]:
        for _ in patience.tries(200):
            listed = await self.live.client.list(EVENTS)
            found = [event for event in listed.items if event["regarding"]["name"] == name and event["reason"] == reason]
            if found:
                return found
            await asyncio.sleep(0.02)
        return []


def conditions(reservation: Obj) -> dict[str, tuple[str, str]]:
    return {found["type"]: (found["status"], found["reason"]) for found in reservation["status"].get("conditions", ())}


def owner_meta(**wish: Any) -> Obj:
    return {"labels": OWNER, "annotations": {AFFINITY: json.dumps(wish)}}


def allocated(pod: Obj) -> str:
    text = pod["metadata"].get("annotations", {}).get(ALLOCATED)
    return json.loads(text)["name"] if text else ""


def started(scheduler: Any, args: Obj | None = None, **more: Any) -> Any:
    return scheduler({"profiles": [profile(args)]}, crds=True, **more)


class TwoDaysAhead(seams.System):
    """A machine whose wall clock is wrong."""

    def now(self) -> float:
        return super().now() + 200_000.0


@pytest.mark.feature("SCH-RSV-01")
def test_a_scheduler_with_a_wrong_clock_does_not_take_new_reservations_for_expired(scheduler: Any) -> None:
    async def wrong(objects: Any) -> None:
        seams.use(TwoDaysAhead())  # the API server has begun already, on another machine
        objects.client.transport.time = ServerTime()

    async def run() -> None:
        async with started(scheduler, before=wrong) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await found.make("r", cpu="3", ttl="1h")
            await found.phase("r", "Available")
            await found.make("short", cpu="1", ttl="1s")
            await found.phase("short", "Failed")  # by then the other one would have failed
            assert (await live.client.get(RESERVATIONS, "r"))["status"]["phase"] == "Available"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-01")
@pytest.mark.feature("SCH-RSV-08")
@pytest.mark.feature("SCH-RSV-05")
def test_a_reservation_is_scheduled_used_and_shows_it(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            made = await found.make("r", cpu="3", memory="1Gi", annotations={"example.com/x": "y"})
            shown = await found.phase("r", "Available")
            assert shown["status"]["nodeName"] == "n"
            assert shown["status"]["allocatable"] == {"cpu": "3", "memory": "1Gi"}
            assert conditions(shown) == {"Scheduled": ("True", "Scheduled"), "Ready": ("True", "Available")}
            (event,) = await found.events("r", "Scheduled")
            assert event["regarding"]["kind"] == "Reservation"
            assert event["note"] == "Successfully assigned r to n"
            await live.pod("stranger", cpu="2")
            assert "Insufficient cpu" in (await live.refused("stranger"))["message"]
            await live.pod("p", cpu="2", meta={"labels": OWNER})
            await live.bound("p")
            pod = await live.get("p")
            assert json.loads(pod["metadata"]["annotations"][ALLOCATED]) == {"name": "r", "uid": made["metadata"]["uid"]}
            used = await found.until("r", lambda r: r["status"].get("currentOwners"))
            assert used["status"]["currentOwners"] == [{"namespace": "default", "name": "p", "uid": pod["metadata"]["uid"]}]
            assert used["status"]["allocated"] == {"cpu": "2", "memory": "64Mi"}
            assert used["status"]["phase"] == "Available"
            assert live.app.observer.audit() == []
            await live.client.delete(PODS, "p", "default", grace_period_seconds=0)
            free = await found.until("r", lambda r: not r["status"].get("currentOwners"))
            assert not free["status"].get("allocated")

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-05")
@pytest.mark.feature("SCH-RSV-01")
def test_used_once_it_succeeds_and_gives_the_rest_back(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await found.make("r", cpu="4", memory="1Gi", once=True)
            await found.phase("r", "Available")
            await live.pod("waiting", cpu="2")
            await live.refused("waiting")
            await live.pod("p", cpu="1", meta={"labels": OWNER})
            await live.bound("p")
            done = await found.phase("r", "Succeeded")
            assert conditions(done)["Ready"] == ("False", "Succeeded")
            assert [owner["name"] for owner in done["status"]["currentOwners"]] == ["p"]
            assert await live.bound("waiting") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-01")
def test_a_reservation_that_does_not_fit_says_so_and_is_tried_again(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("small", cpu="1")
            await found.make("r", cpu="4")
            shown = await found.until("r", lambda r: conditions(r) if r.get("status") else None)
            assert conditions(shown) == {"Scheduled": ("False", "Unschedulable")}
            assert "Insufficient cpu" in shown["status"]["conditions"][0]["message"]
            (event, *_) = await found.events("r", "FailedScheduling")
            assert event["type"] == "Warning"
            await live.node("big", cpu="8")
            assert (await found.phase("r", "Available"))["status"]["nodeName"] == "big"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-03")
def test_a_failure_is_not_told_of_a_reservation_that_was_placed_meanwhile(scheduler: Any) -> None:
    """By another replica: the conditions are one list, which would be the old one again."""

    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("small", cpu="1")
            client, written = live.app.reporter._client, asyncio.Event()
            patch = client.patch

            async def late(kind: Any, name: str, body: Any, *more: Any, **options: Any) -> Any:
                if kind is RESERVATIONS and not written.is_set():
                    placed = [{"type": "Scheduled", "status": "True", "reason": "Scheduled"}]
                    status = {"phase": "Available", "nodeName": "small", "conditions": placed}
                    await live.client.patch(RESERVATIONS, name, {"status": status}, subresource="status")
                    try:
                        return await patch(kind, name, body, *more, **options)
                    finally:
                        written.set()
                return await patch(kind, name, body, *more, **options)

            live.app.reporter._client = SimpleNamespace(patch=late, get=client.get)
            await found.make("r", cpu="4")
            await asyncio.wait_for(written.wait(), patience.seconds(10))
            assert conditions(await live.client.get(RESERVATIONS, "r")) == {"Scheduled": ("True", "Scheduled")}

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-03")
@pytest.mark.feature("SCH-RSV-15")
def test_a_pod_waits_for_its_reservation(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n")
            await live.pod("p", meta=owner_meta(name="r"))
            condition = await live.refused("p")
            assert "node(s) no reservations match reservation affinity" in condition["message"]
            (event, *_) = await found.events("p", "FailedScheduling-Reservation")
            assert event["note"].startswith("0/0 reservations are available")
            assert event["action"] == "Scheduling"
            await found.make("r", cpu="2")
            assert await live.bound("p") == "n"
            assert allocated(await live.get("p")) == "r"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-15")
def test_the_event_tells_what_the_reservation_has_too_little_of(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n", cpu="8")
            await found.make("r", cpu="2", policy="Restricted")
            await found.phase("r", "Available")
            await live.pod("p", cpu="3", meta=owner_meta(name="r"))
            await live.refused("p")
            (event, *_) = await found.events("p", "FailedScheduling-Reservation")
            named = "1 Reservation(s) exactly matches the requested reservation name"
            short = "1 Reservation(s) Insufficient cpu, requested: 3000, used: 0, capacity: 2000"
            assert event["note"] == f"0/1 reservations are available: {named}, {short}."

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-06")
def test_an_owner_without_affinity_that_waits_is_woken(scheduler: Any) -> None:
    """NodeResourcesFit refused it; a reservation that comes later is what helps."""

    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            made = await found.make("r", cpu="2", memory="1Gi", unschedulable=True)
            await found.phase("r", "Available")
            await live.pod("p", cpu="3", meta={"labels": OWNER})
            await live.refused("p")
            await live.client.patch(RESERVATIONS, "r", {"metadata": {"uid": made["metadata"]["uid"]}, "spec": {"unschedulable": False}})
            assert await live.bound("p") == "n"
            assert allocated(await live.get("p")) == "r"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-12")
def test_it_expires_by_time_and_with_its_node(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await live.node("m", cpu="4")
            await found.make("timed", cpu="4", ttl="2s", template={"nodeName": "n"})
            await found.make("noded", cpu="4", template={"nodeName": "m"})
            await found.make("huge", cpu="400", ttl="1s")
            await found.make("forever", cpu="1", ttl="0s", expires=format_time(1.0), template={"nodeName": "absent"})
            await found.phase("noded", "Available")
            over = await found.phase("timed", "Failed")
            assert conditions(over)["Ready"] == ("False", "Expired")
            assert conditions(over)["Scheduled"] == ("True", "Scheduled")
            assert conditions(await found.phase("huge", "Failed"))["Ready"] == ("False", "Expired")
            await live.pod("p", cpu="4")
            assert await live.bound("p") == "n"
            await live.client.delete(NODES, "m")
            assert conditions(await found.phase("noded", "Failed"))["Ready"] == ("False", "Expired")
            assert (await live.client.get(RESERVATIONS, "forever"))["status"]["phase"] == "Pending"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-12")
def test_what_is_over_is_collected(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler, {"gcIntervalSeconds": 1, "gcDurationSeconds": 1}) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await found.make("short", cpu="1", ttl="1s")
            await found.make("long", cpu="1")
            for _ in patience.tries(400):
                left = {item["metadata"]["name"] for item in (await live.client.list(RESERVATIONS)).items}
                if left == {"long"}:
                    break
                await asyncio.sleep(0.02)
            assert left == {"long"}

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-08")
def test_the_annotation_goes_when_binding_fails_and_when_the_reservation_is_deleted(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler, gates={"CleanExpiredReservationAllocated": True}) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await found.make("r", cpu="2")
            await found.phase("r", "Available")
            bind, seen = live.client.bind, []

            async def refuse(namespace: str, name: str, node: str, **more: Any) -> Any:
                seen.append(allocated(await live.get(name)))
                if len(seen) == 1:
                    await live.client.delete(RESERVATIONS, "r")
                    raise OSError("the line is cut")
                return await bind(namespace, name, node, **more)

            live.client.bind = refuse
            await live.pod("p", cpu="1", meta={"labels": OWNER})
            await live.bound("p")
            assert seen[0] == "r"
            await live.until("p", lambda pod: not allocated(pod))
            await found.make("s", cpu="2")
            await found.phase("s", "Available")
            await live.pod("q", cpu="1", meta=owner_meta())
            await live.bound("q")
            assert allocated(await live.get("q")) == "s"
            await live.client.delete(RESERVATIONS, "s")
            await live.until("q", lambda pod: not allocated(pod))

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-08")
def test_a_restart_finds_owners_and_reservations_again(scheduler: Any) -> None:
    async def run() -> None:
        async def before(objects: Any) -> None:
            await objects.node("n", cpu="4")
            made = await objects.client.create(RESERVATIONS, body("r", cpu="3", memory="1Gi"))
            status = {"phase": "Available", "nodeName": "n", "allocatable": {"cpu": "3", "memory": "1Gi"}}
            await objects.client.patch(RESERVATIONS, "r", {"status": status}, subresource="status")
            value = json.dumps({"name": "r", "uid": made["metadata"]["uid"]})
            await objects.pod("p", cpu="2", nodeName="n", meta={"annotations": {ALLOCATED: value}})

        async with started(scheduler, before=before) as live:
            found = Reservations(live)
            used = await found.until("r", lambda r: r["status"].get("currentOwners"))
            assert used["status"]["allocated"]["cpu"] == "2"
            await live.pod("stranger", cpu="2")
            await live.refused("stranger")
            await live.pod("q", cpu="2", meta=owner_meta())
            assert await live.bound("q") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-16")
def test_pages_and_metrics(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler, {"resyncIntervalSeconds": 1}) as live, aiohttp.ClientSession() as session:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await found.make("r", cpu="2", memory="2Gi")
            await found.phase("r", "Available")
            await live.pod("p", cpu="1", meta={"labels": OWNER})
            await live.bound("p")
            await found.until("r", lambda r: r["status"].get("currentOwners"))
            page = await (await session.get(f"{live.ops.url}/apis/v1/plugins/Reservation/nodeReservations/n")).json()
            (item,) = page["items"]
            assert (item["name"], item["kind"], item["available"], item["allocateOnce"]) == ("r", "Reservation", True, False)
            assert item["allocated"] == {"cpu": "1", "memory": "64Mi"}
            assert [pod["name"] for pod in item["assignedPods"]] == ["p"]
            index = await (await session.get(f"{live.ops.url}/apis/v1/plugins/Reservation/reservationSelectorIndex?detail=true")).json()
            assert index["enabled"] is False
            text = ""
            for _ in patience.tries(200):
                text = await (await session.get(f"{live.ops.url}/metrics")).text()
                if 'scheduler_reservation_resource{name="r",resource="cpu",type="utilization",unit="ratio"} 0.5' in text:
                    break
                await asyncio.sleep(0.02)
            assert 'scheduler_reservation_resource{name="r",resource="cpu",type="utilization",unit="ratio"} 0.5' in text
            assert 'scheduler_reservation_resource{name="r",resource="memory",type="allocatable",unit="Gi"} 2.0' in text
            assert 'scheduler_reservation_status_phase{name="r",phase="Available"} 1.0' in text
            assert 'scheduler_reservation_status_phase{name="r",phase="Failed"} 0.0' in text

    asyncio.run(run())


async def shown_as(live: Any, name: str, node: str, amounts: Obj) -> None:
    status = {"phase": "Available", "nodeName": node, "allocatable": amounts}
    await live.client.patch(RESERVATIONS, name, {"status": status}, subresource="status")


@pytest.mark.feature("SCH-RSV-01")
def test_a_reservation_of_another_scheduler_is_counted_but_not_scheduled(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await found.make("foreign", cpu="3", template={"schedulerName": ""})
            await found.make("own", cpu="1")
            await found.phase("own", "Available")
            foreign = await live.client.get(RESERVATIONS, "foreign")
            assert not {"nodeName", "conditions"} & foreign.get("status", {}).keys()
            await shown_as(live, "foreign", "n", {"cpu": "3", "memory": "1Gi"})
            await live.pod("p", cpu="2", meta=owner_meta(name="foreign"))
            await live.bound("p")
            assert allocated(await live.get("p")) == "foreign"
            await live.pod("q", cpu="1", meta={"labels": {"app": "stranger"}})
            assert "Insufficient cpu" in (await live.refused("q"))["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-11")
def test_a_running_pod_is_handed_over_before_the_reservation_is_there(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await live.pod("old", cpu="4", nodeName="n", meta={"labels": OWNER})
            await live.until("old", lambda pod: live.app.cache.cluster.pod_count)
            made = await found.make("r", cpu="4", memory="1Gi", policy="Restricted", preAllocation=True)
            await found.phase("r", "Available")
            pod = await live.get("old")
            assert json.loads(pod["metadata"]["annotations"][ALLOCATED]) == {"name": "r", "uid": made["metadata"]["uid"]}
            used = await found.until("r", lambda r: r["status"].get("currentOwners"))
            assert used["status"]["allocated"]["cpu"] == "4"
            await live.client.delete(PODS, "old", "default", grace_period_seconds=0)
            await live.pod("next", cpu="3", meta=owner_meta())
            await live.bound("next")
            assert allocated(await live.get("next")) == "r"

    asyncio.run(run())


async def one_is_taken_over(scheduler: Any, meta: Obj, reservation: Obj, change: Callable[[Any], Awaitable[Any]]) -> None:
    """A Reservation for which a full node has no room takes over the pod there once something has changed."""
    async with started(scheduler) as live:
        found = Reservations(live)
        await live.node("n", cpu="4")
        await live.pod("old", cpu="4", nodeName="n", meta=meta)
        await live.until("old", lambda pod: live.app.cache.cluster.pod_count)
        await found.make("r", cpu="4", memory="64Mi", policy="Restricted", **reservation)
        await found.until("r", lambda r: r.get("status", {}).get("conditions"))
        await change(live.client)
        await found.phase("r", "Available")
        assert allocated(await live.get("old")) == "r"


@pytest.mark.feature("SCH-RSV-11")
def test_a_reservation_is_tried_again_when_a_pod_becomes_one_that_it_may_take_over(scheduler: Any) -> None:
    async def labelled(client: Any) -> None:
        await client.patch(PODS, "old", {"metadata": {"labels": OWNER}}, "default")

    async def released(client: Any) -> None:
        await client.patch(PODS, "old", {"metadata": {"annotations": {ALLOCATED: None}}}, "default")

    used = {"labels": OWNER, "annotations": {ALLOCATED: '{"name":"former","uid":"former"}'}}
    asyncio.run(one_is_taken_over(scheduler, {}, {"preAllocation": True}, labelled))
    asyncio.run(one_is_taken_over(scheduler, used, {"preAllocation": True}, released))


@pytest.mark.feature("SCH-RSV-11")
def test_a_reservation_is_tried_again_when_it_may_take_pods_over(scheduler: Any) -> None:
    async def corrected(client: Any) -> None:
        await client.patch(RESERVATIONS, "r", {"spec": {"owners": BY_LABEL}})

    async def allowed(client: Any) -> None:
        await client.patch(RESERVATIONS, "r", {"spec": {"preAllocation": True}})

    strangers = [{"labelSelector": {"matchLabels": {"app": "stranger"}}}]
    asyncio.run(one_is_taken_over(scheduler, {"labels": OWNER}, {"preAllocation": True, "owners": strangers}, corrected))
    asyncio.run(one_is_taken_over(scheduler, {"labels": OWNER}, {}, allowed))


@pytest.mark.feature("SCH-RSV-13")
def test_a_reservation_preempts_and_gets_the_node(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler, {"enablePreemption": True}) as live:
            found = Reservations(live)
            await live.node("n", cpu="2")
            await live.pod("low", cpu="2", terminationGracePeriodSeconds=0)
            await live.bound("low")
            await found.make("r", cpu="2", memory="1Gi")
            assert (await found.phase("r", "Available"))["status"]["nodeName"] == "n"
            (event, *_) = await found.events("low", "Preempted")
            assert event["type"] == "Normal"

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-14")
def test_a_pod_as_reservation_is_named_by_its_owner(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            await live.node("n", cpu="4")
            owners = json.dumps([{"labelSelector": {"matchLabels": OWNER}}])
            label = {"scheduling.koordinator.sh/operating-mode": "Reservation"}
            meta = {"labels": label, "annotations": {"scheduling.koordinator.sh/reservation-owners": owners}}
            made = await live.pod("op", cpu="4", nodeName="n", meta=meta)
            await live.pod("p", cpu="2", meta=owner_meta())
            await live.refused("p")
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            await live.client.patch(PODS, "op", {"status": status}, "default", subresource="status")
            await live.bound("p")
            value = json.loads((await live.get("p"))["metadata"]["annotations"][ALLOCATED])
            assert value == {"name": "op", "uid": made["metadata"]["uid"]}

    asyncio.run(run())


@pytest.mark.feature("SCH-RSV-01")
@pytest.mark.feature("SCH-RSV-15")
def test_decisions_about_reservations_are_found_under_their_name(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live, aiohttp.ClientSession() as session:
            found = Reservations(live)
            await live.node("n", cpu="4")
            await found.make("r", cpu="2", template={"nodeName": "elsewhere"})
            shown = await found.until("r", lambda r: conditions(r) if r.get("status") else None)
            message = shown["status"]["conditions"][0]["message"]
            assert "1 node(s) didn't match the nodeName specified by reservation" in message
            page = await (await session.get(f"{live.ops.url}/debug/decisions?kind=Reservation&name=r")).json()
            assert page[-1]["verdict"] == "Unschedulable"
            await found.make("s", cpu="2", owners=[{"labelSelector": {"matchLabels": {"app": "s"}}}], policy="Restricted")
            await found.phase("s", "Available")
            await live.pod("p", cpu="3", meta={"labels": {"app": "s"}, "annotations": {AFFINITY: "{}"}})
            assert "Reservation(s) Insufficient cpu" in (await live.refused("p"))["message"]
            page = await (await session.get(f"{live.ops.url}/debug/decisions?kind=Pod&namespace=default&name=p")).json()
            names = {term["name"] for term in page[-1]["terms"]}
            assert "reservation s: Reservation(s) Insufficient cpu" in names
            assert "reservation s: cpu left" in names

    asyncio.run(run())
