"""The engine (vectors, shared shapes, changed rows only) against a plain reference: one pod, one node at a time, nothing kept."""

from __future__ import annotations

import math
import random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.accounting.pods import non_zero_requests, pod_requests
from koord.accounting.resources import parse
from koord.api.objects import Node, Pod, Taint
from koord.api.times import format_time
from roles.scheduler import testing
from roles.scheduler.cycle import evaluation

EXTENDED = "example.com/widget"
WEIGHTS = {"TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 1, "NodeResourcesBalancedAllocation": 1}


class Reference:
    """Decides by looping over nodes and rules as the specification words them, with plain integers."""

    def __init__(self, seed: int) -> None:
        self.nodes: dict[str, Node] = {}
        self.order: list[str] = []
        self.pods: dict[str, list[Pod]] = {}
        self.random = random.Random(seed)
        self.usage: dict[str, int] = {}  # milli-CPU by node, as its NodeMetric reports

    def decide(self, pod: Pod, order: list[str]) -> str:
        names = [name for name in order if name in self.nodes]
        feasible = [name for name in names if self.fits(pod, self.nodes[name])]
        if not feasible:
            return ""
        raw = {
            rule: {name: getattr(self, rule)(pod, self.nodes[name]) for name in feasible}
            for rule in ("taints", "affinity", "least", "balanced")
        }
        totals = {}
        high_taints, high_affinity = max(raw["taints"].values()), max(raw["affinity"].values())
        for name in feasible:
            total = 3 * (100 - (raw["taints"][name] * 100 // high_taints if high_taints else 0))
            total += 2 * (raw["affinity"][name] * 100 // high_affinity if high_affinity else 0)
            totals[name] = total + raw["least"][name] + raw["balanced"][name]
        best = [name for name in feasible if totals[name] == max(totals.values())]
        return best[0] if len(best) == 1 else best[self.random.randrange(len(best))]

    def tolerated(self, pod: Pod, taint: Any) -> bool:
        for t in pod.spec.tolerations:
            covers = (not t.effect or t.effect == taint.effect) and (not t.key or t.key == taint.key)
            if covers and (t.operator == "Exists" or (t.key and (t.value or "") == (taint.value or ""))):
                return True
        return False

    def fits(self, pod: Pod, node: Node) -> bool:
        cordon = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
        if node.spec.unschedulable and not self.tolerated(pod, cordon):
            return False
        if any(t.effect in ("NoSchedule", "NoExecute") and not self.tolerated(pod, t) for t in node.spec.taints):
            return False
        if any(node.metadata.labels.get(k) != v for k, v in pod.spec.node_selector.items()):
            return False
        others = self.pods.get(node.metadata.name, [])
        taken = {p.host_port for other in others for c in other.spec.containers for p in c.ports if p.host_port}
        if any(p.host_port in taken for c in pod.spec.containers for p in c.ports if p.host_port):
            return False
        if not self.spread_allows(pod, node) or not self.neighbours_allow(pod, node) or not self.load_allows(pod, node):
            return False
        free = parse(node.status.allocatable)
        if len(others) + 1 > free.get("pods", 0):
            return False
        used = [pod_requests(other) for other in others]
        return all(v <= free.get(r, 0) - sum(u.get(r, 0) for u in used) for r, v in pod_requests(pod).items() if v > 0)

    def spread_allows(self, pod: Pod, node: Node) -> bool:
        """Hard spreading over zones: pods of the app in the zone, with this one, less the emptiest zone, at most maxSkew."""
        for constraint in pod.spec.topology_spread_constraints:
            key, wanted = constraint.topology_key, constraint.label_selector.match_labels
            if key not in node.metadata.labels:
                return False
            counts: dict[str, int] = {}
            for name, other in self.nodes.items():
                allowed = all(other.metadata.labels.get(k) == v for k, v in pod.spec.node_selector.items())
                if key in other.metadata.labels and allowed:
                    matching = [p for p in self.pods.get(name, []) if wanted.items() <= p.metadata.labels.items()]
                    counts[other.metadata.labels[key]] = counts.get(other.metadata.labels[key], 0) + len(matching)
            own = int(wanted.items() <= pod.metadata.labels.items())
            if counts.get(node.metadata.labels[key], 0) + own - min(counts.values(), default=0) > constraint.max_skew:
                return False
        return True

    def neighbours_allow(self, pod: Pod, node: Node) -> bool:
        """Required affinity and anti-affinity of the pod, and anti-affinity of pods that are there, over one topology key each."""

        def where(key: str, wanted: dict[str, str]) -> set[str]:
            return {
                other.metadata.labels[key]
                for name, other in self.nodes.items()
                if key in other.metadata.labels and any(wanted.items() <= p.metadata.labels.items() for p in self.pods.get(name, []))
            }

        for name, other in self.nodes.items():
            for there in self.pods.get(name, []):
                for term in anti(there):
                    value = other.metadata.labels.get(term.topology_key)
                    selected = term.label_selector.match_labels.items() <= pod.metadata.labels.items()
                    if selected and value is not None and node.metadata.labels.get(term.topology_key) == value:
                        return False
        for term in anti(pod):
            if node.metadata.labels.get(term.topology_key) in where(term.topology_key, term.label_selector.match_labels):
                return False
        for term in affine(pod):
            values, label = where(term.topology_key, term.label_selector.match_labels), node.metadata.labels.get(term.topology_key)
            first = not values and term.label_selector.match_labels.items() <= pod.metadata.labels.items()
            if label is None or (label not in values and not first):
                return False
        return True

    def load_allows(self, pod: Pod, node: Node) -> bool:
        """CPU usage as reported plus 85 % of what unreported pods and this one request, rounded, must not exceed 65 % of the node."""
        have = parse(node.status.allocatable).get("cpu", 0)
        usage = self.usage.get(node.metadata.name)
        if usage is None or not have:
            return True
        pods = (*self.pods.get(node.metadata.name, []), pod)
        estimates = [estimate_pod(p)["cpu"] for p in pods]
        return math.floor((usage + sum(estimates)) * 100 / have + 0.5) <= 65

    def taints(self, pod: Pod, node: Node) -> int:
        return sum(1 for t in node.spec.taints if t.effect == "PreferNoSchedule" and not self.tolerated(pod, t))

    def affinity(self, pod: Pod, node: Node) -> int:
        terms = pod.spec.affinity.node_affinity.preferred if pod.spec.affinity and pod.spec.affinity.node_affinity else ()
        return sum(t.weight for t in terms if all(node.metadata.labels.get(e.key) in e.values for e in t.preference.match_expressions))

    def least(self, pod: Pod, node: Node) -> int:
        alloc, total, weight = parse(node.status.allocatable), 0, 0
        others = self.pods.get(node.metadata.name, [])
        for name in ("cpu", "memory"):
            have = alloc.get(name, 0)
            if have:
                used = sum(non_zero_requests(p)[name] for p in (*others, pod))
                total += (have - used) * 100 // have if used <= have else 0
                weight += 1
        return total // weight if weight else 0

    def balanced(self, pod: Pod, node: Node) -> int:
        wanted = pod_requests(pod)
        if not wanted.get("cpu") and not wanted.get("memory"):
            return 0
        alloc = parse(node.status.allocatable)
        others = self.pods.get(node.metadata.name, [])
        parts = []
        for name in ("cpu", "memory"):
            if alloc.get(name, 0):
                used = sum(pod_requests(p).get(name, 0) for p in (*others, pod))
                parts.append(min(1.0, used / alloc[name]))
        return math.floor((1 - (abs(parts[0] - parts[1]) / 2 if len(parts) == 2 else 0.0)) * 100)


def anti(pod: Pod) -> Any:
    return pod.spec.affinity.pod_anti_affinity.required if pod.spec.affinity and pod.spec.affinity.pod_anti_affinity else ()


def affine(pod: Pod) -> Any:
    return pod.spec.affinity.pod_affinity.required if pod.spec.affinity and pod.spec.affinity.pod_affinity else ()


def estimate_pod(pod: Pod) -> dict[str, int]:
    """The default estimate: 85 % of the CPU request, 250m without one."""
    wanted = pod_requests(pod).get("cpu", 0)
    return {"cpu": math.floor(wanted * 0.85 + 0.5) if wanted else 250}


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
        }
    )  # fmt: skip


def pod_strategy() -> st.SearchStrategy[dict[str, Any]]:
    toleration = st.sampled_from([{"key": "gpu", "operator": "Exists"}, {"key": "old", "operator": "Equal"}, {"operator": "Exists"}])
    return st.fixed_dictionaries(
        {
            "cpu": st.sampled_from([None, "100m", "700m", "1"]), "memory": st.sampled_from([None, "200Mi", "1Gi"]),
            "zone": st.sampled_from(["", "", "a"]), "prefer": st.sampled_from(["", "a", "b"]), "port": st.sampled_from([0, 0, 80]),
            "tolerations": st.lists(toleration, max_size=1), "widgets": st.sampled_from([None, None, "1"]),
            "app": st.sampled_from(["", "x", "y"]), "rule": st.sampled_from(["", "", "spread", "anti", "near"]),
            "about": st.sampled_from(["x", "y"]), "key": st.sampled_from(["zone", "kubernetes.io/hostname"]),
        }
    )  # fmt: skip


def make_node(name: str, spec: dict[str, Any]) -> Node:
    extra = {"example.com__widget": spec["widgets"]} if spec["widgets"] else {}
    labels = {"zone": spec["zone"]} if spec["zone"] else {}
    return testing.node(
        name,
        labels=labels,
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
    spread = [{**selector, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}] if spec["rule"] == "spread" else []
    return testing.pod(
        cpu=spec["cpu"], memory=spec["memory"], nodeSelector={"zone": spec["zone"]} if spec["zone"] else {}, affinity=affinity or None,
        labels={"app": spec["app"]} if spec["app"] else {}, topologySpreadConstraints=spread,
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


# Scores that the reference does not know are switched off, and preemption too: it draws from the same random numbers as ties do.
PROFILE = {
    "plugins": {
        "postFilter": {"disabled": [{"name": "*"}]},
        "filter": {"enabled": [{"name": "LoadAwareScheduling"}]},
        "score": {"disabled": [{"name": "InterPodAffinity"}, {"name": "PodTopologySpread"}]},
    },
    "pluginConfig": [{"name": "LoadAwareScheduling", "args": {"usageThresholds": {"cpu": 65}}}],
}


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-KS-01")
@pytest.mark.feature("SCH-KS-06")
@pytest.mark.feature("SCH-KS-07")
@pytest.mark.feature("SCH-LA-01")
@settings(max_examples=150, deadline=None)
@given(
    nodes=st.lists(node_strategy(), min_size=1, max_size=6),
    shapes=st.lists(pod_strategy(), min_size=4, max_size=4),
    plan=steps(),
    seed=st.integers(0, 9),
    few=st.sampled_from([1, 2, 48]),
)
def test_engine_equals_one_pod_one_node_at_a_time(
    nodes: list[dict[str, Any]], shapes: list[dict[str, Any]], plan: list[Step], seed: int, few: int
) -> None:
    """`few` is from how many changed rows on the engine goes over to whole vectors."""
    with patch.object(evaluation, "_FEW_ROWS", few):
        check(nodes, shapes, plan, seed)


def check(nodes: list[dict[str, Any]], shapes: list[dict[str, Any]], plan: list[Step], seed: int) -> None:
    world, reference = testing.World(PROFILE, seed=seed), Reference(seed)
    for index, spec in enumerate(nodes):
        world.add_nodes(make_node(f"n{index}", spec))
        reference.nodes[f"n{index}"] = make_node(f"n{index}", spec)
    placed: list[tuple[Pod, str]] = []
    for kind, value in plan:
        if kind == "pod":
            pod = make_pod(shapes[value])
            order = [row.name for row in world.cluster.rows()]
            expected = reference.decide(pod, order)
            decision = world.schedule(pod)
            assert decision.node == expected, (decision.message(), expected)
            if expected:
                reference.pods.setdefault(expected, []).append(pod)
                placed.append((pod, expected))
        elif kind == "delete" and placed:
            pod, name = placed.pop(value % len(placed))
            world.cluster.remove_pod(pod.metadata.uid)
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
