"""What extenders, asked outside the cycle, say about the nodes that the plugins left."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cycle.judgement import INFEASIBLE
from roles.scheduler.framework.interfaces import Rejection

NOT_ASKED = Rejection(("node(s) became feasible after the extenders were asked",), resolvable=False)

Refusals = dict[int, tuple[str, Rejection]]


@dataclass(slots=True)
class Advice:
    """Handed to `Cycle.decide` twice. The first time it is empty and the cycle fills `open`: the slots that extenders are to be asked
    about. The second time it holds their answers: `refused` by slot with who refused and why, `scores` by slot, weighted."""

    open: NDArray[np.intp] | None = None
    refused: Refusals = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)

    def apply(self, totals: Vector) -> tuple[Vector, Refusals]:
        """Totals and refusals with the answers in them; nodes that nobody was asked about are left for the next attempt."""
        left = np.flatnonzero(totals != INFEASIBLE)
        if self.open is None:
            self.open = left
            return totals, {}
        asked = set(self.open.tolist())
        refused = {slot: self.refused.get(slot, ("", NOT_ASKED)) for slot in left.tolist() if slot in self.refused or slot not in asked}
        if not refused and not self.scores:
            return totals, refused
        advised = totals.copy()
        for slot, score in self.scores.items():
            advised[slot] += score  # infeasible ones stay minus infinity
        advised[list(refused)] = INFEASIBLE
        return advised, refused
