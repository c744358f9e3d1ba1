"""PodTopologySpread and InterPodAffinity."""

from __future__ import annotations

import re
from typing import Any

import pytest

from koord.config.errors import InvalidConfig
from roles.scheduler import testing
from roles.scheduler.plugins.pod_topology_spread import PodTopologySpread

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


@pytest.mark.feature("SCH-KS-07")
@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "ReplicationController"])
def test_pods_of_an_owner_spread_by_default(kind: str) -> None:
    found = world(
        {"a1": "a", "a2": "a", "b1": "b"}, plugins={"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "PodTopologySpread"}]}}
    )
    owner = {"kind": kind, "name": "web", "uid": "u", "controller": True, "apiVersion": "v1"}
    selector: Any = {"app": "a"} if kind == "ReplicationController" else SELECT
    found.add_pods(*(testing.pod(labels={"app": "a"}, node=name) for name in ("a1", "a2")))
    pod = testing.pod(labels={"app": "a"}, ownerReferences=[owner])
    assert found.decide(pod).ties == 3
    found.feed(kind, {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": selector}})
    decision = found.decide(pod)
    assert (decision.node, decision.ties) == ("b1", 1)
    assert found.decide(testing.pod(labels={"app": "a"})).ties == 3  # one that nobody owns


def defaults(*constraints: dict[str, Any]) -> dict[str, Any]:
    args = {"defaultingType": "List", "defaultConstraints": list(constraints)}
    return {"pluginConfig": [{"name": "PodTopologySpread", "args": args}]}


def constraint(**more: Any) -> dict[str, Any]:
    return {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **more}


@pytest.mark.feature("SCH-KS-07")
@pytest.mark.parametrize(
    ("written", "node"),
    [
        pytest.param({}, "", id="the tainted node is empty"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, "w1", id="there is one node"),
        pytest.param({"nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Ignore"}, "", id="the node outside the pool is empty"),
        pytest.param({"nodeTaintsPolicy": "Honor", "minDomains": 2}, "", id="one domain is too few"),
    ],
)
def test_default_constraints_count_as_the_same_ones_in_a_pod(written: dict[str, Any], node: str) -> None:
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    decisions = []
    for profile, own in ((defaults(constraint(**written)), []), (None, [spread("DoNotSchedule", HOST, **written)])):
        found = testing.World(profile)
        found.add_nodes(
            testing.node("w1", labels={"pool": "x"}), testing.node("cp", labels={"pool": "x"}, taints=[taint]), testing.node("other")
        )
        found.feed("Service", {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "a"}}})
        found.add_pods(testing.pod(labels={"app": "a"}, node="w1"))
        pod = testing.pod(labels={"app": "a"}, nodeSelector={"pool": "x"}, topologySpreadConstraints=own)
        decisions.append(found.decide(pod).node)
    assert decisions == [node, node]


@pytest.mark.feature("SCH-CFG-01")
@pytest.mark.parametrize(
    ("constraints", "complaint"),
    [
        ([constraint(nodeTaintPolicy="Honor")], "defaultConstraints[0].nodeTaintPolicy: unknown field; did you mean 'nodeTaintsPolicy'?"),
        ([constraint(nodeTaintsPolicy="Sometimes")], "nodeTaintsPolicy: input should be 'Honor' or 'Ignore', got 'Sometimes'"),
        ([constraint(nodeAffinityPolicy="honor")], "nodeAffinityPolicy: input should be 'Honor' or 'Ignore', got 'honor'"),
        ([constraint(maxSkew=True)], "maxSkew: must be a whole number, got true"),
        ([constraint(maxSkew=0)], "maxSkew: input should be greater than 0, got 0"),
        ([{"maxSkew": 1, "topologyKey": HOST}], "whenUnsatisfiable: is required"),
        ([constraint(topologyKey="")], "topologyKey: '' is no valid label key"),
        ([constraint(minDomains=0)], "minDomains: input should be greater than 0, got 0"),
        ([constraint(minDomains=2, whenUnsatisfiable="ScheduleAnyway")], "minDomains: may only be set if whenUnsatisfiable is"),
        ([constraint(labelSelector={})], "labelSelector: must not be set"),
        ([constraint(matchLabelKeys=["a"])], "matchLabelKeys: must not be set"),
        ([constraint(), constraint(maxSkew=2)], "defaultConstraints[1]: there is already a constraint with topologyKey"),
    ],
)  # fmt: skip
def test_a_default_constraint_is_read_strictly(constraints: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(complaint)):
        testing.World(defaults(*constraints))


@pytest.mark.feature("SCH-KS-06")
def test_terms_follow_the_labels_of_namespaces() -> None:
    found = world({"a1": "a", "b1": "b"})
    term = {"labelSelector": SELECT, "topologyKey": ZONE, "namespaceSelector": {"matchLabels": {"team": "red"}}}
    pod = testing.pod(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    found.add_pods(testing.pod(namespace="other", labels={"app": "a"}, node="a1"))
    assert found.decide(pod).feasible == 2

    def label(**labels: str) -> None:
        found.state.namespaces["other"] = labels
        found.cluster.namespace_changed("other")

    label(team="red")
    assert found.decide(pod).node == "b1"
    label(team="blue")
    assert found.decide(pod).feasible == 2
    # The other way round: the pod that is there keeps those of red namespaces away.
    found.add_pods(testing.pod(node="b1", affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}))
    stranger = testing.pod(namespace="other", labels={"app": "a"})
    assert found.decide(stranger).feasible == 2
    label(team="red")
    assert found.decide(stranger).node == "a1"


@pytest.mark.feature("SCH-KS-06")
@pytest.mark.parametrize("turned", [False, True], ids=["named first", "selected first"])
def test_a_pod_counts_for_affinity_if_all_terms_reach_its_namespace(turned: bool) -> None:
    """In whatever order they are written."""
    found = world({"a1": "a", "b1": "b"})
    term = {"labelSelector": SELECT, "topologyKey": ZONE}
    terms = [{**term, "namespaces": ["other"]}, {**term, "namespaceSelector": {"matchLabels": {"team": "red"}}}]
    pod = testing.pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms[::-1] if turned else terms}})
    found.add_pods(testing.pod(namespace="other", labels={"app": "a"}, node="a1"))
    found.state.namespaces["other"] = {}
    assert not found.decide(pod).scheduled
    found.add_pods(testing.pod(namespace="other", labels={"app": "a"}, node="b1"))
    found.state.namespaces["other"] = {"team": "red"}
    found.cluster.namespace_changed("other")
    assert found.decide(pod).feasible == 2


