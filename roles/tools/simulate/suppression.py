"""What node agents would leave to best-effort pods, by their own formula, on use as it would be with the changes. Pure (BEY-SIM-01)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from koord.accounting.pods import pod_requests
from koord.accounting.resources import parse_quantity
from koord.api import names
from koord.api.objects import Node, NodeMetric, Pod, ResourceMap
from koord.api.qos import QoSClass, pod_qos
from koord.config.slo import SLOConfig
from roles.koordlet.qos.allowance import allowed, capacity_milli, reserved_milli

ESTIMATE = 0.85
"""Part of its request that a pod which is not measured yet is taken to use."""


@dataclass(slots=True)
class Suppressed:
    """A node whose best-effort pods may use less than they would: milli-cores."""

    node: str
    allowed: int
    wanted: int


def cpu_of(usage: ResourceMap) -> int:
    """Measured CPU in milli-cores."""
    return parse_quantity("cpu", usage.resources.get("cpu", 0))


def host_applications(metric: NodeMetric) -> int:
    """Milli-cores that host applications use, best-effort ones aside: part neither of the pods' use nor of the system's."""
    return sum(cpu_of(app.usage) for app in metric.status.host_application_metric if app.qos != QoSClass.BE)


def estimate(pod: Pod) -> int:
    """Milli-cores that a pod which is not measured is taken to use."""
    request = pod_requests(pod)
    return int(ESTIMATE * (request.get("cpu", 0) + request.get(names.RESOURCE_BATCH_CPU, 0)))


def suppressed(
    config: SLOConfig | None, nodes: Mapping[str, Node], metrics: Mapping[str, NodeMetric], pods: Mapping[str, Pod],
    placed: Iterable[tuple[Pod, str]],
) -> Iterator[Suppressed]:  # fmt: skip
    """Nodes on which suppression is on and best-effort pods would want more than it leaves. `pods` are those that stay, by key."""
    if config is None:
        return
    coming: dict[str, list[Pod]] = {}
    for pod, node in placed:
        coming.setdefault(node, []).append(pod)
    for name, metric in sorted(metrics.items()):
        found = nodes.get(name)
        info = metric.status.node_metric
        strategy = config.threshold_for(found) if found is not None else {}
        if found is None or info is None or not strategy.get("enable") or not capacity_milli(found):
            continue
        others = wanted = 0
        known = sum(cpu_of(app.usage) for app in metric.status.host_application_metric)
        for each in metric.status.pods_metric:
            used = cpu_of(each.pod_usage)
            known += used
            pod_ = pods.get(f"{each.namespace}/{each.name}")
            if pod_ is not None:
                best_effort = pod_qos(pod_) is QoSClass.BE
                wanted += used * best_effort
                others += used * (not best_effort)
        for pod in coming.get(name, ()):
            best_effort = pod_qos(pod) is QoSClass.BE
            wanted += estimate(pod) * best_effort
            others += estimate(pod) * (not best_effort)
        system = cpu_of(info.system_usage) or max(0, cpu_of(info.node_usage) - known)
        reserved = reserved_milli(found)
        allowance = allowed(
            capacity_milli(found), int(strategy.get("cpuSuppressThresholdPercent", 65)), others, host_applications(metric),
            max(system, reserved), reserved, strategy.get("cpuSuppressMinPercent"),
        )  # fmt: skip
        if wanted > max(0, allowance.milli):
            yield Suppressed(name, max(0, allowance.milli), wanted)
