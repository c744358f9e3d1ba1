"""GPU partitions: sets of cards that are handed out together (SCH-DEV-06). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api import names
from roles.scheduler.framework.status import Status, unresolvable, unschedulable
from roles.scheduler.plugins.device_share.amounts import GPU, Wanted
from roles.scheduler.plugins.device_share.inventory import Inventory, Partition, PartitionTable
from roles.scheduler.plugins.device_share.request import PartitionSpec
from roles.scheduler.plugins.device_share.topology import together
from roles.scheduler.plugins.device_share.view import Unit, View

_NO_TABLE = unresolvable("node(s) missing GPU Partition Table")
_NO_SIZE = unresolvable("node(s) Unsupported number of GPU requests")
_NONE_FREE = unschedulable("Insufficient Partitioned GPU Devices")

# Sizes of partitions to be kept whole for later, with what keeping one is worth.
_KEPT_WHOLE = ((8, 10000), (4, 100), (2, 1))

# Boards on which any aligned block of cards is one NVSwitch partition. Models are named as node labels name them, with or without
# form factor and memory ("H100", "H100-80GB-HBM3").
_NVSWITCH_MODELS = ("H100", "H800", "H20", "H200", "B200", "A100-SXM4", "A800-SXM4")
_BLOCKS: PartitionTable = {
    size: tuple(Partition(tuple(range(first, first + size)), None, 1) for first in range(0, 8, size)) for size in (1, 2, 4, 8)
}


def table_of(inventory: Inventory, labels: Mapping[str, str]) -> PartitionTable | None:
    """The partitions of a node: the Device's own, else those known of the node's model."""
    if inventory.partitions is not None:
        return inventory.partitions
    if labels.get(names.LABEL_GPU_VENDOR, "") not in ("", names.GPU_VENDOR_NVIDIA):
        return None
    model = labels.get(names.LABEL_GPU_MODEL, "")
    known = any(model == name or model.startswith(f"{name}-") for name in _NVSWITCH_MODELS)
    return _BLOCKS if known and "PCIE" not in model.upper() else None


def honored(inventory: Inventory, labels: Mapping[str, str]) -> bool:
    """Whether the node hands out GPUs as whole partitions only, whoever asks."""
    if inventory.partitions is not None:
        return inventory.honors_partitions
    return labels.get(names.LABEL_NODE_GPU_PARTITION_POLICY) == names.GPU_PARTITION_POLICY_HONOR


def choose_partition(
    view: View, wanted: Wanted, spec: PartitionSpec | None, scope: int = 0, near: frozenset[str] = frozenset()
) -> tuple[Unit, ...] | Status | None:
    """The cards of the best partition; None where none is free and nobody insists, a refusing status where pod or node does. `scope` is
    the rank of the topology scope that they must share; partitions on the PCIe switches `near` are preferred."""
    insists = spec is not None or honored(view.inventory, view.labels)
    table = table_of(view.inventory, view.labels)
    if table is None:
        return _NO_TABLE if insists else None
    partitions = table.get(wanted.count)
    if not partitions:
        return _NO_SIZE if insists else None
    units = {unit.minor: unit for unit in view.units.get(GPU, ()) if not unit.busy and unit.has(wanted)}
    busy, forced = view.busy(GPU), view.forced_of(GPU)
    liked = {unit.minor for unit in units.values() if (GPU, unit.minor) in view.preferred or unit.card.pcie in near}

    def rank(partition: Partition) -> tuple[int, int]:
        return len(liked.intersection(partition.minors)), _kept_whole(table, wanted.count, busy.union(partition.minors))

    levels = sorted({partition.score for partition in partitions}, reverse=True)
    for level in levels[:1] if spec is not None and spec.restricted else levels:
        candidates = [p for p in partitions if p.score == level and _feasible(p, units, spec, scope) and forced.issubset(p.minors)]
        if candidates:
            return tuple(units[minor] for minor in max(candidates, key=rank).minors)
    return _NONE_FREE if insists else None


def _feasible(partition: Partition, units: Mapping[int, Unit], spec: PartitionSpec | None, scope: int) -> bool:
    if spec is not None and spec.bandwidth and (partition.bandwidth is None or partition.bandwidth < spec.bandwidth):
        return False
    return all(minor in units for minor in partition.minors) and together([units[minor] for minor in partition.minors], scope)


def _kept_whole(table: PartitionTable, size: int, used: frozenset[int]) -> int:
    """What the partitions of the best level that stay untouched are worth."""
    worth = 0
    for kept, weight in _KEPT_WHOLE:
        rows = table.get(kept, ())
        if kept >= size and rows:
            best = max(row.score for row in rows)
            worth += weight * sum(row.score for row in rows if row.score == best and used.isdisjoint(row.minors))
    return worth