@pytest.mark.feature("SCH-KS-06")
def test_labels_that_differ_within_a_stateful_set_share_a_shape_and_still_count() -> None:
    found = world({"a1": "a", "b1": "b"})
    name = "statefulset.kubernetes.io/pod-name"
    first, second = (found.parser.parse(testing.pod(labels={"app": "a", name: f"web-{number}"})) for number in (0, 1))
    assert first.shape is second.shape
    assert (first.labels[name], second.labels[name]) == ("web-0", "web-1")
    term = {"labelSelector": {"matchLabels": {name: "web-1"}}, "topologyKey": ZONE}
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert found.decide(second).feasible == 2
    (guard,) = found.add_pods(testing.pod(node="a1", affinity=away))
    assert found.decide(first).feasible == 2
    assert found.decide(second).node == "b1"
    # A pod whose own terms speak of the label keeps it in its shape.
    own = [found.parser.parse(testing.pod(labels={name: f"web-{number}"}, affinity=away)) for number in (0, 1)]
    assert own[0].shape is not own[1].shape
    found.cluster.remove_pod(guard.uid)
    found.add_pods(testing.pod(labels={"app": "a", name: "web-1"}, node="b1"))
    assert found.decide(own[0]).node == "a1"


def test_token_volumes_do_not_split_shapes() -> None:
    found = world({"a1": "a"})
    one, two, three = (
        found.parser.parse(testing.pod(volumes=[volume]))
        for volume in (
            {"name": "kube-api-access-x"},
            {"name": "kube-api-access-y"},
            {"name": "d", "persistentVolumeClaim": {"claimName": "c"}},
        )
    )
    assert one.shape is two.shape
    assert one.shape is not three.shape
    assert three.pod.spec.volumes[0].persistent_volume_claim.claim_name == "c"


@pytest.mark.feature("SCH-KS-07")
@pytest.mark.parametrize("when", ["DoNotSchedule", "ScheduleAnyway"])
def test_where_constraints_count_is_worked_out_once_for_all_of_them(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes have to have the keys of all constraints: it would be their number squared."""
    world, looks = testing.World(), list[Any]()
    eligible = PodTopologySpread._eligible
    monkeypatch.setattr(PodTopologySpread, "_eligible", lambda *args: (looks.append(args), eligible(*args))[1])
    keys = [f"key-{number}" for number in range(50)]
    world.add_nodes(*(testing.node(name, labels=dict.fromkeys(keys, name)) for name in ("a", "b")))
    selector = {"matchLabels": {"app": "x"}}
    world.add_pods(testing.pod(node="a", labels={"app": "x"}))
    spread = [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector} for key in keys]
    assert world.decide(testing.pod(labels={"app": "x"}, topologySpreadConstraints=spread)).node == "b"
    assert len(looks) == 1


@pytest.mark.feature("SCH-KS-06")
@pytest.mark.parametrize("required", [True, False])
def test_terms_of_one_key_that_select_a_pod_are_summed_together(required: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = world({"a": "a", "b": "b", "c": ""})
    terms = [
        {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [str(number)]}]}, "topologyKey": ZONE}
        for number in range(100)
    ]
    preferred = [{"weight": 1, "podAffinityTerm": term} for term in terms]
    rules = (
        {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        if required
        else {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    )
    found.add_pods(testing.pod(node="a", labels={"app": "x"}, affinity={"podAntiAffinity": rules}))
    looks, column = list[str](), found.cluster.labels.column
    monkeypatch.setattr(type(found.cluster.labels), "column", lambda self, key: (looks.append(key), column(key))[1])
    assert found.decide(testing.pod(labels={"app": "x"})).node in ("b", "c")
    assert looks.count(ZONE) < 10
