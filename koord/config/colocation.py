"""The effective co-location strategy of one node: merging what the node itself says, and validity; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from koord.api import names
from koord.api.labels import ratio_percent
from koord.api.strategies import COLOCATION, MEMORY_COLLECT_POLICIES
from koord.config.errors import ConfigError, join
from koord.config.schema import clean, errors, merge
from koord.config.slo_schema import DEFAULTS

_POSITIVE = ("metricAggregateDurationSeconds", "metricReportIntervalSeconds", "degradeTimeMinutes", "updateTimeThresholdSeconds")
_NOT_NEGATIVE = ("cpuReclaimThresholdPercent", "memoryReclaimThresholdPercent", "batchCPUThresholdPercent", "batchMemoryThresholdPercent")
_PERCENT = (
    "midCPUThresholdPercent", "midMemoryThresholdPercent", "midUnallocatedPercent",
    "midStaticCPUReservedPercent", "midStaticMemoryReservedPercent",
)  # fmt: skip

_RATIO_LABELS = (
    (names.LABEL_NODE_CPU_RECLAIM_RATIO, "cpuReclaimThresholdPercent"),
    (names.LABEL_NODE_MEMORY_RECLAIM_RATIO, "memoryReclaimThresholdPercent"),
    (names.LABEL_NODE_MID_STATIC_CPU_RESERVED_RATIO, "midStaticCPUReservedPercent"),
    (names.LABEL_NODE_MID_STATIC_MEMORY_RESERVED_RATIO, "midStaticMemoryReservedPercent"),
)
_RATIO_LABEL_NAMES = frozenset(label for label, _ in _RATIO_LABELS)


@dataclass(frozen=True, slots=True)
class ColocationStrategy:
    """The strategy of one node. Percents are whole numbers; `None` means unset. `ignored` names what the node said in vain."""

    enable: bool
    metric_aggregate_duration_seconds: int
    metric_report_interval_seconds: int
    metric_aggregate_durations: tuple[str, ...]
    metric_memory_collect_policy: str
    cpu_reclaim_percent: int
    memory_reclaim_percent: int
    cpu_policy: str
    memory_policy: str
    degrade_time_minutes: int
    update_time_threshold_seconds: int
    resource_diff_threshold: float
    mid_static: bool
    mid_cpu_threshold_percent: int
    mid_memory_threshold_percent: int
    mid_unallocated_percent: int
    mid_static_cpu_reserved_percent: int
    mid_static_memory_reserved_percent: int
    batch_cpu_threshold_percent: int | None
    batch_memory_threshold_percent: int | None
    ignored: tuple[ConfigError, ...] = ()


def overrides(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Whether a node says anything of its own strategy."""
    return names.ANNOTATION_NODE_COLOCATION_STRATEGY in annotations or not _RATIO_LABEL_NAMES.isdisjoint(labels)


def override_by_node(strategy: Mapping[str, Any], labels: Mapping[str, str], annotations: Mapping[str, str]) -> ColocationStrategy:
    """Lay the node's annotation and then its ratio labels over `strategy`; what is bad there is ignored and named."""
    if not overrides(labels, annotations):
        return _typed(strategy, ())
    ignored: list[ConfigError] = []
    merged = dict(strategy)
    text = annotations.get(names.ANNOTATION_NODE_COLOCATION_STRATEGY)
    if text:
        merged = _with_annotation(merged, text, ignored)
    for label, name in _RATIO_LABELS:
        if label in labels:
            percent = ratio_percent(labels, label)
            if percent is None:
                ignored.append(
                    ConfigError(f'metadata.labels["{label}"]', f"{labels[label]!r} is no ratio; a number of 0 or more is accepted")
                )
            else:
                merged[name] = percent
    return _typed(merged, tuple(ignored))


