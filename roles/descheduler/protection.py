"""Which pods may leave at all (DS-FLT-01, DS-K8S-11): one set of checks, which every evictor asks by its own arguments. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from koord.api import names
from koord.api.objects import Pod, Volume
from koord.config.model import ConfigModel
from roles.descheduler.cost import NEVER, eviction_cost

CRITICAL_PRIORITY = 2_000_000_000


class PriorityThreshold(ConfigModel):
    """Pods at or above it are left alone; by value or by the name of a PriorityClass."""

    value: int | None = None
    """Priority from which pods are left alone."""
    name: str = ""
    """PriorityClass whose value is taken; where `value` is set too, the lower one counts."""


@dataclass(frozen=True, slots=True)
class Protected:
    """What is left alone besides mirror, static and terminating pods. `claim` says whether a volume that is a claim protects its pod."""

    daemon_sets: bool = True
    bare: bool = True
    bare_failed: bool = True
    local_storage: bool = True
    claim: Callable[[Pod, Volume], bool] = lambda pod, volume: False
    critical: bool = True
    threshold: PriorityThreshold | None = None
    """Only together with `critical`."""


def forced(pod: Pod) -> bool:
    """The annotation that opens every check below."""
    return names.ANNOTATION_DESCHEDULER_EVICT in pod.metadata.annotations


def refuse(pod: Pod, protected: Protected, priority_of_class: Callable[[str], int | None]) -> str:
    """Why a pod may not leave, "" when it may. `priority_of_class` resolves PriorityClass names."""
    return _identity(pod) or _owner(pod, protected) or _priority(pod, protected, priority_of_class) or _volumes(pod, protected)


def is_claim(volume: Volume) -> bool:
    """Whether the volume is a persistent volume claim, of its own or one that is made for the pod."""
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def _identity(pod: Pod) -> str:
    annotations = pod.metadata.annotations
    if names.ANNOTATION_CONFIG_MIRROR in annotations:
        return "it is a mirror pod"
    if annotations.get(names.ANNOTATION_CONFIG_SOURCE, "api") != "api":
        return "it is a static pod"
    if eviction_cost(pod) == NEVER:
        return "its eviction cost says never"
    return "it is terminating" if pod.metadata.deletion_timestamp else ""


def _owner(pod: Pod, protected: Protected) -> str:
    owners = pod.metadata.owner_references
    if protected.daemon_sets and any(owner.kind == "DaemonSet" for owner in owners):
        return "it belongs to a DaemonSet"
    if owners or not protected.bare or (not protected.bare_failed and pod.status.phase == "Failed"):
        return ""
    return "it has no owner that would replace it"


def _priority(pod: Pod, protected: Protected, priority_of_class: Callable[[str], int | None]) -> str:
    if not protected.critical:
        return ""
    priority, threshold = pod.spec.priority, protected.threshold
    if priority is not None and priority >= CRITICAL_PRIORITY:
        return "it is system critical"
    if threshold is None:
        return ""
    limits = [] if threshold.value is None else [threshold.value]
    if threshold.name:
        of_class = priority_of_class(threshold.name)
        if of_class is None:  # a spelling mistake must not open the gate
            return f"PriorityClass {threshold.name} of priorityThreshold does not exist"
        limits.append(of_class)
    limit = min(limits, default=None)
    if limit is None or priority is None or priority < limit:
        return ""
    return f"its priority {priority} is not below the threshold {limit}"


def _volumes(pod: Pod, protected: Protected) -> str:
    for volume in pod.spec.volumes:
        if protected.local_storage and (volume.host_path is not None or volume.empty_dir is not None):
            return f"volume {volume.name} is local storage"
        if protected.claim(pod, volume):
            return f"volume {volume.name} is a persistent volume claim"
    return ""
