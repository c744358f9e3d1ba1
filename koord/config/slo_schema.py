"""The keys of slo-controller-config: the schema and the defaults of each."""

from __future__ import annotations

from typing import Any, Final

from koord.api import nodeslo_defaults, strategies
from koord.api.schema import ListOf, Node, Selector, Str, Struct

_ENTRY: Final[dict[str, Node]] = {"name": Str("Name of the entry."), "nodeSelector": Selector("Nodes that it is for.")}


def entry(strategy: Struct) -> Struct:
    """A node entry: a strategy with name and nodeSelector beside its fields."""
    return Struct(strategy.text, {**_ENTRY, **strategy.fields}, strategy.pairs)


def flat(strategy: Struct) -> Struct:
    """A key whose cluster strategy stands at the top, with `nodeConfigs` beside it."""
    return Struct(strategy.text, {**strategy.fields, "nodeConfigs": ListOf("Nodes of their own.", entry(strategy))}, strategy.pairs)


def nested(strategy: Struct) -> Struct:
    """A key with `clusterStrategy` and `nodeStrategies`."""
    return Struct("", {"clusterStrategy": strategy, "nodeStrategies": ListOf("Nodes of their own.", entry(strategy))})


COLOCATION, THRESHOLD, QOS, BURST, SYS, HOSTS, NORMALIZATION, AMPLIFICATION, INTERFERENCE, TUNING, OFFLOAD = (
    "colocation-config", "resource-threshold-config", "resource-qos-config", "cpu-burst-config",
    "system-config", "host-application-config", "cpu-normalization-config", "resource-amplification-config",
    "interference-config", "resource-tuning-config", "memory-offloading-config",
)  # fmt: skip

STRATEGIES: Final[dict[str, Struct]] = {
    COLOCATION: strategies.COLOCATION,
    THRESHOLD: strategies.RESOURCE_THRESHOLD,
    QOS: strategies.RESOURCE_QOS,
    BURST: strategies.CPU_BURST,
    SYS: strategies.SYSTEM,
    HOSTS: Struct("", {"applications": strategies.HOST_APPLICATIONS}),
    NORMALIZATION: strategies.CPU_NORMALIZATION,
    AMPLIFICATION: strategies.RESOURCE_AMPLIFICATION,
    INTERFERENCE: strategies.INTERFERENCE,
    TUNING: strategies.RESOURCE_TUNING,
    OFFLOAD: strategies.MEMORY_OFFLOADING,
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
