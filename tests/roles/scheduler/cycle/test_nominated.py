"""Kept answers about nominated pods equal fresh ones, and cost nothing where nothing changed (SCH-FW-11)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler import testing
from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cycle import nominated as nominated_rows
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.cycle.judgement import Judgement

NODES, PODS = 4, 5
STEP = st.one_of(
    st.tuples(st.just("nominate"), st.integers(0, PODS - 1), st.integers(0, NODES - 1)),
    st.tuples(st.just("forget"), st.integers(0, PODS - 1), st.just(0)),
    st.tuples(st.just("place"), st.integers(0, PODS - 1), st.integers(0, NODES - 1)),
    st.tuples(st.just("remove"), st.integers(0, PODS - 1), st.just(0)),
    st.tuples(st.just("node"), st.integers(0, NODES - 1), st.sampled_from([2, 3, 8])),
    st.tuples(st.just("gone"), st.integers(0, NODES - 1), st.just(0)),
)


@pytest.mark.feature("SCH-FW-11")
@given(st.lists(STEP, max_size=25), st.integers(1, 2), st.sampled_from([0, 8]))
def test_property_kept_answers_are_fresh_ones(steps: list[tuple[str, int, int]], every: int, few: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nominated_rows, "_FEW", few)
        _kept_answers_are_fresh_ones(steps, every)


def _kept_answers_are_fresh_ones(steps: list[tuple[str, int, int]], every: int) -> None:
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}", cpu="3") for number in range(NODES)))
    ports: list[list[dict[str, Any]]] = [[], [{"hostPort": 80}], [{"hostPort": 80, "hostIP": "127.0.0.1"}]]
    high = [
        made.parser.parse(testing.pod(f"h{n}", uid=f"h{n}", cpu=str(1 + n % 2), priority=5 + n, ports=ports[n % 3])) for n in range(PODS)
    ]
    asking = [made.parser.parse(testing.pod(f"a{n}", uid=f"a{n}", cpu="2", priority=p)) for n, p in enumerate((0, 6))]
    asking += [
        made.parser.parse(testing.pod(f"p{n}", uid=f"p{n}", cpu="1", ports=[{"hostPort": n, "hostIP": "127.0.0.2"}])) for n in (80, 81)
    ]
    asking += high[:2]
    cluster, nominations = made.cluster, made.state.nominations
    for number, (what, who, where) in enumerate(steps):
        if what == "nominate":
            nominations.add(high[who], f"n{where}")
        elif what == "forget":
            nominations.remove(high[who].uid)
        elif what == "place" and cluster.slot_of_pod(high[who].uid) < 0 and cluster.slot_of(f"n{where}") >= 0:
            cluster.place(high[who], cluster.slot_of(f"n{where}"))
            nominations.remove(high[who].uid)
        elif what == "remove":
            cluster.remove_pod(high[who].uid)
        elif what == "node":
            made.add_nodes(testing.node(f"n{who}", cpu=str(where)))
        elif what == "gone":
            cluster.remove_node(f"n{who}")
        if number % every:
            continue
        fresh = Cycle(made.cycle.frameworks, made.state)
        for pod in asking:
            kept, anew = made.cycle.survey(pod), fresh.survey(pod)
            assert kept.mask.tolist() == anew.mask.tolist()
            assert kept.blocked == anew.blocked


def _spread(key: str, app: str) -> dict[str, Any]:
    selector = {"matchLabels": {"app": app}}
    return {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}


def _apart(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


KINDS: list[dict[str, Any]] = [
    {},
    {"labels": {"app": "a"}},
    {"labels": {"app": "a"}, "topologySpreadConstraints": [_spread("zone", "a")]},
    {"labels": {"app": "a"}, "affinity": _apart("a")},
    {"labels": {"app": "b"}, "affinity": _apart("a")},
    {"labels": {"app": "b"}, "ports": [{"containerPort": 80, "hostPort": 8080}]},
    {"labels": {"app": "a", "apps.kubernetes.io/pod-index": "0"}},
]
KIND = st.integers(0, len(KINDS) - 1)


@pytest.mark.feature("SCH-FW-11")
@given(
    st.lists(st.tuples(KIND, st.integers(0, 5), st.sampled_from([1, 2]), st.sampled_from([0, 5, 9])), max_size=14),
    st.lists(st.tuples(KIND, st.integers(0, 5)), max_size=8),
    st.lists(st.tuples(KIND, st.sampled_from([0, 5])), min_size=2, max_size=5),
    st.sampled_from([0, 8]),
)
def test_property_answers_are_those_of_putting_the_pods_there(
    nominated: list[tuple[int, int, int, int]], running: list[tuple[int, int]], asking: list[tuple[int, int]], few: int
) -> None:
    """Whoever is not asked again would have said the same, and sums say what trying says."""
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{n}", cpu="4", labels={"zone": f"z{n % 3}"}) for n in range(6)))
    made.add_pods(*(testing.pod(node=f"n{where}", cpu="1", **KINDS[kind]) for kind, where in running))
    for number, (kind, where, cpu, priority) in enumerate(nominated):
        item = testing.pod(f"h{number}", uid=f"h{number}", cpu=str(cpu), priority=priority, **KINDS[kind])
        made.state.nominations.add(made.parser.parse(item), f"n{where}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nominated_rows, "_FEW", few)
        for kind, priority in asking * 2:
            pod = made.parser.parse(testing.pod(cpu="2", priority=priority, **KINDS[kind]))
            found = made.cycle.survey(pod)
            assert {slot: refusal.reasons for slot, (_, refusal) in found.blocked.items()} == _by_trying(made, found)
            made.schedule(pod.pod)


def _by_trying(made: testing.World, found: Any) -> dict[int, tuple[str, ...]]:
    refused: dict[int, tuple[str, ...]] = {}
    cluster = made.cluster
    for node in made.state.nominations.nodes():
        slot = cluster.slot_of(node)
        if not found.evaluation.feasible[slot]:
            continue
        with Hypothesis(cluster, quiet=True) as supposed:
            for other in made.state.nominations.ahead_of(found.ctx.pod, node):
                supposed.add(other, slot)
            refusal = found.evaluation.check_row(found.ctx, slot)
        if refusal is not None:
            refused[slot] = refusal[1].reasons
    return refused


@pytest.mark.feature("SCH-FW-11")
@pytest.mark.parametrize("kind", [0, 2, 3])
def test_only_nodes_that_changed_are_looked_at_again(monkeypatch: Any, kind: int) -> None:
    """Also where a filter looks beyond the node, if the nominated pods are not those that it looks for."""
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}", cpu="64", labels={"zone": f"z{number % 3}"}) for number in range(50)))
    for number in range(40):
        made.state.nominations.add(made.parser.parse(testing.pod(f"h{number}", uid=f"h{number}", cpu="8", priority=9)), f"n{number}")
    asked: list[int] = []
    look = nominated_rows._Look.at

    def counted(self: Any, pods: Any) -> Any:
        asked.extend(slot for slot, _ in pods)
        return look(self, pods)

    monkeypatch.setattr(nominated_rows._Look, "at", counted)
    asking = {"priority": 0, **KINDS[kind]}
    made.schedule(testing.pod(**asking))
    assert len(asked) == 40
    asked.clear()
    for _ in range(10):
        assert made.schedule(testing.pod(**asking)).scheduled
    assert len(asked) <= 10
    asked.clear()
    made.state.nominations.remove("h0")
    made.state.nominations.add(made.parser.parse(testing.pod("new", uid="new", cpu="8", priority=9)), "n49")
    made.decide(testing.pod(**asking))
    assert len(asked) <= 3


@pytest.mark.feature("SCH-FW-11")
def test_many_nominations_are_added_up(monkeypatch: Any) -> None:
    """The first pod of a shape tries no node where sums tell."""
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}", cpu="8") for number in range(50)))
    for number in range(40):
        made.state.nominations.add(made.parser.parse(testing.pod(f"h{number}", uid=f"h{number}", cpu="7", priority=9)), f"n{number}")
    tried: list[int] = []
    check = Judgement.check_row

    def counted(self: Judgement, ctx: Any, slot: int, *vectors: Any) -> Any:
        tried.append(slot)
        return check(self, ctx, slot, *vectors)

    monkeypatch.setattr(Judgement, "check_row", counted)
    decision = made.decide(testing.pod(cpu="2", priority=0))
    assert decision.feasible == 10
    assert not tried


@pytest.mark.feature("SCH-FW-11")
def test_many_nodes_that_have_to_be_tried_are_looked_at_in_steps() -> None:
    """Others have their turn meanwhile; a look that is given up leaves nothing half done."""
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}", cpu="64") for number in range(110)))
    for number in range(100):
        item = testing.pod(f"h{number}", uid=f"h{number}", cpu="8", priority=9, **KINDS[1])
        made.state.nominations.add(made.parser.parse(item), f"n{number}")
    pod = made.parser.parse(testing.pod(priority=0, **KINDS[3]))
    given_up = made.cycle.begin(pod)
    assert isinstance(given_up, Generator)
    next(given_up)
    given_up.close()
    work = made.cycle.begin(pod)
    assert isinstance(work, Generator)
    assert sum(1 for _ in work) >= 3
    decision = made.decide(pod)
    assert decision.feasible == 10


@pytest.mark.feature("SCH-FW-11")
def test_of_nominated_pods_with_host_ports_only_those_that_collide_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}") for number in range(30)))
    for number in range(30):
        ports = [{"containerPort": 80, "hostPort": 8000 + number}]
        made.state.nominations.add(made.parser.parse(testing.pod(cpu="1", ports=ports, priority=9)), f"n{number}")
    tried: list[int] = []
    attempt = nominated_rows._Look._try

    def counted(self: Any, slots: set[int], *args: Any) -> Any:
        tried.extend(slots)
        return attempt(self, slots, *args)

    monkeypatch.setattr(nominated_rows._Look, "_try", counted)
    assert made.decide(testing.pod(cpu="1", ports=[{"containerPort": 80, "hostPort": 9000}])).feasible == 30
    assert made.decide(testing.pod(cpu="8", ports=[{"containerPort": 80, "hostPort": 9001}])).feasible == 0
    assert tried == []
    collides = made.decide(testing.pod(cpu="1", ports=[{"containerPort": 80, "hostPort": 8003, "hostIP": "127.0.0.1"}]))
    assert (collides.feasible, tried) == (29, [made.cluster.slot_of("n3")])
