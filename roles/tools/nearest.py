"""Which node comes nearest to a pending pod, and what it is short of; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from koord.accounting import resources
from koord.accounting.pods import pod_requests
from koord.api import names
from koord.api.deprecated import rewrite_node, rewrite_pod
from koord.api.objects import Node, Pod, convert


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that a node has too little of, in base units (milli-CPU, bytes, pieces)."""

    resource: str
    requested: int
    free: int
    allocatable: int


@dataclass(frozen=True, slots=True)
class Nearest:
    """A node and what keeps the pod from it, by resources alone; `shortages` empty: resources are not the reason. `nowhere` are those of
    its requests that no node offers any of."""

    node: str
    shortages: tuple[Shortage, ...]
    nowhere: tuple[str, ...] = ()


def nearest_node(pod: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> Nearest | None:
    """The node with the fewest resources too short, and of those the least short in proportion; None without usable nodes.

    Cordoned nodes are left out; taints, affinity and everything else that a scheduler looks at are not judged here: its own
    record has those reasons.
    """
    asked = {name: amount for name, amount in _requests(convert(pod, Pod)).items() if amount > 0 and name not in names.COUNTED_BY_CARD}
    request = asked | {"pods": 1}
    used: dict[str, dict[str, int]] = {}
    for other in pods:
        projected = convert(other, Pod)
        if not projected.spec.node_name or projected.status.phase in ("Succeeded", "Failed"):
            continue
        total = used.setdefault(projected.spec.node_name, {})
        resources.add_into(total, {**_requests(projected), "pods": 1})
    best: tuple[int, float, str] | None = None
    result: Nearest | None = None
    nowhere = dict.fromkeys(asked)
    for item in nodes:
        node = convert(item, Node)
        rewrite_node(node)
        allocatable = resources.parse(node.status.allocatable)
        for resource in [name for name in nowhere if allocatable.get(name, 0) > 0]:
            del nowhere[resource]
        if node.spec.unschedulable:
            continue
        name = node.metadata.name
        free = resources.sub({**dict.fromkeys(request, 0), **allocatable}, used.get(name, {}))
        shortages = tuple(
            Shortage(resource, amount, max(0, free.get(resource, 0)), allocatable.get(resource, 0))
            for resource, amount in request.items()
            if amount > free.get(resource, 0)
        )
        missing = sum((short.requested - short.free) / short.requested for short in shortages)
        rank = (len(shortages), missing, name)
        if best is None or rank < best:
            best, result = rank, Nearest(name, shortages)
    return replace(result, nowhere=tuple(nowhere)) if result is not None else None


def _requests(pod: Pod) -> resources.ResourceVector:
    rewrite_pod(pod)
    return pod_requests(pod)
