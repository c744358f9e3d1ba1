"""How a pod leaves (DS-MC-04): once, and only the pod that was meant. Pure.

The intention is written before the eviction is asked for (condition Eviction, status Unknown, reason Evicting). A process killed in between
finds it after its restart and looks at the pod: gone or going means done, still there means ask again.
"""

from __future__ import annotations

from koord.api import names
from koord.api.objects import Pod
from roles.descheduler.migration import limits, status
from roles.descheduler.migration.pairing import used
from roles.descheduler.migration.step import Act, Step, View, change, fail
from roles.descheduler.migration.words import COMPLETE, Kind, Reason

UNSETTLED = 1.0  # seconds after which a job looks again whose place depends on where other pods of its workload go


def noted(view: View) -> Step | None:
    """The step that notes that the pod has left by its eviction, and gives its successor its time from now; None if there is nothing to
    note. It may have left long ago, while no descheduler looked."""
    if not view.replaced or not status.eviction_begun(view.job) or status.holds(view.job, Kind.EVICTION):
        return None
    return change(view, Kind.EVICTION, "True", Reason.EVICT_COMPLETE, f"{view.about_pod} has left", event=Reason.EVICT_COMPLETE)


def leave(view: View) -> Step | None:
    """The step towards the pod's leaving; None when it has left."""
    job = view.job
    if status.holds(job, Kind.EVICTION):
        return None
    begun = status.eviction_begun(job)
    if view.replaced:
        if (step := noted(view)) is not None:
            return step
        return fail(view, Reason.MISSING_POD, f"{view.about_pod} does not exist")
    condition = status.condition(job, Kind.EVICTION)
    if begun and condition is not None and condition.status == "False":
        return Step("Waiting", condition.message)
    if begun and _goes(view):
        return Step("Evicting", f"{view.about_pod} leaves", act=Act.EVICT)
    if view.pairing.claimed:  # by an exchange that was cut short: the other job goes on with it, if this one's pod stays
        return _not_yet(view, f"{view.about_reservation} is awaited by another job's Pod still", begun=begun)
    if view.pairing.unsettled and view.reservation is not None and used(view.reservation):
        return _not_yet(view, f"{view.about_reservation} is used by another Pod: perhaps another place is left", begun=begun)
    if view.target_gone and begun:  # it has not happened so far, and is meant no more
        return refused(view, f"the node of {view.about_reservation} does not exist")
    if no_place := _no_place(view):
        return fail(view, *no_place)
    if view.unit is not None and not begun and (others := view.unit.waits()):
        return Step("Waiting", others, wait=UNSETTLED)
    return Step("Evicting", f"{view.about_pod} is to leave", act=Act.EVICT)


def _goes(view: View) -> bool:
    """Whether somebody has told the pod to go: then it does not matter any more where to."""
    meta = view.pod.metadata if view.pod is not None else None
    return meta is not None and (bool(meta.deletion_timestamp) or names.ANNOTATION_SOFT_EVICTION in meta.annotations)


def _not_yet(view: View, why: str, *, begun: bool) -> Step:
    """There may be a place for the pod soon. An eviction that was meant but not done is meant no more."""
    return refused(view, why) if begun else Step("Waiting", why, wait=UNSETTLED)


def _no_place(view: View) -> tuple[Reason, str] | None:
    """Why the pod has no place to go to any more."""
    if status.reservation_ref(view.job) is None:
        return None
    reservation = view.reservation
    if reservation is None:
        return Reason.MISSING_RESERVATION, f"{view.about_reservation} does not exist"
    if reservation.status.phase == "Succeeded":
        return Reason.FORBIDDEN, f"{view.about_reservation} is already bound by another Pod"
    if view.target_gone:
        return Reason.UNSCHEDULABLE, f'{view.about_reservation} lies on node "{reservation.status.node_name}", which does not exist'
    return None


def directly(view: View) -> Step:
    """EvictDirectly: the pod leaves, and that is all."""
    step = leave(view)
    if step is not None:
        return step
    message = f"{view.about_pod} has been evicted"
    return Step(COMPLETE, message, status.succeeded(view.job.status, message), event=COMPLETE)


# ---------------------------------------------------------------- what the evictor is told and what it answers


def intention(view: View) -> Step:
    """What is written before the eviction is asked for. `Unknown` is neither done nor undone. That a pod had ended is noted, too: once it
    is gone nobody could tell that it counts in no limit."""
    noted = None
    if view.pod is not None and limits.dead(view.pod):
        ended = f"{view.about_pod} has ended: no limit counts it"
        noted = status.with_condition(view.job.status, Kind.ARBITRATION, "True", Reason.POD_ENDED, ended, view.now)
    message = f"{view.about_pod} is being evicted"
    asked = status.with_condition(noted or view.job.status, Kind.EVICTION, "Unknown", Reason.EVICTING, message, view.now)
    return Step("Evicting", message, asked or noted)


def evicted(view: View, pod: Pod, reason: str) -> Step:
    """The eviction was accepted; now the pod has to go."""
    message = f'{view.about_pod} evicted from node "{pod.spec.node_name}" by the reason "{reason}"'
    changed = status.with_condition(view.job.status, Kind.EVICTION, "False", Reason.EVICTING, message, view.now)
    return Step("Evicted", message, changed, event=Reason.EVICTING)


def in_background(view: View, answer: str) -> Step:
    """Somebody else takes the pod away; the Eviction API has no better answer for that than a refusal."""
    message = f"the eviction of {view.about_pod} in background has begun: {answer}"
    changed = status.with_condition(view.job.status, Kind.EVICTION, "False", Reason.EVICTING, message, view.now)
    return Step("Evicting", message, changed, event=Reason.EVICTING)


def going(view: View) -> Step:
    """Somebody (perhaps this process in an earlier life) has deleted the pod already. That it was somebody else is noted: a later life
    could not tell."""
    noted = None
    if not status.eviction_begun(view.job):
        others = f"{view.about_pod} was told to leave by others: no limiter counts it"
        noted = status.with_condition(view.job.status, Kind.ARBITRATION, "True", Reason.POD_LEAVING, others, view.now)
    message = f"{view.about_pod} is terminating"
    gone = status.with_condition(noted or view.job.status, Kind.EVICTION, "False", Reason.EVICTING, message, view.now)
    return Step("Evicting", message, gone or noted)


def refused(view: View, why: str) -> Step:
    """The eviction was refused: nothing has happened, it will be asked for again."""
    changed = status.with_condition(view.job.status, Kind.EVICTION, "False", Reason.FAILED_EVICT, why, view.now)
    return Step("FailedEvict", why, changed, event=Reason.EVICTING, warning=True)


def unanswered(view: View, why: str) -> Step:
    """No answer came, or one that does not say whether it was done: the intention stands."""
    message = f"{view.about_pod} is being evicted, without an answer so far: {why}"
    changed = status.with_condition(view.job.status, Kind.EVICTION, "Unknown", Reason.EVICTING, message, view.now)
    return Step("Evicting", message, changed, event=Reason.EVICTING, warning=True)
