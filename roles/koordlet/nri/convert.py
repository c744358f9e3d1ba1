"""Between NRI's messages and contexts and answers (KA-RH-02). Pure."""

from __future__ import annotations

from koord.protocols import nri_pb2 as nri
from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext
from roles.koordlet.hooks.requests import requested_container, requested_pod
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US, quota_of, usual_quota


def pod_context(pod: nri.PodSandbox, cgroups: Cgroups, *, strict: bool = False) -> PodContext:
    """Raises as :func:`requested_pod` does."""
    return requested_pod(cgroups, pod, pod.labels, pod.annotations, pod.linux.cgroup_parent, strict=strict)[0]


def container_context(
    pod: nri.PodSandbox,
    container: nri.Container,
    cgroups: Cgroups,
    runtime: str,
    resources: nri.LinuxResources | None = None,
    *,
    strict: bool = False,
) -> ContainerContext:
    """``resources`` are those of an update; without one those that the container is created with. Raises as :func:`requested_pod`."""
    cpu = (resources if resources is not None else container.linux.resources).cpu
    return requested_container(
        cgroups,
        requested_pod(cgroups, pod, pod.labels, pod.annotations, pod.linux.cgroup_parent, strict=strict),
        container,
        runtime,
        own_quota=usual_quota(cpu.quota.value, cpu.period.value) or None,
        own_shares=cpu.shares.value or None,
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
