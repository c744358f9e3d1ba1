"""A world ends its calm when nothing is under way and no rule waits for the end of its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roles.sandbox.world.history import Entry, History
from roles.sandbox.world.invariants.checker import Checker
from roles.sandbox.world.loop import VirtualLoop, run
from roles.sandbox.world.network import Network
from roles.sandbox.world.settling import LOOK, SHORTEST, STILL, WITH_AGENTS, settled


def pod(phase: str = "Running", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "d", "uid": "p", **meta}, "spec": {"nodeName": "n"}, "status": {"phase": phase}}


def lasts(happens: dict[float, Callable[[History], None]], *, agents: bool = False, pace: float = 1.0, is_open: Any = None) -> float:
    """Seconds of a calm of sixty in which these things happen."""
    loop = VirtualLoop()
    Network(loop)
    history = History(loop.time, pace=pace)
    for at, what in happens.items():
        loop.call_at(at, what, history)
    run(loop, settled(history, is_open or (lambda: False), 60.0, agents=agents))
    loop.close()
    return loop.time()


def writes(bucket: str, author: str) -> Callable[[History], None]:
    def write(history: History) -> None:
        obj = pod()
        history.of(bucket)["d/p"] = obj
        history._add(Entry(history.count, history.clock(), author, "", bucket, "MODIFIED", "d/p", obj, obj))

    return write


def becomes(bucket: str, obj: Any) -> Callable[[History], None]:
    return lambda history: history.of(bucket).update({"d/p": obj})


def test_a_world_in_which_nothing_happens_rests_for_the_shortest_time() -> None:
    heartbeats = {float(at): writes("lease.coordination.k8s.io", "scheduler-a") for at in range(1, 60, 5)}
    assert lasts(heartbeats) == SHORTEST
    assert lasts(heartbeats, agents=True) == WITH_AGENTS


@pytest.mark.parametrize(
    "restless",
    [writes("pod", "scheduler-a"), lambda history: history.requested("descheduler-a", "POST", "/api/v1/namespaces/d/pods/p/eviction")],
)
def test_who_has_just_written_or_was_refused_is_given_time(restless: Callable[[History], None]) -> None:
    last = SHORTEST - 1
    assert last + STILL <= lasts({last: restless}) < last + STILL + LOOK + 1


@pytest.mark.parametrize(
    ("bucket", "obj"),
    [
        ("pod", pod("Pending")),
        ("pod", pod(deletionTimestamp="2026-01-01T00:00:00Z")),
        ("podmigrationjob.scheduling.koordinator.sh", {"status": {"phase": "Running"}}),
        ("reservation.scheduling.koordinator.sh", {"status": {"phase": "Available"}}),
    ],
)
def test_what_waits_for_somebody_keeps_the_world_going(bucket: str, obj: Any) -> None:
    assert lasts({1.0: becomes(bucket, obj)}) == 60.0


def test_a_rule_that_waits_keeps_the_world_going_and_a_large_world_takes_all_of_its_time() -> None:
    assert lasts({}, is_open=lambda: True) == 60.0
    assert lasts({}, pace=12.0) == 60.0


def test_a_rule_is_open_before_its_time_is_over() -> None:
    now = 0.0
    history = History(lambda: now)
    checker = Checker(history)
    offers = {"status": {"allocatable": {"kubernetes.io/batch-cpu": "500"}, "capacity": {"cpu": "6"}}}
    silence = next(rule for rule in checker.invariants if rule.name == "NoPromiseFromSilence")

    history.of("node")["n"] = offers
    history._add(Entry(0, now, "kubelet-n", "", "nodemetric.slo.koordinator.sh", "MODIFIED", "n", None, {"status": {}}))
    now = 20.0
    assert not silence.open()
    now = 40.0
    assert silence.open()
    assert not list(silence.end())
    now = 100.0
    assert list(silence.end())
