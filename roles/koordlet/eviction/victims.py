"""Which pods an eviction may take, in which order, and what each releases. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import IntEnum

from koord.api import names
from koord.api.annotations import AnnotationError, parse_eviction_policies, parse_eviction_priority
from koord.api.labels import is_true
from koord.api.priority import PriorityClass, PriorityError, priority_value_with_default, sub_priority, translate_resource_name
from koord.api.qos import QoSClass
from koord.api.trust import NODE_PROTECTION
from roles.koordlet.eviction.tasks import REQUEST, USED, Victim
from roles.koordlet.sensing.be import batch_cpu_request
from roles.koordlet.states.allocation import requested
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.store import kinds

#: Of a resource, by pod; None where it is not known.
Amount = Callable[[PodState], int | None]
#: A pod that leaves within so many seconds (the usual grace) is waited for, and one that should have left so many seconds ago is not.
ENDING_WITHIN = OVERDUE_AFTER = 30.0


def may_evict(pod: PodState, gate: str) -> bool:
    """Whether this gate may evict the pod.

    Its policy lists the gates that may: absent allows all, a text that cannot be read allows none. What protects the node itself takes
    best-effort pods all the same (:func:`easiest_first`).
    """
    return willing(pod, gate) or (gate in NODE_PROTECTION and pod.qos is QoSClass.BE)


def willing(pod: PodState, gate: str) -> bool:
    """Whether the pod's own policy allows the gate."""
    policies = parse_eviction_policies(pod.annotations)
    return policies is None or gate in policies


class Stay(IntEnum):
    """How long a pod still stays by what it was told, in the order of eviction."""

    ENDING = 0
    """It was told to leave, and will be gone soon."""
    OPEN = 1
    OVERDUE = 2
    """It should have been gone for long: nobody knows whether what it holds comes free at all."""


def stay(snapshot: Snapshot, pod: PodState) -> Stay:
    """What is known of the pod's way out."""
    left = snapshot.leaving.get(pod.uid, math.inf)
    return Stay.OPEN if left > ENDING_WITHIN else Stay.ENDING if left >= -OVERDUE_AFTER else Stay.OVERDUE


def easiest_first(snapshot: Snapshot, pods: Iterable[PodState], gate: str) -> list[PodState]:
    """In their order, but first those that leave anyhow, and last those that their policy keeps out as long as others suffice."""
    return sorted(pods, key=lambda pod: (not willing(pod, gate), stay(snapshot, pod)))


def priority_value(pod: PodState) -> int:
    """``spec.priority``, else the default value of the pod's class."""
    return priority_value_with_default(pod.labels, pod.pod.spec.priority, pod.qos)


def eviction_priority(pod: PodState) -> int:
    """The annotation's value; missing or bad text is 0."""
    try:
        return parse_eviction_priority(pod.annotations)
    except AnnotationError:
        return 0


def label_priority(pod: PodState) -> int:
    """The sub-priority label; missing or bad text is the priority value."""
    if names.LABEL_POD_PRIORITY not in pod.labels:
        return priority_value(pod)
    try:
        return sub_priority(pod.labels)
    except PriorityError:
        return priority_value(pod)


def cpu_used(snapshot: Snapshot, pod: PodState) -> int | None:
    """Last CPU use in milli-cores."""
    value = snapshot.metrics.last(kinds.POD_CPU, pod_uid=pod.uid)
    return None if value is None else int(value * 1000)


def memory_used(snapshot: Snapshot, pod: PodState) -> int | None:
    """Last memory use in bytes."""
    value = snapshot.metrics.last(kinds.POD_MEMORY, pod_uid=pod.uid)
    return None if value is None else int(value)


def victim(snapshot: Snapshot, pod: PodState) -> Victim:
    """A pod with everything that its eviction releases. What is not known counts as nothing."""
    used = {names.RESOURCE_CPU: cpu_used(snapshot, pod) or 0, names.RESOURCE_MEMORY: memory_used(snapshot, pod) or 0}
    request: dict[str, int] = {}
    for native in (names.RESOURCE_CPU, names.RESOURCE_MEMORY):
        extended = translate_resource_name(pod.priority_class, native)
        if extended and extended != native:
            request[extended] = requested(pod, extended)
    if pod.qos_label is QoSClass.BE:
        request[names.RESOURCE_BATCH_CPU] = batch_cpu_request(pod)
    ending = stay(snapshot, pod) is Stay.ENDING
    return Victim(pod, {USED: used, REQUEST: request}, ending=ending, lingering=not ending and pod.uid in snapshot.leaving)


def be_pods(snapshot: Snapshot, gate: str) -> list[PodState]:
    """Pods of class BE that run or may come to run, and allow the gate."""
    return [p for p in snapshot.pods if p.qos_label is QoSClass.BE and not p.terminated and may_evict(p, gate)]


def _rank(pod: PodState) -> int:
    """``spec.priority``, and for a pod without one what its class stands for, so that all pods can be put in one order."""
    priority = pod.pod.spec.priority
    return priority_value(pod) if priority is None else priority


def order_by_cpu_ratio(snapshot: Snapshot, pods: Iterable[PodState]) -> list[PodState]:
    """BECPUEvict: priority, then who uses most of what it requests."""

    def ratio(pod: PodState) -> float:
        request = batch_cpu_request(pod)
        return (cpu_used(snapshot, pod) or 0) / request if request > 0 else 0.0

    return sorted(pods, key=lambda pod: (_rank(pod), -ratio(pod)))


def order_by_memory(snapshot: Snapshot, pods: Iterable[PodState]) -> list[PodState]:
    """BEMemoryEvict: priority, then who uses most; those without a sample last, by name downwards."""

    used = [(pod, memory_used(snapshot, pod)) for pod in pods]
    measured = sorted(((pod, bytes_) for pod, bytes_ in used if bytes_ is not None), key=lambda row: -row[1])
    unmeasured = sorted((pod for pod, bytes_ in used if bytes_ is None), key=lambda pod: pod.name, reverse=True)
    return sorted([*(pod for pod, _ in measured), *unmeasured], key=_rank)


def opted_in(snapshot: Snapshot, gate: str, threshold: int, measured: Amount, amount: Amount | None = None) -> list[PodState]:
    """Pods of any class that allow eviction by label and have at most the threshold's priority value, in order of eviction.

    ``measured`` must know the pod (a pod without a usage sample is never taken). Who has more of that, or of ``amount``, comes first.
    """
    of = amount or measured
    pods = [
        p
        for p in snapshot.pods
        if p.active
        and is_true(p.labels, names.LABEL_POD_EVICTION_ENABLED)
        and priority_value(p) <= threshold
        and may_evict(p, gate)
        and measured(p) is not None
    ]
    ordered = sorted(pods, key=lambda p: (eviction_priority(p), priority_value(p), label_priority(p), -(of(p) or 0)))
    return easiest_first(snapshot, ordered, gate)


def overcommitted_class(pod: PodState) -> bool:
    """Only mid and batch pods live on resources that can be withdrawn."""
    return pod.priority_class in (PriorityClass.MID, PriorityClass.BATCH)
