"""NodeResourcesFitPlus and ScarceResourceAvoidance: scores, and what decides through the API server."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import NODES
from koord.config.errors import InvalidConfig
from roles.scheduler import testing
from roles.scheduler.framework.context import ALL_ROWS, CycleContext
from roles.scheduler.framework.interfaces import Score

GPU = "nvidia.com/gpu"


def profile(plugin: str, **args: Any) -> dict[str, Any]:
    points = {"preScore": {"enabled": [{"name": plugin}]}, "score": {"disabled": [{"name": "*"}], "enabled": [{"name": plugin}]}}
    return {"plugins": points, "pluginConfig": [{"name": plugin, "args": args}]}


def scores(
    plugin: str, nodes: dict[str, dict[str, str]], pods: list[tuple[str, dict[str, Any]]], asked: Any, **args: Any
) -> dict[str, int]:
    """The scores of a pod on nodes (allocatable by name) on which pods run; rows and columns must agree."""
    world = testing.World(profile(plugin, **args))
    for name, allocatable in nodes.items():
        body = testing.node(name)
        body.status.allocatable.update(allocatable)
        world.add_nodes(body)
    for node, content in pods:
        world.add_pods(testing.pod(node=node, **content))
    found = world.framework.plugins[plugin]
    assert isinstance(found, Score)
    ctx = CycleContext(world.state, world.parser.parse(asked))
    column = found.score(ctx, ALL_ROWS)
    result = {}
    for name in nodes:
        slot = world.cluster.slot_of(name)
        result[name] = int(column if isinstance(column, float) else np.asarray(column)[slot])
        alone = found.score(ctx, np.array([slot]))
        assert (alone if isinstance(alone, float) else alone[0]) == result[name]
    return result


FIT = {GPU: {"type": "MostAllocated", "weight": 2}, "cpu": {"type": "LeastAllocated", "weight": 1}}


@pytest.mark.feature("SCH-FITP-01")
def test_each_resource_is_scored_its_own_way() -> None:
    nodes = {"busy": {"cpu": "16", GPU: "8"}, "idle": {"cpu": "16", GPU: "8"}, "none": {"cpu": "16"}}
    pods = [("busy", {"cpu": "8", "requests": {GPU: "4"}})]
    asked = testing.pod(cpu="4", requests={GPU: "2"})
    # busy: (2*75 + 25) / 3, idle: (2*25 + 75) / 3, none: no card, (0 + 75) / 3
    assert scores("NodeResourcesFitPlus", nodes, pods, asked, resources=FIT) == {"busy": 58, "idle": 41, "none": 25}


@pytest.mark.feature("SCH-FITP-01")
def test_only_what_is_requested_and_listed_counts() -> None:
    nodes = {"a": {"cpu": "4"}, "b": {"cpu": "16"}}
    plain = testing.pod(cpu="1")
    assert scores("NodeResourcesFitPlus", nodes, [], plain, resources=FIT) == {"a": 75, "b": 93}
    assert scores("NodeResourcesFitPlus", nodes, [], testing.pod(cpu=None, memory="1Gi"), resources=FIT) == {"a": 100, "b": 100}
    assert scores("NodeResourcesFitPlus", nodes, [], plain, resources={}) == {"a": 100, "b": 100}
    # Containers without requests count with 100m on the node, and more than the capacity is 0 or 100.
    silent = [("a", {"cpu": None})] * 10
    assert scores("NodeResourcesFitPlus", nodes, silent, plain, resources=FIT) == {"a": 50, "b": 93}
    full = [("a", {"cpu": "4"})]
    assert scores("NodeResourcesFitPlus", nodes, full, plain, resources=FIT)["a"] == 0
    most = {"cpu": {"type": "MostAllocated", "weight": 3}}
    assert scores("NodeResourcesFitPlus", nodes, full, plain, resources=most)["a"] == 100


@pytest.mark.feature("SCH-FITP-01")
@pytest.mark.parametrize("strategy", [{"type": "Balanced", "weight": 1}, {"weight": 1}, {"type": "MostAllocated", "weight": -1}])
def test_an_unknown_strategy_stops_the_start(strategy: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"resources\.cpu"):
        testing.World(profile("NodeResourcesFitPlus", resources={"cpu": strategy}))


@pytest.mark.feature("SCH-SCARCE-01")
def test_nodes_with_scarce_resources_are_for_those_who_need_them() -> None:
    nodes = {"plain": {"cpu": "16"}, "cards": {"cpu": "16", GPU: "8"}, "both": {"cpu": "16", GPU: "8", "x.com/nic": "4", "x.com/y": "1"},
             "emptied": {"cpu": "16", GPU: "0"}}  # fmt: skip
    listed = {"resources": [GPU, "x.com/nic"]}
    assert scores("ScarceResourceAvoidance", nodes, [], testing.pod(), **listed) == {"plain": 100, "cards": 0, "both": 33, "emptied": 100}
    wanting = testing.pod(requests={GPU: "1"})
    assert scores("ScarceResourceAvoidance", nodes, [], wanting, **listed) == {"plain": 100, "cards": 100, "both": 50, "emptied": 100}
    assert scores("ScarceResourceAvoidance", nodes, [], testing.pod(cpu=None), **listed)["cards"] == 50
    assert scores("ScarceResourceAvoidance", nodes, [], testing.pod(), resources=[])["cards"] == 100


amounts = st.fixed_dictionaries({"cpu": st.integers(0, 9), GPU: st.integers(0, 4), "memory": st.integers(1, 64)})


@given(st.lists(amounts, min_size=1, max_size=4), amounts, st.lists(st.tuples(st.integers(0, 3), amounts), max_size=4))
def test_columns_and_rows_agree(sizes: list[dict[str, int]], asked: dict[str, int], running: list[tuple[int, dict[str, int]]]) -> None:
    def quantities(found: dict[str, int]) -> dict[str, str]:
        return {"cpu": str(found["cpu"]), GPU: str(found[GPU]), "memory": f"{found['memory']}Gi"}

    nodes = {f"n{number}": quantities(size) for number, size in enumerate(sizes)}
    pods = [(f"n{number}", {"cpu": None, "memory": None, "requests": quantities(size)}) for number, size in running if number < len(sizes)]
    pod = testing.pod(cpu=None, memory=None, requests=quantities(asked))
    kinds = {name: {"type": kind, "weight": weight} for name, kind, weight in
             (("cpu", "LeastAllocated", 2), ("memory", "MostAllocated", 1), (GPU, "MostAllocated", 3))}  # fmt: skip
    for found in (
        scores("NodeResourcesFitPlus", nodes, pods, pod, resources=kinds),
        scores("ScarceResourceAvoidance", nodes, pods, pod, resources=[GPU]),
    ):
        assert all(0 <= score <= 100 for score in found.values())


@pytest.mark.feature("SCH-FITP-01")
@pytest.mark.feature("SCH-SCARCE-01")
@pytest.mark.parametrize(
    ("plugin", "args", "winner"),
    [("NodeResourcesFitPlus", {"resources": {"cpu": {"type": "MostAllocated", "weight": 1}}}, "cards"),
     ("ScarceResourceAvoidance", {"resources": [GPU]}, "plain")],
)  # fmt: skip
def test_the_score_decides(scheduler: Any, plugin: str, args: dict[str, Any], winner: str) -> None:
    async def run() -> None:
        async with scheduler({"profiles": [{"schedulerName": "koord-scheduler", **profile(plugin, **args)}]}) as live:
            await live.node("plain", cpu="16")
            await live.node("cards", cpu="8")
            amounts = {"cpu": "8", "memory": "8Gi", "pods": "110", GPU: "8"}
            await live.client.patch(NODES, "cards", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
            await live.sees("cards", lambda view: GPU in view.allocatable)
            await live.sees("plain", lambda view: True)
            for name in ("p", "q", "r"):
                await live.pod(name, cpu="2")
                assert await live.bound(name) == winner

    asyncio.run(run())
