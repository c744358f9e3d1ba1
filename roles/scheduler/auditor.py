"""The workload auditor (SCH-FW-13): what happened to each workload until it was scheduled, and alerts where it drags.

A workload is a gang group, or a pod by itself. Decides and counts only; time is an argument.
"""

from __future__ import annotations

import logging
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from koord import seams
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.options import Thresholds

log = logging.getLogger(__name__)

_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_COUNTS = (1, 2, 3, 5, 10, 20, 50, 100)


class Event(StrEnum):
    """What is recorded of a workload."""

    CREATE = "create"
    GATED = "gatedByQueueAdmission"
    ADMITTED = "admissionPassed"
    MIN_MEMBER = "gangMinMemberSatisfied"
    SCHEDULED = "scheduled"
    NOMINATED = "preemptNominated"
    VICTIM_DELETING = "preemptVictimDeleting"
    PREEMPT_FAILURE = "preemptFailure"
    SCHEDULE_FAILURE = "scheduleFailure"
    ALL_ATTEMPTED = "gangAllPodsAlreadyAttempted"
    VICTIMS_GONE = "victimAllDeleted"


@dataclass(slots=True)
class Workload:
    """A workload under way. Times in seconds since the epoch, 0 for never."""

    labels: tuple[str, ...]
    last: float
    pods: set[str] = field(default_factory=set)
    events: Counts[str] = field(default_factory=Counts)
    victims: set[str] = field(default_factory=set)
    nominated: float = 0.0
    freed: float = 0.0
    deleting: int = 0


class Audit:
    """Without `enabled` nothing is kept. Told of pods (`pod_seen`, `pod_gone`) like a plugin, and of what scheduling does."""

    def __init__(self, thresholds: Thresholds, profiles: Iterable[str], registry: CollectorRegistry) -> None:
        self.enabled = thresholds.enabled
        self._limits = thresholds
        self._profiles = frozenset(profiles)
        self._workloads: dict[str, Workload] = {}
        self._of_pod: dict[str, str] = {}
        self._of_victim: dict[str, str] = {}
        if self.enabled:
            self._metrics = AuditMetrics(registry, ["priority", *(name for name, _ in thresholds.labels)])

    # ---------------------------------------------------------------- pods

    def pod_seen(self, pod: PodInfo, workload: str, now: float) -> None:
        """A pod is there; one of ours without a node begins its workload."""
        if not self.enabled or pod.node_name or pod.uid in self._of_pod or pod.shape.scheduler_name not in self._profiles:
            return
        self._of_pod[pod.uid] = workload
        found = self._workloads.get(workload)
        if found is None:
            extra = tuple(pod.labels.get(key, "") for _, key in self._limits.labels)
            found = self._workloads[workload] = Workload((str(pod.priority), *extra), now)
            found.pods.add(pod.uid)
            self.record(workload, Event.CREATE, now)
        found.pods.add(pod.uid)

    def pod_gone(self, uid: str, now: float) -> None:
        """A pod is gone: a member, or a victim that somebody waited for."""
        if not self.enabled:
            return
        self._leave(uid)
        waiting = self._of_victim.pop(uid, "")
        found = self._workloads.get(waiting)
        if found is None:
            return
        found.victims.discard(uid)
        if not found.victims:
            found.freed = now
            self.record(waiting, Event.VICTIMS_GONE, now)
            took = now - found.nominated
            self._metrics.deleted.labels(*found.labels).observe(took)
            self._metrics.retries.labels(*found.labels).observe(found.deleting)
            if took > self._limits.deletion:
                self._alert(waiting, f"its victims took {took:.1f} s to go")

    def _leave(self, uid: str) -> None:
        workload = self._of_pod.pop(uid, "")
        found = self._workloads.get(workload)
        if found is not None:
            found.pods.discard(uid)
            if not found.pods:
                del self._workloads[workload]

    # ---------------------------------------------------------------- what scheduling does

    def record(self, workload: str, event: Event, now: float) -> None:
        """Something happened to a workload; one that is not under way is passed over."""
        found = self._workloads.get(workload) if self.enabled else None
        if found is None:
            return
        started = seams.perf_counter()
        gap, found.last = now - found.last, now
        found.events[event] += 1
        self._metrics.interval.labels(*found.labels).observe(max(0.0, gap))
        if gap > self._limits.interval:
            self._alert(workload, f"nothing happened for {gap:.0f} s before {event}")
        self._metrics.took.labels(event.value).observe(seams.perf_counter() - started)

    def scheduled(self, pod: PodInfo, now: float) -> None:
        """A pod was bound."""
        workload = self._of_pod.get(pod.uid, "") if self.enabled else ""
        found = self._workloads.get(workload)
        if found is None:
            return
        self.record(workload, Event.SCHEDULED, now)
        if found.freed:
            took = now - found.freed
            self._metrics.reschedule.labels(*found.labels).observe(took)
            if took > self._limits.reschedule:
                self._alert(workload, f"{pod.key} was scheduled {took:.1f} s after its victims were gone")
            found.freed = 0.0
        if len(found.pods) == 1:
            self._outcome(found, "scheduled")
        self._leave(pod.uid)

    def failed(self, pod: PodInfo, victims: Sequence[PodInfo], *, preempted_in_vain: bool, now: float) -> None:
        """An attempt failed, perhaps with victims, or after preemption found none."""
        workload = self._of_pod.get(pod.uid, "") if self.enabled else ""
        found = self._workloads.get(workload)
        if found is None:
            return
        self.record(workload, Event.SCHEDULE_FAILURE, now)
        if victims:
            self._nominated(workload, found, victims, now)
        elif found.victims:
            found.deleting += 1
            self.record(workload, Event.VICTIM_DELETING, now)
            if found.deleting > self._limits.deleting_retries:
                self._alert(workload, f"{len(found.victims)} victim(s) still terminate after {found.deleting} attempts")
        elif preempted_in_vain:
            self.record(workload, Event.PREEMPT_FAILURE, now)
            if found.nominated:
                self._metrics.invalidations.labels(*found.labels).inc()
                self._metrics.interrupted.labels(*found.labels).observe(now - found.nominated)
                found.nominated = found.freed = 0.0

    def _nominated(self, workload: str, found: Workload, victims: Sequence[PodInfo], now: float) -> None:
        if found.nominated:
            self._metrics.repeated.labels(*found.labels).inc()
            self._alert(workload, "room is made for it once more")
        found.nominated, found.freed, found.deleting = now, 0.0, 0
        found.victims = {victim.uid for victim in victims}
        self._of_victim.update(dict.fromkeys(found.victims, workload))
        self.record(workload, Event.NOMINATED, now)

    def _outcome(self, found: Workload, outcome: str) -> None:
        for event, count in found.events.items():
            self._metrics.before.labels(*found.labels, event, outcome).observe(count)

    @staticmethod
    def _alert(workload: str, what: str) -> None:
        log.warning("ALERT workload %s: %s", workload, what)

    def workload_of(self, uid: str) -> str:
        """The workload under way that a pod is part of, "" for none."""
        return self._of_pod.get(uid, "")

    def events_of(self, workload: str) -> Mapping[str, int]:
        """How often what happened to a workload under way."""
        found = self._workloads.get(workload)
        return found.events if found is not None else {}


