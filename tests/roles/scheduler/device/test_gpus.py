"""GPUs: whole ones, parts of one, parts of several, and memory for ratio (SCH-DEV-01, 03, 04, 13, 14), through the scheduler's cycle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roles.scheduler import testing
from roles.scheduler.cycle.record import record_of
from tests.support.devices import (
    CORE,
    MEMORY,
    MODEL,
    RATIO,
    SHARED,
    VENDOR,
    add,
    annotation,
    bare,
    card,
    device,
    entry,
    give,
    gpu,
    gpus,
    holder,
    minors,
    pod,
    refusal,
    world,
)  # fmt: skip


@pytest.mark.feature("SCH-DEV-03")
def test_whole_gpus_need_cards_that_nobody_uses() -> None:
    found = world()
    add(found, "n", gpus(4))
    assert minors(found, gpu(30)) == [0]
    assert minors(found, gpu(300)) == [1, 2, 3]
    assert "1 Insufficient GPU Devices" in refusal(found, gpu(100))
    assert minors(found, gpu(70)) == [0]


@pytest.mark.feature("SCH-DEV-03")
def test_a_fraction_is_never_spread_over_cards() -> None:
    found = world()
    add(found, "n", gpus(2))
    assert sorted(minors(found, gpu(60)) + minors(found, gpu(60))) == [0, 1]
    assert "Insufficient GPU Devices" in refusal(found, gpu(50))  # 40 % are left, twice
    assert minors(found, gpu(40)) == [0]


@pytest.mark.feature("SCH-DEV-03")
def test_parts_of_several_cards() -> None:
    found = world()
    add(found, "n", gpus(4))
    found.add_pods(holder("x", "n", {"gpu": [entry(1)]}))
    assert minors(found, pod({SHARED: 2, RATIO: 100, CORE: 100})) == [0, 2]
    assert minors(found, pod({SHARED: 3, MEMORY: "120Gi"})) == [0, 2, 3]
    assert "Insufficient gpu devices" in refusal(found, pod({SHARED: 4, MEMORY: "40Gi"}))


@pytest.mark.feature("SCH-DEV-04")
def test_ratio_and_memory_never_promise_more_than_the_card_has() -> None:
    found = world()
    add(found, "n", [card("gpu", 0, gpu_core="100", gpu_memory_ratio="100", gpu_memory="100Gi")])
    (first,) = give(found, pod({MEMORY: str((101 << 30) // 2)}))["gpu"]  # 50.5 GiB: a ratio of 50, rounded down
    assert first["resources"][RATIO] == "50"
    assert "Insufficient GPU Devices" in refusal(found, pod({RATIO: 50}))  # 50 % of the ratio are left, but 49.5 GiB only
    (second,) = give(found, pod({RATIO: 49}))["gpu"]
    assert second["resources"][MEMORY] == "49Gi"


@pytest.mark.feature("SCH-DEV-01")
def test_a_card_lacks_what_its_entry_does_not_name() -> None:
    found = world()
    add(found, "n", [card("gpu", 0, gpu_memory_ratio="100", gpu_memory="80Gi"), card("gpu", 1)])
    assert minors(found, gpu(50)) == [1]
    assert minors(found, pod({"nvidia.com/gpu": 1})) == [0]  # nobody asked for cores by name


@pytest.mark.feature("SCH-DEV-01")
def test_health_changes_and_deletion() -> None:
    found = world()
    found.add_nodes(bare("n"))
    assert give(found, gpu(100)) == {}  # without a Device object nothing is written
    found.feed("Device", device("n", [card("gpu", 0, health=False), card("gpu", 1)]))
    assert minors(found, gpu(50)) == [1]
    first = device("n", [card("gpu", 0), card("gpu", 1)])
    found.feed("Device", first)
    assert minors(found, gpu(100)) == [0]
    plugin = found.framework.plugins["DeviceShare"]
    for feed in plugin.feeds():
        if feed.kind.kind == "Device":
            feed.observe(testing.msgspec.convert(first, feed.projection), None)
    assert "Insufficient GPU Devices" in refusal(found, gpu(10))
    found.feed("Device", first)
    assert "Insufficient GPU Devices" in refusal(found, gpu(60))  # who used the cards still does
    assert minors(found, gpu(50)) == [1]


@pytest.mark.feature("SCH-DEV-01")
def test_a_malformed_device_leaves_the_last_good_one(caplog: pytest.LogCaptureFixture) -> None:
    found = world()
    add(found, "n", gpus(1))
    found.feed("Device", device("n", [card("gpu", 0, gpu_core="many")]))
    assert "Device n: spec.devices[0] (gpu 0)" in caplog.text
    found.feed("Device", device("n", [card("gpu", 0), {"type": "gpu", "health": True}]))
    assert "spec.devices[1] has no type or no minor" in caplog.text
    assert minors(found, gpu(100)) == [0]


@pytest.mark.feature("SCH-DEV-03")
def test_the_record_of_a_refusal_says_how_near_it_was() -> None:
    found = world()
    add(found, "n", gpus(4))
    found.add_pods(holder("x", "n", {"gpu": [entry(0), entry(1)]}))
    terms = {term.name: term for term in record_of(found.decide(gpu(300)), now=0.0).terms}
    assert terms["gpu: nodes with devices"].value == 1
    near = terms["gpu: most devices of a node with enough left"]
    assert (near.value, near.note) == (2, f"wanted=3 each {CORE}=100 {RATIO}=100")


@pytest.mark.feature("SCH-DEV-05")
def test_the_record_of_a_placement_says_what_was_given() -> None:
    found = world()
    add(found, "n", [*gpus(4), card("rdma", 0, pcie="p1")])
    joint = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    decision = found.schedule(pod({CORE: 200, RATIO: 200, "koordinator.sh/rdma": 1}, joint=joint))
    terms = {term.name: (term.value, term.note) for term in record_of(decision, now=0.0).terms}
    assert terms["gpu"] == (2, "minors=2,3 numa=0 pcie=p1")
    assert terms["rdma"] == (1, "minors=0 numa=0 pcie=p1")


entries = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["gpu", "rdma", ""]), "minor": st.integers(-5, 5), "id": st.text(max_size=3), "health": st.booleans(),
        "resources": st.dictionaries(st.sampled_from([CORE, RATIO, MEMORY, "x"]), st.sampled_from(["100", "-5", "1e3", "80Gi", "many"])),
        "topology": st.fixed_dictionaries({"nodeID": st.integers(-(2**31), 2**31 - 1), "pcieID": st.text(max_size=3)}),
        "vfGroups": st.just([{"vfs": [{"busID": "b", "minor": -1}, {"busID": "a"}]}]),
    },
)  # fmt: skip
tables = st.one_of(
    st.none(), st.text(max_size=5), st.just('{"2": [{"minors": [0, 1, 2]}, {"minors": [0, 0]}, {"minors": [0, 1], "allocationScore": -3}]}')
)


@pytest.mark.feature("SCH-DEV-01")
@settings(max_examples=50, deadline=None)
@given(cards=st.lists(entries, max_size=6), table=tables)
def test_whatever_a_device_says_scheduling_goes_on(cards: list[Any], table: str | None) -> None:
    found = world()
    add(found, "n", gpus(2))
    body = device("n", cards)
    if table is not None:
        body["metadata"]["annotations"] = {"scheduling.koordinator.sh/gpu-partitions": table}
    found.feed("Device", body)
    for item in (gpu(200), gpu(50), pod({"koordinator.sh/rdma": 1}, hint={"rdma": {"vfSelector": {}}}), pod({MEMORY: "1Gi"})):
        decision = found.schedule(item)
        assert decision.scheduled or decision.message()
        if decision.scheduled:
            assert len(annotation(found, decision).get("gpu", ())) in (0, 1, 2)


@pytest.mark.feature("SCH-DEV-01")
def test_resources_that_shrink_below_what_is_used() -> None:
    found = world()
    add(found, "n", gpus(1))
    assert minors(found, gpu(80)) == [0]
    found.feed("Device", device("n", [card("gpu", 0, gpu_core="50", gpu_memory_ratio="50", gpu_memory="40Gi")]))
    assert "Insufficient GPU Devices" in refusal(found, gpu(10))
    summary = found.framework.plugins["DeviceShare"].endpoints()[1].answer({"name": "n"})
    assert summary["deviceFree"][CORE] == "0"


@pytest.mark.feature("SCH-DEV-13")
@pytest.mark.parametrize(("kind", "node", "minor"), [("LeastAllocated", "idle", 1), ("MostAllocated", "busy", 0)])
def test_nodes_and_cards_by_strategy(kind: str, node: str, minor: int) -> None:
    found = world({"scoringStrategy": {"type": kind, "resources": [{"name": RATIO, "weight": 1}]}})
    add(found, "busy", gpus(2))
    found.add_pods(holder("x", "busy", {"gpu": [entry(0, gpu_core=30, gpu_memory_ratio=30, gpu_memory="24Gi")]}))
    assert minors(found, gpu(20)) == [minor]
    add(found, "idle", gpus(2))
    assert found.decide(gpu(20)).node == node


@pytest.mark.feature("SCH-DEV-13")
def test_whole_cards_count_each() -> None:
    found = world({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": RATIO, "weight": 2}, {"name": CORE, "weight": 1}]}})
    add(found, "two", gpus(2))
    add(found, "four", gpus(4))
    plugin, decision = found.framework.plugins["DeviceShare"], found.decide(gpu(200))
    rows = [found.cluster.slot_of("two"), found.cluster.slot_of("four")]
    assert plugin.score(decision.ctx, np.array(rows)).tolist() == [100.0, 50.0]
    assert plugin.score(decision.ctx, slice(None))[rows].tolist() == [100.0, 50.0]
    assert decision.node == "two"


@pytest.mark.feature("SCH-DEV-14")
def test_models_that_are_not_shared_and_isolation_providers() -> None:
    found = world({"gpuShareUnsupportedModels": [{"vendor": "nvidia", "model": "T4"}]})
    add(found, "t4", gpus(2), node={VENDOR: "nvidia", MODEL: "T4"})
    assert "1 model T4 of vendor nvidia does not support GPU Share" in refusal(found, gpu(50))
    assert minors(found, gpu(100)) == [0]
    provider = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    add(found, "plain", gpus(1))
    assert "2 node(s) gpu-isolation-provider didn't match the pod's" in refusal(found, gpu(50, labels=provider))
    add(found, "hami", gpus(1), node=provider)
    decision = found.schedule(gpu(50, labels=provider))
    assert decision.node == "hami"
    assert annotation(found, decision)["gpu"][0]["minor"] == 0
    assert found.decide(gpu(100, labels=provider)).scheduled  # whole cards need no isolation


@pytest.mark.feature("SCH-DEV-14")
def test_virtual_npus_come_from_templates() -> None:
    found = world()
    npu = {
        "huawei.com/npu-core": "20",
        "huawei.com/npu-cpu": "7",
        "huawei.com/npu-dvpp": "100",
        "gpu_memory": "21Gi",
        "gpu_memory_ratio": "100",
    }
    add(found, "n", [card("gpu", 0, **npu)], node={VENDOR: "huawei", MODEL: "Ascend-310P3"})
    wanted = {SHARED: 1, "huawei.com/npu-core": 1, "huawei.com/npu-cpu": 1, MEMORY: "3Gi"}
    assert "no matched GPU shared resource template" in refusal(found, pod(wanted))
    data = """
        huawei-Ascend-310P3:
          vir01: {huawei.com/npu-core: 1, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 3Gi}
          vir02: {huawei.com/npu-core: 2, huawei.com/npu-cpu: 2, koordinator.sh/gpu-memory: 6Gi}
        huawei-Ascend-910A:
        huawei-Ascend-910B: {other: {huawei.com/npu-core: 5, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 16Gi}}
    """
    meta = {"name": "gpu-shared-resource-templates", "namespace": "koordinator-system"}
    found.feed("ConfigMap", {"metadata": meta, "data": {"data.yaml": data}})
    (given,) = give(found, pod(wanted))["gpu"]
    assert given["extension"] == {"gpuSharedResourceTemplate": "vir01"}
    assert given["resources"][RATIO] == "14"
    elsewhere = {SHARED: 1, "huawei.com/npu-core": 5, "huawei.com/npu-cpu": 1, MEMORY: "16Gi"}
    assert "1 no matched GPU shared resource template" in refusal(found, pod(elsewhere))
    assert "nodes are available: no matched GPU shared resource template" in refusal(found, pod({**wanted, MEMORY: "4Gi"}))
    found.feed("ConfigMap", {"metadata": meta, "data": {"data.yaml": "[1, 2]"}})  # the last good templates stay
    assert found.decide(pod(wanted)).scheduled
    found.feed("ConfigMap", {"metadata": {**meta, "namespace": "default"}, "data": {"data.yaml": ""}})  # another one
    assert found.decide(pod(wanted)).scheduled
    plain = "huawei-Ascend-310P3: {1:20: {huawei.com/npu-core: 2, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 3Gi}}"  # a name, not 80
    found.feed("ConfigMap", {"metadata": meta, "data": {"data.yaml": plain}})
    (given,) = give(found, pod({**wanted, "huawei.com/npu-core": 2}))["gpu"]
    assert given["extension"] == {"gpuSharedResourceTemplate": "1:20"}
    found.feed("ConfigMap", {"metadata": meta, "data": {}})
    assert not found.decide(pod(wanted)).scheduled
