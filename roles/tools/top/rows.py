"""From nodes, their metrics and their pods to the rows of `koord top`. Pure. CPU in milli-cores, memory in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from koord.accounting.pods import pod_requests
from koord.api import names
from koord.api.annotations import AnnotationError, node_penalty, parse_usage_thresholds
from koord.api.objects import Node, NodeMetric, NodeSLO, Pod
from koord.api.objects_meta import ResourceList
from koord.api.priority import PriorityClass
from koord.api.qos import KUBERNETES_BEST_EFFORT, QoSClass, kubernetes_qos
from koord.api.quantity import QuantityError, milli_or, value_or
from roles.koordlet.qos.allowance import allowed, capacity_milli, reserved_milli
from roles.koordlet.report.policy import DEFAULT_POLICY, MIN_INTERVAL
from roles.koordlet.states.slo import effective_slo
from roles.scheduler.config.args import LoadAwareSchedulingArgs
from roles.tools.facts import time_of

_BATCH = (PriorityClass.BATCH, PriorityClass.FREE)
_SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Use:
    """What one tier of a node uses."""

    cpu: int = 0
    memory: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(self.cpu + other.cpu, self.memory + other.memory)


@dataclass(frozen=True, slots=True)
class Row:
    """One node, or the sum of all. `prod` holds pods without a class, too. `allowance`: milli-cores that the best-effort tier may use as
    of the last report, None where it is not held."""

    name: str
    capacity: Use = Use()
    used: Use = Use()
    prod: Use = Use()
    mid: Use = Use()
    batch: Use = Use()
    system: Use = Use()
    batch_allocatable: Use = Use()
    batch_requested: Use = Use()
    best_effort: int = 0
    allowance: int | None = None
    age: float | None = None
    """Seconds since the last report, None before the first."""
    marks: tuple[str, ...] = field(default=())


def row(node: Node, metric: NodeMetric | None, slo: NodeSLO | None, pods: Sequence[Pod], now: float) -> Row:
    """What is known about a node at `now` (Unix seconds)."""
    name = node.metadata.name
    status = metric.status if metric is not None else None
    info = status.node_metric if status is not None else None
    used = _use(info.node_usage.resources) if info is not None else Use()
    unclassed = {(pod.metadata.namespace, pod.metadata.name) for pod in pods if kubernetes_qos(pod) == KUBERNETES_BEST_EFFORT}
    tiers: dict[str, Use] = {"prod": Use(), "mid": Use(), "batch": Use()}
    best_effort = 0
    for pod in status.pods_metric if status is not None else ():
        amount = _use(pod.pod_usage.resources)
        tiers[_tier(pod.priority)] += amount
        best_effort += amount.cpu if pod.qos == QoSClass.BE or (pod.namespace, pod.name) in unclassed else 0
    apps = status.host_application_metric if status is not None else ()
    others = sum(_use(app.usage.resources).cpu for app in apps if app.qos != QoSClass.BE)
    system = _use(info.system_usage.resources) if info is not None else Use()
    non_be = sum(use.cpu for use in tiers.values()) - best_effort + others
    reported = time_of(status.update_time if status is not None else None)
    allowance = _allowance(node, slo, non_be, system.cpu) if info is not None else None
    found = Row(
        name=name,
        capacity=_use(node.status.capacity),
        used=used,
        prod=tiers["prod"],
        mid=tiers["mid"],
        batch=tiers["batch"],
        system=system,
        batch_allocatable=_batch(node.status.allocatable),
        batch_requested=sum((_requested(pod) for pod in pods), Use()),
        best_effort=best_effort,
        allowance=allowance,
        age=None if reported is None else max(0.0, now - reported),
    )
    return _with_marks(found, node, metric)


def _use(resources: ResourceList) -> Use:
    return Use(milli_or(resources.get(names.RESOURCE_CPU)), value_or(resources.get(names.RESOURCE_MEMORY)))


def _batch(resources: ResourceList) -> Use:
    return Use(value_or(resources.get(names.RESOURCE_BATCH_CPU)), value_or(resources.get(names.RESOURCE_BATCH_MEMORY)))


def _requested(pod: Pod) -> Use:
    try:
        wanted = pod_requests(pod)
    except QuantityError:
        return Use()
    return Use(wanted.get(names.RESOURCE_BATCH_CPU, 0), wanted.get(names.RESOURCE_BATCH_MEMORY, 0))


def _tier(priority: str) -> str:
    if priority == PriorityClass.MID:
        return "mid"
    return "batch" if priority in _BATCH else "prod"


def _allowance(node: Node, slo: NodeSLO | None, non_be: int, system: int) -> int | None:
    """koordlet's formula (KA-SUP-01) on what it reported last."""
    threshold = effective_slo(slo.spec)[0].threshold if slo is not None else None
    if threshold is None or not threshold.enable:
        return None
    percent, floor = threshold.cpu_suppress_threshold_percent, threshold.cpu_suppress_min_percent
    reserved = reserved_milli(node)
    return max(0, allowed(capacity_milli(node), percent, non_be, 0, max(system, reserved), reserved, floor).milli)


