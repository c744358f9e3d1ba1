"""Victims worked out on many nodes at once are those that trying each node by itself finds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import NodeMetric, PodDisruptionBudget
from koord.api.times import format_time
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.framework.gangs import GangGroup, NoGangs, Part
from roles.scheduler.plugins import default_preemption
from roles.scheduler.plugins.default_preemption import DefaultPreemption
from roles.scheduler.plugins.lockstep import Lockstep
from tests.roles.scheduler.reservation.worlds import ALLOCATED, placed, profile
from tests.support.examples import examples

NOW = 1_000_000.0
LIMITS = {"usageThresholds": {"cpu": 80, "memory": 90}, "prodUsageThresholds": {"cpu": 60}}
PROD = {"koordinator.sh/priority-class": "koord-prod"}


def world() -> testing.World:
    content = profile()
    for point in ("filter", "reserve"):
        content["plugins"][point]["enabled"] += [{"name": "LoadAwareScheduling"}, {"name": "NodeNUMAResource"}]
    content["plugins"]["postFilter"] = {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultPreemption"}]}
    content["pluginConfig"].append({"name": "LoadAwareScheduling", "args": LIMITS})
    found = testing.World(content, now=NOW)
    found.handle.all_candidates = True
    return found


class Jobs(NoGangs):
    """Pods with the label `job`; a job may lose all but two."""

    def __init__(self, pods: list[PodInfo]) -> None:
        self.members = tuple(pod for pod in pods if "job" in pod.labels)

    def of(self, pod: PodInfo) -> str:
        return pod.labels.get("job", "")

    def group(self, job: str) -> GangGroup:
        return GangGroup(job, (Part(job, self.members, 2),))


def report(draw: random.Random, name: str, pods: list[PodInfo]) -> dict[str, Any]:
    here = [pod for pod in pods if pod.node_name == name and draw.random() < 0.7]
    return {
        "metadata": {"name": name}, "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": {
            "updateTime": format_time(NOW - draw.choice((-90, 0, 0, 500))),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": f"{draw.randrange(7000)}m", "memory": f"{draw.randrange(8)}Gi"}}},
            "podsMetric": [
                {"namespace": pod.namespace, "name": pod.name, "priority": draw.choice(("koord-prod", "koord-batch")),
                 "podUsage": {"resources": {"cpu": f"{draw.randrange(2000)}m"}}} for pod in here
            ],
        },
    }  # fmt: skip


def anti(app: str) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def filled(draw: random.Random) -> testing.World:
    """A small cluster whose nodes are mostly full."""
    found, nodes = world(), draw.randrange(1, 7)
    policy = {"node.koordinator.sh/numa-topology-policy": "BestEffort"}
    for number in range(nodes):
        labels = policy if draw.random() < 0.1 else {}
        found.add_nodes(testing.node(f"n{number}", cpu="8", memory="16Gi", pods=str(draw.randrange(3, 9)), labels=labels))
    pods: list[PodInfo] = []
    for number in range(nodes):
        for _ in range(draw.randrange(7)):
            labels = {"app": draw.choice("ab"), **(PROD if draw.random() < 0.4 else {})}
            labels |= {"job": "j"} if draw.random() < 0.05 else {}
            labels |= {"scheduling.koordinator.sh/disable-preemptible": "true"} if draw.random() < 0.1 else {}
            content = testing.pod(
                cpu=f"{draw.choice((500, 1000, 2000, 3000))}m", memory=f"{draw.randrange(1, 4)}Gi", node=f"n{number}", labels=labels,
                priority=draw.randrange(4), status={"startTime": f"2026-01-01T00:00:{draw.randrange(10):02}Z"},
                affinity=anti(draw.choice("abc")) if draw.random() < 0.03 else None,
            )  # fmt: skip
            if draw.random() < 0.1:
                content.metadata.annotations[ALLOCATED] = f'{{"name": "r{number}", "uid": "r{number}-uid"}}'
            pods += found.add_pods(content)
            pods[-1].deleting = draw.random() < 0.08
    found.state.gangs = Jobs(pods)
    for number in range(nodes):
        if draw.random() < 0.7:
            found.feed("NodeMetric", msgspec.convert(report(draw, f"n{number}", pods), NodeMetric))
        if draw.random() < 0.3:
            found.feed("Reservation", placed(f"r{number}", f"n{number}", cpu="4", memory="4Gi"))
        if draw.random() < 0.15:
            waiting = found.parser.parse(testing.pod(cpu="1", priority=draw.choice((1, 9))))
            found.state.nominations.add(waiting, f"n{number}")
    for app in "ab":
        if draw.random() < 0.5:
            body = {
                "metadata": {"name": app, "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": app}}},
                "status": {"disruptionsAllowed": draw.randrange(3)},
            }  # fmt: skip
            found.feed("PodDisruptionBudget", msgspec.convert(body, PodDisruptionBudget))
    return found


def answers(found: testing.World, pod: PodInfo) -> tuple[Any, ...]:
    found.state.random.seed(7)
    decision = found.decide(pod)
    told = [(c.node, [pod.uid for pod in c.victims], c.violations, c.leaving) for c in decision.candidates]
    return decision.nominate, [pod.uid for pod in decision.victims], told, decision.message()


@contextmanager
def one_by_one() -> Iterator[None]:
    """Each node is tried by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DefaultPreemption, "lockstep", lambda *_: None)
        yield


