"""Arguments of DeviceShare: defaults, limits, and what stops the start (SCH-CFG-01)."""

from __future__ import annotations

from typing import Any

import pytest

from koord.config.errors import InvalidConfig
from koord.config.model import wire
from roles.scheduler.plugins.device_share.args import DeviceShareArgs
from tests.support.devices import world


@pytest.mark.feature("SCH-CFG-01")
def test_defaults_and_wire_names() -> None:
    assert wire(DeviceShareArgs()) == {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "", "allocator": "",
        "scoringStrategy": {
            "type": "LeastAllocated", "typicalPods": [],
            "resources": [{"name": f"koordinator.sh/{name}", "weight": 1} for name in ("gpu-memory-ratio", "gpu-memory", "rdma", "fpga")],
        },
        "disableDeviceNUMATopologyAlignment": False,
        "gpuSharedResourceTemplatesConfig": {
            "configMapNamespace": "koordinator-system", "configMapName": "gpu-shared-resource-templates",
            "matchedResources": ["huawei.com/npu-core"],
        },
        "gpuShareUnsupportedModels": [],
    }  # fmt: skip


@pytest.mark.feature("SCH-CFG-01")
@pytest.mark.parametrize(
    ("args", "where"),
    [
        ({"scoringStrategy": {"type": "BalancedAllocation"}}, "scoringStrategy.type"),
        ({"scoringStrategy": {"resources": [{"name": "koordinator.sh/rdma", "weight": 0}]}}, "scoringStrategy.resources[0].weight"),
        ({"scoringStrategy": {"resources": [{"name": "koordinator.sh/rdma", "weight": 101}]}}, "scoringStrategy.resources[0].weight"),
        ({"gpuShareUnsupportedModels": [{"make": "x"}]}, "gpuShareUnsupportedModels[0].make"),
        ({"allocators": ""}, "allocators"),
        ({"kind": "LoadAwareSchedulingArgs"}, "kind"),
    ],
)
def test_what_stops_the_start(args: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        world(args)
    assert where in str(caught.value)