def _with_marks(found: Row, node: Node, metric: NodeMetric | None) -> Row:
    marks = []
    policy = metric.spec.metric_collect_policy if metric is not None else None
    interval = max((policy.report_interval_seconds if policy is not None else None) or DEFAULT_POLICY.interval, MIN_INTERVAL)
    if found.age is None:
        marks.append("no metrics")
    elif found.age > 3 * interval:
        marks.append("stale")
    limits = {**LoadAwareSchedulingArgs().usage_thresholds, **_own_thresholds(node)}
    for resource, used, capacity in (
        (names.RESOURCE_CPU, found.used.cpu, found.capacity.cpu),
        (names.RESOURCE_MEMORY, found.used.memory, found.capacity.memory),
    ):
        if capacity and limits.get(resource) and used * 100 >= capacity * limits[resource]:
            marks.append(f"hot {resource}")
    if found.allowance is not None and found.best_effort and found.best_effort * 100 >= found.allowance * 95:
        marks.append("squeezed")
    if found.batch_requested.cpu > found.batch_allocatable.cpu or found.batch_requested.memory > found.batch_allocatable.memory:
        marks.append("overbooked")
    if node_penalty(node.metadata.annotations):
        marks.append("abnormal")
    if node.spec.unschedulable:
        marks.append("cordoned")
    return replace(found, marks=tuple(marks))


def _own_thresholds(node: Node) -> Mapping[str, int]:
    try:
        own = parse_usage_thresholds(node.metadata.annotations)
    except AnnotationError:
        return {}
    return own.usage_thresholds if own is not None else {}


def total(rows: Iterable[Row]) -> Row:
    """All nodes together; marks are counted."""
    found = list(rows)
    counts = Counter(mark for one in found for mark in one.marks)
    sums = {
        name: sum((getattr(one, name) for one in found), Use())
        for name in ("capacity", "used", "prod", "mid", "batch", "system", "batch_allocatable", "batch_requested")
    }
    held = [one.allowance for one in found if one.allowance is not None]
    return Row(
        name=f"{len(found)} {'node' if len(found) == 1 else 'nodes'}",
        **sums,
        best_effort=sum(one.best_effort for one in found),
        allowance=sum(held) if held else None,
        age=max((one.age for one in found if one.age is not None), default=None),
        marks=tuple(f"{number} {mark}" for mark, number in sorted(counts.items())),
    )


def ordered(rows: Iterable[Row], by: str) -> list[Row]:
    """By name, or the highest share of use first."""
    if by == "name":
        return sorted(rows, key=lambda one: one.name)
    return sorted(rows, key=lambda one: (-_SHARES[by](one), one.name))


_SHARES: dict[str, Callable[[Row], float]] = {
    "cpu": lambda one: one.used.cpu / (one.capacity.cpu or 1),
    "memory": lambda one: one.used.memory / (one.capacity.memory or 1),
    "batch": lambda one: one.batch.cpu / (one.capacity.cpu or 1),
}
