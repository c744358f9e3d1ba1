"""What is on its way to a node, and what has come since its last report (DS-LNL-07, DS-LNL-08). Pure.

A node's report tells of the past. Pods that came later, and places that are held for pods, will use the node too: a target that does not
count them is given too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koord.accounting.estimate import estimate_pod
from koord.accounting.resources import max_
from koord.api.objects import Pod
from koord.api.priority import PriorityClass, pod_priority_class
from koord.api.quantity import QuantityError
from roles.descheduler.snapshot import NodeView, PodView, Vector, measured, time_of

Brought = Callable[[Pod], Vector | None]


@dataclass(frozen=True, slots=True)
class Expected:
    """A place that is held on a node. `requests` are what it keeps from others, `usage` what the pod will use; `order` says whose turn
    comes first, `job` which migration it is for ("" for none)."""

    node: str
    requests: Vector
    usage: Vector
    prod: bool
    job: str = ""
    order: tuple[str, str] = ("", "")


def expect(view: NodeView, places: Iterable[Expected], brought: Brought, *, unheard: float = 0.0) -> None:
    """Tell a node what it has to expect. `brought` knows what a pod used where it came from; None: ask the scheduler's estimate.

    A pod that the report does not tell of is yet to use the node, as LoadAwareScheduling has it: when it came is not asked, for the report
    and the pod's conditions have their times from different clocks. A pod that only the report tells of has left; but if the report is
    newer than what is known of pods (for `unheard` seconds it is not certain that all was heard of them), it has come."""
    for place in places:
        view.expect(place.requests, place.usage, prod=place.prod)
    for own in view.pods:
        if own.usage is None and not own.accepted:
            view.expect({}, {**max_(estimate(own.pod), brought(own.pod) or {}), "pods": 0}, prod=own.is_prod)
    if view.metric is None or view.usage is None or view.metric_age >= unheard:
        return
    heard_of = {(pod.metadata.namespace, pod.metadata.name) for pod in view.everyone}
    for item in view.metric.status.pods_metric:
        if (item.namespace, item.name) not in heard_of:
            view.expect({}, measured(item.pod_usage.resources), prod=item.priority in ("", PriorityClass.PROD))


def reported_at(view: NodeView) -> float | None:
    """When the node last reported its load, in seconds since the epoch; None if it did not."""
    return time_of(view.metric.status.update_time) if view.metric is not None else None


def expected_use(view: PodView) -> Vector:
    """What the pod will use where it goes: what it uses, or what the scheduler would take it to."""
    return view.usage if view.usage is not None else estimate(view.pod)


def estimate(pod: Pod) -> Vector:
    """What LoadAwareScheduling takes a pod to use before it is measured; nothing for one whose requests cannot be read."""
    try:
        return dict(estimate_pod(pod))
    except QuantityError:
        return {}


def is_prod(pod: Pod) -> bool:
    return pod_priority_class(pod) == PriorityClass.PROD
