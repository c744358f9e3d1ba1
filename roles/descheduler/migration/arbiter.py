"""The loop in which waiting migrations are let through, made to wait, or forbidden (DS-ARB-01, DS-ARB-02)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from koord import seams
from koord.api import names
from koord.api.objects import PodMigrationJob
from koord.kube import errors
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import arbitration, evictors, status
from roles.descheduler.migration.arbitration import Outcome, Ruling, Waiting
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.ledger import Ledger
from roles.descheduler.migration.limits import Migration, Refusal
from roles.descheduler.migration.policy import Policy
from roles.descheduler.migration.reporting import Reporting
from roles.descheduler.migration.step import Step
from roles.descheduler.migration.together import move_of
from roles.descheduler.migration.words import Kind, Reason
from roles.descheduler.migration.writing import NotLeading, Writing
from roles.descheduler.workloads import Workloads

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Arbiter:
    """Rules on all waiting jobs at once, at an interval. What it has let through is written on the jobs, and so survives a restart."""

    _jobs: Jobs
    _cluster: ClusterState
    _workloads: Workloads
    _ledger: Ledger
    _writing: Writing
    _reporting: Reporting
    _policy_of: Callable[[PodMigrationJob], Policy]
    _clock: Callable[[], float]
    _said: dict[str, str] = field(default_factory=dict)

    async def run(self, interval: float) -> None:
        """Rule every `interval` seconds, for as long as this process leads."""
        while True:
            try:
                await self.tick()
            except NotLeading:
                return
            except errors.ApiError as error:
                log.warning("arbitration: %s", error)
            except Exception:  # one bad job must not end the process
                log.exception("arbitration failed")
            await seams.sleep(interval)

    async def tick(self) -> list[Ruling]:
        """One round of arbitration over all jobs that wait."""
        jobs = self._jobs.list()
        self._reporting.metrics.count(jobs)
        waiting = [self._waiting(job) for job in jobs if arbitration.queued(job)]
        self._reporting.metrics.waiting.set(len(waiting))
        names_of = {each.job.metadata.name for each in waiting}
        self._ledger.passing &= names_of
        self._said = {name: text for name, text in self._said.items() if name in names_of}
        if not waiting:
            return []
        await self._workloads.refresh(each.pod for each in waiting if each.pod is not None)
        rulings = self._rule(waiting)
        for ruling in rulings:
            self._writing.check()
            await self._act(ruling)
        return rulings

    def _waiting(self, job: PodMigrationJob) -> Waiting:
        move = move_of(job)
        pod = self._cluster.pods.get(status.pod_key(job))
        if move is None:
            return Waiting(job, pod)
        there = [each for each in self._jobs.of_move(job) if not status.finished(each)]
        return Waiting(job, pod, move.uid, move.count, missing=move.count - len(there))

    def _rule(self, waiting: list[Waiting]) -> list[Ruling]:
        migrating = self._ledger.started()

        def forbidden(each: Waiting) -> Refusal | None:
            if each.pod is None:
                return None
            if others := sorted(migrating.of_pod(each.pod) - {each.job.metadata.name}):
                return Refusal("Migrating", f'PodMigrationJob "{others[0]}" moves it already', 1, 1)
            return self._policy_of(each.job).forbidden(each.pod, self._ledger, together=each.together)

        def reached(each: Waiting) -> Refusal | None:
            policy = self._policy_of(each.job)
            return policy.reached(each.pod, self._ledger, migrating, together=each.together) if each.pod is not None else None

        def enter(each: Waiting) -> Migration:
            return self._ledger.migration(each.job)

        queue = arbitration.ordered(waiting, self._ledger.migrating_of_jobs(), self._clock())
        return arbitration.arbitrate(queue, migrating, forbidden=forbidden, reached=reached, enter=enter)

    async def _act(self, ruling: Ruling) -> None:
        job = ruling.waiting.job
        try:
            if ruling.outcome is Outcome.PASS:
                await self._let_through(ruling.waiting)
            elif ruling.outcome is Outcome.FORBID:
                await self._forbid(ruling)
            else:
                await self._explain(ruling)
        except errors.NotFound:
            self._ledger.passing.discard(job.metadata.name)
            self._jobs.forget(job.metadata.name)
        except errors.Conflict:  # changed meanwhile: judged anew, as it is now
            self._ledger.passing.discard(job.metadata.name)
            await self._writing.reread(job.metadata.name)
        except errors.ApiError as error:
            if not evictors.ambiguous(error):
                self._ledger.passing.discard(job.metadata.name)
            log.warning("arbitration of PodMigrationJob %s could not be written: %s", job.metadata.name, error)

    async def _let_through(self, waiting: Waiting) -> None:
        job, pod = waiting.job, waiting.pod
        annotations = {names.ANNOTATION_PASSED_ARBITRATION: "true"}
        if pod is not None and (workload := status.remember_workload(pod)):
            annotations[names.ANNOTATION_MIGRATION_WORKLOAD] = workload
        self._ledger.passing.add(job.metadata.name)
        decided = self._clock()  # the migration may have begun by the time the write is answered
        await self._writing.job(job, {"metadata": {"annotations": annotations}})
        self._ledger.passing.discard(job.metadata.name)
        self._said.pop(job.metadata.name, None)
        self._reporting.record(job, "Passed", "arbitration lets the migration begin", decided)

    async def _forbid(self, ruling: Ruling) -> None:
        job = ruling.waiting.job
        detail = ruling.refusal.message if ruling.refusal is not None else ""
        message = f'Pod "{status.pod_key(job)}" is forbidden to migrate because it does not meet the requirements: {detail}'
        ended = status.ended(job.status, Reason.FORBIDDEN, message)
        await self._writing.status(job, ended)
        self._count(ruling)
        step = Step("Failed", message, ended, event=Reason.FORBIDDEN, warning=True)
        self._reporting.step(job, step, self._policy_of(job).events, self._clock())

    async def _explain(self, ruling: Ruling) -> None:
        """Say once what a job waits for: in a record whenever that changes, in its status when it is another limit."""
        job, refusal = ruling.waiting.job, ruling.refusal
        if refusal is None or self._said.get(job.metadata.name) == refusal.message:
            return
        self._said[job.metadata.name] = refusal.message
        self._count(ruling)
        numbers: dict[str, float | int | str] = {"gate": refusal.gate, "count": refusal.count, "limit": refusal.limit}
        self._reporting.record(job, "Waiting", f"arbitration: {refusal.message}", self._clock(), numbers)
        known = status.condition(job, Kind.ARBITRATION)
        if known is None or (known.status, known.reason) != ("False", refusal.gate):
            changed = status.with_condition(job.status, Kind.ARBITRATION, "False", refusal.gate, refusal.message, self._clock())
            if changed is not None:
                await self._writing.status(job, changed)

    def _count(self, ruling: Ruling) -> None:
        if ruling.refusal is not None:
            self._reporting.metrics.refused.labels(ruling.refusal.gate).inc()
