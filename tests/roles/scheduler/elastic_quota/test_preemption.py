"""Preemption within a quota: who may go, on which node, and when nobody does."""

from __future__ import annotations

from typing import Any

import pytest

from roles.scheduler import testing

PREFIX = "quota.scheduling.koordinator.sh/"


def world(**args: Any) -> testing.World:
    points: dict[str, Any] = {point: {"enabled": [{"name": "ElasticQuota"}]} for point in ("preFilter", "reserve")}
    points["postFilter"] = {"disabled": [{"name": "*"}], "enabled": [{"name": "ElasticQuota"}]}
    return testing.World({"plugins": points, "pluginConfig": [{"name": "ElasticQuota", "args": args}]})


def quota(made: testing.World, name: str, cpu: str) -> None:
    made.feed("ElasticQuota", {"metadata": {"name": name, "namespace": "q"}, "spec": {"max": {"cpu": cpu}, "min": {"cpu": cpu}}})


def pod(name: str, quota: str, cpu: int, *, priority: int = 0, node: str = "", preemptible: bool = True, **more: Any) -> Any:
    labels = {PREFIX + "preemptible": "" if preemptible else "false"}
    if quota:
        labels[PREFIX + "name"] = quota
    return testing.pod(name, uid=name, cpu=str(cpu), labels=labels, priority=priority, node=node, **more)


def victims(decision: Any) -> list[str]:
    return sorted(victim.name for victim in decision.victims)


@pytest.mark.feature("SCH-EQ-08")
def test_on_a_full_node_only_pods_of_the_same_quota_go() -> None:
    made = world()
    made.add_nodes(testing.node("n", cpu="4"), testing.node("m", cpu="4"))
    quota(made, "mine", "8")
    quota(made, "theirs", "8")
    made.add_pods(
        pod("foreign", "theirs", 4, node="n"),
        pod("kept", "mine", 2, node="m", preemptible=False),
        pod("low", "mine", 2, node="m", priority=1),
    )
    decision = made.decide(pod("high", "mine", 2, priority=5))
    assert (decision.nominate, victims(decision)) == ("m", ["low"])
    assert victims(made.decide(pod("equal", "mine", 2, priority=1))) == []
    assert victims(made.decide(pod("large", "mine", 4, priority=5))) == []  # the one that is kept is in the way


@pytest.mark.feature("SCH-EQ-08")
def test_a_full_quota_is_relieved_where_that_is_enough_and_no_more_than_needed() -> None:
    made = world()
    made.add_nodes(testing.node("n", cpu="20"), testing.node("m", cpu="20"))
    quota(made, "mine", "6")
    made.add_pods(
        pod("small", "mine", 1, node="n"), pod("old", "mine", 2, node="m", status={"startTime": "2026-01-01T00:00:00Z"}),
        pod("young", "mine", 2, node="m", status={"startTime": "2026-01-02T00:00:00Z"}), pod("other", "mine", 1, node="n"),
    )  # fmt: skip
    decision = made.decide(pod("high", "mine", 2, priority=5))
    assert (decision.nominate, victims(decision)) == ("m", ["young"])
    assert victims(made.decide(pod("wide", "mine", 5, priority=5))) == []  # no one node has enough of them
    assert made.decide(pod("wide", "mine", 5, priority=5)).nominate == ""
    assert "Insufficient quotas" in decision.failure.pre_filter.message  # type: ignore[union-attr]
    assert made.decide(pod("never", "mine", 2, priority=5, preemptionPolicy="Never")).victims == ()


@pytest.mark.feature("SCH-EQ-08")
@pytest.mark.parametrize("disabled", [True, False])
def test_the_default_quota_is_left_alone_unless_told_otherwise(disabled: bool) -> None:
    made = world(disableDefaultQuotaPreemption=disabled)
    made.add_nodes(testing.node("n", cpu="4"))
    made.add_pods(pod("low", "", 4, node="n"))
    assert victims(made.decide(pod("high", "", 4, priority=5))) == ([] if disabled else ["low"])


@pytest.mark.feature("SCH-EQ-08")
def test_a_terminating_victim_on_the_nominated_node_is_waited_for() -> None:
    made = world()
    made.add_nodes(testing.node("n", cpu="4"))
    quota(made, "mine", "4")
    infos = made.add_pods(pod("leaving", "mine", 2, node="n"), pod("low", "mine", 2, node="n"))
    infos[0].deleting = True
    high = made.parser.parse(pod("high", "mine", 2, priority=5))
    made.state.nominations.add(high, "n")
    decision = made.decide(high)
    assert decision.victims == ()
    assert "terminating pod of the quota" in decision.message()
