"""The queue's rules, with time as an argument."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from roles.scheduler import testing
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo, PodParser
from roles.scheduler.cluster.vocabulary import Vocabulary
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.status import SUCCESS, Status, error, unresolvable
from roles.scheduler.queue.queue import SchedulingQueue

PARSER = PodParser(Vocabulary())


def info(name: str = "", **spec: Any) -> PodInfo:
    return PARSER.parse(testing.pod(name, **spec))


def gate(pod: PodInfo) -> Status:
    return unresolvable("gated").by("Gate") if pod.shape.gates else SUCCESS


def queue(**subscriptions: tuple[Subscription, ...]) -> SchedulingQueue:
    return SchedulingQueue(
        sort_key=lambda pod, entered: (-pod.priority, entered), pre_enqueue=gate, subscriptions={testing.SCHEDULER: subscriptions}
    )


def pop(found: SchedulingQueue, now: float) -> str:
    entry = found.pop(now)
    return entry.pod.name if entry is not None else ""


@pytest.mark.feature("SCH-FW-05")
def test_priority_then_arrival() -> None:
    found = queue()
    for name, priority, at in (("late", 5, 3.0), ("low", 1, 0.0), ("early", 5, 1.0), ("none", None, 2.0)):
        found.add(info(name, priority=priority), at)
    assert [pop(found, 9.0) for _ in range(5)] == ["early", "late", "low", "none", ""]


@pytest.mark.feature("SCH-FW-05")
def test_errors_back_off_twice_as_long_each_time_up_to_the_limit() -> None:
    found, pod = queue(), info("p")
    found.add(pod, 0.0)
    now, rests = 0.0, []
    for _ in range(6):
        assert pop(found, now) == "p"
        found.requeue(pod.uid, now, error=True)
        assert pop(found, now) == ""
        wake = found.next_wake()
        assert wake is not None
        rests.append(wake - now)
        now = wake
    assert rests == [1, 2, 4, 8, 10, 10]


@pytest.mark.feature("SCH-FW-05")
def test_a_hint_that_fails_rules_nothing_out() -> None:
    def broken(pod: PodInfo, event: ClusterEvent) -> bool:
        raise ValueError("no such field")

    found, pod = queue(Fit=(Subscription(NODE, Action.ADD, broken),)), info("p")
    found.add(pod, 0.0)
    assert pop(found, 0.0) == "p"
    found.requeue(pod.uid, 0.0, rejected_by=frozenset({"Fit"}))
    assert found.on_event(ClusterEvent(NODE, Action.ADD), 20.0) == 1
    assert pop(found, 20.0) == "p"


@pytest.mark.feature("SCH-FW-05")
def test_only_a_subscribed_event_whose_hint_agrees_brings_a_pod_back() -> None:
    found = queue(Fit=(Subscription(NODE, Action.ADD, lambda pod, event: event.new == "big"),), Silent=())
    fit, silent, unknown = info("fit"), info("silent", labels={"x": "y"}), info("unknown", labels={"x": "z"})
    for pod, by in ((fit, {"Fit"}), (silent, {"Silent"}), (unknown, set())):
        found.add(pod, 0.0)
        assert pop(found, 0.0) == pod.name
        found.requeue(pod.uid, 0.0, rejected_by=frozenset(by))
    assert found.on_event(ClusterEvent(NODE, Action.ADD, None, "small"), 5.0) == 1
    assert pop(found, 5.0) == "unknown"
    assert found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE), 5.0) == 0
    assert found.on_event(ClusterEvent(NODE, Action.ADD, None, "big"), 5.0) == 1
    assert pop(found, 5.0) == "fit"
    assert found.counts()["unschedulable"] == 1
    assert found.flush_leftover(299.0) == 0
    assert found.flush_leftover(301.0) == 1
    assert pop(found, 301.0) == "silent"


@pytest.mark.feature("SCH-FW-05")
def test_events_during_an_attempt_are_not_lost() -> None:
    found = queue(Fit=(Subscription(NODE, Action.ADD),))
    first, second = info("first"), info("second")
    found.add(first, 0.0)
    found.add(second, 0.5)
    assert pop(found, 1.0) == "first"
    found.on_event(ClusterEvent(NODE, Action.ADD, None, "n"), 1.0)
    assert pop(found, 1.0) == "second"
    found.requeue(second.uid, 1.0, rejected_by=frozenset({"Fit"}))
    assert found.counts()["unschedulable"] == 1
    found.requeue(first.uid, 1.0, rejected_by=frozenset({"Fit"}))
    assert found.counts()["backoff"] == 1
    assert pop(found, 1.1) == "first", "with nothing else to do a rejected pod need not sit its backoff out"


@pytest.mark.feature("SCH-KS-11")
def test_gated_pods_enter_when_the_gate_falls_and_by_activation_only_then() -> None:
    found = queue(Gate=(Subscription(UNSCHEDULED_POD, Action.UPDATE_GATES),))
    pod = info("p", uid="u", schedulingGates=[{"name": "g"}])
    found.add(pod, 0.0)
    found.activate([pod], 0.0)
    assert found.counts()["gated"] == 1
    free = info("p", uid="u")
    found.update(free, [ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_GATES, pod, free)], 1.0)
    assert pop(found, 1.0) == "p"


@pytest.mark.feature("SCH-GANG-07")
def test_a_status_lets_nobody_through_a_gate_that_has_opened_meanwhile() -> None:
    """The scheduler itself writes it: each member of a refused gang would begin the next try by being told of the last one."""
    verdict = [unresolvable("another pod stands for it")]
    found = SchedulingQueue(sort_key=lambda pod, entered: (), pre_enqueue=lambda pod: verdict[0], subscriptions={})
    found.add(info("p", uid="u"), 0.0)
    verdict[0] = SUCCESS
    found.update(info("p", uid="u", status={"phase": "Pending"}), (), 1.0)
    assert found.counts()["gated"] == 1
    found.activate([info("p", uid="u")], 2.0)
    assert pop(found, 2.0) == "p"


@pytest.mark.feature("SCH-FW-05")
def test_status_changes_do_not_requeue_deletion_leaves_everything() -> None:
    found = queue(Fit=(Subscription(NODE, Action.ADD),))
    pod = info("p", uid="u")
    found.add(pod, 0.0)
    assert pop(found, 0.0) == "p"
    found.requeue("u", 0.0, rejected_by=frozenset({"Fit"}))
    found.update(info("p", uid="u", status={"phase": "Pending"}), (), 1.0)
    assert found.counts()["unschedulable"] == 1
    assert found.take("u", 2.0) is not None
    found.delete("u")
    assert len(found) == 0
    assert found.on_event(ClusterEvent(NODE, Action.ADD), 3.0) == 0
    assert set(found.counts().values()) == {0}


@pytest.mark.feature("SCH-FW-05")
def test_no_pod_is_tried_more_often_than_its_backoff_allows_with_nothing_else_to_do() -> None:
    found, pod = queue(Fit=(Subscription(ASSIGNED_POD, Action.DELETE),)), info("p")
    found.add(pod, 0.0)
    tried: list[float] = []
    for tenth in range(400):
        now = tenth / 10
        found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE), now)  # each would bring it back
        if pop(found, now):
            tried.append(now)
            found.requeue(pod.uid, now, rejected_by=frozenset({"Fit"}))
    rests = [after - before for before, after in pairwise(tried)]
    assert rests[0] <= 1.0  # the first rest may be cut short
    assert [round(rest) for rest in rests[1:6]] == [2, 4, 8, 10, 10]


@pytest.mark.feature("SCH-FW-05")
def test_events_are_kept_by_object_and_kind_and_only_what_hints_read() -> None:
    def keep(event: ClusterEvent) -> ClusterEvent:
        return event._replace(old=None, new=event.new.split("/")[0])

    subscriptions = (
        Subscription(NODE, Action.UPDATE_LABELS, lambda pod, event: event.new == "good", keep),
        Subscription(ASSIGNED_POD, Action.DELETE),
    )
    found, held, other = queue(Fit=subscriptions), info("held"), info("other")
    found.add(held, 0.0)
    found.add(other, 0.0)
    assert pop(found, 0.0) == "held"
    for number in range(1000):
        found.on_event(ClusterEvent(NODE, Action.UPDATE_LABELS, "x", f"bad/{number}"), 1.0)
        found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, info(f"gone-{number}")), 1.0)
        found.on_event(ClusterEvent("NodeMetric", Action.UPDATE, "a lot", "of text"), 1.0)  # nobody subscribed
    log = found._log
    assert len(log) == 3
    assert {(kept.event.old, kept.event.new) for kept in log.since(0, lambda event: True)} == {(None, "bad"), (None, None)}
    assert pop(found, 1.0) == "other"
    found.on_event(ClusterEvent(NODE, Action.UPDATE_LABELS, "x", "good/1"), 2.0)
    found.requeue(other.uid, 2.0, rejected_by=frozenset({"Fit"}))
    assert found.counts()["backoff"] == 1, "the one event after it went in flight helps"
    found.committed(held.uid)
    assert len(log) == 0


@pytest.mark.feature("SCH-FW-05")
def test_a_change_back_and_forth_while_pods_are_in_flight_loses_nobody() -> None:
    """Events of one object are merged: whoever was decided between two of them must not be judged by both together."""

    def grew(pod: PodInfo, event: ClusterEvent) -> bool:
        return event.new.allocatable["cpu"] > event.old.allocatable["cpu"]

    def view(cpu: str) -> NodeView:
        return NodeView(testing.node("n", cpu=cpu))

    found = queue(Fit=(Subscription(NODE, Action.UPDATE_ALLOCATABLE, grew),))
    early, late = info("early"), info("late")
    found.add(early, 0.0)
    assert pop(found, 0.0) == "early"
    found.on_event(ClusterEvent(NODE, Action.UPDATE_ALLOCATABLE, view("8"), view("2")), 1.0)
    found.add(late, 1.0)
    assert pop(found, 1.0) == "late"  # decided against 2 CPUs
    found.on_event(ClusterEvent(NODE, Action.UPDATE_ALLOCATABLE, view("2"), view("8")), 2.0)
    found.requeue(late.uid, 2.0, rejected_by=frozenset({"Fit"}))
    assert found.counts()["backoff"] == 1
    found.requeue(early.uid, 2.0, rejected_by=frozenset({"Fit"}))
    assert found.counts()["backoff"] == 2


@pytest.mark.feature("SCH-FW-05")
def test_pods_that_one_event_brings_back_come_in_the_order_of_the_plugins_that_refused_them() -> None:
    names = [f"Plugin{number}" for number in range(12)]
    found = queue(**{name: (Subscription(NODE, Action.ADD),) for name in names})
    for name in reversed(names):
        pod = info(name)
        found.add(pod, 0.0)
        assert pop(found, 0.0) == name
        found.requeue(pod.uid, 0.0, rejected_by=frozenset({name}), pending=True)
    found.on_event(ClusterEvent(NODE, Action.ADD), 1.0)
    assert [pop(found, 1.0) for _ in names] == names


@pytest.mark.feature("SCH-FW-05")
def test_hints_are_asked_once_for_pods_that_are_alike() -> None:
    asked: list[str] = []

    def hint(pod: PodInfo, event: ClusterEvent) -> bool:
        asked.append(pod.name)
        return False

    found = queue(Gang=(Subscription(ASSIGNED_POD, Action.DELETE, hint),))
    members = [info(f"m{number}") for number in range(50)]
    for member in members:
        found.add(member, 0.0)
    while pop(found, 0.0):
        pass
    for number in range(200):
        found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, info(f"x-{number}")), 1.0)
    for member in members:
        found.requeue(member.uid, 2.0, rejected_by=frozenset({"Gang"}))
    assert len(asked) == 200
    assert found.counts()["unschedulable"] == 50


@pytest.mark.feature("SCH-FW-05")
def test_a_preenqueue_plugin_that_breaks_costs_the_pod_a_rest() -> None:
    broken = [True]

    def pre_enqueue(pod: PodInfo) -> Status:
        return error("plugin X (pre_enqueue): ValueError: a defect") if broken[0] else SUCCESS

    found = SchedulingQueue(sort_key=lambda pod, entered: (entered,), pre_enqueue=pre_enqueue, subscriptions={})
    told: list[str] = []
    found.broken = lambda pod, message, now: told.append(message)
    found.add(info("p"), 0.0)
    assert pop(found, 0.5) == ""
    assert told == ["plugin X (pre_enqueue): ValueError: a defect"]
    broken[0] = False
    assert pop(found, 1.0) == "p"
