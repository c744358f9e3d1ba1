"""Contexts of the pods that the kubelet lists, and what requests of runtimes have in common with them. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from koord.accounting.pods import resize_pending
from koord.api.annotations import parse_extended_resource_spec
from koord.api.names import DEPRECATED_RESOURCES, RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY, RESOURCE_CPU, RESOURCE_MEMORY
from koord.api.qos import qos_raw
from koord.api.quantity import parse_milli, parse_value
from roles.koordlet.hooks.context import BatchResources, ContainerContext, PodContext
from roles.koordlet.host.cgroup import Cgroups, kube_qos_of_dir
from roles.koordlet.host.cgroup_files import milli_to_quota, milli_to_shares
from roles.koordlet.host.errors import HostError
from roles.koordlet.states.allocation import requests_of
from roles.koordlet.states.model import ContainerState, PodState

log = logging.getLogger(__name__)

#: Annotation of pods whose containers docker runs.
DOCKER_MARK = "io.kubernetes.docker.type"

Resources = Mapping[str, Any]
_OLD_NAMES = {new: old for old, new in DEPRECATED_RESOURCES.items() if new in (RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY)}


def _value(resources: Resources, name: str) -> int | None:
    quantity = resources.get(name, resources.get(_OLD_NAMES.get(name, name)))
    return None if quantity is None else parse_value(quantity)


def batch_of(requests: Resources, limits: Resources) -> BatchResources:
    """Batch resources of a container. Raises QuantityError."""
    return BatchResources(
        cpu_request=_value(requests, RESOURCE_BATCH_CPU),
        cpu_limit=_value(limits, RESOURCE_BATCH_CPU),
        memory_request=_value(requests, RESOURCE_BATCH_MEMORY),
        memory_limit=_value(limits, RESOURCE_BATCH_MEMORY),
    )


def batch_by_annotation(annotations: dict[str, str]) -> dict[str, BatchResources]:
    """Batch resources by container name from ``extended-resource-spec``. Raises AnnotationError."""
    spec = parse_extended_resource_spec(annotations)
    if spec is None:
        return {}
    return {name: batch_of(c.requests, c.limits) for name, c in spec.containers.items()}


def _limit_milli(container: ContainerState) -> int | None:
    if container.spec is None or RESOURCE_CPU not in container.spec.resources.limits:
        return None
    return parse_milli(container.spec.resources.limits[RESOURCE_CPU])


def own_quota(container: ContainerState) -> int:
    """The quota that the kubelet gives a container by its CPU limit; -1 for none."""
    return milli_to_quota(_limit_milli(container) or 0)


def native(container: ContainerState) -> dict[str, int | str]:
    """What the kubelet asks the runtime to set for a container by its own resources, by the field of an answer."""
    if container.spec is None:
        return {}
    requests, limits = container.spec.resources.requests, container.spec.resources.limits
    cpu = requests.get(RESOURCE_CPU) or limits.get(RESOURCE_CPU)
    memory = limits.get(RESOURCE_MEMORY)
    return {
        "cpu_shares": milli_to_shares(parse_milli(cpu) if cpu else 0),
        "cpu_quota": own_quota(container),
        "memory_limit": parse_value(memory) if memory else -1,
        "cpuset": "",
    }


def pod_quota(state: PodState) -> int:
    """The quota that the kubelet gives a pod: only when all its containers have a CPU limit; -1 for none."""
    whole = state.pod.spec.resources
    if whole is not None and resize_pending(state.pod):
        whole = state.pod.status.resources or whole
    if whole is not None and RESOURCE_CPU in whole.limits:
        return milli_to_quota(parse_milli(whole.limits[RESOURCE_CPU]))
    together = [[_limit_milli(c) or 0 for c in side if c.spec is not None] for side in state.side_by_side()]
    if not together[0] or any(0 in side for side in together):
        return -1
    overhead = parse_milli(state.pod.spec.overhead.get(RESOURCE_CPU, "0"))
    return milli_to_quota(max(map(sum, together)) + overhead)


def contexts(state: PodState) -> tuple[PodContext, tuple[ContainerContext, ...]]:
    """The pod and those of its containers that exist, init containers first. Raises ValueError for resources that cannot be read."""
    batch = _batch(state)
    side, *inits = (tuple(batch[c.name] for c in side if c.name in batch) for side in state.side_by_side())
    pod = PodContext(
        namespace=state.namespace,
        name=state.name,
        uid=state.uid,
        labels=state.labels,
        annotations=state.annotations,
        cgroup_dir=state.cgroup_dir,
        kube_qos=state.kube_qos,
        qos=state.qos_label,
        batch=side,
        init_batch=tuple(inits),
        own_quota=pod_quota(state),
        state=state,
        requests=requests_of(state),
    )
    return pod, tuple(
        ContainerContext(
            pod=pod,
            name=c.name,
            id=c.id,
            cgroup_dir=c.cgroup_dir,
            batch=batch.get(c.name, BatchResources()),
            own_quota=own_quota(c) if c.spec is not None else None,
            native=native(c),
        )
        for c in state.all_containers()
        if c.cgroup_dir
    )


def _batch(state: PodState) -> dict[str, BatchResources]:
    """Declared batch resources by container: by the spec, else by the annotation."""
    found = {
        c.name: batch
        for c in state.all_containers()
        if c.spec is not None and (batch := batch_of(c.spec.resources.requests, c.spec.resources.limits)).declared
    }
    return found or {name: batch for name, batch in batch_leniently(state.annotations, state.key, strict=False).items() if batch.declared}


# -- requests of runtimes ----------------------------------------------------------------------------------------------------


def pod_directory(cgroups: Cgroups, parent: str) -> str:
    """A request's cgroup parent as a directory below the cgroup root; a lone slice name is what systemd makes of a whole path."""
    path = parent.strip("/")
    if path and "/" not in path and path.endswith(".slice"):
        uid = cgroups.pod_uid_of(path)
        if uid is not None:
            return cgroups.pod_dir(kube_qos_of_dir(path), uid)
    return path


