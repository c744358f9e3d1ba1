"""Rows with reservations that a shape may use: they are judged as if the reserve pods were not there (framework/restoring.py)."""

from __future__ import annotations

from collections.abc import Sequence

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cycle.judgement import Judgement
from roles.scheduler.cycle.vectors import FilterVector, ScoreVector
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.interfaces import Filter
from roles.scheduler.framework.restoring import NOTHING, RestoredReservation

ALL = -1  # whatever a row's change may concern


class RestoredRows(Judgement):
    """The part of an evaluation that asks about such rows."""

    __slots__ = ("_outdated", "_restores", "_varying", "framework")

    def __init__(self, framework: Framework, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.framework = framework
        self._restores = False  # whether the shape may ever use a reservation
        self._outdated: set[int] = set()  # rows whose raw scores were not kept up while they were not feasible
        self._varying: tuple[float, list[ScoreVector]] | None = None  # sum of the scores that are one number, and the others

    def _raw_row(self, ctx: CycleContext, slot: int, vectors: list[ScoreVector]) -> None:
        for vector in vectors:
            if vector.set_raw(slot, vector.plugin.score_row(ctx, slot), self.cluster.capacity):
                self._varying = None

    def _restore(self, ctx: CycleContext) -> None:
        """Ask which reservations the shape may use on which rows."""
        restorer = self.framework.restorer
        found = restorer.restored_rows(ctx) if restorer is not None else None
        self._restores = found is not None
        self.restored = ctx.restored = found or NOTHING

    def _follow(self, ctx: CycleContext, rows: dict[int, int]) -> None:
        """The same for rows that changed; one with other reservations than before is asked about everything."""
        restorer = self.framework.restorer
        assert restorer is not None
        found: dict[int, tuple[RestoredReservation, ...]] | None = None
        for slot, kinds in rows.items():
            if not kinds & restorer.restore_reads:
                continue
            before, now = self.restored.get(slot, ()), restorer.restored_row(ctx, slot)
            if now == before:
                continue
            rows[slot] = ALL
            if found is None:
                found = dict(self.restored)  # decisions that are being carried out still look at the old one
            if now:
                found[slot] = now
            else:
                del found[slot]
        if found is not None:
            self.restored = ctx.restored = found

    def _ask(self, ctx: CycleContext, plugin: Filter, slot: int) -> int:
        if slot not in self.restored:
            return plugin.filter_row(ctx, slot)
        with ctx.restoring(slot):
            return plugin.filter_row(ctx, slot)

    def _restored_codes(self, ctx: CycleContext, vectors: Sequence[FilterVector]) -> None:
        """Filters answer about all rows as they stand; for rows with usable reservations they are asked again."""
        for slot in self.restored:
            if self.cluster.alive[slot]:
                with ctx.restoring(slot):
                    for vector in vectors:
                        vector.set_code(slot, vector.plugin.filter_row(ctx, slot), self.cluster.capacity)

    def _restored_scores(self, ctx: CycleContext, vectors: list[ScoreVector] | None = None) -> None:
        """Scores likewise, but for those that follow from counts over all nodes: they take reserve pods for pods."""
        local = [vector for vector in self.scores if vector.plugin.score_reads] if vectors is None else vectors
        if local:
            for slot in self.restored:
                if self.feasible[slot]:
                    with ctx.restoring(slot):
                        self._raw_row(ctx, slot, local)
                else:
                    self._outdated.add(slot)
