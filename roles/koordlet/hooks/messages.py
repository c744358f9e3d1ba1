"""Between the hook service's messages and contexts and answers (KA-RH-01). Pure. Imports protobuf: only once somebody asks.

A response starts as an echo of the request; only what hooks set changes.
"""

from __future__ import annotations

from typing import Any

from koord.protocols import runtimehook_pb2 as pb
from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext
from roles.koordlet.hooks.requests import requested_container, requested_pod
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US, quota_of, usual_quota


def pod_context(request: pb.PodSandboxHookRequest, cgroups: Cgroups, *, strict: bool = False) -> PodContext:
    """Raises as :func:`requested_pod` does."""
    return requested_pod(cgroups, request.pod_meta, request.labels, request.annotations, request.cgroup_parent, strict=strict)[0]


def container_context(
    request: pb.ContainerResourceHookRequest, cgroups: Cgroups, runtime: str, *, strict: bool = False
) -> ContainerContext:
    """``runtime`` is the one of ids without scheme. Raises as :func:`requested_pod` does."""
    resources, parent = request.container_resources, request.pod_cgroup_parent
    return requested_container(
        cgroups,
        requested_pod(cgroups, request.pod_meta, request.pod_labels, request.pod_annotations, parent, strict=strict),
        request.container_meta,
        runtime,
        own_quota=usual_quota(resources.cpu_quota, resources.cpu_period) or None,
        own_shares=resources.cpu_shares or None,
        env=dict(request.container_envs),
    )


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
