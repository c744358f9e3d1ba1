"""RDMADeviceInject: an allocation in, device nodes for the runtime out (KA-HK-07); GPUs are asked for in test_server.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from roles.koordlet.hooks.context import ContainerContext, DeviceNode, PodContext, Stage

RDMA = {"koordinator.sh/rdma": 100}
DEVICES = "scheduling.koordinator.sh/device-allocated"


def ask(node: Any, *rdma: dict[str, Any]) -> Any:
    node.asking.learn(node.world.snapshot())
    pod = PodContext("d", "p", "u", {}, {DEVICES: json.dumps({"rdma": rdma})}, "kubepods.slice/pod", "Burstable", "", requests=RDMA)
    return node.asking.container(ContainerContext(pod, "main", "", ""), Stage.PRE_CREATE_CONTAINER).answer


@pytest.mark.root
@pytest.mark.feature("KA-HK-07")
def test_devices_of_functions_and_cards(hooked) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: device files are made")
    node = hooked("RDMADeviceInject")
    base = Path(node.machine.base)
    (base / "dev/infiniband").mkdir(parents=True)
    wanted = []
    for name, address, numbers in (
        ("rdma_cm", "", (10, 122)),
        ("uverbs0", "0000:01:00.0", (231, 192)),
        ("uverbs3", "0000:01:00.2", (231, 195)),
    ):
        os.mknod(base / "dev/infiniband" / name, 0o020600, os.makedev(*numbers))
        wanted.append(DeviceNode(f"/dev/infiniband/{name}", *numbers, mode=0o666))
        if address:
            (base / "sys/bus/pci/devices" / address / "infiniband_verbs" / name).mkdir(parents=True)
    function = {"minor": 0, "id": "0000:01:00.0", "extension": {"vfs": [{"minor": 2, "busID": "0000:01:00.2"}]}}
    assert ask(node, function).devices == (wanted[0], wanted[2])
    assert ask(node, {"minor": 0, "id": "0000:01:00.0"}).devices == (wanted[0], wanted[1])
    assert ask(node, {"minor": 0, "id": "0000:09:00.0"}).devices == ()
    assert ask(node, {"minor": 0, "id": "../../../etc"}).devices == (), "addresses cannot leave their directory"


@pytest.mark.feature("KA-HK-07")
def test_numbers_of_devices_are_known_without_the_machine_s_device_files(hooked) -> None:
    """As installed, koordlet's container has the machine's /sys, and nothing of its /dev."""
    node = hooked("RDMADeviceInject")
    base = Path(node.machine.base)
    (base / "sys/bus/pci/devices/0000:01:00.0/infiniband_verbs/uverbs0").mkdir(parents=True)
    for place, numbers in (("misc/rdma_cm", "10:122"), ("infiniband_verbs/uverbs0", "231:192")):
        directory = base / "sys/class" / place
        directory.mkdir(parents=True)
        (directory / "dev").write_text(f"{numbers}\n")
    wanted = (DeviceNode("/dev/infiniband/rdma_cm", 10, 122), DeviceNode("/dev/infiniband/uverbs0", 231, 192))
    assert ask(node, {"minor": 0, "id": "0000:01:00.0"}).devices == wanted
    (base / "sys/class/misc/rdma_cm/dev").write_text("ten\n")
    assert ask(node, {"minor": 0, "id": "0000:01:00.0"}).devices == ()
