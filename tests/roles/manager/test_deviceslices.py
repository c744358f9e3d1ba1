"""Devices of nodes as ResourceSlices through the manager (SCH-DRA-20)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api import names
from koord.api.kinds import DEVICES, RESOURCESLICES
from koord.api.objects import Device, convert
from roles.manager.slices.slices import due, slices_of
from tests.support.claims import slice_of

pytestmark = pytest.mark.feature("SCH-DRA-20")

GATE = "DeviceResourceSlices=true"


def gpu(minor: int, *, health: bool = True, memory: str = "80Gi", kind: str = "gpu", **more: Any) -> dict[str, Any]:
    topology = {"socketID": 0, "nodeID": minor // 4, "pcieID": f"pci0000:{minor // 2:02x}", "busID": f"0000:{minor:02x}:00.0"}
    resources = {names.RESOURCE_GPU_MEMORY: memory, names.RESOURCE_GPU_CORE: "100", names.RESOURCE_GPU_MEMORY_RATIO: "100"}
    return {"type": kind, "id": f"GPU-{minor}", "minor": minor, "health": health, "resources": resources, "topology": topology, **more}


def device(name: str, *infos: dict[str, Any], **labels: str) -> dict[str, Any]:
    shown = {names.LABEL_GPU_MODEL: "A100", names.LABEL_GPU_VENDOR: "nvidia", names.LABEL_GPU_DRIVER_VERSION: "550.54.15", **labels}
    metadata = {"name": name, "labels": shown, "uid": "u"}
    return {"apiVersion": DEVICES.api_version, "kind": "Device", "metadata": metadata, "spec": {"devices": list(infos)}}


async def published(bed, node: str) -> list[dict[str, Any]]:
    found = await bed.client.list(RESOURCESLICES)
    return sorted((one for one in found.items if one["spec"]["nodeName"] == node), key=lambda one: one["metadata"]["name"])


def told(entries: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for entry in entries for each in entry["spec"].get("devices") or ()]


def test_slices_follow_the_device_object_and_are_taken_back(bed, make):
    async def test(bed):
        await bed.create(make.node("n1"), device("n1", gpu(0), gpu(1, health=False), gpu(3, kind="rdma")))
        await bed.start(gates=GATE)
        (first,) = await bed.until(lambda: published(bed, "n1"))
        spec = first["spec"]
        assert (spec["driver"], spec["pool"]) == ("koordinator.sh", {"name": "n1", "generation": 1, "resourceSliceCount": 1})
        assert told([first]) == ["gpu-0", "rdma-3"], "a device that is not healthy is not offered"
        assert spec["devices"][0] == {
            "name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}},
            "attributes": {
                "type": {"string": "gpu"}, "minor": {"int": 0}, "uuid": {"string": "GPU-0"}, "vendor": {"string": "nvidia"},
                "model": {"string": "A100"}, "driverVersion": {"version": "550.54.15"}, "numaNode": {"int": 0},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}, "resource.kubernetes.io/pciBusID": {"string": "0000:00:00.0"},
            },
        }  # fmt: skip

        await bed.client.patch(DEVICES, "n1", {"spec": {"devices": [gpu(0), gpu(1)]}})

        async def followed():
            found = await published(bed, "n1")
            return found if told(found) == ["gpu-0", "gpu-1"] else None

        (second,) = await bed.until(followed)
        assert second["spec"]["pool"]["generation"] == 2
        assert second["metadata"]["uid"] == first["metadata"]["uid"]

        # somebody's hand in it is mended, somebody else's slices are left alone
        await bed.create(slice_of("n1", name="theirs"))
        await bed.client.patch(RESOURCESLICES, second["metadata"]["name"], {"spec": {"devices": []}})

        async def mended():
            found = await published(bed, "n1")
            return told(found) == ["gpu-0", "gpu-1"]

        await bed.until(mended)
        await bed.client.delete(DEVICES, "n1")

        async def theirs_only():
            return [one["metadata"]["name"] for one in await published(bed, "n1")] == ["theirs"]

        await bed.until(theirs_only)

    bed(test)


def test_slices_that_a_stalled_watch_still_shows_are_made_anew(bed, make, monkeypatch):
    """The store was lost, and the manager's watch of slices has not told."""

    async def test(bed):
        await bed.create(make.node("n1"), device("n1", gpu(0)))
        manager = await bed.start(gates=GATE)
        known = await bed.until(lambda: published(bed, "n1"))
        (controller,) = (one for one in manager.app.controllers if one.name == "deviceslices")
        monkeypatch.setattr(controller.slices, "by_index", lambda index, node: known)
        await bed.client.delete(RESOURCESLICES, known[0]["metadata"]["name"])
        await bed.client.patch(DEVICES, "n1", {"spec": {"devices": [gpu(0), gpu(1)]}})

        async def there():
            return told(await published(bed, "n1")) == ["gpu-0", "gpu-1"]

        await bed.until(there)

    bed(test)


