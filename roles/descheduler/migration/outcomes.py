"""What moves have done, until it stands on their jobs (DS-LNL-06): a report may tell it before the job has ended, and a write may fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from koord.api.objects import PodMigrationJob
from roles.descheduler.migration import status
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.words import Phase
from roles.descheduler.migration.writing import Writing


class _Outcome(NamedTuple):
    helped: bool
    message: str


class Outcomes:
    """By UID of the job."""

    def __init__(self, jobs: Jobs, writing: Writing) -> None:
        self._jobs = jobs
        self._writing = writing
        self._waiting: dict[str, _Outcome] = {}

    def measured(self, pods: Iterable[str], helped: bool, message: str) -> list[str]:
        """A report has told what the leaving of these pods (UIDs) has done; the names of the jobs to write it on."""
        wanted = set(pods)
        concerned = [job for job in self._jobs.list() if status.pod_uid(job) in wanted and job.status.phase != Phase.FAILED]
        for job in concerned:
            self._waiting[job.metadata.uid] = _Outcome(helped, message)
        return [job.metadata.name for job in concerned]

    async def write(self, job: PodMigrationJob, now: float) -> PodMigrationJob:
        """Write it on a job that has ended; the job as it is then. Raises ApiError and Conflict: then it is still to be written."""
        found = self._waiting.get(job.metadata.uid)
        if found is None or not status.finished(job):
            return job
        if job.status.phase == Phase.SUCCEEDED and (changed := status.with_relief(job, found.helped, found.message, now)) is not None:
            job = await self._writing.status(job, changed)
        if self._waiting.get(job.metadata.uid) is found:
            del self._waiting[job.metadata.uid]
        return job

    def forget(self, job: PodMigrationJob) -> None:
        """The job is gone."""
        self._waiting.pop(job.metadata.uid, None)
