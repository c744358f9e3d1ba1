"""What spares asking all filters while room is made for a job changes no plan."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.names import LABEL_POD_GROUP
from roles.scheduler import testing
from roles.scheduler.framework.interfaces import PodObserver
from roles.scheduler.plugins.coscheduling.preemption import JobPreemption

from .conftest import profile

PODS = st.lists(
    st.tuples(st.sampled_from(["500m", "1", "2"]), st.sampled_from(["256Mi", "2Gi"]), st.integers(0, 3), st.integers(0, 2)), max_size=14
)


def plan(there: list[tuple[str, str, int, int]], sizes: list[tuple[str, str]], *, shortcut: bool) -> Any:
    world = testing.World(profile(enablePreemption=True), seed=1)
    world.add_nodes(*(testing.node(f"n{number}", cpu="4", memory="6Gi", pods="5") for number in range(4)))
    for number, (cpu, memory, node, priority) in enumerate(there):
        uid = f"low{number}"
        world.add_pods(
            testing.pod(uid, cpu=cpu, memory=memory, node=f"n{node}", priority=priority, uid=uid, labels={"app": f"a{number % 3}"})
        )
    world.feed("PodGroup", {"metadata": {"name": "g", "namespace": "default", "uid": "g"}, "spec": {"minMember": len(sizes)}})
    members = [
        world.parser.parse(testing.pod(f"m{i}", cpu=cpu, memory=memory, priority=9, uid=f"m{i}", labels={LABEL_POD_GROUP: "g"}))
        for i, (cpu, memory) in enumerate(sizes)
    ]
    for plugin in world.framework.plugins.values():
        if isinstance(plugin, PodObserver):
            for member in members:
                plugin.pod_seen(member)
    with patch.object(JobPreemption, "_too_much", JobPreemption._too_much if shortcut else lambda *_: False):
        decision = world.decide(members[0])
    return (
        decision.verdict,
        decision.nominate,
        sorted(v.key for v in decision.victims),
        sorted((p.key, node) for p, node in decision.others),
    )


@pytest.mark.feature("SCH-JP-01")
@settings(max_examples=60, deadline=None)
@given(there=PODS, sizes=st.lists(st.sampled_from([("1", "1Gi"), ("3", "1Gi"), ("2", "4Gi")]), min_size=1, max_size=4))
def test_plans_are_the_same_without_it(there: list[tuple[str, str, int, int]], sizes: list[tuple[str, str]]) -> None:
    assert plan(there, sizes, shortcut=True) == plan(there, sizes, shortcut=False)
