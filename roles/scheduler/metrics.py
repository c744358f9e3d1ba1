"""Metrics of the scheduler under kube-scheduler's names (scheduler-job.md 5.10)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_RESULTS = {"Scheduled": "scheduled", "Unschedulable": "unschedulable", "Error": "error"}
_SECONDS = tuple(0.001 * 2**power for power in range(15))


class SchedulerMetrics:
    """All of them; give each scheduler a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._attempts = Counter("scheduler_schedule_attempts", "Attempts by result.", ["result", "profile"], registry=registry)
        self._duration = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Seconds of a cycle.",
            ["result", "profile"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._pending = Gauge("scheduler_pending_pods", "Pods waiting, by queue.", ["queue"], registry=registry)
        self._incoming = Counter("scheduler_queue_incoming_pods", "Pods that entered a queue.", ["event", "queue"], registry=registry)
        self._pod_attempts = Histogram(
            "scheduler_pod_scheduling_attempts", "Attempts until bound.", buckets=(1, 2, 4, 8, 16), registry=registry
        )
        self._victims = Histogram("scheduler_preemption_victims", "Victims.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry)
        self._preemptions = Counter("scheduler_preemption_attempts", "Preemptions.", registry=registry)
        self._timeouts = Counter("scheduler_scheduling_timeout", "Pods that took too long.", ["profile"], registry=registry)
        nodes = tuple(float(2**power) for power in range(24))
        self._evaluated = Histogram("scheduler_pod_scheduling_evaluated_nodes", "Nodes looked at.", buckets=nodes, registry=registry)
        self._feasible = Histogram("scheduler_pod_scheduling_feasible_nodes", "Nodes that fit.", buckets=nodes, registry=registry)
        self._by_result: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._by_queue: dict[tuple[str, str], Counter] = {}

    def attempt(self, verdict: str, profile: str, seconds: float) -> None:
        """A cycle ended."""
        key = (verdict, profile)
        found = self._by_result.get(key)
        if found is None:
            labels = (_RESULTS[verdict], profile)
            found = self._by_result[key] = (self._attempts.labels(*labels), self._duration.labels(*labels))
        found[0].inc()
        found[1].observe(seconds)

    def found(self, evaluated: int, feasible: int) -> None:
        """A node was found among so many."""
        self._evaluated.observe(evaluated)
        self._feasible.observe(feasible)

    def timed_out(self, profile: str) -> None:
        """A pod takes longer than --scheduling-timeout."""
        self._timeouts.labels(profile).inc()

    def incoming(self, event: str, queue: str) -> None:
        """A pod entered a part of the queue."""
        counter = self._by_queue.get((event, queue))
        if counter is None:
            counter = self._by_queue[event, queue] = self._incoming.labels(event, queue)
        counter.inc()

    def pending(self, counts: dict[str, int]) -> None:
        """How many pods wait where."""
        for queue in ("active", "backoff", "unschedulable", "gated"):
            self._pending.labels(queue).set(counts.get(queue, 0))

    def bound(self, profile: str, attempts: int) -> None:
        """A pod was bound at its nth attempt."""
        self._pod_attempts.observe(attempts)

    def preempted(self, victims: int) -> None:
        """A preemption was decided."""
        self._preemptions.inc()
        self._victims.observe(victims)
