"""PodTopologySpread and InterPodAffinity."""

from __future__ import annotations

from typing import Any

import pytest

from roles.scheduler import testing

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
SELECT = {"matchLabels": {"app": "a"}}


def world(zones: dict[str, str], **profile: Any) -> testing.World:
    found = testing.World(profile or None)
    found.add_nodes(*(testing.node(name, labels={ZONE: zone} if zone else {}) for name, zone in zones.items()))
    return found


def spread(when: str, key: str = ZONE, skew: int = 1, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": when, "labelSelector": SELECT, **more}


def near(kind: str, key: str, required: bool = True, weight: int = 1) -> dict[str, Any]:
    term = {"labelSelector": SELECT, "topologyKey": key}
    if required:
        return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "podAffinityTerm": term}]}}


@pytest.mark.feature("SCH-KS-07")
def test_hard_spread_keeps_the_skew() -> None:
    found = world({"a1": "a", "a2": "a", "b1": "b", "x": ""})
    zones = {"a1": "a", "a2": "a", "b1": "b"}
    seen = [
        zones[found.schedule(testing.pod(labels={"app": "a"}, topologySpreadConstraints=[spread("DoNotSchedule")])).node] for _ in range(8)
    ]
    for count in range(1, 9):
        assert abs(seen[:count].count("a") - seen[:count].count("b")) <= 1
    found.cluster.remove_node("b1")
    pod = testing.pod(labels={"app": "a"}, topologySpreadConstraints=[spread("DoNotSchedule", minDomains=2)])
    decision = found.decide(pod)
    assert "2 node(s) didn't match pod topology spread constraints" in decision.message()
    assert "1 node(s) didn't match pod topology spread constraints (missing required label)" in decision.message()


@pytest.mark.feature("SCH-KS-07")
def test_soft_spread_prefers_the_emptier_zone() -> None:
    found = world(
        {"a1": "a", "b1": "b", "b2": "b"}, plugins={"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "PodTopologySpread"}]}}
    )
    found.add_pods(*(testing.pod(labels={"app": "a"}, node="a1") for _ in range(3)))
    nodes = [found.schedule(testing.pod(labels={"app": "a"}, topologySpreadConstraints=[spread("ScheduleAnyway")])).node for _ in range(3)]
    assert set(nodes) <= {"b1", "b2"}


@pytest.mark.feature("SCH-KS-06")
def test_anti_affinity_both_ways() -> None:
    found = world({"a1": "a", "a2": "a", "b1": "b"})
    alone = lambda: testing.pod(labels={"app": "a"}, affinity=near("podAntiAffinity", ZONE))  # noqa: E731
    first, second = found.schedule(alone()).node, found.schedule(alone()).node
    assert {first[0], second[0]} == {"a", "b"}
    third = found.decide(alone())
    assert third.message().startswith("0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.")
    plain = found.decide(testing.pod(labels={"app": "a"}))
    assert plain.message().startswith("0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules.")
    assert found.decide(testing.pod(labels={"app": "other"})).scheduled


@pytest.mark.feature("SCH-KS-06")
def test_affinity_follows_and_the_first_may_go_anywhere() -> None:
    found = world({"a1": "a", "b1": "b", "b2": "b"})
    stranger = found.decide(testing.pod(labels={"app": "b"}, affinity=near("podAffinity", ZONE)))
    assert "3 node(s) didn't match pod affinity rules" in stranger.message()
    first = found.schedule(testing.pod(labels={"app": "a"}, affinity=near("podAffinity", ZONE))).node
    for _ in range(3):
        assert found.schedule(testing.pod(labels={"app": "a"}, affinity=near("podAffinity", ZONE))).node[0] == first[0]
    info = found.add_pods(testing.pod(labels={"app": "a"}, node="a1"))[0]
    found.cluster.remove_pod(info.uid)
    assert found.schedule(testing.pod(labels={"app": "b"}, affinity=near("podAffinity", ZONE))).node[0] == first[0]


@pytest.mark.feature("SCH-KS-06")
def test_preferences_of_both_sides_count() -> None:
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "InterPodAffinity"}]}
    found = world({"a1": "a", "b1": "b"}, plugins={"score": only})
    found.add_pods(testing.pod(labels={"app": "a"}, node="b1"))
    assert found.decide(testing.pod(affinity=near("podAffinity", HOST, required=False))).node == "b1"
    assert found.decide(testing.pod(affinity=near("podAntiAffinity", HOST, required=False))).node == "a1"
    found.add_pods(testing.pod(affinity=near("podAffinity", HOST, required=False, weight=9), node="a1"))
    assert found.decide(testing.pod(labels={"app": "a"})).node == "a1"
