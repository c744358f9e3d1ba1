"""The debug page of a node (SCH-NUMA-14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.accounting.cpuset import CPUSet
from koord.accounting.resources import ResourceVector, format
from koord.api import names
from roles.scheduler.plugins.numa.allocator import pool_of
from roles.scheduler.plugins.numa.columns import NodeState
from roles.scheduler.plugins.numa.facts import Facts
from roles.scheduler.plugins.numa.picks import FULL, SPREAD
from roles.scheduler.plugins.numa.records import Usage

_BIND_NAMES = {
    "": names.NODE_CPU_BIND_NONE, FULL: names.NODE_CPU_BIND_FULL_PCPUS_ONLY, SPREAD: names.NODE_CPU_BIND_SPREAD_BY_PCPUS,
}  # fmt: skip


def node_page(name: str, state: NodeState, usage: Usage) -> dict[str, Any]:
    """Everything known of a node, CPUs as lists and amounts as quantities."""
    facts = state.facts
    return {
        "name": name,
        "cpuTopology": _topology(facts),
        "reservedCPUs": _text(facts.reserved),
        "maxRefCount": 1,
        "policy": _BIND_NAMES[facts.bind_policy],
        "numaTopologyPolicy": str(facts.policy),
        "numaNodeResources": _zones(facts.zones),
        "amplificationRatios": dict(facts.ratios),
        "remainingNUMANodeResources": _zones(pool_of(facts, usage, "").amounts),
        "allocatedNUMANodeResources": _zones(usage.allocated),
        "availableCPUs": _text(usage.free),
        "allocatedCPUs": _text(usage.taken),
        "allocatedPods": [
            {
                "uid": uid,
                "namespace": record.key.partition("/")[0],
                "name": record.key.partition("/")[2],
                "cpuset": _text(record.cpus),
                "cpuExclusivePolicy": record.exclusive,
                "numaNodeResources": _zones(record.amounts),
            }
            for uid, record in sorted(state.records.items(), key=lambda item: (item[1].key, item[0]))
        ],
    }


def _topology(facts: Facts) -> dict[str, Any]:
    machine = facts.machine
    detail = [
        {"id": cpu, "core": core.key[1], "socket": core.socket, "node": core.node}
        for core in machine.cores
        for cpu in CPUSet.from_mask(core.mask)
    ]
    return {
        "numCPUs": machine.all.bit_count(),
        "numCores": len(machine.cores),
        "numNodes": len(machine.nodes),
        "numSockets": len(machine.sockets),
        "cpuDetails": sorted(detail, key=lambda cpu: cpu["id"]),
    }


def _text(cpus: int) -> str:
    return str(CPUSet.from_mask(cpus))


def _zones(amounts: Mapping[int, ResourceVector]) -> list[dict[str, Any]]:
    return [{"node": node, "resources": format(amounts[node])} for node in sorted(amounts)]
