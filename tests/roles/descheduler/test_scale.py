"""Plugins on many nodes: what they look at grows with pods and terms, and they let others have their turn."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import selectors
from koord.api.objects import Node, Pod, PodAffinityTerm, convert
from koord.api.selectors import Requirement, SelectorError, from_label_selector
from roles.descheduler import registry
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import Evict, Pause
from roles.descheduler.framework.handle import SLICE, STEPS, Handle
from roles.descheduler.framework.pace import Runs
from roles.descheduler.nodefit import Placeable, anti_affinity_terms
from roles.descheduler.nodelabels import NodeLabels
from roles.descheduler.snapshot import NodeView, PodView, Snapshots, node_view
from roles.descheduler.spreading import Domain, Spread, moves
from tests.support.examples import examples

Obj = dict[str, Any]
HOSTNAME = "kubernetes.io/hostname"
ARGS: dict[str, Obj] = {
    "PodLifeTime": {"maxPodLifeTimeSeconds": 1},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 1},
    "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
    "LowNodeUtilization": {"thresholds": {"cpu": 1}, "targetThresholds": {"cpu": 2}},
    "HighNodeUtilization": {"thresholds": {"cpu": 1}},
    "LowNodeLoad": {"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 60}, "anomalyCondition": {"consecutiveAbnormalities": 1}},
    "CustomPriority": {
        "evictionOrder": [{"name": name, "nodeSelector": {"matchLabels": {"zone": name}}} for name in ("z0", "z1")],
    },
}


@pytest.mark.feature("DS-CP-01")
def test_a_search_for_the_first_fit_looks_once_at_targets_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pod of a shape began at the first target again: pods times targets, minutes for ten thousand nodes."""
    asked: Counter[str] = Counter()

    def counting(of: type, name: str) -> None:
        real = getattr(of, name, None)
        if real is None:
            return

        def wrapped(*args: Any, **more: Any) -> Any:
            asked[name] += 1
            return real(*args, **more)

        monkeypatch.setattr(of, name, wrapped)

    counting(Columns, "has_room")
    counting(Placeable, "unfit")
    sources, targets = 20, 100
    made = []
    for number in range(sources + targets):
        meta = {"name": f"n{number:03}", "labels": {"zone": "z0" if number < sources else "z1"}}
        node = convert({"metadata": meta, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "110"}}}, Node)
        spec = {"nodeName": meta["name"], "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]}
        metas = [
            {"name": f"p{number}-{each}", "namespace": "d", "uid": f"{number}-{each}"} for each in range(10 if number < sources else 0)
        ]
        made.append(node_view(node, [convert({"metadata": each, "spec": spec}, Pod) for each in metas], None, now=0.0))
    row = registry.PLUGIN_TYPES["CustomPriority"]
    plugin = row.make(row.args.model_validate(ARGS["CustomPriority"]), 60.0)
    turn, answer = plugin.turn(made, Handle("p", "CustomPriority", 0.0, [Counted()])), None
    left: list[str] = []
    while True:
        try:
            effect = turn.send(answer)
        except StopIteration:
            break
        answer = True
        left += [effect.target] if isinstance(effect, Evict) else []
    assert Counter(left) == dict.fromkeys((f"n{number:03}" for number in range(sources, sources + targets)), 2)
    assert sum(asked.values()) <= 2 * (sources * 10 + targets)


@pytest.mark.feature("DS-FIT-01")
def test_pods_of_one_shape_are_compared_with_all_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: Counter[str] = Counter()
    real = Columns._problems

    def counting(*args: Any, **more: Any) -> Any:
        compared["nodes"] += 1
        return real(*args, **more)

    monkeypatch.setattr(Columns, "_problems", counting)
    nodes = views(30, 5, 12)
    columns = Columns(nodes)
    assert all(columns.fits_elsewhere(view) for node in nodes for view in node.pods)
    assert compared["nodes"] == 5


@pytest.mark.feature("DS-FW-01")
def test_a_turn_pauses_by_steps_and_sooner_by_the_clock() -> None:
    now = [0.0]
    handle = Handle("p", "q", 0.0, [], clock=lambda: now[0])
    assert [number for number in range(2 * STEPS) if handle.pause()] == [STEPS - 1, 2 * STEPS - 1]
    paused = 0
    for _ in range(2 * STEPS):
        now[0] += SLICE / 8
        paused += handle.pause()
    assert paused > 2


@pytest.mark.feature("DS-FW-01")
@given(st.lists(st.integers(0, 9)))
def test_what_is_sorted_in_slices_is_in_the_order_of_one_sort(keys: list[int]) -> None:
    runs = Runs[int]()
    for number, key in enumerate(keys):
        runs.add(key, number)
        if number % 3 == 2:
            runs._close()
    assert list(runs.in_order()) == sorted(zip(keys, range(len(keys)), strict=True))


class Counted:
    """A filter that lets every pod go, and counts how often it is asked."""

    name = "counted"

    def __init__(self) -> None:
        self.asked = 0

    def filter(self, pod: Pod) -> str:
        self.asked += 1
        return ""

    def pre_eviction_filter(self, pod: Pod) -> str:
        return ""


def views(nodes: int, workloads: int, replicas: int, *, topology: str = HOSTNAME) -> list[NodeView]:
    """Every workload spreads over hosts and zones, and excludes itself."""
    on: dict[int, list[Pod]] = {number: [] for number in range(nodes)}
    for workload in range(workloads):
        match = {"labelSelector": {"matchLabels": {"app": f"a{workload}"}}}
        spread = [match | {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"} for key in (HOSTNAME, "zone")]
        term = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [match | {"topologyKey": topology}]}}
        for replica in range(replicas):
            where = (workload * 7 + replica * replica) % nodes
            spec = {
                "nodeName": f"n{where:04}",
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}],
                "topologySpreadConstraints": spread,
                "affinity": term,
            }
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"r{workload}", "uid": f"r{workload}", "controller": True}
            meta = {"name": f"p{workload}-{replica}", "namespace": "d", "uid": f"{workload}-{replica}", "ownerReferences": [owner]}
            meta |= {"labels": {"app": f"a{workload}"}, "creationTimestamp": "2026-01-01T00:00:00Z"}
            on[where].append(convert({"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, Pod))
    return [node_view(machine(number), pods, None, now=0.0) for number, pods in on.items()]


def machine(number: int, **spec: Any) -> Node:
    meta = {"name": f"n{number:04}", "uid": f"n{number}", "labels": {HOSTNAME: f"n{number:04}", "zone": f"z{number % 3}"}}
    status = {"allocatable": {"cpu": "64", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return convert({"metadata": meta, "spec": spec, "status": status}, Node)


def plugin(name: str) -> Any:
    row = registry.PLUGIN_TYPES[name]
    return row.make(row.args.model_validate(ARGS.get(name, {})), 60.0)


def effects(name: str, nodes: list[NodeView], evictor: Any) -> list[Any]:
    """Everything that a turn asks for, all of it granted."""
    found: list[Any] = []
    turn = plugin(name).turn(nodes, Handle("p", name, 1e9, [evictor]))
    answer: Any = None
    while True:
        try:
            found.append(turn.send(answer))
        except StopIteration:
            return found
        answer = True


@pytest.mark.feature("DS-FW-01")
@pytest.mark.parametrize("name", sorted(set(registry.PLUGIN_TYPES) - {"ScaleDownBinPack"}))
def test_a_plugin_does_not_look_at_many_pods_without_letting_others_have_their_turn(name: str) -> None:
    evictor = Counted()
    turn = plugin(name).turn(views(120, 240, 6), Handle("p", name, 1e9, [evictor]))
    answer: Any = None
    while True:
        before = evictor.asked
        try:
            turn.send(answer)
        except StopIteration:
            return
        assert evictor.asked - before <= 3 * STEPS
        answer = True


@pytest.mark.feature("DS-K8S-06")
@pytest.mark.feature("DS-K8S-08")
@pytest.mark.parametrize("name", ["RemovePodsViolatingInterPodAntiAffinity", "RemovePodsViolatingTopologySpreadConstraint"])
def test_the_labels_that_are_compared_grow_with_pods_and_not_with_their_square(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: Counter[str] = Counter()
    holds, value = Requirement.holds, selectors.validate_value

    def counting(self: Requirement, labels: Any) -> bool:
        compared["labels"] += 1
        return holds(self, labels)

    def compiling(label: Any) -> str:
        compared["compiled"] += 1
        return value(label)

    monkeypatch.setattr(Requirement, "holds", counting)
    monkeypatch.setattr(selectors, "validate_value", compiling)
    workloads, replicas = 300, 4
    assert any(isinstance(effect, Pause) for effect in effects(name, views(60, workloads, replicas), Counted()))
    assert compared["labels"] <= 12 * workloads * replicas  # 1.4 million when every pod is compared with every other
    assert workloads <= compared["compiled"] <= 4 * workloads  # a term is compiled once, not for each pair of pods


@pytest.mark.feature("DS-K8S-06")
@pytest.mark.feature("DS-K8S-08")
@pytest.mark.parametrize("name", ["RemovePodsViolatingInterPodAntiAffinity", "RemovePodsViolatingTopologySpreadConstraint"])
def test_one_pod_of_each_template_is_looked_at_and_remembered_between_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    workloads, replicas = 30, 40
    nodes = views(60, workloads, replicas)

    class Counting:
        def __init__(self, what: str, real: Any) -> None:
            self.what, self.real = what, real

        def encode(self, thing: Any) -> bytes:
            read[self.what] += 1
            return bytes(self.real.encode(thing))

    for module in ("roles.descheduler.snapshot", "roles.descheduler.nodefit", "roles.descheduler.columns"):
        monkeypatch.setattr(f"{module}._ENCODER", Counting(module.rpartition(".")[2], import_module(module)._ENCODER))
    snapshots = Snapshots()
    for first in (True, False):
        read.clear()
        snapshots.begin()
        again = [snapshots.node(node.node, node.everyone, None, now=0.0) for node in nodes]
        assert any(isinstance(effect, Evict) for effect in effects(name, again, Counted()))
        assert read["snapshot"] == (workloads * replicas if first else 0)
        assert (0 < read["nodefit"] <= workloads) if first else not read["nodefit"]  # one for each rule of a template
        assert read["columns"] <= 2 * workloads


def term_matches(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Whether another pod is one that the term means. A selector that cannot be read means none."""
    try:
        selector = from_label_selector(term.label_selector)
    except SelectorError:
        return False
    return other.metadata.namespace in (term.namespaces or (owner.metadata.namespace,)) and selector.matches(other.metadata.labels)


def unfit(one: Placeable, target: NodeView) -> bool:
    """Whether the pod does not fit by the rule of Koordinator's plugins."""
    return target.node.spec.unschedulable or bool(one.suits(target) or one.room(target))


def excluded_one_by_one(nodes: list[NodeView]) -> list[str]:
    """The rule as it is written: every pod beside every other."""
    present = [(view.pod, node) for node in nodes for view in node.pods]
    found = []
    for pod, node in list(present):
        for term in anti_affinity_terms(pod):
            value = node.node.metadata.labels.get(term.topology_key)
            together = [
                other
                for other, beside in present
                if other is not pod and (beside is node or (value and beside.node.metadata.labels.get(term.topology_key) == value))
            ]
            if any(term_matches(term, pod, other) for other in together):
                found.append(pod.metadata.name)
                present = [entry for entry in present if entry[0] is not pod]
                break
    return sorted(found)


@pytest.mark.feature("DS-K8S-06")
@pytest.mark.parametrize("topology", [HOSTNAME, "zone", "rack"])
def test_anti_affinity_by_index_finds_what_comparing_all_pairs_finds(topology: str) -> None:
    nodes = views(9, 12, 5, topology=topology)
    found = [
        effect.pod.metadata.name
        for effect in effects("RemovePodsViolatingInterPodAntiAffinity", nodes, Counted())
        if isinstance(effect, Evict)
    ]
    assert sorted(found) == excluded_one_by_one(nodes)
    assert found


NODES = st.lists(
    st.fixed_dictionaries(
        {
            "cpu": st.sampled_from(["1", "2", "4"]),
            "pods": st.sampled_from(["1", "2", "9"]),
            "labels": st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from(["a", "b"])),
            "taints": st.lists(st.sampled_from([("k", "NoSchedule"), ("l", "NoExecute"), ("m", "PreferNoSchedule")]), unique=True),
            "cordoned": st.booleans(),
            "held": st.lists(st.sampled_from(["500m", "1"]), max_size=3),
            "places": st.integers(0, 2),
        }
    ),
    min_size=1,
    max_size=6,
)
CONTAINERS: list[list[Obj]] = [
    [],
    [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1"}}}],
    [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}],
]
NEEDS_A_DISK = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}
NOT_BESIDE_X = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPECS = st.fixed_dictionaries(
    {
        "containers": st.sampled_from(CONTAINERS),
        "nodeSelector": st.sampled_from([{}, {"zone": "a"}]),
        "tolerations": st.sampled_from([[], [{"key": "k", "operator": "Exists"}], [{"operator": "Exists", "effect": "NoExecute"}]]),
        "affinity": st.sampled_from([{}, {"nodeAffinity": {REQUIRED: NEEDS_A_DISK}}, {"podAntiAffinity": {REQUIRED: [NOT_BESIDE_X]}}]),
    }
)


def placed(number: int, given: Obj, *more: Pod) -> NodeView:
    name = f"n{number}"
    spec = {"unschedulable": given["cordoned"], "taints": [{"key": key, "effect": effect} for key, effect in given["taints"]]}
    status = {"allocatable": {"cpu": given["cpu"], "memory": "1Gi", "pods": given["pods"]}}
    pods = [
        convert(
            {
                "metadata": {
                    "name": f"{name}-{index}",
                    "namespace": "d",
                    "uid": f"{name}-{index}",
                    "labels": {"app": "x" if index else "y"},
                },
                "spec": {
                    "nodeName": name,
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
                    "affinity": {"podAntiAffinity": {REQUIRED: [NOT_BESIDE_X]}} if index == 2 else None,
                },
            },
            Pod,
        )
        for index, cpu in enumerate(given["held"])
    ]
    view = node_view(
        convert({"metadata": {"name": name, "labels": given["labels"]}, "spec": spec, "status": status}, Node), [*pods, *more], None, now=0
    )
    for _ in range(given["places"]):
        view.expect({"cpu": 250}, {"cpu": 250}, prod=True)
    return view


def kept_apart(pod: Pod, target: NodeView, nodes: list[NodeView]) -> bool:
    """Whether the scheduler would keep the pod off the node for required anti-affinity: the pod's own, or that of pods there."""

    def together(key: str, other: NodeView) -> bool:
        return key in target.node.metadata.labels and target.node.metadata.labels[key] == other.node.metadata.labels.get(key)

    return any(
        together(term.topology_key, node) and term_matches(term, owner, meant)
        for node in nodes
        for view in node.pods
        if view.pod is not pod
        for owner, meant in ((pod, view.pod), (view.pod, pod))
        for term in anti_affinity_terms(owner)
    )


@pytest.mark.feature("DS-FIT-01")
@examples(199)
@given(given_nodes=NODES, spec=SPECS, own=st.integers(0, 6), taken=st.booleans())
def test_a_table_of_nodes_answers_as_each_node_does(given_nodes: list[Obj], spec: Obj, own: int, taken: bool) -> None:
    pod = convert(
        {"metadata": {"name": "p", "namespace": "d", "uid": "p", "labels": {"app": "x"}}, "spec": {"nodeName": f"n{own}", **spec}}, Pod
    )
    nodes = [placed(number, given, *([pod] if number == own else [])) for number, given in enumerate(given_nodes)]
    columns = Columns(nodes)
    view: PodView = columns.view_of(pod) or node_view(convert({"metadata": {"name": "x"}}, Node), [pod], None, now=0.0).pods[0]
    columns.elsewhere(view)
    columns.elsewhere(view, community=True)  # what is remembered must follow the pods that leave
    columns.fits_elsewhere(view)
    if taken and (full := next((node for node in nodes if node.pods), None)) is not None:
        full.take(full.pods[-1].pod.metadata.uid)
    one = Placeable(view)
    others = [node for node in nodes if node.name != f"n{own}"]
    fit = [node for node in others if not unfit(one, node) and not kept_apart(pod, node, nodes)]
    assert columns.elsewhere(view) == next((node.name for node in fit), "")
    assert np.flatnonzero(columns.fitting(view, columns.rows(nodes))).tolist() == [nodes.index(node) for node in fit]
    assert sum(columns.why_not(view, community=False).values()) == len(others) - len(fit)
    by_the_community = next((node.name for node in others if not one.community_unfit(node)), "")
    assert columns.elsewhere(view, community=True) == by_the_community
    assert columns.fits_elsewhere(view) == bool(by_the_community)
    assert columns.anywhere(view) == next((node.name for node in nodes if not one.community_unfit(node)), "")
    assert sum(columns.why_not(view).values()) == sum(1 for node in others if one.community_unfit(node))


@pytest.mark.feature("DS-FIT-01")
def test_a_pod_slot_that_is_held_for_another_pod_is_not_free() -> None:
    given = {"cpu": "4", "labels": {}, "taints": [], "cordoned": False, "held": []}
    pod = convert({"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "spec": {"nodeName": "n0"}}, Pod)
    nodes = [placed(0, {**given, "pods": "9", "places": 0}, pod), placed(1, {**given, "pods": "1", "places": 1})]
    columns = Columns(nodes)
    (view,) = nodes[0].pods
    assert columns.elsewhere(view, community=True) == ""
    assert not columns.fits_elsewhere(view)
    assert columns.why_not(view) == {"it has no free pod slot": 1}
    assert not columns.has_room(1, {"pods": 1})


def given_up_one_by_one(nodes: list[NodeView]) -> list[str]:
    """The rule as it is written: every node and every pod looked at by itself."""
    rows = [(view, row) for row, node in enumerate(nodes) for view in node.pods]
    spreads: dict[object, Spread] = {}
    for view, _ in rows:
        for constraint in view.pod.spec.topology_spread_constraints:
            spread = Spread(constraint, view.pod)
            spreads.setdefault(spread.identity, spread)
    left: dict[str, None] = {}
    for spread in spreads.values():
        counted = [node for node in nodes if spread.topology_key in node.node.metadata.labels and spread.counts(node.node)]
        values = sorted({node.node.metadata.labels[spread.topology_key] for node in counted})
        on = {node.name: values.index(node.node.metadata.labels[spread.topology_key]) for node in counted}
        domains = [Domain(number) for number in range(len(values))]
        for number, (view, row) in enumerate(rows):
            if nodes[row].name in on and spread.selector.matches(view.pod.metadata.labels):
                domains[on[nodes[row].name]].pods.append(number)
        domains.sort(key=lambda domain: (len(domain.pods), domain.number))
        if not domains or len(domains[-1].pods) - len(domains[0].pods) <= spread.max_skew:
            continue
        average = sum(len(domain.pods) for domain in domains) / len(domains)
        small = {domain.number for domain in domains if len(domain.pods) < average}

        def takes(number: int, domain: int, on: dict[str, int] = on) -> bool:
            view, row = rows[number]
            return any(
                on.get(node.name) == domain and node is not nodes[row] and not Placeable(view).community_unfit(node) for node in nodes
            )

        fit = {number for number in range(len(rows)) if any(takes(number, domain) for domain in small)}
        for domain in domains:
            if len(domain.pods) > average:
                keys = {}
                for number in domain.pods:
                    view, row = rows[number]
                    bound = bool(view.pod.spec.node_selector) or bool(view.pod.spec.affinity and view.pod.spec.affinity.node_affinity)
                    keys[number] = (number in fit, not bound, -(view.pod.spec.priority or 0), row, view.pod.metadata.name)
                domain.pods.sort(key=keys.__getitem__)
        gone = moves(domains, average, spread.max_skew, spread.most(len(values)), takes)
        left |= dict.fromkeys(rows[number][0].pod.metadata.name for number in gone if number in fit)
    return list(left)


WORKLOADS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["zone", "disk", HOSTNAME]),
            "skew": st.integers(1, 2),
            "domains": st.sampled_from([None, 2, 3]),
            "policies": st.sampled_from([{}, {"nodeAffinityPolicy": "Ignore"}, {"nodeTaintsPolicy": "Honor"}]),
            "specs": st.tuples(SPECS, SPECS),
            "where": st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=2, max_size=9),
        }
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.feature("DS-K8S-08")
@examples(99)
@given(given_nodes=NODES, workloads=WORKLOADS)
def test_topology_spread_by_columns_finds_what_looking_at_every_node_finds(given_nodes: list[Obj], workloads: list[Obj]) -> None:
    named = [{**given, "held": [], "labels": {**given["labels"], HOSTNAME: f"n{number}"}} for number, given in enumerate(given_nodes)]
    machines = [placed(number, given) for number, given in enumerate(named)]
    on: dict[int, list[Pod]] = {number: [] for number in range(len(machines))}
    for number, workload in enumerate(workloads):
        match = {"labelSelector": {"matchLabels": {"app": f"a{number}"}}, "topologyKey": workload["key"], "maxSkew": workload["skew"]}
        constraint = {**match, "whenUnsatisfiable": "DoNotSchedule", "minDomains": workload["domains"], **workload["policies"]}
        for index, (where, priority) in enumerate(workload["where"]):
            row = where % len(machines)
            meta = {"name": f"p{number}-{index}", "namespace": "d", "uid": f"{number}-{index}", "labels": {"app": f"a{number}"}}
            spec = {**workload["specs"][index % 2], "nodeName": f"n{row}", "priority": priority, "topologySpreadConstraints": [constraint]}
            on[row].append(convert({"metadata": meta, "spec": spec, "status": {"phase": "Running", "qosClass": "Burstable"}}, Pod))
    nodes = [node_view(machine.node, on[row], None, now=0.0) for row, machine in enumerate(machines)]
    wanted = given_up_one_by_one(nodes)
    found = effects("RemovePodsViolatingTopologySpreadConstraint", nodes, Counted())
    assert [effect.pod.metadata.name for effect in found if isinstance(effect, Evict)] == wanted


RULES = st.one_of(
    st.fixed_dictionaries(
        {"operator": st.sampled_from(["In", "NotIn"]), "values": st.lists(st.sampled_from(["a", "b", "7", "n1"]), min_size=1)}
    ),
    st.fixed_dictionaries({"operator": st.sampled_from(["Exists", "DoesNotExist"])}),
    st.fixed_dictionaries({"operator": st.sampled_from(["Gt", "Lt"]), "values": st.sampled_from([["3"], ["7"]])}),
)


@pytest.mark.feature("DS-FIT-01")
@given(
    labels=st.lists(st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from(["a", "b", "7"])), min_size=1, max_size=5),
    rules=st.lists(st.lists(st.tuples(st.sampled_from(["zone", "disk"]), RULES), max_size=2), max_size=2),
    field=st.sampled_from([None, "In", "NotIn"]),
    selector=st.sampled_from([{}, {"zone": "a"}, {"zone": "a", "disk": "7"}]),
)
def test_columns_of_labels_answer_as_each_node_does(labels: list[Obj], rules: list[Any], field: str | None, selector: Obj) -> None:
    terms: list[Obj] = [{"matchExpressions": [{"key": key, **rule} for key, rule in term]} for term in rules]
    if field is not None:
        terms.append({"matchFields": [{"key": "metadata.name", "operator": field, "values": ["n1"]}]})
    nodes = [
        node_view(convert({"metadata": {"name": f"n{row}", "labels": each}}, Node), [], None, now=0) for row, each in enumerate(labels)
    ]
    pod = convert({"metadata": {"name": "p"}, "spec": {"nodeSelector": selector}}, Pod)
    affinity = selectors.node_selector(terms)
    suited = NodeLabels(nodes).suited(selector, affinity).tolist()
    assert suited == [not Placeable.affinity_problem(pod, node.node, affinity) for node in nodes]
