"""The table of Koordinator's keys: which are labels, which annotations, and what reads the value of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from koord.api import annotations as read
from koord.api import names, strategies
from koord.api.annotations import AnnotationError, Annotations, read_integer, read_json
from koord.api.labels import is_plain_number, parse_go_bool
from koord.api.objects_crd import ReservationOwner
from koord.api.objects_meta import ResourceList
from koord.api.priority import PriorityClass
from koord.api.qos import QoSClass
from koord.api.schema import Node, Str, Struct
from koord.api.times import parse_duration
from roles.manager.recommender.apply import ANNOTATION_APPLIED, ANNOTATION_MODE, ANNOTATION_SELECTOR, Mode

Parse = Callable[[Annotations], Any]


def _keys(prefix: str) -> dict[str, None]:
    return {value: None for name, value in vars(names).items() if name.startswith(prefix) and isinstance(value, str)}


# -- values of annotations ---------------------------------------------------------------------------------------------------------


def _one_of(key: str, *accepted: str) -> Parse:
    def parse(annotations: Annotations) -> None:
        text = (annotations or {}).get(key, "")
        if text and text not in accepted:
            raise AnnotationError(key, f"{text[:64]!r} is not known; accepted: {', '.join(accepted)}")

    return parse


def _duration(key: str) -> Parse:
    def parse(annotations: Annotations) -> None:
        try:
            seconds = parse_duration((annotations or {}).get(key, ""))
        except ValueError as error:
            raise AnnotationError(key, str(error)) from None
        if seconds <= 0:
            raise AnnotationError(key, "must be above 0")

    return parse


def _pairs(annotations: Annotations) -> None:
    key = names.ANNOTATION_REPLACE_RESOURCES
    for entry in (annotations or {}).get(key, "").split(","):
        if entry.strip() and (entry.count(":") != 1 or not entry.partition(":")[0].strip()):
            raise AnnotationError(key, f"{entry!r} is skipped; an entry is written OLD:NEW, or OLD: to erase it")


def _whole(key: str, bits: int = 32) -> Parse:
    return partial(read_integer, key=key, bits=bits)


def _json(key: str, shape: Any) -> Parse:
    return partial(read_json, key=key, target=shape)


def _resources(key: str) -> Parse:
    return partial(read.parse_quota_resources, key=key)


PARSERS: Final[dict[str, Parse]] = {
    names.ANNOTATION_EXTENDED_RESOURCE_SPEC: read.parse_extended_resource_spec,
    names.ANNOTATION_CPU_BURST: read.parse_cpu_burst,
    names.ANNOTATION_CPU_QOS: read.parse_cpu_qos,
    names.ANNOTATION_MEMORY_QOS: read.parse_memory_qos,
    names.ANNOTATION_BLKIO_QOS: read.parse_blkio_qos,
    names.ANNOTATION_NETWORK_QOS: read.parse_network_qos,
    names.ANNOTATION_RESCTRL: read.parse_resctrl,
    names.ANNOTATION_EVICTION_POLICY: _json(names.ANNOTATION_EVICTION_POLICY, tuple[str, ...]),
    names.ANNOTATION_EVICTION_PRIORITY: read.parse_eviction_priority,
    names.ANNOTATION_OOM_SCORE_ADJ: read.parse_oom_score_adj,
    names.ANNOTATION_OOM_SCORE_ADJ_SPEC: read.parse_oom_score_adj_spec,
    names.ANNOTATION_RESOURCE_SPEC: read.parse_resource_spec,
    names.ANNOTATION_RESOURCE_STATUS: read.parse_resource_status,
    names.ANNOTATION_NUMA_TOPOLOGY_SPEC: read.parse_numa_topology_spec,
    names.ANNOTATION_DEVICE_ALLOCATED: read.parse_device_allocations,
    names.ANNOTATION_DEVICE_ALLOCATE_HINT: read.parse_device_hints,
    names.ANNOTATION_DEVICE_JOINT_ALLOCATE: read.parse_device_joint_allocate,
    names.ANNOTATION_GPU_PARTITION_SPEC: read.parse_gpu_partition_spec,
    names.ANNOTATION_RESERVATION_AFFINITY: read.parse_reservation_affinity,
    names.ANNOTATION_RESERVATION_ALLOCATED: read.parse_reservation_allocated,
    names.ANNOTATION_EXACT_MATCH_RESERVATION: read.parse_exact_match_reservation,
    names.ANNOTATION_RESERVATION_OWNERS: read.parse_reservation_owners,
    names.ANNOTATION_RESERVATION_CURRENT_OWNER: read.parse_reservation_current_owner,
    names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS: read.parse_reservation_restricted_options,
    names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE: read.parse_reservation_resize_allocatable,
    names.ANNOTATION_EVICTION_COST: read.parse_eviction_cost,
    names.ANNOTATION_SOFT_EVICTION: read.parse_soft_eviction,
    names.ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS: read.parse_estimated_scaling_factors,
    names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED: _whole(names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED, 64),
    names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED: _whole(names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED, 64),
    names.ANNOTATION_SCHEDULING_HINT: read.parse_scheduling_hint,
    names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY: read.parse_pre_allocatable_priority,
    names.ANNOTATION_REPLACE_RESOURCES: _pairs,
    names.ANNOTATION_GANG_MIN_AVAILABLE: _whole(names.ANNOTATION_GANG_MIN_AVAILABLE),
    names.ANNOTATION_GANG_TOTAL_NUMBER: _whole(names.ANNOTATION_GANG_TOTAL_NUMBER),
    names.ANNOTATION_GANG_WAITING_TIME: _duration(names.ANNOTATION_GANG_WAITING_TIME),
    names.ANNOTATION_GANG_MODE: _one_of(names.ANNOTATION_GANG_MODE, names.GANG_MODE_STRICT, names.GANG_MODE_NON_STRICT),
    **{
        key: _one_of(key, names.GANG_MATCH_ONLY_WAITING, names.GANG_MATCH_WAITING_AND_RUNNING, names.GANG_MATCH_ONCE_SATISFIED)
        for key in (names.ANNOTATION_GANG_MATCH_POLICY, names.ANNOTATION_GANG_MATCH_POLICY_ALIAS)
    },
    names.ANNOTATION_GANG_GROUPS: read.parse_gang_groups,
    names.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC: read.parse_gang_network_topology_spec,
    names.ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX: read.parse_gang_network_topology_index,
    names.ANNOTATION_NODE_COLOCATION_STRATEGY: read.parse_colocation_strategy,
    names.ANNOTATION_NODE_RESERVATION: read.parse_node_reservation,
    names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE: read.parse_system_qos_resource,
    names.ANNOTATION_NODE_NETWORK_BANDWIDTH: read.parse_network_bandwidth,
    names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO: read.parse_cpu_normalization_ratio,
    names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO: read.parse_amplification_ratios,
    names.ANNOTATION_NODE_RAW_ALLOCATABLE: read.parse_raw_allocatable,
    names.ANNOTATION_NODE_ORIGIN_EXTENDED_ALLOCATABLE: read.parse_origin_extended_allocatable,
    names.ANNOTATION_NODE_THIRD_PARTY_ALLOCATIONS: read.parse_third_party_allocations,
    names.ANNOTATION_NODE_USAGE_THRESHOLDS: read.parse_usage_thresholds,
    names.ANNOTATION_NRT_CPU_TOPOLOGY: read.parse_cpu_topology,
    names.ANNOTATION_NRT_POD_CPU_ALLOCS: read.parse_pod_cpu_allocs,
    names.ANNOTATION_NRT_CPU_SHARED_POOLS: read.parse_cpu_shared_pools,
    names.ANNOTATION_NRT_CPU_BASIC_INFO: read.parse_cpu_basic_info,
    names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: read.parse_kubelet_cpu_manager_policy,
    names.ANNOTATION_DEVICE_GPU_PARTITIONS: read.parse_gpu_partitions,
    ANNOTATION_MODE: _one_of(ANNOTATION_MODE, *Mode),
    names.ANNOTATION_QUOTA_NAMESPACES: _json(names.ANNOTATION_QUOTA_NAMESPACES, tuple[str, ...]),
    names.ANNOTATION_QUOTA_RESOURCE_KEYS: read.parse_resource_keys,
    names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS: read.parse_max_strict_check_resource_keys,
    **{
        key: _resources(key)
        for key in (
            names.ANNOTATION_QUOTA_SHARED_WEIGHT, names.ANNOTATION_QUOTA_GUARANTEED, names.ANNOTATION_QUOTA_TOTAL_RESOURCE,
            names.ANNOTATION_QUOTA_UNSCHEDULABLE_RESOURCE, names.ANNOTATION_QUOTA_RUNTIME, names.ANNOTATION_QUOTA_REQUEST,
        )
    },
}  # fmt: skip

SHAPES: Final[dict[str, Any]] = {
    names.ANNOTATION_EXTENDED_RESOURCE_SPEC: read.ExtendedResourceSpec,
    names.ANNOTATION_RESCTRL: read.ResctrlConfig,
    names.ANNOTATION_RESOURCE_SPEC: read.ResourceSpec,
    names.ANNOTATION_RESOURCE_STATUS: read.ResourceStatus,
    names.ANNOTATION_NUMA_TOPOLOGY_SPEC: read.NumaTopologySpec,
    names.ANNOTATION_DEVICE_ALLOCATE_HINT: dict[str, read.DeviceHint],
    names.ANNOTATION_DEVICE_JOINT_ALLOCATE: read.DeviceJointAllocate,
    names.ANNOTATION_GPU_PARTITION_SPEC: read.GPUPartitionSpec,
    names.ANNOTATION_RESERVATION_AFFINITY: read.ReservationAffinity,
    names.ANNOTATION_EXACT_MATCH_RESERVATION: read.ResourceNames,
    names.ANNOTATION_RESERVATION_OWNERS: tuple[ReservationOwner, ...],
    names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS: read.RestrictedOptions,
    names.ANNOTATION_SOFT_EVICTION: read.SoftEviction,
    names.ANNOTATION_SCHEDULING_HINT: read.SchedulingHint,
    names.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC: read.NetworkTopologyGatherSpec,
    names.ANNOTATION_NODE_RESERVATION: read.NodeReservation,
    names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE: read.SystemQOSResource,
    names.ANNOTATION_NODE_USAGE_THRESHOLDS: read.UsageThresholds,
    names.ANNOTATION_QUOTA_SHARED_WEIGHT: ResourceList,
}
"""What the JSON of an annotation is read into: members beyond it are read by nobody."""


def _class_member(name: str, **more: Node) -> Struct:
    level = strategies.RESOURCE_QOS.fields["lsClass"]
    assert isinstance(level, Struct)
    found = level.fields[name]
    assert isinstance(found, Struct)
    return Struct(found.text, {**found.fields, **more}, found.pairs)


SCHEMAS: Final[dict[str, Struct]] = {
    names.ANNOTATION_CPU_BURST: strategies.CPU_BURST,
    names.ANNOTATION_CPU_QOS: _class_member("cpuQOS"),
    names.ANNOTATION_MEMORY_QOS: _class_member("memoryQOS", policy=Str("Which values apply.", ("default", "none", "auto"))),
    names.ANNOTATION_BLKIO_QOS: _class_member("blkioQOS"),
    names.ANNOTATION_NODE_COLOCATION_STRATEGY: strategies.COLOCATION,
}
"""Annotations that hold a strategy of slo-controller-config."""

# Where they stand is not for this table to say: the runtime proxy takes its mark from either.
_BOTH: Final = dict.fromkeys(
    (
        names.ANNOTATION_SKIP_HOOKSERVER,
        # The recommender's keys, on workloads and Recommendations; and a mark that profiles are commonly given to select by.
        ANNOTATION_SELECTOR,
        ANNOTATION_APPLIED,
        "analysis.koordinator.sh/recommendation-checkpoint",
        "koordinator.sh/enable-colocation",
    )
)
LABELS: Final[Mapping[str, None]] = {**_keys("LABEL_"), **_BOTH}
ANNOTATIONS: Final[Mapping[str, Parse | None]] = {**_keys("ANNOTATION_"), **_BOTH, **PARSERS}


# -- values of labels --------------------------------------------------------------------------------------------------------------


def _words(*accepted: str) -> Callable[[str], str]:
    """What is accepted when a value is not, else nothing."""
    return lambda text: "" if text in accepted else ", ".join(word or '""' for word in accepted)


def _number(low: int, high: int) -> Callable[[str], str]:
    def accepts(text: str) -> str:
        good = is_plain_number(text) and text.lstrip("+-").isdigit() and low <= int(text) <= high
        return "" if good else f"a whole number from {low} to {high}"

    return accepts


def _ratio(text: str) -> str:
    try:
        good = is_plain_number(text) and 0 <= float(text) < float("inf")
    except ValueError:
        good = False
    return "" if good else "a number of at least 0, such as 0.6"


def _go_bool(text: str) -> str:
    return "" if parse_go_bool(text) is not None else "true, false"


_INT32 = 2**31
_TRUTH = _words("true", "false")
LABEL_VALUES: Final[dict[str, Callable[[str], str]]] = {
    names.LABEL_POD_QOS: _words(*(str(one) for one in QoSClass)),
    names.LABEL_POD_PRIORITY_CLASS: _words(*(str(one) for one in PriorityClass)),
    names.LABEL_POD_PRIORITY: _number(-_INT32, _INT32 - 1),
    names.LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED: _number(0, _INT32 - 1),
    names.LABEL_POD_PREEMPTION_POLICY: _words(names.PREEMPTION_POLICY_NEVER, names.PREEMPTION_POLICY_LOWER),
    names.LABEL_POD_OPERATING_MODE: _words(names.OPERATING_MODE_RUNNABLE, names.OPERATING_MODE_RESERVATION),
    names.LABEL_CORE_SCHED_POLICY: _words(names.CORE_SCHED_POLICY_DEFAULT, names.CORE_SCHED_POLICY_NONE, names.CORE_SCHED_POLICY_EXCLUSIVE),
    names.LABEL_RESERVATION_ORDER: _number(-(2**63), 2**63 - 1),
    names.LABEL_NODE_CPU_BIND_POLICY: _words(
        names.NODE_CPU_BIND_NONE, names.NODE_CPU_BIND_FULL_PCPUS_ONLY, names.NODE_CPU_BIND_SPREAD_BY_PCPUS, ""
    ),
    names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: _words(
        names.NUMA_POLICY_NONE, names.NUMA_POLICY_BEST_EFFORT, names.NUMA_POLICY_RESTRICTED, names.NUMA_POLICY_SINGLE_NUMA_NODE
    ),
    names.LABEL_NODE_NUMA_ALLOCATE_STRATEGY: _words(names.NUMA_MOST_ALLOCATED, names.NUMA_LEAST_ALLOCATED, names.NUMA_DISTRIBUTE_EVENLY),
    names.LABEL_NODE_GPU_PARTITION_POLICY: _words(names.GPU_PARTITION_POLICY_HONOR, names.GPU_PARTITION_POLICY_PREFER),
    names.LABEL_NODE_CPU_NORMALIZATION_ENABLED: _go_bool,
    **dict.fromkeys(
        (
            names.LABEL_NODE_CPU_RECLAIM_RATIO, names.LABEL_NODE_MEMORY_RECLAIM_RATIO,
            names.LABEL_NODE_MID_STATIC_CPU_RESERVED_RATIO, names.LABEL_NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
        ),
        _ratio,
    ),
    **dict.fromkeys(
        (
            names.LABEL_QUOTA_IS_PARENT, names.LABEL_QUOTA_ALLOW_LENT_RESOURCE, names.LABEL_QUOTA_IS_ROOT,
            names.LABEL_QUOTA_ALLOW_FORCE_UPDATE, names.LABEL_PREEMPTIBLE, names.LABEL_POD_EVICTION_ENABLED,
        ),
        _TRUTH,
    ),
}  # fmt: skip
"""What a label's value may be; anything else would count as not set, which is hardly what was meant."""
