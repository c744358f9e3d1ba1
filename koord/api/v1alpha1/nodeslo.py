"""NodeSLO: the QoS strategies of a node (API-NSLO-01). Defaults are in ``koord.api.nodeslo_defaults``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import (
    AGE,
    AnyObject,
    Column,
    Empty,
    Int32,
    Int64,
    IntOrString,
    Model,
    Percent,
    Quantity,
    Resource,
)

NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class ResourceThresholdStrategy(Model):
    """When best-effort pods are suppressed or evicted."""

    enable: bool | None = Field(None, description="Whether the strategy is on (default false).")
    cpu_suppress_threshold_percent: Percent | None = Field(None, description="CPU usage of the node above which BE is suppressed (65).")
    cpu_suppress_min_percent: Percent | None = Field(None, description="CPU that BE keeps at least, in percent of the node.")
    cpu_suppress_policy: str | None = Field(None, description="How BE is suppressed: cpuset (default) or cfsQuota.")
    memory_evict_threshold_percent: Percent | None = Field(None, description="Memory usage of the node above which BE is evicted (70).")
    memory_evict_lower_percent: Percent | None = Field(None, description="Memory usage down to which BE is evicted (threshold - 2).")
    memory_allocatable_evict_threshold_percent: NonNegative | None = Field(
        None, description="Memory requests, in percent of allocatable, above which pods are evicted (110)."
    )
    memory_allocatable_evict_lower_percent: NonNegative | None = Field(
        None, description="Memory requests, in percent of allocatable, down to which pods are evicted (100)."
    )
    cpu_evict_be_satisfaction_upper_percent: Int64 | None = Field(
        None, description="CPU satisfaction of BE up to which eviction goes on once begun."
    )
    cpu_evict_be_satisfaction_lower_percent: Int64 | None = Field(None, description="CPU satisfaction of BE below which BE is evicted.")
    cpu_evict_be_usage_threshold_percent: Int64 | None = Field(
        None, description="CPU usage of BE, in percent of its limit, that it must have to be evicted."
    )
    cpu_evict_time_window_seconds: Int64 | None = Field(None, description="Window in seconds over which CPU satisfaction is averaged.")
    cpu_evict_threshold_percent: Percent | None = Field(None, description="CPU usage of the node above which pods are evicted.")
    cpu_evict_lower_percent: Percent | None = Field(None, description="CPU usage of the node down to which pods are evicted.")
    cpu_allocatable_evict_threshold_percent: NonNegative | None = Field(
        None, description="CPU requests, in percent of allocatable, above which pods are evicted."
    )
    cpu_allocatable_evict_lower_percent: NonNegative | None = Field(
        None, description="CPU requests, in percent of allocatable, down to which pods are evicted."
    )
    cpu_evict_policy: str | None = Field(
        None, description="What satisfaction is measured by: evictByRealLimit (default) or evictByAllocatable."
    )
    evict_enabled_priority_threshold: Int32 | None = Field(None, description="Only pods of at most this priority are evicted for usage.")
    allocatable_evict_priority_threshold: Int32 | None = Field(
        None, description="Only pods of at most this priority are evicted for requests."
    )


class CPUBurstStrategy(Model):
    """How latency-sensitive pods may exceed their CPU limit for moments."""

    policy: str | None = Field(None, description="none (default), cpuBurstOnly, cfsQuotaBurstOnly or auto.")
    cpu_burst_percent: Annotated[int, Field(ge=0, le=10000)] | None = Field(
        None, description="Size of cpu.cfs_burst_us in percent of the limit (1000)."
    )
    cfs_quota_burst_percent: Int64 | None = Field(None, description="Quota that a container may grow to, in percent of its limit (300).")
    cfs_quota_burst_period_seconds: Int64 | None = Field(
        None, description="Seconds that a grown quota may be used; -1 (default) is without end."
    )
    share_pool_threshold_percent: Int64 | None = Field(None, description="CPU usage of the share pool above which nothing grows (50).")


class SystemStrategy(Model):
    """Settings of the node itself."""

    min_free_kbytes_factor: Int64 | None = Field(None, description="vm.min_free_kbytes, in ten-thousandths of the memory.")
    watermark_scale_factor: Int64 | None = Field(None, description="vm.watermark_scale_factor.")
    memcg_reap_back_ground: Int64 | None = Field(None, description="Whether dead memory cgroups are reaped (0 or 1).")
    sched_group_identity_enabled: Int64 | None = Field(None, description="kernel.sched_group_identity_enabled (0 or 1).")
    sched_idle_saver_wmark: Int64 | None = Field(None, description="kernel.sched_idle_saver_wmark in nanoseconds.")
    sched_features: dict[str, bool] | None = Field(None, description="Scheduler features to switch on or off, by name.")
    page_cache_limit_enabled: Int64 | None = Field(None, description="Whether page-cache limits are on (0 or 1).")
    total_network_bandwidth: Quantity | None = Field(None, description="Bandwidth of the node in bits per second (0 is unknown).")


class CPUQOS(Model):
    """CPU quality of a class."""

    enable: bool | None = Field(None, description="Whether it is applied.")
    group_identity: Int64 | None = Field(None, description="cpu.bvt_warp_ns: -1, 0, 1 or 2.")
    sched_idle: Int64 | None = Field(None, description="cpu.idle: 0 or 1.")
    core_expeller: bool | None = Field(None, description="Whether siblings of a core are kept free of best effort.")


class MemoryQOS(Model):
    """Memory quality of a class."""

    enable: bool | None = Field(None, description="Whether it is applied.")
    min_limit_percent: NonNegative | None = Field(None, description="memory.min in percent of the request.")
    low_limit_percent: NonNegative | None = Field(None, description="memory.low in percent of the request.")
    throttling_percent: NonNegative | None = Field(None, description="memory.high in percent of the limit; 0 is off.")
    wmark_ratio: Percent | None = Field(
        None, description="memory.wmark_ratio: usage in percent of the limit that starts background reclaim."
    )
    wmark_scale_permill: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="memory.wmark_scale_factor: distance between high and low watermark in thousandths."
    )
    wmark_min_adj: Annotated[int, Field(ge=-25, le=50)] | None = Field(
        None, description="memory.wmark_min_adj: how early the class is throttled by the global watermark."
    )
    priority_enable: Int64 | None = Field(None, description="Whether the class has an OOM priority (0 or 1).")
    priority: Int64 | None = Field(None, description="OOM priority, 0 (first) to 12 (last).")
    oom_kill_group: Int64 | None = Field(None, description="Whether an OOM kill takes the whole group (0 or 1).")
    page_cache_enable: bool | None = Field(None, description="Whether page cache is limited.")
    page_cache_limit_size: Int64 | None = Field(None, description="Page-cache limit in bytes; wins over the percentage.")
    page_cache_limit_percent: Percent | None = Field(None, description="Page-cache limit in percent of the memory limit.")
    page_cache_reclaim_sync: bool | None = Field(None, description="Whether page cache is reclaimed synchronously.")


class IOCfg(Model):
    """Limits and weights of a block device."""

    read_iops: NonNegative | None = Field(None, description="Reads per second; 0 is without limit.")
    write_iops: NonNegative | None = Field(None, description="Writes per second; 0 is without limit.")
    read_bps: NonNegative | None = Field(None, description="Bytes read per second; 0 is without limit.")
    write_bps: NonNegative | None = Field(None, description="Bytes written per second; 0 is without limit.")
    io_weight_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(100, description="Weight of the class.")
    read_latency: Int64 | None = Field(None, description="Wanted read latency in microseconds.")
    write_latency: Int64 | None = Field(None, description="Wanted write latency in microseconds.")
    read_latency_percent: Percent | None = Field(None, description="Percentile of reads that the latency is about.")
    write_latency_percent: Percent | None = Field(None, description="Percentile of writes that the latency is about.")
    enable_user_model: bool | None = Field(None, description="Whether the device model below is used.")
    model_read_bps: Positive | None = Field(None, description="Bytes that the device reads per second.")
    model_write_bps: Positive | None = Field(None, description="Bytes that the device writes per second.")
    model_read_seq_iops: Positive | None = Field(None, description="Sequential reads per second of the device.")
    model_write_seq_iops: Positive | None = Field(None, description="Sequential writes per second of the device.")
    model_read_rand_iops: Positive | None = Field(None, description="Random reads per second of the device.")
    model_write_rand_iops: Positive | None = Field(None, description="Random writes per second of the device.")


class BlockCfg(Model):
    """A block device with its limits."""

    name: str | None = Field(None, description="Name of the device, volume group or volume.")
    type: str | None = Field(None, description="device, volumegroup or podvolume.")
    io_cfg: IOCfg | None = Field(None, description="Limits and weights.")


class BlkIOQOS(Model):
    """Disk quality of a class."""

    enable: bool | None = Field(None, description="Whether it is applied.")
    blocks: list[BlockCfg] | None = Field(None, description="The devices.")


class ResctrlQOS(Model):
    """Cache and memory-bandwidth quality of a class."""

    enable: bool | None = Field(None, description="Whether it is applied.")
    cat_range_start_percent: Percent | None = Field(None, description="Where the class's part of the last-level cache starts.")
    cat_range_end_percent: Percent | None = Field(None, description="Where it ends.")
    mba_percent: Percent | None = Field(None, description="Memory bandwidth of the class.")


class NetworkQOS(Model):
    """Network quality of a class. An integer is a percentage of the node's bandwidth, text a quantity in bits per second."""

    enable: bool | None = Field(None, description="Whether it is applied.")
    ingress_request: IntOrString | None = Field(0, description="Guaranteed inbound bandwidth.")
    ingress_limit: IntOrString | None = Field(100, description="Largest inbound bandwidth.")
    egress_request: IntOrString | None = Field(0, description="Guaranteed outbound bandwidth.")
    egress_limit: IntOrString | None = Field(100, description="Largest outbound bandwidth.")


