"""A plugin that looks at more than it says is found, named, counted and asked anew; its wrong answers are not given (SCH-FW-07)."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any, ClassVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from roles.scheduler import testing
from roles.scheduler.cluster.changes import NODE
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, unschedulable
from roles.scheduler.metrics import SchedulerMetrics

pytestmark = [pytest.mark.feature("SCH-FW-07"), pytest.mark.differs]

POINTS = ("preFilter", "filter", "preScore", "score")


class Probe(api.Plugin):
    name = "Probe"

    def rejection(self, ctx: Any, code: int) -> api.Rejection:
        return api.Rejection(("no",))


def world(plugin: type[Any], *, verify: int = 0, nodes: int = 3) -> testing.World:
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "Probe"}]}
    interfaces = {"preFilter": api.PreFilter, "filter": api.Filter, "preScore": api.PreScore, "score": api.Score}
    points = {point: only for point, kind in interfaces.items() if issubclass(plugin, kind)}
    points.setdefault("score", {"disabled": [{"name": "*"}]})
    profile = {"plugins": {**points, "postFilter": {"disabled": [{"name": "*"}]}}}
    found = testing.World(profile, plugins=(plugin,), verify=verify)
    found.add_nodes(*(testing.node(f"n{number}") for number in range(nodes)))
    return found


class ByName(Probe, api.Filter):
    def filter(self, ctx: Any, rows: Any) -> Any:
        return np.full(ctx.cluster.capacity, ctx.pod.name.endswith("odd"))[rows]


class RowByName(Probe, api.Filter):
    row_wise = True

    def filter_row(self, ctx: Any, slot: int) -> int:
        return int(ctx.pod.key.endswith("odd"))


class ByUid(Probe, api.PreFilter):
    def pre_filter(self, ctx: Any) -> Status:
        return unschedulable("odd") if ctx.pod.metadata.name.endswith("odd") else SUCCESS


@pytest.mark.parametrize("plugin", [ByName, RowByName, ByUid])
def test_a_plugin_that_looks_at_the_pod_itself_is_asked_for_each_pod(plugin: type[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Nothing has to be compared for that: the first look gives it away."""
    found = world(plugin)
    told: list[str] = []
    found.framework.trust.told = lambda name, why: told.append(name)
    verdicts = [found.schedule(testing.pod(name)).verdict for name in ("a-even", "b-odd", "c-even", "d-odd", "e-even")]
    assert verdicts == ["Scheduled", "Unschedulable", "Scheduled", "Unschedulable", "Scheduled"]
    assert told == ["Probe"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "plugin Probe is evaluated for each pod from now on: it looks at pod." in caplog.text


def test_scores_likewise() -> None:
    class Favourite(Probe, api.PreScore, api.Score):
        def pre_score(self, ctx: Any) -> Status:
            return SUCCESS

        def score_row(self, ctx: Any, slot: int) -> float:
            return 100.0 if ctx.cluster.name_of(slot) == ctx.pod.name else 0.0

    found = world(Favourite)
    assert [found.schedule(testing.pod(name)).node for name in ("n1", "n2", "n0", "n1")] == ["n1", "n2", "n0", "n1"]


def test_one_that_declares_what_it_looks_at_is_kept() -> None:
    class Declared(ByName):
        asked: ClassVar[list[str]] = []

        def shape_key(self, pod: PodInfo) -> Hashable:
            return pod.name.endswith("odd")

        def filter(self, ctx: Any, rows: Any) -> Any:
            self.asked.append(ctx.pod.name)
            return super().filter(ctx, rows)

    found = world(Declared, verify=1)
    assert [found.decide(testing.pod(f"{number}-{kind}")).scheduled for number in range(2) for kind in ("odd", "even")] == [False, True] * 2
    assert not found.framework.trust.unkept


def test_labels_count_where_pods_of_a_shape_differ_in_them() -> None:
    class ByLabel(Probe, api.Filter):
        def filter(self, ctx: Any, rows: Any) -> Any:
            return np.full(ctx.cluster.capacity, ctx.pod.labels.get("pod-index") == "1" or ctx.pod.labels.get("app") == "no")[rows]

    found = world(ByLabel)
    assert [found.decide(testing.pod(labels={"app": app})).scheduled for app in ("yes", "no", "yes")] == [True, False, True]
    assert not found.framework.trust.unkept
    labels = ({"apps.kubernetes.io/pod-index": number, "app": "yes"} for number in "01")
    assert all(found.decide(testing.pod(labels=one)).scheduled for one in labels)


class Stale(Probe, api.Filter):
    """Says that it looks at nodes, and looks at pods."""

    reads = NODE

    def filter(self, ctx: Any, rows: Any) -> Any:
        return ctx.cluster.pod_slots[rows] < 110


def test_a_plugin_that_reads_more_than_it_says_is_named_and_its_cache_dropped(caplog: pytest.LogCaptureFixture) -> None:
    found = world(Stale, verify=1)
    registry = CollectorRegistry()
    found.framework.trust.told = SchedulerMetrics(registry).differed
    assert {found.schedule(testing.pod()).node for _ in range(3)} == {"n0", "n1", "n2"}
    assert not found.decide(testing.pod()).scheduled
    assert registry.get_sample_value("scheduler_plugin_differences_total", {"plugin": "Probe"}) == 1.0
    assert "it refuses node n" in caplog.text


def test_a_score_without_its_stamp_is_found() -> None:
    class Clock(Probe, api.PreScore, api.Score):
        score_reads = 0

        def pre_score(self, ctx: Any) -> Status:
            return SUCCESS

        def score(self, ctx: Any, rows: Any) -> Any:
            return (ctx.cluster.slots[rows] == int(ctx.now) % 3) * 100.0

    found = world(Clock, verify=2)
    went = []
    for now in (0, 1, 2, 1, 0):
        found.state.now = float(now)
        went.append(found.schedule(testing.pod()).node)
    assert went[1:] == ["n1", "n2", "n1", "n0"]  # from the second decision on: it was the first that was compared
    assert found.framework.trust.unkept.keys() == {"Probe"}


def test_built_in_plugins_never_differ() -> None:
    found = testing.World(verify=1)
    found.add_nodes(*(testing.node(f"n{number}", cpu="4") for number in range(8)))
    for number in range(40):
        found.schedule(testing.pod(cpu=f"{number % 4 + 1}00m", ports=[{"containerPort": 80, "hostPort": 80}] if number % 5 == 0 else ()))
    assert not found.framework.trust.unkept


class ByAnnotation(Probe, api.Filter):
    def filter(self, ctx: Any, rows: Any) -> Any:
        return np.full(ctx.cluster.capacity, ctx.pod.pod.metadata.annotations.get("example.com/keep-off") == "true")[rows]


def test_a_plugin_of_others_sees_annotations_of_others() -> None:
    """Nobody else reads them, so they are not kept without such a plugin."""
    made = world(ByAnnotation)
    verdicts = [made.decide(testing.pod(annotations={"example.com/keep-off": value})).scheduled for value in ("true", "false", "true")]
    assert verdicts == [False, True, False]
    plain = testing.World().parser.parse(testing.pod(annotations={"example.com/keep-off": "true"}))
    assert not plain.pod.metadata.annotations


class Prepares(Probe, api.PreFilter, api.Filter):
    """As plugins of kube-scheduler do: what is found out about the pod first, its filter uses."""

    per_pod = True

    def pre_filter(self, ctx: Any) -> Status:
        if ctx.pod.name.startswith("refused"):
            return unschedulable("refused")
        ctx.data[self.name] = ctx.pod.name.endswith("odd")
        return SKIP if ctx.pod.name.startswith("any") else SUCCESS

    def filter(self, ctx: Any, rows: Any) -> Any:
        return np.full(ctx.cluster.capacity, ctx.data[self.name])[rows]


class PreparesScores(Probe, api.PreFilter, api.PreScore, api.Score):
    per_pod = True

    def pre_filter(self, ctx: Any) -> Status:
        if ctx.pod.name.startswith("refused"):
            return unschedulable("refused")
        ctx.data[self.name] = ctx.pod.name
        return SUCCESS

    def pre_score(self, ctx: Any) -> Status:
        return SKIP if ctx.data[self.name] == "anywhere" else SUCCESS

    def score_row(self, ctx: Any, slot: int) -> float:
        return 100.0 if ctx.cluster.name_of(slot) == ctx.data[self.name] else 0.0


@pytest.mark.parametrize("verify", [0, 1])
def test_what_a_pre_filter_finds_out_about_the_pod_itself_is_of_this_pod(verify: int) -> None:
    found = world(Prepares, verify=verify)
    pods = ("refused-1", "even", "odd", "any-odd", "odd", "refused-2", "even", "any-even", "odd")
    verdicts = [found.schedule(testing.pod(name)).scheduled for name in pods]
    assert verdicts == [not (name == "odd" or name.startswith("refused")) for name in pods]
    assert found.decide(testing.pod("refused-3")).message() == "0/3 nodes are available: refused."
    scores = world(PreparesScores, verify=verify)
    pods = ("n1", "refused", "n2", "anywhere", "n0", "n1")
    nodes = [scores.schedule(testing.pod(name)).node for name in pods]
    assert [node for name, node in zip(pods, nodes, strict=True) if name != "anywhere"] == ["n1", "", "n2", "n0", "n1"]


def test_a_key_that_says_nothing_of_what_is_looked_at_is_not_believed() -> None:
    class Wrong(ByName):
        def shape_key(self, pod: PodInfo) -> Hashable:
            return pod.namespace

    found = world(Wrong)
    assert [found.decide(testing.pod(f"{number}-{kind}")).scheduled for number in range(2) for kind in ("odd", "even")] == [False, True] * 2
    assert found.framework.trust.unkept.keys() == {"Probe"}
