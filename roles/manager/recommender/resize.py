"""Running pods follow a recommendation in place, by the `resize` sub-resource; nothing is ever evicted or restarted for it. Pure.

A pod is resized at most once in PAUSE seconds, and only where it gains something. What holds its CPUs exclusively keeps them, a
container whose resizePolicy asks for a restart keeps that resource, QoS class and limits stay what they were, and a pod grows no
further than its quota has room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koord.api.objects import Container, Pod
from koord.api.objects_meta import find_condition
from koord.api.qos import QoSClass, pod_qos_raw
from koord.api.quantity import QuantityError, format_decimal, format_milli, parse_milli, parse_value
from roles.manager.recommender.estimate import Amount
from roles.manager.recommender.samples import watched

PAUSE = 600.0
"""Seconds between two resizes of a pod."""
INFEASIBLE_PAUSE = 3600.0
"""Seconds for which a pod that cannot grow on its node is left alone."""
SHRINK, GROW = 0.05, 0.02
"""By which share a request must be too large, or too small, to be worth a resize."""

PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
_RESTARTS = "RestartContainer"
_RESOURCES = ("cpu", "memory")

Resources = Mapping[str, int]
"""cpu in milli, memory in bytes."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one pod now: `body` is the strategic merge patch of its `resize` sub-resource, empty for nothing."""

    reason: str
    body: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    """What changes, by container and resource."""
    growth: dict[str, int] = field(default_factory=dict)
    """By how much the requests of the pod grow."""
    pause: float = PAUSE
    """Seconds for which the pod is left alone afterwards."""
    waits: bool = False
    """Whether something stands in the way of what the pod should have."""


def decide(
    pod: Pod, targets: Mapping[str, Amount], *, now: float, not_before: float = 0.0, room: Callable[[Resources], str] = lambda growth: ""
) -> Step:
    """The next step of a pod towards what its containers should request.

    `not_before` is the end of its pause; `room(growth)` says why requests may not grow by so much, "" if they may.
    """
    if pod.status.phase != "Running" or pod.is_deleting or not pod.spec.node_name:
        return Step("the pod does not run")
    if now < not_before:
        return Step("the last resize is too recent")
    if _in_progress(pod):
        return Step("a resize is in progress")
    pending = _pending(pod)
    if pending == INFEASIBLE:
        return _given_back(pod)
    changed = {c.name: found for c in watched(pod) if (found := _wanted(pod, c, targets.get(c.name)))}
    moves = [(resource, old, new) for found in changed.values() for resource, (old, new) in found.items()]
    if pending == DEFERRED and any(new > old for _, old, new in moves):
        return Step("the node has no room yet; the kubelet goes on trying", waits=True)
    if not moves:
        return Step("the requests fit")
    growth = {resource: by for resource in _RESOURCES if (by := sum(new - old for which, old, new in moves if which == resource)) > 0}
    why = room(growth) if growth else ""
    if why:
        return Step(why, waits=True)
    return _step(pod, {name: {resource: new for resource, (_, new) in found.items()} for name, found in changed.items()}, growth)


def _wanted(pod: Pod, container: Container, target: Amount | None) -> dict[str, tuple[int, int]]:
    """What a container should request instead of what it does: (as it is, as it should be) by resource."""
    if target is None:
        return {}
    found = {}
    for resource, value in (("cpu", target.cpu * 1000), ("memory", target.memory)):
        requests, limits = container.resources.requests, container.resources.limits
        if resource not in requests or _is_fixed(pod, container, resource):
            continue
        try:
            present, new = _amount(requests[resource], resource), int(value)
            limit = _amount(limits[resource], resource) if resource in limits else None
        except (QuantityError, OverflowError, ValueError):
            continue  # what stands there cannot be read, or nothing is known yet
        if limit is not None and limit != present:
            new = min(new, limit - 1)  # below the limit: a request that equals it would be another QoS class
        if is_worth(present, new):
            found[resource] = (present, max(new, 1))
    return found


