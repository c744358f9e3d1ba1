"""The shape of every key of slo-controller-config: field names, types, ranges and defaults."""

from __future__ import annotations

from typing import Any, Final

from koord.api import nodeslo_defaults
from koord.config.schema import Amount, Bool, Free, Int, IntOrText, ListOf, MapOf, Node, Num, Selector, Span, Str, Struct

PERCENT: Final = (0, 100)
AT_LEAST_0: Final = (0, None)
AT_LEAST_1: Final = (1, None)

MEMORY_COLLECT_POLICIES: Final = ("usageWithoutPageCache", "usageWithPageCache", "usageWithHotPageCache")

COLOCATION_STRATEGY: Final = Struct(
    {
        "enable": Bool(),
        "metricAggregateDurationSeconds": Int(cm=AT_LEAST_1),
        "metricReportIntervalSeconds": Int(cm=AT_LEAST_1),
        "metricAggregatePolicy": Struct({"durations": ListOf(Span())}),
        "metricMemoryCollectPolicy": Str(MEMORY_COLLECT_POLICIES),
        "cpuReclaimThresholdPercent": Int(cm=AT_LEAST_0),
        "memoryReclaimThresholdPercent": Int(cm=AT_LEAST_0),
        "cpuCalculatePolicy": Str(),
        "memoryCalculatePolicy": Str(),
        "degradeTimeMinutes": Int(cm=AT_LEAST_1),
        "updateTimeThresholdSeconds": Int(cm=AT_LEAST_1),
        "resourceDiffThreshold": Num(above=0, most=1),
        "midReclaimMode": Str(),
        "midCPUThresholdPercent": Int(cm=PERCENT),
        "midMemoryThresholdPercent": Int(cm=PERCENT),
        "midUnallocatedPercent": Int(cm=PERCENT),
        "midStaticCPUReservedPercent": Int(cm=PERCENT),
        "midStaticMemoryReservedPercent": Int(cm=PERCENT),
        "batchCPUThresholdPercent": Int(cm=AT_LEAST_0),
        "batchMemoryThresholdPercent": Int(cm=AT_LEAST_0),
        "extensions": Free(),
    }
)

