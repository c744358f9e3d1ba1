"""Extended resources that device classes stand for: what a pod's containers ask for, as requests for devices (SCH-DRA-13). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from koord.api.objects_pod import Container, PodSpec
from koord.api.objects_resource import DeviceClaim, DeviceClass, DeviceRequest, DeviceSubRequest, ResourceClaimSpec
from roles.scheduler.plugins.dynamic_resources.amounts import amount
from roles.scheduler.plugins.node_resources import RESOURCE_DEVICE_CLASS

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
Obj = dict[str, Any]


class Extended(NamedTuple):
    """The claim that stands for a pod's extended resources, and which of its requests each container uses."""

    spec: ResourceClaimSpec
    mappings: tuple[tuple[str, str, str], ...]  # (container, resource, request)


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """The class of each resource: of those that name the same one, the one that was made last."""
    found: dict[str, DeviceClass] = {}
    for one in classes:
        for resource in (RESOURCE_DEVICE_CLASS + one.metadata.name, one.spec.extended_resource_name):
            if resource and (resource not in found or _before(one, found[resource])):
                found[resource] = one
    return {resource: one.metadata.name for resource, one in found.items()}


def _before(one: DeviceClass, other: DeviceClass) -> bool:
    made, known = one.metadata.creation_timestamp or "", other.metadata.creation_timestamp or ""
    return made > known or (made == known and one.metadata.name < other.metadata.name)


def extended(spec: PodSpec, classes: Mapping[str, str]) -> Extended:
    """Requests for the resources in `classes` (by name, with their classes). Init containers use what others use later, and one after
    another."""
    containers = (*spec.init_containers, *spec.containers)
    first = len(spec.init_containers)
    requests: list[DeviceRequest] = []
    mappings: list[tuple[str, str, str]] = []
    for resource in sorted(classes):
        kept = [at >= first or container.is_sidecar for at, container in enumerate(containers)]
        lasting: list[DeviceRequest | None] = [None] * len(containers)
        for at, container in enumerate(containers):
            count = _count(container, resource) if kept[at] else 0
            if count:
                lasting[at] = _request(at, container, resource, classes[resource], count)
                mappings.append((container.name, resource, _name(at, container, resource)))
        passing: list[tuple[int, DeviceRequest]] = []
        used: list[tuple[str, str, str]] = []
        for at, container in enumerate(containers):
            left = 0 if kept[at] else _count(container, resource)
            for later in lasting[at:] if left else ():
                if later is not None and left > 0:
                    used.append((container.name, resource, later.name))
                    left -= later.exactly.count if later.exactly is not None else 0
            if left > 0:
                passing.append((left, _request(at, container, resource, classes[resource], left)))
                used.append((container.name, resource, passing[-1][1].name))
        if passing:
            largest = max(passing, key=lambda entry: entry[0])[1]
            others = {entry[1].name for entry in passing}
            used = [(container, name, largest.name if asked in others else asked) for container, name, asked in used]
            requests.append(largest)
        requests += [one for one in lasting if one is not None]
        mappings += used
    requests.sort(key=lambda one: one.name)
    return Extended(ResourceClaimSpec(devices=DeviceClaim(requests=tuple(requests))), tuple(mappings))


def _count(container: Container, resource: str) -> int:
    return int(amount(container.resources.requests.get(resource, 0)))


def _name(at: int, container: Container, resource: str) -> str:
    return f"container-{at}-request-{sorted(container.resources.requests).index(resource)}"


def _request(at: int, container: Container, resource: str, class_name: str, count: int) -> DeviceRequest:
    exactly = DeviceSubRequest(device_class_name=class_name, allocation_mode="ExactCount", count=count)
    return DeviceRequest(name=_name(at, container, resource), exactly=exactly)


def claim_of(pod_name: str, pod_uid: str, finalizer: str, spec: Obj) -> Obj:
    """The claim as it is made, owned by its pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": pod_uid, "controller": True}
    meta = {
        "generateName": f"{pod_name}-extended-resources-", "annotations": {ANNOTATION: "true"}, "ownerReferences": [owner],
        "finalizers": [finalizer],
    }  # fmt: skip
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": spec}
