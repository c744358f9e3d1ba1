"""What is kept follows the nodes and objects that there are, and an event moves what it concerns only (SCH-FW-04)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koord.api.kinds import NODERESOURCETOPOLOGIES
from koord.api.objects import Node, NodeResourceTopology
from roles.scheduler import testing
from roles.scheduler.cluster import labels
from roles.scheduler.cluster.audit import recount
from roles.scheduler.cluster.interning import Counted
from roles.scheduler.cycle import cycle
from roles.scheduler.observing.observer import _node_matters
from roles.scheduler.plugins.coscheduling import metrics as gang_metrics


@pytest.mark.feature("SCH-FW-04")
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_property_numbers_are_valid_while_held_and_no_more_than_were_held_at_a_time(steps: list[tuple[bool, int]]) -> None:
    numbers, held, most = Counted[str]("nothing"), [], 0
    for takes, which in steps:
        if takes:
            held.append((f"v{which}", numbers.hold(f"v{which}")))
        elif held:
            numbers.let_go(held.pop(which % len(held))[1])
        assert all(numbers[number] == value and numbers.find(value) == number for value, number in held)
        most = max(most, len({value for value, _ in held}))
        assert len(numbers) <= most + 1
    for _, number in held:
        numbers.let_go(number)
    assert list(numbers) == ["nothing"]


@pytest.mark.feature("SCH-FW-04")
def test_an_autoscaled_cluster_grows_no_columns() -> None:
    made = testing.World()
    column = made.cluster.labels.column("kubernetes.io/hostname")
    for generation in range(50):
        names = [f"g{generation}-{number}" for number in range(4)]
        taint = {"key": "owner", "value": str(generation), "effect": "NoSchedule"}
        made.add_nodes(*(testing.node(name, taints=[taint]) for name in names))
        spread = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                  "labelSelector": {"matchLabels": {"app": "a"}}}  # fmt: skip
        tolerations = [{"key": "owner", "operator": "Equal", "value": str(generation)}]
        pods = [testing.pod(labels={"app": "a"}, topologySpreadConstraints=[spread], tolerations=tolerations) for _ in range(4)]
        placed = [made.schedule(item) for item in pods]
        assert sorted(decision.node for decision in placed) == names
        assert f"untolerated taint {{owner: {generation}}}" in made.decide(testing.pod()).message()
        assert recount(made.cluster) == []
        for decision in placed:
            made.cluster.remove_pod(decision.pod.uid)
        for name in names:
            made.cluster.remove_node(name)
    assert len(column.values) <= 5
    assert len(made.vocabulary.taint_sets) <= 2


@pytest.mark.feature("SCH-FW-04")
def test_resources_that_no_node_offers_take_no_columns() -> None:
    """Whoever may create pods may make names up."""
    made = testing.World()
    made.add_nodes(testing.node("n", **{"example.com/real": "2"}))

    def columns() -> int:
        return len({id(column) for of_kind in (made.cluster.allocatable, made.cluster.free, made.cluster.divisor) for column in of_kind})

    for number in range(100):
        asked = {f"example.com/made-up-{number}": "1"}
        assert f"1 Insufficient example.com/made-up-{number}" in made.decide(testing.pod(requests=asked)).message()
        (forced,) = made.add_pods(testing.pod(node="n", requests=asked))  # by its author; the kubelet will refuse it
        assert made.cluster.free[made.vocabulary.resources.find(f"example.com/made-up-{number}")].sum() == -1
        assert recount(made.cluster) == []
        made.cluster.remove_pod(forced.uid)
    assert columns() < 3 * 40

    asked = {"example.com/made-up-3": "1"}
    made.add_nodes(testing.node("m", **{"example.com/made-up-3": "1"}))
    made.cluster.reserve(made.cluster.capacity + 1)
    assert made.schedule(testing.pod(requests=asked)).node == "m"
    assert "2 Insufficient example.com/made-up-3" in made.decide(testing.pod(requests=asked)).message()
    assert recount(made.cluster) == []
    made.cluster.remove_node("m")
    assert "1 Insufficient example.com/made-up-3" in made.decide(testing.pod(requests=asked)).message()


class Looks(list[int]):
    """Counts the looks at its items."""

    looked = 0

    def __getitem__(self, index: Any) -> Any:
        self.looked += 1
        return super().__getitem__(index)


@pytest.mark.feature("SCH-FW-04")
def test_a_resource_that_pods_bring_costs_no_look_at_all_others() -> None:
    made = testing.World()
    made.add_nodes(testing.node("n"))
    looks = made.cluster.providers = Looks(made.cluster.providers)
    made.add_pods(*(testing.pod(node="n", requests={f"example.com/made-up-{number}": "1"}) for number in range(200)))
    assert looks.looked < 5 * 200
    assert recount(made.cluster) == []


@pytest.mark.feature("SCH-FW-04")
def test_a_heartbeat_is_no_change() -> None:
    def beat(minute: int, status: str = "True") -> Node:
        made = msgspec.to_builtins(testing.node("n"))
        condition = {"type": "Ready", "status": status, "lastHeartbeatTime": f"2026-11-22T03:{minute:02d}:00Z"}
        made["status"]["conditions"] = [condition]
        return msgspec.convert(made, Node)

    assert not _node_matters(beat(1), beat(2))
    assert _node_matters(beat(1), beat(2, "False"))


@pytest.mark.feature("SCH-FW-04")
@pytest.mark.parametrize("what", [{"podCIDR": "10.0.0.0/24"}, {"podCIDRs": ["10.0.0.0/24"]}, {"providerID": "cloud://1"}])
def test_what_cloud_and_network_controllers_write_is_no_change(what: dict[str, Any]) -> None:
    made = msgspec.to_builtins(testing.node("n"))
    assert not _node_matters(msgspec.convert(made, Node), msgspec.convert({**made, "spec": {**made["spec"], **what}}, Node))
    tainted = {**made["spec"], "taints": [{"key": "k", "effect": "NoSchedule"}]}
    assert _node_matters(msgspec.convert(made, Node), msgspec.convert({**made, "spec": tainted}, Node))


@pytest.mark.feature("SCH-FW-04")
def test_a_small_cluster_keeps_no_more_of_many_shapes_than_a_large_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(cycle, "_CACHE_BYTES", 1 << 20)
    made = testing.World()
    made.add_nodes(testing.node("n"))
    for number in range(200):
        made.decide(testing.pod(labels={"job": str(number)}))
    assert len(made.cycle._evaluations) <= 64


@pytest.mark.feature("SCH-GANG-06")
def test_series_of_jobs_that_were_told_longest_ago_go(monkeypatch: Any) -> None:
    monkeypatch.setattr(gang_metrics, "_JOBS", 3)
    registry = CollectorRegistry()
    metrics = gang_metrics.GangMetrics(registry)
    for job in ("a", "b", "a", "c", "d", "e", "a"):
        metrics.preempted(job, "failure", 1.0)
    (family,) = (family for family in registry.collect() if family.name == "scheduler_job_preemption_duration_seconds")
    assert {sample.labels["jobName"] for sample in family.samples} == {"d", "e", "a"}


@pytest.mark.feature("SCH-FW-04")
def test_a_topology_that_tells_only_who_has_which_cpus_is_no_change() -> None:
    numa = {"enabled": [{"name": "NodeNUMAResource"}]}
    made = testing.World({"plugins": dict.fromkeys(("preFilter", "filter", "reserve"), numa)})
    made.add_nodes(testing.node("n"))
    (feed,) = (feed for plugin in made.framework.plugins.values() for feed in plugin.feeds() if feed.kind is NODERESOURCETOPOLOGIES)

    def report(zones: int, allocated: str = "[]") -> NodeResourceTopology:
        annotations = {"node.koordinator.sh/pod-cpu-allocs": allocated}
        resources = [{"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}]
        told = [{"name": f"node-{number}", "type": "Node", "resources": resources} for number in range(zones)]
        return msgspec.convert({"metadata": {"name": "n", "annotations": annotations}, "zones": told}, NodeResourceTopology)

    assert feed.observe(None, report(1)) is not False
    position = made.cluster.changes.position
    assert feed.observe(report(1), report(1, '[{"name": "p", "cpuset": "0"}]')) is False  # nobody is woken for it
    assert made.cluster.changes.position == position
    assert feed.observe(report(1), report(2)) is not False
    assert made.cluster.changes.position > position


@pytest.mark.feature("SCH-KS-07")
def test_a_service_rebuilds_only_the_vectors_of_pods_that_it_selects(monkeypatch: Any) -> None:
    made = testing.World(verify=0)  # which would build afresh, too
    made.add_nodes(*(testing.node(f"n{number}", labels={"topology.kubernetes.io/zone": "z"}) for number in range(4)))
    apps = [testing.pod(labels={"app": f"a{number}"}) for number in range(5)]
    for item in apps:
        made.decide(item)
    built: list[int] = []
    kind = type(next(iter(made.cycle._evaluations.values())))
    build = kind._build

    def counted(self: Any, ctx: Any) -> None:
        built.append(1)
        build(self, ctx)

    monkeypatch.setattr(kind, "_build", counted)
    made.feed("Service", {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "a0"}}})
    made.feed("Service", {"metadata": {"name": "t", "namespace": "elsewhere"}, "spec": {"selector": {"app": "a1"}}})
    for item in apps:
        made.decide(item)
    assert len(built) == 1


@pytest.mark.feature("SCH-FW-04")
def test_columns_of_label_keys_that_nobody_asks_for_any_more_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs may select nodes by keys of their own; what is dropped is filled again for who asks."""
    monkeypatch.setattr(labels, "_BYTES", 0)
    made = testing.World()
    columns = made.cluster.labels._columns
    for number in range(300):
        made.add_nodes(testing.node(f"n{number % 3}", labels={f"key-{number}": "yes", "number": str(number)}))
        assert made.decide(testing.pod(nodeSelector={f"key-{number}": "yes"})).node == f"n{number % 3}"
    assert len(columns) <= 64
    for number, found in ((298, "n1"), (299, "n2"), (100, "")):
        assert made.decide(testing.pod(cpu="2", nodeSelector={f"key-{number}": "yes"})).node == found
    made.cluster.remove_node("n2")
    assert made.decide(testing.pod(cpu="3", nodeSelector={"key-299": "yes"})).node == ""
    assert recount(made.cluster) == []