def test_what_was_published_is_taken_back_when_the_gate_is_off(bed, make):
    async def test(bed):
        await bed.create(make.node("n1"), device("n1", gpu(0)))
        await bed.create(*slices_of(convert(device("n1", gpu(0)), Device), 1))
        assert await published(bed, "n1")
        await bed.start()

        async def gone():
            return not await published(bed, "n1")

        await bed.until(gone)

    bed(test)


def test_a_pool_of_many_slices_is_one_generation():
    many = convert(device("n1", *(gpu(minor) for minor in range(130))), Device)
    found = slices_of(many, 7)
    assert [len(entry["spec"]["devices"]) for entry in found] == [64, 64, 2]
    assert {(entry["spec"]["pool"]["generation"], entry["spec"]["pool"]["resourceSliceCount"]) for entry in found} == {(7, 3)}
    assert len({entry["metadata"]["name"] for entry in found}) == 3


def test_a_pool_of_many_slices_is_written_once_and_again_when_it_changes(bed, make, monkeypatch):
    """The watch tells of one slice after the other: the first ones are no reason to publish the pool anew."""

    async def test(bed):
        devices = [gpu(minor) for minor in range(200)]
        await bed.create(make.node("n1"), device("n1", *devices))
        manager = await bed.start(ready=False, gates=GATE)
        (controller,) = (one for one in manager.app.controllers if one.name == "deviceslices")
        asked, by_index = 0, controller.slices.by_index

        def late(index, node):
            """Each slice comes into the cache a look after the one before."""
            nonlocal asked
            asked += 1
            return sorted(by_index(index, node), key=lambda entry: entry["metadata"]["name"])[: asked // 2]

        monkeypatch.setattr(controller.slices, "by_index", late)

        async def whole(generation):
            for _ in range(3):
                controller.queue.add("n1")
                await asyncio.sleep(0.02)
            found = await published(bed, "n1")
            assert {entry["spec"]["pool"]["generation"] for entry in found} <= {generation - 1, generation}
            return asked > 20 and len(found) == 4 and {entry["spec"]["pool"]["generation"] for entry in found} == {generation}

        await bed.until(lambda: whole(1))
        versions = [entry["metadata"]["resourceVersion"] for entry in await published(bed, "n1")]
        asked = 0
        await bed.until(lambda: whole(1))
        assert versions == [entry["metadata"]["resourceVersion"] for entry in await published(bed, "n1")]
        await bed.client.patch(DEVICES, "n1", {"spec": {"devices": devices[1:]}})
        asked = 0
        await bed.until(lambda: whole(2))
        assert len(told(await published(bed, "n1"))) == 199

    bed(test)


def test_one_generation_says_one_thing():
    def made(generation: int, *minors: int) -> list[dict[str, Any]]:
        return slices_of(convert(device("n1", *(gpu(minor) for minor in minors)), Device), generation)

    many, fewer = range(130), range(129)
    assert due([], made(0, *many)) == 1
    assert due(made(3, *many), made(0, *many)) == 0
    assert due([*made(4, *many)[:1], *made(3, *fewer)[1:]], made(0, *many)) == 4, "who came before was interrupted"
    assert due(made(3, *many)[:2], made(0, *many)) == 3, "one was removed"
    assert due(made(3, *many), made(0, *fewer)) == 4
    # the watch has not told of what was written yet
    assert due(made(3, *many), made(0, *fewer), made(4, *fewer)) == 4
    assert due([*made(4, *fewer)[:1], *made(3, *many)[1:]], made(0, *fewer), made(4, *fewer)) == 4
    assert due(made(3, *many), made(0, *many), made(4, *fewer)) == 5, "it is as before, but something else was said meanwhile"
    assert due(made(3, *many), made(0, 1), made(4, *fewer)) == 5
    assert due(made(9, *many), made(0, *many), made(4, *many)) == 0, "somebody else's number is as good"


@pytest.mark.parametrize(
    ("info", "attributes"),
    [
        ({"type": "GPU of ours"}, None),
        ({"minor": None}, None),
        ({"minor": -1}, None),
        ({"id": "x" * 65}, {"type", "minor", "numaNode", "vendor", "model", "driverVersion"}),
        ({"topology": {"nodeID": -1, "pcieID": "", "busID": ""}}, {"type", "minor", "uuid", "vendor", "model", "driverVersion"}),
    ],
)
def test_what_no_slice_can_say_is_left_out(info: dict[str, Any], attributes: set[str] | None) -> None:
    found = slices_of(convert(device("n1", {**gpu(1), **info}), Device), 1)
    names_of = [{key for key in each["attributes"] if "/" not in key} for entry in found for each in entry["spec"]["devices"]]
    assert names_of == ([] if attributes is None else [attributes])


def test_a_node_that_gives_out_partitions_only_publishes_nothing():
    honors = convert(device("n1", gpu(0), **{names.LABEL_NODE_GPU_PARTITION_POLICY: names.GPU_PARTITION_POLICY_HONOR}), Device)
    assert slices_of(honors, 1) == []


def test_names_of_nodes_may_be_as_long_as_names_can_be():
    (entry,) = slices_of(convert(device("n" * 253, gpu(0)), Device), 1)
    assert len(entry["metadata"]["name"]) <= 253
