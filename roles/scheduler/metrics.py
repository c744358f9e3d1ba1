"""Metrics of the scheduler under kube-scheduler's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric

from koord.process.metrics import Timing, Timings
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.status import Code, Status

_RESULTS = {"Scheduled": "scheduled", "Unschedulable": "unschedulable", "Error": "error"}
_SECONDS = tuple(0.001 * 2**power for power in range(15))


_WORDS = {"Unresolvable": "UnschedulableAndUnresolvable"}  # the others are kube-scheduler's words
_SAMPLED = 10  # one attempt in so many has its plugins measured
_QUEUES = ("active", "backoff", "unschedulable", "gated")

Counts = Callable[[], Mapping[str, int]]


def _word(status: Status) -> str:
    """A status as kube-scheduler spells it."""
    word = "".join(part.capitalize() for part in status.code.name.split("_"))
    return _WORDS.get(word, word)


class Standing:
    """What is counted when somebody asks: pods by queue, sizes of the cache, pods by the plugin that refused them, leadership."""

    def __init__(
        self, *, queues: Counts, cache: Counts, bindings: Callable[[], int], refused: Callable[[], Iterable[tuple[str, str, int]]],
        leader: Callable[[], bool], lease: str,
    ) -> None:  # fmt: skip
        self._queues, self._cache, self._bindings, self._refused = queues, cache, bindings, refused
        self._leader, self._lease = leader, lease

    def collect(self) -> Iterator[Metric]:
        """Samples as they are now."""
        counts = self._queues()
        pending = GaugeMetricFamily("scheduler_pending_pods", "Pods that wait: active, backoff, unschedulable or gated.", labels=["queue"])
        for queue in _QUEUES:
            pending.add_metric([queue], counts.get(queue, 0))
        yield pending
        size = GaugeMetricFamily("scheduler_cache_size", "Objects in the cache: nodes, pods, assumed_pods.", labels=["type"])
        for kind, number in self._cache().items():
            size.add_metric([kind], number)
        yield size
        busy = GaugeMetricFamily("scheduler_goroutines", "Bindings under way beside the cycle.", labels=["operation"])
        busy.add_metric(["binding"], self._bindings())
        yield busy
        refused = GaugeMetricFamily(
            "scheduler_unschedulable_pods", "Pods that wait because this plugin refused them.", labels=["plugin", "profile"]
        )
        for plugin, profile, number in self._refused():
            refused.add_metric([plugin, profile], number)
        yield refused
        leader = GaugeMetricFamily("leader_election_master_status", "1 while this process leads.", labels=["name"])
        leader.add_metric([self._lease], int(self._leader()))
        yield leader


class SameName:
    """Shows a metric under the name that Koordinator has for a counter, though prometheus_client's counters end in `_total`."""

    def __init__(self, metric: Gauge) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """Samples as they are now."""
        return self._metric.collect()


