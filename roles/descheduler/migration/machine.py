"""The state machine of a migration (DS-MC-03..06): what a job does next. Pure: a view in, one step out.

Each step writes at most one change of the status, so that a process killed at any point finds the job between two steps and goes on.
A verdict is written before its clean-up; the clean-up of a job that has ended is decided from the job alone and so is done once more after
a restart. How a pod leaves is in `leaving.py`.
"""

from __future__ import annotations

import msgspec

from koord.api import names
from koord.api.objects import Condition, ObjectReference, Pod, PodMigrationJob, Reservation, find_condition
from koord.api.times import TimeError, parse_duration, parse_time
from roles.descheduler.migration import leaving, limits, status
from roles.descheduler.migration.pairing import left_at, made_for
from roles.descheduler.migration.step import Act, Step, View, change, fail, set_condition
from roles.descheduler.migration.words import COMPLETE, CREATED_BY, Kind, Mode, Phase, Reason

SILENCE = 5.0  # seconds without an answer of the scheduler after which a job says so
NO_PLACE = 60.0  # seconds in which a pod that leaves for load finds a place, or others leave in its stead
PATIENCE = 10.0  # seconds after a pod has left in which a successor that went elsewhere is not believed to be one
_WAITING_PHASES = frozenset({"", "Pending", "Waiting"})


def decide(view: View) -> Step:
    """The next step of a job."""
    job = view.job
    if status.finished(job):
        return _clean_up(view)
    if job.spec.paused:
        return Step("Paused", "the job is paused")
    if status.timed_out(job, view.now, view.pod if not view.replaced else None) and not _arrived(view):
        gone = leaving.noted(view)
        return gone if gone is not None else fail(view, Reason.TIMEOUT, "Abort job caused by timeout")
    if view.unit is not None and view.unit.lost and not status.eviction_begun(job):
        return fail(view, Reason.UNSCHEDULABLE, f"gang {view.unit.gang} moves as one or not at all: {view.unit.lost}")
    if not status.passed(job):
        return Step("Waiting", "the job waits for arbitration")
    if not status.running(job):
        return _begin(view)
    if view.hold is not None and not _exempt(view):
        held = status.with_condition(job.status, Kind.ARBITRATION, "False", view.hold.gate, view.hold.reason, view.now)
        return Step("Limited", view.hold.message, held, wait=view.hold.seconds)
    if (waited := status.condition(job, Kind.ARBITRATION)) is not None and waited.status == "False":
        return change(view, Kind.ARBITRATION, "True", Reason.NONE, "")
    mode = job.spec.mode or view.default_mode
    return leaving.directly(view) if mode == Mode.EVICT_DIRECTLY else _with_reservation(view)


def _arrived(view: View) -> bool:
    """Whether the successor is there and ready, or may be: perhaps it came while nobody looked."""
    held = view.reservation
    came = held is not None and bool(held.status.current_owners) and held.status.phase != "Failed"
    return came and status.holds(view.job, Kind.EVICTION) and (view.bound is None or limits.ready(view.bound))


def _exempt(view: View) -> bool:
    """Whether no limit holds the job any more: it says so itself, its pod is gone, or its eviction has begun."""
    forced = names.ANNOTATION_DESCHEDULER_EVICT in view.job.metadata.annotations
    follows = view.unit is not None and not view.unit.first  # the gang counts once
    return forced or follows or view.pod is None or status.eviction_begun(view.job)


