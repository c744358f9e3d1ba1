"""Which CPUs are picked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.cpuset import CPUSet
from koord.api.annotations_node import CPUInfo
from roles.scheduler.plugins.numa.machine import Machine
from roles.scheduler.plugins.numa.picks import (
    FULL,
    NOT_ENOUGH,
    NUMA_NODE_LEVEL,
    PCPU_LEVEL,
    SPREAD,
    Held,
    Terms,
    satisfies,
    take,
    usable,
)
from tests.support.numa import machine_cpus

pytestmark = [pytest.mark.feature("SCH-NUMA-03"), pytest.mark.feature("SCH-NUMA-04"), pytest.mark.feature("SCH-NUMA-05")]

shapes = st.fixed_dictionaries(
    {"sockets": st.integers(1, 3), "nodes": st.integers(1, 2), "cores": st.integers(1, 4), "threads": st.integers(1, 2)}
)
policies = st.sampled_from([FULL, SPREAD])


def mask(text: str) -> int:
    return CPUSet.parse(text).mask


def text(cpus: int) -> str:
    return str(CPUSet.from_mask(cpus))


def two_sockets() -> Machine:
    return Machine(machine_cpus(sockets=2, nodes=1, cores=4))


@given(st.data())
def test_exactly_as_many_as_asked_for_and_never_one_that_is_taken(data: st.DataObject) -> None:
    machine = Machine(machine_cpus(**data.draw(shapes)))
    taken = data.draw(st.integers(0, machine.all)) & machine.all
    available = machine.all & ~taken
    need = data.draw(st.integers(0, available.bit_count() + 1))
    terms = Terms(data.draw(policies), data.draw(st.sampled_from(["", PCPU_LEVEL, NUMA_NODE_LEVEL])), data.draw(st.booleans()))
    held = Held(taken if terms.exclusive == PCPU_LEVEL else 0, taken if terms.exclusive == NUMA_NODE_LEVEL else 0)
    preferred = data.draw(st.integers(0, machine.all))
    picked = take(machine, available, need, terms, held, preferred)
    if need > available.bit_count():
        assert picked.reason == NOT_ENOUGH
        return
    assert not picked.reason
    assert picked.cpus & ~available == 0
    assert picked.cpus.bit_count() == need
    wanted = min(need, (available & preferred).bit_count())
    assert (picked.cpus & preferred).bit_count() == wanted
    assert take(machine, available, need, terms, held, preferred) == picked


@given(st.data())
def test_required_policies_hold_whenever_counting_says_so(data: st.DataObject) -> None:
    machine = Machine(machine_cpus(**data.draw(shapes)))
    available = machine.all & data.draw(st.integers(0, machine.all))
    required = data.draw(policies)
    candidates = usable(machine, available, required)
    step = machine.per_core if required == FULL else 1
    need = data.draw(st.integers(0, candidates.bit_count() // step)) * step
    picked = take(machine, candidates, need, Terms(required, "", data.draw(st.booleans())))
    assert not picked.reason
    assert satisfies(machine, picked.cpus, required)


@given(st.data())
def test_exclusive_pods_stay_alone_while_there_is_room(data: st.DataObject) -> None:
    machine = Machine(machine_cpus(sockets=2, nodes=2, cores=3))
    level = data.draw(st.sampled_from([PCPU_LEVEL, NUMA_NODE_LEVEL]))
    other = take(machine, machine.all, data.draw(st.integers(1, 4)), Terms(SPREAD, level)).cpus
    if level == PCPU_LEVEL:
        held, blocked = Held(pcpu=other), sum(core.mask for core in machine.cores if core.mask & other)
        room = (usable(machine, machine.all & ~blocked, SPREAD)).bit_count()
    else:
        held, blocked = Held(numa=other), sum(cpus for cpus in machine.nodes.values() if cpus & other)
        room = max(((machine.all & ~blocked) & cpus).bit_count() // 2 for cpus in machine.nodes.values())
    need = data.draw(st.integers(1, room))
    picked = take(machine, machine.all & ~other, need, Terms(SPREAD, level), held).cpus
    assert picked & blocked == 0


@given(st.integers(1, 24), st.integers(0, (1 << 24) - 1))
def test_odd_requests_never_get_one_too_many_on_three_sockets(need: int, taken: int) -> None:
    machine = Machine(machine_cpus(sockets=3, nodes=1, cores=4))
    available = machine.all & ~taken
    if need <= available.bit_count():
        assert take(machine, available, need, Terms(FULL)).cpus.bit_count() == need


@pytest.mark.parametrize(
    ("policy", "most", "taken", "need", "picked"),
    [
        (FULL, False, "", 4, "0-3"),  # nothing is used: the lowest
        (FULL, False, "0-1", 4, "8-11"),  # spreading prefers the emptier NUMA node
        (FULL, True, "8-9", 4, "10-13"),  # packing the fuller one
        (FULL, True, "8-13", 4, "0-3"),  # which must have room
        (FULL, False, "0,2", 6, "8-13"),
        (FULL, False, "", 12, "0-11"),  # a whole socket, then cores of the other
        (FULL, False, "0,8", 15, None),
        (FULL, False, "0,8", 13, "1-7,10-15"),  # a thread whose sibling is taken goes before breaking up a core
        (FULL, False, "", 3, "0-2"),
        (SPREAD, False, "0,2", 5, "8-10,12,14"),
        (SPREAD, True, "0,2", 6, "1,3-7"),
        (SPREAD, False, "", 4, "0,2,4,6"),  # one a core
        (SPREAD, False, "0,2", 2, "8,10"),
        (SPREAD, True, "0,2,9", 3, "1,3-4"),
        (SPREAD, False, "", 10, "0-4,6,8,10,12,14"),
    ],
)
def test_what_is_picked(policy: str, most: bool, taken: str, need: int, picked: str | None) -> None:
    machine = two_sockets()
    result = take(machine, machine.all & ~mask(taken), need, Terms(policy, "", most))
    assert (text(result.cpus) if not result.reason else None) == picked


def test_exclusive_policies_are_kept_against_their_own_kind_and_given_up_for_want_of_room() -> None:
    machine = two_sockets()
    other = mask("0")
    spread = Terms(SPREAD, PCPU_LEVEL)
    assert text(take(machine, machine.all & ~other, 3, spread, Held(pcpu=other)).cpus) == "8,10,12"
    assert text(take(machine, mask("1-7"), 3, spread, Held(pcpu=other)).cpus) == "2,4,6"
    assert text(take(machine, mask("1"), 1, spread, Held(pcpu=other)).cpus) == "1"
    alone = Terms(FULL, NUMA_NODE_LEVEL)
    assert text(take(machine, machine.all & ~mask("8-9"), 2, alone, Held(numa=mask("8-9"))).cpus) == "0-1"
    assert text(take(machine, mask("10-15"), 2, alone, Held(numa=mask("8-9"))).cpus) == "10-11"
    # Another policy's pods, or pods of none, are no reason to go elsewhere.
    assert text(take(machine, machine.all & ~mask("8-9"), 2, Terms(FULL, "", True), Held(numa=mask("8-9"))).cpus) == "10-11"


def test_core_ids_are_unique_in_their_socket_only() -> None:
    machine = Machine([CPUInfo(id=i, core=i % 2, socket=i // 2 % 2, node=i // 2 % 2) for i in range(8)])
    assert (len(machine.cores), machine.per_core) == (4, 2)
    assert text(take(machine, machine.all, 2, Terms(FULL)).cpus) == "0,4"


def test_one_thread_a_core_goes_by_whole_cores_under_either_policy() -> None:
    machine = Machine(machine_cpus(sockets=2, nodes=1, cores=4, threads=1))
    assert text(take(machine, machine.all & ~mask("0"), 3, Terms(SPREAD)).cpus) == "4-6"
