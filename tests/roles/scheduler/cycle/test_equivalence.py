"""The engine (vectors, shared shapes, changed rows only) against a plain reference: one pod, one node at a time, nothing kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import Node, Pod
from koord.api.times import format_time
from roles.scheduler import testing
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.cycle.judgement import INFEASIBLE
from roles.scheduler.framework.interfaces import PodObserver
from tests.roles.scheduler.cycle.reference import EXTENDED, HOST, QUOTA, Reference
from tests.support.examples import examples


def node_strategy() -> st.SearchStrategy[dict[str, Any]]:
    taint = st.sampled_from(
        [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "old", "value": "", "effect": "PreferNoSchedule"},
         {"key": "slow", "value": "io", "effect": "PreferNoSchedule"}]
    )  # fmt: skip
    return st.fixed_dictionaries(
        {
            "cpu": st.sampled_from(["1", "2", "4500m", "0"]), "memory": st.sampled_from(["1Gi", "3Gi", "8Gi"]),
            "pods": st.sampled_from(["1", "3", "110"]), "zone": st.sampled_from(["a", "b", ""]),
            "taints": st.lists(taint, max_size=2, unique_by=lambda t: t["key"]), "unschedulable": st.sampled_from([False] * 3 + [True]),
            "widgets": st.sampled_from([None, "2"]),
            "image": st.sampled_from([0, 0, 90 << 20, 700 << 20]),
        }
    )  # fmt: skip


def pod_strategy() -> st.SearchStrategy[dict[str, Any]]:
    toleration = st.sampled_from([{"key": "gpu", "operator": "Exists"}, {"key": "old", "operator": "Equal"}, {"operator": "Exists"}])
    return st.fixed_dictionaries(
        {
            "cpu": st.sampled_from([None, "100m", "700m", "1"]), "memory": st.sampled_from([None, "200Mi", "1Gi"]),
            "zone": st.sampled_from(["", "", "a"]), "prefer": st.sampled_from(["", "a", "b"]), "port": st.sampled_from([0, 0, 80]),
            "tolerations": st.lists(toleration, max_size=1), "widgets": st.sampled_from([None, None, "1"]),
            "app": st.sampled_from(["", "x", "y"]),
            "rule": st.sampled_from(["", "", "spread", "soft", "both", "anti", "near", "like", "dislike"]),
            "about": st.sampled_from(["x", "y"]), "key": st.sampled_from(["zone", HOST]), "weight": st.sampled_from([1, 30, 100]),
            "quota": st.sampled_from(["", "", "q"]), "claim": st.sampled_from([""] * 5 + ["a", "b"]),
        }
    )  # fmt: skip


def make_node(name: str, spec: dict[str, Any]) -> Node:
    extra = {"example.com__widget": spec["widgets"]} if spec["widgets"] else {}
    labels = {"zone": spec["zone"]} if spec["zone"] else {}
    return testing.node(
        name,
        labels=labels,
        images={IMAGE: spec["image"]} if spec["image"] else {},
        taints=spec["taints"],
        unschedulable=spec["unschedulable"],
        cpu=spec["cpu"],
        memory=spec["memory"],
        pods=spec["pods"],
        **extra,
    )


def make_pod(spec: dict[str, Any]) -> Pod:
    affinity: dict[str, Any] = {}
    selector = {"labelSelector": {"matchLabels": {"app": spec["about"]}}, "topologyKey": spec["key"]}
    if spec["prefer"]:
        term = {"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": [spec["prefer"]]}]}}
        affinity["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
    if spec["rule"] in ("anti", "near"):
        kind = "podAntiAffinity" if spec["rule"] == "anti" else "podAffinity"
        affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}
    if spec["rule"] in ("like", "dislike"):
        kind = "podAffinity" if spec["rule"] == "like" else "podAntiAffinity"
        term = {"weight": spec["weight"], "podAffinityTerm": selector}
        affinity[kind] = {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
    how = {"spread": ["DoNotSchedule"], "soft": ["ScheduleAnyway"], "both": ["DoNotSchedule", "ScheduleAnyway"]}.get(spec["rule"], [])
    spread = [{**selector, "maxSkew": 1 + number, "whenUnsatisfiable": when} for number, when in enumerate(how)]
    labels = {"app": spec["app"]} if spec["app"] else {}
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": f"c-{spec['claim']}"}}] if spec["claim"] else []
    return testing.pod(
        cpu=spec["cpu"], memory=spec["memory"], nodeSelector={"zone": spec["zone"]} if spec["zone"] else {}, affinity=affinity or None,
        labels={**labels, QUOTA: spec["quota"]} if spec["quota"] else labels, topologySpreadConstraints=spread,
        image=IMAGE, volumes=volumes,
        tolerations=spec["tolerations"], ports=[{"containerPort": 80, "hostPort": spec["port"]}] if spec["port"] else [],
        requests={EXTENDED: spec["widgets"]} if spec["widgets"] else {},
    )  # fmt: skip


Step = tuple[str, Any]


def steps() -> st.SearchStrategy[list[Step]]:
    step = st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 3)),
        st.tuples(st.just("pod"), st.integers(0, 3)),
        st.tuples(st.just("pod"), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.integers(0, 50)),
        st.tuples(st.just("node"), st.tuples(st.integers(0, 5), node_strategy())),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("usage"), st.tuples(st.integers(0, 5), st.sampled_from([0, 600, 1200, 2500]))),
    )
    return st.lists(step, min_size=1, max_size=30)


def metric(name: str, milli: int, now: float) -> dict[str, Any]:
    usage = {"updateTime": format_time(now), "nodeMetric": {"nodeUsage": {"resources": {"cpu": f"{milli}m"}}}}
    return {"metadata": {"name": name}, "status": usage}


# Preemption is switched off: it draws from the same random numbers as ties do.
PROFILE = {
    "plugins": {
        "postFilter": {"disabled": [{"name": "*"}]},
        "filter": {"enabled": [{"name": "LoadAwareScheduling"}]},
        "preFilter": {"enabled": [{"name": "ElasticQuota"}]},
        "reserve": {"enabled": [{"name": "ElasticQuota"}]},
    },
    "pluginConfig": [{"name": "LoadAwareScheduling", "args": {"usageThresholds": {"cpu": 65}}}],
}
IMAGE = "registry.example.com/app:1"


def furnish(world: testing.World, reference: Reference) -> None:
    """A quota of 1500m with more than enough to share, and two claims whose volumes are in zones a and b."""
    world.add_nodes(testing.node("bank", cpu="1000", unschedulable=True))
    reference.nodes["bank"] = testing.node("bank", cpu="1000", unschedulable=True)
    meta = {"name": "q", "namespace": "quotas", "uid": "q"}
    world.feed("ElasticQuota", {"metadata": meta, "spec": {"max": {"cpu": "1500m"}}})
    reference.quotas["q"] = 1500
    for zone in ("a", "b"):
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        affinity = {"required": {"nodeSelectorTerms": [term]}}
        world.feed("PersistentVolume", {"metadata": {"name": f"v-{zone}"}, "spec": {"nodeAffinity": affinity}})
        claim = {
            "metadata": {"name": f"c-{zone}", "namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": f"v-{zone}"},
            "status": {"phase": "Bound"},
        }
        world.feed("PersistentVolumeClaim", claim)
        reference.claims[f"c-{zone}"] = zone


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-KS-01")
@pytest.mark.feature("SCH-KS-03")
@pytest.mark.feature("SCH-KS-05")
@pytest.mark.feature("SCH-KS-08")
@pytest.mark.feature("SCH-EQ-07")
@pytest.mark.feature("SCH-KS-09")
@pytest.mark.feature("SCH-KS-06")
@pytest.mark.feature("SCH-KS-07")
@pytest.mark.feature("SCH-LA-01")
@examples(52)
@given(
    nodes=st.lists(node_strategy(), min_size=1, max_size=6),
    shapes=st.lists(pod_strategy(), min_size=4, max_size=4),
    plan=steps(),
    seed=st.integers(0, 9),
)
def test_engine_equals_one_pod_one_node_at_a_time(
    nodes: list[dict[str, Any]], shapes: list[dict[str, Any]], plan: list[Step], seed: int
) -> None:
    check(nodes, shapes, plan, seed)


ROOMY = {"cpu": "16", "memory": "64Gi", "pods": "110", "taints": [], "unschedulable": False, "widgets": None, "image": 0}
PLAIN = {"memory": None, "zone": "", "prefer": "", "port": 0, "tolerations": [], "widgets": None, "quota": "", "claim": ""}


@pytest.mark.feature("SCH-KS-06")
@pytest.mark.feature("SCH-KS-07")
@examples(21)
@given(
    zones=st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=3, max_size=6),
    shapes=st.lists(
        st.fixed_dictionaries(
            {
                "cpu": st.sampled_from(["100m", "300m"]), "app": st.sampled_from(["x", "y"]), "about": st.sampled_from(["x", "y"]),
                "rule": st.sampled_from(["soft", "soft", "both", "like", "dislike", "near"]), "key": st.sampled_from(["zone", HOST]),
                "weight": st.sampled_from([1, 30, 100]),
            }
        ),
        min_size=4, max_size=4,
    ),
    plan=st.lists(
        st.one_of(st.tuples(st.just("pod"), st.integers(0, 3)), st.tuples(st.just("delete"), st.integers(0, 50))), min_size=8, max_size=24
    ),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_scores_over_several_nodes_equal_a_plain_count(zones: list[str], shapes: list[dict[str, Any]], plan: list[Step], seed: int) -> None:
    """Room everywhere, so that soft spreading and preferences decide."""
    check([{**ROOMY, "zone": zone} for zone in zones], [{**PLAIN, **shape} for shape in shapes], plan, seed)


def engine_totals(world: testing.World, decision: Decision) -> dict[str, float]:
    """Totals by node of the feasible nodes; the placement that followed does not change the vectors of this decision."""
    if not decision.scheduled or decision.evaluation is None:
        return {}
    found = decision.evaluation.totals
    return {row.name: found[row.slot] for row in world.cluster.rows() if found[row.slot] != INFEASIBLE}


def check(nodes: list[dict[str, Any]], shapes: list[dict[str, Any]], plan: list[Step], seed: int) -> None:
    world, reference = testing.World(PROFILE, seed=seed), Reference(seed)
    for index, spec in enumerate(nodes):
        world.add_nodes(make_node(f"n{index}", spec))
        reference.nodes[f"n{index}"] = make_node(f"n{index}", spec)
    furnish(world, reference)
    watching = [plugin for plugin in world.framework.plugins.values() if isinstance(plugin, PodObserver)]
    placed: list[tuple[Pod, str]] = []
    for kind, value in plan:
        if kind == "pod":
            pod = make_pod(shapes[value])
            order = [row.name for row in world.cluster.rows()]
            info = world.parser.parse(pod)
            for plugin in watching:
                plugin.pod_seen(info)
            totals = reference.totals(pod, order)
            expected = reference.decide(totals)
            decision = world.schedule(info)
            assert engine_totals(world, decision) == totals, decision.message()
            assert decision.node == expected, (decision.message(), expected)
            if expected:
                reference.pods.setdefault(expected, []).append(pod)
                placed.append((pod, expected))
        elif kind == "delete" and placed:
            pod, name = placed.pop(value % len(placed))
            world.cluster.remove_pod(pod.metadata.uid)
            for plugin in watching:
                plugin.pod_gone(pod.metadata.uid)
            reference.pods[name].remove(pod)
        elif kind == "node":
            name = f"n{value[0]}"
            world.add_nodes(make_node(name, value[1]))
            reference.nodes[name] = make_node(name, value[1])
        elif kind == "usage":
            name = f"n{value[0]}"
            world.feed("NodeMetric", metric(name, value[1], world.state.now))
            reference.usage[name] = value[1]
        elif kind == "remove":
            world.cluster.remove_node(f"n{value}")
            reference.nodes.pop(f"n{value}", None)


def test_growing_the_columns_keeps_decisions_right() -> None:
    world = testing.World()
    world.add_nodes(*(testing.node(f"n{i}", cpu="1") for i in range(60)))
    first = {world.schedule(testing.pod()).node for _ in range(60)}
    assert len(first) == 60
    assert not world.decide(testing.pod()).scheduled
    world.add_nodes(*(testing.node(f"m{i}", cpu="1") for i in range(200)))
    second = {world.schedule(testing.pod()).node for _ in range(200)}
    assert len(second) == 200
    assert not first & second
    assert world.decide(testing.pod()).message().startswith("0/260 nodes are available: 260 Insufficient cpu. preemption: ")