def _begin(view: View) -> Step:
    job, pod = view.job, view.pod
    if why := _unreadable(job):
        return fail(view, Reason.INVALID_SPEC, why)
    if not status.pod_key(job):
        return fail(view, Reason.INVALID_POD_REF, "spec.podRef must name the namespace and the name of a pod")
    if pod is None:
        return fail(view, Reason.MISSING_POD, f"{view.about_pod} does not exist")
    chosen = names.ANNOTATION_JOB_CREATED_BY in job.metadata.annotations  # by a plugin, which looked at this very pod
    if chosen and view.replaced:
        return fail(view, Reason.MISSING_POD, f"{view.about_pod} is another pod by now")
    begun = msgspec.structs.replace(job.status, phase=str(Phase.RUNNING))
    if status.condition(job, Kind.ARBITRATION) is not None:  # it had to wait
        begun = status.with_condition(begun, Kind.ARBITRATION, "True", Reason.NONE, "", view.now) or begun
    return Step("Running", f"{view.about_pod} begins to migrate", begun, Act.BEGIN)


def _unreadable(job: PodMigrationJob) -> str:
    """What nobody can read in a job, "" if it can be read: it would move its pod in another way than it says, or without a limit."""
    if job.spec.mode not in ("", *Mode):
        return f"spec.mode: {job.spec.mode!r} is not known; accepted: {', '.join(Mode)}"
    try:
        parse_duration(job.spec.ttl or "0")
    except TimeError as error:
        return f"spec.ttl: {error}"
    return ""


# ---------------------------------------------------------------- reservation first


def _with_reservation(view: View) -> Step:
    if status.reservation_ref(view.job) is None:
        if view.replaced and not status.eviction_begun(view.job):
            return fail(view, Reason.MISSING_POD, f"{view.about_pod} does not exist")
        if (why := _nowhere(view)) and not status.eviction_begun(view.job):
            return fail(view, Reason.UNSCHEDULABLE, why)
        return Step("Reserving", f"a reservation is made for {view.about_pod}", act=Act.RESERVE)
    if not status.holds(view.job, Kind.RESERVATION_CREATED):
        return change(view, Kind.RESERVATION_CREATED, "True", Reason.NONE, f"{view.about_reservation} exists", event="ReservationCreated")
    if view.reservation is None:
        return fail(view, Reason.MISSING_RESERVATION, f"{view.about_reservation} does not exist")
    if names.LABEL_RESERVATION_ORDER not in view.reservation.metadata.labels:
        return Step("Ordering", f"{view.about_reservation} gets its place in the order", act=Act.STAMP)
    if owned_by_pod(view, view.reservation) and not view.replaced and (step := _scheduled(view)) is not None:
        return step  # perhaps before its reservation was: there is nothing to wait for
    return _placed(view, view.reservation)


def _nowhere(view: View) -> str:
    """Why no reservation need be asked for, "" when one may find a place."""
    if view.targets is None or view.targets:
        return ""
    relief = status.relief(view.job)
    if relief is None:
        return f"once {view.about_pod} has left, its topology spread would let no other node have it"
    return f"no node is left that would {'stay cool with' if relief.for_load else 'take'} {view.about_pod}"


