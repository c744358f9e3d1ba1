"""The status of the NodeMetric object, built from the store (KLO-SI-04). Pure: all queries end at the view's time.

Nothing is reported from missing data: without a CPU or a memory sample in the range a usage is empty and a pod, host
application or NUMA node is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koord.api.quantity import format_binary, format_decimal, format_milli
from koord.api.times import format_duration, format_time
from roles.koordlet.report.contention import extensions
from roles.koordlet.report.policy import CollectPolicy
from roles.koordlet.states.model import PodState
from roles.koordlet.states.slo import HostApp
from roles.koordlet.store import kinds
from roles.koordlet.store.series import PERCENTILES
from roles.koordlet.store.view import MetricsView

Usage = dict[str, Any]

#: Aggregated usage needs samples over this share of its window.
COLD_START_SHARE = 0.5
AGGREGATES = ("avg", *PERCENTILES)

_WITH_PAGE_CACHE, _HOT = "usageWithPageCache", "usageWithHotPageCache"
# plain kind -> (page cache kind, hot page kind)
_MEMORY_KINDS = {
    kinds.NODE_MEMORY: (kinds.NODE_MEMORY_WITH_PAGE_CACHE, kinds.NODE_MEMORY_WITH_HOT_PAGE),
    kinds.POD_MEMORY: (kinds.POD_MEMORY_WITH_PAGE_CACHE, kinds.POD_MEMORY_WITH_HOT_PAGE),
    kinds.HOST_APP_MEMORY: (kinds.HOST_APP_MEMORY_WITH_PAGE_CACHE, kinds.HOST_APP_MEMORY_WITH_HOT_PAGE),
}


@dataclass(frozen=True, slots=True)
class ReportInput:
    """What a report is made of."""

    now: float
    view: MetricsView
    policy: CollectPolicy
    pods: Sequence[PodState]
    host_apps: Sequence[HostApp]
    cold_memory: bool = False
    """Whether cold memory collection has started; only then are there hot-page series."""
    findings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What strategies have to say of pods, by uid."""


def resources(cpu: float, memory: float) -> Usage:
    """``{resources: {cpu, memory}}``: cores to decimal milli, bytes to a binary suffix, both truncated."""
    return {"resources": {"cpu": format_milli(int(cpu * 1000 + 1e-9)), "memory": format_binary(int(memory))}}


