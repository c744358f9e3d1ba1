"""PodMigrationJobs as they are known here: the cache, and what this process has written since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from koord.api import kinds, names
from koord.api.objects import Pod, PodMigrationJob, convert
from koord.kube.informers import InformerFactory
from roles.descheduler.migration import status

UNSEEN = 60.0  # seconds after which a written job that the cache never showed is taken for deleted


class Jobs:
    """Answers with the newest version of each job, so that nothing is decided on one that is older than the last write."""

    def __init__(self, informers: InformerFactory, clock: Callable[[], float]) -> None:
        self.informer = informers.informer(kinds.PODMIGRATIONJOBS, PodMigrationJob, optional=True)
        self.informer.index("pod", lambda job: status.pod_key(job) or None)
        self.informer.index("new pod", lambda job: _new_pod(job) or None)
        self.informer.index("reservation", lambda job: ref.name if (ref := status.reservation_ref(job)) is not None else None)
        self.informer.index("move", lambda job: _move(job) or None)
        self.informer.index("uid", lambda job: job.metadata.uid)
        self.informer.index("workload", lambda job: status.controller_uid(job) or None)
        self._clock = clock
        self._written: dict[str, tuple[PodMigrationJob, float]] = {}
        self._told: dict[str, int] = {}
        self.informer.add_handler(on_add=self._seen, on_update=lambda _, job: self._seen(job), on_delete=self._deleted)
        self.version = 0  # changes with every job that changes

    def note(self, answer: dict[str, Any]) -> PodMigrationJob:
        """The job that the API server answered a write with."""
        job = convert(answer, PodMigrationJob)
        known = self.get(job.metadata.name)
        if known is None or known.metadata.uid != job.metadata.uid or _version(job) > _version(known):
            self._written[job.metadata.name] = (job, self._clock())
            self.version += 1
        return job

    def told(self, job: PodMigrationJob) -> None:
        """Its status was written, on the newest version: who wrote it goes on with it and need not be told."""
        self._told[job.metadata.name] = _version(job)

    def is_told(self, job: PodMigrationJob) -> bool:
        """Whether this version of a job, or one that was known when it was made, is our own last status."""
        return _version(job) <= self._told.get(job.metadata.name, -1)

    def forget(self, name: str) -> None:
        """The API server says that there is no such job."""
        self.version += self._written.pop(name, None) is not None

    def get(self, name: str) -> PodMigrationJob | None:
        """A job by its name."""
        cached = self.informer.get(name)
        written = self._written.get(name)
        if written is None:
            return cached
        if cached is None and self._clock() - written[1] > UNSEEN:
            del self._written[name]
            return None
        return written[0]

    def list(self) -> list[PodMigrationJob]:
        """Every job."""
        found = {job.metadata.name: job for job in self.informer.list()}
        for name in list(self._written):
            if (job := self.get(name)) is not None:
                found[name] = job
        return [*found.values()]

    def concerned(self, pod: str) -> set[str]:
        """Names of the jobs that a pod ("namespace/name") matters to."""
        found = self.informer.by_index("pod", pod) + self.informer.by_index("new pod", pod)
        mine = [job for job, _ in self._written.values() if pod in (status.pod_key(job), _new_pod(job))]
        return {job.metadata.name for job in (*found, *mine)}

    def has_part_for(self, pod: Pod) -> bool:
        """Whether a job is about this very pod, or names it as the one that came in the place of its own."""
        jobs = [job for name in self.concerned(pod.key) if (job := self.get(name)) is not None]
        news = (job.status.pod_ref for job in jobs)
        about = any(status.pod_uid(job) == pod.metadata.uid for job in jobs)
        return about or any(new is not None and new.uid == pod.metadata.uid for new in news)

    def of_reservation(self, name: str) -> set[str]:
        """Names of the jobs that name this reservation."""
        found = self.informer.by_index("reservation", name)
        mine = [job for job, _ in self._written.values() if (ref := status.reservation_ref(job)) is not None and ref.name == name]
        return {job.metadata.name for job in (*found, *mine)}

    def of_move(self, job: PodMigrationJob) -> Sequence[PodMigrationJob]:
        """The jobs of the gang's move that a job is part of, the job too."""
        move = _move(job)
        found = {each.metadata.name for each in self.informer.by_index("move", move)}
        found |= {each.metadata.name for each, _ in self._written.values() if _move(each) == move}
        return [each for name in sorted(found) if (each := self.get(name)) is not None]

    def of_workload(self, controllers: Iterable[str]) -> Sequence[PodMigrationJob]:
        """The jobs whose pods have, or had, one of these controllers (by uid), once arbitration has let them through."""
        wanted = frozenset(controllers)
        found = {each.metadata.name for uid in wanted for each in self.informer.by_index("workload", uid)}
        found |= {each.metadata.name for each, _ in self._written.values() if status.controller_uid(each) in wanted}
        return [each for name in sorted(found) if (each := self.get(name)) is not None]

    def by_uid(self, uid: str) -> PodMigrationJob | None:
        """A job by its uid, as far as the cache has shown it."""
        found = self.informer.by_index("uid", uid)
        return self.get(found[0].metadata.name) if found else None

    def _seen(self, job: PodMigrationJob) -> None:
        self.version += 1
        written = self._written.get(job.metadata.name)
        if written is not None and (written[0].metadata.uid != job.metadata.uid or _version(job) >= _version(written[0])):
            del self._written[job.metadata.name]

    def _deleted(self, job: PodMigrationJob) -> None:
        self.version += 1
        self._told.pop(job.metadata.name, None)
        written = self._written.get(job.metadata.name)
        if written is not None and written[0].metadata.uid == job.metadata.uid:
            del self._written[job.metadata.name]


def _move(job: PodMigrationJob) -> str:
    return job.metadata.annotations.get(names.ANNOTATION_MIGRATION_GANG, "")


def _new_pod(job: PodMigrationJob) -> str:
    new = job.status.pod_ref
    return f"{new.namespace}/{new.name}" if new is not None and new.name else ""


def _version(job: PodMigrationJob) -> int:
    """Versions of one object can be compared: they are numbers that grow."""
    text = job.metadata.resource_version
    return int(text) if text.isdigit() else 0