def _placed(view: View, reservation: Reservation) -> Step:
    """Follow the reservation until it lies on a node, then the pod."""
    job = view.job
    scheduled = find_condition(reservation.status.conditions, "Scheduled")
    ready = find_condition(reservation.status.conditions, "Ready")
    unschedulable = scheduled is not None and scheduled.reason == "Unschedulable"
    if unschedulable and not status.holds(job, Kind.RESERVATION_SCHEDULED):
        message = scheduled.message if scheduled is not None else ""
        step = set_condition(view, Kind.RESERVATION_SCHEDULED, "False", Reason.UNSCHEDULABLE, message, event="Unschedulable", warning=True)
        if step is not None:
            return step
    if reservation.status.phase in _WAITING_PHASES:
        if scheduled is None or not unschedulable or status.relief(job) is None:
            return _wait_for_scheduler(view, reservation)
        return _wait_for_place(view, reservation, scheduled.message)
    if reservation.status.phase == "Failed" and ready is not None and ready.reason == "Expired":
        if not status.eviction_begun(job) and job.metadata.uid in made_for(reservation):
            if view.target_gone:  # the scheduler may say so first
                return give_back(view, reservation, f'node "{reservation.status.node_name}" does not exist')
            if status.paused_for(job):
                return give_back(view, reservation, "it expired, for the job was paused")
        return fail(view, Reason.RESERVATION_EXPIRED, "Reservation expired")
    if not _lies(reservation, scheduled):
        why = scheduled.message if scheduled is not None and scheduled.message else f"{view.about_reservation} found no node"
        return fail(view, Reason.UNSCHEDULABLE, why)
    if reservation.status.phase == "Failed":  # given up for another reason: what it held is gone, so the pod must stay
        why = f": {ready.message}" if ready is not None and ready.message else ""
        return fail(view, Reason.RESERVATION_EXPIRED, f"{view.about_reservation} has failed{why}")
    if view.unfit and not status.eviction_begun(job) and not owned_by_pod(view, reservation):
        return give_back(view, reservation, view.unfit)
    if not status.holds(job, Kind.RESERVATION_SCHEDULED) or job.status.node_name != reservation.status.node_name:
        return _found_node(view, reservation)  # the second time when the reservation is another one than before
    if owned_by_pod(view, reservation):
        return _wait_for_pending_pod(view, reservation)
    step = leaving.leave(view)
    return step if step is not None else _wait_for_new_pod(view, reservation)


def _wait_for_scheduler(view: View, reservation: Reservation) -> Step:
    """No answer of the scheduler is said after a while: perhaps none looks at pods of that name."""
    made = reservation.metadata.creation_timestamp
    left = parse_time(made) + SILENCE - view.now if made else SILENCE
    if left <= 0 and status.condition(view.job, Kind.RESERVATION_SCHEDULED) is None:
        name = view.pod.spec.scheduler_name if view.pod is not None else ""
        message = f'{view.about_reservation} waits for a node: scheduler "{name}" has not answered yet'
        return change(view, Kind.RESERVATION_SCHEDULED, "False", Reason.WAIT_FOR_NODE, message)
    return Step("Waiting", f"{view.about_reservation} waits for a node", wait=left if left > 0 else None)


def _wait_for_place(view: View, reservation: Reservation, why: str) -> Step:
    """The scheduler refuses the place of a pod that is to leave for load. While the job waits it counts in the limits of its node."""
    made = reservation.metadata.creation_timestamp
    left = parse_time(made) + NO_PLACE + status.paused_for(view.job) - view.now if made else NO_PLACE
    if left <= 0:
        return fail(view, Reason.UNSCHEDULABLE, f"{view.about_reservation} found no node in {NO_PLACE:.0f} s: {why}")
    return Step("Waiting", f"{view.about_reservation} waits for a node", wait=left)


def _lies(reservation: Reservation, scheduled: Condition | None) -> bool:
    if not reservation.status.node_name or scheduled is None:
        return False
    return scheduled.status == "True" and scheduled.reason == "Scheduled"


def _found_node(view: View, reservation: Reservation) -> Step:
    node = reservation.status.node_name
    if view.pod is not None and not view.replaced and view.pod.spec.node_name == node:
        return fail(view, Reason.FORBIDDEN, f'{view.about_reservation} lies on "{node}", where {view.about_pod} is already')
    placed = msgspec.structs.replace(view.job.status, node_name=node)
    message = f'{view.about_reservation} lies on node "{node}"'
    changed = status.with_condition(placed, Kind.RESERVATION_SCHEDULED, "True", Reason.NONE, message, view.now)
    return Step("ReservationScheduled", message, changed or placed, event="ReservationScheduled")


def give_back(view: View, reservation: Reservation, why: str) -> Step:
    """The place is no good any more: another one is asked for, within the job's time. One that others answer for is not taken away."""
    if view.job.metadata.uid not in made_for(reservation) or view.pairing.shared:
        return fail(view, Reason.UNSCHEDULABLE, f"{view.about_reservation} is no place for {view.about_pod}: {why}")
    message = f"{view.about_reservation} is given back: {why}"
    without = msgspec.structs.replace(view.job.status, node_name="")
    changed = status.with_condition(without, Kind.RESERVATION_SCHEDULED, "False", Reason.UNSCHEDULABLE, message, view.now)
    return Step("GivenBack", message, changed or without, Act.GIVE_BACK, event=Reason.UNSCHEDULABLE, warning=True)


