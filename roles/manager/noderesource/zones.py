"""Batch resources per NUMA zone (MGR-NR-BATCH-02); pure. All amounts in thousandths (milli-cpu, milli-bytes)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api import names
from koord.api.objects import NodeResourceTopology, TopologyZone
from koord.api.priority import DEFAULT_VALUES, PriorityClass
from koord.api.qos import QoSClass
from koord.api.quantity import format_binary, format_decimal, milli_or, multiply_base, parse_milli
from roles.manager.noderesource import formula
from roles.manager.noderesource.inputs import LOW_CLASSES, Amount, dangling_usage, pod_usages, reserved, system_usage
from roles.manager.noderesource.model import Inputs, ZoneAmounts

RESOURCES = (names.RESOURCE_CPU, names.RESOURCE_MEMORY)
NAMES = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)

UNREADABLE = -1
"""Stands for an amount that is there and is none: it differs from every one that is wanted, and so is written anew."""


def has_zones(topology: NodeResourceTopology | None) -> bool:
    """Whether a topology has a zone with cpu or memory."""
    return topology is not None and any(item.name in RESOURCES for zone in topology.zones for item in zone.resources)


def calculate(inputs: Inputs) -> ZoneAmounts:
    """zone name -> batch-cpu in milli and batch-memory in bytes; empty when the node reports no NUMA zones. Raises QuantityError."""
    if inputs.topology is None or inputs.metric is None or not has_zones(inputs.topology):
        return {}
    zones = inputs.topology.zones
    count = len(zones)
    kubelet, annotation = reserved(inputs.node)
    kept = [_ceil(max(_milli(i, kubelet[i]), _milli(i, annotation[i])), count) for i in (0, 1)]
    system, hosts = system_usage(inputs.metric, DEFAULT_VALUES[PriorityClass.BATCH])
    used_by_system = [_ceil(_milli(i, system[i]) + _milli(i, hosts[i]), count) for i in (0, 1)]
    dangling = dangling_usage(inputs.metric, inputs.pods)
    sums = _sum_pods(inputs, count, pod_usages(inputs.metric), dangling)
    strategy = inputs.strategy
    result: dict[str, dict[str, int]] = {}
    for number, zone in enumerate(zones):
        total = _allocatable(zone)
        amounts: dict[str, int] = {}
        for index, policy, percent, cap in (
            (0, strategy.cpu_policy, strategy.cpu_reclaim_percent, strategy.batch_cpu_threshold_percent),
            (1, strategy.memory_policy, strategy.memory_reclaim_percent, strategy.batch_memory_threshold_percent),
        ):
            sum_ = sums[number]
            amount = formula.Balance(
                policy=policy,
                total=total[index],
                reclaim_percent=percent,
                cap=cap,
                reserved=kept[index],
                system=used_by_system[index],
                used=sum_.used[index],
                request=sum_.request[index],
                max=sum_.max[index],
                parts=1 if index == 0 else 1000,
            ).amount
            amounts[NAMES[index]] = amount if index == 0 else _ceil(amount, 1000)
        result[zone.name] = amounts
    return result


def _milli(index: int, amount: int) -> int:
    """cpu is in milli already, memory is in bytes."""
    return amount if index == 0 else amount * 1000


def _ceil(amount: int, parts: int) -> int:
    return -(-amount // parts)


def _allocatable(zone: TopologyZone) -> list[int]:
    found = {item.name: parse_milli(item.allocatable) for item in zone.resources if item.name in RESOURCES}
    return [found.get(name, 0) for name in RESOURCES]


def _sum_pods(inputs: Inputs, count: int, used: Mapping[str, Amount], dangling: Amount) -> list[formula.HighPriority]:
    shared = [_ceil(_milli(i, dangling[i]), count) for i in (0, 1)]
    sums = [formula.HighPriority(list(shared), [0, 0], list(shared)) for _ in range(count)]
    for pod in inputs.pods:
        if pod.priority_class in LOW_CLASSES:
            continue
        valid = sorted({number for number in pod.numa_nodes if 0 <= number < count}) or range(count)
        measured = used.get(pod.key)
        for index, wanted in enumerate((pod.cpu, pod.memory)):
            request = _ceil(_milli(index, wanted), len(valid))
            usage = None if measured is None else _ceil(_milli(index, measured[index]), len(valid))
            for number in valid:
                zone = sums[number]
                zone.request[index] += request
                zone.used[index] += request if usage is None or (pod.qos is QoSClass.LSE and index == 0) else usage
                zone.max[index] += request if usage is None else max(request, usage)
    return sums


def write(zones: list[dict[str, Any]], amounts: ZoneAmounts, ratio: float | None, threshold: float) -> list[dict[str, Any]] | None:
    """The raw zones of a NodeResourceTopology with batch amounts written in, None when nothing differs by more than `threshold`.

    Each amount becomes capacity, allocatable and available; new names keep the list sorted. batch-cpu is scaled by `ratio` if > 1.
    """
    changed = False
    result = []
    for zone in zones:
        wanted = amounts.get(zone.get("name", ""))
        if not wanted:
            result.append(zone)
            continue
        resources = [dict(item) for item in zone.get("resources") or []]
        for name, amount in wanted.items():
            value = scale(amount, ratio) if name == names.RESOURCE_BATCH_CPU else amount
            text = format_decimal(value) if name == names.RESOURCE_BATCH_CPU else format_binary(value)
            item = next((item for item in resources if item.get("name") == name), None)
            if item is None:
                resources.append({"name": name, "capacity": text, "allocatable": text, "available": text})
                changed = True
                continue
            for field in ("capacity", "allocatable", "available"):
                if differs(milli_or(item.get(field), UNREADABLE), value * 1000, threshold):
                    item[field] = text
                    changed = True
        resources.sort(key=lambda item: str(item.get("name")))
        result.append({**zone, "resources": resources})
    return result if changed else None


def clear(zones: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The raw zones without batch resources, None when there are none: stale amounts must not outlive a reset."""
    if not any(item.get("name") in NAMES for zone in zones for item in zone.get("resources") or []):
        return None
    return [{**zone, "resources": [item for item in zone.get("resources") or [] if item.get("name") not in NAMES]} for zone in zones]


def scale(amount: int, ratio: float | None) -> int:
    """`amount × ratio` for ratios above 1: truncated in thousandths, then rounded up to a whole."""
    return amount if ratio is None or ratio <= 1 else _ceil(multiply_base(amount * 1000, ratio), 1000)


def differs(old: int, new: int, threshold: float) -> bool:
    """|new − old| > old × threshold, strictly."""
    return abs(new - old) > old * threshold
