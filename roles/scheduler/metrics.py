"""Metrics of the scheduler under kube-scheduler's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric

from koord.process.metrics import Collected, Timings
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.status import Code, Status

_RESULTS = {"Scheduled": "scheduled", "Unschedulable": "unschedulable", "Error": "error"}
_SECONDS = tuple(0.001 * 2**power for power in range(15))
_NODES = tuple(float(2**power) for power in range(24))
_WORDS = {code: "".join(part.capitalize() for part in code.name.split("_")) for code in Code}
"""Status codes as kube-scheduler spells them."""
_WORDS[Code.UNRESOLVABLE] = "UnschedulableAndUnresolvable"
_SAMPLED = 10  # one attempt in so many has its plugins measured
_QUEUES = ("active", "backoff", "unschedulable", "gated")


def standing(
    queues: Mapping[str, int], sizes: Mapping[str, int], bindings: int, refused: Iterable[tuple[str, str, int]], *, leads: bool, lease: str
) -> Iterator[Metric]:
    """What is counted when somebody asks: pods by queue, sizes of the cache, pods by the plugin that refused them, leadership."""
    waiting = {(queue,): queues.get(queue, 0) for queue in _QUEUES}
    yield _gauge("scheduler_pending_pods", "Pods that wait: active, backoff, unschedulable or gated.", ["queue"], waiting)
    objects = {(kind,): number for kind, number in sizes.items()}
    yield _gauge("scheduler_cache_size", "Objects in the cache: nodes, pods, assumed_pods.", ["type"], objects)
    yield _gauge("scheduler_goroutines", "Bindings under way beside the cycle.", ["operation"], {("binding",): bindings})
    by_plugin = {(plugin, profile): number for plugin, profile, number in refused}
    yield _gauge("scheduler_unschedulable_pods", "Pods that wait because this plugin refused them.", ["plugin", "profile"], by_plugin)
    yield _gauge("leader_election_master_status", "1 while this process leads.", ["name"], {(lease,): int(leads)})


def _gauge(name: str, text: str, labels: list[str], samples: Mapping[Any, int]) -> Metric:
    """The family with samples by their labels' values."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