class SchedulerMetrics:
    """All of them; give each scheduler a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._attempts = Counter(
            "scheduler_schedule_attempts",
            "Scheduling attempts, counted when they end: scheduled (bound), unschedulable or error.",
            ["result", "profile"],
            registry=registry,
        )
        self._duration = Timings(
            "scheduler_scheduling_attempt_duration_seconds",
            "Seconds of an attempt, from the queue until the pod is bound or has found no place; with the time that it is held on permit.",
            ["result", "profile"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._algorithm = Timings(
            "scheduler_scheduling_algorithm_duration_seconds", "Seconds of deciding where a pod goes.", buckets=_SECONDS, registry=registry
        )
        self._sli = Timings(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Seconds from a pod's first attempt until it was bound.",
            ["attempts"],
            buckets=tuple(0.01 * 2**power for power in range(20)),
            registry=registry,
        )
        self._points = Timings(
            "scheduler_framework_extension_point_duration_seconds",
            "Seconds of all plugins of an extension point (Reserve, Permit, PreBind, Bind).",
            ["extension_point", "status", "profile"],
            buckets=tuple(0.0001 * 2**power for power in range(14)),
            registry=registry,
        )
        self._permit = Timings(
            "scheduler_permit_wait_duration_seconds",
            "Seconds for which permit plugins held a pod.",
            ["result"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._plugins = Timings(
            "scheduler_plugin_execution_duration_seconds",
            "Seconds of a plugin at an extension point, of one attempt in ten. Filters and scores: all nodes at once.",
            ["plugin", "extension_point", "status"],
            buckets=tuple(0.00001 * 1.5**power for power in range(20)),
            registry=registry,
        )
        self._incoming = Counter("scheduler_queue_incoming_pods", "Pods that entered a queue.", ["event", "queue"], registry=registry)
        self._pod_attempts = Timings(
            "scheduler_pod_scheduling_attempts",
            "Attempts that a pod needed until it was bound.",
            buckets=(1, 2, 4, 8, 16),
            registry=registry,
        )
        self._taken = Timings(
            "scheduler_next_pod_delete_from_queue_latency",
            "Seconds to take a named pod from the queue.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._victims = Timings(
            "scheduler_preemption_victims", "Pods that one preemption evicts.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self._preemptions = Counter(
            "scheduler_preemption_attempts", "How often room was looked for by preemption, with or without success.", registry=registry
        )
        self._turns = Timings(
            "scheduler_loop_turn_duration_seconds",
            "Seconds for which scheduling kept the event loop before others (probes, watches, bindings) had their turn.",
            buckets=tuple(0.001 * 2**power for power in range(14)),
            registry=registry,
        )
        self._longest = Gauge("scheduler_loop_longest_turn_seconds", "The longest of these turns since the start.", registry=registry)
        self.longest_turn = 0.0
        self._differences = Counter(
            "scheduler_plugin_differences",
            "How often a plugin's fresh result differed from its cached one (--verify-plugins).",
            ["plugin"],
            registry=registry,
        )
        self._timeouts = Counter(
            "scheduler_scheduling_timeout",
            "Pods whose cycle or binding took longer than --scheduling-timeout.",
            ["profile"],
            registry=registry,
        )
        self._timed_out = Gauge("scheduler_scheduling_timeout", "As scheduler_scheduling_timeout_total.", ["profile"], registry=None)
        registry.register(SameName(self._timed_out))
        nodes = tuple(float(2**power) for power in range(24))
        self._evaluated = Timings(
            "scheduler_pod_scheduling_evaluated_nodes",
            "Nodes that were looked at for a pod that got one.",
            buckets=nodes,
            registry=registry,
        )
        self._feasible = Timings(
            "scheduler_pod_scheduling_feasible_nodes", "Nodes that fitted a pod that got one.", buckets=nodes, registry=registry
        )
        self._by_result: dict[tuple[str, str], tuple[Counter, Timing]] = {}
        self._by_point: dict[tuple[str, Code, str], Timing] = {}
        self._by_plugin: dict[tuple[str, str, Code], Timing] = {}
        self._attempts_begun = 0
        self._by_queue: dict[tuple[str, str], Counter] = {}

    def attempt(self, verdict: str, profile: str, seconds: float) -> None:
        """An attempt ended."""
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
        counter = self._by_queue.get((event, queue))
        if counter is None:
            counter = self._by_queue[event, queue] = self._incoming.labels(event, queue)
        counter.inc()

    def decided(self, seconds: float) -> None:
        """A decision was made."""
        self._algorithm.observe(seconds)

    def point(self, name: str, status: Status, profile: str, seconds: float) -> None:
        """The plugins of an extension point were run for a pod."""
        key = (name, status.code, profile)
        found = self._by_point.get(key)
        if found is None:
            found = self._by_point[key] = self._points.labels(name, _word(status), profile)
        found.observe(seconds)

    def sample(self, framework: Framework) -> None:
        """An attempt begins; in one of ten the steps of the framework's plugins are measured."""
        framework.timer = self.plugin if self._attempts_begun % _SAMPLED == 0 else None
        self._attempts_begun += 1

    def plugin(self, name: str, point: str, status: Status, seconds: float) -> None:
        """A plugin's step took so long."""
        key = (name, point, status.code)
        found = self._by_plugin.get(key)
        if found is None:
            found = self._by_plugin[key] = self._plugins.labels(name, point, _word(status))
        found.observe(seconds)

    def permitted(self, answer: Status, seconds: float) -> None:
        """A held pod was let go, or sent back."""
        self._permit.labels(_word(answer)).observe(seconds)

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
