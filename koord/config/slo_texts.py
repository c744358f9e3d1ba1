"""What the fields of slo-controller-config mean that NodeSLO does not have, and those whose text there would not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koord.config.slo_schema import AMPLIFICATION, COLOCATION, HOSTS, INTERFERENCE, NORMALIZATION, OFFLOAD, THRESHOLD, TUNING

TEXTS: Final[Mapping[str, Mapping[str, str]]] = {
    COLOCATION: {
        "enable": "Whether unused resources are offered; the cluster's switch beats every node's.",
        "metricAggregateDurationSeconds": "Window of the agent's averages, in seconds.",
        "metricReportIntervalSeconds": "How often the agent reports, in seconds; koordlet reports every 30 s at most.",
        "metricAggregatePolicy": "Which aggregates the agent reports besides.",
        "metricAggregatePolicy.durations": "Windows of the percentiles.",
        "metricMemoryCollectPolicy": "Which memory counts as used.",
        "cpuReclaimThresholdPercent": "Share of the node's CPU that may be filled, in percent; the rest is the margin.",
        "memoryReclaimThresholdPercent": "Share of the node's memory that may be filled, in percent; the rest is the margin.",
        "cpuCalculatePolicy": "How batch-cpu is computed: `usage` or `maxUsageRequest`; any other word means usage.",
        "memoryCalculatePolicy": "How batch-memory is computed: `usage`, `request` or `maxUsageRequest`; any other word means usage.",
        "degradeTimeMinutes": "Age in minutes from which a NodeMetric is not trusted: batch and mid go to 0.",
        "updateTimeThresholdSeconds": "Age in seconds of what stands on the node from which small differences are written too.",
        "resourceDiffThreshold": "Difference, as a share of the old amount, that is written at once.",
        "midReclaimMode": "`static`: Mid is a fixed share of the node; any other word means dynamic.",
        "midCPUThresholdPercent": "Ceiling of mid-cpu in percent of the node.",
        "midMemoryThresholdPercent": "Ceiling of mid-memory in percent of the node.",
        "midUnallocatedPercent": "Share of what Prod pods have not requested that goes to Mid, in percent.",
        "midStaticCPUReservedPercent": "mid-cpu in static mode, in percent of the node.",
        "midStaticMemoryReservedPercent": "mid-memory in static mode, in percent of the node.",
        "batchCPUThresholdPercent": "Ceiling of batch-cpu in percent of the node; unset: none.",
        "batchMemoryThresholdPercent": "Ceiling of batch-memory in percent of the node; unset: none.",
        "extensions": "Free, for other programs.",
    },
    THRESHOLD: {
        "memoryAllocatableEvictThresholdPercent": "Memory requests of mid and batch pods, in percent of the offer, above which they leave.",
        "memoryAllocatableEvictLowerPercent": "Memory requests, in percent of the offer, down to which they leave.",
    },
    HOSTS: {
        "applications": "Programs outside of pods; a matching entry's list replaces the cluster's.",
        "applications[].name": "Name of the application.",
        "applications[].priority": "Its priority class.",
        "applications[].qos": "Its QoS class.",
        "applications[].cgroupPath": "Its cgroup.",
        "applications[].cgroupPath.base": "Where the path starts.",
        "applications[].cgroupPath.parentDir": "Directory below the base.",
        "applications[].cgroupPath.relativePath": "Directory below that.",
        "applications[].strategy": "Free, for other programs.",
    },
    NORMALIZATION: {
        "enable": "Whether the annotation `node.koordinator.sh/cpu-normalization-ratio` is kept; off: it becomes 1.00.",
        "defaultRatio": "Ratio of CPU models that ratioModel does not have.",
        "ratioModel": "Ratios by CPU model, as the node's topology names it.",
        "ratioModel.*.baseRatio": "Ratio without hyper-threading and turbo.",
        "ratioModel.*.hyperThreadEnabledRatio": "Ratio with hyper-threading.",
        "ratioModel.*.turboEnabledRatio": "Ratio with turbo.",
        "ratioModel.*.hyperThreadTurboEnabledRatio": "Ratio with both.",
    },
    AMPLIFICATION: {
        "enable": "Whether the annotation `node.koordinator.sh/resource-amplification-ratio` is kept.",
        "resourceAmplificationRatio": "Ratio by resource name; below 1 the annotation is removed.",
    },
    INTERFERENCE: {
        "actions": "What may be done to a best-effort pod that slows others down: `squeeze`, `throttle`, `migrate`, `evict`; unset: all.",
        "squeezePercent": "CPU that a squeezed pod keeps, in percent of its use; default 50.",
        "throttlePercent": "Disk throughput that a throttled pod keeps, in percent of its use; default 50.",
        "migrateAfterSeconds": "How long the pod disturbs before its migration is asked for; default 60.",
        "evictAfterSeconds": "How long the pod disturbs before it is evicted; default 180.",
    },
    OFFLOAD: {
        "enable": "Whether idle memory of pods is asked back (cgroup v2); default false.",
        "latencySensitive": "Whether LS pods take part, too; LSE and LSR never do. Default false.",
        "stallPerMille": "Time a pod may wait for memory, in thousandths; steps become smaller towards it. Default 1.",
        "refaultsPerSecond": "Pages read back a second from which on a pod is left alone for a while; default 100.",
        "stepPercent": "A step, in percent of the pod's memory; default 2.",
        "stepBytes": "The largest step, bytes; default 16 MiB.",
        "mostPercent": "Most that is asked back in all, in percent of the most that the pod had; default 50.",
    },
    TUNING: {
        "cpu": "Burst and quota of containers that are throttled.",
        "cpu.enable": "Whether CPU is tuned; default true.",
        "cpu.throttledPercent": "Throttled periods, in percent, from which on a container is helped; default 5.",
        "cpu.maxBurstPercent": "Most burst, in percent of the container's quota; default 100.",
        "cpu.maxQuotaPercent": "Most quota, in percent of the container's own; default 200.",
        "cpu.stepPercent": "A step up or down, in percent of the container's own quota; default 20.",
        "cpu.sharePoolThresholdPercent": "Use of the share pool, in percent, above which no quota grows; default 50.",
        "cpu.calmSeconds": "How long a container is calm before a step down; default 60.",
        "memory": "Protection of containers that are short of memory.",
        "memory.enable": "Whether memory is protected; default true.",
        "memory.nearLimitPercent": "Use, in percent of the limit, from which on a container counts as near it; default 90.",
        "memory.stallPercent": "Time spent waiting for memory, in percent, that counts as a stall; default 5.",
        "memory.refaultsPerSecond": "Refaults a second that count as a stall; default 100.",
        "memory.oomScoreStep": "How much the OOM score of a container falls a step; default 200.",
        "memory.calmSeconds": "How long a container is calm before a step back; default 60.",
    },
}
"""Text by key and path; `[]` is an item of a list, `.*` a value of a map."""
