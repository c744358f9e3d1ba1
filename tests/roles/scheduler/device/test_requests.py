"""What pods may ask for, and what it means (SCH-DEV-02), through the scheduler's cycle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.devices import (
    CORE,
    FPGA,
    HINT,
    JOINT,
    MEMORY,
    PARTITION,
    RATIO,
    RDMA,
    SHARED,
    K,
    add,
    card,
    give,
    gpus,
    pod,
    refusal,
    world,
)

NPU_CORE, NPU_CPU, DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"


def machine() -> Any:
    found = world()
    add(found, "n", [*gpus(4), card("rdma", 0), card("rdma", 1), card("fpga", 0)])
    return found


@pytest.mark.feature("SCH-DEV-02")
@pytest.mark.parametrize(
    ("requests", "cards", "unit"),
    [
        ({"nvidia.com/gpu": 2}, 2, {CORE: "100", RATIO: "100", MEMORY: "80Gi"}),
        ({"amd.com/gpu": 1}, 1, {CORE: "100", RATIO: "100", MEMORY: "80Gi"}),
        ({K + "gpu": 300}, 3, {CORE: "100", RATIO: "100", MEMORY: "80Gi"}),
        ({K + "gpu": 25}, 1, {CORE: "25", RATIO: "25", MEMORY: "20Gi"}),
        ({RATIO: 50}, 1, {RATIO: "50", MEMORY: "40Gi"}),
        ({MEMORY: "8Gi"}, 1, {RATIO: "10", MEMORY: "8Gi"}),
        ({CORE: 10, MEMORY: "8Gi"}, 1, {CORE: "10", RATIO: "10", MEMORY: "8Gi"}),
        ({CORE: 20, RATIO: 50}, 1, {CORE: "20", RATIO: "50", MEMORY: "40Gi"}),
        ({SHARED: 2, RATIO: 100}, 2, {RATIO: "50", MEMORY: "40Gi"}),
        ({SHARED: 2, MEMORY: "16Gi"}, 2, {RATIO: "10", MEMORY: "8Gi"}),
        ({SHARED: 2, CORE: 60, RATIO: 100}, 2, {CORE: "30", RATIO: "50", MEMORY: "40Gi"}),
        ({SHARED: 3, CORE: 300, RATIO: 300}, 3, {CORE: "100", RATIO: "100", MEMORY: "80Gi"}),
        ({SHARED: 1, CORE: 50, RATIO: 50}, 1, {CORE: "50", RATIO: "50", MEMORY: "40Gi"}),
    ],
)
def test_every_way_to_ask_for_gpus(requests: dict[str, Any], cards: int, unit: dict[str, str]) -> None:
    allocated = give(machine(), pod(requests))["gpu"]
    assert [item["minor"] for item in allocated] == list(range(cards))
    assert all(item["resources"] == unit and item["id"] == f"GPU-{item['minor']}" for item in allocated)


@pytest.mark.feature("SCH-DEV-02")
@pytest.mark.parametrize(
    ("first", "sidecar", "cards", "unit"),
    [
        ({K + "gpu": "50"}, {}, 1, {CORE: "50", RATIO: "50", MEMORY: "40Gi"}),  # one after the other, on the same card
        ({K + "gpu": "200"}, {}, 2, {CORE: "100", RATIO: "100", MEMORY: "80Gi"}),
        ({K + "gpu": "50"}, {"restartPolicy": "Always"}, 2, {CORE: "50", RATIO: "50", MEMORY: "40Gi"}),  # beside one another
        ({}, {}, 1, {CORE: "50", RATIO: "50", MEMORY: "40Gi"}),
    ],
)
def test_init_containers_that_the_webhook_leaves_as_they_are(first: dict[str, str], sidecar: Any, cards: int, unit: dict[str, str]) -> None:
    before = {"name": "first", "image": "i", "resources": {"requests": first, "limits": first}, **sidecar}
    allocated = give(machine(), pod({CORE: 50, RATIO: 50, SHARED: 1}, initContainers=[before]))["gpu"]
    assert [item["resources"] for item in allocated] == [unit] * cards


@pytest.mark.feature("SCH-DEV-02")
@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ({CORE: 50}, f"invalid resource device requests: [{CORE}]"),
        ({MEMORY: "1Gi", RATIO: 10}, f"invalid resource device requests: [{MEMORY} {RATIO}]"),
        ({"nvidia.com/gpu": 1, CORE: 100}, f"invalid resource device requests: [{CORE} nvidia.com/gpu]"),
        ({K + "gpu": 100, SHARED: 1}, "invalid resource device requests"),
        ({SHARED: 2}, f"invalid resource device requests: [{SHARED}]"),
        ({NPU_CORE: 1}, "invalid resource device requests"),
        ({K + "gpu": 150}, f"]: invalid resource unit {K}gpu: 150"),
        ({CORE: 150, RATIO: 100}, f"]: invalid resource unit {CORE}: 150"),
        ({CORE: 100, RATIO: 250}, f"]: invalid resource unit {RATIO}: 250"),
        ({SHARED: 2, RATIO: 101}, f"]: invalid resource unit {RATIO}: 101"),
        ({SHARED: 2, RATIO: 400}, f"]: invalid resource unit {RATIO}: 400"),
        ({SHARED: 3, CORE: 100, RATIO: 90}, f"]: invalid resource unit {CORE}: 100"),
        ({SHARED: 2, NPU_CORE: 1, NPU_CPU: 1, MEMORY: "3Gi"}, f"]: invalid resource unit {SHARED}: 2"),
        ({SHARED: 1, NPU_CORE: 1, NPU_CPU: 1, MEMORY: "3Gi", DVPP: 120}, f"]: invalid resource unit {DVPP}: 120"),
        ({RDMA: 150}, f"]: invalid resource unit {RDMA}: 150"),
        ({FPGA: 101}, f"]: invalid resource unit {FPGA}: 101"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(requests: dict[str, Any], text: str) -> None:
    found = machine()
    message = refusal(found, pod(requests))
    assert message.startswith("0/1 nodes are available: invalid resource device requests: [")  # what alert rules look for
    assert text in message
    assert "preemption: 0/1 nodes are available: 1 Preemption is not helpful" in message


@pytest.mark.feature("SCH-DEV-02")
@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({HINT: "{"}, f"annotation {HINT}: not valid JSON"),
        ({HINT: '{"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Maybe"}]}}}'}, f"annotation {HINT}: gpu:"),
        ({HINT: '{"gpu": {"allocateStrategy": "Some"}}'}, "'Some' is not known; accepted: ApplyForAll, RequestsAsCount"),
        ({HINT: '{"gpu": {"requiredTopologyScope": "Rack"}}'}, "'Rack' is not known; accepted: Device, PCIe, NUMANode, Node"),
        ({HINT: '{"gpu": {"exclusivePolicy": "Rack"}}'}, "'Rack' is not known; accepted: DeviceLevel, PCIeLevel"),
        ({JOINT: '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "Rack"}'}, "'Rack' is not known; accepted: SamePCIe"),
        ({JOINT: "[]"}, f"annotation {JOINT}"),
        ({PARTITION: '{"allocatePolicy": "Sometimes"}'}, "'Sometimes' is not known; accepted: Restricted, BestEffort"),
        ({PARTITION: '{"ringBusBandwidth": "fast"}'}, f"annotation {PARTITION}"),
    ],
)
def test_malformed_wishes_say_what_is_wrong(annotations: dict[str, str], text: str) -> None:
    assert text in refusal(machine(), pod({CORE: 100, RATIO: 100, RDMA: 1}, annotations=annotations))


@pytest.mark.feature("SCH-DEV-02")
def test_zeros_and_pods_without_devices_are_left_alone() -> None:
    found = machine()
    assert give(found, pod({CORE: 0, RATIO: 0})) == {}
    assert give(found, pod({})) == {}


@pytest.mark.feature("SCH-DEV-02")
def test_old_spellings_mean_the_same() -> None:
    found = machine()
    (allocated,) = give(found, pod({"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory-ratio": 50}))["gpu"]
    assert allocated["resources"] == {CORE: "50", RATIO: "50", MEMORY: "40Gi"}
