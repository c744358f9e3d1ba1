"""What a pod really holds: the one reading of the scheduler's annotations (BEY-SEC-03, KA-HK-02). Pure.

An annotation is a text that anybody may have written. It counts only as far as the pod asks for what it says, and only for CPUs that
this node has and has not given to somebody else. What does not count is named in ``ignored``, for the decision record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from koord.accounting.cpuset import EMPTY, CPUSet, CPUSetError
from koord.accounting.pods import pod_requests
from koord.api import names
from koord.api.annotations import (
    AnnotationError,
    parse_device_allocations,
    parse_device_hints,
    parse_device_joint_allocate,
)
from koord.api.annotations_scheduling import PodDeviceAllocation
from koord.api.qos import QoSClass
from koord.api.quantity import QuantityError, parse_value
from roles.koordlet.states.nodecpus import ANY_NODE, NodeCPUs

if TYPE_CHECKING:
    from roles.koordlet.states.model import PodState

Devices = dict[str, tuple[PodDeviceAllocation, ...]]

_OWN_CPUS = frozenset({QoSClass.LSE, QoSClass.LSR})
_VENDOR_CARDS = (names.RESOURCE_NVIDIA_GPU, names.RESOURCE_HYGON_DCU, names.RESOURCE_AMD_GPU)
_PART_OF_A_CARD = (
    names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY,
    names.RESOURCE_HUAWEI_NPU_CORE, names.RESOURCE_HUAWEI_NPU_CPU, names.RESOURCE_HUAWEI_NPU_DVPP,
)  # fmt: skip
_BY_PERCENT = {names.DEVICE_TYPE_RDMA: names.RESOURCE_RDMA, names.DEVICE_TYPE_FPGA: names.RESOURCE_FPGA}


@dataclass(frozen=True, slots=True)
class Claimant:
    """What a pod is and asks for."""

    uid: str
    qos: QoSClass
    """With the Kubernetes class as default."""
    requests: Mapping[str, int] | None = None
    """Effective requests in base units; None where they are not known."""
    unlisted: bool = False
    """The kubelet was asked and has no such pod: only its runtime speaks for it."""
    guaranteed: bool = False
    """The kubelet says that its Kubernetes class is Guaranteed, which no owner can write."""


def claimant(pod: PodState) -> Claimant:
    """Of a pod that the kubelet lists."""
    return Claimant(pod.uid, pod.qos, requests_of(pod), guaranteed=pod.pod.status.qos_class == "Guaranteed")


def requested(pod: PodState, resource: str) -> int:
    """Effective request of a resource in its base unit; 0 when there is none or it cannot be read."""
    try:
        return pod_requests(pod.pod).get(resource, 0)
    except QuantityError:
        return 0


def requests_of(pod: PodState) -> dict[str, int] | None:
    """Effective requests under today's names; None when they cannot be read."""
    try:
        wanted = pod_requests(pod.pod)
    except QuantityError:
        return None
    return {names.DEPRECATED_RESOURCES.get(name, name): amount for name, amount in wanted.items()}


# -- CPUs --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """CPUs of a pod's own. ``exclusive``: best-effort pods have to keep off them too."""

    cpus: CPUSet = EMPTY
    exclusive: bool = False
    ignored: str = ""
    """Why the annotation does not count."""


NOTHING_HELD = Held()


def held_cpus(pod: PodState, node: NodeCPUs = ANY_NODE) -> Held:
    """Which CPUs a listed pod has, and who may share them: by the scheduler, else by the kubelet's CPU manager."""
    found = held(pod.annotations, claimant(pod), node) if names.ANNOTATION_RESOURCE_STATUS in pod.annotations else NOTHING_HELD
    pinned = node.pinned.get(pod.uid)
    return Held(pinned, True, found.ignored) if pinned and not found.cpus else found


def held(annotations: Mapping[str, str], who: Claimant, node: NodeCPUs = ANY_NODE) -> Held:
    """CPUs by ``resource-status``. Other members of the annotation do not matter for them, however odd they are."""
    try:
        cpus = stated_cpus(annotations.get(names.ANNOTATION_RESOURCE_STATUS, ""))
    except ValueError as error:
        return Held(ignored=str(error))
    if not cpus:
        return NOTHING_HELD
    problem = _not_allocated(cpus, who, node)
    if problem:
        return Held(ignored=f"not allocated: cpuset {cpus}: {problem}")
    return Held(cpus, who.qos is QoSClass.LSE)


def _not_allocated(cpus: CPUSet, who: Claimant, node: NodeCPUs) -> str:
    if who.qos not in _OWN_CPUS and not node.binds_all:
        return f"class {who.qos or 'none'} shares its CPUs on this node"
    if who.requests is None:
        return "what the pod requests is not known"
    milli = who.requests.get(names.RESOURCE_CPU, 0)
    if milli or not who.guaranteed:  # of a Guaranteed pod without amounts the kubelet knows more than it shows
        if milli <= 0 or milli % 1000:
            return f"the pod requests {milli}m CPU, no whole CPUs"
        if len(cpus) * 1000 > milli:
            return f"the pod requests {milli // 1000} CPUs"
    if node.present and not cpus <= node.present:
        return f"the node has no CPUs {cpus - node.present}"
    taken = cpus & node.pinned_to_others(who.uid)
    return f"the kubelet gave CPUs {taken} to another pod" if taken else ""


