"""Devices that are published as ResourceSlices: pods ask for them by amounts and by claims, and each is given away once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koord.api.deviceslices import DRIVER
from koord.api.kinds import DEVICECLASSES, PODS, PRIORITYCLASSES, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES
from koord.api.objects import Device, convert
from koord.api.objects_resource import ResourceClaim
from roles.manager.slices.slices import slices_of
from roles.scheduler import testing
from roles.scheduler.plugins.dynamic_resources.claims import Claims
from roles.scheduler.plugins.dynamic_resources.inventory import Use
from tests.support.claims import claim, device_class, of_template, request, results, template
from tests.support.devices import ALLOCATED, CORE, RATIO, device, entry, gpus

from .test_live_devices import CONFIG, ask, machine, minors

Obj = dict[str, Any]
pytestmark = pytest.mark.feature("SCH-DRA-21")


async def publish(objects: Any, name: str, cards: Any) -> None:
    """The node with its Device, and the slices of it as the manager makes them."""
    await machine(objects, name, cards)
    for one in slices_of(convert({"metadata": {"name": name, "uid": "u"}, "spec": device(name, cards)["spec"]}, Device), 1):
        await objects.client.create(RESOURCESLICES, one)


async def classes(objects: Any) -> None:
    await objects.client.create(DEVICECLASSES, device_class("gpu", f'device.driver == "{DRIVER}"'))
    await objects.client.create(RESOURCECLAIMTEMPLATES, template("one"), "default")


async def got(live: Any, pod: str) -> list[str]:
    """The devices of the claim that was made for a pod."""
    await live.bound(pod)
    name = (await live.get(pod))["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    return [one.partition("/")[2] for one in results(await live.client.get(RESOURCECLAIMS, name, "default"))]


def annotated(pod: Obj) -> list[int]:
    return minors(pod["metadata"]["annotations"])


def test_a_device_is_had_by_amounts_or_by_a_claim_and_who_waits_hears_of_either(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(CONFIG, crds=True) as live:
            await classes(live)
            await publish(live, "n", gpus(2))
            await ask(live, "half", {CORE: 50, RATIO: 50})
            await live.bound("half")
            (mine,) = annotated(await live.get("half"))
            await live.pod("claims", resourceClaims=of_template())
            assert await got(live, "claims") == [f"gpu-{1 - mine}"], "of a device a part of which is had nothing is left for claims"
            await ask(live, "whole", {CORE: 100, RATIO: 100})
            assert "Insufficient GPU Devices" in (await live.refused("whole"))["message"]
            await live.pod("more", resourceClaims=of_template())
            assert "cannot allocate all claims" in (await live.refused("more"))["message"]
            await live.client.delete(PODS, "half", "default", grace_period_seconds=0)
            await live.client.delete(PODS, "claims", "default", grace_period_seconds=0)
            await live.bound("whole")
            assert {f"gpu-{annotated(await live.get('whole'))[0]}", *await got(live, "more")} == {"gpu-0", "gpu-1"}

    asyncio.run(run())


def test_a_scheduler_that_starts_finds_what_claims_and_pods_have(scheduler: Any) -> None:
    async def before(objects: Any) -> None:
        await publish(objects, "n", gpus(3))
        await classes(objects)
        held = {ALLOCATED: json.dumps({"gpu": [entry(0, gpu_core=10, gpu_memory_ratio=10, gpu_memory="8Gi")]})}
        await ask(objects, "here", {CORE: 10, RATIO: 10}, node="n", annotations=held)
        await objects.client.create(RESOURCECLAIMS, claim("theirs"), "default")
        allocation = {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n", "device": "gpu-1"}]}}
        await objects.client.patch(RESOURCECLAIMS, "theirs", {"status": {"allocation": allocation}}, "default", subresource="status")

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=before) as live:
            await ask(live, "whole", {CORE: 100, RATIO: 100})
            await live.bound("whole")
            assert annotated(await live.get("whole")) == [2]
            await live.pod("more", resourceClaims=of_template())
            assert "cannot allocate all claims" in (await live.refused("more"))["message"]
            await ask(live, "part", {CORE: 80, RATIO: 80})
            await live.bound("part")
            assert annotated(await live.get("part")) == [0]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-18")
@pytest.mark.parametrize("by_claim", [False, True], ids=["for amounts", "for a claim"])
def test_a_pod_of_higher_priority_gets_the_device_of_the_other_sort(scheduler: Any, by_claim: bool) -> None:
    async def run() -> None:
        async with scheduler(CONFIG, crds=True) as live:
            await classes(live)
            for name, value in (("low", 1), ("high", 1000)):
                body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
                await live.client.create(PRIORITYCLASSES, body)
            await publish(live, "n", gpus(1))
            amounts = {"resources": {key: {"cpu": "1", CORE: "100", RATIO: "100"} for key in ("requests", "limits")}}
            sorts: list[Obj] = [{"containers": [{"name": "main", "image": "i", **amounts}]}, {"resourceClaims": of_template()}]
            first, second = sorts if by_claim else reversed(sorts)
            await live.pod("victim", priorityClassName="low", terminationGracePeriodSeconds=0, **first)
            await live.bound("victim")
            await live.pod("winner", priorityClassName="high", **second)
            assert await live.bound("winner") == "n"

    asyncio.run(run())


def part(percent: int) -> Obj:
    amounts = {key: {"cpu": "1", CORE: str(percent), RATIO: str(percent)} for key in ("requests", "limits")}
    return {"containers": [{"name": "main", "image": "i", "resources": amounts}]}


def by_claim() -> Obj:
    return {"resourceClaims": of_template()}


def by_claim_of_two() -> Obj:
    return {"resourceClaims": of_template("two")}


@pytest.mark.parametrize(
    ("keeps", "victim", "waits", "small"),
    [
        pytest.param(part(100), part(50), part(60), part(50), id="card kept by amounts"),
        pytest.param(by_claim(), part(50), part(60), part(50), id="card kept by a claim"),
        pytest.param(by_claim(), part(50), by_claim(), part(50), id="waits for a claim"),
        pytest.param(None, part(50), by_claim_of_two(), part(60), id="waits for a claim of two"),
        pytest.param(None, by_claim(), by_claim_of_two(), by_claim(), id="claims only"),
        pytest.param(None, by_claim(), part(200), by_claim(), id="a claim leaves for amounts"),
    ],
)
def test_nobody_takes_what_a_victim_still_has_from_the_pod_that_waits_for_it(
    scheduler: Any, keeps: Obj | None, victim: Obj, waits: Obj, small: Obj
) -> None:
    """A nominated pod counts on the card that its victim leaves, not on one that somebody keeps."""

    async def run() -> None:
        async with scheduler(CONFIG, crds=True) as live:
            await classes(live)
            await live.client.create(RESOURCECLAIMTEMPLATES, template("two", request(count=2, allocationMode="ExactCount")), "default")
            for name, value in (("low", 1), ("high", 1000)):
                body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
                await live.client.create(PRIORITYCLASSES, body)
            await publish(live, "n", gpus(2))
            if keeps is not None:
                await live.pod("keeps", priorityClassName="high", **keeps)
                await live.bound("keeps")
            await live.pod("victim", priorityClassName="low", terminationGracePeriodSeconds=30, **victim)
            await live.bound("victim")
            await live.pod("waits", priorityClassName="high", **waits)
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            await live.pod("small", priorityClassName="low", **small)
            pod = await live.until("small", lambda pod: pod["spec"].get("nodeName") or pod["status"].get("conditions"))
            assert not pod["spec"].get("nodeName"), "it took what the nominated pod waits for"
            await live.client.delete(PODS, "victim", "default", grace_period_seconds=0)
            assert await live.bound("waits") == "n"

    asyncio.run(run())


def test_a_pod_that_is_gone_has_devices_until_its_claim_is_given_back() -> None:
    world = testing.World()
    claims = world.cluster.register("DynamicResources", Claims())
    told: list[str] = []
    claims.now, claims.released = lambda: 100.0, told.append
    world.add_nodes(testing.node("n"))
    slot = world.cluster.slot_of("n")
    pod = world.parser.parse(testing.pod("p", node="n"))
    given = [{"request": "r", "driver": DRIVER, "pool": "n", "device": "gpu-0"}]
    reserved = {"reservedFor": [{"resource": "pods", "name": "p", "uid": pod.uid}], "allocation": {"devices": {"results": given}}}
    meta = {"name": "c", "namespace": "default", "uid": "c"}
    held = convert({"metadata": meta, "spec": {}, "status": reserved}, ResourceClaim)
    claims.claim_set(None, held)
    world.cluster.place(pod, slot)
    assert not claims.held(slot, 0.0)
    world.cluster.remove_pod(pod.uid)
    assert claims.held(slot, 100.0)
    assert not claims.held(slot, 100.1), "it is too long ago"
    assert not claims.held(slot + 1, 0.0)
    assert claims.left_by(slot, ()) == [Use((DRIVER, "n", "gpu-0"), None)]
    assert claims.holding(pod.uid)
    assert told == []
    claims.claim_set(held, convert({"metadata": meta, "spec": {}, "status": {}}, ResourceClaim))
    assert not claims.held(slot, 0.0)
    assert not claims.holding(pod.uid)
    assert told == [pod.uid]


def test_whoever_is_taken_away_in_a_what_if_leaves_no_trace() -> None:
    from roles.scheduler.plugins.device_share.columns import DeviceColumns

    world = testing.World()
    columns, claims = world.cluster.register("DeviceShare", DeviceColumns()), world.cluster.register("DynamicResources", Claims())
    columns.beside(claims)
    world.add_nodes(testing.node("n"))
    columns.device_set(None, convert({"metadata": {"name": "n"}, "spec": device("n", gpus(2))["spec"]}, Device))
    held = {ALLOCATED: json.dumps({"gpu": [entry(0, gpu_core=10, gpu_memory_ratio=10, gpu_memory="8Gi")]})}
    pod = world.parser.parse(testing.pod("p", node="n", annotations=held, requests={CORE: "10", RATIO: "10"}))
    slot = world.cluster.slot_of("n")
    world.cluster.place(pod, slot)
    device_id = (DRIVER, "n", "gpu-0")
    assert claims.taken == {device_id: 1}
    with world.state.suppose() as supposed:
        supposed.remove(pod.uid)
        assert claims.taken == {}
        for _ in supposed.undo():
            pass
    assert claims.taken == {device_id: 1}
    world.cluster.remove_pod(pod.uid)
    assert claims.taken == {}
