"""The strategies of a node, field by field: what NodeSLO carries and slo-controller-config sets (API-NSLO-01).

The CRD of NodeSLO, the checks of the ConfigMap and the reference are made of these tables. Defaults are in `koord.api.nodeslo_defaults`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from koord.api.schema import Amount, Bool, Free, Int, IntOrText, ListOf, MapOf, Num, Range, Span, Str, Struct

PERCENT: Final[Range] = (0, 100)
AT_LEAST_0: Final[Range] = (0, None)
AT_LEAST_1: Final[Range] = (1, None)

MEMORY_COLLECT_POLICIES: Final = ("usageWithoutPageCache", "usageWithPageCache", "usageWithHotPageCache")

COLOCATION: Final = Struct(
    "",
    {
        "enable": Bool("Whether unused resources are offered; the cluster's switch beats every node's."),
        "metricAggregateDurationSeconds": Int("Window of the agent's averages, in seconds.", AT_LEAST_1),
        "metricReportIntervalSeconds": Int("How often the agent reports, in seconds; koordlet reports at most every 30 s.", AT_LEAST_1),
        "metricAggregatePolicy": Struct(
            "Which aggregates the agent reports besides.", {"durations": ListOf("Windows of the percentiles.", Span(""))}
        ),
        "metricMemoryCollectPolicy": Str("Which memory counts as used.", MEMORY_COLLECT_POLICIES),
        "cpuReclaimThresholdPercent": Int("Share of the node's CPU that may be filled, in percent; the rest is the margin.", AT_LEAST_0),
        "memoryReclaimThresholdPercent": Int(
            "Share of the node's memory that may be filled, in percent; the rest is the margin.", AT_LEAST_0
        ),
        "cpuCalculatePolicy": Str("How batch-cpu is computed: `usage` or `maxUsageRequest`; any other word means usage."),
        "memoryCalculatePolicy": Str("How batch-memory is computed: `usage`, `request` or `maxUsageRequest`; any other word means usage."),
        "degradeTimeMinutes": Int("Age in minutes from which a NodeMetric is not trusted: batch and mid go to 0.", AT_LEAST_1),
        "updateTimeThresholdSeconds": Int(
            "Age in seconds of what stands on the node from which small differences are written too.", AT_LEAST_1
        ),
        "resourceDiffThreshold": Num("Difference, as a share of the old amount, that is written at once.", above=0, most=1),
        "midReclaimMode": Str("`static`: Mid is a fixed share of the node; any other word means dynamic."),
        "midCPUThresholdPercent": Int("Ceiling of mid-cpu in percent of the node.", PERCENT),
        "midMemoryThresholdPercent": Int("Ceiling of mid-memory in percent of the node.", PERCENT),
        "midUnallocatedPercent": Int("Share of what Prod pods have not requested that goes to Mid, in percent.", PERCENT),
        "midStaticCPUReservedPercent": Int("mid-cpu in static mode, in percent of the node.", PERCENT),
        "midStaticMemoryReservedPercent": Int("mid-memory in static mode, in percent of the node.", PERCENT),
        "batchCPUThresholdPercent": Int("Ceiling of batch-cpu in percent of the node; unset: none.", AT_LEAST_0),
        "batchMemoryThresholdPercent": Int("Ceiling of batch-memory in percent of the node; unset: none.", AT_LEAST_0),
        "extensions": Free("Free, for other programs."),
    },
)

RESOURCE_THRESHOLD: Final = Struct(
    "When best-effort pods are suppressed or evicted.",
    {
        "enable": Bool("Whether the strategy is on (default false)."),
        "cpuSuppressThresholdPercent": Int("CPU usage of the node above which BE is suppressed (65).", PERCENT, PERCENT),
        "cpuSuppressMinPercent": Int("CPU that BE keeps at least, in percent of the node.", PERCENT, PERCENT),
        "cpuSuppressPolicy": Str("How BE is suppressed: cpuset (default) or cfsQuota.", ("cpuset", "cfsQuota")),
        "memoryEvictThresholdPercent": Int("Memory usage of the node above which BE is evicted (70).", PERCENT, PERCENT),
        "memoryEvictLowerPercent": Int("Memory usage down to which BE is evicted (threshold - 2).", PERCENT, PERCENT),
        "memoryAllocatableEvictThresholdPercent": Int(
            "Requests of mid and batch pods, in percent of the node's mid- and batch-memory, above which they are evicted (110).",
            AT_LEAST_0,
            AT_LEAST_0,
        ),
        "memoryAllocatableEvictLowerPercent": Int(
            "Requests of mid and batch pods, in percent of the node's mid- and batch-memory, down to which they are evicted (100).",
            AT_LEAST_0,
            AT_LEAST_0,
        ),
        "cpuEvictBESatisfactionUpperPercent": Int("CPU satisfaction of BE up to which eviction goes on once begun.", PERCENT),
        "cpuEvictBESatisfactionLowerPercent": Int("CPU satisfaction of BE below which BE is evicted.", PERCENT),
        "cpuEvictBEUsageThresholdPercent": Int("CPU usage of BE, in percent of its limit, that it must have to be evicted.", PERCENT),
        "cpuEvictTimeWindowSeconds": Int("Window in seconds over which CPU satisfaction is averaged.", AT_LEAST_1),
        "cpuEvictThresholdPercent": Int("CPU usage of the node above which pods are evicted.", PERCENT, PERCENT),
        "cpuEvictLowerPercent": Int("CPU usage of the node down to which pods are evicted.", PERCENT, PERCENT),
        "cpuAllocatableEvictThresholdPercent": Int(
            "CPU requests, in percent of allocatable, above which pods are evicted.", AT_LEAST_0, AT_LEAST_0
        ),
        "cpuAllocatableEvictLowerPercent": Int(
            "CPU requests, in percent of allocatable, down to which pods are evicted.", AT_LEAST_0, AT_LEAST_0
        ),
        "cpuEvictPolicy": Str(
            "What satisfaction is measured by: evictByRealLimit (default) or evictByAllocatable.",
            ("evictByRealLimit", "evictByAllocatable"),
        ),
        "evictEnabledPriorityThreshold": Int("Only pods of at most this priority are evicted for usage.", bits=32),
        "allocatableEvictPriorityThreshold": Int("Only pods of at most this priority are evicted for requests.", (0, 7999), bits=32),
    },
    pairs=(
        ("memoryEvictLowerPercent", "memoryEvictThresholdPercent"),
        ("memoryAllocatableEvictLowerPercent", "memoryAllocatableEvictThresholdPercent"),
        ("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent"),
        ("cpuEvictLowerPercent", "cpuEvictThresholdPercent"),
        ("cpuAllocatableEvictLowerPercent", "cpuAllocatableEvictThresholdPercent"),
    ),
)

CPU_BURST: Final = Struct(
    "Bursts above the CPU limit.",
    {
        "policy": Str("none (default), cpuBurstOnly, cfsQuotaBurstOnly or auto.", ("none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto")),
        "cpuBurstPercent": Int("Size of cpu.cfs_burst_us in percent of the limit (1000).", (1, 10000), (0, 10000)),
        "cfsQuotaBurstPercent": Int("Quota that a container may grow to, in percent of its limit (300).", (100, None)),
        "cfsQuotaBurstPeriodSeconds": Int("Seconds that a grown quota may be used; -1 (default) is without end.", (-1, None)),
        "sharePoolThresholdPercent": Int("CPU usage of the share pool above which nothing grows (50).", PERCENT),
    },
)

SYSTEM: Final = Struct(
    "Settings of the node itself.",
    {
        "minFreeKbytesFactor": Int("vm.min_free_kbytes, in ten-thousandths of the memory.", AT_LEAST_1),
        "watermarkScaleFactor": Int("vm.watermark_scale_factor.", (1, 400)),
        "memcgReapBackGround": Int("Whether dead memory cgroups are reaped (0 or 1).", (0, 1)),
        "schedGroupIdentityEnabled": Int("kernel.sched_group_identity_enabled (0 or 1)."),
        "schedIdleSaverWmark": Int("kernel.sched_idle_saver_wmark in nanoseconds."),
        "schedFeatures": MapOf("Scheduler features to switch on or off, by name.", Bool("")),
        "pageCacheLimitEnabled": Int("Whether page-cache limits are on (0 or 1).", (0, 1)),
        "totalNetworkBandwidth": Amount("Bandwidth of the node in bits per second (0 is unknown)."),
    },
)

_CPU_QOS: Final = Struct(
    "CPU.",
    {
        "enable": Bool("Whether it is applied."),
        "groupIdentity": Int("cpu.bvt_warp_ns: -1, 0, 1 or 2.", (-1, 2)),
        "schedIdle": Int("cpu.idle: 0 or 1.", (0, 1)),
        "coreExpeller": Bool("Whether siblings of a core are kept free of best effort."),
    },
)

_MEMORY_QOS: Final = Struct(
    "Memory.",
    {
        "enable": Bool("Whether it is applied."),
        "minLimitPercent": Int("memory.min in percent of the request.", PERCENT, AT_LEAST_0),
        "lowLimitPercent": Int("memory.low in percent of the request.", PERCENT, AT_LEAST_0),
        "throttlingPercent": Int("memory.high in percent of the limit; 0 is off.", PERCENT, AT_LEAST_0),
        "wmarkRatio": Int("memory.wmark_ratio: usage in percent of the limit that starts background reclaim.", PERCENT, PERCENT),
        "wmarkScalePermill": Int(
            "memory.wmark_scale_factor: distance between high and low watermark in thousandths.", (1, 1000), (1, 1000)
        ),
        "wmarkMinAdj": Int("memory.wmark_min_adj: how early the class is throttled by the global watermark.", (-25, 50), (-25, 50)),
        "priorityEnable": Int("Whether the class has an OOM priority (0 or 1).", (0, 1)),
        "oomKillGroup": Int("Whether an OOM kill takes the whole group (0 or 1).", (0, 1)),
        "priority": Int("OOM priority, 0 (first) to 12 (last).", (0, 12)),
        "pageCacheEnable": Bool("Whether page cache is limited."),
        "pageCacheReclaimSync": Bool("Whether page cache is reclaimed synchronously."),
        "pageCacheLimitPercent": Int("Page-cache limit in percent of the memory limit.", PERCENT, PERCENT),
        "pageCacheLimitSize": Int("Page-cache limit in bytes; wins over the percentage."),
    },
)

_IO_CFG: Final = Struct(
    "Limits and weights.",
    {
        "readIOPS": Int("Reads per second; 0 is without limit.", AT_LEAST_0, AT_LEAST_0),
        "writeIOPS": Int("Writes per second; 0 is without limit.", AT_LEAST_0, AT_LEAST_0),
        "readBPS": Int("Bytes read per second; 0 is without limit.", AT_LEAST_0, AT_LEAST_0),
        "writeBPS": Int("Bytes written per second; 0 is without limit.", AT_LEAST_0, AT_LEAST_0),
        "ioWeightPercent": Int("Weight of the class.", (1, 100), (1, 100), default=100),
        "readLatency": Int("Wanted read latency in microseconds."),
        "writeLatency": Int("Wanted write latency in microseconds."),
        "readLatencyPercent": Int("Percentile of reads that the latency is about.", PERCENT, PERCENT),
        "writeLatencyPercent": Int("Percentile of writes that the latency is about.", PERCENT, PERCENT),
        "enableUserModel": Bool("Whether the device model below is used."),
        "modelReadBPS": Int("Bytes that the device reads per second.", AT_LEAST_1, AT_LEAST_1),
        "modelWriteBPS": Int("Bytes that the device writes per second.", AT_LEAST_1, AT_LEAST_1),
        "modelReadSeqIOPS": Int("Sequential reads per second of the device.", AT_LEAST_1, AT_LEAST_1),
        "modelWriteSeqIOPS": Int("Sequential writes per second of the device.", AT_LEAST_1, AT_LEAST_1),
        "modelReadRandIOPS": Int("Random reads per second of the device.", AT_LEAST_1, AT_LEAST_1),
        "modelWriteRandIOPS": Int("Random writes per second of the device.", AT_LEAST_1, AT_LEAST_1),
    },
)

_RESCTRL_QOS: Final = Struct(
    "Cache and memory bandwidth.",
    {
        "enable": Bool("Whether it is applied."),
        "catRangeStartPercent": Int("Where the class's part of the last-level cache starts.", PERCENT, PERCENT),
        "catRangeEndPercent": Int("Where it ends.", PERCENT, PERCENT),
        "mbaPercent": Int("Memory bandwidth of the class.", PERCENT, PERCENT),
    },
    pairs=(("catRangeStartPercent", "catRangeEndPercent"),),
)

_NETWORK_QOS: Final = Struct(
    "Network.",
    {
        "enable": Bool("Whether it is applied."),
        "ingressRequest": IntOrText("Guaranteed inbound bandwidth.", default=0),
        "ingressLimit": IntOrText("Largest inbound bandwidth.", default=100),
        "egressRequest": IntOrText("Guaranteed outbound bandwidth.", default=0),
        "egressLimit": IntOrText("Largest outbound bandwidth.", default=100),
    },
)

_BLOCK: Final = Struct(
    "A block device with its limits.",
    {
        "name": Str("Name of the device, volume group or volume."),
        "type": Str("device, volumegroup or podvolume.", ("device", "volumegroup", "podvolume")),
        "ioCfg": _IO_CFG,
    },
)

_QOS_CLASS: Final = Struct(
    "",
    {
        "cpuQOS": _CPU_QOS,
        "memoryQOS": _MEMORY_QOS,
        "blkioQOS": Struct("Disks.", {"enable": Bool("Whether it is applied."), "blocks": ListOf("The devices.", _BLOCK)}),
        "resctrlQOS": _RESCTRL_QOS,
        "networkQOS": _NETWORK_QOS,
    },
)

RESOURCE_QOS: Final = Struct(
    "Quality by class.",
    {
        "policies": Struct(
            "Which mechanisms are used.",
            {
                "cpuPolicy": Str("groupIdentity (default) or coreSched.", ("groupIdentity", "coreSched")),
                "netQOSPolicy": Str("tc (default) or terway-qos.", ("tc", "terway-qos")),
            },
        ),
        "lsrClass": replace(_QOS_CLASS, text="Pods of class LSR."),
        "lsClass": replace(_QOS_CLASS, text="Pods of class LS."),
        "beClass": replace(_QOS_CLASS, text="Pods of class BE."),
        "systemClass": replace(_QOS_CLASS, text="Pods of class SYSTEM."),
        "cgroupRoot": replace(_QOS_CLASS, text="The root cgroup."),
    },
)

HOST_APPLICATIONS: Final = ListOf(
    "Applications that run outside of pods.",
    Struct(
        "An application that runs outside of pods.",
        {
            "name": Str("Name of the application."),
            "priority": Str("Priority class of the application.", ("koord-prod", "koord-mid", "koord-batch", "koord-free")),
            "qos": Str("QoS class of the application.", ("LSE", "LSR", "LS", "BE", "SYSTEM")),
            "cgroupPath": Struct(
                "Its cgroup.",
                {
                    "base": Str(
                        "CgroupRoot, Kubepods, KubepodsBurstable or KubepodsBesteffort.",
                        ("CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"),
                    ),
                    "parentDir": Str("Directory below the base."),
                    "relativePath": Str("Directory below that."),
                },
            ),
            "strategy": Free("Free, for other programs; NodeSLO keeps it empty.", pruned=True),
        },
    ),
)

CPU_NORMALIZATION: Final = Struct(
    "",
    {
        "enable": Bool("Whether the annotation `node.koordinator.sh/cpu-normalization-ratio` is kept; off: it becomes 1.00."),
        "defaultRatio": Num("Ratio of CPU models that ratioModel does not have.", above=0),
        "ratioModel": MapOf(
            "Ratios by CPU model, as the node's topology names it.",
            Struct(
                "",
                {
                    "baseRatio": Num("Ratio without hyper-threading and turbo.", above=0),
                    "hyperThreadEnabledRatio": Num("Ratio with hyper-threading.", above=0),
                    "turboEnabledRatio": Num("Ratio with turbo.", above=0),
                    "hyperThreadTurboEnabledRatio": Num("Ratio with both.", above=0),
                },
            ),
        ),
    },
)

RESOURCE_AMPLIFICATION: Final = Struct(
    "",
    {
        "enable": Bool("Whether the annotation `node.koordinator.sh/resource-amplification-ratio` is kept."),
        "resourceAmplificationRatio": MapOf("Ratio by resource name; below 1 the annotation is removed.", Num("", above=0)),
    },
)

_SHARE: Final[Range] = (1, 100)
_SECONDS: Final[Range] = (1, 86_400)

# koordlet's own strategies (BEY-INT-01, BEY-TUNE-01, BEY-OFF-01); what is unset is koordlet's default.

INTERFERENCE: Final = Struct(
    "",
    {
        "actions": ListOf(
            "What may be done to a best-effort pod that slows others down: `squeeze`, `throttle`, `migrate`, `evict`; unset: all.",
            Str("", ("squeeze", "throttle", "migrate", "evict")),
        ),
        "squeezePercent": Int("CPU that a squeezed pod keeps, in percent of its use; default 50.", _SHARE, _SHARE),
        "throttlePercent": Int("Disk throughput that a throttled pod keeps, in percent of its use; default 50.", _SHARE, _SHARE),
        "migrateAfterSeconds": Int("How long the pod disturbs before its migration is asked for; default 60.", _SECONDS, _SECONDS),
        "evictAfterSeconds": Int("How long the pod disturbs before it is evicted; default 180.", _SECONDS, _SECONDS),
    },
)

RESOURCE_TUNING: Final = Struct(
    "",
    {
        "cpu": Struct(
            "Burst and quota of containers that are throttled.",
            {
                "enable": Bool("Whether CPU is tuned; default true."),
                "throttledPercent": Int("Throttled periods, in percent, from which on a container is helped; default 5.", _SHARE, _SHARE),
                "maxBurstPercent": Int("Most burst, in percent of the container's quota; default 100.", PERCENT, PERCENT),
                "maxQuotaPercent": Int("Most quota, in percent of the container's own; default 200.", (100, 1000), (100, 1000)),
                "stepPercent": Int("A step up or down, in percent of the container's own quota; default 20.", _SHARE, _SHARE),
                "sharePoolThresholdPercent": Int(
                    "Use of the share pool, in percent, above which no quota grows; default 50.", _SHARE, _SHARE
                ),
                "calmSeconds": Int("How long a container is calm before a step down; default 60.", _SECONDS, _SECONDS),
            },
        ),
        "memory": Struct(
            "Protection of containers that are short of memory.",
            {
                "enable": Bool("Whether memory is protected; default true."),
                "nearLimitPercent": Int(
                    "Use, in percent of the limit, from which on a container counts as near it; default 90.", _SHARE, _SHARE
                ),
                "stallPercent": Int("Time spent waiting for memory, in percent, that counts as a stall; default 5.", _SHARE, _SHARE),
                "refaultsPerSecond": Int("Refaults a second that count as a stall; default 100.", AT_LEAST_1, AT_LEAST_1),
                "oomScoreStep": Int("How much the OOM score of a container falls a step; default 200.", (0, 1000), (0, 1000)),
                "calmSeconds": Int("How long a container is calm before a step back; default 60.", _SECONDS, _SECONDS),
            },
        ),
    },
)

MEMORY_OFFLOADING: Final = Struct(
    "",
    {
        "enable": Bool("Whether idle memory of pods is asked back (cgroup v2); default false."),
        "latencySensitive": Bool("Whether LS pods take part, too; LSE and LSR never do. Default false."),
        "stallPerMille": Int(
            "Time a pod may wait for memory, in thousandths; steps become smaller towards it. Default 1.", (1, 1000), (1, 1000)
        ),
        "refaultsPerSecond": Int(
            "Pages read back a second from which on a pod is left alone for a while; default 100.", AT_LEAST_1, AT_LEAST_1
        ),
        "stepPercent": Int("A step, in percent of the pod's memory; default 2.", (1, 10), (1, 10)),
        "stepBytes": Int("The largest step, bytes; default 16 MiB.", (1 << 20, 1 << 25), (1 << 20, 1 << 25)),
        "mostPercent": Int("Most that is asked back in all, in percent of the most that the pod had; default 50.", _SHARE, _SHARE),
    },
)

NODE_SLO: Final = Struct(
    "The strategies of the node.",
    {
        "resourceUsedThresholdWithBE": RESOURCE_THRESHOLD,
        "resourceQOSStrategy": RESOURCE_QOS,
        "cpuBurstStrategy": CPU_BURST,
        "systemStrategy": SYSTEM,
        "hostApplications": HOST_APPLICATIONS,
        "extensions": Free("Further strategies, free in form."),
    },
)
"""`spec` of a NodeSLO."""