class ResourceQOS(Model):
    """Quality of a class."""

    cpu_qos: CPUQOS | None = Field(None, description="CPU.")
    memory_qos: MemoryQOS | None = Field(None, description="Memory.")
    blkio_qos: BlkIOQOS | None = Field(None, description="Disks.")
    resctrl_qos: ResctrlQOS | None = Field(None, description="Cache and memory bandwidth.")
    network_qos: NetworkQOS | None = Field(None, description="Network.")


class ResourceQOSPolicies(Model):
    """Which mechanism is used."""

    cpu_policy: str | None = Field(None, description="groupIdentity (default) or coreSched.")
    net_qos_policy: str | None = Field(None, description="tc (default) or terway-qos.")


class ResourceQOSStrategy(Model):
    """Quality by class."""

    policies: ResourceQOSPolicies | None = Field(None, description="Which mechanisms are used.")
    lsr_class: ResourceQOS | None = Field(None, description="Pods of class LSR.")
    ls_class: ResourceQOS | None = Field(None, description="Pods of class LS.")
    be_class: ResourceQOS | None = Field(None, description="Pods of class BE.")
    system_class: ResourceQOS | None = Field(None, description="Pods of class SYSTEM.")
    cgroup_root: ResourceQOS | None = Field(None, description="The root cgroup.")


