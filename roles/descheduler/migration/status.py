"""Reading and changing the status of a PodMigrationJob. Pure: a status in, the changed one out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from koord.api import names
from koord.api.objects import (
    Condition,
    ObjectReference,
    OwnerReference,
    Pod,
    PodMigrationJob,
    PodMigrationJobStatus,
    convert,
    find_condition,
)
from koord.api.times import TimeError, format_time, parse_duration, parse_time
from roles.descheduler import background
from roles.descheduler.migration.words import COMPLETE, Kind, Phase, Reason
from roles.descheduler.relief import Relief
from roles.descheduler.snapshot import time_of

_REFUSED = (
    (Kind.EVICTION, Reason.FAILED_EVICT),
    (Kind.RESERVATION_SCHEDULED, Reason.UNSCHEDULABLE),
    (Kind.RESERVATION_CREATED, Reason.FAILED_CREATE_RESERVATION),
)
MARGIN = 60.0  # seconds that the successor of a pod has to come and be ready, beyond the time that the pod has to leave
PROMISE = 60.0  # seconds for which a job that nothing has come of is taken to be on its way
_UNFINISHED = frozenset({"", Phase.PENDING, Phase.RUNNING})


def finished(job: PodMigrationJob) -> bool:
    """Whether nothing more will happen to the job."""
    return job.status.phase not in _UNFINISHED


def running(job: PodMigrationJob) -> bool:
    return job.status.phase == Phase.RUNNING


def passed(job: PodMigrationJob) -> bool:
    """Whether arbitration has let the job begin. A running job has begun, whatever its annotations say."""
    return running(job) or job.metadata.annotations.get(names.ANNOTATION_PASSED_ARBITRATION) == "true"


def ttl(job: PodMigrationJob) -> float:
    """Seconds that the job may take; 0 is for ever, also for a text that is no duration."""
    try:
        return max(0.0, parse_duration(job.spec.ttl)) if job.spec.ttl else 0.0
    except TimeError:
        return 0.0


def age(job: PodMigrationJob, now: float) -> float:
    """Seconds since the job was created."""
    return now - parse_time(job.metadata.creation_timestamp) if job.metadata.creation_timestamp else 0.0


def timed_out(job: PodMigrationJob, now: float, pod: Pod | None = None) -> bool:
    """Whether the job has had its time. `pod` is its pod as long as it is there."""
    end = deadline(job, pod)
    return end is not None and now >= end


def deadline(job: PodMigrationJob, pod: Pod | None = None) -> float | None:
    """When the job has had its time, in seconds since the epoch; None for never.

    Who takes a pod away in background may take what it needs while it says that it is at work, and `background.PATIENCE` to say so.
    Once the eviction was accepted, or the pod is seen to go by it, the pod has its grace period and its successor `MARGIN`, whatever the
    TTL says: the place is theirs."""
    limit = ttl(job)
    if limit <= 0 or not job.metadata.creation_timestamp:
        return None
    end = parse_time(job.metadata.creation_timestamp) + limit + paused_for(job)
    found = condition(job, Kind.EVICTION)
    goes = accepted(job) or (eviction_begun(job) and leaves_at(pod) > 0)
    if found is None or not goes:
        return end
    since = parse_time(found.last_transition_time) if found.last_transition_time else 0.0
    if pod is not None and not pod.metadata.deletion_timestamp and background.wanted(pod):
        return None if background.goes_on(pod) else max(end, since + background.PATIENCE + MARGIN)
    gone = since if found.status == "True" else max(since + grace(pod), leaves_at(pod))
    return max(end, gone + MARGIN)


def grace(pod: Pod | None, options: Mapping[str, Any] | None = None) -> float:
    """The seconds that a pod has to end once it was told to, at most; `options` are those of its deletion."""
    seconds = pod.spec.termination_grace_period_seconds if pod is not None else 0
    asked = (options or {}).get("gracePeriodSeconds")
    return max(30.0 if seconds is None else float(seconds), float(asked) if isinstance(asked, int) else 0.0)


def leaves_at(pod: Pod | None) -> float:
    """When a terminating pod is gone at the latest, in seconds since the epoch; 0 for one that is not terminating."""
    return time_of(pod.metadata.deletion_timestamp if pod is not None else None) or 0.0


def paused_for(job: PodMigrationJob) -> float:
    """The seconds for which the job was paused, as far as a descheduler has seen it."""
    try:
        return max(0.0, float(job.metadata.annotations.get(names.ANNOTATION_MIGRATION_PAUSED, "0").partition(" ")[0]))
    except ValueError:
        return 0.0


def paused_since(job: PodMigrationJob) -> float | None:
    """When the pause that goes on was first seen, in seconds since the epoch; None for a job of which none was seen."""
    return time_of(job.metadata.annotations.get(names.ANNOTATION_MIGRATION_PAUSED, "").partition(" ")[2])


def paused_note(total: float, since: float | None = None) -> str:
    """What `paused_for` and `paused_since` read."""
    return f"{total:.0f} {format_time(since)}" if since is not None else f"{total:.0f}"


def reservation_ref(job: PodMigrationJob) -> ObjectReference | None:
    """The reservation that the job names, or None."""
    options = job.spec.reservation_options
    found = options.reservation_ref if options is not None else None
    return found if found is not None and found.name else None


def pod_key(job: PodMigrationJob) -> str:
    """ "namespace/name" of the pod that moves, "" if the job does not say."""
    ref = job.spec.pod_ref
    return f"{ref.namespace}/{ref.name}" if ref is not None and ref.namespace and ref.name else ""


def pod_uid(job: PodMigrationJob) -> str:
    return job.spec.pod_ref.uid if job.spec.pod_ref is not None else ""


def waits_for(job: PodMigrationJob) -> str:
    """What the job says that it waits for: its last condition that is not met; "" for one that says nothing, or is paused."""
    if job.spec.paused:
        return "it is paused"
    unmet = [
        each
        for each in job.status.conditions
        if each.status == "False" and each.type in (Kind.ARBITRATION, Kind.RESERVATION_SCHEDULED, Kind.EVICTION)
    ]
    return unmet[-1].message if unmet else ""


def condition(job: PodMigrationJob, kind: Kind) -> Condition | None:
    return find_condition(job.status.conditions, kind)


def holds(job: PodMigrationJob, kind: Kind) -> bool:
    """Whether the condition is True."""
    found = condition(job, kind)
    return found is not None and found.status == "True"


def eviction_begun(job: PodMigrationJob) -> bool:
    """Whether an eviction was asked for, answered or not: the pod's going is then ours."""
    found = condition(job, Kind.EVICTION)
    return found is not None and (found.status == "True" or found.reason == Reason.EVICTING)


