"""The engine (vectors, shared shapes, changed rows only) against a plain reference: one pod, one node at a time, nothing kept."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.accounting.pods import non_zero_requests, pod_requests
from koord.accounting.resources import parse
from koord.api.objects import Node, Pod, Taint
from roles.scheduler import testing

EXTENDED = "example.com/widget"
WEIGHTS = {"TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 1, "NodeResourcesBalancedAllocation": 1}


class Reference:
    """Decides by looping over nodes and rules as the specification words them, with plain integers."""

    def __init__(self, seed: int) -> None:
        self.nodes: dict[str, Node] = {}
        self.order: list[str] = []
        self.pods: dict[str, list[Pod]] = {}
        self.random = random.Random(seed)

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
        free = parse(node.status.allocatable)
        if len(others) + 1 > free.get("pods", 0):
            return False
        used = [pod_requests(other) for other in others]
        return all(v <= free.get(r, 0) - sum(u.get(r, 0) for u in used) for r, v in pod_requests(pod).items() if v > 0)

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
    affinity = None
    if spec["prefer"]:
        term = {"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": [spec["prefer"]]}]}}
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    return testing.pod(
        cpu=spec["cpu"], memory=spec["memory"], nodeSelector={"zone": spec["zone"]} if spec["zone"] else {}, affinity=affinity,
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
    )
    return st.lists(step, min_size=1, max_size=30)


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-KS-01")
@settings(max_examples=150, deadline=None)
@given(
    nodes=st.lists(node_strategy(), min_size=1, max_size=6),
    shapes=st.lists(pod_strategy(), min_size=4, max_size=4),
    plan=steps(),
    seed=st.integers(0, 9),
)
def test_engine_equals_one_pod_one_node_at_a_time(
    nodes: list[dict[str, Any]], shapes: list[dict[str, Any]], plan: list[Step], seed: int
) -> None:
    # Preemption draws from the same random numbers as ties do.
    world, reference = testing.World({"plugins": {"postFilter": {"disabled": [{"name": "*"}]}}}, seed=seed), Reference(seed)
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
