"""DeviceShare through the scheduler's own door: objects in the API server in, bindings, annotations, conditions and pages out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from koord.api.kinds import CONFIGMAPS, DEVICES, NAMESPACES, NODES, PODS, PRIORITYCLASSES
from koord.api.objects import Device
from koord.api.times import format_time, parse_time
from koord.kube.errors import Unreachable
from tests.support.devices import ALLOCATED, CORE, EVERYTHING, MEMORY, MODEL, POINTS, RATIO, SHARED, VENDOR, card, device, entry, gpus

ON = {"enabled": [{"name": "DeviceShare"}]}
PROFILE = {"schedulerName": "koord-scheduler", "plugins": {**dict.fromkeys(POINTS, ON), "score": ON}}
PROFILE["plugins"]["preBind"] = {"enabled": [{"name": "DeviceShare"}, {"name": "DefaultPreBind"}]}  # type: ignore[index]
CONFIG = {"profiles": [PROFILE]}
PAGE = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"


async def machine(objects: Any, name: str, cards: Any, **meta: Any) -> None:
    await objects.node(name, cpu="100", memory="1Ti", **({"labels": meta.pop("node")} if "node" in meta else {}))
    amounts = {**EVERYTHING, MEMORY: "10Ti"}
    await objects.client.patch(NODES, name, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
    await objects.client.create(DEVICES, {**DEVICES_HEAD, **device(name, cards, **meta)})


DEVICES_HEAD = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}


async def ask(objects: Any, name: str, requests: dict[str, Any], *, node: str = "", **meta: Any) -> None:
    amounts = {key: str(value) for key, value in requests.items()}
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1", **amounts}, "limits": {"cpu": "1", **amounts}}}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}}
    body["spec"] = {"schedulerName": "koord-scheduler", "containers": [container], **({"nodeName": node} if node else {})}
    await objects.client.create(PODS, body, "default")


async def annotations(live: Any, name: str) -> dict[str, str]:
    await live.bound(name)
    return dict((await live.get(name))["metadata"].get("annotations") or {})


def minors(found: dict[str, str]) -> list[int]:
    return [item["minor"] for item in json.loads(found[ALLOCATED])["gpu"]]


@pytest.mark.feature("SCH-DEV-11")
@pytest.mark.feature("SCH-DEV-01")
@pytest.mark.feature("SCH-DEV-17")
def test_devices_are_given_written_down_and_found_again_by_the_next_scheduler(scheduler: Any) -> None:
    async def before(objects: Any) -> None:
        await machine(objects, "n", gpus(2))
        held = {ALLOCATED: json.dumps({"gpu": [entry(0, gpu_core=30, gpu_memory_ratio=30, gpu_memory="24Gi")]})}
        await ask(objects, "here", {CORE: 30, RATIO: 30}, node="n", annotations=held)

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=before) as live:
            await ask(live, "half", {CORE: 60, RATIO: 60})
            got = json.loads((await annotations(live, "half"))[ALLOCATED])
            assert got == {"gpu": [{"minor": 1, "id": "GPU-1", "resources": {CORE: "60", RATIO: "60", MEMORY: "48Gi"}}]}
            await ask(live, "whole", {CORE: 100, RATIO: 100})
            condition = await live.refused("whole")
            assert condition["message"].startswith("0/1 nodes are available: 1 Insufficient GPU Devices.")
            await pages(live)
            await live.client.delete(PODS, "half", "default", grace_period_seconds=0)
            assert minors(await annotations(live, "whole")) == [1]

    async def pages(live: Any) -> None:
        async with aiohttp.ClientSession() as session:
            base = f"http://127.0.0.1:{live.ops.port}"
            async with session.get(base + PAGE + "/n") as answer:
                node = await answer.json()
            assert node["deviceTotal"] == {CORE: "200", RATIO: "200", MEMORY: "160Gi"}
            assert node["deviceUsed"] == {CORE: "90", RATIO: "90", MEMORY: "72Gi"}
            assert node["deviceFreeDetail"]["gpu"]["1"] == {CORE: "40", RATIO: "40", MEMORY: "32Gi"}
            assert node["deviceUsedDetail"]["gpu"]["0"][CORE] == "30"
            assert sorted(node["allocateSet"]["gpu"]) == ["default/half", "default/here"]
            async with session.get(base + PAGE) as answer:
                assert await answer.json() == {"n": node}
            async with session.get(base + PAGE + "/other") as answer:
                assert answer.status == 404

    asyncio.run(run())


@pytest.mark.feature("SCH-DEV-01")
def test_a_waiting_pod_comes_back_when_its_device_does(scheduler: Any) -> None:
    async def before(objects: Any) -> None:
        await machine(objects, "n", [card("gpu", 0, health=False)], labels={"node.koordinator.sh/secondary-device-well-planned": "false"})

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=before) as live:
            await ask(live, "p", {CORE: 100, RATIO: 100})
            await live.refused("p")
            series = 'scheduler_secondary_device_not_well_planned{node_name="n"}'
            assert series in await metrics(live)
            healthy = device("n", gpus(1))
            patch = {"metadata": {"labels": {"node.koordinator.sh/secondary-device-well-planned": "true"}}, "spec": healthy["spec"]}
            await live.client.patch(DEVICES, "n", patch)
            assert minors(await annotations(live, "p")) == [0]
            assert series not in await metrics(live)

    asyncio.run(run())


async def metrics(live: Any) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{live.ops.port}/metrics") as answer:
        return await answer.text()


@pytest.mark.feature("SCH-DEV-14")
def test_templates_come_from_a_config_map(scheduler: Any) -> None:
    npu = {"huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7", "gpu_memory": "21Gi", "gpu_memory_ratio": "100"}
    model = {VENDOR: "huawei", MODEL: "Ascend-310P3"}

    async def before(objects: Any) -> None:
        await machine(objects, "n", [card("gpu", 0, **npu)], node=model)
        await objects.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koordinator-system"}})

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=before) as live:
            await ask(live, "p", {SHARED: 1, "huawei.com/npu-core": 1, "huawei.com/npu-cpu": 1, MEMORY: "3Gi"})
            condition = await live.refused("p")
            assert "no matched GPU shared resource template" in condition["message"]
            unit = "{huawei.com/npu-core: 1, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 3Gi}"
            body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpu-shared-resource-templates"}}
            body["data"] = {"data.yaml": f"huawei-Ascend-310P3: {{vir01: {unit}}}"}
            await live.client.create(CONFIGMAPS, body, "koordinator-system")
            (given,) = json.loads((await annotations(live, "p"))[ALLOCATED])["gpu"]
            assert given["extension"] == {"gpuSharedResourceTemplate": "vir01"}

    asyncio.run(run())


# ---------------------------------------------------------------- device plugins of others


def vendor(name: str, model: str = "") -> dict[str, str]:
    return {VENDOR: name, MODEL: model}


@pytest.mark.feature("SCH-DEV-15")
def test_annotations_for_device_plugins(scheduler: Any) -> None:
    async def before(objects: Any) -> None:
        await machine(objects, "n", gpus(2), node={"koordinator.sh/gpu-isolation-provider": "HAMi-core"})
        await machine(objects, "h", [card("gpu", n, health=n > 4) for n in range(7)], labels=vendor("huawei", "Ascend-310P3-300I-DUO"))

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=before, gates={"DevicePluginAdaption": True}) as live:
            await ask(live, "a", {CORE: 50, RATIO: 50}, labels={"koordinator.sh/gpu-isolation-provider": "HAMi-core"})
            found = await annotations(live, "a")
            assert found["scheduling.koordinator.sh/gpu-minors"] == "0"
            assert int(found["scheduling.koordinator.sh/bind-timestamp"]) > 10**18
            assert (await live.get("a"))["metadata"]["labels"]["hami.io/vgpu-node"] == "n"
            await live.client.patch(NODES, "n", {"spec": {"unschedulable": True}})
            await ask(live, "b", {CORE: 200, RATIO: 200})
            found = await annotations(live, "b")
            assert found["huawei.com/npu-core"] == "5,6"
            assert found["huawei.com/Ascend310P"] == "Ascend310P-5,Ascend310P-6"
            assert found["predicate-time"].isdigit()

    asyncio.run(run())


@pytest.mark.feature("SCH-DEV-15")
def test_node_locks(scheduler: Any) -> None:
    lock = "hami.io/mutex.lock"

    async def before(objects: Any) -> None:
        await machine(objects, "n", gpus(4), labels=vendor("metax"))
        await objects.client.patch(NODES, "n", {"metadata": {"annotations": {lock: "2020-01-01T00:00:00Z,default,old"}}})

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=before, gates={"DevicePluginAdaption": True}) as live:
            await ask(live, "a", {CORE: 50, RATIO: 50})
            found = await annotations(live, "a")  # a lock of five minutes ago and more hinders nobody
            assert json.loads(found["metax-tech.com/gpu-devices-allocated"]) == [[{"uuid": "GPU-0", "compute": 50, "vRam": 40960}]]
            since, namespace, name = (await live.client.get(NODES, "n"))["metadata"]["annotations"][lock].split(",")
            assert (namespace, name) == ("default", "a")
            await ask(live, "b", {CORE: 50, RATIO: 50})
            condition = await live.refused("b")
            assert f"node n is locked by pod default/a since {format_time(parse_time(since))} ({lock})" in condition["message"]
            assert condition["reason"] == "SchedulerError"
            await live.client.patch(NODES, "n", {"metadata": {"annotations": {lock: None}}})
            assert "metax-tech.com/gpu-devices-allocated" in await annotations(live, "b")
            await live.client.delete(PODS, "b", "default", grace_period_seconds=0)
            await ask(live, "c", {CORE: 50, RATIO: 50})
            await annotations(live, "c")  # the lock's pod is gone

    asyncio.run(run())


@pytest.mark.feature("SCH-DEV-15")
def test_a_lock_of_which_nobody_told_is_taken_off_with_the_placement(scheduler: Any) -> None:
    """It would keep pods off the node for five minutes."""
    lock = "hami.io/mutex.lock"

    async def run() -> None:
        gates = {"DevicePluginAdaption": True}
        async with scheduler(CONFIG, crds=True, gates=gates, before=lambda o: machine(o, "n", gpus(1), labels=vendor("metax"))) as live:
            patch, taken = live.app.client.patch, []

            async def lost(kind: Any, name: str, body: Any, *args: Any, **options: Any) -> Any:
                done = await patch(kind, name, body, *args, **options)
                if kind is NODES and not taken:
                    taken.append(done["metadata"]["annotations"][lock])
                    await live.client.patch(NODES, "n", {"spec": {"unschedulable": True}})
                    raise Unreachable("connection reset")
                return done

            live.app.client.patch = lost
            await ask(live, "a", {CORE: 50, RATIO: 50})
            await live.refused("a")
            assert taken[0].endswith(",default,a")
            for _ in range(400):
                if lock not in (await live.client.get(NODES, "n"))["metadata"].get("annotations", {}):
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("the lock stays")

    asyncio.run(run())


@pytest.mark.feature("SCH-DEV-15")
def test_what_cambricon_cannot_share_is_refused(scheduler: Any) -> None:
    async def before(objects: Any) -> None:
        await machine(objects, "n", gpus(2), labels=vendor("cambricon"))

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=before, gates={"DevicePluginAdaption": True}) as live:
            await ask(live, "two", {SHARED: 2, CORE: 20, RATIO: 20})
            assert "cambricon: 2 cards are wanted" in (await live.refused("two"))["message"]
            await ask(live, "coreless", {RATIO: 20})
            assert "cambricon: koordinator.sh/gpu-core must be requested" in (await live.refused("coreless"))["message"]
            await ask(live, "fine", {CORE: 20, MEMORY: "1Gi"})
            found = await annotations(live, "fine")
            assert found["CAMBRICON_DSMLU_PROFILE"].endswith("_20_4")
            assert found["CAMBRICON_DSMLU_ASSIGHED"] == "false"
            node = await live.client.get(NODES, "n")
            assert node["metadata"]["annotations"]["cambricon.com/dsmlu.lock"].endswith(",default,fine")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
def test_a_device_that_says_the_same_again_wakes_nobody(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=lambda objects: machine(objects, "n", gpus(1))) as live:
            await ask(live, "big", {CORE: 200, RATIO: 200})
            await live.refused("big")
            (entry,) = (entry for entry in live.app.queue.entries() if entry.pod.name == "big")
            while entry.state != "unschedulable":
                await asyncio.sleep(0.005)
            moved: list[str] = []
            live.app.queue.incoming = lambda event, queue: moved.append(event)
            position = live.app.engine.cluster.changes.position
            devices = live.app.informers.informer(DEVICES, Device, optional=True)
            for number in range(3):
                await live.client.patch(DEVICES, "n", {"metadata": {"labels": {"heartbeat": str(number)}}})
                while devices.get("n").metadata.labels.get("heartbeat") != str(number):
                    await asyncio.sleep(0.005)
            assert moved == []
            assert live.app.engine.cluster.changes.position == position
            more = device("n", gpus(2))
            await live.client.patch(DEVICES, "n", {"spec": more["spec"]})
            while not moved:
                await asyncio.sleep(0.005)
            await live.bound("big")

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_of_two_cards_a_pod_gets_the_one_that_no_nominated_pod_needs(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=lambda objects: machine(objects, "n", gpus(2))) as live:
            meta = {"apiVersion": PRIORITYCLASSES.api_version, "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            await live.client.create(PRIORITYCLASSES, meta)

            async def pod(name: str, percent: int, **spec: Any) -> None:
                amounts = {"cpu": "1", CORE: str(percent), RATIO: str(percent)}
                container = {"name": "main", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
                await live.pod(name, containers=[container], **spec)

            await pod("victim", 55)
            assert minors(await annotations(live, "victim")) == [0]
            await pod("keeps", 55, priorityClassName="high")
            assert minors(await annotations(live, "keeps")) == [1]
            await pod("waits", 70, priorityClassName="high")
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            await pod("small", 40)
            assert minors(await annotations(live, "small")) == [1]
            await live.client.delete(PODS, "victim", "default", grace_period_seconds=0)
            assert minors(await annotations(live, "waits")) == [0]

    asyncio.run(run())
