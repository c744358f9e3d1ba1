"""In which order waiting migrations may begin, and which of them may begin now (DS-ARB-01, DS-ARB-02). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from koord.api.objects import Pod, PodMigrationJob
from koord.api.priority import pod_priority_class
from roles.descheduler.cost import restart_cost
from roles.descheduler.migration import status
from roles.descheduler.migration.limits import Migrating, Migration, Refusal
from roles.descheduler.plugins.lownodeload.order import pod_rank
from roles.descheduler.snapshot import time_of


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits, and the pod that has the name of its podRef now."""

    job: PodMigrationJob
    pod: Pod | None
    move: str = ""
    """The move of a whole gang that the job is part of, of `together` jobs, of which some may be `missing`."""
    together: int = 1
    missing: int = 0

    @property
    def job_controller(self) -> str:
        """The uid of the pod's controller if that is of kind Job, else ""."""
        owner = self.pod.metadata.controller if self.pod is not None else None
        return owner.uid if owner is not None and owner.kind == "Job" else ""


class Outcome(Enum):
    """What arbitration says about a job."""

    PASS = "pass"
    FORBID = "forbid"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The outcome for one job. `refusal` is set unless it passes."""

    waiting: Waiting
    outcome: Outcome
    refusal: Refusal | None = None


def _created(stamp: str | None) -> int:
    return int(time_of(stamp) or 0)


def ordered(waiting: Iterable[Waiting], migrating: Counter[str], now: float = 0.0) -> list[Waiting]:
    """Whose turn it is: four stable passes, of which the last one dominates.

    Newest job first; the order in which pods leave a hot node, jobs without a pod first; jobs of one batch Job together, where the best of
    them is; those of batch Jobs of which most migrate already (`migrating`, by uid) first. `now` (seconds since the epoch) tells how much
    work a pod would lose.
    """
    queue = sorted(waiting, key=lambda each: each.job.metadata.name)  # equal ones must not depend on the order of arrival
    queue.sort(key=lambda each: -_created(each.job.metadata.creation_timestamp))
    queue.sort(key=lambda each: _pod_order(each.pod, now))
    queue = _together(queue)
    queue.sort(key=lambda each: -migrating[each.job_controller] if each.job_controller else 0)
    return queue


def _pod_order(pod: Pod | None, now: float) -> tuple[int, tuple[int, ...], int, int]:
    if pod is None:
        return (0, (), 0, 0)
    return (1, pod_rank(pod, pod_priority_class(pod)), restart_cost(pod, now), -_created(pod.metadata.creation_timestamp))


def _together(queue: Sequence[Waiting]) -> list[Waiting]:
    groups: dict[str, list[Waiting]] = {}
    for number, each in enumerate(queue):
        groups.setdefault(each.job_controller or f"#{number}", []).append(each)
    return [each for group in groups.values() for each in group]


Judge = Callable[[Waiting], Refusal | None]


def arbitrate(
    queue: Sequence[Waiting], migrating: Migrating, *, forbidden: Judge, reached: Judge, enter: Callable[[Waiting], Migration]
) -> list[Ruling]:
    """Rule on every job in turn. Who passes counts for those after it: the limits hold whatever is written first or fails to be.

    `forbidden` says what can never pass, `reached` which limit is reached now (on `migrating`, which this fills by `enter`).
    """
    rulings = []
    for unit in _units(queue):
        there = [each for each in unit if each.pod is not None]
        if (refusal := next(filter(None, map(forbidden, there)), None)) is not None:
            rulings += [Ruling(each, Outcome.FORBID, refusal) for each in unit]
            continue
        if (refusal := _incomplete(unit) or next(filter(None, map(reached, there)), None)) is not None:
            rulings += [Ruling(each, Outcome.WAIT, refusal) for each in unit]
            continue
        for each in unit:
            migrating.add(enter(each))
        rulings += [Ruling(each, Outcome.PASS) for each in unit]
    return rulings


def _units(queue: Sequence[Waiting]) -> list[list[Waiting]]:
    """Jobs that begin together or not at all, where the first of them is."""
    units: dict[str, list[Waiting]] = {}
    for number, each in enumerate(queue):
        units.setdefault(each.move or f"#{number}", []).append(each)
    return [*units.values()]


def _incomplete(unit: Sequence[Waiting]) -> Refusal | None:
    first = unit[0]
    if first.missing <= 0:
        return None
    there = first.together - first.missing
    return Refusal("Gang", f"of the {first.together} PodMigrationJobs of its gang {there} are there", there, first.together)


def migrating_by_job_controller(pods: Iterable[Pod]) -> Counter[str]:
    """How many pods of each batch Job migrate."""
    owners = (pod.metadata.controller for pod in pods)
    return Counter(owner.uid for owner in owners if owner is not None and owner.kind == "Job")


def queued(job: PodMigrationJob) -> bool:
    """Whether a job waits for arbitration: neither ended, nor let through before, nor paused."""
    return not status.finished(job) and not status.passed(job) and not job.spec.paused
