"""RDMA and FPGA devices, virtual functions, and devices of several types together (SCH-DEV-07, 08, 09), through the scheduler's cycle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.devices import CORE, FPGA, RATIO, RDMA, add, card, entry, give, gpus, holder, minors, pod, refusal, world

SAME = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
NEAR = {"deviceTypes": ["gpu", "rdma"]}


def rdma(amount: int, **hint: Any) -> Any:
    return pod({RDMA: amount}, hint={"rdma": hint} if hint else None)


def nics(number: int, **more: Any) -> list[Any]:
    return [card("rdma", n, numa=n // 2, pcie=f"p{n}", **more) for n in range(number)]


@pytest.mark.feature("SCH-DEV-07")
def test_parts_and_multiples_of_devices() -> None:
    found = world()
    add(found, "n", [*nics(4), card("fpga", 0)])
    assert give(found, rdma(200))["rdma"] == [{"minor": n, "id": f"RDMA-{n}", "resources": {RDMA: "100"}} for n in (0, 1)]
    assert minors(found, rdma(30), "rdma") == [2]
    assert minors(found, rdma(100), "rdma") == [3]
    assert "1 Insufficient rdma devices" in refusal(found, rdma(100))
    assert minors(found, pod({FPGA: 50}), "fpga") == [0]
    assert "1 Insufficient fpga devices" in refusal(found, pod({FPGA: 60}))


@pytest.mark.feature("SCH-DEV-07")
def test_a_node_without_the_type_cannot_be_helped() -> None:
    found = world()
    add(found, "n", gpus(1))
    found.add_pods(pod({RDMA: 1}, name="low", node="n", priority=-5))
    message = refusal(found, rdma(1))
    assert "1 Insufficient rdma devices" in message
    assert "1 Preemption is not helpful" in message


@pytest.mark.feature("SCH-DEV-07")
@pytest.mark.feature("SCH-DEV-10")
def test_one_of_all_devices_that_match() -> None:
    found = world()
    cards = [card("rdma", n, pcie=f"p{n}", labels={"type": "storage" if n < 2 else "compute"}) for n in range(4)]
    add(found, "n", cards)
    compute = {"matchLabels": {"type": "compute"}}
    everywhere = give(found, rdma(1, allocateStrategy="ApplyForAll"))["rdma"]
    assert [(item["minor"], item["resources"]) for item in everywhere] == [(n, {RDMA: "1"}) for n in range(4)]
    assert minors(found, rdma(2, allocateStrategy="ApplyForAll", selector=compute), "rdma") == [2, 3]
    assert "Insufficient rdma devices" in refusal(found, rdma(1, allocateStrategy="ApplyForAll", selector={"matchLabels": {"type": "x"}}))


@pytest.mark.feature("SCH-DEV-07")
def test_amounts_as_counts_and_exclusive_use() -> None:
    found = world()
    add(found, "n", nics(4))
    some = give(found, rdma(2, allocateStrategy="RequestsAsCount"))["rdma"]
    assert [(item["minor"], item["resources"][RDMA]) for item in some] == [(0, "1"), (1, "1")]
    alone = give(found, rdma(2, allocateStrategy="RequestsAsCount", exclusivePolicy="DeviceLevel"))["rdma"]
    assert [(item["minor"], item["resources"][RDMA]) for item in alone] == [(2, "100"), (3, "100")]
    assert "Insufficient rdma devices" in refusal(found, rdma(3, allocateStrategy="RequestsAsCount"))
    scoped = world()
    add(scoped, "n", nics(4))
    assert minors(scoped, rdma(1), "rdma") == [0]
    hint = {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel", "requiredTopologyScope": "NUMANode"}
    assert minors(scoped, rdma(2, **hint), "rdma") == [2, 3]


@pytest.mark.feature("SCH-DEV-07")
def test_a_switch_for_one_pod_alone() -> None:
    found = world()
    add(found, "n", [card("rdma", n, pcie=f"p{n // 2}") for n in range(4)])
    assert minors(found, rdma(10, exclusivePolicy="PCIeLevel"), "rdma") == [0]
    assert minors(found, rdma(10), "rdma") == [2]  # not the neighbour of somebody who wants to be alone
    assert "Insufficient rdma devices" in refusal(found, rdma(10, exclusivePolicy="PCIeLevel"))


@pytest.mark.feature("SCH-DEV-08")
def test_virtual_functions() -> None:
    found = world()
    functions = [f"0000:3b:00.{n}" for n in (4, 2, 3)]
    add(found, "n", [card("rdma", 0, vfs=functions, vf_labels={"type": "fast"}), card("rdma", 1)])
    add(found, "m", [card("rdma", 0)])
    fast = {"vfSelector": {"matchLabels": {"type": "fast"}}}
    taken = [give(found, rdma(1, **fast))["rdma"][0] for _ in range(3)]
    assert [item["extension"]["vfs"][0]["busID"] for item in taken] == sorted(functions)
    assert {item["minor"] for item in taken} == {0}
    assert taken[0]["extension"]["vfs"][0]["minor"] == 1
    message = refusal(found, rdma(1, **fast))
    assert "1 Insufficient rdma VirtualFunctions" in message
    assert "1 Insufficient rdma devices" in message
    assert "extension" not in give(found, rdma(1))["rdma"][0]  # nobody asked for a function
    other = world()
    add(other, "n", [card("rdma", 0, vfs=functions, vf_labels={"type": "slow"})])
    assert "1 Insufficient rdma devices" in refusal(other, rdma(1, **fast))
    assert give(other, rdma(1, vfSelector={}))["rdma"][0]["extension"]["vfs"][0]["busID"] == "0000:3b:00.2"


# ---------------------------------------------------------------- together


def both(percent: int, rdma_amount: int, joint: Any = None, **hints: Any) -> Any:
    return pod({CORE: percent, RATIO: percent, RDMA: rdma_amount}, joint=joint, hint=hints or None)


@pytest.mark.feature("SCH-DEV-09")
def test_the_other_type_follows_the_leading_one() -> None:
    found = world()
    add(found, "n", [*gpus(8), *nics(4)])
    found.add_pods(holder("x", "n", {"gpu": [entry(0)]}))
    got = give(found, both(200, 1, SAME))
    assert [item["minor"] for item in got["gpu"]] == [2, 3]
    assert [item["minor"] for item in got["rdma"]] == [1]
    got = give(found, both(400, 1, SAME))  # two switches: a card of each
    assert [item["minor"] for item in got["gpu"]] == [4, 5, 6, 7]
    assert [item["minor"] for item in got["rdma"]] == [2, 3]


@pytest.mark.feature("SCH-DEV-09")
def test_another_switch_is_found_where_the_first_one_does_not_serve() -> None:
    found = world()
    add(found, "n", [*gpus(8), *nics(4)])
    found.add_pods(holder("x", "n", {"rdma": [entry(0, rdma=100)]}, {RDMA: 100}))
    got = give(found, both(100, 100, SAME))
    assert [item["minor"] for item in got["gpu"]] == [2]
    assert [item["minor"] for item in got["rdma"]] == [1]


@pytest.mark.feature("SCH-DEV-09")
def test_the_rule_is_kept_or_the_node_refused() -> None:
    found = world()
    add(found, "n", [*gpus(4), *nics(1)])
    assert "1 node(s) Device Joint-Allocate rules violation" in refusal(found, both(400, 1, SAME))
    assert "1 Insufficient rdma devices" in refusal(found, both(400, 300, SAME))
    got = give(found, both(400, 1, NEAR))
    assert [item["minor"] for item in got["rdma"]] == [0]


@pytest.mark.feature("SCH-DEV-09")
def test_near_is_a_wish_and_all_is_all() -> None:
    found = world()
    add(found, "n", [*gpus(8), *nics(4)])
    got = give(found, both(400, 1, NEAR))
    assert [item["minor"] for item in got["rdma"]] == [0, 1]
    got = give(found, both(100, 1, SAME, rdma={"allocateStrategy": "ApplyForAll"}))
    assert [item["minor"] for item in got["rdma"]] == [0, 1, 2, 3]
    alone = give(found, both(100, 1, {"deviceTypes": ["gpu", "fpga"], "requiredScope": "SamePCIe"}))
    assert len(alone["rdma"]) == 1


@pytest.mark.feature("SCH-DEV-09")
@pytest.mark.parametrize("node", [{}, {"node.koordinator.sh/gpu-model": "H100"}])
@pytest.mark.parametrize("scope", ["", "PCIe"])
def test_the_network_may_lead(node: dict[str, str], scope: str) -> None:
    found = world()
    add(found, "n", [*gpus(8), *nics(4)], node=node)
    found.add_pods(holder("x", "n", {"rdma": [entry(0, rdma=100)], "gpu": [entry(0)]}, {RDMA: 100}))
    lead = {"deviceTypes": ["rdma", "gpu"], "requiredScope": "SamePCIe"}
    got = give(found, both(200, 100, lead, **{"gpu": {"requiredTopologyScope": scope}}))
    assert [item["minor"] for item in got["rdma"]] == [1]
    assert [item["minor"] for item in got["gpu"]] == [2, 3]


@pytest.mark.feature("SCH-DEV-09")
@settings(max_examples=30)
@given(
    used_gpus=st.sets(st.integers(0, 7), max_size=6), used_nics=st.sets(st.integers(0, 3), max_size=3),
    wanted=st.sampled_from([100, 200, 400]), share=st.sampled_from([1, 100, 200]),
)  # fmt: skip
def test_joint_devices_share_their_switches(used_gpus: set[int], used_nics: set[int], wanted: int, share: int) -> None:
    found = world()
    add(found, "n", [*gpus(8), *nics(4)])
    held = {"gpu": [entry(n) for n in sorted(used_gpus)], "rdma": [entry(n, rdma=100) for n in sorted(used_nics)]}
    found.add_pods(holder("x", "n", held))
    item = both(wanted, share, SAME)
    decision = found.decide(item)
    if decision.scheduled:
        got = give(found, item)
        mine, others = {n["minor"] for n in got["gpu"]}, {n["minor"] for n in got["rdma"]}
        assert {minor // 2 for minor in mine} == others
        assert mine.isdisjoint(used_gpus)
        assert others.isdisjoint(used_nics)
    elif wanted == 100 and share <= 100:
        assert not [n for n in range(8) if n not in used_gpus and n // 2 not in used_nics]