def left_at(job: PodMigrationJob) -> float | None:
    """When the pod was told to leave and would, or was seen to have left, in seconds since the epoch; None before."""
    found = condition(job, Kind.EVICTION)
    return None if found is None or not accepted(job) else time_of(found.last_transition_time) or 0.0


def last_change(job: PodMigrationJob) -> float:
    """When something was last written on the job, as far as it tells: in seconds since the epoch."""
    stamps = [each.last_probe_time for each in job.status.conditions if each.last_probe_time]
    return max(time_of(stamp) or 0.0 for stamp in [*stamps, job.metadata.creation_timestamp])


def accepted(job: PodMigrationJob) -> bool:
    """Whether the pod has left, or was told to and will."""
    found = condition(job, Kind.EVICTION)
    return found is not None and (found.status == "True" or (found.status == "False" and found.reason == Reason.EVICTING))


def uncounted(job: PodMigrationJob) -> bool:
    """Whether no limiter counts that the pod left: it had ended, or somebody else had told it to leave."""
    found = condition(job, Kind.ARBITRATION)
    return found is not None and found.reason in (Reason.POD_ENDED, Reason.POD_LEAVING)


def proceeds(job: PodMigrationJob, now: float) -> bool:
    """Whether the job is on its way: its pod will probably leave soon. Not so once something has refused it, or when nothing has come of
    it for a while; then others must not count on it, though it may still succeed."""
    if accepted(job):
        return not finished(job)
    if finished(job) or job.spec.paused or age(job, now) >= PROMISE:
        return False
    found = [(condition(job, kind), reason) for kind, reason in _REFUSED]
    return not any(each is not None and each.status == "False" and each.reason == reason for each, reason in found)