class Reporter:
    """Builds the parts of one report."""

    def __init__(self, data: ReportInput) -> None:
        self._data = data
        self._view = data.view

    def memory_kind(self, plain: str, **properties: str) -> str:
        """The series that the memory policy chooses; a chosen series without any sample degrades to the plain one."""
        policy = self._data.policy.memory
        page_cache, hot = _MEMORY_KINDS[plain]
        if policy == _WITH_PAGE_CACHE and self._view.count(page_cache, self._data.policy.aggregate, **properties):
            return page_cache
        if policy == _HOT and self._data.cold_memory:
            return hot
        return plain

    def average(self, cpu_kind: str, memory_kind: str, **properties: str) -> Usage:
        """Mean over the aggregate duration; empty without a sample of either."""
        window = self._data.policy.aggregate
        cpu = self._view.avg(cpu_kind, window, **properties)
        memory = self._view.avg(memory_kind, window, **properties)
        if cpu is None or memory is None:
            return {}
        usage = resources(cpu, memory)
        if cpu_kind in {kinds.NODE_CPU, kinds.POD_CPU}:
            devices = self._gpus(cpu_kind, properties)
            if devices:
                usage["devices"] = devices
        return usage

    def aggregated(self, cpu_kind: str, memory_kind: str) -> list[Usage]:
        """One entry a duration, in order, each with the five aggregations."""
        out: list[Usage] = []
        for duration in self._data.policy.durations:
            cpu_series = self._view.query(cpu_kind, duration)
            warm = len(cpu_series) > 0 and cpu_series.covered_ms >= COLD_START_SHARE * duration * 1000
            cpu = cpu_series.aggregates() if warm else {}
            memory = self._view.query(memory_kind, duration).aggregates() if warm else {}
            devices = self._aggregated_gpus(duration) if warm and cpu_kind == kinds.NODE_CPU else {}
            usage: dict[str, Usage] = {}
            for name in AGGREGATES:
                usage[name] = resources(cpu[name], memory[name]) if name in cpu and name in memory else {}
                if usage[name] and devices.get(name):
                    usage[name]["devices"] = devices[name]
            out.append({"duration": format_duration(duration), "usage": usage})
        return out

    def numa(self) -> list[Usage]:
        """NUMA nodes ascending; one needs CPU and memory of the node, its system part may be missing alone."""
        ids = {key[0] for kind in (kinds.NODE_NUMA_CPU, kinds.NODE_NUMA_MEMORY) for key in self._view.keys(kind)}
        out: list[Usage] = []
        for number in sorted(ids, key=int):
            node = self.average(kinds.NODE_NUMA_CPU, kinds.NODE_NUMA_MEMORY, numa_node_id=number)
            if not node:
                continue
            system = self.average(kinds.SYS_NUMA_CPU, kinds.SYS_NUMA_MEMORY, numa_node_id=number)
            entry: Usage = {"numaNodeID": int(number), "nodeUsage": node}
            if system:
                entry["systemUsage"] = system
            out.append(entry)
        return out

    def pods(self) -> list[tuple[PodState, Usage]]:
        """Pods with samples, by namespace and name."""
        out: list[tuple[PodState, Usage]] = []
        for pod in sorted(self._data.pods, key=lambda p: (p.namespace, p.name)):
            usage = self.average(kinds.POD_CPU, self.memory_kind(kinds.POD_MEMORY, pod_uid=pod.uid), pod_uid=pod.uid)
            if not usage:
                continue
            entry: Usage = {
                "namespace": pod.namespace,
                "name": pod.name,
                "priority": str(pod.priority_class),
                "qos": str(pod.qos),
                "podUsage": usage,
            }
            waiting = extensions(self._view, pod, self._data.policy.aggregate, self._data.findings.get(pod.uid))
            if waiting is not None:
                entry["extensions"] = waiting
            out.append((pod, entry))
        return out

    def host_apps(self) -> list[Usage]:
        """Host applications with samples, by name."""
        out: list[Usage] = []
        for app in sorted(self._data.host_apps, key=lambda a: a.name):
            memory_kind = self.memory_kind(kinds.HOST_APP_MEMORY, host_app_name=app.name)
            usage = self.average(kinds.HOST_APP_CPU, memory_kind, host_app_name=app.name)
            if usage:
                out.append({"name": app.name, "usage": usage, "priority": app.priority, "qos": app.qos})
        return out

    def node_metric(self) -> Usage:
        memory = self.memory_kind(kinds.NODE_MEMORY)
        return {
            "nodeUsage": self.average(kinds.NODE_CPU, memory),
            "aggregatedNodeUsages": self.aggregated(kinds.NODE_CPU, memory),
            "systemUsage": self.average(kinds.SYS_CPU, kinds.SYS_MEMORY),
            "aggregatedSystemUsages": self.aggregated(kinds.SYS_CPU, kinds.SYS_MEMORY),
            "numaUsages": self.numa(),
        }

    def _gpus(self, cpu_kind: str, properties: dict[str, str]) -> list[Usage]:
        """Mean GPU usage of the node or of a pod; cards without samples are left out."""
        node = cpu_kind == kinds.NODE_CPU
        core_kind, memory_kind = (kinds.NODE_GPU_CORE, kinds.NODE_GPU_MEMORY) if node else (kinds.POD_GPU_CORE, kinds.POD_GPU_MEMORY)
        window = self._data.policy.aggregate
        out: list[Usage] = []
        for minor, uuid in self._cards():
            card = {"gpu_minor": minor, "gpu_device_uuid": uuid}
            core = self._view.avg(core_kind, window, **properties, **card)
            memory = self._view.avg(memory_kind, window, **properties, **card)
            total = self._view.avg(kinds.NODE_GPU_MEMORY_TOTAL, window, **card)
            if core is not None and memory is not None and total:
                out.append(_gpu(minor, uuid, core, memory, total))
        return out

    def _aggregated_gpus(self, window: float) -> dict[str, list[Usage]]:
        """GPU usage of the node by aggregation."""
        out: dict[str, list[Usage]] = {name: [] for name in AGGREGATES}
        for minor, uuid in self._cards():
            card = {"gpu_minor": minor, "gpu_device_uuid": uuid}
            core = self._view.query(kinds.NODE_GPU_CORE, window, **card).aggregates()
            memory = self._view.query(kinds.NODE_GPU_MEMORY, window, **card).aggregates()
            total = self._view.avg(kinds.NODE_GPU_MEMORY_TOTAL, window, **card)
            if core and memory and total:
                for name in AGGREGATES:
                    out[name].append(_gpu(minor, uuid, core[name], memory[name], total))
        return out

    def _cards(self) -> list[tuple[str, ...]]:
        """Minor and id of each card, by minor."""
        return sorted(self._view.keys(kinds.NODE_GPU_MEMORY_TOTAL), key=lambda key: int(key[0]))


def _gpu(minor: str, uuid: str, core: float, memory: float, total: float) -> Usage:
    return {
        "id": uuid,
        "minor": int(minor),
        "type": "gpu",
        "health": False,
        "resources": {
            "koordinator.sh/gpu-core": format_decimal(int(core)),
            "koordinator.sh/gpu-memory": format_binary(int(memory)),
            "koordinator.sh/gpu-memory-ratio": format_decimal(int(100 * memory / total)),
        },
    }


def build_status(data: ReportInput, pods: list[tuple[PodState, Usage]], prod: Usage, prod_peak: Usage | None) -> Usage:
    """The whole status; ``prod`` and ``prod_peak`` are usages as :func:`resources` makes them (prod ``{}`` when unknown)."""
    reporter = Reporter(data)
    status: Usage = {
        "updateTime": format_time(data.now),
        "nodeMetric": reporter.node_metric(),
        "podsMetric": [entry for _, entry in pods],
        "hostApplicationMetric": reporter.host_apps(),
        "prodReclaimableMetric": {"resource": prod},
    }
    if prod_peak is not None:
        status["prodPeakMetric"] = {"resource": prod_peak}
    return status
