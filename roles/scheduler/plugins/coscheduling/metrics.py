"""Metrics of gangs under upstream's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)
_JOBS = 500  # job names with results of which seconds are shown


def job_size(members: int) -> str:
    """The label value for a number of members: "0", "1-100", …, "901-1000", "1000+"."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    first = (members - 1) // 100 * 100
    return f"{first + 1}-{first + 100}"


class GangMetrics:
    """All of them. Without a registry they are kept for nobody: in a what-if, and before the process has one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"scheduler_{name}_seconds", text, labels, buckets=_SECONDS, registry=registry)

        def count(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"scheduler_{name}", text, labels, registry=registry)

        self._rounds = seconds("gang_schedule_cycle_duration", "Seconds of a try to place a gang.", "reason", "job_size")
        self._preemptions = seconds("job_preemption_duration", "Seconds of looking for room for a job.", "jobName", "result")
        self._told: dict[tuple[str, str], None] = {}  # series of the one before, those told last at the end
        self._batches = seconds("inline_batch_schedule_duration", "Seconds of placing a planned gang whole.", "result")
        self._by_node = seconds("batch_algorithm_by_node_duration", "Seconds of planning a batch: what each node takes of it.")
        self._by_pod = seconds("batch_algorithm_by_pod_duration", "Seconds of putting a batch's pods where they are planned, one by one.")
        self._partial_jobs = count("batch_partial_bind_jobs", "Batches of which some pods were not bound at the first try.")
        self._partial_pods = count("batch_partial_bind_pods", "Pods of such batches: success or failure.", "status")
        self._failures = count("batch_bind_failures", "Pods of batches that were let go and not bound.", "reason", "phase")
        self._cleanups = count("batch_assumed_pods_cleanup", "Pods of batches that were taken from their nodes again.", "reason")
        self._waiting = Gauge("scheduler_waiting_gang_group_number", "Gangs of which members wait for others.", registry=registry)

    def round_ended(self, seconds: float, members: int, reason: str) -> None:
        """A group was tried."""
        self._rounds.labels(reason, job_size(members)).observe(seconds)

    def batch_planned(self, seconds: float) -> None:
        """What each node takes of a batch was worked out."""
        self._by_node.observe(seconds)

    def batch_ended(self, seconds: float, *, done: bool, rolled_back: int) -> None:
        """A planned group was placed whole, or rolled back with so many pods that had places."""
        self._batches.labels("success" if done else "failure").observe(seconds)
        self._by_pod.observe(seconds)
        if rolled_back:
            self._cleanups.labels("RolledBack").inc(rolled_back)

    def batch_lost(self, *, bound: int, first: bool) -> None:
        """A pod of a batch was not bound; `bound` others were. `first`: no other one of the batch failed before."""
        self._failures.labels("BindingFailed", "Binding").inc()
        self._cleanups.labels("BindingFailed").inc()
        self._partial_pods.labels("failure").inc()
        if first:
            self._partial_jobs.inc()
            self._partial_pods.labels("success").inc(bound)

    def batch_bound_late(self) -> None:
        """A pod of a batch of which another one failed was bound."""
        self._partial_pods.labels("success").inc()

    def preempted(self, job: str, result: str, seconds: float) -> None:
        """Room for a job was looked for. Of jobs there is no end: the series that was told longest ago goes."""
        self._preemptions.labels(job, result).observe(seconds)
        self._told.pop((job, result), None)
        self._told[job, result] = None
        if len(self._told) > _JOBS:
            oldest = next(iter(self._told))
            del self._told[oldest]
            self._preemptions.remove(*oldest)

    def waiting(self, gangs: int) -> None:
        """So many gangs have members that wait."""
        self._waiting.set(gangs)
