"""Annotations: what is read, what counts as absent, what is refused."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.resources import parse
from koord.api import annotations as a
from koord.api import names

JSON_PARSERS: list[tuple[Callable[..., Any], str]] = [
    (a.parse_extended_resource_spec, names.ANNOTATION_EXTENDED_RESOURCE_SPEC),
    (a.parse_resource_spec, names.ANNOTATION_RESOURCE_SPEC),
    (a.parse_resource_status, names.ANNOTATION_RESOURCE_STATUS),
    (a.parse_numa_topology_spec, names.ANNOTATION_NUMA_TOPOLOGY_SPEC),
    (a.parse_device_allocations, names.ANNOTATION_DEVICE_ALLOCATED),
    (a.parse_device_hints, names.ANNOTATION_DEVICE_ALLOCATE_HINT),
    (a.parse_device_joint_allocate, names.ANNOTATION_DEVICE_JOINT_ALLOCATE),
    (a.parse_gpu_partition_spec, names.ANNOTATION_GPU_PARTITION_SPEC),
    (a.parse_reservation_affinity, names.ANNOTATION_RESERVATION_AFFINITY),
    (a.parse_reservation_allocated, names.ANNOTATION_RESERVATION_ALLOCATED),
    (a.parse_exact_match_reservation, names.ANNOTATION_EXACT_MATCH_RESERVATION),
    (a.parse_reservation_owners, names.ANNOTATION_RESERVATION_OWNERS),
    (a.parse_reservation_current_owner, names.ANNOTATION_RESERVATION_CURRENT_OWNER),
    (a.parse_reservation_restricted_options, names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS),
    (a.parse_reservation_resize_allocatable, names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE),
    (a.parse_soft_eviction, names.ANNOTATION_SOFT_EVICTION),
    (a.parse_estimated_scaling_factors, names.ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS),
    (a.parse_scheduling_hint, names.ANNOTATION_SCHEDULING_HINT),
    (a.parse_gang_groups, names.ANNOTATION_GANG_GROUPS),
    (a.parse_gang_network_topology_spec, names.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC),
    (a.parse_cpu_burst, names.ANNOTATION_CPU_BURST),
    (a.parse_cpu_qos, names.ANNOTATION_CPU_QOS),
    (a.parse_memory_qos, names.ANNOTATION_MEMORY_QOS),
    (a.parse_blkio_qos, names.ANNOTATION_BLKIO_QOS),
    (a.parse_network_qos, names.ANNOTATION_NETWORK_QOS),
    (a.parse_resctrl, names.ANNOTATION_RESCTRL),
    (a.parse_oom_score_adj_spec, names.ANNOTATION_OOM_SCORE_ADJ_SPEC),
    (a.parse_colocation_strategy, names.ANNOTATION_NODE_COLOCATION_STRATEGY),
    (a.parse_node_reservation, names.ANNOTATION_NODE_RESERVATION),
    (a.parse_system_qos_resource, names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE),
    (a.parse_amplification_ratios, names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO),
    (a.parse_raw_allocatable, names.ANNOTATION_NODE_RAW_ALLOCATABLE),
    (a.parse_origin_extended_allocatable, names.ANNOTATION_NODE_ORIGIN_EXTENDED_ALLOCATABLE),
    (a.parse_third_party_allocations, names.ANNOTATION_NODE_THIRD_PARTY_ALLOCATIONS),
    (a.parse_usage_thresholds, names.ANNOTATION_NODE_USAGE_THRESHOLDS),
    (a.parse_cpu_topology, names.ANNOTATION_NRT_CPU_TOPOLOGY),
    (a.parse_pod_cpu_allocs, names.ANNOTATION_NRT_POD_CPU_ALLOCS),
    (a.parse_cpu_shared_pools, names.ANNOTATION_NRT_CPU_SHARED_POOLS),
    (a.parse_cpu_basic_info, names.ANNOTATION_NRT_CPU_BASIC_INFO),
    (a.parse_kubelet_cpu_manager_policy, names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY),
    (a.parse_gpu_partitions, names.ANNOTATION_DEVICE_GPU_PARTITIONS),
    (a.parse_resource_keys, names.ANNOTATION_QUOTA_RESOURCE_KEYS),
    (a.parse_max_strict_check_resource_keys, names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS),
]
OTHERS = {
    "parse_eviction_cost", "parse_gang_network_topology_index", "parse_replace_resources", "parse_pre_allocatable_priority",
    "parse_eviction_policies", "parse_eviction_priority", "parse_oom_score_adj", "parse_network_bandwidth",
    "parse_cpu_normalization_ratio", "parse_quota_resources",
}  # fmt: skip
IDS = [parser.__name__ for parser, _ in JSON_PARSERS]


def test_every_parser_is_tested_here() -> None:
    known = {name for name, _ in inspect.getmembers(a, inspect.isfunction) if name.startswith("parse_")}
    assert known == {*IDS, *OTHERS}


@pytest.mark.feature("API-ANN-01")
@pytest.mark.parametrize(("parse_it", "key"), JSON_PARSERS, ids=IDS)
def test_missing_is_none_and_bad_is_an_error(parse_it: Callable[..., Any], key: str) -> None:
    assert parse_it(None) is None
    assert parse_it({}) is None
    assert parse_it({"another": "x"}) is None
    for bad in ("{", "5", '"text"', "{]", "\x00"):
        with pytest.raises(a.AnnotationError) as caught:
            parse_it({key: bad})
        assert caught.value.key == key
        assert key in str(caught.value)
        assert caught.value.detail


json_text = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["resources", "detail", "allocations", "gpu", "1", "cpuset", "minors", "policy", "llc", "cpu"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
).map(json.dumps) | st.text(max_size=10)


@pytest.mark.parametrize(("parse_it", "key"), JSON_PARSERS, ids=IDS)
@given(text=json_text)
def test_no_text_crashes_a_parser(parse_it: Callable[..., Any], key: str, text: str) -> None:
    with contextlib.suppress(a.AnnotationError):
        parse_it({key: text})


def test_null_is_empty() -> None:
    assert a.parse_resource_spec({names.ANNOTATION_RESOURCE_SPEC: "null"}) == a.ResourceSpec()
    assert a.parse_gang_groups({names.ANNOTATION_GANG_GROUPS: " null "}) == ()
    assert a.parse_device_allocations({names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":null}'}) == {}
    with pytest.raises(a.AnnotationError, match="null"):
        a.parse_gpu_partitions({names.ANNOTATION_DEVICE_GPU_PARTITIONS: "null"})


@pytest.mark.feature("API-ANN-01")
def test_scheduling_annotations() -> None:
    spec = a.parse_resource_spec(
        {names.ANNOTATION_RESOURCE_SPEC: '{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUExclusivePolicy":"PCPULevel","x":1}'}
    )
    assert spec == a.ResourceSpec(required_cpu_bind_policy="FullPCPUs", preferred_cpu_exclusive_policy="PCPULevel")
    status = a.parse_resource_status(
        {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-3","numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}'}
    )
    assert status is not None
    assert (status.cpuset, status.numa_node_resources[0].node) == ("0-3", 1)
    extension = '{"vfs":[{"minor":2,"busID":"0000:00"}],"gpuSharedResourceTemplate":"t"}'
    text = f'{{"gpu":[{{"minor":1,"id":"GPU-1","resources":{{"kubernetes.io/gpu-core":"50"}},"extension":{extension}}}]}}'
    allocations = a.parse_device_allocations({names.ANNOTATION_DEVICE_ALLOCATED: text})
    assert allocations is not None
    (gpu,) = allocations["gpu"]
    assert (gpu.minor, gpu.id, gpu.resources) == (1, "GPU-1", {"koordinator.sh/gpu-core": "50"})
    assert gpu.extension is not None
    assert (gpu.extension.vfs[0].bus_id, gpu.extension.gpu_shared_resource_template) == ("0000:00", "t")
    hints = a.parse_device_hints({names.ANNOTATION_DEVICE_ALLOCATE_HINT: '{"rdma":{"vfSelector":{},"requiredTopologyScope":"PCIe"}}'})
    assert hints is not None
    assert hints["rdma"].vf_selector is not None
    assert hints["rdma"].selector is None
    assert a.DEVICE_SCOPE_RANK[hints["rdma"].required_topology_scope] == 3
    assert a.parse_gpu_partition_spec({names.ANNOTATION_GPU_PARTITION_SPEC: "{}"}) == a.GPUPartitionSpec(allocate_policy="BestEffort")
    assert a.parse_reservation_affinity({names.ANNOTATION_RESERVATION_AFFINITY: ""}) == a.ReservationAffinity()
    affinity = a.parse_reservation_affinity(
        {
            names.ANNOTATION_RESERVATION_AFFINITY: '{"requiredDuringSchedulingIgnoredDuringExecution":'
            '{"reservationSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}}'
        }
    )
    assert affinity is not None
    assert affinity.required is not None
    assert affinity.required.reservation_selector_terms[0].match_expressions[0].key == "a"
    assert a.parse_exact_match_reservation({names.ANNOTATION_EXACT_MATCH_RESERVATION: '{"resourceNames":["cpu"]}'}) == ("cpu",)
    partitions = a.parse_gpu_partitions(
        {
            names.ANNOTATION_DEVICE_GPU_PARTITIONS: '{"2":[{"minors":[0,1],"gpuLinkType":"NVLink",'
            '"ringBusBandwidth":"400Gi","allocationScore":3}]}'
        }
    )
    assert partitions is not None
    assert (partitions[2][0].minors, partitions[2][0].gpu_link_type, partitions[2][0].allocation_score) == ((0, 1), "NVLink", 3)


def test_scheduling_hints_new_key_wins_and_empty_text_is_absent() -> None:
    new, old = names.ANNOTATION_SCHEDULING_HINT, names.ANNOTATION_SCHEDULING_HINT_DEPRECATED
    both = a.parse_scheduling_hint({new: '{"nodeNames":["a"]}', old: '{"nodeNames":["b"]}'})
    assert both is not None
    assert both.node_names == ("a",)
    only_old = a.parse_scheduling_hint({new: "", old: '{"preferredNodeNames":["b"]}'})
    assert only_old is not None
    assert only_old.preferred_node_names == ("b",)
    assert a.parse_scheduling_hint({new: "", old: ""}) is None


@pytest.mark.feature("API-ANN-01")
@pytest.mark.parametrize(("text", "wanted"), [("0", 0), ("5", 5), ("-5", -5), ("2147483647", (1 << 31) - 1)])
def test_eviction_cost(text: str, wanted: int) -> None:
    assert a.parse_eviction_cost({names.ANNOTATION_EVICTION_COST: text}) == wanted


@pytest.mark.parametrize("text", ["+5", "05", "-05", "00", "-0", "", "x", "1.5", "2147483648", "1_0", " 1"])
def test_bad_eviction_cost(text: str) -> None:
    with pytest.raises(a.AnnotationError):
        a.parse_eviction_cost({names.ANNOTATION_EVICTION_COST: text})
    assert a.parse_eviction_cost(None) == 0


@pytest.mark.feature("API-ANN-01")
def test_agent_annotations() -> None:
    assert a.parse_network_qos({names.ANNOTATION_NETWORK_QOS: '{"ingressLimit":"10M","egressLimit":"1Gi"}'}) == a.NetworkQOS(
        ingress_limit=10_000_000, egress_limit=1 << 30
    )
    assert a.parse_cpu_qos({names.ANNOTATION_CPU_QOS: '{"groupIdentity":-1,"enable":null}'}) == {"groupIdentity": -1}
    for bad in ('{"groupIdentity":3}', '{"groupIdentity":-2}', '{"groupIdentity":"1"}', '{"groupIdentity":true}', '{"coreExpeller":1}'):
        with pytest.raises(a.AnnotationError, match=r"groupIdentity|coreExpeller"):
            a.parse_cpu_qos({names.ANNOTATION_CPU_QOS: bad})
    with pytest.raises(a.AnnotationError, match="blocks"):
        a.parse_blkio_qos({names.ANNOTATION_BLKIO_QOS: '{"blocks":[1]}'})
    assert a.parse_memory_qos({names.ANNOTATION_MEMORY_QOS: '{"policy":"auto","lowLimitPercent":50}'}) == {
        "policy": "auto",
        "lowLimitPercent": 50,
    }
    resctrl = a.parse_resctrl(
        {names.ANNOTATION_RESCTRL: '{"llc":{"schemata":{"range":[0,30]},"schemataPerCache":[{"cacheID":1,"percent":5}]},"mb":{}}'}
    )
    assert resctrl is not None
    assert resctrl.llc is not None
    assert resctrl.llc.schemata is not None
    assert resctrl.llc.schemata.range == (0, 30)
    assert (resctrl.llc.schemata_per_cache[0].cache_id, resctrl.llc.schemata_per_cache[0].percent) == (1, 5)
    assert a.parse_eviction_priority({names.ANNOTATION_EVICTION_PRIORITY: "+5"}) == 5
    assert a.parse_eviction_policies({}) is None
    assert a.parse_eviction_policies({names.ANNOTATION_EVICTION_POLICY: '["evictByAllocatable"]'}) == {"evictByAllocatable"}
    assert a.parse_eviction_policies({names.ANNOTATION_EVICTION_POLICY: "x"}) == frozenset()
    assert a.parse_oom_score_adj({names.ANNOTATION_OOM_SCORE_ADJ: "-1000"}) == -1000
    assert a.parse_oom_score_adj_spec({names.ANNOTATION_OOM_SCORE_ADJ_SPEC: '{"c":1000}'}) == {"c": 1000}
    for key, bad in ((names.ANNOTATION_OOM_SCORE_ADJ, "1001"), (names.ANNOTATION_OOM_SCORE_ADJ, "x")):
        with pytest.raises(a.AnnotationError):
            a.parse_oom_score_adj({key: bad})
    with pytest.raises(a.AnnotationError, match="c: -1001"):
        a.parse_oom_score_adj_spec({names.ANNOTATION_OOM_SCORE_ADJ_SPEC: '{"c":-1001}'})


def test_raw_allocatable_counts_where_it_can_be_read() -> None:
    shown = {"cpu": "28", "memory": "16Gi", "pods": "110"}
    assert a.raw_allocatable(shown, {}) == shown
    raw = {names.ANNOTATION_NODE_RAW_ALLOCATABLE: '{"cpu":"14","gone":"1"}'}
    assert a.raw_allocatable(shown, raw) == {**shown, "cpu": "14"}, "what is not offered is not there"
    for bad in ("rubbish", '{"cpu":"lots"}', "[]", "null", ""):
        assert a.raw_allocatable(shown, {names.ANNOTATION_NODE_RAW_ALLOCATABLE: bad}) == shown


def test_resource_quantities_are_checked() -> None:
    for parse_it, key, text in (
        (a.parse_raw_allocatable, names.ANNOTATION_NODE_RAW_ALLOCATABLE, '{"cpu":"lots"}'),
        (a.parse_extended_resource_spec, names.ANNOTATION_EXTENDED_RESOURCE_SPEC, '{"containers":{"a":{"limits":{"cpu":"lots"}}}}'),
        (a.parse_node_reservation, names.ANNOTATION_NODE_RESERVATION, '{"resources":{"cpu":"lots"}}'),
        (a.parse_device_allocations, names.ANNOTATION_DEVICE_ALLOCATED, '{"gpu":[{"resources":{"x":"lots"}}]}'),
    ):
        with pytest.raises(a.AnnotationError, match="lots"):
            parse_it({key: text})


@pytest.mark.feature("API-ANN-01")
def test_node_annotations() -> None:
    reservation = a.parse_node_reservation(
        {names.ANNOTATION_NODE_RESERVATION: '{"resources":{"cpu":"10","memory":"1Gi"},"reservedCPUs":"0-5"}'}
    )
    assert reservation is not None
    assert reservation.apply_policy == "Default"
    assert parse(a.node_reservation_resources(reservation)) == {"cpu": 6000, "memory": 1 << 30}
    assert parse(a.node_reservation_resources(a.NodeReservation(resources={"cpu": "1500m"}))) == {"cpu": 1500}
    with pytest.raises(a.AnnotationError, match="CPU list"):
        a.parse_node_reservation({names.ANNOTATION_NODE_RESERVATION: '{"reservedCPUs":"5-0"}'})
    system = a.parse_system_qos_resource({names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE: '{"cpuset":"0-1"}'})
    assert system is not None
    assert system.cpuset_exclusive
    topology = a.parse_cpu_topology({names.ANNOTATION_NRT_CPU_TOPOLOGY: '{"detail":[{"id":3,"core":1,"socket":0,"node":0}]}'})
    assert topology is not None
    assert topology.detail[0].id == 3
    pools = a.parse_cpu_shared_pools({names.ANNOTATION_NRT_BE_CPU_SHARED_POOLS: '[{"socket":0,"node":1,"cpuset":"0-3"}]'}, best_effort=True)
    assert pools is not None
    assert pools[0].node == 1
    policy = a.parse_kubelet_cpu_manager_policy({names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: '{"policy":"static","reservedCPUs":"0"}'})
    assert policy is not None
    assert policy.reserved_cpus == "0"
    info = a.parse_cpu_basic_info({names.ANNOTATION_NRT_CPU_BASIC_INFO: '{"catL3CbmMask":"ff","vendorID":"x","hyperThreadEnabled":true}'})
    assert info is not None
    assert (info.cat_l3_cbm_mask, info.vendor_id, info.hyper_thread_enabled) == ("ff", "x", True)
    assert a.parse_network_bandwidth({names.ANNOTATION_NODE_NETWORK_BANDWIDTH: "10G"}) == 10**10
    assert a.parse_network_bandwidth({}) is None


@pytest.mark.feature("API-AMP-01")
def test_ratios_with_two_decimals_are_read() -> None:
    text = '{"cpu":1.50,"memory":1.20}'
    assert a.parse_amplification_ratios({names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO: text}) == {"cpu": 1.5, "memory": 1.2}
    key = names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO
    assert a.parse_cpu_normalization_ratio({}) == -1
    assert a.parse_cpu_normalization_ratio({key: "1.20"}) == 1.2
    for bad in ("0", "-1", "x", "NaN", "", " 1", "1_0", "१"):
        with pytest.raises(a.AnnotationError):
            a.parse_cpu_normalization_ratio({key: bad})
    assert a.ratios_differ(1.0, 1.02)
    assert not a.ratios_differ(1.0, 1.005)


def test_texts_that_are_lists() -> None:
    key = names.ANNOTATION_REPLACE_RESOURCES
    assert a.parse_replace_resources({key: "a:b,c:d,e:,x,y:z:w,:q"}) == {"a": "b", "c": "d", "e": ""}
    assert a.parse_replace_resources(None) == {}
    assert a.parse_pre_allocatable_priority({names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY: "1.5"}) == 1.5
    assert a.parse_pre_allocatable_priority({}) == 0
    for bad in ("x", "nan", "inf"):
        with pytest.raises(a.AnnotationError):
            a.parse_pre_allocatable_priority({names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY: bad})
    assert a.parse_gang_network_topology_index({}) is None
    assert a.parse_gang_network_topology_index({names.ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX: "3"}) == 3
    assert a.parse_soft_eviction({names.ANNOTATION_SOFT_EVICTION: "true"}) == a.SoftEviction()


def test_estimation_windows_are_unset_when_bad() -> None:
    key = names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED
    for read in ({}, {key: "x"}, {key: "1.5"}):
        assert a.estimated_seconds_after_pod_scheduled(read) == -1
    assert a.estimated_seconds_after_pod_scheduled({key: "30"}) == 30
    assert a.estimated_seconds_after_initialized({names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED: "0"}) == 0


@pytest.mark.feature("API-ANN-01")
def test_quota_annotations() -> None:
    maximum = {"cpu": "10"}
    key = names.ANNOTATION_QUOTA_SHARED_WEIGHT
    assert a.shared_weight({key: '{"cpu":"5"}'}, maximum) == {"cpu": "5"}
    for bad in ("{", '{"cpu":"0"}', "{}", '{"cpu":"x"}', "null"):
        assert a.shared_weight({key: bad}, maximum) is maximum
    assert a.shared_weight(None, maximum) is maximum
    assert a.parse_quota_resources({names.ANNOTATION_QUOTA_ADMISSION: '{"kubernetes.io/gpu":"1"}'}, names.ANNOTATION_QUOTA_ADMISSION) == {
        "koordinator.sh/gpu": "1"
    }
    assert a.quota_namespaces({names.ANNOTATION_QUOTA_NAMESPACES: '["a","b"]'}) == ("a", "b")
    assert a.quota_namespaces({names.ANNOTATION_QUOTA_NAMESPACES: "a"}) == ()
    with pytest.raises(a.AnnotationError):
        a.parse_max_strict_check_resource_keys({names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS: "cpu"})


@pytest.mark.feature("BEY-ABN-01")
@pytest.mark.parametrize(
    ("text", "penalty"),
    [(None, 0), ('{"penalty": 40, "reasons": []}', 40), ('{"penalty": 140}', 0), ('{"penalty": true}', 0), ("{", 0), ("[]", 0), ("{}", 0)],
)
def test_what_an_abnormal_node_is_trusted_less(text: str | None, penalty: int) -> None:
    assert a.node_penalty({} if text is None else {names.ANNOTATION_NODE_ABNORMAL: text}) == penalty
