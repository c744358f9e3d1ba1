"""What the engine still knows of containers that were made before this process (RP-STO-02). Pure: answers in, records changed.

Upstream loses resources, environment and cgroup parent in a restart, and then drops what hooks say about them. The engine tells: newer
ones in `ContainerStatus.resources`, containerd also in the verbose `info` (the CRI configuration and the runtime specification as JSON;
of a sandbox, since 2.1, `overhead` and `resources` as of its last resize).
"""

from __future__ import annotations

from typing import Any

import orjson

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.merge import CPUSETS, Resources, copy_resources, set_resource

_INTEGERS = ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "oom_score_adj", "memory_swap_limit_in_bytes")
# OCI runtime specification, linux.resources -> field of the CRI message.
_RUNTIME_SPEC = (
    ("cpu", "period", "cpu_period"),
    ("cpu", "quota", "cpu_quota"),
    ("cpu", "shares", "cpu_shares"),
    ("cpu", "cpus", "cpuset_cpus"),
    ("cpu", "mems", "cpuset_mems"),
    ("memory", "limit", "memory_limit_in_bytes"),
)


def complete_pod(record: hook.PodSandboxHookRequest, response: cri.PodSandboxStatusResponse) -> None:
    """Add the cgroup parent and the resources of the sandbox, if the engine tells: as it was made, or as it was resized since."""
    info = _info(response.info)
    parent = _dig(info, "config", "linux", "cgroup_parent")
    if isinstance(parent, str) and parent:
        record.cgroup_parent = parent
    for name in ("overhead", "resources"):
        if record.HasField(name):
            continue  # a call has told since
        asked, now = _dig(info, "config", "linux", name), _dig(info, name, "linux")
        for told in (asked, now):
            if isinstance(told, dict):
                _lay(getattr(record, name), told)
                getattr(record, name).SetInParent()


def complete_container(record: hook.ContainerResourceHookRequest, response: cri.ContainerStatusResponse) -> None:
    """Add resources and environment as far as the engine tells. What it does not tell stays absent."""
    info = _info(response.info)
    resources = hook.LinuxContainerResources()
    found = False
    if isinstance(asked := _dig(info, "config", "linux", "resources"), dict):
        found = True
        _lay(resources, asked)
    if isinstance(now := _dig(info, "runtimeSpec", "linux", "resources"), dict):
        found = True  # laid over: an update since then is seen only here
        for group, key, name in _RUNTIME_SPEC:
            set_resource(resources, name, _dig(now, group, key))
        set_resource(resources, "oom_score_adj", _dig(info, "runtimeSpec", "process", "oomScoreAdj"))
        for key, value in _texts(now.get("unified")).items():
            resources.unified[key] = value
    if response.status.resources.HasField("linux"):
        found = True
        copy_resources(response.status.resources.linux, resources)
        if resources.memory_swap_limit_in_bytes == resources.memory_limit_in_bytes:
            # The runtime's way to switch swap off. Sent back with a larger memory limit it would be refused.
            resources.memory_swap_limit_in_bytes = 0
    if found:
        record.container_resources.CopyFrom(resources)
    envs = _dig(info, "config", "envs")
    if isinstance(envs, list) and not record.container_envs:
        for item in envs:
            key, text = _dig(item, "key"), _dig(item, "value")
            if isinstance(key, str) and isinstance(text or "", str):
                record.container_envs[key] = text or ""


def _info(info: Any) -> Any:
    try:
        return orjson.loads(info["info"]) if "info" in info else None
    except orjson.JSONDecodeError:
        return None  # another engine's own format: nothing is promised about it


def _dig(document: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def _lay(resources: Resources, told: dict[str, Any]) -> None:
    """Write the CRI's resources, as JSON, over others."""
    for name in (*_INTEGERS, *CPUSETS):
        set_resource(resources, name, told.get(name))
    for key, value in _texts(told.get("unified")).items():
        resources.unified[key] = value


def _texts(mapping: Any) -> dict[str, str]:
    return {k: v for k, v in mapping.items() if isinstance(v, str)} if isinstance(mapping, dict) else {}
