"""Annotations of Nodes, NodeResourceTopologies and Devices. See ``koord.api.annotations``."""

from __future__ import annotations

from typing import Any, Final

from msgspec import field

from koord.accounting.cpuset import EMPTY, CPUSet, CPUSetError
from koord.api import names, quantity
from koord.api.annotations_core import (
    AnnotationError,
    Annotations,
    check_resource_list,
    decode_json,
    read_json,
    read_resources,
    text_of,
    to_float,
)
from koord.api.objects_meta import Projection, ResourceList

APPLY_POLICY_DEFAULT = "Default"
RATIO_TOLERANCE: Final = 0.01  # two CPU normalization ratios differ when they are further apart
NO_RATIO: Final = -1.0


class NodeReservation(Projection):
    """What of a node is kept for others. ``reserved_cpus`` overrides ``resources["cpu"]`` with its number of CPUs."""

    resources: ResourceList = {}
    reserved_cpus: str = field(default="", name="reservedCPUs")
    apply_policy: str = APPLY_POLICY_DEFAULT


class SystemQOSResource(Projection):
    """CPUs for pods of class SYSTEM."""

    cpuset: str = ""
    cpuset_exclusive: bool = True


class ThirdPartyAllocation(Projection):
    """What another scheduler uses of a node, for a priority class."""

    name: str = ""
    priority: str = ""
    resources: ResourceList = {}


class ThirdPartyAllocations(Projection):
    """What other schedulers use of a node."""

    allocations: tuple[ThirdPartyAllocation, ...] = ()


class AggregatedThresholds(Projection):
    """Thresholds over a percentile of a window."""

    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: str = ""


class UsageThresholds(Projection):
    """A node's own thresholds of load-aware scheduling, in percent by resource."""

    usage_thresholds: dict[str, int] = {}
    prod_usage_thresholds: dict[str, int] = {}
    aggregated_usage: AggregatedThresholds | None = None


class CPUInfo(Projection):
    """A logical CPU."""

    id: int = 0
    core: int = 0
    socket: int = 0
    node: int = 0


class CPUTopology(Projection):
    """The logical CPUs of a node."""

    detail: tuple[CPUInfo, ...] = ()


class PodCPUAlloc(Projection):
    """CPUs that a pod holds."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = False


class CPUSharedPool(Projection):
    """CPUs of a NUMA node that pods share."""

    socket: int = 0
    node: int = 0
    cpuset: str = ""


class CPUBasicInfo(Projection):
    """Make of the CPU."""

    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False
    cat_l3_cbm_mask: str = field(default="", name="catL3CbmMask")
    vendor_id: str = field(default="", name="vendorID")


class KubeletCPUManagerPolicy(Projection):
    """The kubelet's CPU manager."""

    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = field(default="", name="reservedCPUs")


class GPUPartition(Projection):
    """GPUs that work well together."""

    minors: tuple[int, ...] = ()
    gpu_link_type: str = field(default="", name="gpuLinkType")
    ring_bus_bandwidth: str | int | float | None = None
    allocation_score: int = 0


def _cpuset(key: str, text: str) -> CPUSet:
    try:
        return CPUSet.parse(text) if text else EMPTY
    except CPUSetError as error:
        raise AnnotationError(key, str(error)) from None


def parse_colocation_strategy(annotations: Annotations) -> dict[str, Any] | None:
    """``node.koordinator.sh/colocation-strategy``: a ColocationStrategy as given; callers ignore an error."""
    return read_json(annotations, names.ANNOTATION_NODE_COLOCATION_STRATEGY, dict[str, Any])


def parse_node_reservation(annotations: Annotations) -> NodeReservation | None:
    """``node.koordinator.sh/reservation``. A bad CPU list or quantity makes the whole annotation an error."""
    key = names.ANNOTATION_NODE_RESERVATION
    reservation = read_json(annotations, key, NodeReservation)
    if reservation is not None:
        _cpuset(key, reservation.reserved_cpus)
        check_resource_list(key, reservation.resources)
    return reservation


def node_reservation_resources(reservation: NodeReservation) -> ResourceList:
    """The ResourceList of a node reservation: as given, cpu replaced by the number of reserved CPUs if those are set."""
    resources = dict(reservation.resources)
    if reservation.reserved_cpus:
        resources["cpu"] = str(len(_cpuset(names.ANNOTATION_NODE_RESERVATION, reservation.reserved_cpus)))
    return resources


def parse_system_qos_resource(annotations: Annotations) -> SystemQOSResource | None:
    """``node.koordinator.sh/system-qos-resource``; exclusive unless it says otherwise."""
    key = names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE
    resource = read_json(annotations, key, SystemQOSResource)
    if resource is not None:
        _cpuset(key, resource.cpuset)
    return resource


def parse_network_bandwidth(annotations: Annotations) -> int | None:
    """``node.koordinator.sh/network-bandwidth`` in bits per second."""
    key = names.ANNOTATION_NODE_NETWORK_BANDWIDTH
    text = text_of(annotations, key)
    if text is None:
        return None
    try:
        return quantity.parse_value(text)
    except quantity.QuantityError as error:
        raise AnnotationError(key, str(error)) from None


def parse_cpu_normalization_ratio(annotations: Annotations) -> float:
    """``node.koordinator.sh/cpu-normalization-ratio``; -1 when absent, zero, negative or bad text is an error."""
    key = names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO
    text = text_of(annotations, key)
    if text is None:
        return NO_RATIO
    ratio = to_float(key, text)
    if ratio <= 0:
        raise AnnotationError(key, f"{text} is not above 0")
    return ratio


