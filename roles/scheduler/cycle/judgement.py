"""How one pod shape was judged on all nodes, and reading it: who refused what and why, which scores won."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cycle.vectors import FilterVector, ScoreVector
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.interfaces import Codes, Filter, Rejection
from roles.scheduler.framework.restoring import NOTHING, Restored

INFEASIBLE = -np.inf


class Judgement:
    """`totals` is -inf for rows that are not feasible, `count` how many are; `restored` are the reservations that the shape may use."""

    __slots__ = ("cluster", "count", "feasible", "filters", "restored", "row_filters", "scores", "totals")

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.filters: list[FilterVector] = []
        self.row_filters: list[FilterVector] = []
        self.scores: list[ScoreVector] = []
        self.feasible: NDArray[np.bool_] = cluster.alive
        self.totals: Vector = np.zeros(0)
        self.count = 0
        self.restored: Restored = NOTHING

    def check_row(self, ctx: CycleContext, slot: int, vectors: Iterable[FilterVector] | None = None) -> tuple[str, Rejection] | None:
        """Ask every filter, or those given, about one row as it is now (inside a what-if), keeping nothing; the first refusal, or None."""
        if not self.cluster.alive[slot]:
            raise IndexError(f"slot {slot} holds no node")
        row = np.array((slot,), dtype=np.intp)
        with ctx.restoring(slot):
            for plugin, codes in self._refusals(ctx, row, vectors):
                refined = plugin.refine(ctx, row, codes)
                return plugin.name, plugin.rejection(ctx, int(refined[0]))
        return None

    def passes(self, ctx: CycleContext, slot: int) -> bool:
        """As `check_row`, without the reason."""
        with ctx.restoring(slot):
            return next(self._refusals(ctx, np.array((slot,), dtype=np.intp)), None) is None

    def _refusals(
        self, ctx: CycleContext, row: NDArray[np.intp], vectors: Iterable[FilterVector] | None = None
    ) -> Iterator[tuple[Filter, Codes]]:
        """Who refuses a row as it is now. What filters say that look at the node alone is known: what-ifs move pods."""
        for vector in (*self.filters, *self.row_filters) if vectors is None else vectors:
            if vector.of_node_alone:
                codes = None if vector.codes is None else vector.codes[row]
            else:
                codes = vector.plugin.filter(ctx, row)
            if codes is not None and codes[0]:
                yield vector.plugin, codes

    def first_codes(self, ctx: CycleContext) -> list[tuple[Filter, NDArray[np.intp], Codes]]:
        """Per filter the rows that it was the first to refuse, with their refined codes."""
        left = self.cluster.alive.copy()
        result: list[tuple[Filter, NDArray[np.intp], Codes]] = []
        for vector in (*self.filters, *self.row_filters):
            if vector.codes is None:
                continue
            refused = np.logical_and(left, vector.codes)
            slots = np.flatnonzero(refused)
            if len(slots):
                result.append((vector.plugin, slots, self._refine(ctx, vector, slots)))
                np.greater(left, refused, out=left)
        return result

    def _refine(self, ctx: CycleContext, vector: FilterVector, slots: NDArray[np.intp]) -> Codes:
        """Refined codes of refused rows; those with usable reservations are looked at without them."""
        assert vector.codes is not None
        codes = vector.codes[slots]
        refined = vector.plugin.refine(ctx, slots, codes)
        for index, slot in enumerate(slots.tolist() if self.restored else ()):
            if slot in self.restored:
                with ctx.restoring(slot):
                    one = vector.plugin.refine(ctx, slots[index : index + 1], codes[index : index + 1])
                if refined is codes or refined.dtype != one.dtype:
                    refined = refined.astype(one.dtype)
                refined[index] = one[0]
        return refined

    def refusing(self) -> Iterator[str]:
        """Names of the filters that refuse a node, also one that another refuses as well."""
        for vector in (*self.filters, *self.row_filters):
            if vector.codes is not None and np.logical_and(self.cluster.alive, vector.codes).any():
                yield vector.plugin.name

    def terms(self, slot: int) -> tuple[tuple[str, float], ...]:
        """Weighted score by plugin of a row."""
        return tuple([(vector.plugin.name, vector.value(slot)) for vector in self.scores])

    def leading(self, terms: Sequence[tuple[str, float]]) -> str:
        """The plugin that gave a row most, of those that tell nodes apart, in `terms` of that row; "" without one."""
        most, leader = -np.inf, ""
        for vector, (name, value) in zip(self.scores, terms, strict=True):
            if value >= most and not isinstance(vector.raw, float) and (value > most or name > leader):
                most, leader = value, name
        return leader
