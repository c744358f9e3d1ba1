"""The status of a PodGroup, worked out from its members (SCH-GANG-09). Pure: one step each time it is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from koord.api.objects import PodGroup
from koord.api.times import format_time, parse_time

PENDING = "Pending"
PRE_SCHEDULING = "PreScheduling"
SCHEDULING = "Scheduling"
SCHEDULED = "Scheduled"
RUNNING = "Running"
FINISHED = "Finished"
FAILED = "Failed"

_GIVEN_UP_AFTER = 48 * 3600.0  # seconds from a group's creation to its scheduling


@dataclass(frozen=True, slots=True)
class Member:
    """A child of the gang: where it runs ("" = nowhere), its phase, and who owns it ("namespace/name" each)."""

    uid: str
    phase: str
    placed: bool
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """What is shown; times in RFC 3339."""

    phase: str = ""
    occupied_by: str = ""
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    schedule_start_time: str | None = None


def shown(group: PodGroup) -> Status:
    """The status that a PodGroup has."""
    status = group.status
    return Status(
        status.phase, status.occupied_by, status.scheduled, status.running, status.succeeded, status.failed, status.schedule_start_time
    )


def over(group: PodGroup) -> bool:
    """Whether a group is left alone: it has come to its end, or was scheduled too late to be followed."""
    status = group.status
    if status.phase in (FINISHED, FAILED):
        return True
    if status.scheduled != group.spec.min_member or status.running or not status.schedule_start_time:
        return False
    try:
        created, began = parse_time(group.metadata.creation_timestamp or ""), parse_time(status.schedule_start_time)
    except ValueError:
        return False
    return began - created > _GIVEN_UP_AFTER


def step(group: PodGroup, members: Iterable[Member], now: float) -> Status:
    """The next status of a group; `now` in seconds since the epoch."""
    before, minimum = shown(group), group.spec.min_member
    children = list(members)
    if before.phase == "":
        return replace(before, phase=PENDING)
    if before.phase == PENDING:
        if minimum > 0 and len(children) >= minimum:
            owners = ",".join(sorted(children[0].owners))
            return replace(before, phase=PRE_SCHEDULING, occupied_by=owners)
        return before
    if not children:
        return replace(before, phase=PENDING)
    return _counted(before, minimum, children, now)


def _counted(before: Status, minimum: int, children: list[Member], now: float) -> Status:
    counts = {phase: sum(1 for child in children if child.phase == phase) for phase in ("Running", "Succeeded", "Failed")}
    running, succeeded, failed = counts["Running"], counts["Succeeded"], counts["Failed"]
    scheduled = sum(1 for child in children if child.placed)
    began = before.schedule_start_time
    phase = SCHEDULED
    if scheduled < minimum:
        phase, began = SCHEDULING, began or format_time(now)
    if phase == SCHEDULED and succeeded + running >= minimum:
        phase = RUNNING
    if failed and failed + running + succeeded >= minimum:
        phase = FAILED
    if succeeded >= minimum:
        phase = FINISHED
    return Status(phase, before.occupied_by, scheduled, running, succeeded, failed, began)


def patch(before: Status, after: Status) -> dict[str, Any] | None:
    """The merge patch from one status to another, None when they are equal."""
    wire = {
        "phase": "phase", "occupied_by": "occupiedBy", "scheduled": "scheduled", "running": "running", "succeeded": "succeeded",
        "failed": "failed", "schedule_start_time": "scheduleStartTime",
    }  # fmt: skip
    changed = {name: getattr(after, field) for field, name in wire.items() if getattr(after, field) != getattr(before, field)}
    return {"status": changed} if changed else None
