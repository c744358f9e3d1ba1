"""Kept answers about nominated pods equal fresh ones, and cost nothing where nothing changed (SCH-FW-11)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler import testing
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
@given(st.lists(STEP, max_size=25), st.integers(1, 2))
def test_property_kept_answers_are_fresh_ones(steps: list[tuple[str, int, int]], every: int) -> None:
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}", cpu="3") for number in range(NODES)))
    high = [made.parser.parse(testing.pod(f"h{n}", uid=f"h{n}", cpu=str(1 + n % 2), priority=5 + n)) for n in range(PODS)]
    asking = [made.parser.parse(testing.pod(f"a{n}", uid=f"a{n}", cpu="2", priority=p)) for n, p in enumerate((0, 6))]
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


@pytest.mark.feature("SCH-FW-11")
def test_only_nodes_that_changed_are_looked_at_again(monkeypatch: Any) -> None:
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}", cpu="64") for number in range(50)))
    for number in range(40):
        made.state.nominations.add(made.parser.parse(testing.pod(f"h{number}", uid=f"h{number}", cpu="8", priority=9)), f"n{number}")
    asked: list[int] = []
    check = Judgement.check_row

    def counted(self: Judgement, ctx: Any, slot: int) -> Any:
        asked.append(slot)
        return check(self, ctx, slot)

    monkeypatch.setattr(Judgement, "check_row", counted)
    made.schedule(testing.pod(priority=0))
    assert len(asked) == 40
    asked.clear()
    for _ in range(10):
        made.schedule(testing.pod(priority=0))
    assert len(asked) <= 10
    asked.clear()
    made.state.nominations.remove("h0")
    made.state.nominations.add(made.parser.parse(testing.pod("new", uid="new", cpu="8", priority=9)), "n49")
    made.decide(testing.pod(priority=0))
    assert len(asked) <= 3
