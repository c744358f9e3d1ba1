"""Pod annotations that the scheduler and the descheduler read or write. See ``koord.api.annotations``."""

from __future__ import annotations

from typing import Any, Final

from msgspec import field

from koord.api import names
from koord.api.annotations_core import (
    AnnotationError,
    Annotations,
    check_resource_list,
    decode_json,
    read_integer,
    read_json,
    read_resources,
    text_of,
    to_float,
)
from koord.api.deprecated import rewrite_resource_list
from koord.api.objects_crd import ReservationOwner
from koord.api.objects_meta import LabelSelector, ObjectReference, Projection, ResourceList
from koord.api.objects_pod import NodeSelectorTerm, Toleration
from koord.api.objects_slo import VirtualFunction

# Scopes of device hints, the narrowest ranked highest.
DEVICE_SCOPE_RANK: Final[dict[str, int]] = {"Device": 4, "PCIe": 3, "NUMANode": 2, "Node": 1}


class ResourceSpec(Projection):
    """How a pod wants its CPUs bound."""

    required_cpu_bind_policy: str = field(default="", name="requiredCPUBindPolicy")
    preferred_cpu_bind_policy: str = field(default="", name="preferredCPUBindPolicy")
    preferred_cpu_exclusive_policy: str = field(default="", name="preferredCPUExclusivePolicy")


class NumaNodeResource(Projection):
    """What a pod got of a NUMA node."""

    node: int = 0
    resources: ResourceList = {}


class ResourceStatus(Projection):
    """Which CPUs and NUMA resources a pod got."""

    cpuset: str = ""
    numa_node_resources: tuple[NumaNodeResource, ...] = ()


class NumaTopologySpec(Projection):
    """How a pod wants to lie on NUMA nodes; exclusive is Preferred or Required."""

    numa_topology_policy: str = ""
    single_numa_node_exclusive: str = field(default="", name="singleNUMANodeExclusive")


class DeviceAllocationExtension(Projection):
    """Details of an allocation."""

    vfs: tuple[VirtualFunction, ...] = ()
    gpu_shared_resource_template: str = ""


class PodDeviceAllocation(Projection):
    """What a pod got of a device."""

    minor: int = 0
    resources: ResourceList = {}
    id: str = ""
    extension: DeviceAllocationExtension | None = None


class DeviceHint(Projection):
    """Which devices of a type a pod wants."""

    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""


class DeviceJointAllocate(Projection):
    """Device types that a pod wants close together."""

    device_types: tuple[str, ...] = ()
    required_scope: str = ""


class GPUPartitionSpec(Projection):
    """How strictly GPU partitions are kept."""

    allocate_policy: str = "BestEffort"
    ring_bus_bandwidth: str | int | float | None = None


class ReservationAffinityTerms(Projection):
    """Terms over the labels of reservations; one must match."""

    reservation_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class ReservationAffinity(Projection):
    """Which reservation a pod must use; a name wins over selectors."""

    name: str = ""
    required: ReservationAffinityTerms | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    reservation_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class ReservationAllocated(Projection):
    """The reservation that a pod uses."""

    name: str = ""
    uid: str = ""


class ResourceNames(Projection):
    """A list of resource names."""

    resource_names: tuple[str, ...] = ()


class RestrictedOptions(Projection):
    """Resources that a Restricted reservation restricts."""

    resources: tuple[str, ...] = ()


class SoftEviction(Projection):
    """A request that a pod leave by itself."""

    timestamp: Any = None
    delete_options: dict[str, Any] | None = None
    initiator: str = ""
    reason: str = ""


class SchedulingHint(Projection):
    """Nodes that the scheduler should look at."""

    node_names: tuple[str, ...] = ()
    preferred_node_names: tuple[str, ...] = ()
    extensions: dict[str, Any] = {}


class GatherStrategy(Projection):
    """How a gang gathers in a layer of the network tree: MustGather or PreferGather."""

    layer: str = ""
    strategy: str = ""
    pod_count_multiple: int = 0


class NetworkTopologyGatherSpec(Projection):
    """How a gang gathers in the network tree."""

    gather_strategy: tuple[GatherStrategy, ...] = ()


