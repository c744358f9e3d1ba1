"""What one round decides on: nodes and pods with their loads as plain values.

Built anew for each round and owned by it: evictions decided in a round lower the usage that its later decisions see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from koord.accounting import resources
from koord.accounting.pods import pod_requests
from koord.api import names
from koord.api.objects import Node, NodeMetric, Pod
from koord.api.priority import PriorityClass, pod_priority_class
from koord.api.quantity import QuantityError
from koord.api.times import parse_time

Vector = dict[str, int]
FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(slots=True)
class PodView:
    """An active pod on a node. `usage` is None where the node's metrics do not list it. Base units: milli-CPU, bytes."""

    pod: Pod
    requests: Vector
    usage: Vector | None
    priority_class: PriorityClass

    @property
    def key(self) -> str:
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    @property
    def is_prod(self) -> bool:
        return self.priority_class == PriorityClass.PROD


@dataclass(slots=True)
class NodeView:
    """A node with its active pods. `usage` and `prod_usage` are None when it has no metrics; `metric_age` is in seconds."""

    node: Node
    allocatable: Vector
    pods: list[PodView]
    usage: Vector | None = None
    prod_usage: Vector | None = None
    metric_age: float = 0.0
    requested: Vector = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.metadata.name


def is_ready(node: Node) -> bool:
    """Ready unless a condition of type Ready says otherwise (DS-FW-01)."""
    return all(condition.status == "True" for condition in node.status.conditions if condition.type == "Ready")


def allocatable(node: Node) -> Vector:
    """What the node can hold before amplification (DS-LNL-08). A raw-allocatable annotation that cannot be read is ignored."""
    raw = node.metadata.annotations.get(names.ANNOTATION_NODE_RAW_ALLOCATABLE)
    if raw:
        try:
            document = orjson.loads(raw)
            if isinstance(document, dict):
                return resources.parse(document)
        except (ValueError, QuantityError):
            return resources.parse(node.status.allocatable)
    return resources.parse(node.status.allocatable)


def pod_view(pod: Pod, usage: Vector | None) -> PodView:
    return PodView(pod, pod_requests(pod), usage, pod_priority_class(pod))


def node_view(node: Node, pods: Iterable[Pod], metric: NodeMetric | None, *, now: float) -> NodeView:
    """One node as the plugins see it (DS-LNL-08). Usage of pods that are no longer on the node does not count.

    `now` is in seconds. Raises QuantityError or ValueError for a node, pod or metric whose values cannot be read.
    """
    active = [pod for pod in pods if pod.status.phase not in FINISHED]
    capacity = allocatable(node)
    if metric is None or metric.status.node_metric is None or metric.status.update_time is None:
        views = [pod_view(pod, None) for pod in active]
        return NodeView(node, capacity, views, requested=_requested(views))
    reported = {(item.namespace, item.name): resources.parse(item.pod_usage.resources) for item in metric.status.pods_metric}
    views = [pod_view(pod, reported.get((pod.metadata.namespace, pod.metadata.name))) for pod in active]
    usage = resources.parse(metric.status.node_metric.system_usage.resources)
    prod_usage: Vector = {}
    for view in views:
        if view.usage is not None:
            resources.add_into(usage, view.usage)
            if view.is_prod:
                resources.add_into(prod_usage, view.usage)
    usage["pods"], prod_usage["pods"] = len(views), sum(view.is_prod for view in views)
    age = now - parse_time(metric.status.update_time)
    return NodeView(node, capacity, views, usage, prod_usage, age, _requested(views))


def _requested(views: Iterable[PodView]) -> Vector:
    return resources.sum_(view.requests for view in views)


def restrict(usage: Mapping[str, int], wanted: Iterable[str]) -> Vector:
    """The values of those resources that have one."""
    return {name: usage[name] for name in wanted if name in usage}