def _with_annotation(strategy: dict[str, Any], text: str, ignored: list[ConfigError]) -> dict[str, Any]:
    where = f'metadata.annotations["{names.ANNOTATION_NODE_COLOCATION_STRATEGY}"]'
    try:
        own = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        ignored.append(ConfigError(where, f"not valid JSON: {error}"))
        return strategy
    wrong = list(errors(COLOCATION, own, where))
    if wrong or own is None:
        ignored += wrong
        return strategy
    merged: dict[str, Any] = merge(strategy, clean(COLOCATION, own))
    wrong = list(validity_errors(merged, where))
    ignored += wrong
    return strategy if wrong else merged


def validity_errors(strategy: Mapping[str, Any], where: str) -> Iterator[ConfigError]:
    """What makes a merged strategy unusable for the controllers (weaker than the webhook's ranges)."""
    for name in _POSITIVE:
        if name in strategy and strategy[name] <= 0:
            yield ConfigError(join(where, name), f"must be at least 1, got {strategy[name]}")
    for name in _NOT_NEGATIVE:
        if name in strategy and strategy[name] < 0:
            yield ConfigError(join(where, name), f"must not be negative, got {strategy[name]}")
    for name in _PERCENT:
        if name in strategy and not 0 <= strategy[name] <= 100:
            yield ConfigError(join(where, name), f"must be between 0 and 100, got {strategy[name]}")
    collect = strategy["metricMemoryCollectPolicy"]
    if collect not in MEMORY_COLLECT_POLICIES:
        # The NodeMetric CRD knows these only: no node would get a NodeMetric.
        accepted = ", ".join(MEMORY_COLLECT_POLICIES)
        yield ConfigError(join(where, "metricMemoryCollectPolicy"), f"{collect!r} is not known; accepted: {accepted}")
    if strategy["resourceDiffThreshold"] <= 0:
        yield ConfigError(join(where, "resourceDiffThreshold"), f"must be greater than 0, got {strategy['resourceDiffThreshold']}")


def _typed(strategy: Mapping[str, Any], ignored: tuple[ConfigError, ...]) -> ColocationStrategy:
    # Only "maxUsageRequest" (and "request" for memory) act; any other word means usage.
    cpu = strategy["cpuCalculatePolicy"]
    memory = strategy["memoryCalculatePolicy"]
    return ColocationStrategy(
        enable=strategy["enable"],
        metric_aggregate_duration_seconds=strategy["metricAggregateDurationSeconds"],
        metric_report_interval_seconds=strategy["metricReportIntervalSeconds"],
        metric_aggregate_durations=tuple(strategy["metricAggregatePolicy"].get("durations") or ()),
        metric_memory_collect_policy=strategy["metricMemoryCollectPolicy"],
        cpu_reclaim_percent=strategy["cpuReclaimThresholdPercent"],
        memory_reclaim_percent=strategy["memoryReclaimThresholdPercent"],
        cpu_policy=cpu if cpu == "maxUsageRequest" else "usage",
        memory_policy=memory if memory in ("request", "maxUsageRequest") else "usage",
        degrade_time_minutes=strategy["degradeTimeMinutes"],
        update_time_threshold_seconds=strategy["updateTimeThresholdSeconds"],
        resource_diff_threshold=strategy["resourceDiffThreshold"],
        mid_static=strategy.get("midReclaimMode") == "static",
        mid_cpu_threshold_percent=strategy["midCPUThresholdPercent"],
        mid_memory_threshold_percent=strategy["midMemoryThresholdPercent"],
        mid_unallocated_percent=strategy["midUnallocatedPercent"],
        mid_static_cpu_reserved_percent=strategy["midStaticCPUReservedPercent"],
        mid_static_memory_reserved_percent=strategy["midStaticMemoryReservedPercent"],
        batch_cpu_threshold_percent=strategy.get("batchCPUThresholdPercent"),
        batch_memory_threshold_percent=strategy.get("batchMemoryThresholdPercent"),
        ignored=ignored,
    )


DEFAULT_STRATEGY: ColocationStrategy = _typed(DEFAULTS["colocation-config"], ())