@lru_cache(maxsize=1024)
def stated_cpus(text: str) -> CPUSet:
    """The CPU list of a ``resource-status``; empty without one. Raises ValueError for a text without a list that can be read."""
    if not text:
        return EMPTY
    try:
        status: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise AnnotationError(names.ANNOTATION_RESOURCE_STATUS, f"is not JSON: {error}") from None
    if status is None:
        return EMPTY
    cpus = status.get("cpuset") if isinstance(status, dict) else 0
    if cpus is None:
        return EMPTY
    if not isinstance(cpus, str):
        raise AnnotationError(names.ANNOTATION_RESOURCE_STATUS, 'is not of the form {"cpuset": "0-3", …}')
    try:
        return CPUSet.parse(cpus)
    except CPUSetError as error:
        raise AnnotationError(names.ANNOTATION_RESOURCE_STATUS, f"cpuset: {error}") from None


def requests_cpu(who: Claimant) -> bool:
    """Whether NUMA resources of ``resource-status`` can be meant for the pod."""
    wanted = who.requests
    return wanted is None or any(wanted.get(name, 0) > 0 for name in (names.RESOURCE_CPU, names.RESOURCE_BATCH_CPU))


# -- devices -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """Devices of a pod by type, and why other types of the annotation do not count."""

    devices: Devices
    ignored: str = ""


def granted_devices(annotations: Mapping[str, str], who: Claimant) -> Granted:
    """Devices by ``device-allocated``, as far as the pod requests them. Raises AnnotationError for one that cannot be read."""
    found = parse_device_allocations(dict(annotations)) or {}
    good: Devices = {}
    problems: list[str] = []
    for kind, devices in found.items():
        problem = _not_requested(kind, devices, annotations, who) if devices else ""
        if problem:
            problems.append(f"not allocated: {kind}: {problem}")
        else:
            good[kind] = devices
    return Granted(good, "; ".join(problems))


def _not_requested(kind: str, devices: Sequence[PodDeviceAllocation], annotations: Mapping[str, str], who: Claimant) -> str:
    if who.requests is None:
        if who.unlisted and who.qos is not QoSClass.BE:
            return ""
        return "what the pod requests is not known"
    if kind == names.DEVICE_TYPE_GPU:
        return _gpus_beyond(devices, who.requests)
    resource = _BY_PERCENT.get(kind)
    if resource is None:
        return ""  # nothing on this node is given by other types
    wanted = who.requests.get(resource, 0)
    if wanted <= 0:
        return f"the pod requests no {resource}"
    most = _most_devices(kind, wanted, annotations, who.requests)
    return f"{len(devices)} devices, and the pod requests {most}" if most is not None and len(devices) > most else ""


def _most_devices(kind: str, wanted: int, annotations: Mapping[str, str], requests: Mapping[str, int]) -> int | None:
    """How many devices a request of percents may become; None for as many as there are."""
    most = -(-wanted // 100)
    try:
        hint = (parse_device_hints(dict(annotations)) or {}).get(kind)
        joint = parse_device_joint_allocate(dict(annotations))
    except AnnotationError:
        return most
    if hint is not None and hint.allocate_strategy == "ApplyForAll":
        return None
    if hint is not None and hint.allocate_strategy == "RequestsAsCount":
        most = max(most, wanted)
    if joint is not None and kind in joint.device_types:
        most = max(most, _cards(requests))  # one beside each card
    return most


def _cards(requests: Mapping[str, int]) -> int:
    """How many cards a pod requests (or shares of); 0 for none."""
    shared = requests.get(names.RESOURCE_GPU_SHARED, 0)
    if shared > 0:
        return shared
    ratio = max(requests.get(names.RESOURCE_GPU_MEMORY_RATIO, 0), requests.get(names.RESOURCE_GPU, 0))
    if ratio > 0:
        return -(-ratio // 100)
    whole = sum(requests.get(name, 0) for name in _VENDOR_CARDS)
    return whole or int(any(requests.get(name, 0) > 0 for name in _PART_OF_A_CARD))


def _gpus_beyond(devices: Sequence[PodDeviceAllocation], requests: Mapping[str, int]) -> str:
    cards = _cards(requests)
    if cards == 0:
        return "the pod requests no GPU"
    if len({device.minor for device in devices}) > cards:
        return f"{len(devices)} cards, and the pod requests {cards}"
    whole = requests.get(names.RESOURCE_GPU, 0)
    for name in (names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY_RATIO, names.RESOURCE_GPU_MEMORY):
        wanted = requests.get(name, 0) or (whole if name != names.RESOURCE_GPU_MEMORY else 0)
        got = sum(parse_value(device.resources.get(name, 0)) for device in devices)
        if 0 < wanted < got:
            return f"{got} of {name}, and the pod requests {wanted}"
    return ""