def parse_resource_spec(annotations: Annotations) -> ResourceSpec | None:
    """``scheduling.koordinator.sh/resource-spec``."""
    return read_json(annotations, names.ANNOTATION_RESOURCE_SPEC, ResourceSpec)


def parse_resource_status(annotations: Annotations) -> ResourceStatus | None:
    """``scheduling.koordinator.sh/resource-status``."""
    status = read_json(annotations, names.ANNOTATION_RESOURCE_STATUS, ResourceStatus)
    for part in status.numa_node_resources if status else ():
        check_resource_list(names.ANNOTATION_RESOURCE_STATUS, part.resources)
    return status


def parse_numa_topology_spec(annotations: Annotations) -> NumaTopologySpec | None:
    """``scheduling.koordinator.sh/numa-topology-spec``."""
    return read_json(annotations, names.ANNOTATION_NUMA_TOPOLOGY_SPEC, NumaTopologySpec)


def parse_device_allocations(annotations: Annotations) -> dict[str, tuple[PodDeviceAllocation, ...]] | None:
    """``scheduling.koordinator.sh/device-allocated`` by device type, deprecated resource names rewritten."""
    key = names.ANNOTATION_DEVICE_ALLOCATED
    allocations = read_json(annotations, key, dict[str, tuple[PodDeviceAllocation, ...]])
    for entries in allocations.values() if allocations else ():
        for entry in entries:
            rewrite_resource_list(entry.resources)
            check_resource_list(key, entry.resources)
    return allocations


def parse_device_hints(annotations: Annotations) -> dict[str, DeviceHint] | None:
    """``scheduling.koordinator.sh/device-allocate-hint`` by device type."""
    return read_json(annotations, names.ANNOTATION_DEVICE_ALLOCATE_HINT, dict[str, DeviceHint])


def parse_device_joint_allocate(annotations: Annotations) -> DeviceJointAllocate | None:
    """``scheduling.koordinator.sh/device-joint-allocate``."""
    return read_json(annotations, names.ANNOTATION_DEVICE_JOINT_ALLOCATE, DeviceJointAllocate)


def parse_gpu_partition_spec(annotations: Annotations) -> GPUPartitionSpec | None:
    """``scheduling.koordinator.sh/gpu-partition-spec``; the policy is BestEffort when it is not given."""
    spec = read_json(annotations, names.ANNOTATION_GPU_PARTITION_SPEC, GPUPartitionSpec)
    if spec is not None and spec.ring_bus_bandwidth is not None:
        check_resource_list(names.ANNOTATION_GPU_PARTITION_SPEC, {"ringBusBandwidth": spec.ring_bus_bandwidth})
    return spec


def parse_reservation_affinity(annotations: Annotations) -> ReservationAffinity | None:
    """``scheduling.koordinator.sh/reservation-affinity``; empty text is an empty affinity."""
    key = names.ANNOTATION_RESERVATION_AFFINITY
    text = text_of(annotations, key)
    if text is None:
        return None
    return decode_json(key, text, ReservationAffinity) if text else ReservationAffinity()


def parse_reservation_allocated(annotations: Annotations) -> ReservationAllocated | None:
    """``scheduling.koordinator.sh/reservation-allocated``."""
    return read_json(annotations, names.ANNOTATION_RESERVATION_ALLOCATED, ReservationAllocated)


def parse_exact_match_reservation(annotations: Annotations) -> tuple[str, ...] | None:
    """Resource names of ``scheduling.koordinator.sh/exact-match-reservation``."""
    spec = read_json(annotations, names.ANNOTATION_EXACT_MATCH_RESERVATION, ResourceNames)
    return None if spec is None else spec.resource_names


def parse_reservation_owners(annotations: Annotations) -> tuple[ReservationOwner, ...] | None:
    """``scheduling.koordinator.sh/reservation-owners`` of a pod in Reservation mode."""
    return read_json(annotations, names.ANNOTATION_RESERVATION_OWNERS, tuple[ReservationOwner, ...])


def parse_reservation_current_owner(annotations: Annotations) -> ObjectReference | None:
    """``scheduling.koordinator.sh/reservation-current-owner`` of a pod in Reservation mode."""
    return read_json(annotations, names.ANNOTATION_RESERVATION_CURRENT_OWNER, ObjectReference)


