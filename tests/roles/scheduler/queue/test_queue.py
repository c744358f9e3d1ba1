"""The queue's rules, with time as an argument."""

from __future__ import annotations

from typing import Any

import pytest

from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo, PodParser
from roles.scheduler.cluster.vocabulary import Vocabulary
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.status import SUCCESS, Status, unresolvable
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
