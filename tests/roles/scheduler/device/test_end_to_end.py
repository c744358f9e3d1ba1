"""From the files of a machine's devices to the environment of a container: koordlet's report, the scheduler's choice, koordlet's hook."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koord.accounting.pods import pod_requests
from koord.api.kinds import DEVICES, NODES, PODS
from koord.api.objects import Node, Pod, convert
from roles.koordlet.hooks.context import ContainerContext, PodContext, Stage
from roles.koordlet.hooks.registry import make_hooks
from roles.koordlet.options import Options
from roles.koordlet.report.device import rdma_device, wanted_object
from roles.koordlet.sensing.rdma import RDMADevice
from roles.koordlet.sensing.xpu import read_devices
from tests.support.devices import ALLOCATED, CORE, EVERYTHING, JOINT, MEMORY, POINTS, RATIO, RDMA

ON = {"enabled": [{"name": "DeviceShare"}]}
CONFIG = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": {**dict.fromkeys(POINTS, ON), "score": ON}}]}
CONFIG["profiles"][0]["plugins"]["preBind"] = {"enabled": [{"name": "DeviceShare"}, {"name": "DefaultPreBind"}]}  # type: ignore[index]
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}


def device_file(directory: Path) -> None:
    """Four cards of 80Gi in two linked pairs, as a device daemon writes them."""
    entries = [
        {
            "vendor": "nvidia", "model": "H100", "uuid": f"GPU-{minor}", "minor": str(minor),
            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi"},
            "topology": {
                "nodeID": str(minor // 2), "pcieID": f"pci0000:{minor // 2}0", "busID": f"0000:{minor // 2}{minor}:00.0",
                "p2pLinks": [{"peerMinor": str(minor ^ 1), "type": "NVLink"}],
            },
            "status": {"healthy": minor != 0},
        }
        for minor in range(4)
    ]  # fmt: skip
    directory.mkdir()
    (directory / "devices.json").write_text(json.dumps(entries))


async def report(objects: Any, directory: Path) -> None:
    """What koordlet reports of the node."""
    await objects.node("n", cpu="100", memory="1Ti", labels=HAMI)
    amounts = {**EVERYTHING, MEMORY: "10Ti"}
    await objects.client.patch(NODES, "n", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
    node = convert(await objects.client.get(NODES, "n"), Node)
    nics = [rdma_device(RDMADevice(f"mlx5_{n}", n, f"0000:{n}f:00.0", True, n, f"pci0000:{n}0")) for n in (0, 1)]
    body = wanted_object(node, read_devices(str(directory)), nics)
    for entry in body["spec"]["devices"]:
        for condition in entry.get("conditions", ()):
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    await objects.client.create(DEVICES, body)


def environment(pod: dict[str, Any]) -> dict[str, str]:
    """What koordlet's GPU hook sets for the pod's container."""
    meta = pod["metadata"]
    (hook,) = (hook for hook in make_hooks(Options(node_name="n"), lambda gate: gate == "GPUEnvInject") if hook.name == "GPUEnvInject")
    context = PodContext(
        meta["namespace"], meta["name"], meta["uid"], meta.get("labels", {}), meta.get("annotations", {}), "", "Burstable", "",
        requests=pod_requests(convert(pod, Pod)),
    )  # fmt: skip
    assert Stage.PRE_CREATE_CONTAINER in hook.container_stages
    answer = hook.container(ContainerContext(context, "main", "", ""), None)
    return dict(answer.env) if answer is not None else {}


@pytest.mark.feature("SCH-DEV-11")
@pytest.mark.feature("SCH-DEV-09")
@pytest.mark.feature("KA-HK-06")
@pytest.mark.feature("KLO-DEV-04")
def test_from_the_device_files_to_the_containers_environment(scheduler: Any, tmp_path: Path) -> None:
    directory = tmp_path / "xpu"
    device_file(directory)

    async def ask(live: Any, name: str, requests: dict[str, str], **meta: Any) -> dict[str, Any]:
        amounts = {"cpu": "1", **requests}
        container = {"name": "main", "image": "i", "resources": {"requests": amounts, "limits": {**amounts}}}
        spec = {"schedulerName": "koord-scheduler", "containers": [container]}
        await live.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec}, "default")
        await live.bound(name)
        found: dict[str, Any] = await live.get(name)
        return found

    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=lambda objects: report(objects, directory)) as live:
            part = await ask(live, "part", {CORE: "30", RATIO: "50"}, labels=HAMI)
            env = environment(part)
            assert env["NVIDIA_VISIBLE_DEVICES"] == "1"  # the healthy card of the pair that is broken already
            assert env["CUDA_DEVICE_MEMORY_LIMIT"] == str(40 << 30)
            assert env["CUDA_DEVICE_SM_LIMIT"] == "30"
            joint = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
            pair = await ask(live, "pair", {CORE: "200", RATIO: "200", RDMA: "1"}, annotations=joint)
            assert environment(pair)["NVIDIA_VISIBLE_DEVICES"] == "2,3"
            (nic,) = json.loads(pair["metadata"]["annotations"][ALLOCATED])["rdma"]
            assert (nic["minor"], nic["id"]) == (1, "0000:1f:00.0")
            plain = await ask(live, "plain", {})
            assert environment(plain) == {}

    asyncio.run(run())
