"""Zones of the NodeResourceTopology: resources of each NUMA node (KLO-SI-05). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koord.api.quantity import format_binary, format_decimal, milli_or, parse_milli
from roles.koordlet.host.numa import HUGEPAGE_SIZES, NumaNode
from roles.koordlet.host.topology import CPUTopology

Zone = dict[str, Any]

#: Resources of a zone that koordlet owns; others' stay as they are.
MANAGED = ("cpu", *HUGEPAGE_SIZES.values(), "memory")
#: Resources whose values decide whether zones differ.
COMPARED = (*MANAGED, "koordinator.sh/gpu")


class ZoneError(ValueError):
    """CPU and memory inventory do not fit together."""


def _quantity(name: str, milli: int) -> str:
    if milli % 1000:
        return f"{milli}m"
    return format_decimal(milli // 1000) if name == "cpu" else format_binary(milli // 1000)


def numa_reserved(
    capacity: Mapping[str, str | int | float], allocatable: Mapping[str, str | int | float], zones: Mapping[str, int]
) -> dict[str, int]:
    """Share of capacity - allocatable that each of the ``zones`` NUMA nodes with a resource bears, in milli units, rounded up."""
    out: dict[str, int] = {}
    for name, bearers in zones.items():
        if name in capacity and name in allocatable and bearers > 0:
            reserved = parse_milli(capacity[name]) - parse_milli(allocatable[name])
            if reserved > 0:
                out[name] = -(-reserved // bearers)
    return out


def make_zones(topology: CPUTopology, numa: Sequence[NumaNode], reserved: Mapping[str, int]) -> list[Zone]:
    """One zone a NUMA node that exists; memory-only nodes have no CPUs.

    ``reserved`` (milli units a zone) lowers allocatable and available; capacity stays. A NUMA node with CPUs but without
    readable memory is a :class:`ZoneError`: half of a report must not be published.
    """
    memory = {node.id: node for node in numa}
    lacking = [n for n in topology.nodes if n not in memory]
    if lacking:
        raise ZoneError(f"NUMA nodes {lacking} have CPUs but no readable meminfo")
    zones: list[Zone] = []
    for number in sorted(memory):
        node = memory[number]
        totals = {"cpu": len(topology.nodes.get(number, ())), "memory": node.memory.total - sum(node.hugepages.values())}
        totals.update({name: node.hugepages.get(name, 0) for name in HUGEPAGE_SIZES.values()})
        rows = []
        for name in sorted(totals):
            full = totals[name] * 1000
            usable = _quantity(name, max(full - reserved.get(name, 0), 0))
            rows.append({"name": name, "capacity": _quantity(name, full), "allocatable": usable, "available": usable})
        zones.append({"name": f"node-{number}", "type": "Node", "resources": rows})
    return zones


def merge_zones(existing: Sequence[Zone], wanted: Sequence[Zone]) -> list[Zone]:
    """Wanted zones with what others keep in them: foreign resources, costs, attributes. Zones that vanished are dropped."""
    by_name = {z.get("name"): z for z in existing}
    out: list[Zone] = []
    for zone in wanted:
        old = by_name.get(zone["name"]) or {}
        managed = {r["name"] for r in zone["resources"]}
        foreign = [r for r in old.get("resources") or [] if r.get("name") not in managed]
        merged = {**old, **zone}
        merged["resources"] = sorted([*zone["resources"], *foreign], key=lambda r: str(r.get("name")))
        out.append(merged)
    return out


def zone_values(zones: Sequence[Zone]) -> list[tuple[str, str, tuple[tuple[str, int, int], ...]]]:
    """What decides whether zones differ: names, types, and capacity and allocatable of the compared resources."""
    out = []
    for zone in zones:
        rows = []
        for row in zone.get("resources") or []:
            if row.get("name") in COMPARED:
                rows.append((str(row["name"]), milli_or(row.get("capacity"), -1), milli_or(row.get("allocatable"), -1)))
        out.append((str(zone.get("name")), str(zone.get("type")), tuple(sorted(rows))))
    return sorted(out)
