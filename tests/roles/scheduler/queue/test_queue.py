"""The queue's rules, with time as an argument."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from koord.api.gangs import gang_id
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


def queue(options: dict[str, Any] | None = None, **subscriptions: tuple[Subscription, ...]) -> SchedulingQueue:
    return SchedulingQueue(
        sort_key=lambda pod, entered: (-pod.priority, entered), pre_enqueue=gate, subscriptions={testing.SCHEDULER: subscriptions},
        **(options or {}),
    )  # fmt: skip


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
@pytest.mark.parametrize("tried", [False, True])
def test_little_is_kept_of_pods_that_went_while_nobody_came(tried: bool) -> None:
    found, pods = queue(), [info(f"p{number}", labels={"number": str(number)}) for number in range(500)]
    kept = weakref.WeakSet(pod.shape for pod in pods)
    for pod in pods:
        found.add(pod, 0.0)
    for pod in pods if tried else ():
        found.pop(0.0)
        found.requeue(pod.uid, 0.0, error=True)
    while pods:
        found.delete(pods.pop().uid)
    del pod
    gc.collect()
    assert len(kept) < 100


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
    assert pop(found, 1.9) == ""
    assert pop(found, 2.0) == "first"


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


ROOM = ClusterEvent(ASSIGNED_POD, Action.DELETE)
FIT = {"Fit": (Subscription(ASSIGNED_POD, Action.DELETE), Subscription(UNSCHEDULED_POD, Action.ALL))}


def refuse(found: SchedulingQueue, pod: PodInfo, now: float) -> None:
    found.requeue(pod.uid, now, rejected_by=frozenset({"Fit"}))


def rests_of(found: SchedulingQueue, happens: Callable[[float], object]) -> list[float]:
    """Seconds between the tries of a pod with nothing else to do; something happens each tenth of a second."""
    tried: list[float] = []
    for tenth in range(400):
        happens(tenth / 10)
        while (entry := found.pop(tenth / 10)) is not None:
            tried.append(tenth / 10)
            refuse(found, entry.pod, tenth / 10)
    return [round(after - before, 1) for before, after in pairwise(tried)]


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.parametrize("gate_on", [False, True])
def test_no_pod_is_tried_more_often_than_its_backoff_allows_with_nothing_else_to_do(gate_on: bool) -> None:
    """Not before its first rest is over either, unless a gate says so."""
    found, pod = queue({"pop_from_backoff": gate_on}, **FIT), info("p")
    found.add(pod, 0.0)
    rests = rests_of(found, lambda now: found.on_event(ROOM, now))  # each would bring it back
    assert rests[0] == (0.1 if gate_on else 1.0)
    assert rests[1:6] == [2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.parametrize("how", ["edited", "activated", "gated for a moment"])
def test_nothing_that_brings_a_pod_back_cuts_its_rest_short(how: str) -> None:
    found, pod = queue(**FIT), info("p", uid="u")
    found.add(pod, 0.0)

    def happens(now: float) -> None:
        number = str(round(now * 10))
        if how == "activated":
            found.activate([pod], now)
            return
        before = found.get("u")
        assert before is not None
        if how == "gated for a moment":  # put on hold and let go: the rest goes on
            held = info("p", uid="u", schedulingGates=[{"name": "g"}])
            found.update(held, [ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_GATES, before.pod, held)], now)
            found.on_event(ROOM, now)
            before = found.get("u")
            assert before is not None
        changed = info("p", uid="u", labels={"version": number})
        found.update(changed, [ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_LABELS, before.pod, changed)], now)

    assert rests_of(found, happens)[:6] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.feature("SCH-GANG-06")
def test_nobody_of_a_job_is_tried_before_those_who_were_have_rested() -> None:
    """Its pods are tried together: a new one would take the others along."""
    found = queue({"job_of": lambda pod: pod.labels.get("job")}, **FIT)
    first, second = info("first", uid="1", labels={"job": "j"}), info("second", uid="2", labels={"job": "j"})
    found.add(first, 0.0)
    for now in (0.0, 1.0):
        assert pop(found, now) == "first"
        refuse(found, first, now)
        found.on_event(ROOM, now)
    found.add(second, 1.5)
    found.add(info("other", labels={"job": "k"}), 1.5)
    found.add(info("alone"), 1.5)
    assert [pop(found, 2.9) for _ in range(3)] == ["other", "alone", ""]
    assert {pop(found, 3.0), pop(found, 3.0)} == {"first", "second"}
    refuse(found, second, 3.0)
    refuse(found, first, 3.0)
    found.on_event(ROOM, 3.0)
    assert pop(found, 4.0) == "", "the one that was refused more often rests for longer"
    found.activate([first], 4.0, rested=True)
    assert {pop(found, 4.0), pop(found, 4.0)} == {"first", "second"}, "what they waited for is over"


@pytest.mark.feature("SCH-FW-05")
def test_room_that_a_job_gives_up_is_of_use_to_other_jobs_of_the_same_template() -> None:
    found = queue({"job_of": lambda pod: gang_id(pod.pod) or None}, Fit=(Subscription(ASSIGNED_POD, Action.DELETE),))
    ours, theirs = (info(f"{name}-0", uid=name, schedulingGroup={"podGroupName": name}) for name in ("ours", "theirs"))
    for pod in (ours, theirs):
        found.add(pod, 0.0)
        found.pop(0.0)
        refuse(found, pod, 0.0)
    assert found.room_given_up(ours, 20.0) == 1
    assert pop(found, 20.0) == "theirs-0"


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


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.parametrize("room", [False, True])
def test_pods_that_come_back_together_cost_about_what_happened_since(room: bool) -> None:
    """However different they are, and though each tells of the room that it gives back."""
    asked: list[str] = []
    found = queue(Fit=(Subscription(ASSIGNED_POD, Action.DELETE, lambda pod, event: bool(asked.append(pod.name))),))
    held = [info(f"h{number}", cpu=f"{number + 1}m") for number in range(50)]
    for pod in held:
        found.add(pod, 0.0)
        assert found.pop(0.0) is not None
    for _ in range(500):
        found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, info()), 1.0)
    for pod in held:
        if room:
            found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, pod), 9.0)
        refuse(found, pod, 9.0)
    assert len(asked) < 6 * 500
    assert found.counts()["unschedulable"] + found.counts()["backoff"] == 50


@pytest.mark.feature("SCH-FW-05")
def test_objects_that_come_and_go_while_a_pod_is_held_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roles.scheduler.queue.events.MOST", 10)
    hint = Subscription(ASSIGNED_POD, Action.DELETE, lambda pod, event: event.old is not None and event.old.name == "big")
    found = queue(Fit=(hint, Subscription("Thing", Action.ADD, lambda pod, event: False)))
    early, late = info("early"), info("late")
    for at, pod in ((0.0, early), (2.0, late)):
        found.add(pod, at)
        assert pop(found, at) == pod.name
        if pod is early:
            found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, info("big")), 1.0)
    for number in range(50):
        found.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, info("small")), 3.0)
        found.on_event(ClusterEvent("Thing", Action.ADD, None, {"metadata": {"name": f"t{number % 3}"}}), 3.0)
    assert len(found._log) == (10 + 1) + 3, "the last ones and that there were others; things by their names"
    refuse(found, early, 4.0)
    assert found.counts()["backoff"] == 1, "nobody knows any more which pods ended first: perhaps one that helps"
    refuse(found, late, 4.0)
    assert found.counts()["in-flight"] == 0


@pytest.mark.feature("SCH-FW-05")
def test_a_crowd_that_an_event_brings_back_comes_in_pieces_and_whole_before_anybody_is_tried() -> None:
    found = queue(Fit=(Subscription(NODE, Action.ADD),))
    pods = [info(f"p{number}", priority=number) for number in range(1500)]
    for pod in pods:
        found.add(pod, 0.0)
    for _ in pods:
        entry = found.pop(0.0)
        assert entry is not None
        found.requeue(entry.pod.uid, 0.0, rejected_by=frozenset({"Fit"}))
    assert found.on_event(ClusterEvent(NODE, Action.ADD), 20.0) == 1500
    assert found.returning
    waiting = found.counts()["unschedulable"]
    assert 0 < waiting < 1500, "some are there at once, the others leave the loop a turn"
    found.delete(pods[0].uid)
    assert found.take(pods[1].uid, 20.0) is not None, "one of them is tried before and fails again"
    found.requeue(pods[1].uid, 20.0, rejected_by=frozenset({"Fit"}))
    steps = sum(1 for _ in found.come_back(20.0))
    assert steps >= waiting // 100, "none of the steps is long"
    assert not found.returning
    assert [pop(found, 20.0) for _ in range(1498)] == [pod.name for pod in reversed(pods[2:])]
    assert pop(found, 20.0) == "", "what was tried since is not helped by what came before"


@pytest.mark.feature("SCH-FW-05")
def test_few_pods_of_a_crowd_are_asked_about_at_a_time() -> None:
    """preEnqueue plugins look at quotas and gangs: a hundred pods cost as much as a decision."""
    asked: list[str] = []

    def slow(pod: PodInfo) -> Status:
        asked.append(pod.name)
        return SUCCESS

    found = SchedulingQueue(
        sort_key=lambda pod, entered: (-pod.priority, entered), pre_enqueue=slow,
        subscriptions={testing.SCHEDULER: {"Fit": (Subscription(NODE, Action.ADD),)}},
    )  # fmt: skip
    for number in range(1000):
        found.add(info(f"p{number}"), 0.0)
    while (entry := found.pop(0.0)) is not None:
        found.requeue(entry.pod.uid, 0.0, rejected_by=frozenset({"Fit"}))
    asked.clear()
    found.on_event(ClusterEvent(NODE, Action.ADD), 0.5)
    most, before = len(asked), len(asked)
    for _ in found.come_back(0.5):
        most, before = max(most, len(asked) - before), len(asked)
    assert found.counts()["backoff"] == 1000
    while asked.clear() is None and found.pop(20.0) is not None:
        most = max(most, len(asked))
    assert most <= 64


@pytest.mark.feature("SCH-FW-05")
def test_whoever_asks_for_the_next_pod_finds_a_whole_crowd() -> None:
    found = queue(Fit=(Subscription(NODE, Action.ADD),))
    for number in range(1500):
        found.add(info(f"p{number}", priority=number), 0.0)
    while (entry := found.pop(0.0)) is not None:
        found.requeue(entry.pod.uid, 0.0, rejected_by=frozenset({"Fit"}))
    found.on_event(ClusterEvent(NODE, Action.ADD), 20.0)
    assert pop(found, 20.0) == "p1499", "the most important one, wherever it was in the crowd"


@pytest.mark.feature("SCH-FW-05")
def test_a_crowd_is_noted_once_while_nobody_asks_for_pods_and_forgotten_with_its_pods() -> None:
    """A standby hears of events for months and tries nobody."""
    found = queue(Fit=(Subscription(NODE, Action.ADD),))
    pods = [info(f"p{number}") for number in range(1500)]
    for pod in pods:
        found.add(pod, 0.0)
    while (entry := found.pop(0.0)) is not None:
        found.requeue(entry.pod.uid, 0.0, rejected_by=frozenset({"Fit"}))
    found.on_event(ClusterEvent(NODE, Action.ADD), 20.0)
    once = len(found._returning)
    for _ in range(5):
        found.on_event(ClusterEvent(NODE, Action.ADD), 20.0)
    assert len(found._returning) <= once
    for pod in pods:
        found.delete(pod.uid)
    assert not found.returning


@pytest.mark.feature("SCH-FW-05")
def test_a_step_of_a_subscription_that_fails_keeps_no_event_from_anybody() -> None:
    def fails(*args: Any) -> Any:
        raise ValueError("a defect")

    faulty = Subscription(NODE, Action.ADD, fails, fails, fails)
    found = queue(A=(faulty,), B=(Subscription(NODE, Action.ADD),))
    for name in ("flies", "waits"):
        found.add(info(name, uid=name, labels={"app": name}), 0.0)
    assert (pop(found, 0.0), pop(found, 0.0)) == ("flies", "waits")
    found.requeue("waits", 0.0, rejected_by=frozenset({"B"}))
    assert found.on_event(ClusterEvent(NODE, Action.ADD, None, NodeView(testing.node("n"))), 5.0) == 1
    found.requeue("flies", 5.0, rejected_by=frozenset({"A"}))
    assert {pop(found, 20.0), pop(found, 20.0)} == {"flies", "waits"}


@pytest.mark.feature("SCH-FW-05")
def test_pods_that_come_and_go_leave_nothing_behind_where_nobody_pops() -> None:
    """As with a scheduler that stands by."""
    found = queue()
    found.add(info("stays", uid="stays", priority=7), 0.0)
    for number in range(1000):
        found.add(info(uid=f"u{number}"), float(number))
        found.update(info(uid=f"u{number}", labels={"x": "y"}), (ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_LABELS),), float(number))
        found.delete(f"u{number}")
    assert len(found) == 1
    assert sum(len(value) for value in vars(found).values() if isinstance(value, list | dict)) < 200
    assert (pop(found, 2000.0), pop(found, 2000.0)) == ("stays", "")
