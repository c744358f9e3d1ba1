"""Dynamic resource allocation on a real kube-apiserver: what koord writes of claims passes its validation (SCH-DRA-08)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import DEVICECLASSES, DEVICETAINTRULES_V1BETA2, NODES, PODS, RESOURCECLAIMS, RESOURCESLICES
from koord.api.objects import Device, convert
from koord.kube.client import Client
from koord.kube.errors import ApiError
from roles.manager.slices.slices import same, slices_of
from tests.roles.scheduler.conftest import Live, running_app
from tests.support import patience, real_apiserver
from tests.support.claims import alternative, claim, device, device_class, of_claim, request, results, slice_of, taint_rule

pytestmark = [pytest.mark.realapi, pytest.mark.slow, pytest.mark.timeout(300)]
Obj = dict[str, Any]
KINDS = {kind.kind: kind for kind in (DEVICECLASSES, RESOURCECLAIMS, RESOURCESLICES)}
BIG = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_apiserver.RealApiServer]:
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver (KOORD_REAL_APISERVER or PATH) and etcd on PATH")
    directory: Path = tmp_path_factory.mktemp("claims")
    gates = ["--feature-gates=DRADeviceTaintRules=true", "--runtime-config=resource.k8s.io/v1beta2=true"]  # off by default in 1.36
    with real_apiserver.real_api_server(directory, program, flags=gates) as found:
        yield found


def devices() -> list[Obj]:
    """A node with two GPUs, one of them tainted, a shared card and a card in partitions."""
    taint = {"key": "gpu.example.com/broken", "effect": "NoSchedule"}
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi"}}
    gpus = slice_of(
        "n1", device("gpu-0", memory="80Gi", model="a"), device("gpu-1", memory="80Gi", model="a", taints=[taint]), name="gpus"
    )  # fmt: skip
    card = device("nic", allowMultipleAllocations=True, capacity={"bandwidth": {"value": "10Gi", "requestPolicy": policy}})
    nics = slice_of("n1", card, name="nics", driver="nic.example.com")

    def part(name: str, memory: str) -> Obj:
        return device(name, consumesCounters=[{"counterSet": "card", "counters": {"memory": {"value": memory}}}])

    counters = {"sharedCounters": [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]}
    parts = slice_of("n1", part("whole", "40Gi"), part("half-0", "20Gi"), name="parts", count=2, driver="mig.example.com")
    return [gpus, nics, parts, slice_of("n1", name="counters", count=2, driver="mig.example.com", **counters)]


def claims() -> list[tuple[Obj, list[str]]]:
    """Claims with what each is to get."""
    tolerant = {"key": "gpu.example.com/broken", "operator": "Exists"}
    driver = {"opaque": {"driver": "gpu.example.com", "parameters": {"kind": "Sharing", "slots": 2}}}
    first = {"name": "any", "firstAvailable": [alternative("big", BIG, count=8), alternative("one", BIG)]}
    taking = request("nic", cls="nic", capacity={"requests": {"bandwidth": "3Gi"}})
    return [
        (claim("first", first, config=[driver]), ["any/one=n1/gpu-0"]),
        (claim("tolerant", request("gpu", tolerations=[tolerant])), ["gpu=n1/gpu-1"]),
        (claim("shared-0", taking), ["nic=n1/nic"]),
        (claim("shared-1", taking), ["nic=n1/nic"]),
        (claim("part", request("part", cls="mig", allocationMode="ExactCount")), ["part=n1/whole"]),
    ]


def of_devices() -> list[Obj]:
    """The slices that the manager publishes of a node's Device."""
    topology = {"nodeID": 1, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"}
    resources = {"koordinator.sh/gpu-memory": "85899345920", "koordinator.sh/gpu-core": "100"}
    whole = {"type": "gpu", "health": True, "resources": resources, "topology": topology}
    cards: list[Obj] = [{**whole, "id": f"GPU-{minor}", "minor": minor} for minor in range(70)]
    cards.append({"type": "rdma", "id": "0000:3c:00.0", "minor": 0, "health": True, "topology": topology})
    labels = {"node.koordinator.sh/gpu-model": "A100", "node.koordinator.sh/gpu-driver-version": "550.54.15"}
    return slices_of(convert({"metadata": {"name": "n2", "uid": "u", "labels": labels}, "spec": {"devices": cards}}, Device), 3)


@pytest.mark.feature("SCH-DRA-20")
def test_what_is_published_of_devices_is_accepted_as_it_is(server: real_apiserver.RealApiServer) -> None:
    async def run() -> None:
        async with Client(server.client_config()) as client:
            wanted = of_devices()
            for item in wanted:
                await client.create(RESOURCESLICES, item)
            shown = [await client.get(RESOURCESLICES, item["metadata"]["name"]) for item in wanted]
            assert same(shown, wanted), "what a server stores otherwise would be written again and again"
            for item in wanted:
                await client.delete(RESOURCESLICES, item["metadata"]["name"])

    asyncio.run(run())


async def create(client: Client, item: Obj) -> bool:
    try:
        await client.create(KINDS[item["kind"]], item, item["metadata"].get("namespace"))
    except ApiError as failure:  # an alpha or beta field that this server has turned off
        if failure.code not in (400, 422):
            raise
        return False
    return True


@pytest.mark.feature("SCH-DRA-08")
def test_allocations_pass_the_servers_validation(server: real_apiserver.RealApiServer) -> None:
    async def run() -> None:
        async with Client(server.client_config()) as client, running_app(client, server.url) as live:
            await live.node("n1", cpu="16")
            await client.patch(NODES, "n1", {"spec": {"taints": None}})
            for name in ("gpu", "nic", "mig"):
                assert await create(client, device_class(name, f'device.driver == "{name}.example.com"'))
            for item in devices():
                assert await create(client, item), item["metadata"]["name"]
            for item, wanted in claims():
                await allocated(live, item, wanted)

    asyncio.run(run())


async def allocated(live: Live, item: Obj, wanted: list[str]) -> None:
    name = item["metadata"]["name"]
    assert await create(live.client, item), name
    pod = await live.pod(name, cpu="100m", resourceClaims=of_claim(name))
    assert await live.bound(name) == "n1"
    found = await live.client.get(RESOURCECLAIMS, name, "default")
    assert results(found) == wanted
    assert found["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert found["status"]["reservedFor"] == [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]


@pytest.mark.feature("SCH-DRA-08")
def test_a_claim_whose_pod_cannot_be_bound_is_free_again(server: real_apiserver.RealApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from roles.scheduler.framework.status import Status, error

    async def run() -> None:
        async with Client(server.client_config()) as client, running_app(client, server.url, checked=False) as live:
            await live.node("n2")
            await client.patch(NODES, "n2", {"spec": {"taints": None}})
            for item in (device_class("own", 'device.driver == "own.example.com"'), slice_of("n2", device("d"), driver="own.example.com")):
                await create(client, item)
            written: list[Obj] = []

            async def refusing(ctx: Any, node: str) -> Status:
                written.append(await client.get(RESOURCECLAIMS, "own", "default"))
                return error("refused")

            monkeypatch.setattr(live.app.engine.frameworks["koord-scheduler"].plugins["DefaultBinder"], "bind", refusing)
            await create(client, claim("own", request("d", cls="own")))
            await live.pod("own", resourceClaims=of_claim("own"))
            for _ in patience.tries(400):
                found = await client.get(RESOURCECLAIMS, "own", "default")
                if written and not (found.get("status") or {}).get("reservedFor"):
                    break
                await asyncio.sleep(0.02)
            assert results(written[0]) == ["d=n2/d"]
            assert not (found.get("status") or {}).get("allocation")
            await client.delete(PODS, "own", "default", grace_period_seconds=0)

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-13")
def test_claims_of_extended_resources_pass_the_servers_validation(server: real_apiserver.RealApiServer) -> None:
    async def run() -> None:
        async with Client(server.client_config()) as client, running_app(client, server.url) as live:
            await live.node("n3")
            await client.patch(NODES, "n3", {"spec": {"taints": None}})
            expression = 'device.driver == "card.example.com"'
            kind = device_class("card", expression, extendedResourceName="example.com/card")
            for item in (kind, slice_of("n3", device("d-0"), device("d-1"), driver="card.example.com")):
                assert await create(client, item)
            resources = {"requests": {"example.com/card": "2"}, "limits": {"example.com/card": "2"}}
            container = {"name": "main", "image": "i", "resources": resources}
            pod = await live.pod("cards", containers=[container])
            assert await live.bound("cards") == "n3"
            told = (await live.get("cards"))["status"]["extendedResourceClaimStatus"]
            assert told["requestMappings"] == [
                {"containerName": "main", "resourceName": "example.com/card", "requestName": "container-0-request-0"},
            ]  # fmt: skip
            found = await client.get(RESOURCECLAIMS, told["resourceClaimName"], "default")
            assert results(found) == ["container-0-request-0=n3/d-0", "container-0-request-0=n3/d-1"]
            assert found["status"]["reservedFor"] == [{"resource": "pods", "name": "cards", "uid": pod["metadata"]["uid"]}]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-16")
def test_conditions_that_a_driver_tells_are_waited_for(server: real_apiserver.RealApiServer) -> None:
    async def run() -> None:
        async with Client(server.client_config()) as client, running_app(client, server.url) as live:
            await live.node("n4")
            await client.patch(NODES, "n4", {"spec": {"taints": None}})
            fabric = device("f-0", bindsToNode=True, bindingConditions=["Attached"], bindingFailureConditions=["Broken"])
            for item in (
                device_class("fabric", 'device.driver == "fabric.example.com"'),
                slice_of("n4", fabric, driver="fabric.example.com"), claim("attached", request("f", cls="fabric")),
            ):  # fmt: skip
                assert await create(client, item)
            await live.pod("attached", resourceClaims=of_claim("attached"))
            found: Obj = {}
            for _ in patience.tries(400):
                found = await client.get(RESOURCECLAIMS, "attached", "default")
                if (found.get("status") or {}).get("reservedFor"):
                    break
                await asyncio.sleep(0.02)
            assert found["status"]["allocation"]["devices"]["results"][0]["bindingConditions"] == ["Attached"]
            assert found["status"]["allocation"]["allocationTimestamp"]
            assert not (await live.get("attached"))["spec"].get("nodeName")
            held = {"type": "Attached", "status": "True", "reason": "Told", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            told = {"driver": "fabric.example.com", "pool": "n4", "device": "f-0", "conditions": [held]}
            await client.patch(RESOURCECLAIMS, "attached", {"status": {"devices": [told]}}, "default", subresource="status")
            assert await live.bound("attached") == "n4"

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-15")
def test_rules_of_1_36_keep_claims_off(server: real_apiserver.RealApiServer) -> None:
    async def run() -> None:
        async with Client(server.client_config()) as client:
            rule = {**taint_rule("fan", driver="ruled.example.com"), "apiVersion": DEVICETAINTRULES_V1BETA2.api_version}
            try:
                await client.create(DEVICETAINTRULES_V1BETA2, rule)
            except ApiError as failure:
                pytest.skip(f"the server has no DeviceTaintRules: {failure}")
            async with running_app(client, server.url) as live:
                await live.node("n5")
                await client.patch(NODES, "n5", {"spec": {"taints": None}})
                expression = 'device.driver == "ruled.example.com"'
                for item in (device_class("ruled", expression), slice_of("n5", device("r-0"), driver="ruled.example.com")):
                    assert await create(client, item)
                assert await create(client, claim("ruled", request("r", cls="ruled")))
                await live.pod("ruled", resourceClaims=of_claim("ruled"))
                assert "cannot allocate all claims" in (await live.refused("ruled"))["message"]
                await client.delete(DEVICETAINTRULES_V1BETA2, "fan")
                assert await live.bound("ruled") == "n5"

    asyncio.run(run())
