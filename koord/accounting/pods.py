"""What a pod asks for and may use, with init containers, sidecars, overhead and pod-level resources as in Kubernetes.

The rule: the sum of all containers and sidecars (init containers that keep running), or what any one init container needs together
with the sidecars that were started before it, whichever is larger; then pod-level cpu, memory and hugepages replace those sums;
then overhead is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from koord.accounting.resources import ResourceVector, add_into, max_, parse
from koord.api import names
from koord.api.objects_meta import find_condition
from koord.api.quantity import parse_milli, parse_value

if TYPE_CHECKING:
    from koord.api.objects import Container, Pod, PodSpec, PodStatus

__all__ = [
    "DEFAULT_MEMORY_REQUEST", "DEFAULT_MILLI_CPU_REQUEST", "non_zero_requests", "pod_limits", "pod_requests", "spec_limits",
    "spec_requests",
]  # fmt: skip

# What scoring takes for a container that requests nothing (schedulers only; filters use the truth).
DEFAULT_MILLI_CPU_REQUEST = 100
DEFAULT_MEMORY_REQUEST = 200 * 1024 * 1024


def _is_pod_level(name: str) -> bool:
    return name in (names.RESOURCE_CPU, names.RESOURCE_MEMORY) or name.startswith(names.RESOURCE_HUGEPAGES_PREFIX)


def _effective(spec: PodSpec, of: Callable[[Container], ResourceVector]) -> ResourceVector:
    """Containers, sidecars and init containers folded into one vector."""
    containers = spec.containers
    total = of(containers[0]) if len(containers) == 1 else _sum(containers, of)
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


def _sum(containers: tuple[Container, ...], of: Callable[[Container], ResourceVector]) -> ResourceVector:
    total: ResourceVector = {}
    for container in containers:
        add_into(total, of(container))
    return total


def _override(total: ResourceVector, pod_level: Mapping[str, str | int | float]) -> None:
    for name, quantity in pod_level.items():
        if _is_pod_level(name):
            total[name] = parse_milli(quantity) if name == names.RESOURCE_CPU else parse_value(quantity)


def _requests(container: Container) -> ResourceVector:
    return parse(container.resources.requests)


def _limits(container: Container) -> ResourceVector:
    return parse(container.resources.limits)


def _non_zero(wanted: ResourceVector) -> ResourceVector:
    """Requests of a container, with the scheduler's defaults where cpu or memory is absent (an explicit zero stays zero)."""
    wanted.setdefault(names.RESOURCE_CPU, DEFAULT_MILLI_CPU_REQUEST)
    wanted.setdefault(names.RESOURCE_MEMORY, DEFAULT_MEMORY_REQUEST)
    return wanted


def spec_requests(spec: PodSpec) -> ResourceVector:
    """Effective requests of a pod spec, overhead included. Raises QuantityError."""
    return _complete(spec, _requests)


def spec_limits(spec: PodSpec) -> ResourceVector:
    """Effective limits of a pod spec. Overhead counts only where a limit exists: no limit plus overhead is still no limit.

    As in Kubernetes a container without a limit adds nothing, so the sum is no bound unless every container has one.
    Raises QuantityError.
    """
    total = _effective(spec, _limits)
    if spec.resources is not None:
        _override(total, spec.resources.limits)
    for name, value in parse(spec.overhead).items():
        if total.get(name):
            total[name] += value
    return total


def pod_requests(pod: Pod) -> ResourceVector:
    """Effective requests of a pod. Raises QuantityError.

    While a container is resized in place it holds the largest of what it asks for, what is allocated and what is applied; when the
    resize is impossible on the node, what it asks for does not count.
    """
    return _complete(pod.spec, _holdings(pod))


def is_resized(pod: Pod) -> bool:
    """Whether a container holds, or has applied, other resources than its spec asks for: then `pod_requests` is no matter of the spec
    alone."""
    wanted = {container.name: container.resources.requests for container in (*pod.spec.containers, *pod.spec.init_containers)}
    for held in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        requests = wanted.get(held.name)
        if held.allocated_resources and held.allocated_resources != requests:
            return True
        if held.resources is not None and held.resources.requests != requests:
            return True
    return False


def _holdings(pod: Pod) -> Callable[[Container], ResourceVector]:
    """What each container of a pod counts for."""
    status = pod.status
    statuses = {
        held.name: held
        for statuses in (status.container_statuses, status.init_container_statuses)
        for held in statuses
        if held.allocated_resources or held.resources is not None
    }
    if not statuses:
        return _requests
    infeasible = _resize_is_infeasible(status)

    def of(container: Container) -> ResourceVector:
        wanted = _requests(container)
        held = statuses.get(container.name)
        if held is None:
            return wanted
        allocated = parse(held.allocated_resources)
        if held.resources is not None:
            allocated = max_(allocated, parse(held.resources.requests))
        return allocated if infeasible and allocated else max_(wanted, allocated)

    return of


def _resize_is_infeasible(status: PodStatus) -> bool:
    if status.resize == "Infeasible":
        return True
    pending = find_condition(status.conditions, "PodResizePending")
    return pending is not None and pending.status == "True" and pending.reason == "Infeasible"


def _complete(spec: PodSpec, of: Callable[[Container], ResourceVector]) -> ResourceVector:
    """Containers folded, pod-level requests put over them, overhead added."""
    total = _effective(spec, of)
    if spec.resources is not None:
        _override(total, spec.resources.requests)
    if spec.overhead:
        add_into(total, parse(spec.overhead))
    return total


def pod_limits(pod: Pod) -> ResourceVector:
    """Effective limits of a pod. Raises QuantityError."""
    return spec_limits(pod.spec)


def non_zero_requests(pod: Pod) -> ResourceVector:
    """Requests for scoring: containers without a cpu or memory request count 100m and 200 MiB. Raises QuantityError."""
    spec = pod.spec
    if spec.resources is not None and names.RESOURCE_CPU in spec.resources.requests and names.RESOURCE_MEMORY in spec.resources.requests:
        return pod_requests(pod)
    of = _holdings(pod)
    return _complete(spec, lambda container: _non_zero(of(container)))
