"""Whatever happens: no CPU is given twice, what is given back is as it was, and annotations tell everything after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.cpuset import CPUSet
from koord.api import names
from roles.scheduler import testing
from roles.scheduler.framework.context import ALL_ROWS, CycleContext
from roles.scheduler.framework.restoring import ALIGNED, RestoredReservation
from tests.roles.scheduler.numa.reference import Reference
from tests.support.numa import LSR, NumaWorld, bound_pod

pytestmark = pytest.mark.feature("SCH-NUMA-11")

SHAPE = {"sockets": 1, "nodes": 2, "cores": 2}
LABELS = (
    {}, {names.LABEL_NODE_CPU_BIND_POLICY: "FullPCPUsOnly"}, {names.LABEL_NODE_CPU_BIND_POLICY: "SpreadByPCPUs"},
    {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"}, {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "Restricted"},
    {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "BestEffort", names.LABEL_NODE_NUMA_ALLOCATE_STRATEGY: "MostAllocated"},
)  # fmt: skip

pods = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from(["1", "2", "3", "4", "6", "500m", "2500m"]),
        "memory": st.sampled_from(["1Gi", "20Gi", "50Gi"]),
        "labels": st.sampled_from([LSR, {}]),
        "spec": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "requiredCPUBindPolicy": st.sampled_from(["", "FullPCPUs", "SpreadByPCPUs"]),
                    "preferredCPUBindPolicy": st.sampled_from(["", "FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst"]),
                    "preferredCPUExclusivePolicy": st.sampled_from(["", "PCPULevel", "NUMANodeLevel"]),
                }
            ),
        ),
        "numa": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "numaTopologyPolicy": st.sampled_from(["SingleNUMANode", "Restricted", "BestEffort"]),
                    "singleNUMANodeExclusive": st.sampled_from(["", "", "Preferred", "Required"]),
                }
            ),
        ),
    }
)
steps = st.lists(
    st.tuples(st.sampled_from(["bind", "bind", "bind", "remove", "suppose", "unreserve"]), pods, st.integers(0, 99)), max_size=12
)


some_labels = st.lists(st.sampled_from(LABELS), min_size=1, max_size=2)


def build(kinds: Sequence[dict[str, str]] = LABELS, ratio: str = "") -> NumaWorld:
    world = NumaWorld()
    annotations = {names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO: ratio} if ratio else {}
    for number, labels in enumerate(kinds):
        world.machine(f"n{number}", labels=labels, node={"annotations": annotations}, **SHAPE)
    return world


def image(world: NumaWorld) -> list[Any]:
    """Everything that allocations depend on."""
    world.columns.current()
    states = [world.columns.at(row.slot) for row in world.cluster.rows()]
    columns = [column.tolist() for column in (world.columns.bound, world.columns.extra, *world.columns.free)]
    return [[(dict(sorted(state.records.items())), world.columns.usage(slot)) for slot, state in enumerate(states)], columns]


def check(world: NumaWorld) -> None:
    for row in world.cluster.rows():
        held: dict[int, str] = {}
        state = world.columns.at(row.slot)
        for record in state.records.values():
            for cpu in range(record.cpus.bit_length()):
                if record.cpus >> cpu & 1:
                    assert cpu not in held, f"CPU {cpu} of {row.name} is given to {held[cpu]} and {record.key}"
                    held[cpu] = record.key
        for node, zone in state.facts.zones.items():
            for name, amount in world.columns.usage(row.slot).allocated.get(node, {}).items():
                if not state.facts.ratio or state.facts.ratio <= 1:
                    cpu_bound_elsewhere = name == "cpu" and any(r.cpus and not r.amounts for r in state.records.values())
                    assert amount <= zone[name] or cpu_bound_elsewhere


@given(steps, some_labels, st.sampled_from(["", '{"cpu":1.5}']))
def test_nothing_is_given_twice_and_everything_comes_back(
    script: list[tuple[str, dict[str, Any], int]], kinds: list[dict[str, str]], ratio: str
) -> None:
    world = build(kinds, ratio)
    alive: list[str] = []
    for number, (action, content, pick) in enumerate(script):
        pod = bound_pod(f"p{number}", uid=f"u{number}", **content)
        if action == "bind":
            _, seen = world.bind(pod)
            if seen is not None:
                alive.append(seen.uid)
        elif action == "remove" and alive:
            world.cluster.remove_pod(alive.pop(pick % len(alive)))
        elif action == "suppose" and alive:
            before = image(world)
            with world.state.suppose() as supposed:
                for uid in alive[: pick % len(alive) + 1]:
                    supposed.remove(uid)
                world.decide(pod)
            assert image(world) == before
        elif action == "unreserve":
            before = image(world)
            decision = world.schedule(pod)
            if decision.scheduled:
                world.framework.run_unreserve(decision.ctx, decision.slot)
                world.cluster.remove_pod(decision.pod.uid)
            assert image(world) == before
        check(world)
    again = build(kinds, ratio)
    for uid in alive:
        info = world.cluster.pod(uid)
        assert info is not None
        again.cluster.add_pod(again.parser.parse(info.pod), info.node_name)
    assert image(again) == image(world)


@given(st.lists(pods, min_size=1, max_size=6), pods, st.sampled_from(["", '{"cpu":1.3}']))
def test_columns_say_what_single_rows_say(before: list[dict[str, Any]], content: dict[str, Any], ratio: str) -> None:
    world = build(ratio=ratio)
    for other in before:
        world.bind(bound_pod(**other))
    pod = world.parser.parse(bound_pod(**content))
    ctx = CycleContext(world.state, pod)
    plugin = world.plugin
    if not plugin.pre_filter(ctx).ok:
        return
    reference, alive = Reference(plugin, ctx), np.flatnonzero(world.cluster.alive)
    codes = plugin.filter(ctx, alive)
    for index, slot in enumerate(alive.tolist()):
        assert codes[index] == plugin.filter(ctx, alive[index : index + 1])[0] == reference.code(slot), world.cluster.name_of(slot)
    feasible = alive[codes == 0].tolist()
    ctx.feasible = np.isin(np.arange(world.cluster.capacity), feasible)
    scores = plugin.score(ctx, ALL_ROWS)
    assert not isinstance(scores, float)
    for slot in feasible:
        assert scores[slot] == plugin.score(ctx, np.array([slot]))[0] == reference.score(slot)


@given(st.lists(pods, min_size=1, max_size=8), some_labels)
def test_what_the_filter_passes_can_be_reserved(contents: list[dict[str, Any]], kinds: list[dict[str, str]]) -> None:
    world = build(kinds)
    for content in contents:
        decision, seen = world.bind(bound_pod(**content))
        if decision.scheduled and seen is None:
            pytest.fail(f"reserve said {decision.status.message}")


def test_records_wait_for_the_topology_and_survive_its_loss() -> None:
    world = NumaWorld()
    world.add_nodes(testing.node("n0", cpu="16"))
    holding = {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-3"}'}
    world.add_pods(bound_pod("early", cpu="4", node="n0", annotations=holding))
    assert "node(s) invalid CPU Topology" in world.refusal(bound_pod())
    world.machine("n0", sockets=2, nodes=1)
    assert world.cpus(bound_pod()) == "8-11"


@pytest.mark.feature("SCH-NUMA-13")
def test_owners_keep_their_cpus_when_the_reserve_pod_is_taken_off() -> None:
    world = NumaWorld()
    world.machine("n0", sockets=2, nodes=1)

    def holding(name: str, cpus: str) -> Any:
        status = f'{{"cpuset":"{cpus}","numaNodeResources":[{{"node":0,"resources":{{"cpu":"{len(CPUSet.parse(cpus))}"}}}}]}}'
        return bound_pod(name, uid=name, cpu=None, node="n0", annotations={names.ANNOTATION_RESOURCE_STATUS: status})

    reserve = world.parser.parse(holding("r", "0-7"), reservation="r")
    world.cluster.add_pod(reserve, "n0")
    world.add_pods(holding("owner", "0-3"))

    class Holdings:
        def on(self, slot: int) -> tuple[RestoredReservation, ...]:
            return (RestoredReservation("r", "r", reserve, ("owner",), ALIGNED, {}, {}, frozenset()),)

        def reservation_of(self, pod_uid: str) -> str:
            return "r" if pod_uid == "owner" else ""

    world.state.holdings = Holdings()
    before = image(world)
    usage = world.columns.usage(0)
    assert (str(CPUSet.from_mask(usage.free)), usage.allocated) == ("8-15", {0: {"cpu": 8000}})  # not 12: what the owner has is inside
    with world.state.suppose() as supposed:
        supposed.remove("r")
        usage = world.columns.usage(0)
        assert (str(CPUSet.from_mask(usage.free)), usage.allocated) == ("4-15", {0: {"cpu": 4000}})
    usage, version = world.columns.usage(0), world.columns.at(0).version
    ctx = CycleContext(world.state, world.parser.parse(bound_pod()))
    ctx.restored = {0: world.state.holdings.on(0)}
    with ctx.restoring(0), ctx.restoring(0):
        assert str(CPUSet.from_mask(world.columns.usage(0).free)) == "4-15"
        assert world.columns.at(0).version != version
    assert world.columns.usage(0) is usage  # nothing has to be worked out again
    assert world.columns.at(0).version == version
    with world.state.suppose() as supposed:
        supposed.remove("owner")
        assert world.columns.usage(0).allocated == {0: {"cpu": 8000}}  # the reservation has it back, not the node
    assert image(world) == before
