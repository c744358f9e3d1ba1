"""Devices on the NUMA nodes of the CPUs (SCH-DEV-12), with NodeNUMAResource in one profile."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from roles.scheduler import testing
from tests.roles.scheduler.reservation.test_equivalence_shipped import installed_profile
from tests.roles.scheduler.reservation.worlds import OWNER
from tests.roles.scheduler.reservation.worlds import placed as reservation
from tests.support.devices import (
    CORE,
    EVERYTHING,
    MEMORY,
    POINTS,
    RATIO,
    RDMA,
    annotation,
    card,
    device,
    entry,
    gpus,
    holder,
    pod,
)  # fmt: skip
from tests.support.numa import NumaWorld

SINGLE, RESTRICTED, BEST_EFFORT = "SingleNUMANode", "Restricted", "BestEffort"
POLICY = "node.koordinator.sh/numa-topology-policy"


def both(args: dict[str, Any] | None = None) -> NumaWorld:
    """A world with both plugins in the shipped order."""
    on = {"enabled": [{"name": "NodeNUMAResource"}, {"name": "DeviceShare"}]}
    plugins: dict[str, Any] = dict.fromkeys(POINTS, on)
    plugins["score"] = {"disabled": [{"name": "*"}], **on}
    return NumaWorld({"plugins": plugins, "pluginConfig": [{"name": "DeviceShare", "args": args or {}}]})


def machine(found: NumaWorld, name: str = "n", policy: str = SINGLE, cards: Any = None) -> None:
    """A node with two NUMA nodes of 8 CPUs, two GPUs on each, by default."""
    labels = {POLICY: policy} if policy else {}
    amounts = {**EVERYTHING, MEMORY: "10Ti"}
    found.machine(name, labels=labels, node=amounts, sockets=1, nodes=2, cores=4)
    found.feed("Device", device(name, gpus(4, per_switch=1, per_numa=2) if cards is None else cards))


def hold(found: NumaWorld, *held: int) -> None:
    for minor in held:
        found.add_pods(holder(f"x{minor}", "n", {"gpu": [entry(minor)]}, cpu="100m"))


def wants(gpu: int, cpu: str = "4", **more: Any) -> Any:
    return pod({CORE: gpu, RATIO: gpu}, cpu=cpu, memory="1Gi", **more)


def placed(found: NumaWorld, item: Any) -> tuple[list[int], list[int]]:
    """GPU minors, and the NUMA nodes that the CPUs came from."""
    decision, seen = found.bind(item)
    assert seen is not None, decision.message()
    meta = seen.pod.metadata.annotations or {}
    status = json.loads(meta.get("scheduling.koordinator.sh/resource-status", "{}"))
    allocated = json.loads(meta.get("scheduling.koordinator.sh/device-allocated", "{}"))
    return [item["minor"] for item in allocated.get("gpu", ())], [part["node"] for part in status.get("numaNodeResources", [])]


@pytest.mark.feature("SCH-DEV-12")
def test_cpus_follow_the_free_cards() -> None:
    found = both()
    machine(found)
    hold(found, 0)
    assert placed(found, wants(200)) == ([2, 3], [1])
    assert placed(found, wants(100)) == ([1], [0])


@pytest.mark.feature("SCH-DEV-12")
def test_cards_follow_the_free_cpus() -> None:
    found = both()
    machine(found)
    assert placed(found, pod({CORE: 100, RATIO: 100}, cpu="6", memory="1Gi"))[1] == [0]
    assert placed(found, wants(100, cpu="6")) == ([2], [1])
    message = found.decide(wants(100, cpu="4")).message()
    assert "Unaligned NUMA Hint cause cpu prefer [" in message


@pytest.mark.feature("SCH-DEV-12")
def test_what_one_numa_node_does_not_have() -> None:
    found = both()
    machine(found)
    hold(found, 0, 2)
    assert not found.decide(wants(200)).scheduled  # a card on each NUMA node


@pytest.mark.feature("SCH-DEV-12")
def test_more_cards_than_all_numa_nodes_have() -> None:
    found = both()
    machine(found)
    assert "1 Insufficient NUMA Scoped Devices" in found.decide(wants(500)).message()
    machine(found, "free", policy="")
    assert "Insufficient GPU Devices" in found.decide(wants(500)).message()
    restricted = both()
    machine(restricted, policy=RESTRICTED)
    hold(restricted, 0, 2)
    assert placed(restricted, wants(200, cpu="12")) == ([1, 3], [0, 1])
    assert not restricted.decide(wants(100)).scheduled  # no cards at all
    loose = both()
    machine(loose, policy=BEST_EFFORT)
    hold(loose, 0, 2)
    assert placed(loose, wants(200))[0] == [1, 3]


@pytest.mark.feature("SCH-DEV-12")
def test_the_cards_that_the_topology_likes_decide_between_numa_nodes() -> None:
    found = both()
    machine(found)
    hold(found, 3)
    assert placed(found, wants(100)) == ([2], [1])  # beside the card in use, although NUMA node 0 is as good for CPUs


@pytest.mark.feature("SCH-DEV-12")
def test_alignment_can_be_switched_off() -> None:
    found = both({"disableDeviceNUMATopologyAlignment": True})
    machine(found)
    hold(found, 0, 1)
    assert placed(found, wants(100)) == ([2], [0])


@pytest.mark.feature("SCH-DEV-12")
def test_devices_of_unknown_numa_nodes_are_near_all_and_those_without_topology_near_none() -> None:
    found = both()
    machine(found, cards=[card("gpu", 0, numa=-1, pcie="p0"), card("gpu", 1, numa=1, pcie="p1")])
    assert placed(found, wants(200))[0] == [0, 1]
    bare = both()
    machine(bare, cards=[card("gpu", 0, numa=None), card("gpu", 1, numa=1, pcie="p1")])
    assert not bare.decide(wants(200)).scheduled


@pytest.mark.feature("SCH-DEV-12")
@pytest.mark.feature("SCH-DEV-11")
def test_cpus_follow_a_designated_card() -> None:
    found = both()
    machine(found)
    hint = {"scheduling.koordinator.sh/scheduling-hint": json.dumps({"extensions": {"DeviceShare": {}}})}
    ordered = {**hint, "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [entry(2)]})}
    assert placed(found, wants(100, annotations=ordered)) == ([2], [1])
    assert placed(found, wants(100))[0] == [3]


@pytest.mark.feature("SCH-DEV-12")
@pytest.mark.feature("SCH-DEV-16")
@pytest.mark.parametrize(
    ("reserved", "others", "cpu", "uses", "gets"),
    [
        ([("r", (0,), None, "Restricted")], (), "6", "", [2]),  # the card of r is where the CPUs are not
        ([("r", (2, 3), "1", "Restricted")], (), "6", "", []),  # the cards of r are where the CPUs are, and r has no CPUs for it
        ([("r", (0,), "1", "Restricted"), ("s", (2,), "1", "Aligned")], (1, 3), "100m", "s", [2]),  # r has no CPUs for it
        ([("r", (0,), "1", "Restricted")], (1,), "100m", "", [2]),
    ],
)
def test_an_owner_uses_the_reservation_with_which_cpus_and_cards_are_aligned(
    reserved: Any, others: Any, cpu: str, uses: str, gets: list[int]
) -> None:
    """What the filter promises, Reserve keeps: it makes the agreement for that reservation alone."""
    found = NumaWorld(installed_profile())
    machine(found)
    for name, minors, cpus, policy in reserved:
        annotations = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [entry(minor) for minor in minors]})}
        cards = dict.fromkeys((CORE, RATIO), str(100 * len(minors)))
        found.feed("Reservation", reservation(name, "n", cpu=cpus, memory=None, requests=cards, annotations=annotations, policy=policy))
    hold(found, *others)
    assert placed(found, testing.pod(cpu=cpu))[1] == [0]
    decision = found.decide(wants(100, labels=OWNER))
    assert decision.scheduled is bool(gets), decision.message()
    if gets:
        assert placed(found, wants(100, labels=OWNER))[0] == gets
        assert (decision.ctx.reservation.name if decision.ctx.reservation is not None else "") == uses


@pytest.mark.feature("SCH-DEV-12")
def test_two_types_meet_on_one_numa_node() -> None:
    found = both()
    cards = [*gpus(4, per_switch=1, per_numa=2), card("rdma", 0, numa=0, pcie="p0"), card("rdma", 1, numa=1, pcie="p2")]
    machine(found, cards=cards)
    found.add_pods(holder("x", "n", {"rdma": [entry(0, rdma=100)]}, {RDMA: 100}, cpu="100m"))
    decision, seen = found.bind(pod({CORE: 100, RATIO: 100, RDMA: 50}, cpu="4", memory="1Gi"))
    assert seen is not None, decision.message()
    allocated = json.loads((seen.pod.metadata.annotations or {})["scheduling.koordinator.sh/device-allocated"])
    assert [item["minor"] for item in allocated["gpu"]] == [2]
    assert [item["minor"] for item in allocated["rdma"]] == [1]


@pytest.mark.feature("SCH-DEV-12")
@pytest.mark.feature("SCH-DEV-13")
def test_scores_look_at_the_numa_nodes_of_the_pod() -> None:
    by_ratio = {"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": RATIO, "weight": 1}]}}
    for policy, score in ((SINGLE, 0.0), (BEST_EFFORT, 25.0)):
        found = both(by_ratio)
        machine(found, policy=policy)
        hold(found, 0)
        decision = found.decide(wants(200))
        share: Any = found.framework.plugins["DeviceShare"]
        slot = found.cluster.slot_of("n")
        assert share.score(decision.ctx, np.array([slot]))[0] == score  # of the two cards of NUMA node 1 nothing is left
        assert share.score(decision.ctx, slice(None))[slot] == score


@pytest.mark.feature("SCH-DEV-12")
def test_without_a_device_object_numa_is_decided_by_the_rest() -> None:
    found = both()
    found.machine("n", labels={POLICY: SINGLE}, node={**EVERYTHING, MEMORY: "10Ti"}, sockets=1, nodes=2, cores=4)
    decision, seen = found.bind(wants(100))
    assert seen is not None, decision.message()
    assert annotation(found, decision) == {}
