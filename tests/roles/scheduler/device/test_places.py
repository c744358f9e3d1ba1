"""Which GPUs: near one another, in partitions, chosen by label (SCH-DEV-05, 06, 10), through the scheduler's cycle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.devices import (
    MODEL,
    RATIO,
    SHARED,
    VENDOR,
    add,
    card,
    entry,
    gpu,
    gpus,
    holder,
    minors,
    pod,
    refusal,
    world,
)  # fmt: skip

HONOR = {"node.koordinator.sh/gpu-partition-policy": "Honor"}


def holding(found: Any, *held: int) -> None:
    for minor in held:
        found.add_pods(holder(f"x{minor}", "n", {"gpu": [entry(minor)]}))


def scope(name: str) -> dict[str, Any]:
    return {"gpu": {"requiredTopologyScope": name}}


@pytest.mark.feature("SCH-DEV-05")
@pytest.mark.parametrize(
    ("held", "wanted", "chosen"),
    [
        ((2,), 100, [3]),  # beside the card that is in use
        ((2,), 200, [0, 1]),  # a switch of its own, on the NUMA node in use
        ((4,), 200, [6, 7]),
        ((0, 2), 200, [4, 5]),  # the deepest scope comes first
        ((0, 2, 4, 6), 200, [1, 3]),  # no switch has two: a NUMA node
        ((0, 1, 2, 4, 5, 6), 200, [3, 7]),  # no NUMA node has two: the node
        ((1,), 300, [0, 2, 3]),
        ((1, 4), 400, [0, 2, 3, 5]),
    ],
)
def test_the_deepest_scope_that_is_in_use_already(held: tuple[int, ...], wanted: int, chosen: list[int]) -> None:
    found = world()
    add(found, "n", gpus(8))
    holding(found, *held)
    assert minors(found, gpu(wanted)) == chosen


@pytest.mark.feature("SCH-DEV-05")
def test_a_required_scope_holds() -> None:
    found = world()
    add(found, "n", gpus(8))
    assert "1 Insufficient Topology Scoped GPU Devices" in refusal(found, gpu(300, hint=scope("PCIe")))
    assert "1 Insufficient Topology Scoped GPU Devices" in refusal(found, gpu(500, hint=scope("NUMANode")))
    assert "1 Insufficient Topology Scoped GPU Devices" in refusal(found, gpu(200, hint=scope("Device")))
    assert minors(found, gpu(300, hint=scope("NUMANode"))) == [0, 1, 2]
    assert minors(found, gpu(100, hint=scope("Device"))) == [3]
    assert minors(found, gpu(200, hint=scope("PCIe"))) == [4, 5]
    assert len(minors(found, gpu(200, hint=scope("Node")))) == 2


@pytest.mark.feature("SCH-DEV-05")
def test_what_topology_cannot_say() -> None:
    found = world()
    add(found, "n", [*gpus(2), card("gpu", 2, numa=None)])
    assert "1 node(s) missing GPU Device Topology Tree" in refusal(found, gpu(200, hint=scope("PCIe")))
    assert "1 node(s) Unsupported Multi-Shared GPU" in refusal(found, pod({SHARED: 2, RATIO: 100}, hint=scope("PCIe")))
    assert minors(found, gpu(300)) == [0, 1, 2]
    assert "1 Insufficient gpu devices" in refusal(found, gpu(100))


@pytest.mark.feature("SCH-DEV-05")
def test_a_part_of_a_card_goes_where_cards_are_in_use_and_the_best_one_is() -> None:
    found = world({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": RATIO, "weight": 1}]}})
    add(found, "n", gpus(8))
    found.add_pods(holder("x", "n", {"gpu": [entry(5, gpu_core=30, gpu_memory_ratio=30, gpu_memory="24Gi")]}))
    assert minors(found, gpu(50)) == [5]
    assert minors(found, gpu(50)) == [4]  # 5 has 20 left; its neighbour is on the switch in use


@pytest.mark.feature("SCH-DEV-10")
def test_selectors_choose_by_the_labels_of_devices() -> None:
    found = world()
    fast = [card("gpu", n, numa=0, pcie=f"p{n // 2}", labels={"speed": "fast" if n > 1 else "slow"}) for n in range(4)]
    add(found, "n", fast)
    hint = {"gpu": {"selector": {"matchLabels": {"speed": "fast"}}}}
    assert minors(found, gpu(200, hint=hint)) == [2, 3]
    assert "Insufficient GPU Devices" in refusal(found, gpu(100, hint=hint))
    assert minors(found, gpu(100, hint={"gpu": {"selector": {}}, "fpga": {"selector": {"matchLabels": {"a": "b"}}}})) == [0]


# ---------------------------------------------------------------- partitions


def table(*rows: tuple[list[int], int, str | None]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for minor_list, score, bandwidth in rows:
        row: dict[str, Any] = {"minors": minor_list, "gpuLinkType": "NVLink", "allocationScore": score}
        if bandwidth:
            row["ringBusBandwidth"] = bandwidth
        found.setdefault(str(len(minor_list)), []).append(row)
    return found


PAIRS = table(([0, 1], 1, "100Gi"), ([2, 3], 2, "200Gi"), *[([n], 1, None) for n in range(4)])


@pytest.mark.feature("SCH-DEV-06")
def test_a_node_that_honours_its_table() -> None:
    found = world()
    add(found, "n", gpus(4, per_switch=4), labels=HONOR, partitions=PAIRS)
    assert "1 node(s) Unsupported number of GPU requests" in refusal(found, gpu(300))
    assert minors(found, gpu(200)) == [2, 3]  # the highest score first
    assert minors(found, gpu(30)) == [0]  # parts of cards are not partitioned ...
    assert "1 Insufficient Partitioned GPU Devices" in refusal(found, gpu(200))  # ... but in use
    assert minors(found, gpu(100)) == [1]


@pytest.mark.feature("SCH-DEV-06")
def test_a_node_that_only_prefers_its_table() -> None:
    found = world()
    add(found, "n", gpus(4, per_switch=4), partitions=PAIRS)
    holding(found, 3)
    assert minors(found, gpu(200)) == [0, 1]  # a partition, although 2 is beside the card in use
    add(found, "m", gpus(4, per_switch=4), partitions=PAIRS)
    assert len(minors(found, gpu(300))) == 3


@pytest.mark.feature("SCH-DEV-06")
def test_pods_that_insist() -> None:
    found = world()
    add(found, "n", gpus(4, per_switch=4), partitions=PAIRS)
    assert "1 Insufficient Partitioned GPU Devices" in refusal(found, gpu(200, partition={"ringBusBandwidth": "300Gi"}))
    assert "1 node(s) Unsupported number of GPU requests" in refusal(found, gpu(300, partition={}))
    assert minors(found, gpu(200, partition={"allocatePolicy": "Restricted"})) == [2, 3]
    assert "Insufficient Partitioned GPU Devices" in refusal(found, gpu(200, partition={"allocatePolicy": "Restricted"}))
    assert minors(found, gpu(200, partition={"allocatePolicy": "BestEffort", "ringBusBandwidth": "100Gi"})) == [0, 1]
    bare = world()
    add(bare, "n", gpus(4))
    assert "1 node(s) missing GPU Partition Table" in refusal(bare, gpu(200, partition={}))
    labelled = world()
    add(labelled, "n", gpus(4), node=HONOR)
    assert "1 node(s) missing GPU Partition Table" in refusal(labelled, gpu(100))


@pytest.mark.feature("SCH-DEV-06")
@pytest.mark.parametrize("model", ["H100", "H800", "H20", "H100-80GB-HBM3"])
def test_boards_that_are_known(model: str) -> None:
    found = world()
    add(found, "n", gpus(8), node={VENDOR: "nvidia", MODEL: model, **HONOR})
    holding(found, 4)
    assert minors(found, gpu(200)) == [6, 7]  # the free half stays whole for four cards
    assert minors(found, gpu(100)) == [5]
    assert minors(found, gpu(400)) == [0, 1, 2, 3]
    other = world()
    add(other, "n", gpus(8), node={VENDOR: "nvidia", MODEL: "L40", **HONOR})
    assert "missing GPU Partition Table" in refusal(other, gpu(200))


@pytest.mark.feature("SCH-DEV-06")
@given(held=st.sets(st.integers(0, 7), max_size=7), unhealthy=st.sets(st.integers(0, 7), max_size=2), wanted=st.sampled_from([1, 2, 4, 8]))
def test_partitions_are_whole_free_and_healthy(held: set[int], unhealthy: set[int], wanted: int) -> None:
    found = world()
    cards = [card("gpu", n, numa=n // 4, pcie=f"p{n // 2}", health=n not in unhealthy) for n in range(8)]
    add(found, "n", cards, node={MODEL: "H100", **HONOR})
    holding(found, *held)
    free = set(range(8)) - held - unhealthy
    blocks = [set(range(first, first + wanted)) for first in range(0, 8, wanted)]
    decision = found.decide(gpu(100 * wanted))
    assert decision.scheduled == any(block <= free for block in blocks)
    if decision.scheduled:
        assert set(minors(found, gpu(100 * wanted))) in [block for block in blocks if block <= free]
