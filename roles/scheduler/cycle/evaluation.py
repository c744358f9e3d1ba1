"""All nodes judged for one pod shape: filter codes, feasibility, raw scores and weighted totals, kept current row by row.

The first pod of a shape pays for whole vectors. For the next ones only rows that changed since are recomputed, so that a placement
costs one row. The result must equal judging each pod and node afresh (tests/roles/scheduler/cycle/test_equivalence.py).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.changes import NODE
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cycle.judgement import INFEASIBLE
from roles.scheduler.cycle.nominated import NominatedRows
from roles.scheduler.cycle.restored import ALL, RestoredRows
from roles.scheduler.cycle.vectors import FilterVector, ScoreVector, own
from roles.scheduler.framework.context import ALL_ROWS, CycleContext
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.interfaces import ASK, Filter
from roles.scheduler.framework.status import Code, Status

_FEW_ROWS = 48  # up to here changed rows are redone one at a time in Python, beyond that the vectors are built anew

_NO_ROWS: NDArray[np.intp] = np.zeros(0, dtype=np.intp)


class Evaluation(RestoredRows):
    """The judgement of one shape under one profile, kept current."""

    __slots__ = (
        "_best", "_current", "_epoch", "_plans", "_position", "_scored", "_stamped", "data", "nominated", "pre_filter", "skipped",
        "version",
    )  # fmt: skip

    def __init__(self, framework: Framework, cluster: Cluster) -> None:
        super().__init__(framework, cluster)
        self.data: dict[str, Any] = {}
        self.pre_filter: dict[str, Any] = {}
        self.skipped: frozenset[str] = frozenset()
        self.version = 0
        self.nominated = NominatedRows(self)
        self._best: list[int] | None = None  # slots with the highest total, in order; None when unknown
        # By kinds of change: filters to ask, vectors of the others, scores to ask.
        self._plans: dict[int, tuple[list[FilterVector], list[FilterVector], list[ScoreVector]]] = {}
        self._stamped: tuple[list[FilterVector], list[ScoreVector]] = ([], [])
        self._epoch = -1
        self._position = -1
        self._scored = False
        self._current = False

    # ---------------------------------------------------------------- bringing it up to date

    def update(self, ctx: CycleContext) -> None:
        """Make everything current for the pod of `ctx`, which must be of the shape this evaluation is for.

        Nothing is current while plugins are being asked: after one that raised, the next use builds everything anew.
        """
        current, self._current = self._current, False
        if current and self._epoch == self.cluster.changes.epoch:
            self._follow_changes(ctx)
        else:
            self._build(ctx)
        self._current = True

    def _follow_changes(self, ctx: CycleContext) -> None:
        """Ask about the rows that changed since; about all of them where they are many."""
        changes = self.cluster.changes
        position = changes.position
        ctx.data = self.data
        ctx.feasible = self.feasible
        ctx.restored = self.restored
        stale_filters, stale_scores = self._stale(ctx)
        if position == self._position and not stale_filters and not stale_scores:
            return
        rows = changes.since(self._position)
        if rows is not None and self._restores:
            self._follow(ctx, rows)
        if rows is None or len(rows) > _FEW_ROWS:
            self._build(ctx)
            return
        self._position = position
        self.version += 1
        if stale_filters and self._refilter(ctx, stale_filters, rows):
            self._sweep(ctx, rows, stale_scores)
        else:
            self._catch_up(ctx, rows, stale_scores)

    def _stale(self, ctx: CycleContext) -> tuple[list[FilterVector], list[ScoreVector]]:
        """Vectors of which rows that did not change themselves may differ by now."""
        filters, scores = self._stamped
        stale = [vector for vector in filters if vector.plugin.filter_stamp(ctx) != vector.stamp]
        return stale, [v for v in scores if v.plugin.score_stamp(ctx) != v.stamp]

    def _refilter(self, ctx: CycleContext, stale: list[FilterVector], rows: dict[int, int]) -> bool:
        """Ask some filters again about all rows. Rows whose answer turned join those that changed, unless they are many: then True."""
        many = False
        for vector in stale:
            codes = vector.plugin.filter(ctx, ALL_ROWS)
            before, vector.codes = vector.codes, None if codes is None else own(codes)
            self._restored_codes(ctx, (vector,))
            codes = vector.codes
            vector.stamp = vector.plugin.filter_stamp(ctx)
            if before is None:
                turned = np.flatnonzero(codes) if codes is not None else _NO_ROWS
            elif codes is None:
                turned = np.flatnonzero(before)
            else:
                turned = np.flatnonzero(np.not_equal(before != 0, codes != 0))
            if many or len(turned) > _FEW_ROWS:
                many = True
                continue
            for slot in turned.tolist():
                rows.setdefault(slot, 0)
        self._plans = {}
        return many

    def _build(self, ctx: CycleContext) -> None:
        """Compute all vectors."""
        changes = self.cluster.changes
        self._epoch, self._position = changes.epoch, changes.position
        self._scored = False
        self.version += 1
        self.data = ctx.data = {}
        self.scores = []
        self._restore(ctx)
        self._pre_filter(ctx)
        self.filters = []
        self.row_filters = []
        feasible = self.cluster.alive.copy()
        for plugin in self.framework.vector_filters:
            if plugin.name in self.skipped:
                continue
            codes = self.framework.ask(plugin, "Filter", plugin.filter, ctx, ALL_ROWS)
            vector = FilterVector(plugin, None if codes is None else own(codes), plugin.filter_stamp(ctx))
            self.filters.append(vector)
        self._restored_codes(ctx, self.filters)
        for vector in self.filters:
            codes = vector.codes
            if codes is not None:
                np.greater(feasible, codes if codes.dtype == np.bool_ else codes != 0, out=feasible)
        for plugin in self.framework.row_filters:
            if plugin.name not in self.skipped:
                self._row_filter(ctx, plugin, feasible)
        self.feasible = feasible
        self.count = int(np.count_nonzero(feasible))
        self._replan()
        if self.count:
            self._score(ctx)

    def _replan(self) -> None:
        """Forget what is kept about which vectors there are."""
        self._plans = {}
        self._stamped = ([v for v in self.filters if v.stamp is not None], [v for v in self.scores if v.stamp is not None])

    def _plan(self, kinds: int) -> tuple[list[FilterVector], list[FilterVector], list[ScoreVector]]:
        plan = self._plans.get(kinds)
        if plan is None:
            asked = [vector for vector in self.filters if kinds == ALL or vector.plugin.reads & kinds]
            others = [vector for vector in self.filters if vector not in asked and vector.codes is not None]
            plan = self._plans[kinds] = (asked, others, [vector for vector in self.scores if vector.plugin.score_reads & kinds])
        return plan

    def _pre_filter(self, ctx: CycleContext) -> None:
        """Ask the preFilter plugins whose answer the shape decides; the others are asked in each cycle."""
        answers: dict[str, Any] = {}
        skipped: set[str] = set()
        for plugin in self.framework.pre_filters:
            if not plugin.per_pod:
                answer = self.framework.ask(plugin, "PreFilter", plugin.pre_filter, ctx)
                if isinstance(answer, Status):
                    if answer.code is Code.SKIP:
                        skipped.add(plugin.name)
                        continue
                    if answer.ok:
                        continue
                answers[plugin.name] = answer
        self.pre_filter = answers
        self.skipped = frozenset(skipped)

    def _row_filter(self, ctx: CycleContext, plugin: Filter, feasible: NDArray[np.bool_]) -> None:
        """Ask a row-wise filter about the rows that passed everything before, and of those only where its columns do not decide."""
        coarse = plugin.coarse(ctx, ALL_ROWS)
        if coarse is None:
            codes, asked = np.zeros(self.cluster.capacity, dtype=np.int32), np.flatnonzero(feasible)
        else:
            codes = np.where(feasible, coarse, 0).astype(np.int32)
            codes[[slot for slot in self.restored if feasible[slot]]] = ASK
            asked = np.flatnonzero(codes == ASK)
        for slot in asked.tolist():
            codes[slot] = self._ask(ctx, plugin, slot)
        np.putmask(feasible, codes != 0, False)
        self.row_filters.append(FilterVector(plugin, codes, None))

    def _score(self, ctx: CycleContext) -> None:
        """Score plugins whose preScore does not opt out, and their weighted sum."""
        self._scored = True
        self._outdated.clear()
        ctx.feasible = self.feasible
        self.scores = []
        skipped = self.framework.run_pre_score(ctx)
        for plugin, weight in self.framework.scores:
            if plugin.name in skipped:
                continue
            raw = self.framework.ask(plugin, "Score", plugin.score, ctx, ALL_ROWS)
            raw = float(raw) if isinstance(raw, (int, float)) else own(raw)
            self.scores.append(ScoreVector(plugin, weight, raw, plugin.score_stamp(ctx), plugin.normalizer_of(ctx)))
        self._restored_scores(ctx)
        for vector in self.scores:
            vector.set_extremes(self.feasible)
        self._replan()
        self._sum()

    def _sum(self) -> None:
        constant = 0.0
        self._varying = None
        totals: Any = None
        for vector in self.scores:
            part = vector.contribution()
            if isinstance(part, float):
                constant += part
            elif totals is None:
                totals = np.array(part) if part is vector.raw else part
            else:
                totals += part
        if totals is None:
            totals = np.full(self.cluster.capacity, constant)
        elif constant:
            totals += constant
        np.putmask(totals, ~self.feasible, INFEASIBLE)
        self.totals = totals
        self._best = None

    def best(self) -> list[int]:
        """Slots with the highest total, in order. Only while there is a feasible one."""
        best = self._best
        if not best:
            totals = self.totals
            best = self._best = (totals == totals[totals.argmax()]).nonzero()[0].tolist()
        return best

    def _rank(self, slot: int, total: float) -> None:
        """Keep the list of best slots right while one total changes."""
        best = self._best
        if not best:
            return
        top = self.totals.item(best[0])
        if len(best) == 1 and best[0] == slot and total < top:
            self._best = None
            return
        index = bisect_left(best, slot)
        there = index < len(best) and best[index] == slot
        if total > top:
            self._best = [slot]
        elif total == top and not there:
            best.insert(index, slot)
        elif total < top and there:
            del best[index]

    # ---------------------------------------------------------------- rows that changed

    def _catch_up(self, ctx: CycleContext, rows: dict[int, int], stale: list[ScoreVector]) -> None:
        flipped = False
        changed: list[int] = []
        for slot, kinds in rows.items():
            was = bool(self.feasible[slot])
            now = self._filter_row(ctx, slot, kinds)
            if now != was:
                flipped = True
                self.feasible[slot] = now
                self.count += 1 if now else -1
            if now or was:
                changed.append(slot)
            if self._scored:
                self._rescore(ctx, slot, kinds, now)
        if not self._settle(ctx, stale, flipped):
            return
        totals, feasible = self.totals, self.feasible
        for slot in changed:
            total = INFEASIBLE
            if feasible[slot]:
                total, varying = self._split()
                for vector in varying:
                    total += vector.value(slot)
            self._rank(slot, total)
            totals[slot] = total

    def _sweep(self, ctx: CycleContext, rows: dict[int, int], stale: list[ScoreVector]) -> None:
        """Many rows turned because of one filter: who is feasible is worked out for all rows at once."""
        changed = [(slot, kinds) for slot, kinds in rows.items() if kinds]
        for slot, kinds in changed:
            self._filter_row(ctx, slot, kinds)
        feasible = self.cluster.alive.copy()
        for vector in self.filters:
            if vector.codes is not None:
                np.greater(feasible, vector.codes != 0, out=feasible)
        self.row_filters = []
        for plugin in self.framework.row_filters:
            if plugin.name not in self.skipped:
                self._row_filter(ctx, plugin, feasible)
        self.feasible = feasible
        self.count = int(np.count_nonzero(feasible))
        if self._scored:
            for slot, kinds in changed:
                self._rescore(ctx, slot, kinds, bool(feasible[slot]))
            for slot in [slot for slot in self._outdated if feasible[slot]]:
                self._rescore(ctx, slot, 0, True)
        if self._settle(ctx, stale, True):
            self._sum()

    def _rescore(self, ctx: CycleContext, slot: int, kinds: int, feasible: bool) -> None:
        """Raw scores of a row that changed. Those of a row that is out are worked out when it comes back."""
        if not feasible:
            if kinds:
                self._outdated.add(slot)
            return
        if slot in self._outdated:
            self._outdated.discard(slot)
            kinds = ALL
        if kinds:
            self._score_row(ctx, slot, kinds)

    def _settle(self, ctx: CycleContext, stale: list[ScoreVector], flipped: bool) -> bool:
        """Bring raw scores and extremes up to date after rows changed; True when only the totals of those rows are left to do."""
        if not self._scored:
            if self.count:
                self._score(ctx)
            return False
        resum = bool(stale)
        ctx.feasible = self.feasible
        if flipped:
            stale = stale + [v for v in self.scores if v.plugin.uses_feasible and v not in stale]
            resum = bool(stale)
        for vector in stale:
            raw = vector.plugin.score(ctx, ALL_ROWS)
            vector.raw = float(raw) if isinstance(raw, (int, float)) else own(raw)
            self._varying = None
            vector.stamp = vector.plugin.score_stamp(ctx)
            vector.touched = True
        if stale:
            self._restored_scores(ctx, [vector for vector in stale if vector.plugin.score_reads])
        for vector in self.scores:
            if (flipped or vector.touched) and vector.set_extremes(self.feasible):
                resum = True
            vector.touched = False
        if resum:
            self._sum()
        return not resum

    def _split(self) -> tuple[float, list[ScoreVector]]:
        """The sum of the scores that are the same for every row, and the vectors of the others. Whole numbers: any order adds up alike."""
        split = self._varying
        if split is None:
            varying = [vector for vector in self.scores if not isinstance(vector.raw, float)]
            split = self._varying = (sum(vector.fixed for vector in self.scores if isinstance(vector.raw, float)), varying)
        return split

    def _filter_row(self, ctx: CycleContext, slot: int, kinds: int) -> bool:
        """Ask again the filters that look at what changed; returns whether the row is feasible."""
        if not self.cluster.alive[slot]:
            return False
        if kinds & NODE:
            kinds = ALL  # the node may have been gone for a while, and with it everybody's answers
        if slot in self.restored:
            with ctx.restoring(slot):
                return self._judge_row(ctx, slot, kinds)
        return self._judge_row(ctx, slot, kinds)

    def _judge_row(self, ctx: CycleContext, slot: int, kinds: int) -> bool:
        passes = True
        asked, others, _ = self._plan(kinds)
        for vector in asked:
            code = vector.plugin.filter_row(ctx, slot)
            if vector.codes is None and code:
                self._plans = {}
            vector.set_code(slot, code, self.cluster.capacity)
            if code:
                passes = False
        for vector in others:
            if vector.codes is not None and vector.codes.item(slot):
                passes = False
        for vector in self.row_filters:
            assert vector.codes is not None
            if not passes:
                vector.codes[slot] = 0
                continue
            # A row that was out for another reason was never asked; asking a row that did not change for this plugin is harmless.
            code = vector.plugin.filter_row(ctx, slot)
            vector.codes[slot] = code
            passes = not code
        return passes

    def _score_row(self, ctx: CycleContext, slot: int, kinds: int) -> None:
        if slot in self.restored:
            with ctx.restoring(slot):
                self._raw_row(ctx, slot, self._plan(kinds)[2])
        else:
            self._raw_row(ctx, slot, self._plan(kinds)[2])
