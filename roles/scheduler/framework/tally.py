"""Filters that add up: what they would say of nodes that some pods have left is worked out, for many nodes at once, and not tried.

A filter adds up when its answer about a node follows from what the pods there count for together. One that does hands out a `Tally`
(`Filter.tally`); preemption asks it in place of what-ifs, and so does who looks at nodes with the pods nominated to them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape

Slots = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Tally:
    """One filter about one pending pod, by default one that refuses nothing. `freed` has a row for each of `size` amounts and a column for
    each slot: by how much less is counted there. Valid until the cluster changes."""

    size: int = 0

    def unknown(self, slots: Slots) -> Mask | None:
        """Slots of which only trying tells; None for no slot."""
        return None

    def weigh(self, slot: int, pod: PodInfo) -> tuple[float, ...]:
        """What a pod that counts on the slot adds there, by amount; never below 0, so that leaving never hurts."""
        return ()

    def brought(self, shape: PodShape) -> tuple[float, ...] | None:
        """What a pod of that shape would add on any slot, by amount, if it came; None where only trying tells."""
        return None

    def passes(self, slots: Slots, freed: Vector) -> Mask:
        """Which slots the filter lets through."""
        return np.ones(len(slots), dtype=np.bool_)

    def codes(self, slots: Slots, freed: Vector) -> NDArray[np.integer]:
        """Codes as `Filter.refine` gives them, 0 where it passes."""
        return np.zeros(len(slots), dtype=np.int32)


FIXED = Tally()
"""What the filter says of a node stays, whoever leaves it."""
