"""Who holds what: nothing is given twice, what-ifs leave no trace, a restart finds everything again (SCH-DEV-11, SCH-DEV-16)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import Pod
from roles.scheduler import testing
from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.framework.status import Status
from roles.scheduler.plugins.device_share.request import request_for
from tests.support.devices import (
    ALLOCATED,
    CORE,
    MEMORY,
    RATIO,
    RDMA,
    SHARED,
    add,
    annotation,
    bare,
    card,
    drafted,
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
from tests.support.examples import examples

VFS = [f"0000:3b:00.{n}" for n in range(3)]


def machines(found: testing.World) -> None:
    add(found, "a", [*gpus(4), card("rdma", 0, pcie="p0", vfs=VFS), card("rdma", 1, pcie="p1")])
    add(found, "b", gpus(2))
    add(found, "c", [card("gpu", 0, health=False), card("gpu", 1)], partitions={"1": [{"minors": [1], "allocationScore": 1}]})
    found.add_nodes(bare("d"))


REQUESTS: list[Any] = [
    {CORE: 100, RATIO: 100},
    {CORE: 200, RATIO: 200},
    {CORE: 30, RATIO: 30},
    {CORE: 60, RATIO: 45},
    {MEMORY: "13Gi"},
    {SHARED: 2, CORE: 50, RATIO: 70},
    {"nvidia.com/gpu": 1},
    {RDMA: 40},
    {RDMA: 200},
    {CORE: 100, RATIO: 100, RDMA: 10},
]
HINTS: list[Any] = [
    None,
    None,
    {"rdma": {"vfSelector": {}}},
    {"rdma": {"allocateStrategy": "ApplyForAll"}},
    {"gpu": {"requiredTopologyScope": "PCIe"}},
]
wishes = st.tuples(st.sampled_from(REQUESTS), st.sampled_from(HINTS), st.booleans())


def make(wish: tuple[Any, Any, bool]) -> Any:
    requests, hint, joint = wish
    return pod(requests, hint=hint, joint={"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"} if joint else None)


def plugin(found: testing.World) -> Any:
    return found.framework.plugins["DeviceShare"]


def state(found: testing.World) -> Any:
    """All that is known of who holds what."""
    columns = plugin(found).columns
    columns.refresh()
    nodes = {name: (columns.find(name).holdings.copy(), columns.find(name).use.frozen()) for name in columns.names()}
    arrays = {
        (kind, name, position): column.tolist()
        for kind, cards in columns.by_type.items()
        for name, of_cards in cards.free.items()
        for position, column in enumerate(of_cards)
    }
    sums = {(kind, name): [part.tolist() for part in pair] for kind, cards in columns.by_type.items() for name, pair in cards.sums.items()}
    return nodes, arrays, sums


def check_nothing_is_given_twice(found: testing.World) -> None:
    columns = plugin(found).columns
    for name in columns.names():
        node = columns.find(name)
        used: Counter[Any] = Counter()
        functions: list[Any] = []
        for holding in node.holdings.values():
            for share in holding.allocation:
                for resource, amount in share.amounts:
                    used[(share.type, share.minor, resource)] += amount
                functions += [(share.type, share.minor, function.bus_id) for function in share.functions]
        for (kind, minor, resource), amount in used.items():
            assert amount <= node.inventory.card(kind, minor).amounts[resource], (name, kind, minor, resource)
        assert len(functions) == len(set(functions))


def bound(decision: Any, written: Any) -> Pod:
    """The pod as the API server shows it after binding."""
    content = msgspec.to_builtins(decision.pod.pod)
    content["spec"]["nodeName"] = decision.node
    annotations = {**content["metadata"].get("annotations", {})}
    if written:
        annotations[ALLOCATED] = json.dumps(written)
    content["metadata"]["annotations"] = annotations
    return msgspec.convert(content, Pod)


@pytest.mark.feature("SCH-DEV-03")
@pytest.mark.feature("SCH-DEV-08")
@pytest.mark.feature("SCH-DEV-11")
@examples(20)
@given(items=st.lists(wishes, max_size=14), leaving=st.sets(st.integers(0, 13), max_size=5), more=st.lists(wishes, max_size=4))
def test_no_share_is_given_twice_and_a_restart_finds_the_same(items: list[Any], leaving: set[int], more: list[Any]) -> None:
    found = world()
    machines(found)
    placed: dict[str, tuple[Any, Any]] = {}
    for wish in items:
        decision = found.schedule(make(wish))
        if decision.scheduled:
            placed[decision.pod.uid] = (decision, annotation(found, decision))
            assert decision.node == "d" or placed[decision.pod.uid][1], "what the filters promise is there to be taken"
            check_nothing_is_given_twice(found)
    for number, uid in enumerate(list(placed)):
        if number in leaving:
            found.cluster.remove_pod(uid)
            plugin(found).pod_gone(uid)
            del placed[uid]
        elif number % 2:  # some are seen bound, others are on their way
            found.cluster.add_pod(found.parser.parse(bound(*placed[uid])), placed[uid][0].node)
    for wish in more:
        decision = found.schedule(make(wish))
        if decision.scheduled:
            placed[decision.pod.uid] = (decision, annotation(found, decision))
    check_nothing_is_given_twice(found)
    again = world()
    again.add_pods(*(bound(*item) for item in placed.values()))  # pods may be seen before nodes and devices are
    machines(again)
    here, there = state(found)[0], state(again)[0]
    assert {name: use for name, (_, use) in here.items()} == {name: use for name, (_, use) in there.items()}
    assert {name: set(holdings) for name, (holdings, _) in here.items()} == {name: set(holdings) for name, (holdings, _) in there.items()}


@pytest.mark.feature("SCH-DEV-16")
@examples(15)
@given(items=st.lists(wishes, min_size=1, max_size=8), order=st.permutations(range(8)), quiet=st.booleans(), asked=wishes)
def test_what_ifs_leave_no_trace(items: list[Any], order: list[int], quiet: bool, asked: Any) -> None:
    found = world()
    machines(found)
    uids = []
    for number, wish in enumerate(items):
        decision = found.schedule(make(wish))
        if decision.scheduled:
            uids.append(decision.pod.uid)
            if number % 2:
                found.cluster.add_pod(found.parser.parse(bound(decision, annotation(found, decision))), decision.node)
    before, answer = state(found), found.decide(make(asked)).feasible
    with Hypothesis(found.cluster, quiet=quiet) as supposed:
        for number in order:
            if number < len(uids):
                supposed.remove(uids[number])
        newcomer = found.parser.parse(gpu(100))
        supposed.add(newcomer, found.cluster.slot_of("b"))
        if not uids:
            assert newcomer.uid in plugin(found).columns.find("b").holdings
    assert state(found) == before
    assert found.decide(make(asked)).feasible == answer


@pytest.mark.feature("SCH-DEV-03")
@examples(15)
@given(items=st.lists(wishes, max_size=10), asked=wishes)
def test_columns_and_rows_agree(items: list[Any], asked: Any) -> None:
    """What the columns decide for all nodes, and for each by itself, is what choosing devices on it says; scores likewise."""
    found = world()
    machines(found)
    for wish in items:
        found.schedule(make(wish))
    decision = found.decide(make(asked))
    share, ctx = plugin(found), decision.ctx
    request = request_for(ctx.pod.shape)
    codes, scores = share.filter(ctx, slice(None)), share.score(ctx, slice(None))
    for row in found.cluster.rows():
        alone = np.array([row.slot])
        refused = isinstance(share.chooser.outcome(ctx, row.slot, request), Status)
        assert bool(codes[row.slot]) == refused == bool(share.filter(ctx, alone)[0]), row.name
        if decision.evaluation.feasible[row.slot]:
            assert scores[row.slot] == share.chooser.score(ctx, row.slot, request) == share.score(ctx, alone)[0], row.name


@pytest.mark.feature("SCH-DEV-11")
def test_annotations_that_change_or_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    found = world()
    add(found, "n", gpus(2))
    found.add_pods(holder("x", "n", {"gpu": [entry(0)]}, uid="u"))
    assert "Insufficient" in refusal(found, gpu(200))
    found.add_pods(holder("x", "n", {"gpu": [entry(1)]}, uid="u"))  # another one of the same shape: subtracted and added
    assert minors(found, gpu(100)) == [0]
    found.add_pods(holder("y", "n", {}, uid="v", annotations={ALLOCATED: "{"}))
    assert "pod default/y: annotation scheduling.koordinator.sh/device-allocated" in caplog.text
    found.cluster.remove_pod("u")
    assert minors(found, gpu(100)) == [1]


@pytest.mark.feature("SCH-DEV-11")
def test_devices_are_held_whatever_the_pod_says_of_its_reservation(caplog: pytest.LogCaptureFixture) -> None:
    found = world()
    add(found, "n", gpus(2))
    broken = {"scheduling.koordinator.sh/reservation-allocated": '{"uid"'}
    found.add_pods(holder("x", "n", {"gpu": [entry(0)]}, annotations=broken))
    assert "pod default/x: annotation scheduling.koordinator.sh/reservation-allocated" in caplog.text
    assert minors(found, gpu(100)) == [1]


@pytest.mark.feature("SCH-DEV-11")
def test_a_pod_of_the_same_name_is_another_pod() -> None:
    found = world()
    add(found, "n", gpus(2))
    found.add_pods(holder("web", "n", {"gpu": [entry(0)]}, uid="old"), holder("web", "n", {"gpu": [entry(1)]}, uid="new"))
    found.cluster.remove_pod("old")
    assert minors(found, gpu(100)) == [0]
    assert "Insufficient" in refusal(found, gpu(100))


@pytest.mark.feature("SCH-DEV-11")
def test_what_a_failed_binding_left_behind_counts_for_nothing() -> None:
    found = world()
    add(found, "n", gpus(2))
    stale = {ALLOCATED: json.dumps({"gpu": [entry(1)]})}
    assert minors(found, gpu(100, annotations=stale)) == [0]
    found.add_nodes(bare("d"))
    decision = found.schedule(gpu(200, annotations=stale))
    assert decision.node == "d"
    assert drafted(found, decision) == {ALLOCATED: None}


@pytest.mark.feature("SCH-DEV-11")
def test_a_designated_allocation_is_taken_as_it_is() -> None:
    hint = {"scheduling.koordinator.sh/scheduling-hint": json.dumps({"extensions": {"DeviceShare": {}}})}
    found = world()
    add(found, "n", gpus(4))
    ordered = {**hint, ALLOCATED: json.dumps({"gpu": [{**entry(3), "id": "GPU-3"}]})}
    assert give(found, gpu(100, annotations=ordered))["gpu"] == [{**entry(3), "id": "GPU-3"}]
    assert "1 Insufficient gpu devices" in refusal(found, gpu(100, annotations=ordered))
    assert minors(found, gpu(100, annotations=hint)) == [2]  # beside it; nothing was named


@pytest.mark.feature("SCH-DEV-01")
def test_entries_of_vanished_nodes_are_collected() -> None:
    found = world()
    add(found, "n", gpus(1))
    found.add_pods(holder("x", "n", {"gpu": [entry(0)]}, uid="u"))
    columns = plugin(found).columns
    found.cluster.remove_node("n")
    assert columns.find("n") is not None  # the Device is there yet, and the pod
    for feed in plugin(found).feeds():
        if feed.kind.kind == "Device":
            feed.observe(msgspec.convert({"metadata": {"name": "n"}}, feed.projection), None)
    found.cluster.remove_pod("u")
    assert columns.find("n") is None
    add(found, "n", gpus(1))
    assert minors(found, gpu(100)) == [0]


@pytest.mark.feature("SCH-DEV-16")
def test_preemption_frees_devices() -> None:
    found = world()
    add(found, "n", gpus(2))
    for minor in (0, 1):
        found.add_pods(holder(f"x{minor}", "n", {"gpu": [entry(minor)]}, uid=f"u{minor}", priority=minor))
    decision = found.decide(gpu(100, priority=10))
    assert (decision.nominate, [victim.name for victim in decision.victims]) == ("n", ["x0"])


@pytest.mark.feature("SCH-DEV-16")
def test_a_nominated_pod_keeps_the_devices_it_waits_for() -> None:
    found = world()
    add(found, "n", gpus(1))
    found.state.nominations.add(found.parser.parse(gpu(100, priority=10)), "n")
    assert "1 Insufficient GPU Devices" in refusal(found, gpu(100, priority=5))
    assert found.decide(gpu(100, priority=11)).scheduled


@pytest.mark.feature("SCH-DEV-16")
def test_a_nominated_pod_keeps_those_that_are_free_while_others_leave() -> None:
    found = world()
    add(found, "n", gpus(2))
    found.add_pods(holder("leaving", "n", {"gpu": [entry(0)]}))
    found.state.nominations.add(found.parser.parse(gpu(200, priority=10)), "n")
    assert "1 Insufficient GPU Devices" in refusal(found, gpu(100, priority=5))


@pytest.mark.feature("SCH-DEV-11")
@pytest.mark.parametrize("labels", [{}, {"shape": "another"}])
def test_devices_stay_taken_when_the_annotation_cannot_be_read_any_more(labels: dict[str, str]) -> None:
    found = world()
    add(found, "a", gpus(1))

    def shown(text: str | None, **more: Any) -> None:
        found.add_pods(gpu(100, name="x", uid="x", node="a", annotations={} if text is None else {ALLOCATED: text}, **more))

    good = json.dumps({"gpu": [entry(0)]})
    shown(good)
    shown("{oops", labels=labels)
    assert "Insufficient GPU Devices" in refusal(found, gpu(100))
    with found.state.suppose() as supposed:
        supposed.remove("x")
        assert found.decide(gpu(100)).scheduled
    shown("{again", labels=labels)
    assert "Insufficient GPU Devices" in refusal(found, gpu(100))
    shown(None, labels=labels)  # this gives them back
    shown("{oops")
    assert found.decide(gpu(100)).scheduled
    shown(good)
    found.cluster.remove_pod("x")
    found.framework.plugins["DeviceShare"].pod_gone("x")  # type: ignore[attr-defined]
    shown("{oops")  # as at a start, nobody has seen what it says
    assert found.decide(gpu(100)).scheduled


@pytest.mark.feature("SCH-DEV-11")
def test_devices_that_were_chosen_stay_taken_when_the_bound_pod_cannot_be_read() -> None:
    found = world()
    add(found, "a", gpus(1))
    assert found.schedule(gpu(100, name="x", uid="x")).scheduled
    found.add_pods(gpu(100, name="x", uid="x", node="a", annotations={ALLOCATED: "{oops"}))
    assert "Insufficient GPU Devices" in refusal(found, gpu(100))
