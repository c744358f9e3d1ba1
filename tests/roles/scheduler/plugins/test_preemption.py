"""DefaultPreemption: who has to go, and who must not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.objects import PodDisruptionBudget
from roles.scheduler import testing
from roles.scheduler.planner.evictions import Answer


def full(nodes: int = 2) -> testing.World:
    world = testing.World()
    world.add_nodes(*(testing.node(f"n{i}", cpu="2") for i in range(nodes)))
    return world


def feed_budget(world: testing.World, labels: dict[str, str]) -> None:
    """None of the pods with these labels may go."""
    budget = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": 0},
    }
    world.feed("PodDisruptionBudget", msgspec.convert(budget, PodDisruptionBudget))


@pytest.mark.feature("SCH-KS-12")
def test_the_least_important_victims_are_chosen_and_the_rest_reprieved() -> None:
    world = full()
    world.add_pods(
        testing.pod("low-a", node="n0", priority=1), testing.pod("mid-a", node="n0", priority=5),
        testing.pod("mid-b", node="n1", priority=5), testing.pod("mid-c", node="n1", priority=6),
    )  # fmt: skip
    free_before = world.cluster.free[0].copy()
    decision = world.decide(testing.pod(priority=10))
    assert not decision.scheduled
    assert decision.nominate == "n0"
    assert [victim.name for victim in decision.victims] == ["low-a"]
    assert (world.cluster.free[0] == free_before).all()


@pytest.mark.feature("SCH-KS-12")
def test_nobody_is_preempted_in_vain() -> None:
    world = full()
    world.add_pods(*(testing.pod(node=f"n{i}", cpu="2", priority=50) for i in range(2)))
    equal = world.decide(testing.pod(priority=50))
    assert equal.message().endswith("preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.")
    never = world.decide(testing.pod(priority=60, preemptionPolicy="Never"))
    assert never.message().endswith("preemption: not eligible due to preemptionPolicy=Never.")
    large = world.decide(testing.pod(priority=60, cpu="3"))
    assert large.message().endswith("preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
    assert not any(decision.victims for decision in (equal, never, large))


@pytest.mark.feature("SCH-KS-12")
def test_budgets_and_protected_pods_are_respected() -> None:
    world = full()
    guarded, shielded = {"app": "db"}, {"scheduling.koordinator.sh/disable-preemptible": "true"}
    world.add_pods(testing.pod("db", node="n0", cpu="2", labels=guarded, priority=1), testing.pod("web", node="n1", cpu="2", priority=5))
    feed_budget(world, guarded)
    decision = world.decide(testing.pod(priority=10))
    assert [victim.name for victim in decision.victims] == ["web"]
    world.cluster.remove_pod(decision.victims[0].uid)
    world.add_pods(testing.pod("kept", node="n1", cpu="2", labels=shielded))
    assert [victim.name for victim in world.decide(testing.pod(priority=10)).victims] == ["db"]


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize("more", [{}, {"ports": [{"hostPort": 80}]}], ids=["in sums", "one by one"])
def test_no_budget_is_broken_where_a_later_node_could_be_chosen(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`minCandidateNodesAbsolute` says how many nodes are enough to choose from, not how many may all hurt."""
    world = full(105)
    guarded = {"app": "db"}
    world.add_pods(*(testing.pod(f"db-{i}", node=f"n{i}", cpu="2", priority=1, labels=guarded) for i in range(104)))
    world.add_pods(testing.pod("web", node="n104", cpu="2", priority=5))
    feed_budget(world, guarded)
    monkeypatch.setattr(world.state.random, "randrange", lambda most: 0)
    assert [victim.name for victim in world.decide(testing.pod(priority=10, **more)).victims] == ["web"]


@pytest.mark.feature("SCH-KS-12")
def test_claims_of_victims_of_a_former_leader_are_waited_for() -> None:
    """This leader knows of no plan; it sees that pods went from the nominated node whose claims are not given back yet."""
    world = full()
    world.add_pods(testing.pod("stays", node="n0", cpu="2", priority=20), testing.pod("other", node="n1", cpu="2", priority=1))
    waits = world.parser.parse(testing.pod("waits", cpu="2", priority=10))
    world.state.nominations.add(waits, "n0")
    slot = world.cluster.slot_of("n0")
    world.state.evictions.held = lambda where, since: where == slot and since < world.state.now
    decision = world.decide(waits)
    assert decision.message().endswith("preemption: not eligible due to claims on the nominated node that are being given back.")
    assert (decision.nominate, decision.victims) == (None, ())
    world.state.evictions.held = lambda where, since: where != slot
    assert world.decide(waits).victims


@pytest.mark.feature("SCH-KS-12")
def test_a_victim_that_is_leaving_is_waited_for_while_its_node_is_of_use() -> None:
    world = full()
    going = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
    leaving, _ = world.add_pods(
        testing.pod("leaving", node="n0", cpu="2", priority=1, status=going), testing.pod("other", node="n1", cpu="2", priority=1)
    )
    leaving.deleting = True
    waits = world.parser.parse(testing.pod("waits", cpu="2", priority=10))
    world.state.nominations.add(waits, "n0")
    decision = world.decide(waits)
    assert decision.message().endswith("preemption: not eligible due to a terminating pod on the nominated node.")
    assert decision.victims == ()
    world.add_nodes(testing.node("n0", cpu="2", unschedulable=True))
    decision = world.decide(waits)
    assert (decision.nominate, [victim.name for victim in decision.victims]) == ("n1", ["other"])


@pytest.mark.feature("SCH-KS-12")
def test_without_the_informer_of_budgets_none_is_looked_at() -> None:
    for gates, watched in (({}, True), ({"DisablePodDisruptionBudgetInformer": True}, False), ({"PodDisruptionBudget": False}, False)):
        world = testing.World(gates=gates)
        feeds = world.framework.plugins["DefaultPreemption"].feeds()
        assert any(feed.kind.kind == "PodDisruptionBudget" for feed in feeds) is watched


@pytest.mark.feature("SCH-FW-06")
def test_room_for_a_nominated_pod_is_kept() -> None:
    world = full(1)
    nominated = world.parser.parse(testing.pod("nominated", priority=10))
    world.state.nominations.add(nominated, "n0")
    refused = world.decide(testing.pod(cpu="1500m", priority=1))
    assert refused.message().startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert world.decide(testing.pod(cpu="1", priority=1)).scheduled
    assert world.decide(testing.pod(cpu="1500m", priority=11)).scheduled
    assert world.decide(nominated).node == "n0"


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize("gangs", [False, True])
def test_room_is_kept_for_a_pod_while_some_leave_for_it_though_others_stay(gangs: bool) -> None:
    made = testing.World({"plugins": {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}}} if gangs else None)
    made.add_nodes(testing.node("n", cpu="2"))
    made.add_pods(*(testing.pod(f"low-{number}", uid=f"low-{number}", cpu="1", node="n") for number in range(2)))
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "deleted-meanwhile"}}
    pod = made.parser.parse(testing.pod("high", cpu="2", priority=10, volumes=[volume]))
    evictions, now = made.state.evictions, made.state.now
    made.state.nominations.add(pod, "n")
    evictions.plan(pod.uid, {"low-0": 30.0, "low-1": 30.0}, (), (), now)
    evictions.answered("low-0", Answer.FAILED, now)
    evictions.answered("low-1", Answer.DONE, now)
    assert made.decide(pod).nominate is None
    evictions.left("low-1")
    assert made.decide(pod).nominate == "", "nobody leaves for it any more"