RESOURCE_THRESHOLD: Final = Struct(
    {
        "enable": Bool(),
        "cpuSuppressThresholdPercent": Int(PERCENT, PERCENT),
        "cpuSuppressMinPercent": Int(PERCENT, PERCENT),
        "cpuSuppressPolicy": Str(("cpuset", "cfsQuota")),
        "memoryEvictThresholdPercent": Int(PERCENT, PERCENT),
        "memoryEvictLowerPercent": Int(PERCENT, PERCENT),
        "memoryAllocatableEvictThresholdPercent": Int(AT_LEAST_0, AT_LEAST_0),
        "memoryAllocatableEvictLowerPercent": Int(AT_LEAST_0, AT_LEAST_0),
        "cpuEvictBESatisfactionUpperPercent": Int(PERCENT),
        "cpuEvictBESatisfactionLowerPercent": Int(PERCENT),
        "cpuEvictBEUsageThresholdPercent": Int(PERCENT),
        "cpuEvictTimeWindowSeconds": Int(AT_LEAST_1),
        "cpuEvictThresholdPercent": Int(PERCENT, PERCENT),
        "cpuEvictLowerPercent": Int(PERCENT, PERCENT),
        "cpuAllocatableEvictThresholdPercent": Int(AT_LEAST_0, AT_LEAST_0),
        "cpuAllocatableEvictLowerPercent": Int(AT_LEAST_0, AT_LEAST_0),
        "cpuEvictPolicy": Str(("evictByRealLimit", "evictByAllocatable")),
        "evictEnabledPriorityThreshold": Int(),
        "allocatableEvictPriorityThreshold": Int((0, 7999)),
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
    {
        "policy": Str(("none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto")),
        "cpuBurstPercent": Int((1, 10000), (0, 10000)),
        "cfsQuotaBurstPercent": Int((100, None)),
        "cfsQuotaBurstPeriodSeconds": Int((-1, None)),
        "sharePoolThresholdPercent": Int(PERCENT),
    }
)

SYSTEM: Final = Struct(
    {
        "minFreeKbytesFactor": Int(AT_LEAST_1),
        "watermarkScaleFactor": Int((1, 400)),
        "memcgReapBackGround": Int((0, 1)),
        "schedGroupIdentityEnabled": Int(),
        "schedIdleSaverWmark": Int(),
        "schedFeatures": MapOf(Bool()),
        "pageCacheLimitEnabled": Int((0, 1)),
        "totalNetworkBandwidth": Amount(),
    }
)

_IO: Final = Struct(
    {
        **dict.fromkeys(("readIOPS", "writeIOPS", "readBPS", "writeBPS"), Int(AT_LEAST_0, AT_LEAST_0)),
        "ioWeightPercent": Int((1, 100), (1, 100)),
        **dict.fromkeys(("readLatency", "writeLatency"), Int()),
        **dict.fromkeys(("readLatencyPercent", "writeLatencyPercent"), Int(PERCENT, PERCENT)),
        "enableUserModel": Bool(),
        **dict.fromkeys(
            ("modelReadBPS", "modelWriteBPS", "modelReadSeqIOPS", "modelWriteSeqIOPS", "modelReadRandIOPS", "modelWriteRandIOPS"),
            Int(AT_LEAST_1, AT_LEAST_1),
        ),
    }
)

_BLKIO: Final = Struct(
    {"enable": Bool(), "blocks": ListOf(Struct({"name": Str(), "type": Str(("device", "volumegroup", "podvolume")), "ioCfg": _IO}))}
)

_QOS_CLASS: Final = Struct(
    {
        "cpuQOS": Struct({"enable": Bool(), "groupIdentity": Int((-1, 2)), "schedIdle": Int((0, 1)), "coreExpeller": Bool()}),
        "memoryQOS": Struct(
            {
                "enable": Bool(),
                **dict.fromkeys(("minLimitPercent", "lowLimitPercent", "throttlingPercent"), Int(PERCENT, AT_LEAST_0)),
                "wmarkRatio": Int(PERCENT, PERCENT),
                "wmarkScalePermill": Int((1, 1000), (1, 1000)),
                "wmarkMinAdj": Int((-25, 50), (-25, 50)),
                **dict.fromkeys(("priorityEnable", "oomKillGroup"), Int((0, 1))),
                "priority": Int((0, 12)),
                **dict.fromkeys(("pageCacheEnable", "pageCacheReclaimSync"), Bool()),
                "pageCacheLimitPercent": Int(PERCENT, PERCENT),
                "pageCacheLimitSize": Int(),
            }
        ),
        "blkioQOS": _BLKIO,
        "resctrlQOS": Struct(
            {
                "enable": Bool(),
                **dict.fromkeys(("catRangeStartPercent", "catRangeEndPercent", "mbaPercent"), Int(PERCENT, PERCENT)),
            },
            pairs=(("catRangeStartPercent", "catRangeEndPercent"),),
        ),
        "networkQOS": Struct(
            {
                "enable": Bool(),
                **dict.fromkeys(("ingressRequest", "ingressLimit", "egressRequest", "egressLimit"), IntOrText()),
            }
        ),
    }
)

RESOURCE_QOS: Final = Struct(
    {
        "policies": Struct({"cpuPolicy": Str(("groupIdentity", "coreSched")), "netQOSPolicy": Str(("tc", "terway-qos"))}),
        **dict.fromkeys(("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot"), _QOS_CLASS),
    }
)

HOST_APPLICATIONS: Final = ListOf(
    Struct(
        {
            "name": Str(),
            "priority": Str(("koord-prod", "koord-mid", "koord-batch", "koord-free")),
            "qos": Str(("LSE", "LSR", "LS", "BE", "SYSTEM")),
            "cgroupPath": Struct(
                {
                    "base": Str(("CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort")),
                    "parentDir": Str(),
                    "relativePath": Str(),
                }
            ),
            "strategy": Free(),
        }
    )
)

_RATIO: Final = Num(above=0)
CPU_NORMALIZATION: Final = Struct(
    {
        "enable": Bool(),
        "defaultRatio": _RATIO,
        "ratioModel": MapOf(
            Struct(dict.fromkeys(("baseRatio", "hyperThreadEnabledRatio", "turboEnabledRatio", "hyperThreadTurboEnabledRatio"), _RATIO))
        ),
    }
)
RESOURCE_AMPLIFICATION: Final = Struct({"enable": Bool(), "resourceAmplificationRatio": MapOf(_RATIO)})

_SHARE: Final = Int((1, 100), (1, 100))
_SECONDS: Final = Int((1, 86_400), (1, 86_400))

#: koordlet's own strategies, which NodeSLO carries below `extensions` (BEY-INT-01, BEY-TUNE-01); what is unset is koordlet's default.
INTERFERENCE_STRATEGY: Final = Struct(
    {
        "actions": ListOf(Str(("squeeze", "throttle", "migrate", "evict"))),
        "squeezePercent": _SHARE,
        "throttlePercent": _SHARE,
        "migrateAfterSeconds": _SECONDS,
        "evictAfterSeconds": _SECONDS,
    }
)
TUNING_STRATEGY: Final = Struct(
    {
        "cpu": Struct(
            {
                "enable": Bool(),
                "throttledPercent": _SHARE,
                "maxBurstPercent": Int(PERCENT, PERCENT),
                "maxQuotaPercent": Int((100, 1000), (100, 1000)),
                "stepPercent": _SHARE,
                "sharePoolThresholdPercent": _SHARE,
                "calmSeconds": _SECONDS,
            }
        ),
        "memory": Struct(
            {
                "enable": Bool(),
                "nearLimitPercent": _SHARE,
                "stallPercent": _SHARE,
                "refaultsPerSecond": Int(AT_LEAST_1, AT_LEAST_1),
                "oomScoreStep": Int((0, 1000), (0, 1000)),
                "calmSeconds": _SECONDS,
            }
        ),
    }
)

OFFLOAD_STRATEGY: Final = Struct(
    {
        "enable": Bool(),
        "latencySensitive": Bool(),
        "stallPerMille": Int((1, 1000), (1, 1000)),
        "refaultsPerSecond": Int(AT_LEAST_1, AT_LEAST_1),
        "stepPercent": Int((1, 10), (1, 10)),
        "stepBytes": Int((1 << 20, 1 << 25), (1 << 20, 1 << 25)),
        "mostPercent": _SHARE,
    }
)

_ENTRY: Final[dict[str, Node]] = {"name": Str(), "nodeSelector": Selector()}


def entry(strategy: Struct) -> Struct:
    """A node entry: a strategy with name and nodeSelector beside its fields."""
    return Struct({**_ENTRY, **strategy.fields}, strategy.pairs)


def flat(strategy: Struct) -> Struct:
    """A key whose cluster strategy stands at the top, with `nodeConfigs` beside it."""
    return Struct({**strategy.fields, "nodeConfigs": ListOf(entry(strategy))}, strategy.pairs)


def nested(strategy: Struct) -> Struct:
    """A key with `clusterStrategy` and `nodeStrategies`."""
    return Struct({"clusterStrategy": strategy, "nodeStrategies": ListOf(entry(strategy))})


COLOCATION, THRESHOLD, QOS, BURST, SYS, HOSTS, NORMALIZATION, AMPLIFICATION, INTERFERENCE, TUNING, OFFLOAD = (
    "colocation-config", "resource-threshold-config", "resource-qos-config", "cpu-burst-config",
    "system-config", "host-application-config", "cpu-normalization-config", "resource-amplification-config",
    "interference-config", "resource-tuning-config", "memory-offloading-config",
)  # fmt: skip

_HOSTS_STRATEGY: Final = Struct({"applications": HOST_APPLICATIONS})

STRATEGIES: Final[dict[str, Struct]] = {
    COLOCATION: COLOCATION_STRATEGY,
    THRESHOLD: RESOURCE_THRESHOLD,
    QOS: RESOURCE_QOS,
    BURST: CPU_BURST,
    SYS: SYSTEM,
    HOSTS: _HOSTS_STRATEGY,
    NORMALIZATION: CPU_NORMALIZATION,
    AMPLIFICATION: RESOURCE_AMPLIFICATION,
    INTERFERENCE: INTERFERENCE_STRATEGY,
    TUNING: TUNING_STRATEGY,
    OFFLOAD: OFFLOAD_STRATEGY,
}
"""Strategy of each key of the ConfigMap."""

EXTENSIONS: Final = {INTERFERENCE: "interference", TUNING: "resourceTuning", OFFLOAD: "memoryOffloading"}
"""Keys that end below `extensions` of a NodeSLO, and the names that they have there."""

FLAT: Final = frozenset({COLOCATION, HOSTS, NORMALIZATION, AMPLIFICATION})

KEYS: Final[dict[str, Struct]] = {key: flat(strategy) if key in FLAT else nested(strategy) for key, strategy in STRATEGIES.items()}
"""Whole schema of each key's JSON."""

DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    COLOCATION: {
        "enable": False,
        "metricAggregateDurationSeconds": 300,
        "metricReportIntervalSeconds": 60,
        "metricAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
        "metricMemoryCollectPolicy": "usageWithoutPageCache",
        "cpuReclaimThresholdPercent": 60,
        "memoryReclaimThresholdPercent": 65,
        "cpuCalculatePolicy": "usage",
        "memoryCalculatePolicy": "usage",
        "degradeTimeMinutes": 15,
        "updateTimeThresholdSeconds": 300,
        "resourceDiffThreshold": 0.1,
        "midCPUThresholdPercent": 100,
        "midMemoryThresholdPercent": 100,
        "midUnallocatedPercent": 0,
        "midStaticCPUReservedPercent": 0,
        "midStaticMemoryReservedPercent": 0,
    },
    THRESHOLD: nodeslo_defaults.resource_threshold_strategy(),
    QOS: {},
    BURST: nodeslo_defaults.cpu_burst_strategy(),
    SYS: nodeslo_defaults.system_strategy(),
    HOSTS: {},
    NORMALIZATION: {"enable": False, "ratioModel": {}},
    AMPLIFICATION: {"enable": False},
    INTERFERENCE: {},
    TUNING: {},
    OFFLOAD: {},
}
"""Strategy of a key that the ConfigMap does not have; also what a given strategy is laid over."""