def parse_reservation_restricted_options(annotations: Annotations) -> tuple[str, ...] | None:
    """Resource names of a Reservation's ``scheduling.koordinator.sh/reservation-restricted-options``."""
    options = read_json(annotations, names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS, RestrictedOptions)
    return None if options is None else options.resources


def parse_reservation_resize_allocatable(annotations: Annotations) -> ResourceList | None:
    """``scheduling.koordinator.sh/reservation-resize-allocatable``: what a Reservation is to hold instead of what its template asks for."""
    return read_resources(annotations, names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE)


def parse_eviction_cost(annotations: Annotations) -> int:
    """``scheduling.koordinator.sh/eviction-cost``, int32, 0 when absent. A leading ``+`` or leading zeros are errors."""
    key = names.ANNOTATION_EVICTION_COST
    text = text_of(annotations, key)
    if text is None:
        return 0
    digits = text.removeprefix("-")
    if text.startswith("+") or (digits.startswith("0") and digits != "0") or text == "-0":
        raise AnnotationError(key, f"{text[:64]!r} has a leading + or leading zeros")
    return read_integer(annotations, key, bits=32)


def parse_soft_eviction(annotations: Annotations) -> SoftEviction | None:
    """``scheduling.koordinator.sh/soft-eviction``; the text ``true`` is an eviction without details."""
    key = names.ANNOTATION_SOFT_EVICTION
    text = text_of(annotations, key)
    if text is None or text == "true":
        return None if text is None else SoftEviction()
    return decode_json(key, text, SoftEviction)


def parse_estimated_scaling_factors(annotations: Annotations) -> dict[str, int] | None:
    """``scheduling.koordinator.sh/load-estimated-scaling-factors``, percent by resource; callers take an error for None."""
    return read_json(annotations, names.ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS, dict[str, int])


def _seconds_or_unset(annotations: Annotations, key: str) -> int:
    try:
        return read_integer(annotations, key, default=-1)
    except AnnotationError:
        return -1  # said so by the contract: missing and bad are the same


def estimated_seconds_after_pod_scheduled(annotations: Annotations) -> int:
    """``…/load-estimated-seconds-after-pod-scheduled``; -1 when missing or bad."""
    return _seconds_or_unset(annotations, names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED)


def estimated_seconds_after_initialized(annotations: Annotations) -> int:
    """``…/load-estimated-seconds-after-initialized``; -1 when missing or bad."""
    return _seconds_or_unset(annotations, names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED)


def parse_scheduling_hint(annotations: Annotations) -> SchedulingHint | None:
    """``scheduling-hint`` of the internal domain, else of the old one; empty text counts as absent."""
    for key in (names.ANNOTATION_SCHEDULING_HINT, names.ANNOTATION_SCHEDULING_HINT_DEPRECATED):
        if text := text_of(annotations, key):
            return decode_json(key, text, SchedulingHint)
    return None


def parse_gang_groups(annotations: Annotations) -> tuple[str, ...] | None:
    """``gang.scheduling.koordinator.sh/groups``: ids (namespace/name) of gangs that are scheduled together."""
    return read_json(annotations, names.ANNOTATION_GANG_GROUPS, tuple[str, ...])


def parse_gang_network_topology_spec(annotations: Annotations) -> NetworkTopologyGatherSpec | None:
    """``gang.scheduling.koordinator.sh/network-topology-spec``."""
    return read_json(annotations, names.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC, NetworkTopologyGatherSpec)


def parse_gang_network_topology_index(annotations: Annotations) -> int | None:
    """``gang.scheduling.koordinator.sh/network-topology-index``."""
    key = names.ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX
    return None if text_of(annotations, key) is None else read_integer(annotations, key)


def parse_replace_resources(annotations: Annotations) -> dict[str, str]:
    """``pod.koordinator.sh/replace-resources``: ``a:b,c:`` renames a to b and erases c (""). Other entries are skipped."""
    text = text_of(annotations, names.ANNOTATION_REPLACE_RESOURCES) or ""
    pairs = (entry.split(":") for entry in text.split(","))
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0].strip()}


def parse_pre_allocatable_priority(annotations: Annotations) -> float:
    """``pod.koordinator.sh/pre-allocatable-priority``, higher first; 0 when absent."""
    key = names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY
    text = text_of(annotations, key)
    if not text:
        return 0.0
    return to_float(key, text)
