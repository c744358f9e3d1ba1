"""Old jobs and what they leave behind (DS-MC-06): at the start and every minute."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from koord import seams
from koord.api import kinds, names
from koord.api.objects import Pod, PodMigrationJob, Reservation
from koord.kube import errors
from koord.kube.informers import Informer
from roles.descheduler.migration import status
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.words import CREATED_BY
from roles.descheduler.migration.writing import NotLeading, Writing

log = logging.getLogger(__name__)

INTERVAL = 60.0
GRACE = 300.0  # seconds that a job stays after its time
WITHOUT_TTL = 1800.0  # seconds that a job without a ttl stays


def expired(job: PodMigrationJob, pod: Pod | None, now: float) -> bool:
    """Whether a job, in whatever phase, is to be deleted. `pod` is its pod as long as it is there."""
    ttl, age = status.ttl(job), status.age(job, now) - status.paused_for(job)
    if not status.finished(job):
        if job.spec.paused:
            return False  # it does not age
        if status.eviction_begun(job):
            # its pod may be on its way; what comes after it has its time by the TTL, or the whole time anew
            since = status.left_at(job)
            return not ttl and pod is None and since is not None and now - since > WITHOUT_TTL
    return age > (ttl + GRACE if ttl > 0 else WITHOUT_TTL)


def orphaned(reservation: Reservation, jobs: set[str]) -> bool:
    """Whether a reservation was made for a job that is gone. `jobs` are the uids of those that are there."""
    if reservation.metadata.labels.get(names.LABEL_CREATED_BY) != CREATED_BY:
        return False
    owners = [owner.uid for owner in reservation.metadata.owner_references if owner.kind == kinds.PODMIGRATIONJOBS.kind]
    return bool(owners) and not jobs.intersection(owners)


@dataclass(eq=False)
class Scavenger:
    """Deletes old jobs with their reservations, and reservations without a job."""

    _jobs: Jobs
    _reservations: Informer[Reservation]
    _its_pod: Callable[[PodMigrationJob], Pod | None]
    _writing: Writing
    _clock: Callable[[], float]

    async def run(self) -> None:
        """Sweep now and every minute, for as long as this process leads."""
        while True:
            try:
                await self.sweep()
            except NotLeading:
                return
            await seams.sleep(INTERVAL)

    async def sweep(self) -> None:
        """One sweep; what cannot be deleted now is met again by the next one."""
        now = self._clock()
        for job in self._jobs.list():
            if expired(job, self._its_pod(job), now):
                await self._try(self._remove(job), f"PodMigrationJob {job.metadata.name}")
        uids = {job.metadata.uid for job in self._jobs.list()}
        for reservation in self._reservations.list():
            if orphaned(reservation, uids):
                meta = reservation.metadata
                await self._try(self._writing.delete(kinds.RESERVATIONS, meta.name, meta.uid), f"Reservation {meta.name}")

    async def _remove(self, job: PodMigrationJob) -> None:
        ref = status.reservation_ref(job)
        if ref is not None:
            await self._writing.delete(kinds.RESERVATIONS, ref.name, ref.uid)
        await self._writing.delete(kinds.PODMIGRATIONJOBS, job.metadata.name, job.metadata.uid)

    async def _try(self, removal: Awaitable[None], what: str) -> None:
        try:
            await removal
            log.info("%s is deleted: it is too old, or its job is gone", what)
        except errors.ApiError as error:
            log.warning("%s cannot be deleted: %s", what, error)
