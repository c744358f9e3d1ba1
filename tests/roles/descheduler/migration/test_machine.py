"""The state machine by itself: whatever it is shown, it hurts nobody, and it comes to an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import names, objects
from roles.descheduler.migration import leaving, machine, scavenger, status
from roles.descheduler.migration.step import Act, Step, View
from roles.descheduler.relief import Ceiling, Relief
from tests.support.examples import examples

CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["ReservationCreated", "ReservationScheduled", "Eviction", "PodBoundReservation", "ReservationBound", "BoundPodReady"]
        ),
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "reason": st.sampled_from(["", "Evicting", "FailedEvict", "EvictComplete", "Unschedulable"]),
    }
)
JOB = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.just("j"),
                "uid": st.just("job"),
                "creationTimestamp": st.just("2026-01-01T00:00:00Z"),
                "annotations": st.sampled_from(
                    [{}, {names.ANNOTATION_PASSED_ARBITRATION: "true"}, {names.ANNOTATION_DESCHEDULER_EVICT: ""}]
                ),
            }
        ),
        "spec": st.fixed_dictionaries(
            {
                "paused": st.booleans(),
                "ttl": st.sampled_from(["5m", "0s", "soon", ""]),
                "mode": st.sampled_from(["", "ReservationFirst", "EvictDirectly", "Sideways"]),
                "podRef": st.sampled_from([{}, {"namespace": "d", "name": "p"}, {"namespace": "d", "name": "p", "uid": "u"}]),
                "reservationOptions": st.sampled_from([{}, {"reservationRef": {"name": "r"}}]),
            }
        ),
        "status": st.fixed_dictionaries(
            {
                "phase": st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed", "Aborted"]),
                "status": st.sampled_from(["", "Eviction"]),
                "conditions": st.lists(CONDITION, max_size=4, unique_by=lambda each: each["type"]),
            }
        ),
    }
)

PASSED = {
    "name": "j",
    "uid": "job",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "annotations": {names.ANNOTATION_PASSED_ARBITRATION: "true"},
}
MADE = [{"type": "ReservationCreated", "status": "True"}, {"type": "ReservationScheduled", "status": "True"}]
BUSY = st.fixed_dictionaries(  # jobs that are in the middle of their way, where most can go wrong
    {
        "metadata": st.just(PASSED),
        "spec": st.sampled_from(
            [
                {"mode": "EvictDirectly", "podRef": {"namespace": "d", "name": "p", "uid": "u"}},
                {"podRef": {"namespace": "d", "name": "p", "uid": "u"}, "reservationOptions": {"reservationRef": {"name": "r"}}},
            ]
        ),
        "status": st.fixed_dictionaries({"phase": st.just("Running"), "conditions": st.sampled_from([MADE, MADE[:1], []])}),
    }
)
POD = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"name": st.just("p"), "namespace": st.just("d"), "uid": st.sampled_from(["u", "v"])}),
            "spec": st.fixed_dictionaries({"nodeName": st.sampled_from(["n1", ""])}),
            "status": st.sampled_from(
                [{}, {"conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]}]
            ),
        }
    ),
)
RESERVATION = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries(
                {
                    "name": st.just("r"),
                    "labels": st.sampled_from([{}, {names.LABEL_RESERVATION_ORDER: "1", names.LABEL_CREATED_BY: "koord-descheduler"}]),
                }
            ),
            "spec": st.sampled_from(
                [{}, {"owners": [{"object": {"kind": "Pod", "namespace": "d", "name": "p"}}]}, {"allocateOnce": False}]
            ),
            "status": st.fixed_dictionaries(
                {
                    "phase": st.sampled_from(["", "Pending", "Waiting", "Available", "Succeeded", "Failed"]),
                    "nodeName": st.sampled_from(["", "n1", "n2"]),
                    "conditions": st.sampled_from(
                        [
                            [],
                            [{"type": "Scheduled", "status": "True", "reason": "Scheduled"}],
                            [{"type": "Scheduled", "status": "False", "reason": "Unschedulable"}],
                        ]
                    ),
                    "currentOwners": st.sampled_from([[], [{"namespace": "d", "name": "q", "uid": "q"}]]),
                }
            ),
        }
    ),
)


def view(job: Any, pod: Any, reservation: Any, gone: bool, late: bool) -> View:
    return View(
        job=objects.convert(job, objects.PodMigrationJob),
        now=1767225600.0 + (301.0 if late else 10.0),
        pod=None if pod is None else objects.convert(pod, objects.Pod),
        reservation=None if reservation is None else objects.convert(reservation, objects.Reservation),
        target_gone=gone,
    )


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-04")
@examples(300)
@given(job=st.one_of(JOB, BUSY), pod=POD, reservation=RESERVATION, gone=st.booleans(), late=st.booleans())
def test_whatever_is_seen_nobody_is_hurt(job: Any, pod: Any, reservation: Any, gone: bool, late: bool) -> None:
    seen = view(job, pod, reservation, gone, late)
    for _ in range(12):
        step = machine.decide(seen)
        if step.act is Act.EVICT:
            check_eviction(seen)
        if seen.job.spec.paused and not status.finished(seen.job):
            assert step.rests
        if status.finished(seen.job):
            assert step.status is None
            assert step.act in (Act.NONE, Act.RELEASE, Act.TAKE_BACK)
        if step.rests or step.act is not Act.NONE:
            return
        seen = follow(seen, step)
    raise AssertionError("the job does not come to rest")


def check_eviction(seen: View) -> None:
    """A pod is only evicted by a job that began, is the pod that was meant, and has a place to go to if one was promised."""
    assert status.running(seen.job)
    assert seen.pod is not None
    assert status.pod_uid(seen.job) in ("", seen.pod.metadata.uid)
    assert not status.holds(seen.job, status.Kind.EVICTION)
    found = status.condition(seen.job, status.Kind.EVICTION)
    assert found is None or (found.status, found.reason) != ("False", "Evicting")
    if status.reservation_ref(seen.job) is not None:
        assert seen.reservation is not None
        assert seen.reservation.status.phase not in ("Succeeded",)
        assert not seen.target_gone
    elif seen.job.spec.mode != "EvictDirectly":
        raise AssertionError("nothing was reserved")


def follow(seen: View, step: Step) -> View:
    """The same world after the step was written."""
    assert step.status is not None
    assert step.status != seen.job.status
    job = msgspec.structs.replace(seen.job, status=step.status)
    return View(job, seen.now, seen.pod, seen.reservation, seen.bound, seen.target_gone, seen.hold, seen.default_mode)


@pytest.mark.feature("DS-MC-03")
def test_conditions_keep_the_time_of_their_last_change() -> None:
    empty = objects.PodMigrationJobStatus()
    first = status.with_condition(empty, status.Kind.EVICTION, "False", "FailedEvict", "no", 1.0)
    assert first is not None
    assert (first.status, first.reason, first.message) == ("Eviction", "FailedEvict", "no")
    assert status.with_condition(first, status.Kind.EVICTION, "False", "FailedEvict", "no", 9.0) is None
    second = status.with_condition(first, status.Kind.EVICTION, "False", "Evicting", "now", 5.0)
    assert second is not None
    assert second.conditions[0].last_transition_time == "1970-01-01T00:00:01Z"
    assert second.conditions[0].last_probe_time == "1970-01-01T00:00:05Z"
    third = status.with_condition(second, status.Kind.EVICTION, "True", "EvictComplete", "gone", 7.0)
    assert third is not None
    assert third.conditions[0].last_transition_time == "1970-01-01T00:00:07Z"
    assert (
        leaving.leave(view({"metadata": {"name": "j"}, "spec": {}, "status": msgspec.to_builtins(third)}, None, None, False, False)) is None
    )


def begun(state: str, reason: str, *, more: Any = (), at: str = "2026-01-01T00:01:00Z") -> Any:
    """A job of five minutes that was to evict its pod one minute after its begin."""
    eviction = {"type": "Eviction", "status": state, "reason": reason, "lastTransitionTime": at, "lastProbeTime": at}
    spec = {
        "ttl": "5m", "podRef": {"namespace": "d", "name": "p", "uid": "u"}, "reservationOptions": {"reservationRef": {"name": "r"}}
    }  # fmt: skip
    return {"metadata": PASSED, "spec": spec, "status": {"phase": "Running", "nodeName": "n2", "conditions": [*MADE, eviction, *more]}}


HELD = {
    "metadata": {"name": "r", "uid": "r", "labels": {names.LABEL_RESERVATION_ORDER: "1"}},
    "status": {"phase": "Available", "nodeName": "n2", "conditions": [{"type": "Scheduled", "status": "True", "reason": "Scheduled"}]},
}
USED = {**HELD, "status": {**HELD["status"], "phase": "Succeeded", "currentOwners": [{"namespace": "d", "name": "q", "uid": "q"}]}}
GOING = {
    "metadata": {"name": "p", "namespace": "d", "uid": "u", "deletionTimestamp": "2026-01-01T00:11:00Z"}, "spec": {"nodeName": "n1"}
}  # fmt: skip


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-04")
def test_what_happened_while_no_descheduler_looked_is_no_timeout() -> None:
    """Killed with the eviction, without its answer; the next life begins when the job has had its time."""
    going = machine.decide(view(begun("Unknown", "Evicting"), GOING, HELD, False, True))
    assert (going.verdict, going.act) == ("Evicting", Act.EVICT)  # which looks at the pod, and notes that it goes
    for state in ("Unknown", "False"):
        gone = machine.decide(view(begun(state, "Evicting"), None, HELD, False, True))
        assert gone.verdict == "EvictComplete"
    came = view(begun("True", "EvictComplete"), None, USED, False, True)
    for _ in range(9):
        step = machine.decide(came)
        if status.finished(came.job) or step.rests:
            break
        came = follow(came, step)
    assert (came.job.status.phase, came.job.status.status) == ("Succeeded", "Complete")


@pytest.mark.feature("DS-MC-03")
def test_nobody_waits_for_ever_for_who_does_not_come_or_does_not_go() -> None:
    nobody = machine.decide(view(begun("True", "EvictComplete"), None, HELD, False, True))
    stays = machine.decide(
        view(begun("Unknown", "Evicting"), {**GOING, "metadata": {"name": "p", "namespace": "d", "uid": "u"}}, HELD, False, True)
    )
    late = msgspec.structs.replace(view(begun("Unknown", "Evicting"), GOING, HELD, False, True).job)
    stuck = machine.decide(
        View(late, 1767225600.0 + 721.0, objects.convert(GOING, objects.Pod), objects.convert(HELD, objects.Reservation))
    )
    assert [step.verdict for step in (nobody, stays, stuck)] == ["Failed"] * 3


REFUSED = {
    "metadata": {
        "name": "r", "uid": "r", "labels": {names.LABEL_RESERVATION_ORDER: "1"}, "creationTimestamp": "2026-01-01T00:00:01Z",
    },
    "status": {"phase": "Pending", "conditions": [{"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "full"}]},
}  # fmt: skip


@pytest.mark.feature("DS-MC-04")
@pytest.mark.parametrize(("for_load", "now", "verdict"), [(True, 31.0, "Waiting"), (True, 61.0, "Failed"), (False, 61.0, "Waiting")])
def test_a_pod_that_leaves_for_load_and_finds_no_place_lets_others_leave(for_load: bool, now: float, verdict: str) -> None:
    conditions = [MADE[0], {"type": "ReservationScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}]
    relief = {names.ANNOTATION_MIGRATION_RELIEF: Relief({"cpu": 1}, {"n2": Ceiling({"cpu": 2}, {})}).write()} if for_load else {}
    meta = {**PASSED, "annotations": {**PASSED["annotations"], **relief}}
    job = {**begun("False", ""), "metadata": meta, "status": {"phase": "Running", "conditions": conditions}}
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"nodeName": "n1"}}
    seen = view(job, pod, REFUSED, False, False)
    step = machine.decide(replace(seen, now=1767225600.0 + now))
    assert step.verdict == verdict
    if verdict == "Failed":
        assert step.message == 'Reservation "r" found no node in 60 s: full'
    else:
        assert (step.wait == 30.0) is for_load


@pytest.mark.feature("DS-MC-06")
def test_a_job_whose_eviction_has_no_answer_is_not_swept_away_with_its_place() -> None:
    job = objects.convert(begun("Unknown", "Evicting"), objects.PodMigrationJob)
    assert not scavenger.expired(job, None, 1767225600.0 + 3600.0)
    assert scavenger.expired(objects.convert({**begun("False", "FailedEvict")}, objects.PodMigrationJob), None, 1767225600.0 + 3600.0)


@pytest.mark.feature("DS-MC-06")
@pytest.mark.parametrize(
    ("state", "reason", "ttl", "here", "minutes", "swept"),
    [
        ("False", "Evicting", "", False, 32, True),
        ("True", "EvictComplete", "0s", False, 32, True),
        ("True", "EvictComplete", "", False, 30, False),
        ("False", "Evicting", "", True, 600, False),
        ("Unknown", "Evicting", "", False, 600, False),
        ("True", "EvictComplete", "10h", False, 32, False),
    ],
    ids=["gone", "gone and noted", "gone a moment ago", "still here", "without an answer", "with time left"],
)
def test_a_job_without_a_ttl_ends_half_an_hour_after_its_pod_has_left(
    state: str, reason: str, ttl: str, here: bool, minutes: int, swept: bool
) -> None:
    """It holds its limits and its place meanwhile, though nobody comes any more."""
    body = begun(state, reason)
    body["spec"] = {**body["spec"], "ttl": ttl}
    pod = objects.convert({"metadata": {"name": "p", "namespace": "d", "uid": "u"}}, objects.Pod) if here else None
    job = objects.convert(body, objects.PodMigrationJob)
    assert scavenger.expired(job, pod, 1767225600.0 + 60.0 * minutes) is swept
