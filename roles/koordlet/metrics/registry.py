"""koordlet's metric families in two registries, internal and external, and their exposition (KLO-MET-01, KA-MET-01).

Both halves of the agent record here. Every series carries the label ``node`` unless its family says otherwise; before the
Node is known nothing with that label is shown but ``start_time``. What is counted until then is not lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector

from koord import seams
from roles.koordlet.metrics.series import Counter, Family, Gauge, Histogram, exponential_buckets

F = TypeVar("F", bound=Family)

_MS_BUCKETS = exponential_buckets(0.01, 4, 8)
_POD = ("pod_namespace", "pod_name")
_CONTAINER = (*_POD, "container_id", "container_name")
_PSI = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")


class Metrics:
    """All families as attributes; label values are positional, in the order given at the declaration."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.node_known = False
        self._internal: list[Family] = []
        self._external: list[Family] = []
        self.start_time = self._gauge("koordlet_start_time", "Unix time at which koordlet started.")
        self._declare_observing()
        self._declare_reports()
        self._declare_acting()
        self._declare_external()
        self.internal = CollectorRegistry(auto_describe=False)
        self.external = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.internal)
        self.attach(self._internal, self.internal)
        self.attach(self._external, self.external)

    def _add(self, registry: list[Family], family: F) -> F:
        family.clock = seams.monotonic
        registry.append(family)
        return family

    def _gauge(
        self, name: str, text: str, labels: Sequence[str] = (), *, expires: bool = False, registry: list[Family] | None = None
    ) -> Gauge:
        return self._add(self._internal if registry is None else registry, Gauge(name, text, labels, expires=expires))

    def _counter(self, name: str, text: str, labels: Sequence[str] = (), *, expires: bool = False) -> Counter:
        return self._add(self._internal, Counter(name, text, labels, expires=expires))

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float], *, with_node: bool = False) -> Histogram:
        return self._add(self._internal, Histogram(name, text, labels, buckets, with_node=with_node))

    def _declare_observing(self) -> None:
        status = ("status",)
        self.collect_cpu_info = self._counter("koordlet_collect_node_cpu_info_status", "Rounds of reading the CPU topology.", status)
        self.collect_numa_info = self._counter("koordlet_collect_node_numa_info_status", "Rounds of reading NUMA nodes.", status)
        self.collect_storage_info = self._counter(
            "koordlet_collect_node_local_storage_info_status", "Rounds of reading local storage.", status
        )
        self.node_used_cpu = self._gauge("koordlet_node_used_cpu_cores", "CPU use of the node, cores.")
        self.node_used_memory = self._gauge("koordlet_node_used_memory_bytes", "Memory use of the node without page cache, bytes.")
        self.be_used_cpu = self._gauge("koordlet_be_suppress_be_used_cpu_cores", "CPU use of the best-effort tier, cores.")
        self.host_app_usage = self._gauge(
            "koordlet_host_application_resource_usage",
            "Use of host applications: cores or bytes.",
            ("host_application_name", "resource", "priority_class", "qos"),
        )
        self.kubelet_request = self._histogram(
            "koordlet_kubelet_request_duration_seconds",
            "Seconds of requests to the kubelet.",
            ("verb", "path", "code"),
            exponential_buckets(0.001, 4, 7),
        )
        self.unavailable = self._gauge(
            "koordlet_feature_unavailable", "1 for each feature gate that is on and cannot work on this machine.", ("gate",)
        )
        self.sensing_errors = self._counter("koordlet_sensing_errors", "Readings that failed and were left out.", ("collector",))
        self.tick_seconds = self._gauge("koordlet_tick_seconds", "Seconds of a sensing tick: the last one, and the longest.", ("stat",))

    def _declare_reports(self) -> None:
        usage = ("resource", "unit")
        predicted = ("predictor", "resource", "unit")
        self.reclaimable = self._gauge(
            "koordlet_node_predicted_resource_reclaimable", "Resources that Prod pods are predicted not to need, by predictor.", predicted
        )
        self.peak = self._gauge("koordlet_node_predicted_resource_peak", "Predicted peak use of Prod pods, by predictor.", predicted)
        self.report_node = self._gauge("koordlet_node_metric_node_usage", "Node use as reported in NodeMetric.", usage)
        self.report_system = self._gauge("koordlet_node_metric_system_usage", "System use as reported.", usage)
        self.report_numa_node = self._gauge(
            "koordlet_node_metric_numa_node_usage", "Use of NUMA nodes as reported.", ("numa_node_id", *usage)
        )
        self.report_numa_system = self._gauge(
            "koordlet_node_metric_numa_system_usage", "System use of NUMA nodes as reported.", ("numa_node_id", *usage)
        )

    def _declare_acting(self) -> None:
        self.pod_eviction = self._counter("koordlet_pod_eviction", "Evictions by reason.", ("reason",))
        self.pod_eviction_detail = self._counter("koordlet_pod_eviction_detail", "Evictions by pod.", (*_POD, "reason"), expires=True)
        self.pressure_wakeups = self._counter(
            "koordlet_pressure_wakeups", "Ticks that kernel pressure started out of turn, by what could not wait.", ("reason",)
        )
        self.hook_socket_lost = self._counter(
            "koordlet_hook_socket_lost", "Times that the hook server's socket was gone and had to be made again."
        )
        self.strategy_failures = self._counter(
            "koordlet_strategy_failures", "Turns that a strategy or a hook lost by a mistake of its own, by name.", ("strategy",)
        )
        self.would_write = self._counter(
            "koordlet_strategy_would_write", "Changes that observe mode kept back, by strategy.", ("strategy",)
        )
        self.would_evict = self._counter("koordlet_would_evict", "Evictions that observe mode kept back, by gate.", ("gate",))
        self.be_suppress_cpu = self._gauge("koordlet_be_suppress_cpu_cores", "CPU allowed to the best-effort tier, cores.", ("type",))
        self.be_suppress_ls_used = self._gauge("koordlet_be_suppress_ls_used_cpu_cores", "CPU use of pods that are not best-effort, cores.")
        self.scaled_burst = self._gauge("koordlet_container_scaled_cfs_burst_us", "CFS burst of a container as set, µs.", _CONTAINER)
        self.scaled_quota = self._gauge(
            "koordlet_container_scaled_cfs_quota_us", "CFS quota of a container as scaled by CPU burst, µs.", _CONTAINER
        )
        self.share_pool_cores = self._gauge("koordlet_cpuset_share_pool_cpu_cores", "CPUs of the share pool.")
        self.be_share_pool_cores = self._gauge("koordlet_cpuset_be_share_pool_cpu_cores", "CPUs of the BE share pool.")
        self.share_pool_info = self._gauge("koordlet_cpuset_share_pool_info", "A CPU of the share pool.", ("cpu",))
        self.be_share_pool_info = self._gauge("koordlet_cpuset_be_share_pool_info", "A CPU of the BE share pool.", ("cpu",))
        self.interference = self._gauge(
            "koordlet_interference", "How many times its usual value a pod's signal is.", (*_POD, "signal", "antagonist")
        )
        self.interference_action = self._gauge(
            "koordlet_interference_action", "What is done to a pod that slows others down.", (*_POD, "action")
        )
        self.memory_offloaded = self._gauge(
            "koordlet_memory_offloaded_bytes", "How much less a pod has than the most that it had while memory is offloaded.", _POD
        )
        self.tuning = self._gauge(
            "koordlet_container_tuning", "What resource tuning set, by kind (µs, bytes, score).", (*_CONTAINER, "kind")
        )
        self.core_sched_cookie = self._gauge(
            "koordlet_container_core_sched_cookie",
            "1, with the core scheduling cookie of a container.",
            ("pod_name", "pod_namespace", "pod_uid", "container_name", "container_id", "core_sched_group", "core_sched_cookie"),
            expires=True,
        )
        self.core_sched_status = self._counter(
            "koordlet_core_sched_cookie_manage_status",
            "Operations on core scheduling cookies by outcome.",
            ("core_sched_group", "status"),
            expires=True,
        )
        self.oom_score_adj = self._gauge(
            "koordlet_container_oom_score_adj",
            "oom_score_adj of a container as set.",
            ("pod_name", "pod_namespace", "pod_uid", "container_name"),
            expires=True,
        )
        self.resource_update = self._histogram(
            "koordlet_resource_update_duration_milliseconds",
            "Milliseconds of writes to files of the node.",
            ("type", "status"),
            _MS_BUCKETS,
        )
        self.hook_duration = self._histogram(
            "koordlet_runtime_hook_invoked_duration_milliseconds",
            "Milliseconds of a runtime hook.",
            ("hook", "stage", "status"),
            _MS_BUCKETS,
            with_node=True,
        )
        self.reconciler_duration = self._histogram(
            "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds",
            "Milliseconds of a function of the reconciler.",
            ("level", "resource_type", "status"),
            _MS_BUCKETS,
            with_node=True,
        )

    def _declare_external(self) -> None:
        gauge = partial(self._gauge, registry=self._external)
        container = ("resource", "unit", "pod_uid", "pod_name", "pod_namespace", "container_id", "container_name")
        self.node_allocatable = gauge(
            "koordlet_node_resource_allocatable", "Allocatable batch and mid resources of the node.", ("resource", "unit")
        )
        self.priority_reclaimable = gauge(
            "koordlet_node_priority_resource_reclaimable",
            "Resources of a priority that can be offered again: cores or bytes.",
            ("priority", "resource", "unit"),
        )
        self.priority_reclaimable_status = gauge(
            "koordlet_node_resource_priority_reclaimable_status", "0 when reclaimable could be computed, else 1.", ("priority",)
        )
        self.container_requests = gauge(
            "koordlet_container_resource_requests", "Batch and mid requests of containers; CPU in milli, memory in bytes.", container
        )
        self.container_limits = gauge(
            "koordlet_container_resource_limits", "Batch and mid limits of containers; CPU in milli, memory in bytes.", container
        )
        self.store_bytes = gauge("koordlet_metric_store_bytes", "Memory that the series take, bytes.")
        self.store_series = gauge("koordlet_metric_store_series", "Series in the metric store.")
        self.container_cpi = gauge(
            "koordlet_container_cpi",
            "Cycles and instructions of a container over the window.",
            ("container_id", "container_name", "pod_uid", "pod_name", "pod_namespace", "cpi_field"),
        )
        pod = ("pod_uid", "pod_name", "pod_namespace")
        self.container_psi = gauge(
            "koordlet_container_psi", "Pressure of a container, percent.", ("container_id", "container_name", *pod, *_PSI)
        )
        self.pod_psi = gauge("koordlet_pod_psi", "Pressure of a pod, percent.", (*pod, *_PSI))
        self.resctrl_llc = gauge("koordlet_resctrl_llc_occupancy", "Last-level cache held, bytes.", ("cache_id", "qos"))
        self.resctrl_mb = gauge("koordlet_resctrl_memory_bandwidth", "Memory traffic, cumulative bytes.", ("cache_id", "qos", "mb_type"))

    # -- life ----------------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Record the start time (Unix seconds)."""
        self.start_time.set(now)

    def sweep(self) -> None:
        """Drop expired series; once a minute."""
        now = seams.monotonic()
        for family in (*self._internal, *self._external):
            family.sweep(now)

    def families(self) -> tuple[Family, ...]:
        """All families, internal ones first."""
        return (*self._internal, *self._external)

    def attach(self, families: Sequence[Family], registry: CollectorRegistry) -> None:
        """Have a registry expose these families, too."""
        registry.register(Exposed(self, families))  # type: ignore[arg-type]

    def shows(self, family: Family) -> bool:
        """Whether a family may be seen yet: those with the label ``node`` wait for the Node."""
        return self.node_known or not family.with_node or family is self.start_time


class Exposed:
    """Families as a collector of ``prometheus_client``; they keep their names, which its own counters would extend by ``_total``."""

    def __init__(self, metrics: Metrics, families: Sequence[Family]) -> None:
        self._metrics = metrics
        self._families = families
        self.plain_counters = tuple(family.name for family in families if family.kind == "counter")

    def collect(self) -> Iterator[Metric]:
        for family in filter(self._metrics.shows, self._families):
            metric = Metric(family.name, family.help, "unknown" if family.kind == "counter" else family.kind)
            for name, names, values, number in family.samples():
                labels = dict(zip(names, values, strict=True))
                if family.with_node:
                    labels["node"] = self._metrics.node
                metric.add_sample(name, labels, number)
            if metric.samples:
                yield metric
