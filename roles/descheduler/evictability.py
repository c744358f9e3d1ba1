"""Which pods may leave at all (DS-FLT-01). Pure: a pod in, the reason against it out."""

from __future__ import annotations

from collections.abc import Callable

from koord.api import names
from koord.api.objects import Pod
from koord.config.selectors import LabelSelector
from roles.descheduler.migration.args import CRITICAL_PRIORITY, MigrationControllerArgs
from roles.descheduler.plugins.lownodeload.order import eviction_cost

NEVER = 2**31 - 1


def forced(pod: Pod) -> bool:
    """The annotation that opens every check below."""
    return names.ANNOTATION_DESCHEDULER_EVICT in pod.metadata.annotations


def evictability(args: MigrationControllerArgs, priority_of_class: Callable[[str], int | None]) -> Callable[[Pod], str]:
    """A function that says why a pod may not leave, "" when it may. `priority_of_class` resolves PriorityClass names."""
    selector = LabelSelector.compile(args.label_selector, "labelSelector") if args.label_selector is not None else None
    threshold = _threshold(args, priority_of_class)

    def refuse(pod: Pod) -> str:
        if forced(pod):
            return ""
        for check in (_identity, _owner, _volumes):
            if reason := check(pod, args):
                return reason
        if not args.evict_system_critical_pods and pod.spec.priority is not None:
            if pod.spec.priority >= CRITICAL_PRIORITY:
                return "it is system critical"
            if threshold is not None and pod.spec.priority >= threshold:
                return f"its priority {pod.spec.priority} is not below the threshold {threshold}"
        if selector is not None and not selector.empty and not selector.matches(pod.metadata.labels):
            return "its labels do not match labelSelector"
        return ""

    return refuse


def _threshold(args: MigrationControllerArgs, priority_of_class: Callable[[str], int | None]) -> int | None:
    if args.priority_threshold is None:
        return None
    if args.priority_threshold.value is not None:
        return args.priority_threshold.value
    return priority_of_class(args.priority_threshold.name)


def _identity(pod: Pod, args: MigrationControllerArgs) -> str:
    meta = pod.metadata
    if args.namespaces is not None and not args.namespaces.allows(meta.namespace):
        return f"namespace {meta.namespace} is not evictable"
    if eviction_cost(pod) == NEVER:
        return "its eviction cost says never"
    if names.ANNOTATION_CONFIG_MIRROR in meta.annotations:
        return "it is a mirror pod"
    if meta.annotations.get(names.ANNOTATION_CONFIG_SOURCE, "api") != "api":
        return "it is a static pod"
    return "it is terminating" if meta.deletion_timestamp else ""


def _owner(pod: Pod, args: MigrationControllerArgs) -> str:
    owners = pod.metadata.owner_references
    if any(owner.kind == "DaemonSet" for owner in owners):
        return "it belongs to a DaemonSet"
    if owners or args.evict_all_bare_pods:
        return ""
    if args.evict_failed_bare_pods and pod.status.phase == "Failed":
        return ""
    return "it has no owner that would replace it"


def _volumes(pod: Pod, args: MigrationControllerArgs) -> str:
    for volume in pod.spec.volumes:
        if (volume.host_path is not None or volume.empty_dir is not None) and not args.evict_local_storage_pods:
            return f"volume {volume.name} is local storage"
        if volume.persistent_volume_claim is not None and args.ignore_pvc_pods:
            return f"volume {volume.name} is a persistent volume claim"
    return ""
