"""Vectors kept from pod to pod equal vectors built afresh, with every plugin switched on and everything changing in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.times import format_time
from roles.sandbox.profile import plugin_config, plugins
from roles.scheduler import testing
from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.framework.context import ALL_ROWS, CycleContext
from tests.support.examples import examples

NOW = 1_000_000.0
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
LOAD = {"enabled": [{"name": "LoadAwareScheduling"}]}
PROFILE = {
    "plugins": {"filter": LOAD, "score": LOAD, "reserve": LOAD},
    "pluginConfig": [{"name": "LoadAwareScheduling", "args": {"nodeMetricExpirationSeconds": 100, "dominantResourceWeight": 1}}],
}


def select(app: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}}


def shapes() -> list[dict[str, Any]]:
    def near(kind: str, app: str, key: str, required: bool) -> dict[str, Any]:
        term = {**select(app), "topologyKey": key}
        if required:
            return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term}]}}

    def spread(when: str, key: str) -> list[dict[str, Any]]:
        return [{"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": when, **select("a")}]

    return [
        {"labels": {"app": "a"}, "topologySpreadConstraints": spread("DoNotSchedule", ZONE)},
        {"labels": {"app": "a"}, "topologySpreadConstraints": spread("ScheduleAnyway", ZONE) + spread("ScheduleAnyway", HOST)},
        {"labels": {"app": "b"}, "affinity": near("podAntiAffinity", "b", HOST, True)},
        {"labels": {"app": "b"}, "affinity": near("podAffinity", "a", ZONE, False), "cpu": "300m"},
        {"labels": {"app": "c"}, "affinity": near("podAffinity", "c", ZONE, True), "memory": "3Gi"},
        {"labels": {"app": "b"}, "ports": [{"containerPort": 80, "hostPort": 80}], "tolerations": [{"operator": "Exists"}]},
        {"labels": {"app": "c"}, "image": "big", "cpu": None, "requests": {"example.com/widget": "1"}},
    ]


def node(number: int, kind: int) -> Any:
    taints = [{"key": "k", "value": "v", "effect": ("NoSchedule", "PreferNoSchedule")[kind % 2]}] if kind > 5 else []
    extra = {"example.com__widget": "2"} if kind % 3 == 0 else {}
    labels = {ZONE: "ab"[kind % 2]} if kind != 4 else {}
    images = {"big:latest": 900 << 20} if kind % 4 == 0 else {}
    return testing.node(f"n{number}", cpu=str(2 + kind), labels=labels, taints=taints, images=images, unschedulable=kind == 7, **extra)


def metric(number: int, kind: int) -> dict[str, Any]:
    usage = {"nodeUsage": {"resources": {"cpu": f"{kind * 300}m", "memory": f"{kind}Gi"}}}
    return {"metadata": {"name": f"n{number}"}, "status": {"updateTime": format_time(NOW - 20 * kind), "nodeMetric": usage}}


STEP = st.tuples(
    st.sampled_from(["pod", "pod", "pod", "pod", "assigned", "delete", "node", "remove", "metric", "time"]),
    st.integers(0, 6),
    st.integers(0, 7),
)


def installed() -> dict[str, Any]:
    """The installed profile, where CPU counts twice on whole nodes."""
    config = plugin_config()
    config["NodeResourcesFit"] = {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 2}, {"name": "memory", "weight": 1}]}}
    return {"plugins": plugins(), "pluginConfig": [{"name": name, "args": args} for name, args in config.items()]}


def packing() -> dict[str, Any]:
    """Full nodes first, and resources that not every node has."""
    listed = [{"name": "cpu", "weight": 2}, {"name": "memory", "weight": 1}, {"name": "example.com/widget", "weight": 3}]
    shape = [{"utilization": 0, "score": 0}, {"utilization": 70, "score": 10}, {"utilization": 100, "score": 4}]
    ratio = {"type": "RequestedToCapacityRatio", "resources": listed, "requestedToCapacityRatio": {"shape": shape}}
    config = plugin_config()
    config["NodeResourcesFit"] = {"scoringStrategy": ratio}
    config["NodeResourcesBalancedAllocation"] = {"resources": [{"name": one["name"], "weight": 1} for one in listed]}
    config["NodeNUMAResource"] = {**config.get("NodeNUMAResource", {}), "scoringStrategy": {"type": "MostAllocated", "resources": listed}}
    return {"plugins": plugins(), "pluginConfig": [{"name": name, "args": args} for name, args in config.items()]}


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("profile", [PROFILE, installed(), packing()], ids=["by load", "as installed", "packing"])
@examples(40)
@given(plan=st.lists(STEP, min_size=1, max_size=40))
def test_kept_vectors_equal_fresh_ones(profile: dict[str, Any], plan: list[tuple[str, int, int]]) -> None:
    world = testing.World(profile, now=NOW)
    world.add_nodes(*(node(number, number) for number in range(5)))
    placed: list[str] = []
    templates = shapes()
    for kind, number, value in plan:
        if kind == "pod":
            decision = world.schedule(testing.pod(**templates[number]))
            if decision.scheduled:
                placed.append(decision.pod.uid)
        elif kind == "assigned":
            placed += [info.uid for info in world.add_pods(testing.pod(node=f"n{value}", **templates[number]))]
        elif kind == "delete" and placed:
            world.cluster.remove_pod(placed.pop(value % len(placed)))
        elif kind == "node":
            world.add_nodes(node(number, value))
        elif kind == "remove":
            world.cluster.remove_node(f"n{number}")
        elif kind == "metric":
            world.feed("NodeMetric", metric(number, value))
        elif kind == "time":
            world.state.now += 10 * value
        same_as_fresh(world, templates)
    for template in templates[len(plan) % 3 :: 3]:
        ctx = CycleContext(world.state, world.parser.parse(testing.pod(**template)))
        fresh = Evaluation(world.framework, world.cluster)
        fresh.update(ctx)
        rows_agree(ctx, fresh)


def same_as_fresh(world: testing.World, templates: list[dict[str, Any]]) -> None:
    for template in templates:
        info = world.parser.parse(testing.pod(**template))
        kept = world.cycle.evaluation(world.framework, CycleContext(world.state, info))
        ctx = CycleContext(world.state, info)
        fresh = Evaluation(world.framework, world.cluster)
        fresh.update(ctx)
        assert kept.count == fresh.count
        np.testing.assert_array_equal(kept.feasible, fresh.feasible)
        if fresh.count:
            np.testing.assert_array_equal(kept.totals, fresh.totals)
        for mine, other in zip(kept.filters, fresh.filters, strict=True):
            for slot in np.flatnonzero(world.cluster.alive).tolist():
                assert bool(mine.code(slot)) == bool(other.code(slot)), mine.plugin.name


def rows_agree(ctx: CycleContext, fresh: Evaluation) -> None:
    """All rows at once, some of them in any order, and each by itself, as a slot as well: every plugin says the same."""
    alive = np.flatnonzero(ctx.cluster.alive)
    some = alive[::-2]
    for vector in (*fresh.filters, *fresh.row_filters):
        whole = plain(vector.plugin.filter(ctx, ALL_ROWS), ctx.cluster.capacity)
        np.testing.assert_array_equal(plain(vector.plugin.filter(ctx, some), len(some)), whole[some], vector.plugin.name)
        for slot in alive:
            assert plain(vector.plugin.filter(ctx, np.array([slot])), 1)[0] == whole[slot], vector.plugin.name
            if vector.plugin.takes_slot:
                assert plain(vector.plugin.filter(ctx, slot.item()), 1)[0] == whole[slot], vector.plugin.name
    for score in fresh.scores:
        values = plain(score.plugin.score(ctx, ALL_ROWS), ctx.cluster.capacity)
        np.testing.assert_array_equal(plain(score.plugin.score(ctx, some), len(some)), values[some], score.plugin.name)
        for slot in alive:
            assert plain(score.plugin.score(ctx, np.array([slot])), 1)[0] == values[slot], score.plugin.name
            if score.plugin.takes_slot:
                assert plain(score.plugin.score(ctx, slot.item()), 1)[0] == values[slot], score.plugin.name


def plain(answer: Any, length: int) -> Any:
    """An answer as an array, also where it is one for all rows."""
    return np.full(length, answer or 0) if answer is None or isinstance(answer, (int, float)) else np.asarray(answer) + 0
