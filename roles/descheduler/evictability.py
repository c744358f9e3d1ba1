"""Which pods MigrationController lets leave (DS-FLT-01). Pure: a pod in, the reason against it out."""

from __future__ import annotations

from collections.abc import Callable

from koord.api.objects import Pod
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.protection import Protected, forced, is_claim, refuse
from roles.descheduler.selection import optional_selector

__all__ = ["evictability", "forced"]


def evictability(args: MigrationControllerArgs, priority_of_class: Callable[[str], int | None]) -> Callable[[Pod], str]:
    """A function that says why a pod may not leave, "" when it may. `priority_of_class` resolves PriorityClass names."""
    selector = optional_selector(args.label_selector, "labelSelector")
    protected = Protected(
        bare=not args.evict_all_bare_pods,
        bare_failed=not args.evict_failed_bare_pods,
        local_storage=not args.evict_local_storage_pods,
        claim=lambda pod, volume: args.ignore_pvc_pods and is_claim(volume),
        critical=not args.evict_system_critical_pods,
        threshold=args.priority_threshold,
    )

    def why_not(pod: Pod) -> str:
        if forced(pod):
            return ""
        if args.namespaces is not None and not args.namespaces.allows(pod.metadata.namespace):
            return f"namespace {pod.metadata.namespace} is not evictable"
        if reason := refuse(pod, protected, priority_of_class):
            return reason
        if selector is not None and not selector.everything and not selector.matches(pod.metadata.labels):
            return "its labels do not match labelSelector"
        return ""

    return why_not