def relief(job: PodMigrationJob) -> Relief | None:
    """Where the pod may go, for a job that moves it to certain nodes: to cool ones, or to cheaper ones."""
    return Relief.read(job.metadata.annotations.get(names.ANNOTATION_MIGRATION_RELIEF))


def avoided(job: PodMigrationJob) -> tuple[str, ...]:
    """Nodes that turned out to be no good for the pod."""
    text = job.metadata.annotations.get(names.ANNOTATION_MIGRATION_AVOID, "")
    return tuple(filter(None, text.split(",")))


def by_a_plugin(job: PodMigrationJob) -> bool:
    """Whether a plugin asked for the job, and not a person."""
    return names.ANNOTATION_JOB_CREATED_BY in job.metadata.annotations


def with_condition(
    status: PodMigrationJobStatus, kind: Kind, state: str, reason: str, message: str, now: float
) -> PodMigrationJobStatus | None:
    """The status with this condition, None if it has it already.

    The time of transition moves with the state only; what changed is also copied to status.status, reason and message.
    """
    old = find_condition(status.conditions, kind)
    if old is not None and (old.status, old.reason, old.message) == (state, reason, message):
        return None
    stamp = format_time(now)
    since = old.last_transition_time if old is not None and old.status == state else stamp
    new = Condition(type=str(kind), status=state, reason=str(reason), message=message, last_probe_time=stamp, last_transition_time=since)
    if old is None:
        conditions = (*status.conditions, new)
    else:
        conditions = tuple(new if each.type == kind else each for each in status.conditions)
    return msgspec.structs.replace(status, conditions=conditions, status=str(kind), reason=str(reason), message=message)


def with_relief(job: PodMigrationJob, helped: bool, message: str, now: float) -> PodMigrationJobStatus | None:
    """The status of a job that has ended, with what its move has done; the rest of it stays. None if it says so already."""
    changed = with_condition(job.status, Kind.RELIEVED, "True" if helped else "False", "", message, now)
    if changed is None:
        return None
    return msgspec.structs.replace(changed, status=job.status.status, reason=job.status.reason, message=job.status.message)


def ended(status: PodMigrationJobStatus, reason: Reason, message: str) -> PodMigrationJobStatus:
    """The status of a job that failed."""
    return msgspec.structs.replace(status, phase=str(Phase.FAILED), reason=str(reason), message=message)


def succeeded(status: PodMigrationJobStatus, message: str) -> PodMigrationJobStatus:
    """The status of a job that succeeded."""
    return msgspec.structs.replace(status, phase=str(Phase.SUCCEEDED), status=COMPLETE, reason="", message=message)


def wire(status: PodMigrationJobStatus) -> dict[str, Any]:
    """The members that this controller owns, for a merge patch of the status subresource; what is empty is removed."""
    plain: dict[str, Any] = msgspec.to_builtins(status)
    return {name: plain.get(name) or None for name in ("phase", "status", "reason", "message", "conditions", "nodeName", "podRef")}


def remember_workload(pod: Pod) -> str:
    """The controller of a pod as the job keeps it, "" if it has none: limits and limiters need it when the pod has left."""
    controller = pod.metadata.controller
    if controller is None:
        return ""
    kept = {"apiVersion": controller.api_version, "kind": controller.kind, "name": controller.name, "uid": controller.uid}
    return orjson.dumps(kept).decode()


def workload_reference(job: PodMigrationJob) -> OwnerReference | None:
    """What `remember_workload` has written; None if there is nothing that can be read."""
    text = job.metadata.annotations.get(names.ANNOTATION_MIGRATION_WORKLOAD)
    try:
        return convert(orjson.loads(text), OwnerReference) if text else None
    except (orjson.JSONDecodeError, msgspec.ValidationError):
        return None


def controller_uid(job: PodMigrationJob) -> str:
    """The uid of the controller of the job's pod, "" if it has none or arbitration has not let the job through."""
    reference = workload_reference(job)
    return reference.uid if reference is not None else ""