def ratios_differ(left: float, right: float) -> bool:
    """Whether two CPU normalization ratios differ enough to matter."""
    return abs(left - right) > RATIO_TOLERANCE


def parse_amplification_ratios(annotations: Annotations) -> dict[str, float] | None:
    """``node.koordinator.sh/resource-amplification-ratio`` by resource."""
    return read_json(annotations, names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO, dict[str, float])


def parse_raw_allocatable(annotations: Annotations) -> ResourceList | None:
    """``node.koordinator.sh/raw-allocatable``: allocatable before amplification."""
    key = names.ANNOTATION_NODE_RAW_ALLOCATABLE
    resources = read_json(annotations, key, ResourceList)
    check_resource_list(key, resources or {})
    return resources


def raw_allocatable(allocatable: ResourceList, annotations: Annotations) -> ResourceList:
    """What is allocatable of a node that is there: of what is amplified, the amount before. An annotation that cannot be read is none."""
    try:
        raw = parse_raw_allocatable(annotations) or {}
    except AnnotationError:
        return allocatable
    return {**allocatable, **{name: amount for name, amount in raw.items() if name in allocatable}}


def parse_origin_extended_allocatable(annotations: Annotations) -> ResourceList | None:
    """Resources of ``node.koordinator.sh/originExtendedAllocatable``: extended allocatable before amplification or third parties."""
    return read_resources(annotations, names.ANNOTATION_NODE_ORIGIN_EXTENDED_ALLOCATABLE)


def parse_third_party_allocations(annotations: Annotations) -> tuple[ThirdPartyAllocation, ...] | None:
    """Entries of ``node.koordinator.sh/thirdPartyAllocations``; those of one priority are to be summed."""
    key = names.ANNOTATION_NODE_THIRD_PARTY_ALLOCATIONS
    allocations = read_json(annotations, key, ThirdPartyAllocations)
    if allocations is None:
        return None
    for allocation in allocations.allocations:
        check_resource_list(key, allocation.resources)
    return allocations.allocations


def parse_usage_thresholds(annotations: Annotations) -> UsageThresholds | None:
    """``scheduling.koordinator.sh/usage-thresholds`` of a Node; callers ignore an error."""
    return read_json(annotations, names.ANNOTATION_NODE_USAGE_THRESHOLDS, UsageThresholds)


def node_penalty(annotations: Annotations) -> int:
    """Percent by which an abnormal node is trusted less (``node.koordinator.sh/abnormal``, BEY-ABN-01); what cannot be read is none."""
    try:
        found = read_json(annotations, names.ANNOTATION_NODE_ABNORMAL, dict[str, Any])
    except AnnotationError:
        return 0
    penalty = (found or {}).get("penalty")
    return penalty if isinstance(penalty, int) and not isinstance(penalty, bool) and 0 <= penalty <= 100 else 0


def parse_cpu_topology(annotations: Annotations) -> CPUTopology | None:
    """``node.koordinator.sh/cpu-topology``."""
    return read_json(annotations, names.ANNOTATION_NRT_CPU_TOPOLOGY, CPUTopology)


def parse_pod_cpu_allocs(annotations: Annotations) -> tuple[PodCPUAlloc, ...] | None:
    """``node.koordinator.sh/pod-cpu-allocs``."""
    return read_json(annotations, names.ANNOTATION_NRT_POD_CPU_ALLOCS, tuple[PodCPUAlloc, ...])


def parse_cpu_shared_pools(annotations: Annotations, *, best_effort: bool = False) -> tuple[CPUSharedPool, ...] | None:
    """``node.koordinator.sh/cpu-shared-pools``, or ``be-cpu-shared-pools``."""
    key = names.ANNOTATION_NRT_BE_CPU_SHARED_POOLS if best_effort else names.ANNOTATION_NRT_CPU_SHARED_POOLS
    return read_json(annotations, key, tuple[CPUSharedPool, ...])


def parse_cpu_basic_info(annotations: Annotations) -> CPUBasicInfo | None:
    """``node.koordinator.sh/cpu-basic-info``."""
    return read_json(annotations, names.ANNOTATION_NRT_CPU_BASIC_INFO, CPUBasicInfo)


def parse_kubelet_cpu_manager_policy(annotations: Annotations) -> KubeletCPUManagerPolicy | None:
    """``kubelet.koordinator.sh/cpu-manager-policy``."""
    return read_json(annotations, names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY, KubeletCPUManagerPolicy)


def parse_gpu_partitions(annotations: Annotations) -> dict[int, tuple[GPUPartition, ...]] | None:
    """A Device's ``scheduling.koordinator.sh/gpu-partitions`` by number of GPUs; JSON null is an error."""
    key = names.ANNOTATION_DEVICE_GPU_PARTITIONS
    text = text_of(annotations, key)
    if text is None:
        return None
    if text.strip() == "null":
        raise AnnotationError(key, "null is not a table of partitions")
    table = decode_json(key, text, dict[str, tuple[GPUPartition, ...]])
    found = {}
    for count, partitions in table.items():
        if not (count.isascii() and count.isdigit() and len(count) < 6):
            raise AnnotationError(key, f"{count[:32]!r} is not a number of GPUs")
        for partition in partitions:
            if partition.ring_bus_bandwidth is not None:
                check_resource_list(key, {"ringBusBandwidth": partition.ring_bus_bandwidth})
        found[int(count)] = partitions
    return found
