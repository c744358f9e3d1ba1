"""Between the hook service's messages and contexts and answers (KA-RH-01). Pure. Imports protobuf: only once somebody asks.

A response starts as an echo of the request; only what hooks set changes.
"""

from __future__ import annotations

from typing import Any

from koord.api.qos import qos_raw
from koord.protocols import runtimehook_pb2 as pb
from roles.koordlet.hooks.context import Answer, BatchResources, ContainerContext, PodContext
from roles.koordlet.hooks.requests import batch_leniently, container_directory, full_id, pod_directory
from roles.koordlet.host.cgroup import Cgroups, kube_qos_of_dir
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US, quota_of


def _pod(
    meta: pb.PodSandboxMetadata,
    labels: dict[str, str],
    annotations: dict[str, str],
    parent: str,
    cgroups: Cgroups,
    batch: dict[str, BatchResources],
) -> PodContext:
    directory = pod_directory(cgroups, parent)
    return PodContext(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        labels=labels,
        annotations=annotations,
        cgroup_dir=directory,
        kube_qos=kube_qos_of_dir(directory),
        qos=qos_raw(labels),
        batch=tuple(b for b in batch.values() if b.declared),
    )


def pod_context(request: pb.PodSandboxHookRequest, cgroups: Cgroups, *, strict: bool = False) -> PodContext:
    """Raises ValueError for a cgroup parent or, when strict, annotations that cannot be used."""
    annotations = dict(request.annotations)
    batch = batch_leniently(annotations, request.pod_meta.name, strict)
    return _pod(request.pod_meta, dict(request.labels), annotations, request.cgroup_parent, cgroups, batch)


def container_context(
    request: pb.ContainerResourceHookRequest, cgroups: Cgroups, runtime: str, *, strict: bool = False
) -> ContainerContext:
    """``runtime`` is the one of ids without scheme. Raises as :func:`pod_context` does."""
    annotations = dict(request.pod_annotations)
    batch = batch_leniently(annotations, request.pod_meta.name, strict)
    pod = _pod(request.pod_meta, dict(request.pod_labels), annotations, request.pod_cgroup_parent, cgroups, batch)
    name = request.container_meta.name
    return ContainerContext(
        pod=pod,
        name=name,
        id=(full := full_id(request.container_meta.id, runtime, annotations)),
        cgroup_dir=container_directory(cgroups, pod.cgroup_dir, full),
        batch=batch.get(name, BatchResources()),
        own_quota=_usual_quota(request.container_resources),
        own_shares=request.container_resources.cpu_shares or None,
        env=dict(request.container_envs),
    )


def _usual_quota(resources: pb.LinuxContainerResources) -> int | None:
    """The quota that a request names, of a 100 ms period; None where it names none."""
    quota, period = resources.cpu_quota, resources.cpu_period or CFS_PERIOD_US
    return (quota * CFS_PERIOD_US // period if quota > 0 else quota) or None


def pod_response(request: pb.PodSandboxHookRequest, answer: Answer) -> pb.PodSandboxHookResponse:
    response = pb.PodSandboxHookResponse(labels=request.labels, annotations=request.annotations, cgroup_parent=request.cgroup_parent)
    if request.HasField("resources"):
        response.resources.CopyFrom(request.resources)
    _fill(response, "resources", answer)
    return response


def container_response(request: pb.ContainerResourceHookRequest, answer: Answer) -> pb.ContainerResourceHookResponse:
    response = pb.ContainerResourceHookResponse(
        container_annotations=request.container_annotations,
        pod_cgroup_parent=request.pod_cgroup_parent,
        container_envs={**request.container_envs, **answer.env},
    )
    if request.HasField("container_resources"):
        response.container_resources.CopyFrom(request.container_resources)
    _fill(response, "container_resources", answer)
    return response


def _fill(response: Any, field: str, answer: Answer) -> None:
    """Set what is answered; a resources message that the request does not have is only made for that."""
    period = getattr(response, field).cpu_period or CFS_PERIOD_US
    quota = None if answer.cpu_quota is None else quota_of(answer.cpu_quota, period)
    for name, value in (
        ("cpu_shares", answer.cpu_shares),
        ("cpu_quota", quota),
        ("cpuset_cpus", answer.cpuset),
        ("memory_limit_in_bytes", answer.memory_limit),
    ):
        if value is not None:
            setattr(getattr(response, field), name, value)
