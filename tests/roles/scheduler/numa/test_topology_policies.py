"""NUMA policies of nodes and pods, shares of NUMA nodes, amplification, scores."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import names
from roles.scheduler import testing
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.plugins.numa import trials
from tests.roles.scheduler.reservation.test_equivalence_shipped import installed_profile
from tests.roles.scheduler.reservation.worlds import OWNER
from tests.roles.scheduler.reservation.worlds import placed as reservation
from tests.support.numa import LSR, NumaWorld, bound_pod, profile

SINGLE = {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"}
RESTRICTED = {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "Restricted"}
BEST_EFFORT = {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "BestEffort"}


def one(labels: dict[str, str] | None = None, content: Any = None, **more: Any) -> NumaWorld:
    """A machine of two NUMA nodes with 8 CPUs and 32Gi each."""
    world = NumaWorld(content)
    world.machine("n", labels=labels, **{"sockets": 2, "nodes": 1, **more})
    return world


def plain(**more: Any) -> Any:
    """A pod that binds no CPUs."""
    return bound_pod(labels={}, **more)


def shares(status: dict[str, Any]) -> dict[int, dict[str, str]]:
    return {part["node"]: part["resources"] for part in status.get("numaNodeResources", ())}


@pytest.mark.feature("SCH-NUMA-06")
def test_a_single_numa_node_holds_the_pod_or_the_node_is_refused() -> None:
    world = one(SINGLE, node={"cpu": "64"})
    assert shares(world.status(plain(cpu="6", memory="8Gi"))) == {0: {"cpu": "6", "memory": "8Gi"}}
    assert shares(world.status(plain(cpu="6", memory="8Gi"))) == {1: {"cpu": "6", "memory": "8Gi"}}
    # 2 CPUs are left on each: 3 can be had on both together only, 5 cannot be had at all.
    apart = "1 Unaligned NUMA Hint cause cpu prefer [11] among [11] & memory prefer [11] among [11]"
    assert apart in world.refusal(plain(cpu="3", memory="1Gi"))
    assert "1 Unsatisfied NUMA cpu, 1 Unsatisfied NUMA memory" in world.refusal(plain(cpu="5", memory="1Gi"))


@pytest.mark.feature("SCH-NUMA-07")
def test_a_resource_of_which_a_numa_node_has_nothing_left_cannot_be_had_across_it() -> None:
    world = one(SINGLE, node={"cpu": "64"})
    world.status(plain(cpu="8", memory="1Gi"))
    world.status(plain(cpu="3", memory="31Gi"))
    # Both together have enough, but NUMA node 0 has no CPU at all.
    said = world.refusal(plain(cpu="4", memory="30Gi"))
    assert "1 Unsatisfied NUMA cpu" in said
    assert "NUMA memory" not in said


@pytest.mark.feature("SCH-NUMA-06")
def test_policies_of_node_and_pod_must_not_contradict_each_other() -> None:
    world = one(SINGLE)
    assert "node(s) NUMA Topology policy not match" in world.refusal(plain(numa={"numaTopologyPolicy": "Restricted"}))
    assert shares(world.status(plain(cpu="1", memory="1Gi", numa={"numaTopologyPolicy": "SingleNUMANode"})))
    free = one()
    assert shares(free.status(plain(cpu="1", memory="1Gi"))) == {}
    assert shares(free.status(plain(cpu="1", memory="1Gi", numa={"numaTopologyPolicy": "SingleNUMANode"}))) == {
        0: {"cpu": "1", "memory": "1Gi"}
    }


@pytest.mark.feature("SCH-NUMA-06")
@pytest.mark.parametrize(
    ("reported", "refused"), [("SingleNUMANodePodLevel", True), ("SingleNUMANodeContainerLevel", False), ("None", False)]
)
def test_the_kubelets_policy_counts_unless_a_label_says_otherwise(reported: str, refused: bool) -> None:
    pod = {"cpu": "10", "memory": "1Gi"}
    assert one(policy=reported).decide(plain(**pod)).scheduled is not refused
    assert one(RESTRICTED, policy=reported).decide(plain(**pod)).scheduled


@pytest.mark.feature("SCH-NUMA-06")
def test_a_policy_needs_numa_nodes_that_are_known() -> None:
    assert "node(s) missing NUMA resources" in one(SINGLE, zones={}).refusal(plain())
    assert one(zones={}).decide(plain()).scheduled


@pytest.mark.feature("SCH-NUMA-07")
def test_best_effort_prefers_one_numa_node_and_refuses_only_what_cannot_be_had() -> None:
    world = one(BEST_EFFORT)
    assert shares(world.status(plain(cpu="6", memory="1Gi"))) == {0: {"cpu": "6", "memory": "1Gi"}}
    assert shares(world.status(plain(cpu="9", memory="1Gi"))) == {0: {"cpu": "2", "memory": "512Mi"}, 1: {"cpu": "7", "memory": "512Mi"}}
    assert "node(s) Insufficient NUMA Node resources" in world.refusal(plain(cpu="1", memory="100Gi"))


@pytest.mark.feature("SCH-NUMA-08")
def test_shares_fill_from_the_numa_node_with_the_least_left() -> None:
    world = one(RESTRICTED, node={"cpu": "64"})
    world.status(plain(cpu="6", memory="8Gi"))
    assert shares(world.status(plain(cpu="9", memory="4Gi"))) == {0: {"cpu": "2", "memory": "2Gi"}, 1: {"cpu": "7", "memory": "2Gi"}}
    assert "Unsatisfied NUMA cpu" in world.refusal(plain(cpu="1500m", memory="1Gi"))


@pytest.mark.feature("SCH-NUMA-08")
def test_bound_pods_get_whole_cpus_and_cores_of_each_share() -> None:
    status = one(RESTRICTED).status(bound_pod(cpu="11", memory="1Gi"))
    assert status == {
        "cpuset": "0-4,8-13",
        "numaNodeResources": [
            {"node": 0, "resources": {"cpu": "5", "memory": "512Mi"}}, {"node": 1, "resources": {"cpu": "6", "memory": "512Mi"}},
        ],
    }  # fmt: skip
    required = {"requiredCPUBindPolicy": "FullPCPUs"}
    assert one(RESTRICTED).cpus(bound_pod(cpu="10", memory="1Gi", spec=required)) == "0-3,8-13"
    # A CPU that is bound elsewhere counts although its pod has no shares.
    world = one(RESTRICTED)
    world.add_pods(bound_pod(cpu="7", node="n", annotations={names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-6"}'}))
    assert shares(world.status(plain(cpu="2", memory="1Gi"))) == {1: {"cpu": "2", "memory": "1Gi"}}


@pytest.mark.feature("SCH-NUMA-08")
def test_resources_that_numa_nodes_do_not_have_are_no_matter() -> None:
    world = one(SINGLE, node={"example_com__x": "100"})
    assert shares(world.status(plain(cpu="1", memory="1Gi", requests={"example-com/x": "60"}))) == {0: {"cpu": "1", "memory": "1Gi"}}


@pytest.mark.feature("SCH-NUMA-07")
def test_exclusive_use_keeps_wide_and_narrow_pods_apart() -> None:
    wide, narrow = {"numaTopologyPolicy": "Restricted"}, {"numaTopologyPolicy": "SingleNUMANode"}
    world = one()
    assert world.cpus(bound_pod(cpu="10", memory="1Gi", numa=wide)) == "0-4,8-12"
    refused = world.refusal(bound_pod(cpu="2", memory="1Gi", numa=narrow))
    assert "Unaligned NUMA Hint cause" in refused
    relaxed = {**narrow, "singleNUMANodeExclusive": "Preferred"}
    assert world.cpus(bound_pod(cpu="2", memory="1Gi", numa=relaxed)) == "6-7"
    other = one()
    assert other.cpus(bound_pod(cpu="2", memory="1Gi", numa=narrow)) == "0-1"
    assert "Unaligned NUMA Hint cause" in other.refusal(bound_pod(cpu="10", memory="1Gi", numa=wide))
    shared = one()
    shared.status(plain(cpu="10", memory="1Gi", numa=wide))  # a pod that shares CPUs uses its NUMA nodes as well, for who asks so
    alone = {**narrow, "singleNUMANodeExclusive": "Required"}
    assert "Unaligned NUMA Hint cause" in shared.refusal(bound_pod(cpu="2", memory="1Gi", numa=alone))
    assert shared.decide(bound_pod(cpu="2", memory="1Gi", numa=narrow)).scheduled


@pytest.mark.feature("SCH-NUMA-07")
def test_a_restricted_pod_goes_over_numa_nodes_that_others_use_in_part() -> None:
    restricted = {"numaTopologyPolicy": "Restricted"}
    world = one(node={"cpu": "64"})
    for _ in range(2):
        world.status(plain(cpu="5", memory="1Gi", numa=restricted))
    assert shares(world.status(plain(cpu="6", memory="1Gi", numa=restricted))).keys() == {0, 1}


@pytest.mark.feature("SCH-NUMA-07")
def test_numa_ids_need_not_be_0_and_1() -> None:
    zones = {3: {"cpu": "4", "memory": "8Gi"}, 7: {"cpu": "4", "memory": "8Gi"}}
    world = one(RESTRICTED, zones=zones)
    assert shares(world.status(plain(cpu="1", memory="1Gi"))) == {3: {"cpu": "1", "memory": "1Gi"}}
    assert shares(world.status(plain(cpu="6", memory="1Gi"))) == {3: {"cpu": "3", "memory": "512Mi"}, 7: {"cpu": "3", "memory": "512Mi"}}


@pytest.mark.feature("SCH-NUMA-09")
def test_bound_cpus_take_their_ratio_of_an_amplified_node() -> None:
    ratio = {names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO: '{"cpu":1.50}'}
    world = one(node={"cpu": "24", "annotations": ratio})
    assert world.cpus(bound_pod(cpu="8")) == "0-7"  # 12 of 24
    assert "Insufficient amplified cpu" in world.refusal(plain(cpu="13"))
    assert world.status(plain(cpu="9")) == {}
    assert "Insufficient amplified cpu" in world.refusal(bound_pod(cpu="3"))  # 4500m of 3
    assert world.cpus(bound_pod(cpu="2")) == "8-9"
    broken = one(node={"annotations": {names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO: "{"}})
    assert "node(s) invalid CPU amplification ratio" in broken.refusal(plain())


@pytest.mark.feature("SCH-NUMA-09")
def test_numa_nodes_are_amplified_once() -> None:
    ratio = '{"cpu":1.50}'
    key = names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO
    by_node = one(SINGLE, node={"cpu": "24", "annotations": {key: ratio}})
    assert shares(by_node.status(plain(cpu="12", memory="1Gi"))) == {0: {"cpu": "12", "memory": "1Gi"}}
    reported = one(SINGLE, node={"cpu": "24", "annotations": {key: ratio}}, annotations={key: ratio})
    assert "Unaligned NUMA Hint cause cpu prefer [" in reported.refusal(plain(cpu="12", memory="1Gi"))
    bound = one(SINGLE, node={"cpu": "24", "annotations": {key: ratio}})
    assert shares(bound.status(bound_pod(cpu="4", memory="1Gi"))) == {0: {"cpu": "4", "memory": "1Gi"}}
    slot = bound.cluster.slot_of("n")
    assert bound.columns.usage(slot).allocated[0]["cpu"] == 6000


@pytest.mark.feature("SCH-NUMA-12")
def test_nodes_are_scored_by_what_stays_free_or_is_used() -> None:
    def winner(**args: Any) -> str:
        world = NumaWorld(profile(**args))
        for name in ("used", "empty"):
            world.machine(name, sockets=2, nodes=1)
        world.add_pods(testing.pod(node="used", cpu="6", memory="8Gi"))
        return world.decide(bound_pod(cpu="2")).node

    assert winner() == "empty"
    assert winner(scoringStrategy={"type": "MostAllocated"}) == "used"
    assert winner(scoringStrategy={"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 1}]}) == "empty"


@pytest.mark.feature("SCH-NUMA-12")
def test_under_a_numa_policy_the_numa_nodes_that_would_be_used_are_scored() -> None:
    def winner(resources: list[dict[str, Any]] | None = None, kind: str = "LeastAllocated") -> str:
        strategy = {"type": kind, **({"resources": resources} if resources else {})}
        world = NumaWorld(profile(numaScoringStrategy=strategy))
        for name in ("a", "b"):
            world.machine(name, labels=SINGLE, sockets=2, nodes=1)
        for name, cpu, memory in (("a", "2", "8Gi"), ("a", "2", "8Gi"), ("b", "4", "1Gi"), ("b", "4", "1Gi")):
            node = len(world.cluster.row(world.cluster.slot_of(name)).pods)
            status = f'{{"numaNodeResources":[{{"node":{node},"resources":{{"cpu":"{cpu}","memory":"{memory}"}}}}]}}'
            world.add_pods(bound_pod(labels={}, node=name, cpu=cpu, memory=memory, annotations={names.ANNOTATION_RESOURCE_STATUS: status}))
        return world.decide(plain(cpu="1", memory="1Gi")).node

    assert winner([{"name": "cpu", "weight": 1}]) == "a"
    assert winner([{"name": "memory", "weight": 1}]) == "b"
    assert winner([{"name": "cpu", "weight": 1}], "MostAllocated") == "b"


@pytest.mark.feature("SCH-NUMA-13")
def test_preemption_clears_one_numa_node_and_no_more() -> None:
    world = one(SINGLE)
    uids = []
    for number, priority in enumerate((9100, 9200, 9100, 9300)):
        _, seen = world.bind(plain(name=f"p{number}", cpu="4", memory="1Gi", priority=priority))
        assert seen is not None
        uids.append(seen.uid)
    held = {node: uid for uid in uids for node in world.columns.at(0).records[uid].amounts}
    assert sorted(held) == [0, 1]
    decision = world.decide(plain(cpu="8", memory="1Gi", priority=9900))
    assert decision.nominate == "n"
    nodes = {node for pod in decision.victims for node in world.columns.at(0).records[pod.uid].amounts}
    assert len(decision.victims) == 2
    assert len(nodes) == 1


@pytest.mark.feature("SCH-NUMA-07")
@pytest.mark.feature("SCH-NUMA-09")
def test_a_machine_with_one_numa_node_needs_no_restriction() -> None:
    world = NumaWorld()
    world.machine("n", labels=SINGLE, sockets=1, nodes=1)
    assert world.status(plain(cpu="4", memory="1Gi")) == {}
    assert world.cpus(bound_pod(cpu="2", memory="1Gi")) == "0-1"


@pytest.mark.feature("SCH-NUMA-07")
def test_machines_with_many_numa_nodes() -> None:
    world = NumaWorld()
    world.machine("n", labels=RESTRICTED, sockets=2, nodes=8, cores=2, memory="8Gi")
    assert set(shares(world.status(plain(cpu="3", memory="1Gi")))) == {0}
    assert set(shares(world.status(plain(cpu="8", memory="1Gi")))) == {1, 2}
    assert set(shares(world.status(plain(cpu="34", memory="16Gi")))) == set(range(3, 12))


@pytest.mark.feature("SCH-NUMA-07")
@pytest.mark.parametrize("policy", ["Restricted", "BestEffort"])
def test_wider_sets_of_numa_nodes_are_not_tried_once_one_is_agreed_on(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 255 sets of eight."""
    world, tried = one(sockets=2, nodes=4, cores=2, memory="8Gi"), list[Any]()
    allocate = trials.allocate
    monkeypatch.setattr(trials, "allocate", lambda *args, **more: tried.append(args) or allocate(*args, **more))
    wanted = {"numaTopologyPolicy": policy}
    for cpu, nodes, most in (("3", {0}, 15), ("7", {1, 2}, 45), ("3", {3}, 15)):
        assert set(shares(world.status(plain(cpu=cpu, memory="1Gi", numa=wanted)))) == nodes
        assert 0 < len(tried) <= 3 * most  # for filter, score and Reserve
        tried.clear()
    if policy == "Restricted":  # where somebody has all of them together nobody is alone on one
        holds = [{"node": node, "resources": {"cpu": "1m"}} for node in range(8)]
        world.add_pods(plain(node="n", annotations={names.ANNOTATION_RESOURCE_STATUS: json.dumps({"numaNodeResources": holds})}))
        status = world.status(plain(cpu="1", memory="1Gi", numa={**wanted, "singleNUMANodeExclusive": "Required"}))
        assert len(shares(status)) == 2
        assert 0 < len(tried) <= 3 * 45


