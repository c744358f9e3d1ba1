"""What extenders, asked outside the cycle, say about the nodes that the plugins left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cycle.judgement import INFEASIBLE
from roles.scheduler.framework.interfaces import Rejection

NOT_ASKED = Rejection(("node(s) became feasible after the extenders were asked",), resolvable=False)

Refusals = dict[int, tuple[str, Rejection]]


@dataclass(slots=True)
class Advice:
    """Handed to `Cycle.decide` twice. The first time it is empty and the cycle fills `open`: the slots that extenders are to be asked
    about, with the names of their nodes. The second time it holds their answers: `refused` by slot with who refused and why, `scores` by
    slot, weighted."""

    open: dict[int, str] | None = None
    refused: Refusals = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)

    def apply(self, totals: Vector, name_of: Callable[[int], str]) -> tuple[Vector, Refusals]:
        """Totals and refusals with the answers in them; nodes that nobody was asked about are left for the next attempt, also one that has
        the slot of one that was."""
        left = np.flatnonzero(totals != INFEASIBLE).tolist()
        if self.open is None:
            self.open = {slot: name_of(slot) for slot in left}
            return totals, {}
        asked = {slot for slot in left if self.open.get(slot) == name_of(slot)}
        refused = {slot: ("", NOT_ASKED) for slot in left if slot not in asked}
        refused.update((slot, refusal) for slot, refusal in self.refused.items() if slot in asked)
        if not refused and not self.scores:
            return totals, refused
        advised = totals.copy()
        for slot, score in self.scores.items():
            advised[slot] += score  # infeasible ones stay minus infinity
        advised[list(refused)] = INFEASIBLE
        return advised, refused
