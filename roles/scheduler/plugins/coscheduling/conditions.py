"""What is told on PodGroups of scheduling.k8s.io (SCH-WL-04): whether they were scheduled, and whether they are being preempted. Pure."""

from __future__ import annotations

from typing import Any

from koord.api.objects import find_condition
from koord.api.times import format_time
from roles.scheduler.plugins.coscheduling.cache import BOUND, RELEASED, Gang
from roles.scheduler.plugins.default_preemption import was_preempted

SCHEDULED = "PodGroupScheduled"
DISRUPTED = "DisruptionTarget"
_LONGEST = 32_768  # characters of a condition's message that an API server takes


def due(gang: Gang, now: float) -> list[dict[str, Any]]:
    """The conditions that are to be written, as they are in status; `now` in seconds since the epoch.

    A group that was scheduled once stays so, whatever becomes of pods beyond its minimum.
    """
    group, spec = gang.native, gang.spec
    if group is None or spec is None:
        return []
    wanted: list[tuple[str, str, str, str]] = []
    placed = gang.count(BOUND, RELEASED)
    if placed >= max(spec.min_number, 1):
        wanted.append((SCHEDULED, "True", "Scheduled", ""))
    elif gang.group.shown:
        wanted.append((SCHEDULED, "False", "Unschedulable", gang.group.shown[:_LONGEST]))
    bound = gang.at(BOUND)
    if bound and all(was_preempted(pod) for pod in bound):
        wanted.append((DISRUPTED, "True", "PreemptionByScheduler", "preempting to accommodate pods of higher priority"))
    found = []
    for kind, status, reason, message in wanted:
        before = find_condition(group.status.conditions, kind)
        if before is not None and (before.status == "True" or (before.status, before.message) == (status, message)):
            continue
        since = before.last_transition_time if before is not None and before.status == status else None
        found.append(
            {
                "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since or format_time(now),
                "observedGeneration": group.metadata.generation or 0,
            }
        )  # fmt: skip
    return found
