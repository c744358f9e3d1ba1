"""Answers that are kept and caught up row by row equal answers worked out afresh."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import names
from koord.api.objects import NodeResourceTopology
from roles.scheduler import testing
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.context import CycleContext
from tests.roles.scheduler.numa.test_state import LABELS, pods
from tests.support.numa import NumaWorld, bound_pod, nrt

pytestmark = [pytest.mark.feature("SCH-NUMA-07"), pytest.mark.feature("SCH-NUMA-12")]

SHAPE = {"sockets": 1, "nodes": 2, "cores": 2}
actions = st.sampled_from(["bind", "bind", "bind", "remove", "relabel", "report", "unreport", "suppose", "unreserve"])
steps = st.lists(st.tuples(actions, st.integers(0, 2), st.integers(0, 99)), min_size=4, max_size=8)


def judged(cycle: Cycle, world: NumaWorld, content: dict[str, Any]) -> tuple[list[bool], list[float]]:
    ctx = CycleContext(world.state, world.parser.parse(bound_pod("asked", uid="asked", **content)))
    found = cycle.evaluation(world.framework, ctx)
    alive = np.flatnonzero(world.cluster.alive)
    totals = [float(found.totals[slot]) for slot in alive if found.feasible[slot]] if found.count else []
    return [bool(found.feasible[slot]) for slot in alive], totals


@given(st.lists(pods, min_size=3, max_size=3), steps)
def test_kept_answers_equal_fresh_ones(kinds: list[dict[str, Any]], script: list[tuple[str, int, int]]) -> None:
    world = NumaWorld()
    for number in range(3):
        world.machine(f"n{number}", labels=LABELS[0], **SHAPE)
    alive: list[str] = []
    for number, (action, kind, pick) in enumerate(script):
        name = f"n{pick % 3}"
        pod = bound_pod(f"p{number}", uid=f"u{number}", **kinds[kind])
        if action == "bind":
            _, seen = world.bind(pod)
            if seen is not None:
                alive.append(seen.uid)
        elif action == "remove" and alive:
            world.cluster.remove_pod(alive.pop(pick % len(alive)))
        elif action == "relabel":
            annotations = {names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO: '{"cpu":1.5}'} if pick % 2 else {}
            world.add_nodes(testing.node(name, labels=LABELS[pick % len(LABELS)], annotations=annotations))
        elif action == "report":
            kubelet = {"policy": "none", "reservedCPUs": str(pick % 8)}
            world.feed("NodeResourceTopology", nrt(name, annotations={names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: kubelet}, **SHAPE))
        elif action == "unreport":
            world.feed("NodeResourceTopology", None, old=msgspec.convert({"metadata": {"name": name}}, NodeResourceTopology))
        elif action == "suppose" and alive:
            with world.state.suppose() as supposed:
                supposed.remove(alive[pick % len(alive)])
                judged(world.cycle, world, kinds[kind])
        elif action == "unreserve":
            decision = world.schedule(pod)
            if decision.scheduled:
                judged(world.cycle, world, kinds[kind])
                world.framework.run_unreserve(decision.ctx, decision.slot)
                world.cluster.remove_pod(decision.pod.uid)
        for content in kinds:
            kept = judged(world.cycle, world, content)
            assert kept == judged(Cycle({testing.SCHEDULER: world.framework}, world.state), world, content), (number, action)
