"""Whether a pod could run on another node (DS-FIT-01), by the community's rule. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.accounting.resources import fits
from koord.api.objects import Node, Pod, Taint, Toleration
from koord.kube.selectors import node_selector
from roles.descheduler.picture import NodeView, PodView

_HARD = ("NoSchedule", "NoExecute")


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint."""
    for toleration in tolerations:
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if toleration.key and toleration.key != taint.key:
            continue
        if toleration.operator == "Exists" or (toleration.key and toleration.operator in ("", "Equal") and toleration.value == taint.value):
            return True
    return False


def affinity_matches(pod: Pod, node: Node) -> bool:
    """spec.nodeSelector and required node affinity."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return node_selector(affinity.required).matches(labels, node.metadata.name)


def unfit(view: PodView, target: NodeView, placed: Mapping[str, int] | None = None) -> str:
    """Why the pod does not fit the node, "" when it does. `placed` is what earlier pods of this round are expected to take there."""
    pod, node = view.pod, target.node
    if node.spec.unschedulable:
        return "it is cordoned"
    if not affinity_matches(pod, node):
        return "its labels do not match the pod's node selector or affinity"
    for taint in node.spec.taints:
        if taint.effect in _HARD and not tolerates(pod.spec.tolerations, taint):
            return f"it has taint {taint.key}, which the pod does not tolerate"
    free = {name: target.allocatable.get(name, 0) - target.requested.get(name, 0) - (placed or {}).get(name, 0) for name in view.requests}
    lacking = fits(view.requests, free)
    return f"it lacks {', '.join(lacking)}" if lacking else ""
