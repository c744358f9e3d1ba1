"""What is kept of one plugin follows what the plugins that it asks look at: devices, NUMA nodes, and reservations of both."""

from __future__ import annotations

from typing import Any

import pytest

from roles.scheduler import testing
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.context import CycleContext
from tests.support.devices import CORE, RATIO, device, entry, gpus, holder, pod
from tests.support.numa import NumaWorld, nrt

from .test_numa import both, machine

SHARED = {"gpu": [entry(1, gpu_core=20, gpu_memory_ratio=20)]}


def judged(cycle: Cycle, world: testing.World, item: Any) -> tuple[list[bool], list[float]]:
    found = cycle.evaluation(world.framework, CycleContext(world.state, world.parser.parse(item)))
    return found.feasible[:2].tolist(), found.totals[:2].tolist() if found.count else []


def kept(world: testing.World, item: Any) -> list[bool]:
    """Which of two nodes fit, by what is kept, which says and scores the same as what is worked out anew."""
    known = judged(world.cycle, world, item)
    assert known == judged(Cycle({testing.SCHEDULER: world.framework}, world.state), world, item)
    return known[0]


@pytest.fixture
def world() -> NumaWorld:
    """Two nodes with a strict policy, on which two GPUs and two NUMA nodes go together."""
    found = both()
    for name in "ab":
        machine(found, name, cards=gpus(2, per_switch=1, per_numa=1))
    return found


@pytest.mark.feature("SCH-DEV-12")
def test_an_agreement_follows_the_health_of_the_devices(world: NumaWorld) -> None:
    asks = pod({CORE: 100, RATIO: 100}, cpu="4", memory="1Gi")
    for health in (False, True, False):
        world.feed("Device", device("a", gpus(2, per_switch=1, per_numa=1, health=health)))
        assert kept(world, asks) == [health, True]


@pytest.mark.feature("SCH-DEV-12")
def test_scores_follow_the_numa_node_that_is_agreed_upon(world: NumaWorld) -> None:
    asks = pod({CORE: 50, RATIO: 50}, cpu="4", memory="1Gi")
    world.add_pods(holder("x", "a", SHARED, {CORE: 20, RATIO: 20}, cpu="100m"))
    assert kept(world, asks) == [True, True]
    for spare in (0, 1):
        zones = {number: {"cpu": 8 if number == spare else 2, "memory": "32Gi"} for number in range(2)}
        world.feed("NodeResourceTopology", nrt("a", zones=zones, sockets=1, nodes=2, cores=4))
        assert kept(world, asks) == [True, True]


@pytest.mark.feature("SCH-DEV-12")
def test_scores_follow_pods_that_take_cpus_of_a_numa_node(world: NumaWorld) -> None:
    asks = pod({CORE: 50, RATIO: 50}, cpu="6", memory="1Gi")
    world.add_pods(holder("x", "a", SHARED, {CORE: 20, RATIO: 20}, cpu="100m"))
    assert kept(world, asks) == [True, True]
    status = '{"numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}'
    (bound,) = world.add_pods(testing.pod("y", node="a", cpu="4", annotations={"scheduling.koordinator.sh/resource-status": status}))
    assert kept(world, asks) == [True, True]
    world.cluster.remove_pod(bound.uid)
    assert kept(world, asks) == [True, True]
