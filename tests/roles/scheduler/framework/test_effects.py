"""Deciding changes nothing: not twice, and not when nobody carries the decision out (SCH-FW-06)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from koord.api import names
from roles.scheduler import testing
from roles.scheduler.framework.interfaces import PodObserver

GANG = {"pod-group.scheduling.sigs.k8s.io": "g"}


def gang_world(cpu: str) -> tuple[testing.World, Any, list[Any]]:
    profile = {
        "plugins": {
            **{p: {"enabled": [{"name": "Coscheduling"}]} for p in ("preEnqueue", "preFilter", "reserve", "permit", "postBind")},
            "postFilter": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
        },
        "pluginConfig": [{"name": "Coscheduling", "args": {"enablePreemption": True}}],
    }
    made = testing.World(profile)
    made.add_nodes(testing.node("n", cpu=cpu))
    made.feed("PodGroup", {"metadata": {"name": "g", "namespace": "default", "uid": "g"}, "spec": {"minMember": 2}})
    members = [made.parser.parse(testing.pod(f"m{number}", labels=GANG, priority=10)) for number in range(2)]
    plugin: Any = made.framework.plugins["Coscheduling"]
    for member in members:
        plugin.pod_seen(member)
    return made, plugin, members


@pytest.mark.feature("SCH-GANG-06")
@pytest.mark.parametrize("cpu", ["8", "500m"])
def test_a_gang_member_that_was_only_decided_leaves_its_group_alone(cpu: str) -> None:
    made, plugin, members = gang_world(cpu)
    told: list[Any] = []
    made.handle.record = told.append
    made.handle.audit = lambda job, event: told.append(event)
    assert made.framework.run_pre_enqueue(members[0]).ok
    group = plugin.cache.gang_of(members[0]).group
    before = (group.representative, group.unplanned)
    first = made.decide(members[0])
    second = made.decide(members[0])
    assert (first.verdict, first.node, first.message()) == (second.verdict, second.node, second.message())
    assert plugin.cache.round is None
    assert (group.representative, group.unplanned) == before
    assert told == []
    second.take_effect()
    assert plugin.cache.round.attempted == {members[0].uid}
    assert group.representative == ""
    assert len(told) == (1 if cpu == "8" else 2)
    second.take_effect()  # once only
    assert len(told) == (1 if cpu == "8" else 2)


@pytest.mark.feature("SCH-GANG-06")
def test_a_later_member_drafts_on_the_round_under_way() -> None:
    made, plugin, members = gang_world("1")
    assert made.schedule(members[0]).scheduled
    begun = copy.copy(plugin.cache.round)
    failed = made.decide(members[1])
    assert not failed.scheduled
    assert plugin.cache.round == begun
    failed.take_effect()
    assert plugin.cache.round.doomed is members[1]


@pytest.mark.feature("SCH-EQ-04")
def test_a_what_if_about_a_strange_pod_changes_no_runtime() -> None:
    points = {p: {"enabled": [{"name": "ElasticQuota"}]} for p in ("preFilter", "postFilter", "reserve")}
    made = testing.World({"plugins": points})
    made.add_nodes(testing.node("n", cpu="8", memory="8Gi"))
    for name in ("a", "b"):
        quota = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"max": {"cpu": "8"}, "min": {"cpu": "1"}}}
        made.feed("ElasticQuota", quota)
    plugin: Any = made.framework.plugins["ElasticQuota"]
    assert isinstance(plugin, PodObserver)
    seen = made.parser.parse(testing.pod("seen", cpu="2", labels={names.LABEL_QUOTA_NAME: "a"}))
    plugin.pod_seen(seen)
    made.decide(seen)

    def books() -> list[tuple[str, dict[str, int], dict[str, int]]]:
        quotas = [plugin.cache.quota(name) for name in ("a", "b")]
        return [(quota.name, dict(quota.runtime), {k: v for k, v in quota.request.items() if v}) for _, quota in quotas]

    before = books()
    stranger = testing.pod("stranger", cpu="3", labels={names.LABEL_QUOTA_NAME: "b"})
    decisions = [made.decide(stranger) for _ in range(2)]
    assert decisions[0].verdict == decisions[1].verdict
    assert books() == before


@pytest.mark.feature("SCH-FW-06")
def test_where_sampling_goes_on_is_moved_by_decisions_that_are_carried_out() -> None:
    made = testing.World()
    made.add_nodes(*(testing.node(f"n{number}") for number in range(300)))
    made.cycle._percentages = {testing.SCHEDULER: 40}
    decision = made.decide(testing.pod("p"))
    assert made.state.next_start == 0
    decision.take_effect()
    assert made.state.next_start > 0
