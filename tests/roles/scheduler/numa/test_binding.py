"""Which pods bind CPUs where, and which nodes they may use."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from koord.api import names
from koord.config.errors import InvalidConfig
from roles.scheduler import testing
from roles.scheduler.cycle.record import record_of
from tests.roles.scheduler.reservation.test_equivalence_shipped import installed_profile
from tests.roles.scheduler.reservation.worlds import OWNER, placed
from tests.support.numa import LSR, NumaWorld, bound_pod, profile

FULL_ONLY = {names.LABEL_NODE_CPU_BIND_POLICY: "FullPCPUsOnly"}
SPREAD_ONLY = {names.LABEL_NODE_CPU_BIND_POLICY: "SpreadByPCPUs"}


def one(labels: dict[str, str] | None = None, **more: Any) -> NumaWorld:
    """A machine of two sockets with a NUMA node of four cores each."""
    world = NumaWorld(more.pop("content", None))
    world.machine("n", labels=labels, **{"sockets": 2, "nodes": 1, **more})
    return world


@pytest.mark.feature("SCH-NUMA-01")
@pytest.mark.parametrize(
    ("pod", "cpus"),
    [
        ({}, "0-3"),
        ({"labels": {names.LABEL_POD_QOS: "LSE"}}, "0-3"),
        ({"labels": {names.LABEL_POD_QOS: "LS"}}, ""),
        ({"labels": {}}, ""),
        ({"labels": {**LSR, names.LABEL_POD_PRIORITY_CLASS: "koord-batch"}}, ""),  # bound pods are prod pods
        ({"spec": {"preferredCPUBindPolicy": "SpreadByPCPUs"}}, "0,2,4,6"),
        ({"spec": {"requiredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUBindPolicy": "FullPCPUs"}}, "0,2,4,6"),
        ({"spec": {"requiredCPUBindPolicy": "Default", "preferredCPUBindPolicy": "SpreadByPCPUs"}}, "0-3"),
        ({"spec": {"preferredCPUBindPolicy": "Default"}}, "0-3"),
        ({"spec": {"preferredCPUBindPolicy": "ConstrainedBurst"}}, ""),
        ({"spec": {"requiredCPUBindPolicy": "ConstrainedBurst"}}, ""),
    ],
)
def test_prod_pods_of_lse_and_lsr_bind_by_their_policy(pod: dict[str, Any], cpus: str) -> None:
    assert one().cpus(bound_pod(**pod)) == cpus


@pytest.mark.feature("SCH-NUMA-01")
def test_an_empty_default_policy_binds_only_who_asks() -> None:
    world = one(content=profile(defaultCPUBindPolicy=""))
    assert world.cpus(bound_pod()) == ""
    assert world.cpus(bound_pod(spec={"preferredCPUBindPolicy": "FullPCPUs"})) == "0-3"
    assert one(content=profile(defaultCPUBindPolicy="SpreadByPCPUs")).cpus(bound_pod()) == "0,2,4,6"


@pytest.mark.feature("SCH-CFG-01")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"defaultCPUBindPolicy": "ConstrainedBurst"}, "defaultCPUBindPolicy"),
        ({"scoringStrategy": {"type": "BalancedAllocation"}}, "scoringStrategy.type"),
        ({"numaScoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 101}]}}, "numaScoringStrategy"),
        ({"scoringStrategy": {"resources": [{"name": "cpu", "weight": 0}]}}, "weight"),
    ],
)
def test_wrong_arguments_stop_the_start(args: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        NumaWorld(profile(**args))


@pytest.mark.feature("SCH-CFG-01")
def test_arguments_that_are_null_are_not_set() -> None:
    assert one(content=profile(scoringStrategy=None)).cpus(bound_pod()) == one().cpus(bound_pod())


@pytest.mark.feature("SCH-NUMA-01")
def test_what_cannot_be_bound_is_refused_with_the_reason() -> None:
    world = one()
    assert "the requested CPUs must be integer" in world.refusal(bound_pod(cpu="1500m"))
    assert world.cpus(bound_pod(cpu="1500m", labels={})) == ""
    odd = bound_pod(cpu="3", spec={"requiredCPUBindPolicy": "FullPCPUs"})
    assert "1 node(s) requested cpus not multiple cpus per core" in world.refusal(odd)
    assert world.cpus(bound_pod(cpu="3")) == "0-2"
    broken = bound_pod(annotations={names.ANNOTATION_RESOURCE_SPEC: "{"})
    assert "resource-spec" in world.refusal(broken)
    assert "numaTopologyPolicy 'Some' is not known" in world.refusal(bound_pod(numa={"numaTopologyPolicy": "Some"}))
    world.machine("n", sockets=2, nodes=1, node={"cpu": "64"})
    world.add_nodes(testing.node("plain", cpu="64"))
    decision = world.decide(bound_pod(cpu="14"))
    assert "1 node(s) invalid CPU Topology" in decision.message()
    assert "1 not enough cpus available to satisfy request" in decision.message()
    assert world.cpus(bound_pod(labels={})) == ""


@pytest.mark.feature("SCH-NUMA-01")
def test_a_preferred_policy_too_is_refused_where_cpus_lack() -> None:
    """Otherwise the pod would fail at Reserve again and again (upstream's defect)."""
    world = one()
    world.add_pods(bound_pod(cpu="1", node="n", annotations={names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-13"}'}))
    assert "not enough cpus available to satisfy request" in world.refusal(bound_pod(cpu="4"))
    assert world.cpus(bound_pod(cpu="2")) == "14-15"


@pytest.mark.feature("SCH-NUMA-01")
def test_required_policies_count_what_they_can_use() -> None:
    world = one()
    world.add_pods(bound_pod(cpu="1", node="n", annotations={names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0,2,4,6,8,10"}'}))
    full = {"requiredCPUBindPolicy": "FullPCPUs"}
    assert "not enough cpus" in world.refusal(bound_pod(cpu="6", spec=full))
    assert world.cpus(bound_pod(cpu="4", spec=full)) == "12-15"
    spread = {"requiredCPUBindPolicy": "SpreadByPCPUs"}
    assert "not enough cpus" in world.refusal(bound_pod(cpu="7", spec=spread))
    assert world.cpus(bound_pod(cpu="6", spec=spread)) == "1,3,5,7,9,11"


@pytest.mark.feature("SCH-NUMA-02")
def test_a_node_policy_binds_everybody() -> None:
    world = one(FULL_ONLY)
    assert world.cpus(bound_pod(labels={}, cpu="2")) == "0-1"
    assert "the requested CPUs must be integer" in world.refusal(bound_pod(labels={}, cpu="500m"))
    assert "not multiple cpus per core" in world.refusal(bound_pod(labels={}, cpu="3"))
    assert world.status(bound_pod(labels={}, cpu=None)) == {}
    conflict = bound_pod(spec={"requiredCPUBindPolicy": "SpreadByPCPUs"})
    assert "node(s) cpu bind policy conflicts with pod's required cpu bind policy" in world.refusal(conflict)
    assert world.cpus(bound_pod(spec={"preferredCPUBindPolicy": "SpreadByPCPUs"})) == "8-11"
    assert one(SPREAD_ONLY).cpus(bound_pod(labels={}, cpu="3")) == "0,2,4"


@pytest.mark.feature("SCH-NUMA-02")
@pytest.mark.parametrize(
    ("kubelet", "binds"),
    [
        ({"policy": "static", "options": {"full-pcpus-only": "true"}}, True),
        ({"policy": "static", "options": {"full-pcpus-only": "false"}}, False),
        ({"policy": "none", "options": {"full-pcpus-only": "true"}}, False),
    ],
)
def test_a_static_kubelet_with_full_cores_is_such_a_policy(kubelet: dict[str, Any], binds: bool) -> None:
    world = one(annotations={names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: kubelet})
    assert world.cpus(bound_pod(labels={}, cpu="2")) == ("0-1" if binds else "")


@pytest.mark.feature("SCH-NUMA-05")
def test_numa_nodes_are_filled_or_spread_by_label_or_arguments() -> None:
    def second(world: NumaWorld) -> str:
        world.bind(bound_pod(cpu="2"))
        return world.cpus(bound_pod(cpu="2"))

    most = profile(numaScoringStrategy={"type": "MostAllocated"})
    label = names.LABEL_NODE_NUMA_ALLOCATE_STRATEGY
    assert second(one()) == "8-9"
    assert second(one({label: "MostAllocated"})) == "2-3"
    assert second(one(content=most)) == "2-3"
    assert second(one({label: "LeastAllocated"}, content=most)) == "8-9"
    assert second(one({label: "DistributeEvenly"}, content=most)) == "8-9"


@pytest.mark.feature("SCH-NUMA-04")
def test_exclusive_pods_keep_their_distance_from_their_like() -> None:
    for level, others in (("PCPULevel", "2,4"), ("NUMANodeLevel", "8,10")):
        world = one({names.LABEL_NODE_NUMA_ALLOCATE_STRATEGY: "MostAllocated"})
        spec = {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": level}
        assert world.cpus(bound_pod(cpu="1", spec=spec)) == "0"
        assert world.cpus(bound_pod(cpu="2", spec=spec)) == others


@pytest.mark.feature("SCH-NUMA-10")
def test_reserved_cpus_are_not_handed_out() -> None:
    annotations = {
        names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: {"policy": "none", "reservedCPUs": "0-1"},
        names.ANNOTATION_NODE_RESERVATION: {"reservedCPUs": "2"},
        names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE: {"cpuset": "4-5"},
        names.ANNOTATION_NRT_POD_CPU_ALLOCS: [
            {"namespace": "d", "name": "p", "uid": "u", "cpuset": "6", "managedByKubelet": True},
            {"namespace": "d", "name": "q", "uid": "", "cpuset": "8-15", "managedByKubelet": True},
            {"namespace": "d", "name": "r", "uid": "v", "cpuset": "8-15"},
        ],
    }
    world = one(annotations=annotations)
    assert world.cpus(bound_pod(cpu="10")) == "3,7-15"
    state = world.columns.at(world.cluster.slot_of("n"))
    assert [zone["cpu"] for zone in state.facts.zones.values()] == [2000, 8000]
    shared = one(annotations={names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE: {"cpuset": "0-7", "cpusetExclusive": False}})
    assert shared.cpus(bound_pod(cpu="16")) == "0-15"


@pytest.mark.feature("SCH-NUMA-10")
@pytest.mark.feature("SCH-NRV-01")
def test_the_nodes_own_reservation_protects_its_cpus_before_the_agent_reports_it() -> None:
    reservation = '{"reservedCPUs":"0-3","applyPolicy":"ReservedCPUsOnly"}'
    world = one(node={"annotations": {names.ANNOTATION_NODE_RESERVATION: reservation}})
    assert world.cpus(bound_pod(cpu="4")) == "8-11"
    assert world.cpus(bound_pod(cpu="4")) == "4-7"
    assert world.cluster.allocatable[0][0] == 16000


@pytest.mark.feature("SCH-NUMA-10")
def test_one_bad_annotation_does_not_spoil_the_others(caplog: pytest.LogCaptureFixture) -> None:
    world = one(
        annotations={
            names.ANNOTATION_NRT_POD_CPU_ALLOCS: "[{]", names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: {"reservedCPUs": "0-1"},
            names.ANNOTATION_NODE_RESERVATION: {"reservedCPUs": "x"},
        }
    )  # fmt: skip
    assert names.ANNOTATION_NRT_POD_CPU_ALLOCS in caplog.text
    assert world.cpus(bound_pod(cpu="2")) == "8-9"
    world = one(annotations={names.ANNOTATION_NRT_CPU_TOPOLOGY: '{"detail":[{"id":-1}]}'}, node={"cpu": "16"})
    assert "node(s) invalid CPU Topology" in world.refusal(bound_pod())


@pytest.mark.feature("SCH-NUMA-11")
@pytest.mark.parametrize(
    ("labels", "spec", "written"),
    [
        ({}, None, {"preferredCPUBindPolicy": "FullPCPUs"}),
        ({}, {"preferredCPUBindPolicy": "Default"}, {"preferredCPUBindPolicy": "FullPCPUs"}),
        ({}, {"requiredCPUBindPolicy": "Default"}, {"requiredCPUBindPolicy": "FullPCPUs"}),
        ({}, {"preferredCPUBindPolicy": "SpreadByPCPUs"}, {"preferredCPUBindPolicy": "SpreadByPCPUs"}),
        (SPREAD_ONLY, None, {"requiredCPUBindPolicy": "SpreadByPCPUs"}),
        (
            FULL_ONLY,
            {"preferredCPUBindPolicy": "Default", "preferredCPUExclusivePolicy": "PCPULevel", "x": 1},
            {
                "requiredCPUBindPolicy": "FullPCPUs",
                "preferredCPUBindPolicy": "FullPCPUs",
                "preferredCPUExclusivePolicy": "PCPULevel",
                "x": 1,
            },
        ),
    ],
)
def test_the_policy_that_was_used_is_written_for_the_agent(labels: dict[str, str], spec: Any, written: dict[str, Any]) -> None:
    _, seen = one(labels).bind(bound_pod(spec=spec))
    assert seen is not None
    assert orjson.loads((seen.pod.metadata.annotations or {})[names.ANNOTATION_RESOURCE_SPEC]) == written


@pytest.mark.feature("SCH-NUMA-11")
def test_a_result_left_from_another_attempt_counts_nowhere_and_is_taken_off() -> None:
    world = one()
    stale = {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-3"}'}
    assert world.status(bound_pod(labels={}, annotations=stale)) == {}
    assert world.cpus(bound_pod(annotations=stale)) == "0-3"


@pytest.mark.feature("SCH-NUMA-03")
def test_whole_cores_are_left_for_a_nominated_pod_that_needs_them() -> None:
    world = one(sockets=1)
    high = world.parser.parse(bound_pod("high", priority=9900, spec={"requiredCPUBindPolicy": "FullPCPUs"}))
    world.state.nominations.add(high, "n")
    spread = {"preferredCPUBindPolicy": "SpreadByPCPUs"}
    assert world.cpus(bound_pod("low", cpu="3", priority=9100, spec=spread)) == "4-6"  # alone it gets a thread of three cores
    assert [record.key for record in world.columns.at(0).records.values()] == ["default/low"]  # nothing is left of what was supposed
    world.state.nominations.remove(high.uid)
    assert world.cpus(high.pod) == "0-3"


@pytest.mark.feature("SCH-NUMA-03")
def test_of_a_pod_that_counts_nothing_is_guessed_when_a_what_if_puts_it_back() -> None:
    """As while it is reserved beside nominated pods: what was guessed would stand in its own way."""
    world = one(sockets=1)
    mine = world.parser.parse(bound_pod("mine"))
    world.cluster.place(mine, 0)
    with world.state.suppose() as supposed:
        supposed.remove(mine.uid)
        supposed.add(mine, 0)
        assert not world.columns.at(0).records
        supposed.remove(mine.uid)
    assert not world.columns.at(0).records


@pytest.mark.feature("SCH-NUMA-13")
def test_a_designated_pod_gets_exactly_what_its_status_says() -> None:
    def designated(status: str) -> Any:
        hint = {names.ANNOTATION_SCHEDULING_HINT: '{"extensions":{"NodeNUMAResource":{}}}', names.ANNOTATION_RESOURCE_STATUS: status}
        return bound_pod(cpu="4", annotations=hint)

    world = one()
    assert world.cpus(designated('{"cpuset":"9-12"}')) == "9-12"
    assert "not enough cpus available to satisfy request" in world.refusal(designated('{"cpuset":"12-15"}'))
    assert world.cpus(designated('{"cpuset":"5-8"}')) == "5-8"


@pytest.mark.feature("SCH-NUMA-13")
@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
@pytest.mark.parametrize(("cpus", "uses"), [("4-7", "s"), ("8-11", "")])
def test_designated_cpus_come_from_the_reservation_that_holds_them(policy: str, cpus: str, uses: str) -> None:
    world = NumaWorld(installed_profile())
    world.machine("n", sockets=1, nodes=1, cores=8)
    for name, held in (("r", "0-3"), ("s", "4-7")):
        annotations = {names.ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": held})}
        labels = {names.LABEL_RESERVATION_ORDER: "1" if name == "r" else "2"}
        world.feed("Reservation", placed(name, "n", cpu="4", memory=None, policy=policy, annotations=annotations, labels=labels))
    hint = {names.ANNOTATION_SCHEDULING_HINT: '{"extensions":{"NodeNUMAResource":{}}}'}
    hint[names.ANNOTATION_RESOURCE_STATUS] = json.dumps({"cpuset": cpus})
    pod = bound_pod(cpu="4", priority=9500, labels={**LSR, **OWNER}, annotations=hint)
    decision, seen = world.bind(pod)
    assert seen is not None, decision.message()
    used = decision.ctx.reservation.name if decision.ctx.reservation is not None else ""
    assert used == (uses or ("r" if policy == "Aligned" else ""))  # an Aligned one lets its owner have free ones


@pytest.mark.feature("SCH-NUMA-01")
def test_a_refusal_is_recorded_with_the_numbers_behind_it() -> None:
    world = one()
    world.add_pods(bound_pod(cpu="1", node="n", annotations={names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0,2,4,6,8,10"}'}))
    decision = world.decide(bound_pod(cpu="6", spec={"requiredCPUBindPolicy": "FullPCPUs"}))
    terms = {term.name: (term.value, term.note) for term in record_of(decision, now=0.0).terms}
    assert terms["CPUs wanted"] == (6, "FullPCPUs, required")
    assert terms["most free CPUs on a node"] == (10, "")
    assert terms["most free in whole cores"] == (4, "FullPCPUs")