def requested_pod(
    cgroups: Cgroups, who: Any, labels: Mapping[str, str], annotations: Mapping[str, str], parent: str, *, strict: bool
) -> tuple[PodContext, dict[str, BatchResources]]:
    """The pod of a request, and batch resources by container; ``who`` has namespace, name and uid.

    Raises ValueError for a cgroup parent or, when strict, annotations that cannot be used.
    """
    directory, own = pod_directory(cgroups, parent), dict(annotations)
    batch = batch_leniently(own, who.name, strict)
    pod = PodContext(
        namespace=who.namespace,
        name=who.name,
        uid=who.uid,
        labels=dict(labels),
        annotations=own,
        cgroup_dir=directory,
        kube_qos=kube_qos_of_dir(directory),
        qos=qos_raw(labels),
        batch=tuple(b for b in batch.values() if b.declared),
    )
    return pod, batch


def requested_container(
    cgroups: Cgroups, pod: tuple[PodContext, dict[str, BatchResources]], who: Any, runtime: str, **own: Any
) -> ContainerContext:
    """A container of such a pod; ``who`` has its name and id, ``own`` is what the request says of it."""
    of_pod, batch = pod
    identity = full_id(who.id, runtime, of_pod.annotations)
    return ContainerContext(
        pod=of_pod,
        name=who.name,
        id=identity,
        cgroup_dir=container_directory(cgroups, of_pod.cgroup_dir, identity),
        batch=batch.get(who.name, BatchResources()),
        **own,
    )


def batch_leniently(annotations: dict[str, str], about: str, strict: bool) -> dict[str, BatchResources]:
    """Batch resources by container. Unless ``strict``, an annotation that cannot be read counts as none: other hooks still answer."""
    try:
        return batch_by_annotation(annotations)
    except ValueError as error:
        if strict:
            raise
        log.warning("pod %s: %s; its batch resources are left alone", about, error)
        return {}


def full_id(container_id: str, runtime: str, annotations: dict[str, str]) -> str:
    """A container id with its scheme: of ``runtime``, or docker where the pod says so."""
    if not container_id or "://" in container_id:
        return container_id
    return f"{'docker' if DOCKER_MARK in annotations else runtime}://{container_id}"


def container_directory(cgroups: Cgroups, pod_dir: str, container_id: str) -> str:
    """A container's directory, "" where it cannot be told."""
    if not container_id or not pod_dir:
        return ""
    try:
        return cgroups.container_dir(pod_dir, container_id)
    except HostError:
        return ""
