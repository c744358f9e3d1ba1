"""The ledger's invariants: an amount counts once, nothing is oversold, what is given back leaves no trace, a restart finds the same."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.pods import pod_requests
from koord.accounting.resources import parse
from koord.api.objects import Pod
from roles.scheduler import testing
from roles.scheduler.cluster.audit import recount
from roles.scheduler.plugins.reservation.status import used
from tests.roles.scheduler.reservation.worlds import AFFINITY, ALLOCATED, OWNER, World, placed
from tests.support.examples import examples

NODES = ("a", "b", "c")
RESOURCES = ("cpu", "memory")


class Model:
    """Books kept beside the scheduler: which pods are where, which reservation they use, what reservations hold."""

    def __init__(self) -> None:
        self.world = World()
        self.world.add_nodes(*(testing.node(name, cpu="8", memory="8Gi") for name in NODES))
        self.pods: dict[str, tuple[Pod, str, str]] = {}  # uid -> pod, node, reservation
        self.reservations: dict[str, dict[str, Any]] = {}  # name -> node and what else it was made of

    def schedule(self, pod: Pod) -> None:
        decision = self.world.schedule(pod)
        if decision.scheduled:
            self.pods[pod.metadata.uid] = (pod, decision.node, self.world.uses(decision))

    def bound(self, uid: str) -> Pod:
        """The pod as the API server shows it after binding."""
        pod, node, used = self.pods[uid]
        annotations = {**pod.metadata.annotations}
        if used:
            annotations[ALLOCATED] = json.dumps({"name": used, "uid": f"{used}-uid"})
        amounts = pod.spec.containers[0].resources.requests
        return testing.pod(
            pod.metadata.name, uid=uid, node=node, labels=pod.metadata.labels, annotations=annotations, cpu=str(amounts["cpu"]),
            memory=str(amounts["memory"]),
        )  # fmt: skip

    def show(self, uid: str) -> None:
        (info,) = self.world.add_pods(self.bound(uid))
        assert info.uid == uid

    def remove(self, uid: str) -> None:
        self.world.plugin.ledger.release(uid)
        self.world.cluster.remove_pod(uid)
        del self.pods[uid]

    def hold(self, name: str, **how: Any) -> None:
        amounts = dict.fromkeys(RESOURCES, 0)
        amounts.update(parse({"cpu": how["cpu"], "memory": how["memory"]}))
        if all(self.world.free(how["node"], resource) >= amounts[resource] for resource in RESOURCES):
            self.reservations[name] = how
            self.world.hold(name, **how)

    def drop(self, name: str) -> None:
        how = self.reservations.pop(name)
        over = placed(name, phase="Succeeded", **how)
        self.world.feed("Reservation", over)
        self.pods = {uid: (pod, node, "" if used == name else used) for uid, (pod, node, used) in self.pods.items()}

    def expected(self, node: str, resource: str) -> float:
        free = float(parse({"cpu": "8", "memory": "8Gi"})[resource])
        free -= sum(pod_requests(pod).get(resource, 0) for pod, where, _ in self.pods.values() if where == node)
        for name, how in self.reservations.items():
            if how["node"] == node:
                taken = sum(pod_requests(pod).get(resource, 0) for pod, _, used in self.pods.values() if used == name)
                free -= max(0, parse({"cpu": how["cpu"], "memory": how["memory"]})[resource] - taken)
        return free

    def check(self) -> None:
        for node in NODES:
            for resource in RESOURCES:
                assert self.world.free(node, resource) == self.expected(node, resource), (node, resource)
                assert self.world.free(node, resource) >= 0, "oversold"
        assert recount(self.world.cluster) == []
        for held in self.world.plugin.ledger.held.values():
            mine = {uid for uid, (_, _, used) in self.pods.items() if used == held.terms.name}
            assert set(held.owners) == mine
            assert all(pod.labels == OWNER for pod in held.owners.values())


def a_pod(draw: random.Random, number: int) -> Pod:
    labels = OWNER if draw.random() < 0.6 else {"app": "stranger"}
    annotations = {AFFINITY: "{}"} if labels == OWNER and draw.random() < 0.3 else {}
    cpu, memory = draw.choice(("500m", "1", "2", "3")), draw.choice(("256Mi", "1Gi", "2Gi"))
    return testing.pod(f"p{number}", uid=f"p{number}", cpu=cpu, memory=memory, labels=labels, annotations=annotations)


@pytest.mark.feature("SCH-RSV-04")
@pytest.mark.feature("SCH-RSV-05")
@pytest.mark.feature("SCH-RSV-06")
@examples(15)
@given(seed=st.integers(0, 10**9))
def test_amounts_count_once_and_nothing_is_oversold(seed: int) -> None:
    draw = random.Random(seed)
    model = Model()
    for number in range(40):
        action = draw.random()
        if action < 0.15:
            model.hold(
                f"r{number}", node=draw.choice(NODES), cpu=draw.choice(("1", "2", "4")), memory=draw.choice(("512Mi", "2Gi")),
                once=draw.random() < 0.4, policy=draw.choice(("Aligned", "Restricted")),
            )  # fmt: skip
        elif action < 0.22 and model.reservations:
            model.drop(draw.choice(sorted(model.reservations)))
        elif action < 0.35 and model.pods:
            model.remove(draw.choice(sorted(model.pods)))
        elif action < 0.55 and model.pods:
            model.show(draw.choice(sorted(model.pods)))
        elif action < 0.65 and model.pods:
            with model.world.state.suppose() as supposed:
                for uid in draw.sample(sorted(model.pods), min(3, len(model.pods))):
                    supposed.remove(uid)
                for name in sorted(model.reservations)[:1]:
                    supposed.remove(f"{name}-uid")
                model.world.decide(a_pod(draw, 1000 + number))
        else:
            model.schedule(a_pod(draw, number))
        model.check()
    restarted = World()
    order = [lambda uid=uid: restarted.add_pods(model.bound(uid)) for uid in model.pods]
    order += [lambda name=name, how=how: restarted.hold(name, **how) for name, how in model.reservations.items()]
    order += [lambda name=name: restarted.add_nodes(testing.node(name, cpu="8", memory="8Gi")) for name in NODES]
    draw.shuffle(order)
    for step in order:
        step()
    for node in NODES:
        assert [restarted.free(node, r) for r in RESOURCES] == [model.world.free(node, r) for r in RESOURCES]
    for uid, held in restarted.plugin.ledger.held.items():
        assert set(held.owners) == set(model.world.plugin.ledger.held[uid].owners)
    for uid in list(model.pods):
        model.remove(uid)
    for name in list(model.reservations):
        model.drop(name)
    model.check()
    assert [model.world.free("a", r) for r in RESOURCES] == [8000.0, float(8 << 30)]


@pytest.mark.feature("SCH-RSV-04")
def test_an_owner_bigger_than_its_reservation_takes_the_difference_from_the_node() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.hold("r", "a", cpu="4")
    for _ in range(2):
        assert world.uses(world.owner(cpu="3")) == "r"
    assert world.free("a") == 2000  # two pods of 3; the reservation of 4 is used up, not given back as a whole
    assert not world.schedule(testing.pod(cpu="3")).scheduled


@pytest.mark.feature("SCH-RSV-04")
def test_what_a_reservation_keeps_for_itself_is_for_nobody() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="6"))
    held = world.hold("r", "a", cpu="4", annotations={"node.koordinator.sh/reservation": '{"resources": {"cpu": "1"}}'})
    assert world.uses(world.owner("p", uid="p", cpu="5")) == "r"  # 3 of the reservation and 2 of the node
    assert world.free("a") == 0
    assert not world.schedule(testing.pod(cpu="1")).scheduled
    shown = used(placed("r", "a", cpu="4"), held.owners.values(), 0.0, finished=False, inner=held.terms.inner)
    assert shown is not None
    assert shown["allocated"]["cpu"] == "3"
    world.cluster.remove_pod("p")
    assert world.free("a") == 2000


@pytest.mark.feature("SCH-RSV-06")
def test_an_amount_in_several_reservations_is_not_sold_to_a_stranger() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="10"))
    for name in ("r", "s", "t"):
        world.hold(name, "a", cpu="3")
    assert world.owner(cpu="1").scheduled
    assert not world.schedule(testing.pod(cpu="2")).scheduled
    assert world.schedule(testing.pod(cpu="1")).scheduled
    assert world.free("a") == 0


@pytest.mark.feature("SCH-RSV-06")
def test_a_failed_reserve_leaves_no_owner() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    held = world.hold("r", "a", cpu="4", once=True)
    decision = world.owner("p", uid="p", cpu="2")
    assert list(held.owners) == ["p"]
    assert not held.matchable
    world.framework.run_unreserve(decision.ctx, decision.slot)
    world.cluster.remove_pod("p")
    assert not held.owners
    assert held.matchable
    assert world.free("a") == 4000
    assert world.uses(world.owner(cpu="2")) == "r"


@pytest.mark.feature("SCH-RSV-01")
def test_status_that_differs_from_the_template_counts() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    held = world.hold("r", "a", cpu="2", memory="1Gi")
    assert world.free("a") == 6000
    made = placed("r", "a", cpu="2", memory="1Gi")
    made = made.__class__(metadata=made.metadata, spec=made.spec, status=made.status.__class__(
        phase="Available", node_name="a", allocatable={"cpu": "5", "memory": "1Gi"}))  # fmt: skip
    world.feed("Reservation", made, old=placed("r", "a", cpu="2", memory="1Gi"))
    assert world.free("a") == 3000
    assert held.terms.allocatable["cpu"] == 5000


@pytest.mark.feature("SCH-RSV-01")
def test_a_reservation_that_cannot_be_read_leaves_the_last_good_state(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.hold("r", "a", cpu="2")
    world.feed("Reservation", placed("r", "a", cpu="two"), old=placed("r", "a", cpu="2"))
    assert "Reservation r is not used" in caplog.text
    assert world.free("a") == 6000
    world.feed("Reservation", placed("bad", ttl="soon", cpu="1"))
    assert "spec.ttl: 'soon' is not a duration" in caplog.text
    assert "bad-uid" not in world.plugin.ledger.given


@pytest.mark.feature("SCH-FW-04")
def test_a_pod_that_changes_on_a_node_that_is_gone() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    world.hold("r", "a", cpu="2")
    world.cluster.remove_node("a")
    world.hold("r", "a", cpu="3")
    world.add_pods(testing.pod("p", uid="p", node="b", cpu="1"))
    world.add_pods(testing.pod("p", uid="p", node="b", cpu="2"))
    world.add_nodes(testing.node("a", cpu="8"), testing.node("b", cpu="8"))
    assert (world.free("a"), world.free("b")) == (5000, 6000)
