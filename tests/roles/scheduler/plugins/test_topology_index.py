"""Counters over groups of pods, and terms found by label: equal to looking at every pod, and asked about few (SCH-KS-05, SCH-KS-06)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import DOES_NOT_EXIST, EXISTS, IN, NOT_IN, PodTerm, Requirement, Selector, selects
from roles.scheduler.plugins import topology_columns
from roles.scheduler.plugins.pod_terms import TermIndex
from roles.scheduler.plugins.topology_columns import CountColumns, Counter

NAMES, SPACES = ("a", "b", "c"), ("one", "two")
LABELS = st.fixed_dictionaries({}, optional={"app": st.sampled_from(NAMES), "tier": st.sampled_from(NAMES)})
VALUES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True).map(tuple)
REQUIREMENT = st.one_of(
    st.builds(Requirement, st.sampled_from(["app", "tier"]), st.sampled_from([IN, NOT_IN]), VALUES),
    st.builds(Requirement, st.sampled_from(["app", "tier"]), st.sampled_from([EXISTS, DOES_NOT_EXIST])),
)
SELECTOR = st.lists(REQUIREMENT, max_size=2).map(tuple)
STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 9), LABELS, st.sampled_from(SPACES)),
    st.tuples(st.just("remove"), st.integers(0, 9), st.just({}), st.just("")),
    st.tuples(st.just("relabel"), st.integers(0, 9), LABELS, st.just("")),
    st.tuples(st.just("leave"), st.integers(0, 9), st.just({}), st.just("")),
    st.tuples(st.just("what if"), st.integers(0, 9), LABELS, st.sampled_from(SPACES)),
    st.tuples(st.just("ask"), st.integers(0, 9), st.just({}), st.just("")),
)


@pytest.mark.feature("SCH-KS-05")
@given(st.lists(STEP, max_size=30), st.lists(st.tuples(SELECTOR, st.sampled_from((*SPACES, ""))), min_size=1, max_size=5))
def test_property_counters_count_what_looking_at_every_pod_counts(steps: list[Any], selectors: list[tuple[Selector, str]]) -> None:
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}") for number in range(3)))
    cluster, columns = made.cluster, made.cluster.register("under test", CountColumns())

    def parsed(number: int, labels: dict[str, str], space: str) -> PodInfo:
        return made.parser.parse(testing.pod(f"p{number}", uid=f"p{number}", labels=labels, namespace=space, node=f"n{number % 3}"))

    def leaving(pod: PodInfo) -> PodInfo:
        meta = msgspec.structs.replace(pod.pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        return made.parser.parse(msgspec.structs.replace(pod.pod, metadata=meta))

    def check(selector: Selector, space: str) -> None:
        def matches(pod: PodInfo) -> bool:
            return (not space or pod.namespace == space) and not pod.deleting and selects(selector, pod.labels)

        counter = columns.counter((selector, space), selector, space, leaving=False)
        for row in cluster.rows():
            assert counter.by_slot[row.slot] == sum(matches(pod) for pod in row.pods.values())

    for what, number, labels, space in steps:
        known = cluster.pod(f"p{number}")
        if what == "add" and known is None:
            cluster.add_pod(parsed(number, labels, space), f"n{number % 3}")
        elif what == "remove":
            cluster.remove_pod(f"p{number}")
        elif what == "relabel" and known is not None:
            cluster.add_pod(parsed(number, labels, known.namespace), f"n{number % 3}")
        elif what == "leave" and known is not None:
            cluster.add_pod(leaving(known), f"n{number % 3}")
        elif what == "what if":
            position = cluster.begin_quiet()
            removed, slot = cluster.pod(f"p{number}"), cluster.slot_of_pod(f"p{number}")
            if removed is None:
                cluster.place(parsed(number, labels, space), cluster.slot_of(f"n{number % 3}"))
            cluster.remove_pod(f"p{number}")
            if removed is not None:
                cluster.place(removed, slot)
            cluster.end_quiet(position)
        elif what == "ask":
            check(*selectors[number % len(selectors)])
    for selector, space in selectors:
        check(selector, space)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PodInfo]:
    """Pods of which a counter was asked whether they count."""
    found: list[PodInfo] = []
    matches = Counter.matches
    monkeypatch.setattr(Counter, "matches", lambda counter, pod: found.append(pod) or matches(counter, pod))
    return found


@pytest.mark.feature("SCH-KS-05")
def test_a_counter_is_filled_from_label_sets_and_dropped_ones_are_cheap(monkeypatch: Any, asked: list[PodInfo]) -> None:
    monkeypatch.setattr(topology_columns, "_BYTES", 0)  # the fewest that are kept
    made = testing.World()
    made.add_nodes(testing.node("n", pods="10000"))
    columns = made.cluster.register("under test", CountColumns())
    made.add_pods(*(testing.pod(labels={"app": f"a{number % 100}"}, node="n") for number in range(1000)))

    def counter(app: str) -> Counter:
        return columns.counter(app, (Requirement("app", IN, (app,)),), "default")

    for _ in range(2):
        for number in range(100):
            assert counter(f"a{number}").by_slot.sum() == 10
    assert len(columns._counters) == 64
    assert not asked  # however many pods and selectors there are
    for times in (1, 2):
        made.add_pods(testing.pod(labels={"app": "a99"}, node="n"))
        assert len(asked) == 1  # of the label set, once
        assert counter("a99").by_slot.sum() == 10 + times


@pytest.mark.feature("SCH-KS-05", "SCH-KS-06")
@pytest.mark.parametrize("op", [NOT_IN, EXISTS, DOES_NOT_EXIST, IN])
@pytest.mark.parametrize("space", ["default", ""])
def test_no_label_set_is_looked_at_for_a_new_selector(op: str, space: str, asked: list[PodInfo]) -> None:
    """With tens of thousands of label sets, as StatefulSets have them, that would keep everybody waiting."""
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}", pods="10000") for number in range(3)))
    columns = made.cluster.register("under test", CountColumns())
    made.add_pods(*(testing.pod(labels={"app": f"a{number % 10}", "n": f"{number}"}, node=f"n{number % 3}") for number in range(300)))
    values = ("a1", "a2") if op in (IN, NOT_IN) else ()
    counter = columns.counter(op, (Requirement("app", op, values),), space)
    assert counter.by_slot.sum() == {NOT_IN: 240, EXISTS: 300, DOES_NOT_EXIST: 0, IN: 60}[op]
    assert not asked


@pytest.mark.feature("SCH-KS-06")
def test_namespaces_that_are_labelled_anew_are_counted_anew() -> None:
    made = testing.World()
    made.add_nodes(testing.node("n"))
    made.add_pods(testing.pod(namespace="one", node="n"), testing.pod(namespace="two", node="n"))
    columns, chosen = made.cluster.register("under test", CountColumns()), {"one"}

    def counter() -> Counter:
        return columns.counter("key", (), "", chosen.__contains__)

    before = counter()
    assert before.by_slot.sum() == 1
    chosen.add("two")
    made.cluster.namespace_changed("two")
    made.add_pods(testing.pod(namespace="two", node="n"))
    assert counter().by_slot.sum() == 3
    assert counter().version > before.version


@pytest.mark.feature("SCH-KS-06")
@given(st.lists(st.tuples(SELECTOR, st.sampled_from((*SPACES, "")), st.integers(0, 2), st.booleans()), max_size=20), LABELS)
def test_property_terms_found_by_label_are_those_that_select_the_pod(steps: list[Any], labels: dict[str, str]) -> None:
    space = SPACES[len(steps) % 2]
    index, brought = TermIndex(), dict[tuple[PodTerm, int], int]()
    for selector, scope, slot, comes in steps:
        term = PodTerm("zone", selector, frozenset((scope,)) if scope else frozenset(SPACES), None)
        if comes:
            index.count(slot, term, 0, 1)
            brought[term, slot] = brought.get((term, slot), 0) + 1
        elif brought.get((term, slot)):
            index.count(slot, term, 0, -1)
            brought[term, slot] -= 1
    found = {(b.term, slot): pods for b in index.concerning(space, labels, {}) for slot, pods in b.slots.items()}
    assert found == {key: pods for key, pods in brought.items() if pods and key[0].matches(space, labels, {})}


def _own_label(number: int) -> Selector:
    """A label that all have, and one of its own."""
    return Requirement("app", IN, ("web",)), Requirement("pod-template-hash", IN, (f"h{number}",))


def _own_key(number: int) -> Selector:
    return (Requirement(f"app-{number}", EXISTS),)


@pytest.mark.feature("SCH-KS-06")
@pytest.mark.parametrize("selector", [_own_label, _own_key])
@pytest.mark.parametrize("scope", [("one",), ("one", "two")])
def test_terms_are_found_by_what_tells_them_apart(monkeypatch: Any, selector: Any, scope: tuple[str, ...]) -> None:
    index, asked = TermIndex(), list[PodTerm]()
    for number in range(100):
        index.count(0, PodTerm("zone", selector(number), frozenset(scope), None), 0, 1)
    matches = PodTerm.matches
    monkeypatch.setattr(PodTerm, "matches", lambda term, *pod: asked.append(term) or matches(term, *pod))
    found = list(index.concerning("one", {"app": "web", "pod-template-hash": "h7", "app-7": "x"}, {}))
    assert [brought.term.selector for brought in found] == [selector(7)]
    assert len(asked) <= 2


@pytest.mark.feature("SCH-KS-05")
@pytest.mark.parametrize("selector", [_own_label, _own_key])
def test_a_pod_asks_the_counters_that_may_count_it(selector: Any, asked: list[PodInfo]) -> None:
    made = testing.World()
    made.add_nodes(testing.node("n"))
    columns = made.cluster.register("under test", CountColumns())
    counters = [columns.counter(number, selector(number), "default") for number in range(100)]
    made.add_pods(testing.pod(labels={"app": "web", "pod-template-hash": "h7", "app-7": "x"}, node="n"))
    assert [number for number, counter in enumerate(counters) if counter.by_slot.sum()] == [7]
    assert len(asked) <= 2


@pytest.mark.feature("SCH-KS-06")
def test_a_placement_concerns_only_those_whom_its_terms_select() -> None:
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}") for number in range(3)))

    def app(number: int) -> Any:
        term = {"labelSelector": {"matchLabels": {"app": f"a{number}"}}, "topologyKey": "kubernetes.io/hostname"}
        anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        return testing.pod(cpu="100m", labels={"app": f"a{number}"}, affinity=anti)

    plugin: Any = made.framework.plugins["InterPodAffinity"]
    asked: list[str] = []
    judge = plugin._judge

    def counted(ctx: Any) -> Any:
        asked.append(ctx.pod.labels["app"])
        return judge(ctx)

    plugin._judge = counted
    for number in range(20):
        made.schedule(app(number))
    asked.clear()
    nodes = {made.schedule(app(0)).node for _ in range(2)}
    assert len(nodes) == 2
    assert not made.decide(app(0)).scheduled
    made.decide(app(1))
    assert asked.count("a1") <= 1  # its own first replica came after it was judged; placements of others are no matter of it
