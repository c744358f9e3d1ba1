"""The NodeMetric that a simulated node reports: usage now and over windows of the past, computed from its pods' curves (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koord.api import names
from koord.api.priority import priority_class_with_default
from koord.api.qos import QoSClass, qos_with_default
from koord.api.times import format_time
from roles.sandbox.nodes import fleet
from roles.sandbox.nodes.fleet import Usage
from roles.sandbox.process_kubelet import podspec

SAMPLES = 20
PERCENTILES = (("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99))
PEAK_MARGIN = 1.1


def node_usage(pods: Sequence[Mapping[str, Any]], capacity: Usage, time: float, period: float) -> tuple[list[Usage], Usage]:
    """(usage of each pod, usage of the rest of the node) at a time."""
    return fleet.scale_to((fleet.usage(pod, time, period) for pod in pods), capacity)


def percentile(values: Sequence[int], share: float) -> int:
    """The agent's rule: ascending, index max(floor(n*p) - 1, 0) (KLO-TSDB-01)."""
    ordered = sorted(values)
    return ordered[max(int(len(ordered) * share) - 1, 0)]


def average(samples: Sequence[Usage]) -> Usage:
    return Usage(int(statistics.fmean(s.cpu for s in samples)), int(statistics.fmean(s.memory for s in samples)))


def aggregate(samples: Sequence[Usage]) -> dict[str, Any]:
    """avg, p50, p90, p95 and p99 of usages, each a ResourceMap."""
    table = {"avg": average(samples)}
    for name, share in PERCENTILES:
        table[name] = Usage(percentile([s.cpu for s in samples], share), percentile([s.memory for s in samples], share))
    return {name: {"resources": fleet.resources(value)} for name, value in table.items()}


def window(observe: Callable[[float], Usage], now: float, seconds: float) -> list[Usage]:
    """Evenly spaced observations over the last `seconds`."""
    return [observe(now - seconds + seconds * (i + 1) / SAMPLES) for i in range(SAMPLES)]


def pod_entry(pod: Mapping[str, Any], value: Usage) -> dict[str, Any]:
    """One entry of `podsMetric`."""
    metadata, spec = pod["metadata"], pod["spec"]
    labels = metadata.get("labels") or {}
    qos = qos_with_default(labels, podspec.kubernetes_qos(spec))
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "priority": str(priority_class_with_default(labels, spec.get("priority"), qos)),
        "qos": str(qos),
        "podUsage": {"resources": fleet.resources(value)},
    }


def is_best_effort(pod: Mapping[str, Any]) -> bool:
    return str((pod["metadata"].get("labels") or {}).get(names.LABEL_POD_QOS, "")) == str(QoSClass.BE)


def status(
    pods: Sequence[Mapping[str, Any]],
    node: Mapping[str, Any],
    now: float,
    *,
    period: float,
    aggregate_seconds: float,
    durations: Sequence[float],
) -> dict[str, Any]:
    """The status of a node's NodeMetric at Unix time `now`. `pods` are its running pods; `durations` are window lengths in seconds."""
    capacity = fleet.capacity_of(node)

    def total(time: float) -> Usage:
        each, rest = node_usage(pods, capacity, time, period)
        return sum(each, rest)

    def system(time: float) -> Usage:
        return node_usage(pods, capacity, time, period)[1]

    def mean(observe: Callable[[float], Usage]) -> Usage:
        return average(window(observe, now, aggregate_seconds))

    def pod_mean(index: int) -> Usage:
        return mean(lambda time: node_usage(pods, capacity, time, period)[0][index])

    ordered = sorted(range(len(pods)), key=lambda i: (pods[i]["metadata"].get("namespace", ""), pods[i]["metadata"]["name"]))
    return {
        "updateTime": format_time(now),
        "nodeMetric": {
            "nodeUsage": {"resources": fleet.resources(mean(total))},
            "systemUsage": {"resources": fleet.resources(mean(system))},
            "aggregatedNodeUsages": [{"duration": f"{int(d)}s", "usage": aggregate(window(total, now, d))} for d in durations],
            "aggregatedSystemUsages": [{"duration": f"{int(d)}s", "usage": aggregate(window(system, now, d))} for d in durations],
        },
        "podsMetric": [pod_entry(pods[i], pod_mean(i)) for i in ordered],
        "hostApplicationMetric": [],
        "prodReclaimableMetric": {"resource": {"resources": fleet.resources(reclaimable(pods, now, period))}},
    }


def reclaimable(pods: Sequence[Mapping[str, Any]], now: float, period: float) -> Usage:
    """What production pods ask for beyond the peak of their curve over the last period, with a tenth on top of the peak."""
    total = Usage()
    for pod in pods:
        if is_best_effort(pod):
            continue
        ask = fleet.requested(pod)
        samples = window(lambda time, pod=pod: fleet.usage(pod, time, period), now, period)  # type: ignore[misc]
        peak = Usage(max(s.cpu for s in samples), max(s.memory for s in samples))
        total += Usage(max(0, ask.cpu - int(peak.cpu * PEAK_MARGIN)), max(0, ask.memory - int(peak.memory * PEAK_MARGIN)))
    return total
