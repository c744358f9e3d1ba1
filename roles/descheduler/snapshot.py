"""What one round decides on: nodes and pods with their loads as plain values.

Built anew for each round and owned by it: a pod that leaves is taken from its node, so that later decisions of the round see it gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from koord.accounting import resources
from koord.accounting.pods import pod_requests
from koord.api.annotations import raw_allocatable
from koord.api.objects import Node, NodeMetric, Pod
from koord.api.objects_meta import ResourceList
from koord.api.priority import PriorityClass, pod_priority_class
from koord.api.times import TimeError, parse_time

Vector = dict[str, int]
FINISHED = frozenset({"Succeeded", "Failed"})
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Known:
    """What was read from a pod, for as long as the caches hold that very object."""

    pod: Pod
    requests: Vector
    priority_class: PriorityClass
    template: bytes = b""  # once somebody has asked for it
    rank: tuple[float, bool, int, int] | None = None  # how important it is to the community's plugins, once one has asked
    spreads: Any = None  # its topology spread and
    apart: Any = None  # its anti-affinity, compiled, once somebody has asked about it or another pod of its template


@dataclass(slots=True)
class PodView:
    """An active pod on a node. `usage` is None where the node's metrics do not list it. Base units: milli-CPU, bytes.

    `leaving`: it is on its way out, so that nobody asks for it again; either a migration is under way, or `accepted`: it was told to
    go, so that its load does not count any more, though it is still there."""

    pod: Pod
    requests: Vector
    usage: Vector | None
    priority_class: PriorityClass
    leaving: bool = False
    accepted: bool = False
    here: bool = True
    """Whether it is still on its node: not taken off in this round."""
    known: Known | None = None

    @property
    def template(self) -> bytes:
        """The same for two pods that no rule about places tells apart: namespace, labels, requests, affinity, spread, node selector and
        tolerations are the same. So are those of most pods of one workload, and what is found out about one holds for all."""
        known = self.known
        if known is not None and known.template:
            return known.template
        meta, spec = self.pod.metadata, self.pod.spec
        found = _ENCODER.encode(
            (
                meta.namespace, meta.labels, self.requests, spec.affinity, spec.topology_spread_constraints,
                spec.node_selector, spec.tolerations,
            )
        )  # fmt: skip
        if known is not None:
            known.template = found
        return found

    @property
    def key(self) -> str:
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    @property
    def is_prod(self) -> bool:
        return self.priority_class == PriorityClass.PROD


@dataclass(slots=True)
class NodeView:
    """A node with its active pods; `everyone` are its pods of all phases.

    `allocatable` is the node's own word, `capacity` what it has before amplification. `usage` and `prod_usage` are None when it has no
    metrics; `metric_age` is in seconds. `requested` are the requests of the active pods."""

    node: Node
    allocatable: Vector
    pods: list[PodView]
    usage: Vector | None = None
    prod_usage: Vector | None = None
    metric_age: float = 0.0
    requested: Vector = field(default_factory=dict)
    capacity: Vector = field(default_factory=dict)
    everyone: list[Pod] = field(default_factory=list)
    metric: NodeMetric | None = None
    asked: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The pods that the node's agent asks to move, by their keys: `reason`, `victim`, `signal`, `since` of the NodeMetric. One that has
    left since the report is still among them."""
    arriving: Vector = field(default_factory=dict)
    """What will be used here beyond `usage`: by pods that came since the report, and by those that have a place here."""
    prod_arriving: Vector = field(default_factory=dict)
    reserved: Vector = field(default_factory=dict)
    """Requests of places that are held for pods which have not come yet."""
    _watchers: list[Callable[[NodeView], None]] = field(default_factory=list)

    def watch(self, changed: Callable[[NodeView], None]) -> None:
        """Be told when pods are taken from the node, put back, or expected."""
        self._watchers.append(changed)

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher(self)

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @property
    def staying(self) -> Vector:
        """Requests of the pods that are not on their way out: an earlier round has relieved the node of the others already."""
        return resources.sub(self.requested, _requested(view for view in self.pods if view.leaving))

    def held(self, name: str) -> int:
        """What of a resource nobody else can have: requests of the pods, and of the places that are held."""
        return self.requested.get(name, 0) + self.reserved.get(name, 0)

    @property
    def slots(self) -> int:
        """Pods that may still come: what neither a pod nor a place that is held has."""
        return self.allocatable.get("pods", 0) - len(self.pods) - self.arriving.get("pods", 0)

    def expect(self, requests: Vector, usage: Vector, *, prod: bool) -> None:
        """Count a pod that will come."""
        wanted = {"pods": 1, **usage}
        resources.add_into(self.reserved, requests)
        resources.add_into(self.arriving, wanted)
        if prod:
            resources.add_into(self.prod_arriving, wanted)
        self._changed()

    def take(self, uid: str) -> Callable[[], None]:
        """Take a pod off the node: its requests, its usage and its place. Returns what puts it back."""
        before = (self.pods, self.everyone, dict(self.requested), _copy(self.usage), _copy(self.prod_usage))
        view = next((view for view in self.pods if view.pod.metadata.uid == uid), None)
        self.everyone = [pod for pod in self.everyone if pod.metadata.uid != uid]
        if view is not None:
            view.here = False
            self.pods = [other for other in self.pods if other is not view]
            resources.sub_into(self.requested, view.requests)
            if not view.accepted:
                _discount(self.usage, view)
                if view.is_prod:
                    _discount(self.prod_usage, view)
        self._changed()

        def put_back() -> None:
            self.pods, self.everyone, self.requested, self.usage, self.prod_usage = before
            if view is not None:
                view.here = True
            self._changed()

        return put_back


