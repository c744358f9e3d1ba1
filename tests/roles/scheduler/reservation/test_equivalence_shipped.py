"""The same with every plugin of the installed profile, topologies, devices, and pods that ask for both: looking at a node without its
reserve pods leaves no trace in anybody's columns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import Node, Pod
from roles.scheduler import testing
from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.framework.context import CycleContext
from tests.roles.scheduler.reservation import test_equivalence as plain
from tests.roles.scheduler.reservation import worlds
from tests.support import devices, numa
from tests.support.examples import examples

INSTALLED = Path(__file__).resolve().parents[4] / "configs" / "install" / "30-config.yaml"
CARD = {devices.CORE: "50", devices.RATIO: "50"}
ACTIONS = ["pod", "pod", "pod", "pod", "assigned", "delete", "hold", "hold", "drop", "change", "node", "remove", "report", "report"]
POLICIES = ("None", "SingleNUMANodePodLevel", "Restricted")


def installed_profile(args: Any = None) -> dict[str, Any]:
    texts = (text for found in yaml.safe_load_all(INSTALLED.read_text()) for text in (found.get("data") or {}).values())
    config = next(yaml.safe_load(text) for text in texts if "KubeSchedulerConfiguration" in text)
    profile: dict[str, Any] = config["profiles"][0]
    return {**profile, "schedulerName": testing.SCHEDULER}


def shapes(plainly: Any = plain.shapes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plainly()
    for index in (0, 1):
        found[index] = {**found[index], "labels": {**found[index]["labels"], "koordinator.sh/qosClass": "LSR"}, "priority": 9500}
    for index in (0, 2, 7):
        found[index] = {**found[index], "requests": CARD}
    return found


class World(worlds.World):
    """Every node with two cards and one NUMA node."""

    def add_nodes(self, *nodes: Node) -> None:
        for node in nodes:
            node.status.allocatable.update({devices.CORE: "200", devices.RATIO: "200", devices.MEMORY: "160Gi"})
        super().add_nodes(*nodes)
        for node in nodes:
            self.feed("NodeResourceTopology", numa.nrt(node.metadata.name, sockets=1, nodes=1))
            self.feed("Device", devices.device(node.metadata.name, devices.gpus(2)))


def reservation(name: str, node: str, kind: int, *, phase: str = "Available", make: Any = plain.reservation) -> Any:
    made = make(name, node, kind, phase=phase)
    if kind in (1, 3, 5):
        made.spec.template.spec.containers[0].resources.requests.update(CARD)
        made.status.allocatable.update(CARD)
    return made


def report(world: worlds.World, node: str, number: int) -> None:
    world.feed("NodeResourceTopology", numa.nrt(node, sockets=1, nodes=2, cores=2 + number % 2, policy=POLICIES[number % 3]))
    world.feed("Device", devices.device(node, devices.gpus(2, per_switch=1, per_numa=1, health=number < 6)))


def compare(world: testing.World, pod: Pod) -> None:
    info = world.parser.parse(pod)
    kept = world.cycle.evaluation(world.framework, CycleContext(world.state, info))
    fresh = Evaluation(world.framework, world.cluster)
    fresh.update(CycleContext(world.state, info))
    np.testing.assert_array_equal(kept.feasible, fresh.feasible)
    assert dict(kept.restored) == dict(fresh.restored)
    if fresh.count:
        np.testing.assert_array_equal(kept.totals, fresh.totals)


@pytest.mark.feature("SCH-RSV-06")
@pytest.mark.feature("SCH-CFG-02")
@examples(6)
@given(seed=st.integers(0, 10**6))
def test_kept_vectors_equal_fresh_ones_with_every_plugin(seed: int) -> None:
    draw = random.Random(seed)
    plan = [(draw.choice(ACTIONS), draw.randrange(9), draw.randrange(8)) for _ in range(20)]
    with (
        patch.object(worlds, "profile", installed_profile), patch.object(plain, "World", World), patch.object(plain, "shapes", shapes),
        patch.object(plain, "reservation", reservation), patch.object(plain, "compare", compare), patch.object(plain, "report", report),
    ):  # fmt: skip
        plain.check(plan)


def kept(world: testing.World, pod: Pod) -> bool:
    """Whether the pod finds a node by what is kept, which is the same as what is worked out anew."""
    compare(world, pod)
    return world.decide(pod).scheduled


@pytest.mark.feature("SCH-DEV-16")
def test_owners_follow_the_devices_of_their_reservation() -> None:
    world = testing.World(installed_profile())
    world.add_nodes(devices.bare("n"))
    world.feed("Reservation", worlds.placed("r", "n", cpu="2", memory="1Gi", requests=CARD, policy="Restricted"))
    owner = devices.pod(CARD, labels=worlds.OWNER, cpu="2", annotations={worlds.AFFINITY: "{}"})
    for health in (False, True, False):
        world.feed("Device", devices.device("n", devices.gpus(1, health=health)))
        assert kept(world, owner) is health


@pytest.mark.feature("SCH-NUMA-13")
def test_owners_follow_the_topology_of_their_reservation() -> None:
    world = testing.World(installed_profile())
    world.add_nodes(testing.node("n"))
    world.feed("Reservation", worlds.placed("r", "n", cpu="4", memory="4Gi"))
    owner = numa.bound_pod(cpu="2", priority=9500, labels={**numa.LSR, **worlds.OWNER})
    assert not kept(world, owner)
    world.feed("NodeResourceTopology", numa.nrt("n", sockets=1, nodes=1, cores=8))
    assert kept(world, owner)