class SchedulerMetrics:
    """All of them; give each scheduler a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        timings, counter = partial(Timings, registry=registry), partial(Counter, registry=registry)
        attempts = counter(
            "scheduler_schedule_attempts",
            "Scheduling attempts, counted when they end: scheduled (bound), unschedulable or error.",
            ["result", "profile"],
        )
        self._attempts = cache(attempts.labels)
        self._duration = timings(
            "scheduler_scheduling_attempt_duration_seconds",
            "Seconds of an attempt, from the queue until the pod is bound or has found no place; with the time that it is held on permit.",
            ["result", "profile"],
            buckets=_SECONDS,
        )
        self._algorithm = timings(
            "scheduler_scheduling_algorithm_duration_seconds", "Seconds of deciding where a pod goes.", buckets=_SECONDS
        )
        self._sli = timings(
            "scheduler_pod_scheduling_sli_duration_seconds", "Seconds from a pod's first attempt until it was bound.", ["attempts"],
            buckets=tuple(0.01 * 2**power for power in range(20)),
        )  # fmt: skip
        self._points = timings(
            "scheduler_framework_extension_point_duration_seconds",
            "Seconds of all plugins of an extension point (Reserve, Permit, PreBind, Bind).",
            ["extension_point", "status", "profile"],
            buckets=tuple(0.0001 * 2**power for power in range(14)),
        )
        self._permit = timings(
            "scheduler_permit_wait_duration_seconds", "Seconds for which permit plugins held a pod.", ["result"], buckets=_SECONDS
        )
        self._plugins = timings(
            "scheduler_plugin_execution_duration_seconds",
            "Seconds of a plugin at an extension point, of one attempt in ten. Filters and scores: all nodes at once.",
            ["plugin", "extension_point", "status"],
            buckets=tuple(0.00001 * 1.5**power for power in range(20)),
        )
        incoming = counter("scheduler_queue_incoming_pods", "Pods that entered a queue.", ["event", "queue"])
        self._incoming = cache(incoming.labels)
        self._pod_attempts = timings(
            "scheduler_pod_scheduling_attempts", "Attempts that a pod needed until it was bound.", buckets=(1, 2, 4, 8, 16)
        )
        self._taken = timings(
            "scheduler_next_pod_delete_from_queue_latency", "Seconds to take a named pod from the queue.", buckets=_SECONDS
        )
        self._victims = timings("scheduler_preemption_victims", "Pods that one preemption evicts.", buckets=(1, 2, 4, 8, 16, 32, 64))
        self._preemptions = counter(
            "scheduler_preemption_attempts", "How often room was looked for by preemption, with or without success."
        )
        self._turns = timings(
            "scheduler_loop_turn_duration_seconds",
            "Seconds for which scheduling kept the event loop before others (probes, watches, bindings) had their turn.",
            buckets=tuple(0.001 * 2**power for power in range(14)),
        )
        self._longest = Gauge("scheduler_loop_longest_turn_seconds", "The longest of these turns since the start.", registry=registry)
        self.longest_turn = 0.0
        self._differences = counter(
            "scheduler_plugin_differences",
            "How often a plugin's fresh result differed from its cached one (--verify-plugins).",
            ["plugin"],
        )
        self._timeouts = counter(
            "scheduler_scheduling_timeout", "Pods whose cycle or binding took longer than --scheduling-timeout.", ["profile"]
        )
        # Koordinator's name of the same: prometheus_client's counters end in `_total`.
        self._timed_out = Gauge("scheduler_scheduling_timeout", "As scheduler_scheduling_timeout_total.", ["profile"], registry=None)
        registry.register(Collected(self._timed_out.collect))  # type: ignore[arg-type]
        self._evaluated = timings(
            "scheduler_pod_scheduling_evaluated_nodes", "Nodes that were looked at for a pod that got one.", buckets=_NODES
        )
        self._feasible = timings("scheduler_pod_scheduling_feasible_nodes", "Nodes that fitted a pod that got one.", buckets=_NODES)
        self._attempts_begun = 0

    def attempt(self, verdict: str, profile: str, seconds: float) -> None:
        """An attempt ended."""
        result = _RESULTS[verdict]
        self._attempts(result, profile).inc()
        self._duration.labels(result, profile).observe(seconds)

    def found(self, evaluated: int, feasible: int) -> None:
        """A node was found among so many."""
        self._evaluated.observe(evaluated)
        self._feasible.observe(feasible)

    def timed_out(self, profile: str) -> None:
        """A pod takes longer than --scheduling-timeout."""
        self._timeouts.labels(profile).inc()
        self._timed_out.labels(profile).inc()

    def held(self, seconds: float) -> None:
        """Scheduling kept the event loop for so long."""
        self._turns.observe(seconds)
        if seconds > self.longest_turn:
            self.longest_turn = seconds
            self._longest.set(seconds)

    def differed(self, plugin: str, why: str) -> None:
        """A plugin looks at more than it says."""
        self._differences.labels(plugin).inc()

    def incoming(self, event: str, queue: str) -> None:
        """A pod entered a part of the queue."""
        self._incoming(event, queue).inc()

    def decided(self, seconds: float) -> None:
        """A decision was made."""
        self._algorithm.observe(seconds)

    def point(self, name: str, status: Status, profile: str, seconds: float) -> None:
        """The plugins of an extension point were run for a pod."""
        self._points.labels(name, _WORDS[status.code], profile).observe(seconds)

    def sample(self, framework: Framework) -> None:
        """An attempt begins; in one of ten the steps of the framework's plugins are measured."""
        framework.timer = self.plugin if self._attempts_begun % _SAMPLED == 0 else None
        self._attempts_begun += 1

    def plugin(self, name: str, point: str, status: Status, seconds: float) -> None:
        """A plugin's step took so long."""
        self._plugins.labels(name, point, _WORDS[status.code]).observe(seconds)

    def permitted(self, answer: Status, seconds: float) -> None:
        """A held pod was let go, or sent back."""
        self._permit.labels(_WORDS[answer.code]).observe(seconds)

    def bound(self, attempts: int, seconds: float) -> None:
        """A pod was bound at its nth attempt, so many seconds after the first."""
        self._pod_attempts.observe(attempts)
        self._sli.labels(str(attempts) if attempts < 15 else "15+").observe(seconds)

    def taken(self, seconds: float) -> None:
        """A pod that a plugin named was taken from wherever it waited."""
        self._taken.observe(seconds)

    def sought_room(self) -> None:
        """Preemption was tried for a pod."""
        self._preemptions.inc()

    def preempted(self, victims: int) -> None:
        """A preemption was decided."""
        self._victims.observe(victims)
