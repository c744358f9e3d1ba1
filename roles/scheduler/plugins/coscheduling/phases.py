"""The status of a PodGroup, worked out from its members (SCH-GANG-09). Pure: one step each time it is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from koord.api.objects import PodGroup, PodGroupStatus
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


def step(group: PodGroup, members: Iterable[Member], now: float) -> PodGroupStatus:
    """The next status of a group; `now` in seconds since the epoch."""
    before, minimum = group.status, group.spec.min_member
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


def _counted(before: PodGroupStatus, minimum: int, children: list[Member], now: float) -> PodGroupStatus:
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
    return replace(before, phase=phase, scheduled=scheduled, running=running, succeeded=succeeded, failed=failed, schedule_start_time=began)


def patch(before: PodGroupStatus, after: PodGroupStatus) -> dict[str, Any] | None:
    """The merge patch from one status to another, None when they are equal."""
    fields = zip(after.__struct_fields__, after.__struct_encode_fields__, strict=True)
    changed = {name: getattr(after, field) for field, name in fields if getattr(after, field) != getattr(before, field)}
    return {"status": changed} if changed else None