# ---------------------------------------------------------------- a pod that waits for a node itself


def owned_by_pod(view: View, reservation: Reservation) -> bool:
    """Whether the reservation is for the pod object itself (DS-MC-05)."""
    uid, key = status.pod_uid(view.job), status.pod_key(view.job)
    for owner in reservation.spec.owners:
        found = owner.object
        if found is None or found.kind not in ("", "Pod"):
            continue
        if found.uid == uid if found.uid else f"{found.namespace}/{found.name}" == key:
            return True
    return False


def _scheduled(view: View) -> Step | None:
    """The end of a job whose pod was to find a node; None as long as it has not."""
    condition = find_condition(view.pod.status.conditions, "PodScheduled") if view.pod is not None else None
    if condition is None or condition.status != "True":
        return None
    message = f"{view.about_pod} has been scheduled"
    changed = status.with_condition(view.job.status, Kind.POD_SCHEDULED, "True", Reason.NONE, message, view.now) or view.job.status
    return Step(COMPLETE, message, status.succeeded(changed, message), event=COMPLETE)


def _wait_for_pending_pod(view: View, reservation: Reservation) -> Step:
    if view.pod is None or view.replaced:
        return fail(view, Reason.MISSING_POD, f"{view.about_pod} does not exist")
    condition = find_condition(view.pod.status.conditions, "PodScheduled")
    owners = reservation.status.current_owners
    if reservation.status.phase == "Succeeded" and owners and owners[0].uid != view.pod.metadata.uid:
        return fail(view, Reason.FORBIDDEN, f"{view.about_reservation} is already bound by another Pod")
    why = condition.message if condition is not None else ""
    step = set_condition(view, Kind.POD_SCHEDULED, "False", Reason.UNSCHEDULABLE, why)
    return step if step is not None else Step("Waiting", f"{view.about_pod} waits for its own scheduling")


# ---------------------------------------------------------------- the pod that comes in its place


def _wait_for_new_pod(view: View, reservation: Reservation) -> Step:
    owners = reservation.status.current_owners
    if not owners:
        if (taken := view.pairing.taken) is not None:
            return Step("TakenOver", _took_over(view, taken), act=Act.TAKE_OVER)
        there, patient = view.pairing.elsewhere, view.now - left_at(view.job) >= PATIENCE
        if there is not None and patient and limits.ready(there):
            return _came_elsewhere(view, there)
        if view.pairing.unneeded and patient:
            message = f"{view.about_pod} has left, and its workload has all pods that it wants: none comes into {view.about_reservation}"
            return Step(COMPLETE, message, status.succeeded(view.job.status, message), event=COMPLETE)
        message = f"waiting for the new Pod to use {view.about_reservation}"
        step = set_condition(view, Kind.POD_BOUND_RESERVATION, "False", Reason.WAIT_FOR_BIND, message, event=Reason.WAIT_FOR_BIND)
        return step if step is not None else Step("Waiting", message, wait=leaving.UNSETTLED if view.pairing.unsettled else PATIENCE)
    new = owners[0]
    about = f'Pod "{new.namespace}/{new.name}"'
    if not status.holds(view.job, Kind.RESERVATION_BOUND):
        told = msgspec.structs.replace(view.job.status, pod_ref=new)
        message = f"{about} uses {view.about_reservation}"
        changed = status.with_condition(told, Kind.RESERVATION_BOUND, "True", Reason.NONE, message, view.now)
        return Step("PodBoundReservation", message, changed or told, event="PodBoundReservation")
    if view.bound is not None and not limits.ready(view.bound):
        message = f"waiting for {about} to become ready"
        step = set_condition(view, Kind.BOUND_POD_READY, "False", Reason.WAIT_FOR_READY, message, event=Reason.WAIT_FOR_READY)
        return step if step is not None else Step("Waiting", message)
    if not status.holds(view.job, Kind.BOUND_POD_READY):
        return change(view, Kind.BOUND_POD_READY, "True", Reason.NONE, f"{about} is ready", event="BoundPodReady")
    message = f"{about} is bound to {view.about_reservation}"
    changed = status.with_condition(view.job.status, Kind.POD_BOUND_RESERVATION, "True", Reason.NONE, message, view.now)
    return Step(COMPLETE, message, status.succeeded(changed or view.job.status, message), event=COMPLETE)


