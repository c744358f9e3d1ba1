"""Rows with reservations that a pod may use are judged without their reserve pods; all others as they are (framework/restoring.py)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.interfaces import Reserve, Restorer
from roles.scheduler.framework.restoring import ALIGNED, RestoredReservation
from roles.scheduler.framework.status import SUCCESS, Status

OWNER = {"app": "owner"}


class Holder(Restorer, Reserve):
    """Lets pods labelled as owners use every reserve pod, on whatever node."""

    name = "Holder"
    restore_reads = -1

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.known: dict[str, RestoredReservation] = {}

    def shape_key(self, pod: PodInfo) -> Hashable:
        return pod.labels.get("app")

    def restored_rows(self, ctx: CycleContext) -> dict[int, tuple[RestoredReservation, ...]] | None:
        if ctx.pod.labels.get("app") != "owner":
            return None
        slots = [row.slot for row in ctx.cluster.rows()]
        return {slot: found for slot in slots if (found := self.restored_row(ctx, slot))}

    def restored_row(self, ctx: CycleContext, slot: int) -> tuple[RestoredReservation, ...]:
        held = [pod for pod in ctx.cluster.row(slot).pods.values() if pod.reservation]
        return tuple(self.known.setdefault(pod.uid, of(pod)) for pod in held)

    def nominate(self, ctx: CycleContext, slot: int) -> RestoredReservation | None:
        return ctx.restored[slot][0]

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        return SUCCESS

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        """Nothing was taken."""


def of(pod: PodInfo) -> RestoredReservation:
    return RestoredReservation(pod.reservation, pod.uid, pod, (), ALIGNED, pod.shape.amounts, {}, frozenset(pod.shape.amounts))


@pytest.fixture
def world() -> testing.World:
    found = testing.World({"plugins": {"reserve": {"enabled": [{"name": "Holder"}]}}}, plugins=(Holder,))
    found.add_nodes(testing.node("a", cpu="4"), testing.node("b", cpu="4"), testing.node("c", cpu="1"))
    return found


def hold(world: testing.World, name: str, node: str, cpu: str, **more: Any) -> PodInfo:
    info = world.parser.parse(testing.pod(name, uid=name, cpu=cpu, node=node, **more), reservation=name)
    world.cluster.add_pod(info, node)
    return info


@pytest.mark.feature("SCH-RSV-06")
def test_only_those_who_may_use_it_see_the_room(world: testing.World) -> None:
    hold(world, "r", "a", "4", ports=[{"containerPort": 80, "hostPort": 80}])
    hold(world, "s", "b", "3")
    for _ in range(2):  # built, and kept
        stranger = world.decide(testing.pod(cpu="2"))
        assert "3 Insufficient cpu" in stranger.message()
        owner = world.decide(testing.pod(cpu="4", labels=OWNER))
        assert owner.node in ("a", "b")
        assert owner.ctx.reservation is not None
        assert owner.ctx.reservation.name == {"a": "r", "b": "s"}[owner.node]
        ported = world.decide(testing.pod(cpu="4", labels=OWNER, ports=[{"containerPort": 80, "hostPort": 80}]))
        assert ported.scheduled
    huge = world.decide(testing.pod(cpu="5", labels=OWNER))
    assert "3 Insufficient cpu" in huge.message()


@pytest.mark.feature("SCH-RSV-06")
def test_looking_leaves_no_trace(world: testing.World) -> None:
    hold(world, "r", "a", "4", labels={"app": "owner"})
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": OWNER},
        }
    ]
    for _ in range(3):
        pod = testing.pod(cpu="1", labels=OWNER, topologySpreadConstraints=spread)
        decision = world.decide(pod)
        assert decision.feasible == 3  # with the reserve pod counted, "a" would be too full already
        position, version = world.cluster.changes.position, decision.evaluation.version  # type: ignore[union-attr]
        again = world.decide(pod)
        assert (world.cluster.changes.position, again.evaluation.version) == (position, version)  # type: ignore[union-attr]


@pytest.mark.feature("SCH-RSV-06")
def test_a_kept_evaluation_follows_reservations_that_come_and_go(world: testing.World) -> None:
    world.add_pods(testing.pod(cpu="4", node="b"))
    assert world.decide(testing.pod(cpu="2", labels=OWNER)).node == "a"
    hold(world, "r", "a", "3")
    assert world.decide(testing.pod(cpu="2", labels=OWNER)).node == "a"
    assert not world.decide(testing.pod(cpu="2")).scheduled
    world.cluster.remove_pod("r")
    taken = world.add_pods(testing.pod(cpu="3", node="a"))
    assert not world.decide(testing.pod(cpu="2", labels=OWNER)).scheduled
    world.cluster.remove_pod(taken[0].uid)
    decision = world.decide(testing.pod(cpu="2"))
    assert decision.node == "a"
    assert decision.ctx.restored == {}
