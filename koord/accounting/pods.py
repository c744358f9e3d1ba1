"""What a pod asks for and may use, with init containers, sidecars, overhead and pod-level resources as in Kubernetes.

The rule: the sum of all containers and sidecars (init containers that keep running), or what any one init container needs together
with the sidecars that were started before it, whichever is larger; then pod-level cpu, memory and hugepages replace those sums;
then overhead is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from koord.accounting.resources import ResourceVector, add_into, max_, parse, sum_
from koord.api import names
from koord.api.objects_meta import find_condition

if TYPE_CHECKING:
    from koord.api.objects import Container, Pod, PodSpec

# What scoring takes for a container that requests nothing (schedulers only; filters use the truth).
DEFAULT_MILLI_CPU_REQUEST = 100
DEFAULT_MEMORY_REQUEST = 200 * 1024 * 1024
_DEFAULTS = {names.RESOURCE_CPU: DEFAULT_MILLI_CPU_REQUEST, names.RESOURCE_MEMORY: DEFAULT_MEMORY_REQUEST}

RESIZE_DEFERRED = "Deferred"
RESIZE_INFEASIBLE = "Infeasible"


def _is_pod_level(name: str) -> bool:
    return name in (names.RESOURCE_CPU, names.RESOURCE_MEMORY) or name.startswith(names.RESOURCE_HUGEPAGES_PREFIX)


def _effective(spec: PodSpec, of: Callable[[Container], ResourceVector]) -> ResourceVector:
    """Containers, sidecars and init containers folded into one vector."""
    containers = spec.containers
    total = of(containers[0]) if len(containers) == 1 else sum_(map(of, containers))
    if not spec.init_containers:
        return total
    sidecars: ResourceVector = {}
    peak: ResourceVector = {}
    for container in spec.init_containers:
        wanted = of(container)
        if container.restart_policy == "Always":
            add_into(total, wanted)
            add_into(sidecars, wanted)
            peak = max_(peak, sidecars)
        else:
            add_into(wanted, sidecars)
            peak = max_(peak, wanted)
    return max_(total, peak)


def _override(total: ResourceVector, pod_level: ResourceVector) -> None:
    for name, amount in pod_level.items():
        if _is_pod_level(name):
            total[name] = amount


def _requests(container: Container) -> ResourceVector:
    return parse(container.resources.requests)


def _limits(container: Container) -> ResourceVector:
    return parse(container.resources.limits)


def spec_requests(spec: PodSpec) -> ResourceVector:
    """Effective requests of a pod spec, overhead included. Raises QuantityError."""
    return _complete(spec, _requests, parse(spec.resources.requests) if spec.resources is not None else {})


def pod_requests(pod: Pod) -> ResourceVector:
    """Effective requests of a pod, as kube-scheduler 1.36 counts them (SCH-RSZ-01, SCH-RSZ-02). Raises QuantityError.

    While a pod is resized in place it holds, for each container and for the pod as a whole, the largest of what it asks for, what its
    kubelet has allocated and what is in force. A resize that waits for room (Deferred) counts as asked for; while one is impossible on
    the node (Infeasible), what it asks for does not count. A status without `resources` says nothing; nor does that of an init
    container that ends before the others start.
    """
    return _complete(pod.spec, _holdings(pod), _pod_level(pod))


def is_resized(pod: Pod) -> bool:
    """Whether a container or the pod as a whole holds, or has in force, other requests than its spec asks for: then `pod_requests` is no
    matter of the spec alone."""
    spec, status = pod.spec, pod.status
    if spec.resources is not None and status.resources is not None:
        wanted = spec.resources.requests
        if status.resources.requests != wanted or status.allocated_resources != wanted:
            return True
    if not status.container_statuses and not status.init_container_statuses:
        return False
    asked = {container.name: container.resources.requests for container in (*spec.containers, *spec.init_containers)}
    for held in (*status.container_statuses, *status.init_container_statuses):
        if held.resources is None:
            continue
        requests = asked.get(held.name)
        if held.resources.requests != requests or (held.allocated_resources and held.allocated_resources != requests):
            return True
    return False


def resize_pending(pod: Pod) -> str:
    """Why the resize that a pod asks for has not begun: Deferred, Infeasible, or "" when none waits.

    Kubelets before 1.33 said so in `status.resize`, later ones in the reason of the condition PodResizePending.
    """
    pending = find_condition(pod.status.conditions, "PodResizePending")
    if pending is not None:
        return pending.reason
    return pod.status.resize if pod.status.resize in (RESIZE_DEFERRED, RESIZE_INFEASIBLE) else ""


def resize_growth(pod: Pod) -> ResourceVector:
    """What a pod asks for beyond what it holds. Raises QuantityError."""
    held = _complete(pod.spec, _holdings(pod, granted=True), _pod_level(pod, granted=True))
    return {name: amount - held.get(name, 0) for name, amount in pod_requests(pod).items() if amount > held.get(name, 0)}


def _holdings(pod: Pod, *, granted: bool = False) -> Callable[[Container], ResourceVector]:
    """What each container of a pod counts for; `granted`: what it asks for beyond that left out."""
    status = pod.status
    statuses = {
        held.name: held
        for held in (*status.container_statuses, *status.init_container_statuses)
        if held.resources is not None  # a kubelet that resizes always tells it
    }
    if not statuses:
        return _requests
    infeasible = granted or resize_pending(pod) == RESIZE_INFEASIBLE
    ending = {container.name for container in pod.spec.init_containers if not container.is_sidecar}

    def of(container: Container) -> ResourceVector:
        held = statuses.get(container.name)
        if held is None or held.resources is None or container.name in ending:
            return _requests(container)
        holds = max_(parse(held.allocated_resources), parse(held.resources.requests))
        return holds if infeasible else max_(_requests(container), holds)

    return of


def _pod_level(pod: Pod, *, granted: bool = False) -> ResourceVector:
    """The pod-level requests that count, of the resources that its spec names there."""
    if pod.spec.resources is None or not pod.spec.resources.requests:
        return {}
    asked = parse(pod.spec.resources.requests)
    held = pod.status.resources
    if held is None:
        return asked
    holds = max_(parse(pod.status.allocated_resources), parse(held.requests))
    if not granted and resize_pending(pod) != RESIZE_INFEASIBLE:
        holds = max_(holds, asked)
    return {name: holds.get(name, 0) for name in asked}


def _complete(spec: PodSpec, of: Callable[[Container], ResourceVector], pod_level: ResourceVector) -> ResourceVector:
    """Containers folded, pod-level requests put over them, overhead added."""
    total = _effective(spec, of)
    _override(total, pod_level)
    if spec.overhead:
        add_into(total, parse(spec.overhead))
    return total


def pod_limits(pod: Pod) -> ResourceVector:
    """Effective limits of a pod. Overhead counts only where a limit exists: no limit plus overhead is still no limit.

    As in Kubernetes a container without a limit adds nothing, so the sum is no bound unless every container has one.
    Raises QuantityError.
    """
    spec = pod.spec
    total = _effective(spec, _limits)
    if spec.resources is not None:
        _override(total, parse(spec.resources.limits))
    for name, value in parse(spec.overhead).items():
        if total.get(name):
            total[name] += value
    return total


def non_zero_requests(pod: Pod) -> ResourceVector:
    """Requests for scoring: containers without a cpu or memory request count 100m and 200 MiB, in pods with pod-level requests only of
    what neither the pod nor any container requests. Raises QuantityError."""
    of, pod_level = _holdings(pod), _pod_level(pod)
    defaults = _DEFAULTS
    if any(map(_is_pod_level, pod_level)):
        requests = _complete(pod.spec, of, pod_level)
        defaults = {name: amount for name, amount in _DEFAULTS.items() if name not in requests}
        if not defaults:
            return requests
    return _complete(pod.spec, lambda container: {**defaults, **of(container)}, pod_level)
