"""Scores of nodes for pods that want to be close to their like (SCH-NT-03)."""

from __future__ import annotations

import numpy as np

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.plugins.network_topology.network import Network
from roles.scheduler.plugins.network_topology.tree import Place, Tree


def closeness(ctx: CycleContext, network: Network, tree: Tree, kind: str) -> Vector:
    """0..100 by slot, 100 for the first: nodes with most pods of the kind, there and then in each place above; then those under places
    with fewer candidates; then by name. Nodes outside the tree get 0."""
    cluster = ctx.cluster
    leaves = [(cluster.slot_of(name), leaf) for name, leaf in tree.leaves.items()]
    candidates = [(slot, leaf) for slot, leaf in leaves if slot >= 0 and ctx.feasible[slot]]
    by_slot = network.counts(kind)
    existing = tree.sums([by_slot.get(slot, 0) for slot, _ in leaves]).tolist()
    slots = tree.sums([int(slot >= 0 and ctx.feasible[slot]) for slot, _ in leaves]).tolist()

    def rank(item: tuple[int, Place]) -> tuple[object, ...]:
        lineage = list(item[1].lineage())
        return (tuple(-existing[place.index] for place in lineage), tuple(slots[place.index] for place in lineage), item[1].name)

    candidates.sort(key=rank)
    result = np.zeros(cluster.capacity)
    last = max(len(candidates) - 1, 1)
    for number, (slot, _) in enumerate(candidates):
        result[slot] = 100 - number * 100 // last
    return result
