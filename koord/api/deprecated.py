"""Resource names of former releases, rewritten to today's before anyone looks at an object (API-RES-01).

An old name gives way to the new one only where the new one is absent. The functions change what they are given, and only objects that
carry an old name: informers call them once, right after decoding. (It is the one place where the dicts of a projection are changed.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from koord.api import names
from koord.api.objects import ContainerStatus, Device, ElasticQuota, Node, Pod, PodStatus, ResourceList

_OLD = names.DEPRECATED_RESOURCES
_OLD_NAMES = frozenset(_OLD)


def rewrite_resource_list(resources: ResourceList | dict[str, Any]) -> None:
    """Rename deprecated names in place. An old name beside its new one stays as it is."""
    if not resources or _OLD_NAMES.isdisjoint(resources):
        return
    for old in _OLD_NAMES.intersection(resources):
        if _OLD[old] not in resources:
            resources[_OLD[old]] = resources.pop(old)


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


def rewrite_pod(pod: Pod) -> None:
    """Containers, init containers, pod-level resources and overhead of a pod, and what its status says of them."""
    spec = pod.spec
    for container in (*spec.containers, *spec.init_containers):
        rewrite_resource_list(container.resources.requests)
        rewrite_resource_list(container.resources.limits)
    if spec.resources is not None:
        rewrite_resource_list(spec.resources.requests)
        rewrite_resource_list(spec.resources.limits)
    for amounts in status_amounts(pod):
        rewrite_resource_list(amounts)
    rewrite_resource_list(spec.overhead)


def rewrite_node(node: Node) -> None:
    """Capacity and allocatable of a node."""
    rewrite_resource_list(node.status.capacity)
    rewrite_resource_list(node.status.allocatable)


def rewrite_device(device: Device) -> None:
    """What the devices of a node offer."""
    for info in device.spec.devices:
        rewrite_resource_list(info.resources)


def rewrite_elastic_quota(quota: ElasticQuota) -> None:
    """Guarantee, ceiling and usage of a quota."""
    for resources in (quota.spec.min, quota.spec.max, quota.status.used):
        rewrite_resource_list(resources)
