"""Between NRI's messages and contexts and answers (KA-RH-02). Pure."""

from __future__ import annotations

import logging

from koord.api.qos import qos_raw
from koord.protocols import nri_pb2 as nri
from roles.koordlet.hooks.context import Answer, BatchResources, ContainerContext, PodContext
from roles.koordlet.hooks.requests import batch_leniently, container_directory, full_id, pod_directory
from roles.koordlet.host.cgroup import Cgroups, kube_qos_of_dir
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US, quota_of

log = logging.getLogger(__name__)


def pod_context(pod: nri.PodSandbox, cgroups: Cgroups, *, strict: bool = False) -> PodContext:
    """Raises ValueError for a cgroup parent or, when strict, annotations that cannot be used."""
    annotations = dict(pod.annotations)
    labels = dict(pod.labels)
    directory = pod_directory(cgroups, pod.linux.cgroup_parent)
    return PodContext(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        labels=labels,
        annotations=annotations,
        cgroup_dir=directory,
        kube_qos=kube_qos_of_dir(directory),
        qos=qos_raw(labels),
        batch=tuple(b for b in batch_leniently(annotations, pod.name, strict).values() if b.declared),
    )


def container_context(
    pod: nri.PodSandbox,
    container: nri.Container,
    cgroups: Cgroups,
    runtime: str,
    resources: nri.LinuxResources | None = None,
    *,
    strict: bool = False,
) -> ContainerContext:
    """``resources`` are those of an update; without one those that the container is created with. Raises as :func:`pod_context`."""
    of_pod = pod_context(pod, cgroups, strict=strict)
    identity = full_id(container.id, runtime, of_pod.annotations)
    own = resources if resources is not None else container.linux.resources
    return ContainerContext(
        pod=of_pod,
        name=container.name,
        id=identity,
        cgroup_dir=container_directory(cgroups, of_pod.cgroup_dir, identity),
        batch=batch_leniently(of_pod.annotations, pod.name, strict).get(container.name, BatchResources()),
        own_quota=own.cpu.quota.value * CFS_PERIOD_US // (own.cpu.period.value or CFS_PERIOD_US) or None,
        own_shares=own.cpu.shares.value or None,
        env=dict(entry.partition("=")[::2] for entry in container.env),
    )


def resources_of(answer: Answer, period: int = 0) -> nri.LinuxResources | None:
    """What an answer says of resources; None when it says nothing. ``period`` is the container's CFS period in µs, 0 for the usual one."""
    out = nri.LinuxResources()
    if answer.cpu_shares is not None:
        out.cpu.shares.value = answer.cpu_shares
    if answer.cpu_quota is not None:
        out.cpu.quota.value = quota_of(answer.cpu_quota, period or CFS_PERIOD_US)
    if answer.cpuset:
        out.cpu.cpus = answer.cpuset
    if answer.memory_limit is not None:
        out.memory.limit.value = answer.memory_limit
    if answer.rdt_class:
        out.rdt_class.value = answer.rdt_class
    return out if out.ByteSize() else None


def adjustment(answer: Answer, period: int = 0) -> nri.ContainerAdjustment | None:
    """What a container is created with; None when nothing changes."""
    out = nri.ContainerAdjustment()
    resources = resources_of(answer, period)
    if resources is not None:
        out.linux.resources.CopyFrom(resources)
    for key, value in answer.env.items():
        out.env.add(key=key, value=value)
    for mount in answer.mounts:
        out.mounts.add(source=mount.source, destination=mount.destination, type="bind", options=mount.options)
    for device in answer.devices:
        made = out.linux.devices.add(path=device.path, type="c", major=device.major, minor=device.minor)
        made.file_mode.value = device.mode
    return out if out.ByteSize() else None


def update(container_id: str, answer: Answer, period: int = 0) -> nri.ContainerUpdate | None:
    """How a container is changed; None when it is not. Without its id the runtime would drop the update."""
    resources = resources_of(answer, period)
    if resources is None:
        return None
    return nri.ContainerUpdate(container_id=container_id, linux=nri.LinuxContainerUpdate(resources=resources))