class AuditMetrics:
    """The auditor's metrics."""

    def __init__(self, registry: CollectorRegistry, labels: list[str]) -> None:
        named: dict[str, Any] = {"namespace": "scheduler", "subsystem": "workload_auditor", "registry": registry}
        counter: Callable[..., Counter] = partial(Counter, **named)
        histogram: Callable[..., Histogram] = partial(Histogram, **{"buckets": _SECONDS, **named})
        self.repeated = counter("repeated_preemptions", "Workloads for which pods were preempted more than once.", labels)
        self.invalidations = counter("preemption_invalidations", "Preemptions whose room the workload did not get.", labels)
        self.reschedule = histogram("victim_reschedule_duration_seconds", "Seconds from the end of the victims to the binding.", labels)
        self.retries = histogram(
            "preemption_victim_deleting_retries", "Attempts at a workload while its victims terminate.", labels, buckets=_COUNTS
        )
        self.deleted = histogram(
            "preemption_to_victim_deleted_seconds", "Seconds from the decision to preempt to the end of the victims.", labels
        )
        self.interrupted = histogram(
            "preemption_cycle_interrupted_seconds", "Seconds from the decision to preempt until it was given up.", labels
        )
        outcome = [*labels, "event_type", "outcome"]
        self.before = histogram(
            "scheduling_events_before_outcome", "What happened to a workload until its outcome, by event.", outcome, buckets=_COUNTS
        )
        self.interval = histogram("scheduling_event_interval_seconds", "Seconds between scheduling events of a workload.", labels)
        self.took = histogram(
            "record_method_duration_seconds", "Seconds that a call of the auditor took.", ["method"], buckets=(1e-6, 1e-5, 1e-4, 1e-3)
        )


class AuditWatch:
    """The auditor as one that is told of pods: names the workload of each, and the time."""

    def __init__(self, audit: Audit, workload_of: Callable[[PodInfo], str], clock: Callable[[], float]) -> None:
        self._audit, self._workload_of, self._clock = audit, workload_of, clock

    def pod_seen(self, pod: PodInfo) -> None:
        """A pod appeared or changed."""
        self._audit.pod_seen(pod, self._workload_of(pod), self._clock())

    def pod_gone(self, uid: str) -> None:
        """A pod is gone."""
        self._audit.pod_gone(uid, self._clock())

    def admission(self, pod: PodInfo, admitted: bool) -> None:
        """The preEnqueue plugins let a pod in, or not."""
        self._audit.record(self._audit.workload_of(pod.uid), Event.ADMITTED if admitted else Event.GATED, self._clock())
