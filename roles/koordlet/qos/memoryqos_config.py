"""Which memory QoS a pod gets, and the numbers that follow from it (KA-MEM-01, KA-MEM-02). Pure."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import msgspec

from koord.accounting.pods import pod_limits
from koord.api import trust
from koord.api.annotations import AnnotationError, parse_memory_qos
from koord.api.names import ANNOTATION_MEMORY_QOS, RESOURCE_BATCH_MEMORY, RESOURCE_MEMORY
from koord.api.qos import QoSClass
from koord.api.quantity import QuantityError, parse_value
from roles.koordlet.host.cgroup_files import MAX_INT64
from roles.koordlet.states.allocation import requested
from roles.koordlet.states.model import ContainerState, PodState
from roles.koordlet.states.slo import MemoryQOS, ResourceQOSStrategy, default_class_body

PAGE = resource.getpagesize()
POLICIES = frozenset(trust.MEMORY_POLICIES)
_CLASS_KEY = {
    QoSClass.LSE: "lsrClass",
    QoSClass.LSR: "lsrClass",
    QoSClass.LS: "lsClass",
    QoSClass.BE: "beClass",
    QoSClass.SYSTEM: "systemClass",
}
_BODY = {"lsrClass": "lsr", "lsClass": "ls", "beClass": "be", "systemClass": "system"}
NONE = MemoryQOS()


def node_body(strategy: ResourceQOSStrategy, qos: QoSClass) -> MemoryQOS:
    """The node's body for a class (disabled ones hold the neutral values)."""
    key = _CLASS_KEY.get(qos)
    return NONE if key is None else getattr(strategy, _BODY[key]).memory


def asked(strategy: ResourceQOSStrategy, pod: PodState) -> bool:
    """Whether the node's configuration or the pod's annotation has anything to say of its memory."""
    try:
        own = parse_memory_qos(pod.annotations)
    except AnnotationError:
        own = None
    return node_body(strategy, pod.qos).enable or (own is not None and own.get("policy", "") in POLICIES)


def effective(strategy: ResourceQOSStrategy, pod: PodState) -> MemoryQOS:
    """The body for a pod: its class's, or what its annotation starts from, with the annotation's own fields on top.

    An annotation that cannot be used leaves the node's.
    """
    body = node_body(strategy, pod.qos)
    try:
        own = parse_memory_qos(pod.annotations)
    except AnnotationError:
        return body
    if own is None or own.get("policy", "") not in POLICIES:
        return body
    policy = own.pop("policy", "")
    if policy == "none":
        return NONE
    if policy == "auto":
        key = _CLASS_KEY.get(pod.qos)
        # works even where the node has the class switched off
        body = NONE if key is None else default_class_body(key).memory
    merged: dict[str, Any] = {**msgspec.to_builtins(body), **trust.bounded(ANNOTATION_MEMORY_QOS, own)}
    try:
        wanted = msgspec.convert(merged, MemoryQOS)
    except msgspec.ValidationError:
        return body
    return _no_better(wanted, body) if pod.qos is QoSClass.BE else wanted


def _no_better(wanted: MemoryQOS, body: MemoryQOS) -> MemoryQOS:
    """Of a best-effort pod: background reclaim starts no later, and the OOM killer comes no later, than for its class."""
    return msgspec.structs.replace(
        wanted,
        wmark_min_adj=_bound(max, wanted.wmark_min_adj, body.wmark_min_adj),
        priority=_bound(min, wanted.priority, body.priority),
    )


def _bound(pick: Callable[[int, int], int], own: int | None, theirs: int | None) -> int | None:
    return own if own is None or theirs is None else pick(own, theirs)


def percent_of(amount: int, percent: int | None) -> int | None:
    """floor(amount × percent / 100); None for no percentage."""
    return None if percent is None else amount * percent // 100


def protection(amount: int, body: MemoryQOS) -> tuple[int | None, int | None]:
    """memory.min and memory.low of a request; a low that protects is not below min."""
    least, low = percent_of(amount, body.min_limit_percent), percent_of(amount, body.low_limit_percent)
    if low is not None and least is not None and 0 < low < least:
        low = least
    return least, low


def high(request: int, limit: int, body: MemoryQOS, least: int | None) -> int | None:
    """memory.high of a container, in whole pages; 2^63-1 where throttling is off. Bytes."""
    percent = body.throttling_percent
    if percent is None:
        return None
    if percent == 0:
        return MAX_INT64
    value = (request + (limit - request) * percent // 100) // PAGE * PAGE
    return least if least is not None and 0 < value < least else value


def page_cache(limit: int, body: MemoryQOS) -> dict[str, int]:
    """Page cache files and values by a pod's memory limit in bytes (-1 for none); empty when nothing is asked for."""
    size: int | None = None
    if body.page_cache_limit_size is not None:
        size = min(body.page_cache_limit_size, limit) if limit > 0 else body.page_cache_limit_size
    elif body.page_cache_limit_percent is not None and limit > 0:
        size = limit * body.page_cache_limit_percent // 100
    out: dict[str, int] = {}
    if size is not None and size > 0:
        out = {"enable": 1, "size": size, "sync": int(bool(body.page_cache_reclaim_sync))}
    elif size == 0:
        out = {"enable": 0, "size": 0}
    if body.page_cache_enable is not None:
        out["enable"] = int(body.page_cache_enable)
    return out


def _container_value(container: ContainerState, name: str, *, limit: bool) -> int | None:
    if container.spec is None:
        return None
    resources = container.spec.resources.limits if limit else container.spec.resources.requests
    quantity = resources.get(name)
    try:
        return None if quantity is None else parse_value(quantity)
    except QuantityError:
        return None


def pod_request(pod: PodState) -> int:
    """Effective memory request in bytes; of BE pods the sum of their batch memory, sidecars included."""
    if pod.qos is QoSClass.BE:
        return sum(_container_value(c, RESOURCE_BATCH_MEMORY, limit=False) or 0 for c in pod.side_by_side()[0])
    return requested(pod, RESOURCE_MEMORY)


def pod_limit(pod: PodState) -> int:
    """Memory limit in bytes, -1 for none; of BE pods the sum of their batch limits, sidecars included."""
    running = pod.side_by_side()[0]
    if pod.qos is QoSClass.BE:
        limits = [_container_value(c, RESOURCE_BATCH_MEMORY, limit=True) for c in running]
        return -1 if not limits or any(not value for value in limits) else sum(value or 0 for value in limits)
    if any(not _container_value(c, RESOURCE_MEMORY, limit=True) for c in running):
        return -1
    try:
        return pod_limits(pod.pod).get(RESOURCE_MEMORY, -1)
    except QuantityError:
        return -1


def container_request(pod: PodState, container: ContainerState) -> int:
    """Bytes; 0 for none."""
    name = RESOURCE_BATCH_MEMORY if pod.qos is QoSClass.BE else RESOURCE_MEMORY
    return _container_value(container, name, limit=False) or 0


def container_limit(pod: PodState, container: ContainerState, allocatable: int) -> int:
    """Bytes; the node's allocatable memory for none."""
    name = RESOURCE_BATCH_MEMORY if pod.qos is QoSClass.BE else RESOURCE_MEMORY
    return _container_value(container, name, limit=True) or allocatable