@pytest.mark.feature("SCH-NUMA-07")
@pytest.mark.parametrize("policy", ["Restricted", "SingleNUMANode"])
@pytest.mark.parametrize("exclusive", ["", "Preferred", "Required"])
def test_a_pod_with_a_policy_of_its_own_is_tried_where_a_wide_pod_has_every_numa_node_only(
    policy: str, exclusive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, tried = NumaWorld(), set[int]()
    for name in "abcdef":
        world.machine(name, sockets=1, nodes=2)
    holds = [{"node": node, "resources": {"cpu": "1"}} for node in (0, 1)]
    wide = {names.ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": "0,8", "numaNodeResources": holds})}
    world.add_pods(bound_pod(cpu="2", node="a", annotations=wide))
    found = world.plugin._trials
    attempts = found.attempts
    monkeypatch.setattr(found, "attempts", lambda ctx, slot, *args, **more: tried.add(slot) or attempts(ctx, slot, *args, **more))
    decision = world.decide(bound_pod(cpu="2", numa={"numaTopologyPolicy": policy, "singleNUMANodeExclusive": exclusive}))
    assert decision.feasible == (5 if policy == "SingleNUMANode" and exclusive != "Preferred" else 6)  # a wide one may have both, too
    assert tried <= {world.cluster.slot_of("a")}


@pytest.mark.feature("SCH-NUMA-07")
@pytest.mark.parametrize("policy", ["Restricted", "SingleNUMANode"])
def test_a_request_for_nothing_that_numa_nodes_have_is_on_all_of_them(policy: str) -> None:
    """Filter says what Reserve will: for exclusive use none of several may be somebody's own."""
    world = NumaWorld()
    for name in "ab":
        world.machine(name, sockets=1, nodes=2, node={"example.com/port": "4"})
    holds = [{"node": 0, "resources": {"cpu": "1"}}]
    held = {names.ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": "0", "numaNodeResources": holds})}
    world.add_pods(bound_pod(cpu="1", node="a", annotations=held))
    for wish, feasible in (("", 1), ("Required", 1), ("Preferred", 2)):
        numa = {"numaTopologyPolicy": policy, "singleNUMANodeExclusive": wish}
        asked = bound_pod(cpu=None, memory=None, labels={}, requests={"example.com/port": "1"}, numa=numa)
        assert world.decide(asked).feasible == feasible


@pytest.mark.feature("SCH-NUMA-07")
@pytest.mark.parametrize(("labels", "most"), [({}, 3), (LSR, 60)])
def test_sets_of_numa_nodes_that_have_too_little_together_are_not_tried(
    labels: dict[str, str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the 255 sets of eight with 4 CPUs each 9 have 25 CPUs."""
    world, tried = one(sockets=2, nodes=4, cores=2, memory="8Gi"), list[Any]()
    allocate = trials.allocate
    monkeypatch.setattr(trials, "allocate", lambda *args, **more: tried.append(args) or allocate(*args, **more))
    wanted = {"numaTopologyPolicy": "Restricted"}
    assert world.decide(bound_pod(labels=labels, cpu="25", memory="1Gi", numa=wanted)).scheduled
    assert 0 < len(tried) <= most


@pytest.mark.feature("SCH-NUMA-13")
def test_sets_of_numa_nodes_that_have_too_little_beside_reservations_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reservation is too small for its owner, which fits beside it on three of eight NUMA nodes of 4 CPUs."""
    found, tried = NumaWorld(installed_profile()), list[Any]()
    found.machine("n", sockets=2, nodes=4, cores=2, memory="8Gi", labels=RESTRICTED)
    kept = json.dumps({"numaNodeResources": [{"node": 0, "resources": {"cpu": "1"}}]})
    annotations = {names.ANNOTATION_RESOURCE_STATUS: kept}
    found.feed("Reservation", reservation("r", "n", cpu="1", memory=None, annotations=annotations, policy="Restricted"))
    alone = trials.Trials.attempt_alone
    allocate = trials.allocate

    def looked(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trials, "allocate", lambda *args, **more: tried.append(args) or allocate(*args, **more))
            return alone(*args)

    monkeypatch.setattr(trials.Trials, "attempt_alone", looked)
    decision = found.decide(testing.pod(cpu="11", memory="1Gi", labels=OWNER))
    assert decision.scheduled, decision.message()
    assert 0 < len(tried) <= 2


@given(
    st.sampled_from(["Restricted", "BestEffort"]), st.booleans(), st.sampled_from([LSR, {}]), st.integers(1, 14), st.integers(1, 24),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 8), st.integers(0, 15)), min_size=4, max_size=4),
)  # fmt: skip
@pytest.mark.feature("SCH-NUMA-07")
def test_what_is_agreed_on_is_what_trying_all_sets_finds(
    policy: str, alone: bool, labels: dict[str, str], cpu: int, memory: int, used: list[tuple[int, int, int]]
) -> None:
    world = one(sockets=2, nodes=2, cores=2, memory="8Gi")
    for node, (cpus, gib, wide) in enumerate(used):
        held = [{"node": node, "resources": {"cpu": str(cpus), "memory": f"{gib}Gi"}}]
        held += [{"node": other, "resources": {"cpu": "1m"}} for other in range(4) if wide >> other & 1 and wide > 11 and other != node]
        world.add_pods(plain(node="n", annotations={names.ANNOTATION_RESOURCE_STATUS: json.dumps({"numaNodeResources": held})}))
    wish = {"numaTopologyPolicy": policy, "singleNUMANodeExclusive": "Required" if alone else "Preferred"}
    pod = world.parser.parse(bound_pod(cpu=str(cpu), memory=f"{memory}Gi", labels=labels, numa=wish))
    topology, slot, answers = world.plugin.topology, world.cluster.slot_of("n"), []
    for asked in (topology.concerns_only, lambda name, ctx: False):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(topology, "concerns_only", asked)
            answers.append(topology.at_reserve(CycleContext(world.state, pod), slot))
    assert answers[0] == answers[1]


@pytest.mark.feature("SCH-NUMA-13")
@pytest.mark.parametrize("small", [0, 1])
def test_an_owner_gets_the_reservation_on_whichever_numa_node_it_is(small: int) -> None:
    """The CPUs of r would do, but not its disk: nobody agrees on r's NUMA node for the sake of s."""
    found = NumaWorld(installed_profile())
    disk = "ephemeral-storage"
    found.machine("n", labels=SINGLE, node={disk: "100Gi"}, sockets=1, nodes=2, cores=4)
    for name, node, amount in (("r", small, "1Gi"), ("s", 1 - small, "8Gi")):
        kept = json.dumps({"numaNodeResources": [{"node": node, "resources": {"cpu": "6"}}]})
        more = {"requests": {disk: amount}, "annotations": {names.ANNOTATION_RESOURCE_STATUS: kept}, "policy": "Restricted"}
        found.feed("Reservation", reservation(name, "n", cpu="6", memory=None, **more))
    decision, bound = found.bind(testing.pod(cpu="4", memory="1Gi", requests={disk: "4Gi"}, labels=OWNER))
    assert bound is not None, decision.message()
    assert decision.ctx.reservation is not None
    assert decision.ctx.reservation.name == "s"
