"""Reading and changing the status of a PodMigrationJob. Pure: a status in, the changed one out."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api import names
from koord.api.objects import Condition, ObjectReference, PodMigrationJob, PodMigrationJobStatus, find_condition
from koord.api.times import TimeError, format_time, parse_duration, parse_time
from roles.descheduler.migration.words import COMPLETE, Kind, Phase, Reason

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


def timed_out(job: PodMigrationJob, now: float) -> bool:
    limit = ttl(job)
    return limit > 0 and age(job, now) >= limit


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
