"""How migrations are explained: decision records, Kubernetes events, metrics. Never in the way of what they tell about."""

from __future__ import annotations

from collections import Counter as Counting
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koord.api import kinds
from koord.api.objects import Pod, PodMigrationJob
from koord.decisions.record import Number, Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.events import EventRecorder
from koord.kube.references import reference
from roles.descheduler.migration import status
from roles.descheduler.migration.step import Step
from roles.descheduler.migration.words import Reason

ROLE, RULE, ACTION = "descheduler", "MigrationController", "Migrating"
SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
QUIET = 60.0  # seconds in which an eviction's refusals in other words (counts of budgets, numbers of requests) are told once
_ABOUT_THE_POD = frozenset({"Evicted", "FailedEvict", "Failed", "Complete", "Limited"})


class MigrationMetrics:
    """One set a process (koord's own; `descheduler_pods_evicted` is upstream's and counted by the role's metrics)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Gauge("koord_descheduler_migration_jobs", "PodMigrationJobs by phase.", ("phase",), registry=registry)
        self.ended = Counter("koord_descheduler_migrations", "Migrations that ended.", ("phase", "reason"), registry=registry)
        self.seconds = Histogram(
            "koord_descheduler_migration_duration_seconds",
            "Seconds from the creation of a job to its end.",
            ("phase",),
            buckets=SECONDS,
            registry=registry,
        )
        self.waiting = Gauge("koord_descheduler_arbitration_waiting", "Jobs that wait for arbitration.", registry=registry)
        self.refused = Counter(
            "koord_descheduler_arbitration_refusals", "Jobs that had to wait or were forbidden, by limit.", ("gate",), registry=registry
        )
        self._counted: Counting[str] = Counting()

    def count(self, jobs: Iterable[PodMigrationJob]) -> None:
        """How many jobs there are in each phase."""
        counted = Counting(job.status.phase or "Pending" for job in jobs)
        if counted == self._counted:  # twice a second
            return
        self._counted = counted
        self.jobs.clear()
        for phase, number in counted.items():
            self.jobs.labels(phase).set(number)


class Reporting:
    """What is told about each job, each thing once."""

    def __init__(self, recorder: Recorder, metrics: MigrationMetrics) -> None:
        self._recorder = recorder
        self.metrics = metrics
        self._last: dict[str, tuple[str, str]] = {}
        self._warned: dict[str, tuple[str, str, float]] = {}  # the last warning about a job, and when: tries that fail alike are one

    def step(self, job: PodMigrationJob, step: Step, events: EventRecorder, now: float) -> None:
        """A step of a job: a record where it says something new, an event where it has one and changes the status."""
        if self._last.get(job.metadata.uid) != (step.verdict, step.message):
            self._last[job.metadata.uid] = (step.verdict, step.message)
            self.record(job, step.verdict, step.message, now)
        if step.status is None:
            return
        if step.event and not (step.warning and self._known(job, step, now)):
            if step.warning:
                self._warned[job.metadata.uid] = (step.event, step.message, now)
            self.event(job, step.event, step.message, events, warning=step.warning)
        if step.status.phase in ("Succeeded", "Failed"):
            self.metrics.ended.labels(step.status.phase, step.status.reason).inc()
            self.metrics.seconds.labels(step.status.phase).observe(max(0.0, status.age(job, now)))

    def _known(self, job: PodMigrationJob, step: Step, now: float) -> bool:
        """Whether a warning says what the last one said."""
        event, message, at = self._warned.get(job.metadata.uid, ("", "", 0.0))
        return event == step.event and (message == step.message or (event == Reason.EVICTING and 0 <= now - at < QUIET))

    def record(self, job: PodMigrationJob, verdict: str, message: str, now: float, numbers: dict[str, Number] | None = None) -> None:
        """A record about the job, and about its pod where it concerns the pod."""
        namespace, _, name = status.pod_key(job).partition("/")
        told: dict[str, Number] = {"job": job.metadata.name, "pod": f"{namespace}/{name}", **(numbers or {})}
        subjects = [Subject(kinds.PODMIGRATIONJOBS.kind, "", job.metadata.name, job.metadata.uid)]
        if (verdict in _ABOUT_THE_POD or numbers) and name:
            subjects.append(Subject("Pod", namespace, name, status.pod_uid(job)))
        for subject in subjects:
            self._recorder.record(Record(role=ROLE, subject=subject, time=now, verdict=verdict, rule=RULE, message=message, numbers=told))

    def event(self, job: PodMigrationJob, reason: str, message: str, events: EventRecorder, *, warning: bool = False) -> None:
        """A Kubernetes event about the job."""
        kind = "Warning" if warning else "Normal"
        events.event(reference(job, kinds.PODMIGRATIONJOBS), kind, reason, message or reason, action=ACTION)

    def descheduled(self, pod: Pod, reason: str, events: EventRecorder) -> None:
        """A Kubernetes event about a pod that was evicted."""
        message = f'evicted from node "{pod.spec.node_name}" by the reason "{reason}"'
        events.event(reference(pod, kinds.PODS), "Normal", "Descheduled", message, action=ACTION)

    def forget(self, job: PodMigrationJob) -> None:
        """The job is gone."""
        self._last.pop(job.metadata.uid, None)
        self._warned.pop(job.metadata.uid, None)