def _copy(vector: Vector | None) -> Vector | None:
    return None if vector is None else dict(vector)


def _discount(usage: Vector | None, view: PodView) -> None:
    if usage is not None:
        resources.sub_into(usage, {**(view.usage or {}), "pods": 1})


def time_of(text: str | None) -> float | None:
    """RFC 3339 text in seconds since the epoch; None where there is none, or none that can be read."""
    try:
        return parse_time(text) if text else None
    except TimeError:
        return None


def is_ready(node: Node) -> bool:
    """Ready unless a condition of type Ready says otherwise (DS-FW-01)."""
    return all(condition.status == "True" for condition in node.status.conditions if condition.type == "Ready")


def capacity(node: Node) -> Vector:
    """What the node can hold before amplification (DS-LNL-08). A raw-allocatable annotation that cannot be read is ignored.

    Only what is amplified stands in the annotation (cpu and memory); the other resources are those of the status."""
    return resources.parse(raw_allocatable(node.status.allocatable, node.metadata.annotations))


def pod_view(pod: Pod, usage: Vector | None) -> PodView:
    return PodView(pod, pod_requests(pod), usage, pod_priority_class(pod))


class Snapshots:
    """Makes node views, remembering what it read from an object as long as the caches hold that very object.

    `leaving` says whether a pod is on its way out, `accepted` whether its eviction was accepted; a terminating pod is both."""

    def __init__(self, leaving: Callable[[Pod], bool] | None = None, accepted: Callable[[Pod], bool] | None = None) -> None:
        self._leaving = leaving or (lambda pod: False)
        self._accepted = accepted or (lambda pod: False)
        self._pods: dict[str, Known] = {}
        self._seen: dict[str, Known] = {}

    def begin(self) -> None:
        """A new round: forget the pods that the last one did not see."""
        self._pods, self._seen = self._seen, {}

    def node(self, node: Node, pods: Iterable[Pod], metric: NodeMetric | None, *, now: float) -> NodeView:
        """One node as the plugins see it (DS-LNL-08). Usage of pods that left, or whose eviction was accepted, does not count.

        `now` is in seconds. Raises QuantityError or ValueError for a node, pod or metric whose values cannot be read.
        """
        everyone = list(pods)
        active = [pod for pod in everyone if pod.status.phase not in FINISHED]
        reported = _reported(metric)
        views = [self._pod(pod, reported.get((pod.metadata.namespace, pod.metadata.name))) for pod in active]
        view = NodeView(node, resources.parse(node.status.allocatable), views, requested=_requested(views), everyone=everyone)
        view.capacity, view.metric = capacity(node), metric
        if metric is not None and metric.status.node_metric is not None and metric.status.update_time is not None:
            view.metric_age = now - parse_time(metric.status.update_time)
            view.usage, view.prod_usage = _usage(views, measured(metric.status.node_metric.system_usage.resources))
            view.asked = _asked_to_leave(metric)
        return view

    def _pod(self, pod: Pod, usage: Vector | None) -> PodView:
        known = self._pods.get(pod.metadata.uid)
        if known is None or known.pod is not pod:
            known = Known(pod, pod_requests(pod), pod_priority_class(pod))
        self._seen[pod.metadata.uid] = known
        accepted = pod.metadata.deletion_timestamp is not None or self._accepted(pod)
        leaving = accepted or self._leaving(pod)
        return PodView(pod, known.requests, usage, known.priority_class, leaving, accepted, known=known)


def node_view(node: Node, pods: Iterable[Pod], metric: NodeMetric | None, *, now: float) -> NodeView:
    """One node on its own; see `Snapshots.node`."""
    return Snapshots().node(node, pods, metric, now=now)


def measured(listed: ResourceList) -> Vector:
    """A usage as an agent reports it. Nothing uses less than 0: what it would leave to others is not there. Raises QuantityError."""
    found = resources.parse(listed)
    return {name: max(value, 0) for name, value in found.items()} if any(value < 0 for value in found.values()) else found


def _reported(metric: NodeMetric | None) -> dict[tuple[str, str], Vector]:
    if metric is None:
        return {}
    return {(item.namespace, item.name): measured(item.pod_usage.resources) for item in metric.status.pods_metric}


def _asked_to_leave(metric: NodeMetric) -> dict[str, Mapping[str, str]]:
    """Requests of the node's agent, by the keys of pods; what is no request is none."""
    out: dict[str, Mapping[str, str]] = {}
    for item in metric.status.pods_metric:
        request = (item.extensions or {}).get("migrateOut")
        if isinstance(request, dict):
            out[f"{item.namespace}/{item.name}"] = {str(key): str(value) for key, value in request.items()}
    return out


def _usage(views: Iterable[PodView], usage: Vector) -> tuple[Vector, Vector]:
    """System usage and that of the pods that stay; the same of Prod pods alone."""
    prod_usage: Vector = {}
    count = prod_count = 0
    for view in views:
        if view.accepted:
            continue
        prod = view.is_prod
        count, prod_count = count + 1, prod_count + prod
        for name, value in (view.usage or {}).items():
            usage[name] = usage.get(name, 0) + value
            if prod:
                prod_usage[name] = prod_usage.get(name, 0) + value
    usage["pods"], prod_usage["pods"] = count, prod_count
    return usage, prod_usage


def _requested(views: Iterable[PodView]) -> Vector:
    return resources.sum_(view.requests for view in views)


def restrict(usage: Mapping[str, int], wanted: Iterable[str]) -> Vector:
    """The values of those resources that have one."""
    return {name: usage[name] for name in wanted if name in usage}