def _came_elsewhere(view: View, new: Pod) -> Step:
    """All pods of the workload have a node, and nobody will come into the place: it is not waited for in vain."""
    meta = new.metadata
    message = f'Pod "{new.key}" came in its place, on node "{new.spec.node_name}" and not into {view.about_reservation}'
    told = msgspec.structs.replace(view.job.status, pod_ref=ObjectReference(namespace=meta.namespace, name=meta.name, uid=meta.uid))
    return Step(COMPLETE, message, status.succeeded(told, message), event=COMPLETE)


def _took_over(view: View, taken: Reservation) -> str:
    user, heir = taken.status.current_owners[0], view.pairing.heir
    came = f'Pod "{user.namespace}/{user.name}" came into Reservation "{taken.metadata.name}"'
    left = f'left to PodMigrationJob "{heir.metadata.name}"' if heir is not None else "needed no more"
    return f"{came} instead of {view.about_reservation}, which is {left}"


# ---------------------------------------------------------------- the end


def _clean_up(view: View) -> Step:
    """A job that has ended keeps nothing: also one that was killed between its verdict and its clean-up."""
    reservation, spare = view.reservation, view.pairing.spare
    if spare is not None and status.reservation_ref(view.job) is not None:
        return Step("Released", f'Reservation "{spare.metadata.name}" is released: no job needs it', act=Act.RELEASE_SPARE)
    if reservation is not None and _held_in_vain(view, reservation) and not view.pairing.shared:
        if reservation.status.current_owners and view.pairing.unsettled:  # it holds nothing, and tells another job who came
            return Step("Ended", view.job.status.message, wait=leaving.UNSETTLED)
        return Step("Released", f'Reservation "{reservation.metadata.name}" is released: the job has ended', act=Act.RELEASE)
    pod = view.pod
    if view.job.status.phase == Phase.SUCCEEDED or pod is None or view.replaced or pod.metadata.deletion_timestamp:
        return Step("Ended", view.job.status.message)
    if status.eviction_begun(view.job) and names.ANNOTATION_SOFT_EVICTION in pod.metadata.annotations:
        return Step("TakenBack", f"{view.about_pod} need not leave any more: the job has ended", act=Act.TAKE_BACK)
    return Step("Ended", view.job.status.message)


def _held_in_vain(view: View, reservation: Reservation) -> bool:
    job = view.job
    owners = made_for(reservation)
    ours = reservation.metadata.labels.get(names.LABEL_CREATED_BY) == CREATED_BY
    if status.reservation_ref(job) is None or owners:  # made, perhaps, but not named in the job before the process was killed
        ours = job.metadata.uid in owners
        if not ours:
            return False
    if job.status.phase != Phase.SUCCEEDED:
        return ours or job.status.reason == Reason.TIMEOUT
    if not ours or reservation.status.current_owners:
        return False
    if not owned_by_pod(view, reservation):  # used up, unless the new pod came elsewhere, or none did
        return not status.holds(job, Kind.RESERVATION_BOUND)
    # a pod that waited was scheduled: to another node than the one that is held for it
    return view.pod is None or view.pod.spec.node_name not in ("", reservation.status.node_name)
