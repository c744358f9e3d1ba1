"""Metrics of gangs under upstream's names (scheduler-job.md 18)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram

_SECONDS = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)


def job_size(members: int) -> str:
    """The label value for a number of members: "0", "1-100", …, "901-1000", "1000+"."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    first = (members - 1) // 100 * 100
    return f"{first + 1}-{first + 100}"


class GangMetrics:
    """All of them. Without a registry nothing is kept: in a what-if, and before the process has one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            self._rounds = self._preemptions = self._batches = None
            return
        self._rounds = Histogram(
            "scheduler_gang_schedule_cycle_duration_seconds", "Seconds of a try to place a gang.", ["reason", "job_size"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._preemptions = Histogram(
            "scheduler_job_preemption_duration_seconds", "Seconds of looking for room for a job.", ["jobName", "result"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._batches = Histogram(
            "scheduler_inline_batch_schedule_duration_seconds", "Seconds of placing a planned gang whole.", ["result"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._waiting = Gauge("scheduler_waiting_gang_group_number", "Gangs of which members wait for others.", registry=registry)

    def round_ended(self, seconds: float, members: int, reason: str) -> None:
        """A group was tried."""
        if self._rounds is not None:
            self._rounds.labels(reason, job_size(members)).observe(seconds)

    def batch_ended(self, seconds: float, *, done: bool) -> None:
        """A planned group was placed whole, or rolled back."""
        if self._batches is not None:
            self._batches.labels("success" if done else "failure").observe(seconds)

    def preempted(self, job: str, result: str, seconds: float) -> None:
        """Room for a job was looked for."""
        if self._preemptions is not None:
            self._preemptions.labels(job, result).observe(seconds)

    def waiting(self, gangs: int) -> None:
        """So many gangs have members that wait."""
        if self._rounds is not None:
            self._waiting.set(gangs)