class CgroupPath(Model):
    """Where a cgroup is."""

    base: str | None = Field(None, description="CgroupRoot, Kubepods, KubepodsBurstable or KubepodsBesteffort.")
    parent_dir: str | None = Field(None, description="Directory below the base.")
    relative_path: str | None = Field(None, description="Directory below that.")


class HostApplicationSpec(Model):
    """An application that runs outside of pods."""

    name: str | None = Field(None, description="Name of the application.")
    priority: str | None = Field(None, description="Priority class of the application.")
    qos: str | None = Field(None, description="QoS class of the application.")
    cgroup_path: CgroupPath | None = Field(None, description="Its cgroup.")
    strategy: Empty | None = Field(None, description="Empty.")


class NodeSLOSpec(Model):
    """The strategies of the node."""

    resource_used_threshold_with_be: ResourceThresholdStrategy | None = Field(
        None, description="When best-effort pods are suppressed or evicted."
    )
    resource_qos_strategy: ResourceQOSStrategy | None = Field(None, description="Quality by class.")
    cpu_burst_strategy: CPUBurstStrategy | None = Field(None, description="Bursts above the CPU limit.")
    system_strategy: SystemStrategy | None = Field(None, description="Settings of the node itself.")
    host_applications: list[HostApplicationSpec] | None = Field(None, description="Applications that run outside of pods.")
    extensions: AnyObject | None = Field(None, description="Further strategies, free in form.")


class NodeSLO(Resource):
    """The QoS strategies of a node, made by the manager from slo-controller-config."""

    resource: ClassVar[kinds.Kind] = kinds.NODESLOS
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Suppression", ".spec.resourceUsedThresholdWithBE.enable", "boolean"),
        Column("Threshold", ".spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent", "integer"),
        Column("Policy", ".spec.resourceUsedThresholdWithBE.cpuSuppressPolicy"),
        AGE,
    )

    spec: NodeSLOSpec | None = Field(None, description="The strategies of the node.")
    status: Empty | None = Field(None, description="Empty.")
