"""Devices that have to be made ready before a pod is bound, through the scheduler's door; the test speaks for their driver."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api.kinds import EVENTS, PODS, RESOURCECLAIMS
from tests.roles.scheduler.test_live_claims import Obj, make, until
from tests.support import patience
from tests.support.claims import DRIVER, claim, device, device_class, of_claim, results, slice_of

pytestmark = pytest.mark.feature("SCH-DRA-16")


def attached(name: str) -> Obj:
    """A device that is attached to the node when a pod wants it."""
    return device(name, bindsToNode=True, bindingConditions=["Attached"], bindingFailureConditions=["Broken"])


async def tell(live: Any, name: str, condition: str) -> None:
    """The driver says that a condition of the first device of a claim holds."""
    shown = await live.client.get(RESOURCECLAIMS, name, "default")
    result = shown["status"]["allocation"]["devices"]["results"][0]
    held = {"type": condition, "status": "True", "reason": "Told", "message": "by the test", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    told = {**{key: result[key] for key in ("driver", "pool", "device")}, "conditions": [held]}
    await live.client.patch(RESOURCECLAIMS, name, {"status": {"devices": [told]}}, "default", subresource="status")


def reserved(shown: Obj) -> bool:
    return bool((shown.get("status") or {}).get("reservedFor"))


def free(shown: Obj) -> bool:
    return not (shown.get("status") or {}).get("allocation")


def quick(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.app.queue, "_initial_backoff", 0.05)


def test_a_pod_is_bound_when_its_devices_are_ready(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            for name in ("m", "n"):
                await live.node(name)
            rack = slice_of("", attached("gpu-0"), name="rack", pool="rack", allNodes=True)
            await make(live, device_class(), rack, claim("mine"))
            await live.pod("p", resourceClaims=of_claim("mine"))
            shown = await until(live, "mine", reserved)
            allocation = shown["status"]["allocation"]
            assert allocation["devices"]["results"] == [
                {"request": "gpu", "driver": DRIVER, "pool": "rack", "device": "gpu-0", "bindingConditions": ["Attached"],
                 "bindingFailureConditions": ["Broken"]},
            ]  # fmt: skip
            assert allocation["allocationTimestamp"]
            node = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"]
            await live.pod("other")  # nobody else waits for it
            await live.bound("other")
            assert not (await live.get("p"))["spec"].get("nodeName")
            await tell(live, "mine", "Attached")
            assert [await live.bound("p")] == node
            told = [event["note"] for event in (await live.client.list(EVENTS)).items if event["reason"] == "BindingConditionsPending"]
            assert told == [f"waiting for binding conditions for device on node {node[0]}"]

    asyncio.run(run())


def test_devices_that_fail_are_given_back(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with scheduler() as live:
            quick(live, monkeypatch)
            await live.node("n")
            await make(live, device_class(), slice_of("n", attached("gpu-0")), claim("mine"))
            await live.pod("p", resourceClaims=of_claim("mine"))
            await until(live, "mine", reserved)
            # of a pool without conditions devices are taken first
            await make(live, slice_of("n", device("gpu-9"), pool="z", name="z"))
            await tell(live, "mine", "Broken")
            assert await live.bound("p") == "n"
            shown = await live.client.get(RESOURCECLAIMS, "mine", "default")
            assert results(shown) == ["gpu=z/gpu-9"]
            assert not shown["status"].get("devices")

    asyncio.run(run())


@pytest.mark.parametrize("failing", ["Broken", ""])
def test_a_shared_claim_that_fails_everybody_is_allocated_anew(scheduler: Any, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """Neither pod may take it from the other; the last one to leave it has it allocated anew. Without a failure, time is over."""

    async def run() -> None:
        config = {"profiles": [{"schedulerName": "koord-scheduler", "pluginConfig": [
            {"name": "DynamicResources", "args": {"bindingTimeout": "600s" if failing else "1s"}},
        ]}]}  # fmt: skip
        async with scheduler(config) as live:
            quick(live, monkeypatch)
            await live.node("n")
            await make(live, device_class(), slice_of("n", attached("gpu-0")), claim("mine"))
            for name in ("p", "q"):
                await live.pod(name, cpu="1", resourceClaims=of_claim("mine"))
            await until(live, "mine", lambda shown: len((shown.get("status") or {}).get("reservedFor") or ()) == 2)
            await make(live, slice_of("n", device("gpu-9"), pool="z", name="z"))
            if failing:
                await tell(live, "mine", failing)
            for name in ("p", "q"):
                assert await live.bound(name) == "n"
            assert results(await live.client.get(RESOURCECLAIMS, "mine", "default")) == ["gpu=z/gpu-9"]

    asyncio.run(run())


@pytest.mark.parametrize("what", ["pod", "claim"])
def test_waiting_ends_with_the_pod_or_its_claim(scheduler: Any, what: str) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", attached("gpu-0")), claim("mine"))
            await live.pod("p", resourceClaims=of_claim("mine"))
            await until(live, "mine", reserved)
            if what == "pod":
                await live.client.delete(PODS, "p", "default", grace_period_seconds=0)
                await until(live, "mine", free)
            else:
                await live.client.delete(RESOURCECLAIMS, "mine", "default")
                await live.until("p", lambda p: "deleted" in str(p["status"].get("conditions")))
            plugin = live.app.engine.frameworks["koord-scheduler"].plugins["DynamicResources"]
            for _ in patience.tries(400):
                if not plugin._carried and not plugin.cache.assumed:
                    break
                await asyncio.sleep(0.02)
            assert not plugin._carried
            assert not plugin.cache.assumed

    asyncio.run(run())


@pytest.mark.parametrize("since", ["2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
def test_the_next_scheduler_goes_on_waiting_as_long_as_there_is_time(scheduler: Any, since: str) -> None:
    """A scheduler was killed after it had written a claim and before it bound the pod."""

    async def before(objects: Any) -> None:
        await make(objects, device_class(), slice_of("n", attached("gpu-0")), claim("mine"))
        await objects.node("n")
        pod = await objects.pod("p", resourceClaims=of_claim("mine"))
        result = {"request": "gpu", "driver": DRIVER, "pool": "n", "device": "gpu-0", "bindingConditions": ["Attached"]}
        allocation = {"devices": {"results": [result]}, "allocationTimestamp": since}
        status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}]}
        await objects.client.patch(RESOURCECLAIMS, "mine", {"status": status}, "default", subresource="status")

    async def run() -> None:
        async with scheduler(before=before) as live:
            if since.startswith("2020"):
                await until(live, "mine", lambda shown: free(shown) or shown["status"]["allocation"]["allocationTimestamp"] != since)
                await until(live, "mine", reserved)
            await live.pod("other")
            assert await live.bound("other") == "n"
            shown = await live.client.get(RESOURCECLAIMS, "mine", "default")
            assert (shown["status"]["allocation"]["allocationTimestamp"] == since) == since.startswith("2999")
            assert not (await live.get("p"))["spec"].get("nodeName")
            await tell(live, "mine", "Attached")
            assert await live.bound("p") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
def test_a_claim_left_reserved_where_its_pod_cannot_go_any_more_is_allocated_anew(scheduler: Any) -> None:
    """A scheduler was killed before it bound the pod, and the node is full by now."""

    async def before(objects: Any) -> None:
        await make(objects, device_class(), slice_of("full", device("gpu-0")), slice_of("free", device("gpu-0")), claim("mine"))
        await objects.node("full", cpu="1")
        await objects.node("free")
        pod = await objects.pod("p", cpu="2", resourceClaims=of_claim("mine"))
        field = {"key": "metadata.name", "operator": "In", "values": ["full"]}
        allocation = {
            "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "full", "device": "gpu-0"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }
        status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}]}
        await objects.client.patch(RESOURCECLAIMS, "mine", {"status": status}, "default", subresource="status")

    async def run() -> None:
        async with scheduler(before=before) as live:
            assert await live.bound("p") == "free"
            assert results(await live.client.get(RESOURCECLAIMS, "mine", "default")) == ["gpu=free/gpu-0"]

    asyncio.run(run())
