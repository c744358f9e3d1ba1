"""In which order hot nodes are relieved and their pods leave (DS-LNL-06). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api import names
from koord.api.objects import Pod
from koord.api.priority import PriorityClass
from koord.api.qos import QoSClass, kubernetes_qos, pod_qos_raw
from koord.api.times import parse_time
from roles.descheduler.cost import canonical_int32, eviction_cost, restart_cost
from roles.descheduler.snapshot import PodView, Vector

__all__ = ["canonical_int32", "eviction_cost", "leaving_order", "node_score", "pod_rank", "usage_score"]

_CLASS_ORDER = {PriorityClass.FREE: 0, PriorityClass.BATCH: 1, PriorityClass.MID: 2, PriorityClass.PROD: 3, PriorityClass.NONE: 4}
_KUBERNETES_ORDER = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
_QOS_ORDER = {QoSClass.BE: 0, QoSClass.LS: 1, QoSClass.LSR: 2, QoSClass.LSE: 3, QoSClass.SYSTEM: 3, QoSClass.NONE: 4}


def node_score(usage: Mapping[str, int], allocatable: Mapping[str, int], weights: Mapping[str, int]) -> int:
    """Weighted utilisation in thousandths, in integers: hotter nodes come first."""
    total = weight_sum = 0
    for name, used in usage.items():
        weight, capacity = weights.get(name, 0), allocatable.get(name, 0)
        weight_sum += weight
        if capacity > 0:
            total += weight * (min(used, capacity) * 1000 // capacity)
    return total // weight_sum if weight_sum else 0


def usage_score(view: PodView, excess: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """How well the pod's leaving would match the excess: best is the pod that just covers it, then larger, then smaller ones."""
    if view.usage is None:
        return -1.0
    total = 0.0
    weight_sum = 0
    for name, over_by in excess.items():
        ratio = view.usage.get(name, 0) / over_by
        weight = weights.get(name, 0)
        total += weight * (ratio if ratio < 1 else 1 + 1 / ratio)
        weight_sum += weight
    return total / weight_sum if weight_sum else 0.0


def pod_rank(pod: Pod, priority_class: PriorityClass) -> tuple[int, ...]:
    """Who leaves first, by importance: the keys that come before the usage score. Also the order in which migrations begin (DS-ARB-01)."""
    return (
        _CLASS_ORDER[priority_class],
        pod.spec.priority or 0,
        _KUBERNETES_ORDER.get(kubernetes_qos(pod), 1),
        _QOS_ORDER[pod_qos_raw(pod)],
        canonical_int32(pod.metadata.annotations.get(names.ANNOTATION_POD_DELETION_COST)) or 0,
        eviction_cost(pod),
    )


def leaving_order(pods: list[PodView], excess: Vector, weights: Mapping[str, int], now: float = 0.0) -> list[PodView]:
    """Candidates in the order in which they leave: before their use counts what work would be lost with them (`now`, in seconds since
    the epoch, tells how much). Among equals a pod without a metric comes last."""

    def key(view: PodView) -> tuple[object, ...]:
        pod = view.pod
        return (
            pod_rank(pod, view.priority_class),
            restart_cost(pod, now),
            -usage_score(view, excess, weights),
            -parse_time(pod.metadata.creation_timestamp) if pod.metadata.creation_timestamp else 0.0,
            view.key,
        )

    return sorted(pods, key=key)
