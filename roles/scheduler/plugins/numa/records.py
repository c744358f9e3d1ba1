"""What pods hold of a node's CPUs and NUMA nodes, and what that leaves (SCH-NUMA-07, 09, 11). Pure.

A CPU is held by every pod whose record has it: a reserve pod and its owners hold the same ones, and whoever is left keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from koord.accounting.cpuset import CPUSet
from koord.accounting.resources import ResourceVector, add_into, amplify_value, format, non_negative, parse, sub_into
from koord.api import names
from koord.api.annotations import parse_resource_spec, parse_resource_status
from roles.scheduler.plugins.numa.facts import Facts
from roles.scheduler.plugins.numa.machine import MAX_NUMA_NODE, Machine
from roles.scheduler.plugins.numa.picks import FULL, NOBODY, NUMA_NODE_LEVEL, PCPU_LEVEL, SPREAD, Held, usable
from roles.scheduler.plugins.topology_manager.hints import NodeUse


@dataclass(frozen=True, slots=True)
class Record:
    """What one pod holds: CPUs as a mask, amounts in base units by NUMA node. `key` is namespace/name."""

    key: str = ""
    cpus: int = 0
    amounts: Mapping[int, ResourceVector] = field(default_factory=dict)
    exclusive: str = ""

    def __bool__(self) -> bool:
        return bool(self.cpus or self.amounts)


def read_record(key: str, annotations: Mapping[str, str]) -> Record | None:
    """The record that a pod's or Reservation's annotations tell; None when they tell none. Raises ValueError."""
    if names.ANNOTATION_RESOURCE_STATUS not in annotations:
        return None
    status = parse_resource_status(annotations)
    if status is None:
        return None
    amounts = {part.node: non_negative(parse(part.resources)) for part in status.numa_node_resources if 0 <= part.node <= MAX_NUMA_NODE}
    try:
        spec = parse_resource_spec(annotations)
    except ValueError:
        spec = None  # what the pod holds counts all the same
    exclusive = spec.preferred_cpu_exclusive_policy if spec is not None else ""
    record = Record(key, CPUSet.parse(status.cpuset).mask if status.cpuset else 0, amounts, exclusive)
    return record or None


def write_record(record: Record) -> str:
    """The resource-status annotation of a record."""
    status: dict[str, Any] = {}
    if record.cpus:
        status["cpuset"] = str(CPUSet.from_mask(record.cpus))
    if record.amounts:
        status["numaNodeResources"] = [{"node": node, "resources": format(record.amounts[node])} for node in sorted(record.amounts)]
    return orjson.dumps(status).decode()


@dataclass(frozen=True, slots=True)
class Usage:
    """What is held of a node in all. `allocated` is by NUMA node, CPUs of bound pods amplified; `recorded` is the part of it that pods
    have as amounts, which is what scores look at; `free` are CPUs that may be handed out; `use` is how all pods use the NUMA nodes,
    `bound_use` how those with CPUs of their own do; `bound` is 1000 times the CPUs that are held (milli-CPU)."""

    taken: int
    free: int
    held: Mapping[str, Held]
    allocated: Mapping[int, ResourceVector]
    recorded: Mapping[int, ResourceVector]
    use: Mapping[int, NodeUse]
    bound_use: Mapping[int, NodeUse]
    bound: int


def usage_of(facts: Facts, records: Mapping[str, Record], owners: Mapping[str, Iterable[str]]) -> Usage:
    """Sum up. `owners` are pods by the reservation that they use: what they hold inside it counts once."""
    taken = 0
    held: dict[str, Held] = {}
    spans: dict[int, bool] = {}
    bound_spans: dict[int, bool] = {}
    for record in records.values():
        taken |= record.cpus
        if record.exclusive == PCPU_LEVEL:
            held[PCPU_LEVEL] = Held(held.get(PCPU_LEVEL, NOBODY).pcpu | record.cpus, 0)
        elif record.exclusive == NUMA_NODE_LEVEL:
            held[NUMA_NODE_LEVEL] = Held(0, held.get(NUMA_NODE_LEVEL, NOBODY).numa | record.cpus)
        used = nodes_used(facts.machine, record)
        for node in used:
            spans[node] = spans.get(node, False) or len(used) > 1
            if record.cpus:
                bound_spans[node] = bound_spans.get(node, False) or len(used) > 1
    allocated = recorded = _summed(facts, records, owners, taken, holdings)
    if any(record.cpus and not record.amounts for record in records.values()):
        recorded = _summed(facts, records, owners, taken, _amounts)
    free, bound = facts.machine.all & ~facts.reserved & ~taken, 1000 * (taken & facts.machine.all).bit_count()
    return Usage(taken, free, held, allocated, recorded, _uses(spans), _uses(bound_spans), bound)


def _uses(spans: Mapping[int, bool]) -> dict[int, NodeUse]:
    return {node: NodeUse.SHARED if wide else NodeUse.SINGLE for node, wide in spans.items()}


Part = Callable[[Machine, Record], Mapping[int, ResourceVector]]


def _summed(
    facts: Facts, records: Mapping[str, Record], owners: Mapping[str, Iterable[str]], taken: int, part: Part
) -> dict[int, ResourceVector]:
    """Amounts of all pods by NUMA node; CPUs that are bound count amplified."""
    total: dict[int, ResourceVector] = {}
    for uid, record in records.items():
        inside = [records[owner] for owner in owners.get(uid, ()) if owner in records]
        amounts = remainder(facts.machine, record, inside, part) if inside else part(facts.machine, record)
        for node, vector in amounts.items():
            add_into(total.setdefault(node, {}), vector)
    if facts.ratio is not None and facts.ratio > 1:
        for node, cpus in facts.machine.nodes.items():
            milli = 1000 * (taken & cpus).bit_count()
            if milli and node in total:
                total[node][names.RESOURCE_CPU] = total[node].get(names.RESOURCE_CPU, 0) - milli + amplify_value(milli, facts.ratio)
    return total


def _amounts(machine: Machine, record: Record) -> Mapping[int, ResourceVector]:
    return record.amounts


def holdings(machine: Machine, record: Record) -> Mapping[int, ResourceVector]:
    """Amounts by NUMA node; CPUs without recorded amounts count where they are."""
    if not record.cpus or any(names.RESOURCE_CPU in amounts for amounts in record.amounts.values()):
        return record.amounts
    found = {node: dict(amounts) for node, amounts in record.amounts.items()}
    for node, cpus in machine.nodes.items():
        if record.cpus & cpus:
            found.setdefault(node, {})[names.RESOURCE_CPU] = 1000 * (record.cpus & cpus).bit_count()
    return found


def remainder(machine: Machine, record: Record, owners: Iterable[Record], part: Part = holdings) -> dict[int, ResourceVector]:
    """What a reservation holds by NUMA node and its owners do not use; no amount is below 0."""
    rest = {node: dict(amounts) for node, amounts in part(machine, record).items()}
    for owner in owners:
        for node, amounts in part(machine, owner).items():
            if node in rest:
                sub_into(rest[node], {name: value for name, value in amounts.items() if name in rest[node]})
    return {node: {name: max(0, value) for name, value in amounts.items()} for node, amounts in rest.items()}


def nodes_used(machine: Machine, record: Record) -> set[int]:
    """NUMA nodes on which a pod holds something."""
    used = {node for node, amounts in record.amounts.items() if any(amounts.values())}
    return used.union(machine.nodes_with(record.cpus)) if record.cpus else used


@lru_cache(maxsize=1 << 16)
def counts_of(machine: Machine, free: int) -> tuple[int, int, int]:
    """How many of the free CPUs a pod can get that binds in any way, to whole cores, or to one thread a core."""
    return free.bit_count(), usable(machine, free, FULL).bit_count(), usable(machine, free, SPREAD).bit_count()
