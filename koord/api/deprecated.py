"""Resource names of former releases, rewritten to today's before anyone looks at an object (API-RES-01).

An old name gives way to the new one only where the new one is absent. The functions change what they are given, and only objects that
carry an old name: informers call them once, right after decoding. (It is the one place where the dicts of a projection are changed.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from koord.api import names
from koord.api.objects import ContainerStatus, Device, ElasticQuota, Node, Pod, PodStatus, ResourceList

_OLD = names.DEPRECATED_RESOURCES
_OLD_NAMES = frozenset(_OLD)


def rewrite_resource_list(resources: ResourceList | dict[str, Any] | None) -> bool:
    """Rename deprecated names in place; returns whether anything changed. An old name beside its new one stays as it is."""
    if not resources or _OLD_NAMES.isdisjoint(resources):
        return False
    changed = False
    for old in _OLD_NAMES.intersection(resources):
        new = _OLD[old]
        if new not in resources:
            resources[new] = resources.pop(old)
            changed = True
    return changed


def _rewrite_all(lists: Iterable[Any]) -> bool:
    changed = False
    for resources in lists:
        if isinstance(resources, dict) and rewrite_resource_list(resources):
            changed = True
    return changed


def status_amounts(pod: Pod) -> Iterator[ResourceList]:
    """What the status of a pod says that it was given and holds. Whoever renames what its spec asks for renames these as well: the two are
    held against one another, name by name, because a pod may be resized in place."""
    status = pod.status
    everything: tuple[ContainerStatus | PodStatus, ...] = (*status.container_statuses, *status.init_container_statuses, status)
    for held in everything:
        yield held.allocated_resources
        if held.resources is not None:
            yield held.resources.requests
            yield held.resources.limits


def rewrite_pod(pod: Pod) -> bool:
    """Containers, init containers, pod-level resources and overhead of a pod, and what its status says of them."""
    spec, changed = pod.spec, False
    for container in (*spec.containers, *spec.init_containers):
        held = container.resources
        changed = rewrite_resource_list(held.requests) | rewrite_resource_list(held.limits) | changed
    if spec.resources is not None:
        changed = rewrite_resource_list(spec.resources.requests) | rewrite_resource_list(spec.resources.limits) | changed
    for amounts in status_amounts(pod):
        changed = rewrite_resource_list(amounts) | changed
    return rewrite_resource_list(spec.overhead) | changed


def rewrite_node(node: Node) -> bool:
    """Capacity and allocatable of a node."""
    return _rewrite_all((node.status.capacity, node.status.allocatable))


def rewrite_device(device: Device) -> bool:
    """What the devices of a node offer."""
    return _rewrite_all(info.resources for info in device.spec.devices)


def rewrite_elastic_quota(quota: ElasticQuota) -> bool:
    """Guarantee, ceiling and usage of a quota."""
    return _rewrite_all((quota.spec.min, quota.spec.max, quota.status.used))


def _member(value: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _pod_lists(spec: Any) -> list[Any]:
    holders = [*_items(_member(spec, "containers")), *_items(_member(spec, "initContainers")), spec]
    lists = [_member(holder, "resources", side) for holder in holders for side in ("requests", "limits")]
    return [*lists, _member(spec, "overhead")]


def _status_lists(status: Any) -> list[Any]:
    statuses = (*_items(_member(status, "containerStatuses")), *_items(_member(status, "initContainerStatuses")), status)
    paths = (("allocatedResources",), ("resources", "requests"), ("resources", "limits"))
    return [_member(held, *path) for held in statuses for path in paths]


def rewrite_object(kind: str, obj: dict[str, Any]) -> bool:
    """The same for plain JSON of kind Pod, Node, Device, ElasticQuota or Reservation (its template); other kinds are left alone.

    Parts with a wrong type are skipped: whoever validates the object will name them. Returns whether anything changed.
    """
    match kind:
        case "Pod":
            lists = [*_pod_lists(_member(obj, "spec")), *_status_lists(_member(obj, "status"))]
        case "Reservation":
            lists = [
                *_pod_lists(_member(obj, "spec", "template", "spec")),
                _member(obj, "status", "allocatable"),
                _member(obj, "status", "allocated"),
            ]
        case "Node":
            lists = [_member(obj, "status", "capacity"), _member(obj, "status", "allocatable")]
        case "Device":
            lists = [_member(info, "resources") for info in _items(_member(obj, "spec", "devices"))]
        case "ElasticQuota":
            lists = [_member(obj, "spec", "min"), _member(obj, "spec", "max"), _member(obj, "status", "used")]
        case _:
            return False
    return _rewrite_all(lists)
