"""Docker's JSON and names in the words of the hook protocol, and back (RP-DKR-02, RP-DKR-03). Pure.

Documents are changed in place and keep every field that is not named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.merge import CPUSETS, merge_envs, set_resource

TYPE_LABEL = "io.kubernetes.docker.type"
SANDBOX_LABEL = "io.kubernetes.sandbox.id"
ANNOTATION_PREFIX = "annotation."
SANDBOX = "podsandbox"
RUNTIME_HANDLER = "docker"

# Docker's name -> field of LinuxContainerResources. The first seven are those that an update can carry.
UPDATE_FIELDS = (
    ("CpuPeriod", "cpu_period"),
    ("CpuQuota", "cpu_quota"),
    ("CpuShares", "cpu_shares"),
    ("Memory", "memory_limit_in_bytes"),
    ("CpusetCpus", "cpuset_cpus"),
    ("CpusetMems", "cpuset_mems"),
    ("MemorySwap", "memory_swap_limit_in_bytes"),
)
CREATE_FIELDS = (*UPDATE_FIELDS, ("OomScoreAdj", "oom_score_adj"))
_UINT32 = range(1 << 32)


class MalformedName(ValueError):
    """A name that begins like one of kubelet's and is none."""


@dataclass(frozen=True, slots=True)
class KubeName:
    """`k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`."""

    container: str
    pod: str
    namespace: str
    uid: str
    attempt: int


def parse_name(name: str) -> KubeName | None:
    """Read a container's name; None when it is not kubelet's. Raises MalformedName.

    dockershim adds a seventh, random part when a name is taken.
    """
    parts = name.removeprefix("/").split("_")
    if parts[0] != "k8s":
        return None
    if len(parts) not in (6, 7):
        raise MalformedName(f"the name {name!r} must be k8s_<container>_<pod>_<namespace>_<uid>_<attempt>")
    attempt = int(parts[5]) if parts[5].isascii() and parts[5].isdecimal() and len(parts[5]) < 11 else 0
    return KubeName(parts[1], parts[2], parts[3], parts[4], attempt if attempt in _UINT32 else 0)


def split_labels(labels: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of Docker's labels."""
    plain: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for key, value in (labels if isinstance(labels, dict) else {}).items():
        if isinstance(value, str):
            if key.startswith(ANNOTATION_PREFIX):
                annotations[key.removeprefix(ANNOTATION_PREFIX)] = value
            else:
                plain[key] = value
    return plain, annotations


def expand_slice(parent: str) -> str:
    """Docker's `a-b.slice` as the path below the hierarchy's root: `/a.slice/a-b.slice`."""
    if "/" in parent or not parent.endswith(".slice") or parent == "-.slice":
        return parent
    parts = parent.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(parts[: n + 1])}.slice" for n in range(len(parts)))


def to_hook_parent(parent: str, driver: str) -> str:
    return expand_slice(parent) if driver == "systemd" else parent


def to_docker_parent(parent: str, driver: str) -> str:
    """The systemd driver takes a slice's name, the cgroupfs driver a path."""
    return parent.rstrip("/").rpartition("/")[2] if driver == "systemd" else parent


def field(document: Any, name: str) -> Any:
    """A field of Docker's JSON, whose decoder ignores case; None when absent."""
    return document.get(_key(document, name)) if isinstance(document, dict) else None


def set_field(document: dict[str, Any], name: str, value: Any) -> None:
    document[_key(document, name)] = value


def _key(document: dict[str, Any], name: str) -> str:
    if name in document:
        return name
    return next((key for key in document if key.lower() == name.lower()), name)


def resources_of(document: Any) -> hook.LinuxContainerResources:
    """Resources in a HostConfig or an update; what is absent or of another type stays zero."""
    found = hook.LinuxContainerResources()
    for theirs, ours in CREATE_FIELDS:
        set_resource(found, ours, field(document, theirs))
    return found


def write_resources(document: dict[str, Any], resources: hook.LinuxContainerResources, fields: tuple[tuple[str, str], ...]) -> None:
    """Replace the named fields one to one, zeros too: an answer with resources is complete."""
    for theirs, ours in fields:
        set_field(document, theirs, getattr(resources, ours))


def lay_over(stored: hook.LinuxContainerResources, update: hook.LinuxContainerResources) -> None:
    """An update's values over the stored ones: positive numbers, a quota of -1, cpusets that are not empty."""
    for _, ours in UPDATE_FIELDS:
        value = getattr(update, ours)
        if value and (ours in CPUSETS or ours == "cpu_quota" or value > 0):
            setattr(stored, ours, value)


def envs_of(environment: Any) -> list[tuple[str, bytes]]:
    """`Env` as pairs; entries without `=` carry no value and are left out."""
    texts = [entry for entry in environment if isinstance(entry, str) and "=" in entry] if isinstance(environment, list) else []
    return [(entry.partition("=")[0], entry.partition("=")[2].encode()) for entry in texts]


def replaced_envs(environment: Any, answer: Mapping[str, str]) -> list[str]:
    """`Env` after an answer: its variables only, those that were there at their place."""
    return [f"{key}={value.decode()}" for key, value in merge_envs(envs_of(environment), answer)]


def pod_record(name: KubeName, document: Any, host: Any, driver: str) -> hook.PodSandboxHookRequest:
    """A pod's record from a container configuration and its HostConfig."""
    labels, annotations = split_labels(field(document, "Labels"))
    parent = field(host, "CgroupParent")
    record = hook.PodSandboxHookRequest(
        labels=labels,
        annotations=annotations,
        runtime_handler=RUNTIME_HANDLER,
        cgroup_parent=to_hook_parent(parent if isinstance(parent, str) else "", driver),
        resources=resources_of(host),
    )
    meta = record.pod_meta
    meta.name, meta.uid, meta.namespace, meta.attempt = name.pod, name.uid, name.namespace, name.attempt
    return record


def container_record(name: KubeName, document: Any, host: Any, pod: hook.PodSandboxHookRequest) -> hook.ContainerResourceHookRequest:
    """A container's record; what concerns the pod comes from the pod's record."""
    record = hook.ContainerResourceHookRequest(
        pod_meta=pod.pod_meta,
        pod_annotations=pod.annotations,
        pod_labels=pod.labels,
        pod_cgroup_parent=pod.cgroup_parent,
        pod_resources=pod.resources,
        container_annotations=split_labels(field(document, "Labels"))[1],
        container_resources=resources_of(host),
        container_envs={key: value.decode() for key, value in envs_of(field(document, "Env"))},
    )
    record.container_meta.name, record.container_meta.attempt = name.container, name.attempt
    return record
