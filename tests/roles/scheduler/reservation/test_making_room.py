"""Reservations that take running pods over, preemption, and pods that are reservations."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from koord.api import names
from koord.api.objects import Pod
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.framework.context import BindDraft
from tests.roles.scheduler.reservation.worlds import AFFINITY, ALLOCATED, OWNER, World, placed

REQUIRED = {names.LABEL_PRE_ALLOCATION_REQUIRED: "true"}
STRANGERS = [{"labelSelector": {"matchLabels": {"app": "stranger"}}}]
CLUSTER = {"preAllocationConfig": {"enableClusterMode": True}}


def wish(**fields: Any) -> dict[str, str]:
    return {AFFINITY: json.dumps(fields)}


def reserve(world: World, name: str, **more: Any) -> Decision:
    """Schedule a Reservation that is not there yet."""
    more.setdefault("policy", "Restricted")
    world.feed("Reservation", placed(name, **more))
    return world.schedule(world.plugin.ledger.given[f"{name}-uid"])


def running(name: str, node: str, **more: Any) -> Pod:
    more.setdefault("labels", OWNER)
    return testing.pod(name, uid=name, node=node, **more)


def taken(world: World, name: str) -> list[str]:
    return sorted(world.plugin.ledger.held[f"{name}-uid"].owners)


@pytest.mark.feature("SCH-RSV-11")
def test_one_pod_is_taken_over() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"), testing.node("b", cpu="8"))
    world.add_pods(running("old", "a", cpu="4"), running("other", "a", cpu="4", labels={"app": "x"}), testing.pod(cpu="6", node="b"))
    decision = reserve(world, "r", cpu="4", memory="2Gi", preAllocation=True)
    assert decision.node == "a"
    assert taken(world, "r") == ["old"]
    assert world.free("a") == 0
    world.framework.run_unreserve(decision.ctx, decision.slot)
    world.cluster.remove_pod("r-uid")
    assert world.free("a") == 0
    assert not world.plugin.ledger.reservation_of("old")


def handed(name: str) -> dict[str, str]:
    """What the owner of a Reservation is annotated with."""
    return {ALLOCATED: json.dumps({"name": name, "uid": f"{name}-uid"})}


@pytest.mark.feature("SCH-RSV-11")
@pytest.mark.parametrize("tries", [1, 2])
def test_a_pod_that_was_handed_over_before_a_restart_is_taken_over_again(tries: int) -> None:
    """The other scheduler had not come to write where the Reservation is."""
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("old", "a", cpu="8", annotations=handed("r")))
    for _ in range(tries):
        decision = reserve(world, "r", cpu="8", memory="2Gi", preAllocation=True)
        assert (decision.node, taken(world, "r"), world.free("a")) == ("a", ["old"], 0)
        world.framework.run_unreserve(decision.ctx, decision.slot)
        world.cluster.remove_pod("r-uid")
    assert not reserve(world, "s", cpu="8", memory="2Gi", preAllocation=True).scheduled  # it is r's


@pytest.mark.feature("SCH-RSV-11")
def test_a_pod_that_was_handed_over_before_a_restart_and_is_not_needed_is_released() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"), testing.node("b", cpu="8"))
    world.add_pods(running("old", "a", cpu="8", annotations=handed("r")))
    decision = reserve(world, "r", cpu="8", memory="2Gi", preAllocation=True, template={"nodeName": "b"})
    asyncio.run(world.plugin.pre_bind(decision.ctx, "b", BindDraft()))
    assert [(orphan.pod.name, orphan.reservation, orphan.running) for orphan in world.plugin.ledger.orphans] == [("old", "r-uid", True)]


class OnePod:
    """An API server that has one pod, as far as its annotations go."""

    def __init__(self, pod: Pod) -> None:
        self.content: dict[str, Any] = {"metadata": {"uid": pod.metadata.uid, "resourceVersion": "1", "annotations": {}}}
        self.content["spec"] = {"nodeName": pod.spec.node_name}

    async def get(self, *_: Any) -> dict[str, Any]:
        return self.content

    async def patch(self, _kind: Any, _name: str, body: dict[str, Any], *_: Any, **_more: Any) -> None:
        annotations: dict[str, str] = self.content["metadata"]["annotations"]
        for key, value in body["metadata"]["annotations"].items():
            annotations.pop(key, None) if value is None else annotations.update({key: value})


@pytest.mark.feature("SCH-RSV-11")
@pytest.mark.feature("SCH-RSV-08")
def test_what_is_left_of_a_failed_attempt_is_not_taken_from_the_next_one() -> None:
    world = World(gates={"CleanExpiredReservationAllocated": True})
    world.add_nodes(testing.node("a", cpu="8"))
    old = running("old", "a", cpu="8")
    world.add_pods(old)
    api = OnePod(old)
    world.handle.client, world.handle.may_write = api, lambda: True  # type: ignore[assignment]

    async def cleaned() -> list[str]:
        """The annotations once nothing is left to be taken off."""
        work = asyncio.create_task(world.plugin.writer.run())
        for _ in range(10):
            await asyncio.sleep(0)
        work.cancel()
        assert not world.plugin.ledger.orphans
        return list(api.content["metadata"]["annotations"])

    for attempt in range(2):
        decision = reserve(world, "r", cpu="8", memory="2Gi", preAllocation=True)
        asyncio.run(world.plugin.pre_bind(decision.ctx, "a", BindDraft()))
        if not attempt:  # the Reservation's status could not be written
            world.framework.run_unreserve(decision.ctx, decision.slot)
            world.cluster.remove_pod("r-uid")
    assert asyncio.run(cleaned()) == [ALLOCATED]
    world.plugin.pod_gone("r-uid")
    world.feed("Reservation", None, old=placed("r"))
    assert asyncio.run(cleaned()) == []


@pytest.mark.feature("SCH-RSV-11")
def test_a_pod_that_is_bigger_than_the_reservation_or_owned_is_not() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("big", "a", cpu="5"), running("owned", "a", cpu="3", annotations={ALLOCATED: '{"name":"x","uid":"x"}'}))
    refused = reserve(world, "r", cpu="4", memory="2Gi", preAllocation=True)
    assert not refused.scheduled
    assert "Insufficient cpu" in refused.message()
    required = reserve(world, "s", cpu="1", memory="1Gi", preAllocation=True, labels=REQUIRED)
    assert not required.scheduled


@pytest.mark.feature("SCH-RSV-11")
def test_required_or_preferred_without() -> None:
    world = World({"preAllocationConfig": {"preferNoPreAllocatedPods": True}})
    world.add_nodes(testing.node("a", cpu="8"), testing.node("b", cpu="8"))
    world.add_pods(running("old", "a", cpu="4"))
    assert reserve(world, "free", cpu="4", memory="2Gi", preAllocation=True).scheduled
    assert taken(world, "free") == []
    decision = reserve(world, "must", cpu="4", memory="2Gi", preAllocation=True, labels=REQUIRED)
    assert (decision.node, taken(world, "must")) == ("a", ["old"])
    none = reserve(world, "none", cpu="4", memory="2Gi", preAllocation=True, labels=REQUIRED)
    assert "node(s) no pod match reservation with pre allocation required" in none.message()


@pytest.mark.feature("SCH-RSV-11")
def test_it_must_be_restricted() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    refused = reserve(world, "r", cpu="4", policy="Aligned", preAllocation=True)
    assert "node(s) reservation pre allocation is unsupported with current attributes" in refused.message()


@pytest.mark.feature("SCH-RSV-11")
def test_cluster_mode_takes_labelled_pods_by_priority() -> None:
    policy = {"mode": "Cluster", "enableMultiple": True}
    off = World()
    off.add_nodes(testing.node("a", cpu="8"))
    refused = reserve(off, "r", cpu="4", preAllocation=True, preAllocationPolicy=policy)
    assert "reservation requires cluster mode pre-allocation which is disabled" in refused.message()
    world = World(CLUSTER)
    world.add_nodes(testing.node("a", cpu="8"))
    label = {names.LABEL_POD_IS_PRE_ALLOCATABLE: "true"}
    for name, priority in (("p1", "1"), ("p9", "9"), ("p5", "5"), ("bad", "high")):
        world.add_pods(running(name, "a", cpu="2", labels=label, annotations={names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY: priority}))
    decision = reserve(world, "r", cpu="4", preAllocation=True, preAllocationPolicy=policy)
    assert decision.node == "a"
    assert taken(world, "r") == ["p5", "p9"]


@pytest.mark.feature("SCH-RSV-11")
@pytest.mark.parametrize("key", ["example.com/order", names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY])
def test_cluster_mode_orders_pods_by_the_annotation_that_the_arguments_name(key: str) -> None:
    world = World({"preAllocationConfig": {"enableClusterMode": True, "clusterPriorityAnnotationKey": key}})
    world.add_nodes(testing.node("a", cpu="8"))
    label = {names.LABEL_POD_IS_PRE_ALLOCATABLE: "true"}
    for name, priority in (("p1", "1"), ("p2", "2.5"), ("p3", "2"), ("p4", "")):
        world.add_pods(running(name, "a", cpu="2", labels=label, annotations={key: priority, "example.com/else": name}))
    reserve(world, "r", cpu="4", preAllocation=True, preAllocationPolicy={"mode": "Cluster", "enableMultiple": True})
    assert taken(world, "r") == ["p2", "p3"]


@pytest.mark.feature("SCH-RSV-11")
def test_fewer_pods_are_better_where_several_may_go() -> None:
    world = World(CLUSTER)
    world.add_nodes(testing.node("a", cpu="8"), testing.node("b", cpu="8"))
    label = {names.LABEL_POD_IS_PRE_ALLOCATABLE: "true"}
    world.add_pods(*(running(f"a{n}", "a", cpu="2", labels=label) for n in range(4)))
    world.add_pods(*(running(f"b{n}", "b", cpu="4", labels=label) for n in range(2)))
    decision = reserve(world, "r", cpu="4", preAllocation=True, preAllocationPolicy={"mode": "Cluster", "enableMultiple": True})
    assert decision.node == "b"
    assert len(taken(world, "r")) == 1


@pytest.mark.feature("SCH-RSV-13")
def test_preemption_for_reservations_and_their_owners() -> None:
    world = World({"enablePreemption": True})
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("low", "a", cpu="8", labels={"app": "x"}, priority=5))
    decision = reserve(world, "r", cpu="4", policy="Aligned")
    assert [victim.name for victim in decision.victims] == ["low"]
    assert decision.nominate == "a"
    low = reserve(world, "weak", cpu="4", policy="Aligned", labels={"koordinator.sh/priority": "5"})
    assert not low.victims
    assert "preemption: " in low.message()


@pytest.mark.feature("SCH-RSV-13")
def test_without_the_switch_no_room_is_made_for_reservations() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("low", "a", cpu="8", labels={"app": "x"}, priority=5))
    decision = reserve(world, "r", cpu="4", policy="Aligned")
    assert not decision.victims
    assert "preemption" not in decision.message()


@pytest.mark.feature("SCH-RSV-13")
def test_reservations_are_never_victims_and_victims_free_their_reservation_only() -> None:
    world = World({"enablePreemption": True})
    world.add_nodes(testing.node("a", cpu="8"))
    world.hold("r", "a", cpu="8", memory="1Gi", policy="Restricted", template={"priority": 1})
    strong = {"priority": 100}
    assert not world.schedule(testing.pod(cpu="1", **strong)).victims
    assert world.uses(world.owner("weak", uid="weak", cpu="6", memory="1Mi")) == "r"
    assert not world.schedule(testing.pod(cpu="1", **strong)).victims  # what the owner would leave belongs to the reservation
    decision = world.owner(cpu="4", memory="1Mi", annotations=wish(), **strong)
    assert [victim.uid for victim in decision.victims] == ["weak"]


@pytest.mark.feature("SCH-RSV-13")
def test_protected_pods_stay() -> None:
    world = World({"enablePreemption": True})
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("low", "a", cpu="8", priority=5, labels={names.LABEL_POD_DISABLE_PREEMPTIBLE: "true"}))
    assert not reserve(world, "r", cpu="4", policy="Aligned").victims


def operating(name: str, node: str, *, ready: bool = True, current: str = "", **more: Any) -> Pod:
    annotations = {names.ANNOTATION_RESERVATION_OWNERS: json.dumps([{"labelSelector": {"matchLabels": OWNER}}])}
    if current:
        annotations[names.ANNOTATION_RESERVATION_CURRENT_OWNER] = json.dumps({"namespace": "default", "name": current, "uid": current})
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    label = {names.LABEL_POD_OPERATING_MODE: names.OPERATING_MODE_RESERVATION}
    return testing.pod(name, uid=name, node=node, labels=label, annotations=annotations, status=status, **more)


@pytest.mark.feature("SCH-RSV-14")
def test_a_running_pod_as_reservation() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(operating("op", "a", cpu="6", ready=False))
    assert not world.owner(cpu="6").scheduled
    world.add_pods(operating("op", "a", cpu="6"))
    assert world.free("a") == 2000
    assert not world.schedule(testing.pod(cpu="3")).scheduled
    decision = world.owner("p", uid="p", cpu="6")
    assert (decision.node, world.uses(decision)) == ("a", "op")
    assert world.free("a") == 2000
    assert not world.owner(cpu="3").scheduled  # it is used once
    world.add_pods(operating("op", "a", cpu="6"))  # its next version still counts with what is left
    assert world.free("a") == 2000
    world.cluster.remove_pod("op")
    assert world.free("a") == 2000


@pytest.mark.feature("SCH-RSV-14")
def test_the_current_owner_is_known_from_the_annotation() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("p", "a", cpu="6"))
    world.add_pods(operating("op", "a", cpu="6", current="p"))
    assert world.free("a") == 2000
    assert world.plugin.ledger.reservation_of("p") == "op"


@pytest.mark.feature("SCH-RSV-14")
def test_a_running_pod_is_used_again_once_its_owner_is_gone() -> None:
    """As by a scheduler that starts then and knows of no owner."""
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(operating("op", "a", cpu="6"), running("p", "a", cpu="6", annotations={ALLOCATED: '{"name":"op","uid":"op"}'}))
    assert world.plugin.ledger.reservation_of("p") == "op"
    assert not world.owner(cpu="6").scheduled
    world.cluster.remove_pod("p")
    world.plugin.pod_gone("p")
    decision = world.owner("q", uid="q", cpu="6")
    assert (decision.node, world.uses(decision)) == ("a", "op")


@pytest.mark.feature("SCH-RSV-14")
def test_a_pod_that_is_taken_out_of_operating_mode_is_a_plain_pod_again() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    op = operating("op", "a", cpu="6")
    plain = replace(op, metadata=replace(op.metadata, labels={}))
    world.add_pods(op)
    assert world.uses(world.decide(testing.pod(cpu="6", labels=OWNER))) == "op"
    world.add_pods(plain)
    assert "Insufficient cpu" in world.decide(testing.pod(cpu="6", labels=OWNER)).message()
    assert world.free("a") == 2000
    world.add_pods(op)
    assert world.owner("p", uid="p", cpu="4").scheduled
    assert world.free("a") == 2000
    world.add_pods(plain)  # both count in full now
    assert world.free("a") == -2000
    world.cluster.remove_pod("op")
    assert world.free("a") == 4000


@pytest.mark.feature("SCH-RSV-14")
def test_a_reservation_pod_that_is_gone_leaves_nothing_behind() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("p", "a", cpu="1"), operating("op", "a", cpu="6", current="p"))
    world.plugin.pod_gone("op")
    world.cluster.remove_pod("op")
    assert not world.plugin.ledger.held
    assert not len(world.plugin.ledger.owners)
    assert not world.plugin.ledger.touched
    assert not world.plugin.ledger.reservation_of("p")
    assert world.free("a") == 7000


@pytest.mark.feature("SCH-RSV-14")
def test_a_current_owner_that_is_not_named_any_more_is_none() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.add_pods(running("p", "a", cpu="2"), running("q", "a", cpu="2"), operating("op", "a", cpu="4", current="p"))
    assert world.free("a") == 2000
    world.add_pods(operating("op", "a", cpu="4", current="q"))
    assert (world.plugin.ledger.reservation_of("p"), world.plugin.ledger.reservation_of("q")) == ("", "op")
    assert world.free("a") == 2000
    unreadable = operating("op", "a", cpu="4", current="p")
    annotations = {**unreadable.metadata.annotations, names.ANNOTATION_RESERVATION_CURRENT_OWNER: "{oops"}
    world.add_pods(replace(unreadable, metadata=replace(unreadable.metadata, annotations=annotations)))
    assert world.plugin.ledger.reservation_of("q") == "op"
    world.add_pods(operating("op", "a", cpu="4"))
    assert not world.plugin.ledger.reservation_of("q")
    assert world.free("a") == 0


@pytest.mark.feature("SCH-RSV-14")
def test_owners_that_cannot_be_read_make_it_a_plain_pod() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    broken = operating("op", "a", cpu="6")
    broken.metadata.annotations[names.ANNOTATION_RESERVATION_OWNERS] = "["
    world.add_pods(broken)
    assert world.free("a") == 2000
    assert not world.owner(cpu="6").scheduled


def waits(world: World, name: str, **more: Any) -> PodInfo:
    """A Reservation that takes running pods over or stays where it is; its reserve pod."""
    content = {"cpu": "4", "memory": "1Gi", "policy": "Restricted", "preAllocation": True, "labels": REQUIRED, **more}
    world.feed("Reservation", placed(name, **content), world.plugin.ledger.objects.get(f"{name}-uid"))
    return world.plugin.ledger.given[f"{name}-uid"]


@pytest.mark.feature("SCH-RSV-11")
@pytest.mark.parametrize(
    "mistake",
    [
        {"owners": [{"labelSelector": {"matchLabels": {"app": "onwer"}}}]},
        {"preAllocationPolicy": {"mode": "Cluster"}},
        {"unschedulable": True},
    ],
)
def test_a_corrected_reservation_is_judged_by_what_it_says_now(mistake: dict[str, Any]) -> None:
    world = World(CLUSTER, verify=0)
    world.add_nodes(testing.node("a"))
    world.add_pods(running("old", "a", cpu="4", memory="1Gi"))
    assert not world.decide(waits(world, "r", **mistake)).scheduled
    assert world.decide(waits(world, "r")).node == "a"
    assert not world.decide(waits(world, "r", **mistake)).scheduled


@pytest.mark.feature("SCH-RSV-11")
def test_several_pods_may_be_taken_over_once_it_says_so() -> None:
    world = World(verify=0)
    world.add_nodes(testing.node("a", cpu="4"))
    world.add_pods(*(running(f"old{n}", "a", cpu="2", memory="512Mi") for n in range(2)))
    assert not world.decide(waits(world, "r")).scheduled
    assert world.decide(waits(world, "r", preAllocationPolicy={"enableMultiple": True})).node == "a"


@pytest.mark.feature("SCH-RSV-11")
def test_it_goes_on_waiting_when_a_node_goes() -> None:
    world = World(verify=0)
    world.add_nodes(testing.node("a", cpu="1"), testing.node("b", cpu="1"))
    pod = waits(world, "r", labels={})
    assert "0/2 nodes" in world.decide(pod).message()
    world.cluster.remove_node("b")
    assert "0/1 nodes" in world.decide(pod).message()


@pytest.mark.feature("SCH-RSV-11")
def test_a_candidate_counts_from_when_it_is_bound_until_it_leaves() -> None:
    world = World(verify=0)
    world.add_nodes(testing.node("a"))
    pod = waits(world, "r")
    old = running("old", "a", cpu="4", memory="1Gi")
    world.schedule(running("old", "", cpu="4", memory="1Gi"))
    assert not world.decide(pod).scheduled
    world.add_pods(old)
    assert world.decide(pod).node == "a"
    going = replace(old.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    world.add_pods(replace(old, metadata=going))
    assert not world.decide(pod).scheduled


@pytest.mark.feature("SCH-RSV-11")
def test_a_pod_is_a_candidate_while_it_uses_no_reservation() -> None:
    world = World(verify=0)
    world.add_nodes(testing.node("a"))
    pod = waits(world, "r")
    world.add_pods(running("old", "a", cpu="4", memory="1Gi", annotations={ALLOCATED: '{"name":"x","uid":"x"}'}))
    assert not world.decide(pod).scheduled
    world.add_pods(running("old", "a", cpu="4", memory="1Gi"))
    assert world.decide(pod).node == "a"
    world.add_pods(running("old", "a", cpu="4", memory="1Gi", annotations={ALLOCATED: '{"name":"x","uid":"x"}'}))
    assert not world.decide(pod).scheduled


@pytest.mark.feature("SCH-RSV-11")
def test_a_pod_that_its_controller_adopts_becomes_a_candidate() -> None:
    world = World(verify=0)
    world.add_nodes(testing.node("a"))
    pod = waits(world, "r", owners=[{"controller": {"name": "web"}, "labelSelector": {"matchLabels": OWNER}}])

    for controller in ("former", "web"):
        assert not world.decide(pod).scheduled
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": controller, "uid": controller}
        world.add_pods(running("old", "a", cpu="4", memory="1Gi", ownerReferences=[reference]))
    assert world.decide(pod).node == "a"
