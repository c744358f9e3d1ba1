"""Gangs that move as one: all members get a place first, then all leave, or none does (DS-MC-03, SCH-GANG-01).

The jobs of one move carry the same note. Every job looks at the others: it waits until all have a place, the first one by name leaves
first, the others when its eviction is accepted, and before it is asked for one that fails ends all. So nothing is kept in memory, and a
process that is killed anywhere goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from koord.api import names
from koord.api.objects import Pod, PodMigrationJob
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import status
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.step import Unit
from roles.descheduler.migration.words import Kind, Phase

PATIENCE = 30.0  # seconds that the jobs of a move may take to be made


@dataclass(frozen=True, slots=True)
class Move:
    """What the jobs of a gang's move have in common: the gang ("namespace/name"), how many they are, and the move's own uid."""

    gang: str
    count: int
    uid: str

    def write(self) -> str:
        """As it stands on a job."""
        return f"{self.gang} {self.count} {self.uid}"


def move_of(job: PodMigrationJob) -> Move | None:
    """The move that a job is part of, None for a pod that moves alone, and for what was not written here."""
    try:
        gang, count, uid = job.metadata.annotations.get(names.ANNOTATION_MIGRATION_GANG, "").split()
        return Move(gang, int(count), uid)
    except ValueError:
        return None


class Moves:
    """The jobs of each move, from the caches."""

    def __init__(self, jobs: Jobs, cluster: ClusterState, clock: Callable[[], float]) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._clock = clock

    def unit(self, job: PodMigrationJob) -> Unit | None:
        """What the other jobs of its move mean for a job."""
        move = move_of(job)
        if move is None:
            return None
        all_of_it = self._jobs.of_move(job)
        begun = any(status.accepted(each) or each.status.phase == Phase.SUCCEEDED for each in all_of_it)
        asked = any(status.eviction_begun(each) and not status.finished(each) for each in all_of_it)  # the pod may be gone already
        placed = sum(1 for each in all_of_it if status.running(each) and status.holds(each, Kind.RESERVATION_SCHEDULED))
        first = min((each.metadata.name for each in all_of_it), default=job.metadata.name) == job.metadata.name
        lost = "" if begun or asked else self._lost(move, job, all_of_it)
        return Unit(move.gang, move.count, placed, begun, first, lost)

    def _lost(self, move: Move, job: PodMigrationJob, all_of_it: Sequence[PodMigrationJob]) -> str:
        failed = next((each for each in all_of_it if status.finished(each) and each.metadata.uid != job.metadata.uid), None)
        if failed is not None:
            return f'the migration of Pod "{status.pod_key(failed)}" has failed: {failed.status.message}'
        if len(all_of_it) < move.count and status.age(job, self._clock()) > PATIENCE:
            return f"of {move.count} PodMigrationJobs {len(all_of_it)} are there"
        return ""

    def others(self, job: PodMigrationJob) -> list[tuple[PodMigrationJob, Pod]]:
        """The other jobs of its move whose pods have not left, with these; nobody for a pod that moves alone."""
        if move_of(job) is None:
            return []
        pods = ((each, self._cluster.pods.get(status.pod_key(each))) for each in self._jobs.of_move(job))
        return [
            (each, pod)
            for each, pod in pods
            if each.metadata.uid != job.metadata.uid and pod is not None and pod.metadata.uid == status.pod_uid(each)
        ]