def is_worth(present: float, wanted: float) -> bool:
    """Whether a difference is worth a resize."""
    return wanted > present * (1 + GROW) or wanted < present * (1 - SHRINK)


def _is_fixed(pod: Pod, container: Container, resource: str) -> bool:
    """Whether a resource of a running container cannot change without harm."""
    if any(policy.resource_name == resource and policy.restart_policy == _RESTARTS for policy in container.resize_policy):
        return True
    # CPUs of its own are placed by the scheduler, or by the kubelet's static policy: they are no number that could be changed.
    return resource == "cpu" and (pod_qos_raw(pod) in (QoSClass.LSE, QoSClass.LSR) or _static(pod, container))


def _static(pod: Pod, container: Container) -> bool:
    """Whether the kubelet's static policy would give the container whole CPUs: a Guaranteed pod, a whole number of them."""
    try:
        return pod.status.qos_class == "Guaranteed" and parse_milli(container.resources.requests.get("cpu", 0)) % 1000 == 0
    except QuantityError:
        return True


def _step(pod: Pod, wanted: Mapping[str, Mapping[str, int]], growth: dict[str, int]) -> Step:
    """The patch. A limit that equals its request follows it, so that the QoS class stays."""
    changes: dict[str, str] = {}
    sections: dict[str, list[dict[str, Any]]] = {}
    for section, containers in (("containers", pod.spec.containers), ("initContainers", pod.spec.init_containers)):
        for container in containers:
            resources: dict[str, dict[str, str]] = {}
            for resource, new in wanted.get(container.name, {}).items():
                text = changes[f"{container.name}.{resource}"] = format_milli(new) if resource == "cpu" else format_decimal(new)
                resources.setdefault("requests", {})[resource] = text
                limits, requests = container.resources.limits, container.resources.requests
                if resource in limits and _amount(limits[resource], resource) == _amount(requests[resource], resource):
                    resources.setdefault("limits", {})[resource] = text
            if resources:
                sections.setdefault(section, []).append({"name": container.name, "resources": resources})
    return Step("the requests follow the recommendation", {"spec": sections} if sections else {}, changes, growth)


def _given_back(pod: Pod) -> Step:
    """Ask for what the kubelet has allocated: a request that this node can never serve only keeps others out."""
    held = {s.name: s.allocated_resources or (s.resources.requests if s.resources else {}) for s in pod.status.container_statuses}
    held |= {s.name: s.allocated_resources or (s.resources.requests if s.resources else {}) for s in pod.status.init_container_statuses}
    wanted: dict[str, dict[str, int]] = {}
    for container in watched(pod):
        for resource in _RESOURCES:
            asked, has = container.resources.requests.get(resource), held.get(container.name, {}).get(resource)
            if asked is None or has is None:
                continue
            try:
                if _amount(asked, resource) != _amount(has, resource):
                    wanted.setdefault(container.name, {})[resource] = _amount(has, resource)
            except QuantityError:
                continue
    found = _step(pod, wanted, {})
    return Step(
        "the resize is infeasible on this node: the pod keeps what it has", found.body, found.changes, pause=INFEASIBLE_PAUSE, waits=True
    )


def _in_progress(pod: Pod) -> bool:
    found = find_condition(pod.status.conditions, IN_PROGRESS)
    return pod.status.resize == "InProgress" or (found is not None and found.status == "True")


def _pending(pod: Pod) -> str:
    """Deferred, Infeasible, or "" when no resize waits."""
    found = find_condition(pod.status.conditions, PENDING)
    if found is not None and found.status == "True":
        return found.reason
    return pod.status.resize if pod.status.resize in (DEFERRED, INFEASIBLE) else ""


def _amount(text: Any, resource: str) -> int:
    """cpu in milli, memory in bytes. Raises QuantityError."""
    return parse_milli(text) if resource == "cpu" else parse_value(text)
