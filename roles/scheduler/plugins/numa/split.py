"""How a request is split over NUMA nodes (SCH-NUMA-08). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.accounting.resources import ResourceVector
from koord.api.names import RESOURCE_CPU

Available = Mapping[int, Mapping[str, int]]
"""By NUMA node what it has left, in base units."""


def split(
    amounts: ResourceVector, nodes: Sequence[int], available: Available, known: frozenset[str], cpu_step: int
) -> tuple[dict[int, ResourceVector], tuple[str, ...]]:
    """Shares by NUMA node, and reasons where something is left over. `known` are resources that NUMA nodes have at all: others are
    ignored. `cpu_step` is the step in which CPU is dealt out.

    The node with the least left gives first, everybody an equal part of what is still wanted, so that those with more fill up.
    """
    shares: dict[int, ResourceVector] = {}
    lacking: list[str] = []
    for name in sorted(amounts):
        if name not in known:
            continue
        wanted, step = amounts[name], cpu_step if name == RESOURCE_CPU else 1
        order = sorted(nodes, key=lambda node: (available.get(node, {}).get(name, 0), node))
        for index, node in enumerate(order):
            part = min(available.get(node, {}).get(name, 0), wanted // (len(order) - index)) // step * step
            if part > 0:
                shares.setdefault(node, {})[name] = part
                wanted -= part
        if wanted > 0:
            lacking.append(f"Insufficient NUMA {name}")
    return dict(sorted(shares.items())), tuple(lacking)
