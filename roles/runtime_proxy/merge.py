"""Merging a hook's answer into a CRI request (RP-MRG-01..03). Pure: messages in, messages out; unknown fields survive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook

Resources = cri.LinuxContainerResources | hook.LinuxContainerResources

_POSITIVE = ("cpu_period", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes")
CPUSETS = ("cpuset_cpus", "cpuset_mems")
_INT64 = range(-(1 << 63), 1 << 63)
_OOM_RANGE = range(-1000, 1001)


def copy_resources(source: Resources, target: Resources) -> None:
    """Write `source` over `target`; both messages share field numbers, so the wire form carries even unknown fields."""
    target.Clear()
    target.MergeFromString(source.SerializeToString())


def set_resource(target: Resources, name: str, value: Any) -> None:
    """Take over what somebody's JSON says of a resource; a value of another type, or that no field holds, says nothing."""
    if isinstance(value, str) if name in CPUSETS else type(value) is int and value in _INT64:
        setattr(target, name, value)


def merge_resources(target: Resources, answer: Resources) -> None:
    """Merge a hook's answer into `target` by the table of RP-MRG-02."""
    for name in _POSITIVE:
        if (value := getattr(answer, name)) > 0:
            setattr(target, name, value)
    if answer.cpu_quota != 0:
        target.cpu_quota = answer.cpu_quota
    if answer.oom_score_adj in _OOM_RANGE:
        target.oom_score_adj = answer.oom_score_adj
    for name in CPUSETS:
        setattr(target, name, getattr(answer, name))
    for key, value in answer.unified.items():
        target.unified[key] = value


def update_stored(stored: Resources, request: Resources) -> None:
    """Lay an UpdateContainerResources request over the stored resources (RP-MRG-03).

    As `merge_resources`, but empty cpusets and oom_score_adj do not count.
    """
    oom, cpusets = stored.oom_score_adj, {name: getattr(stored, name) for name in CPUSETS}
    merge_resources(stored, request)
    stored.oom_score_adj = oom
    for name in CPUSETS:
        if not getattr(request, name):
            setattr(stored, name, cpusets[name])


def merge_pod(request: cri.RunPodSandboxRequest, answer: hook.PodSandboxHookResponse) -> None:
    """Merge into RunPodSandbox: annotations and labels, the answer winning; cgroup parent if the answer has one (RP-MRG-01)."""
    overlay(request.config.annotations, answer.annotations)
    overlay(request.config.labels, answer.labels)
    if answer.cgroup_parent:
        request.config.linux.cgroup_parent = answer.cgroup_parent


def merge_container(request: cri.CreateContainerRequest, answer: hook.ContainerResourceHookResponse) -> None:
    """Merge into CreateContainer (RP-MRG-02)."""
    config = request.config
    overlay(config.annotations, answer.container_annotations)
    if answer.pod_cgroup_parent:
        request.sandbox_config.linux.cgroup_parent = answer.pod_cgroup_parent
    if answer.container_envs:
        envs = merge_envs([(item.key, item.value) for item in config.envs], answer.container_envs)
        del config.envs[:]
        config.envs.extend(cri.KeyValue(key=key, value=value) for key, value in envs)
    if answer.HasField("container_resources"):
        merge_resources(config.linux.resources, answer.container_resources)


def merge_envs(envs: list[tuple[str, bytes]], answer: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """The answer replaces the set; what was there keeps its place, its duplicates and its bytes; new keys follow in order.

    A value that is the one which the hook was told (the last of a name's) is no change of any of them.
    """
    told = {key: text_of(value) for key, value in envs}
    kept = [(key, value if answer[key] in (told[key], text_of(value)) else answer[key].encode()) for key, value in envs if key in answer]
    present = {key for key, _ in envs}
    return kept + [(key, answer[key].encode()) for key in sorted(answer) if key not in present]


def text_of(value: bytes) -> str:
    """An environment value as a hook sees it: the protocol's maps carry text, so other bytes are shown as replacement characters."""
    return value.decode("utf-8", "replace")


def update_request(request: cri.UpdateContainerResourcesRequest, record: hook.ContainerResourceHookRequest) -> None:
    """After a hook answered, the engine gets the complete merged resources and annotations of the record."""
    linux = cri.LinuxContainerResources.FromString(record.container_resources.SerializeToString())
    # What the proxy does not merge is the caller's word now, not that of the container's creation.
    linux.DiscardUnknownFields()
    if request.linux.hugepage_limits:
        del linux.hugepage_limits[:]
        linux.hugepage_limits.extend(request.linux.hugepage_limits)
    for field in linux.DESCRIPTOR.fields:
        request.linux.ClearField(field.name)
    request.linux.MergeFrom(linux)
    request.linux.SetInParent()
    overlay(request.annotations, record.container_annotations)


def complete(answer: Any, told: Any) -> None:
    """Give a partial answer what it does not name: the values that its server was told."""
    name = "container_resources" if hasattr(answer, "container_resources") else "resources"
    if answer.HasField(name):
        resources, known = getattr(answer, name), getattr(told, name)
        for field in (*_POSITIVE, "cpu_quota", "oom_score_adj", *CPUSETS):
            if not getattr(resources, field):
                setattr(resources, field, getattr(known, field))
    if name == "container_resources" and answer.container_envs:
        for key, value in told.container_envs.items():
            if key not in answer.container_envs:
                answer.container_envs[key] = value


def apply_answer(record: hook.ContainerResourceHookRequest, answer: hook.ContainerResourceHookResponse) -> None:
    """Update a stored container record with a hook's answer."""
    overlay(record.container_annotations, answer.container_annotations)
    if answer.pod_cgroup_parent:
        record.pod_cgroup_parent = answer.pod_cgroup_parent
    if answer.container_envs:
        record.container_envs.clear()
        overlay(record.container_envs, answer.container_envs)
    if answer.HasField("container_resources"):
        merge_resources(record.container_resources, answer.container_resources)


def apply_pod_answer(record: hook.PodSandboxHookRequest, answer: hook.PodSandboxHookResponse) -> None:
    """Update a stored pod record with a hook's answer."""
    overlay(record.annotations, answer.annotations)
    overlay(record.labels, answer.labels)
    if answer.cgroup_parent:
        record.cgroup_parent = answer.cgroup_parent
    if answer.HasField("resources"):
        merge_resources(record.resources, answer.resources)


def overlay(target: object, extra: Mapping[str, str]) -> None:
    """Write the entries of `extra` over those of a map field."""
    for key, value in extra.items():
        target[key] = value  # type: ignore[index]