@pytest.mark.feature("SCH-KS-12")
@examples(30)
@given(seed=st.integers(0, 10**9))
def test_property_the_victims_are_those_that_trying_finds(seed: int) -> None:
    draw = random.Random(seed)
    found = filled(draw)
    for _ in range(4):
        labels = {"app": draw.choice("abc"), **(PROD if draw.random() < 0.5 else {})}
        pod = found.parser.parse(
            testing.pod(cpu=f"{draw.choice((1000, 2500, 6000))}m", memory=f"{draw.randrange(1, 9)}Gi", priority=draw.randrange(1, 8),
                        labels=labels)
        )  # fmt: skip
        together = answers(found, pod)
        with one_by_one():
            assert answers(found, pod) == together


@pytest.mark.feature("SCH-KS-12")
def test_victims_that_matter_as_much_as_each_other_are_told_in_the_order_of_their_node() -> None:
    found = world()
    found.add_nodes(testing.node("n0", cpu="8"))
    pods = [pod.uid for pod in found.add_pods(*(testing.pod(cpu="1", priority=0, node="n0") for _ in range(8)))]
    with one_by_one():
        assert [pod.uid for pod in found.decide(testing.pod(cpu="8", priority=10)).victims] == pods


@pytest.mark.feature("SCH-KS-12")
def test_where_all_filters_add_up_no_node_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_preemption, "_TOGETHER", 7)
    found = world()
    for number in range(30):
        found.add_nodes(testing.node(f"n{number}", cpu="8"))
        found.feed("NodeMetric", msgspec.convert(report(random.Random(number), f"n{number}", []), NodeMetric))
        found.add_pods(*(testing.pod(cpu="2", priority=index, node=f"n{number}") for index in range(4)))
    position = found.cluster.changes.position
    decision = found.decide(testing.pod(cpu="4", priority=10))
    assert len(decision.candidates) > 7
    assert found.cluster.changes.position == position  # a what-if would have moved pods


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize(
    ("spec", "together"),
    [
        ({}, True),
        ({"affinity": anti("a")}, False),
        ({"ports": [{"containerPort": 80, "hostPort": 80}]}, False),
        ({"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                                         "labelSelector": {"matchLabels": {"app": "a"}}}]}, False),
    ],
)  # fmt: skip
def test_pods_whose_filters_look_further_are_tried(spec: dict[str, Any], together: bool) -> None:
    found = world()
    found.add_nodes(testing.node("n", cpu="8", labels={"zone": "z"}))
    found.add_pods(testing.pod(cpu="8", node="n"))
    decision: Decision = found.decide(testing.pod(cpu="8", priority=5, labels={"app": "a"}, **spec))
    assert [victim.node_name for victim in decision.victims] == ["n"]
    assert decision.evaluation is not None
    assert (Lockstep.of(decision.ctx, decision.evaluation) is not None) is together
