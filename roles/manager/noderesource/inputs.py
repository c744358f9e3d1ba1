"""From API objects to plugin inputs: pods, reservations, usage and degradation; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, TypeVar, cast, overload

from koord.accounting.pods import pod_requests
from koord.api import names
from koord.api.annotations import (
    AnnotationError,
    node_reservation_resources,
    parse_node_reservation,
    parse_resource_status,
    raw_allocatable,
)
from koord.api.objects import Node, NodeMetric, Pod
from koord.api.priority import DEFAULT_VALUES, PriorityClass, parse_class, pod_priority_class
from koord.api.qos import QoSClass, pod_qos
from koord.api.quantity import QuantityError, parse_milli, parse_value
from koord.api.sharing import SharedPod
from koord.api.times import TimeError, parse_time
from roles.manager.noderesource.model import Inputs, PodInput
from roles.manager.noderesource.reports import PodUsages

CPU, MEMORY = names.RESOURCE_CPU, names.RESOURCE_MEMORY
_FACT = "noderesource"  # under which a template keeps its input
T = TypeVar("T")
LOW_CLASSES = frozenset({PriorityClass.BATCH, PriorityClass.FREE})
Amount = tuple[int, int]
"""cpu in milli, memory in bytes."""


def pod_input(pod: Pod) -> PodInput | None:
    """The pod as the calculators see it; None when it is not Running or Pending. Raises QuantityError.

    Pods of a template are read once.
    """
    if not isinstance(pod, SharedPod):
        return _read(pod)
    facts = pod.template.facts
    if _FACT not in facts:
        try:
            facts[_FACT] = _read(cast(Pod, pod))
        except QuantityError as error:
            facts[_FACT] = str(error)
    found = facts[_FACT]
    if isinstance(found, str):
        raise QuantityError(found)
    if found is None:
        return None
    return PodInput(pod.key, found.priority_class, found.qos, found.cpu, found.memory, found.numa_nodes)


def _read(pod: Pod) -> PodInput | None:
    if pod.status.phase not in ("Running", "Pending"):
        return None
    wanted = pod_requests(pod)
    return PodInput(
        key=pod.key,
        priority_class=pod_priority_class(pod),
        qos=pod_qos(pod),
        cpu=wanted.get(CPU, 0),
        memory=wanted.get(MEMORY, 0),
        numa_nodes=_numa_nodes(pod.metadata.annotations),
    )


def _numa_nodes(annotations: Mapping[str, str]) -> tuple[int, ...]:
    try:
        status = parse_resource_status(annotations)
    except AnnotationError:
        return ()  # as without a binding: the pod is spread over all zones
    return tuple(entry.node for entry in status.numa_node_resources) if status else ()


def usage(resources: Mapping[str, str | int | float]) -> Amount:
    """cpu and memory of a ResourceList; an absent one is 0. Raises QuantityError."""
    return parse_milli(resources.get(CPU, 0)), parse_value(resources.get(MEMORY, 0))


def measured(resources: Mapping[str, str | int | float]) -> Amount:
    """`usage` as an agent reports it: nothing uses less than 0, and what it would leave to others is not there. Raises QuantityError."""
    cpu, memory = usage(resources)
    return max(cpu, 0), max(memory, 0)


def capacity(node: Node) -> Amount:
    """cpu and memory capacity of a node."""
    return usage(node.status.capacity)


def reserved(node: Node) -> tuple[Amount, Amount]:
    """What the kubelet keeps back (capacity − allocatable, at least 0) and what the reservation annotation asks for.

    Of an amplified node, allocatable is more than there is, and would hide what the kubelet keeps back.
    """
    total, free = usage(node.status.capacity), usage(raw_allocatable(node.status.allocatable, node.metadata.annotations))
    kubelet = (max(total[0] - free[0], 0), max(total[1] - free[1], 0))
    return kubelet, annotation_reservation(node.metadata.annotations)


def annotation_reservation(annotations: Mapping[str, str]) -> Amount:
    """cpu and memory of annotation node.koordinator.sh/reservation; anything unreadable counts as no reservation."""
    try:
        reservation = parse_node_reservation(annotations)
    except AnnotationError:
        return 0, 0
    return usage(node_reservation_resources(reservation)) if reservation else (0, 0)


def system_usage(metric: NodeMetric, above: int) -> tuple[Amount, Amount]:
    """System usage of a node, and that of host applications whose class default value is greater than `above`. Raises QuantityError."""
    body = metric.status.node_metric
    system = measured(body.system_usage.resources) if body else (0, 0)
    hosts = [
        measured(app.usage.resources) for app in metric.status.host_application_metric if DEFAULT_VALUES[parse_class(app.priority)] > above
    ]
    return system, (sum(a[0] for a in hosts), sum(a[1] for a in hosts))


@dataclass(slots=True)
class PodSums:
    """Sums over the high-priority pods of a node, cpu in milli and memory in bytes."""

    dangling: Amount
    """Usage without a pod (`dangling_usage`); it counts as used."""
    used: tuple[int, int]
    request: tuple[int, int]
    max: tuple[int, int]
    """The larger of usage and request; pods without usage count by their request."""
    unmeasured: tuple[int, int]
    """Requests of the pods without usage."""


@dataclass(slots=True)
class Totals:
    """What stays as it is until a pod of the node changes or the node reports again."""

    count: int
    prod: Amount
    """Requests of Prod pods and of those without a class."""
    metric: NodeMetric | None = None
    high: PodSums | None = None
    """Of the pods and this report."""
    read: dict[Callable[..., Any], tuple[tuple[object, ...], Any]] = field(default_factory=dict)

    def of(self, read: Callable[..., T], *sources: object) -> T:
        """`read(*sources)`, read once for as long as the sources are these same objects. What it raises is not kept."""
        found = self.read.get(read)
        if found is None or not all(map(is_, found[0], sources)):
            found = self.read[read] = (sources, read(*sources))
        known: T = found[1]
        return known


class NodePods(Sequence[PodInput]):
    """The pods of a node, read when they are looked at. `totals` are those of an earlier look that still hold."""

    def __init__(self, read: Callable[[], Iterable[PodInput]], totals: Totals | None = None) -> None:
        self._read = read
        self._pods: tuple[PodInput, ...] | None = None
        self._totals = totals

    @classmethod
    def of(cls, pods: Sequence[PodInput]) -> NodePods:
        """Any sequence of pods as one that can be summed."""
        return pods if isinstance(pods, NodePods) else cls(lambda: pods)

    @property
    def pods(self) -> tuple[PodInput, ...]:
        """The pods themselves."""
        if self._pods is None:
            self._pods = tuple(self._read())
        return self._pods

    def __len__(self) -> int:
        return self.totals.count

    @overload
    def __getitem__(self, index: int) -> PodInput: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[PodInput, ...]: ...

    def __getitem__(self, index: int | slice) -> PodInput | tuple[PodInput, ...]:
        return self.pods[index]

    @property
    def totals(self) -> Totals:
        """The sums that have been made so far."""
        if self._totals is None:
            prod = [pod for pod in self.pods if pod.priority_class in (PriorityClass.NONE, PriorityClass.PROD)]
            self._totals = Totals(len(self.pods), (sum(pod.cpu for pod in prod), sum(pod.memory for pod in prod)))
        return self._totals

    def high(self, metric: NodeMetric) -> PodSums:
        """Sums over the high-priority pods with what this report says that they use. Raises QuantityError."""
        totals = self.totals
        if totals.high is None or totals.metric is not metric:
            totals.high, totals.metric = _high(self.pods, metric), metric
        return totals.high


def _high(pods: Iterable[PodInput], metric: NodeMetric) -> PodSums:
    reported = {key: (priority, cpu, memory) for key, priority, cpu, memory in _reported(metric)}
    used_cpu = used_memory = cpu = memory = max_cpu = max_memory = bare_cpu = bare_memory = 0
    for pod in pods:
        measured = reported.pop(pod.key, None)
        if pod.priority_class in LOW_CLASSES:
            continue
        cpu += pod.cpu
        memory += pod.memory
        if measured is None:
            bare_cpu += pod.cpu
            bare_memory += pod.memory
            continue
        _, now_cpu, now_memory = measured
        used_cpu += pod.cpu if pod.qos is QoSClass.LSE else now_cpu
        used_memory += now_memory
        max_cpu += pod.cpu if pod.cpu > now_cpu else now_cpu
        max_memory += pod.memory if pod.memory > now_memory else now_memory
    rest = [amount for priority, *amount in reported.values() if priority not in LOW_CLASSES]
    dangling = sum(a[0] for a in rest), sum(a[1] for a in rest)
    return PodSums(
        dangling,
        used=(used_cpu + bare_cpu + dangling[0], used_memory + bare_memory + dangling[1]),
        request=(cpu, memory),
        max=(max_cpu + bare_cpu + dangling[0], max_memory + bare_memory + dangling[1]),
        unmeasured=(bare_cpu, bare_memory),
    )


def dangling_usage(metric: NodeMetric, pods: Iterable[PodInput]) -> Amount:
    """Usage of metrics without a Running or Pending pod (finished, or not yet seen), Batch and Free ones excepted."""
    known = {pod.key for pod in pods}
    reported = _reported(metric)
    rest = [amount for key, priority, *amount in reported if key not in known and priority not in LOW_CLASSES]
    return sum(a[0] for a in rest), sum(a[1] for a in rest)


def pod_usages(metric: NodeMetric) -> dict[str, Amount]:
    """Usage by pod key. Raises QuantityError."""
    return {key: (cpu, memory) for key, _, cpu, memory in _reported(metric)}


def _reported(metric: NodeMetric) -> Iterable[tuple[str, PriorityClass, int, int]]:
    """(key, class, milli-cores, bytes) of each pod that a node reports. Raises QuantityError."""
    entries = metric.status.pods_metric
    if isinstance(entries, PodUsages):
        return entries.amounts()
    return [(f"{item.namespace}/{item.name}", parse_class(item.priority), *measured(item.pod_usage.resources)) for item in entries]


def unix_time(text: str | None) -> float | None:
    """Unix time of RFC 3339 text, None when absent or unreadable."""
    try:
        return parse_time(text) if text else None
    except TimeError:
        return None


def reported_at(metric: NodeMetric) -> float | None:
    """When a node reported, in Unix time; None for never."""
    return unix_time(metric.status.update_time)


def degraded(inputs: Inputs) -> str:
    """Why the metrics of this node must not be used ("" if they may): missing, never reported, or too old."""
    metric = inputs.metric
    if metric is None:
        return "the NodeMetric is missing"
    updated = NodePods.of(inputs.pods).totals.of(reported_at, metric)
    if updated is None:
        return "the NodeMetric was never reported"
    limit = inputs.strategy.degrade_time_minutes * 60
    age = inputs.now - updated
    if age > limit:
        return f"the NodeMetric is {age:.0f}s old, more than degradeTimeMinutes allows ({limit}s)"
    if metric.status.node_metric is None:
        return "the NodeMetric has no usage of the node"
    return ""
