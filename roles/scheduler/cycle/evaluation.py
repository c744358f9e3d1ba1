"""All nodes judged for one pod shape: filter codes, feasibility, raw scores and weighted totals, kept current.

The first pod of a shape pays for whole vectors. For the next ones all rows that changed since are judged again in one go, by the same
calls over fewer rows. The result must equal judging each pod and node afresh (tests/roles/scheduler/cycle/test_equivalence.py).

What holds between two updates: `codes` of a filter are current for every row; those of a row-wise filter for the rows in `asked`. Raw
scores are current for feasible rows, once any row has been feasible; a row that becomes feasible again is scored anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.changes import NODE
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cycle.judgement import INFEASIBLE, Judgement
from roles.scheduler.cycle.nominated import NominatedRows
from roles.scheduler.cycle.vectors import FilterVector, ScoreVector
from roles.scheduler.framework.context import ALL_ROWS, CycleContext, Rows
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.interfaces import PreFilter
from roles.scheduler.framework.restoring import NOTHING, Restored
from roles.scheduler.framework.status import Code, Status

_EVERYTHING = -1  # kinds of change: whatever it may concern

_FEW = 4  # rows that are judged one by one, in plain numbers

Slots = NDArray[np.intp]
Stale = tuple[list[FilterVector], list[ScoreVector]]


class Plan(NamedTuple):
    """Whom to ask about a row; `dear` are the row-wise filters."""

    filters: list[FilterVector]
    scores: list[ScoreVector]
    dear: list[FilterVector]


class Evaluation(Judgement):
    """The judgement of one shape under one profile, kept current."""

    __slots__ = (
        "_best", "_current", "_epoch", "_plans", "_position", "_restores", "_scored", "_special", "_stamped", "_top", "_unkept",
        "data", "framework", "nominated", "pre_filter", "skipped", "version",
    )  # fmt: skip

    def __init__(self, framework: Framework, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.framework = framework
        self.data: dict[str, Any] = {}
        self.pre_filter: dict[str, Any] = {}
        self.skipped: frozenset[str] = frozenset()
        self.version = 0
        self.nominated = NominatedRows(self)
        self._best: list[int] | None = None  # slots with the highest total, in order; None when unknown
        self._top = 0.0  # that total
        self._plans: dict[int, Plan] = {}  # by kinds of change: whom to ask about a row that changed
        self._stamped: Stale = ([], [])  # those of which other rows than those that changed may differ
        self._restores = False  # whether the shape may ever use a reservation
        self._special: NDArray[np.bool_] = cluster.alive  # rows with reservations that it may use
        self._unkept = 0  # how many plugins' answers were not kept when it was built
        self._epoch = -1
        self._position = -1
        self._scored = False
        self._current = False

    # ---------------------------------------------------------------- bringing it up to date

    def update(self, ctx: CycleContext) -> None:
        """Make everything current for the pod of `ctx`, which must be of the shape this evaluation is for.

        Nothing is current while plugins are being asked: after one that raised, the next use builds everything anew.
        """
        current, self._current = self._current and not self.framework.trust.unshared, False
        if not current or self._unkept != self._withdrawn() or self._epoch != self.cluster.changes.epoch or not self._follow(ctx):
            self._build(ctx)
        while self._unkept != self._withdrawn():  # a plugin was found to look at more than it says: keep nothing of it
            self._build(ctx)
        self._current = True

    def _withdrawn(self) -> int:
        return len(self.framework.trust.unkept)

    def _follow(self, ctx: CycleContext) -> bool:
        """Judge the rows that changed since; False when nobody knows which."""
        changes = self.cluster.changes
        position = changes.position
        ctx.data, ctx.feasible, ctx.restored = self.data, self.feasible, self.restored
        if self.framework.early_pre_filters and not self._prepare(ctx):
            return False
        filters, scores = self._stale(ctx)
        if position == self._position and not filters and not scores:
            return True
        changed = changes.since(self._position)
        if changed is None:
            return False
        rows, kinds = changed
        if kinds & NODE:
            kinds = _EVERYTHING  # the node may have been gone for a while, and with it everybody's answers
        if self._restores and self._follow_restored(ctx, rows, kinds):
            kinds = _EVERYTHING
        self._position = position
        self.version += 1
        if filters or scores or kinds == _EVERYTHING or not self._again(ctx, rows, kinds):
            self._evaluate(ctx, rows, kinds, filters, scores)
        return True

    def _stale(self, ctx: CycleContext) -> Stale:
        """Vectors of which rows that did not change themselves may differ by now."""
        filters, scores = self._stamped
        stale = [vector for vector in filters if vector.stamp_of(ctx) != vector.stamp]
        return stale, [vector for vector in scores if vector.stamp_of(ctx) != vector.stamp]

    def _build(self, ctx: CycleContext) -> None:
        """Judge all rows, knowing nothing."""
        changes = self.cluster.changes
        self._epoch, self._position = changes.epoch, changes.position
        self._unkept = self._withdrawn()
        self.version += 1
        self.data = ctx.data = {}
        self._restore(ctx)
        self._pre_filter(ctx)
        unkept = self.framework.trust.unkept
        wanted = [plugin for plugin in self.framework.filters if plugin.name not in self.skipped]
        dear = [plugin for plugin in wanted if plugin.row_wise and plugin.name not in unkept]
        self.filters = [FilterVector(plugin, kept=plugin.name not in unkept) for plugin in wanted if plugin not in dear]
        self.row_filters = [FilterVector(plugin) for plugin in dear]
        self.scores = []
        self._scored = False
        self.feasible = np.zeros(self.cluster.capacity, dtype=np.bool_)
        self.count = 0
        self._replan(ctx)
        self._evaluate(ctx, ALL_ROWS, _EVERYTHING, self.filters, [])

    def _replan(self, ctx: CycleContext) -> None:
        """Forget what is kept about which vectors there are."""
        self._plans = {}
        filters = [vector for vector in self.filters if vector.stamp_of(ctx) is not None]
        self._stamped = (filters, [vector for vector in self.scores if vector.stamp is not None])

    def _plan(self, kinds: int) -> Plan:
        plan = self._plans.get(kinds)
        if plan is None:
            plan = self._plans[kinds] = Plan(
                [vector for vector in self.filters if kinds == _EVERYTHING or vector.plugin.reads & kinds],
                [vector for vector in self.scores if vector.plugin.score_reads & kinds],
                [vector for vector in self.row_filters if vector.plugin.reads & kinds],
            )
        return plan

    def _pre_filter(self, ctx: CycleContext) -> None:
        """Ask the preFilter plugins whose answer the shape decides, and those that prepare filters for the single pod; the others are asked
        later in each cycle."""
        self.pre_filter = {}
        first = [plugin for plugin in self.framework.pre_filters if not plugin.per_pod or plugin.name in self.framework.trust.early]
        self.skipped = frozenset(plugin.name for plugin in first if self._skips(ctx, plugin))

    def _prepare(self, ctx: CycleContext) -> bool:
        """Have plugins prepare their filters for the single pod; whether the same ones are left out as before."""
        early = {plugin.name: self._skips(ctx, plugin) for plugin in self.framework.early_pre_filters}
        return all(skips is (name in self.skipped) for name, skips in early.items())

    def _skips(self, ctx: CycleContext, plugin: PreFilter) -> bool:
        """Keep what a preFilter plugin answers; whether its filter is left out. One that refuses the single pod need not be asked again."""
        answer = self.framework.ask_for_all(plugin, "PreFilter", plugin.pre_filter, ctx)
        self.pre_filter.pop(plugin.name, None)
        if not isinstance(answer, Status):
            self.pre_filter[plugin.name] = answer
            return False
        if answer.ok or answer.code is Code.SKIP:
            return answer.code is Code.SKIP
        self.pre_filter[plugin.name] = answer
        return plugin.per_pod

    # ---------------------------------------------------------------- judging rows

    def _again(self, ctx: CycleContext, rows: Slots, kinds: int) -> bool:
        """Judge few rows that changed in `kinds`, passed, and still pass (like pods that come one after another leave just these), in plain
        numbers where plugins know how. False where it is for `_evaluate` to say."""
        if not self._scored or len(rows) > _FEW:
            return False
        for vector in self._plan(kinds).scores:
            if vector.normalizer is not None and not isinstance(vector.raw, float):
                return False  # what is nearly always another value may move the extremes
        for index, slot in enumerate(rows.tolist()):
            passed = self.feasible.item(slot) and self.cluster.alive.item(slot) and slot not in self.restored
            if not passed:
                return False
            row = rows[index : index + 1]
            if not self._still_passes(ctx, slot, row, kinds) or not self._scored_again(ctx, slot, row, kinds):
                return False
        return True

    def _still_passes(self, ctx: CycleContext, slot: int, row: Rows, kinds: int) -> bool:
        """Whether a row that passed still does. What a row-wise filter says is kept, so that it is not asked twice."""
        timed = self.framework.timer is not None or self.framework.trust.watched
        ask, plan = self.framework.ask_for_all, self._plan(kinds)
        for vector in chain(plan.filters, plan.dear):
            plugin = vector.plugin
            rows: Any = slot if plugin.takes_slot else row
            codes: Any = ask(plugin, "Filter", plugin.filter, ctx, rows) if timed else plugin.filter(ctx, rows)
            if codes:
                if vector.asked is not None:
                    vector.put(row, np.atleast_1d(codes), self.cluster.capacity)
                    vector.told = slot
                return False
        return True

    def _scored_again(self, ctx: CycleContext, slot: int, row: Rows, kinds: int) -> bool:
        """Score a row that still passes; False where that may change what other rows get."""
        timed = self.framework.timer is not None or self.framework.trust.watched
        ask = self.framework.ask_for_all
        for vector in self._plan(kinds).scores:
            plugin = vector.plugin
            rows: Any = slot if plugin.takes_slot else row
            raw: Any = ask(plugin, "Score", plugin.score, ctx, rows) if timed else plugin.score(ctx, rows)
            if not vector.put_one(slot, raw.item() if type(raw) is np.ndarray else raw):
                return False
        before, total = self.totals.item(slot), self._total_of(slot)
        if total != before:
            self.totals[slot] = total
            self._move(slot, before, total)
        return True

    def _evaluate(self, ctx: CycleContext, rows: Rows, kinds: int, stale: list[FilterVector], stale_scores: list[ScoreVector]) -> None:
        """Judge `rows`, which changed in `kinds`, and all rows for whom a stamp says that they may be judged otherwise."""
        asked = [vector for vector in self._plan(kinds).filters if vector not in stale] if stale else self._plan(kinds).filters
        self._ask(ctx, asked, rows)
        if stale:
            self._ask(ctx, stale, ALL_ROWS)
            for vector in stale:
                vector.stamp = vector.stamp_of(ctx)
        scope: Rows = ALL_ROWS if stale else rows
        was = np.array(self.feasible[scope])
        now = self._open(ctx, rows, kinds, scope)
        flipped = was.tobytes() != now.tobytes()  # many times as fast as comparing few values by numpy
        if flipped:
            self.count += int(np.count_nonzero(now)) - int(np.count_nonzero(was))
            self.feasible[scope] = now
        ctx.feasible = self.feasible
        if self._scored:
            self._rescore(ctx, rows, kinds, scope, now, np.greater(now, was) if flipped else None)
            self._settle(ctx, stale_scores, scope, flipped)
        elif self.count and self.skipped.isdisjoint(self.pre_filter):  # (who is refused need not be scored)
            self._score(ctx)

    def _open(self, ctx: CycleContext, rows: Rows, kinds: int, scope: Rows) -> NDArray[np.bool_]:
        """Which rows of `scope` pass all filters. Row-wise ones are asked about those that pass the others and were not asked yet."""
        now = np.array(self.cluster.alive[scope])
        for vector in self.filters:
            if vector.codes is not None:
                vector.close(scope, now)
        for vector in self.row_filters:
            if vector.asked is None:
                vector.asked = np.zeros(self.cluster.capacity, dtype=np.bool_)
            elif kinds == _EVERYTHING or vector.plugin.reads & kinds:
                vector.asked[rows] = False
                if vector.told is not None:
                    vector.asked[vector.told], vector.told = True, None
            wanted = self.cluster.slots[scope][np.greater(now, vector.asked[scope])]
            if len(wanted):
                self._ask(ctx, (vector,), wanted)
                vector.asked[wanted] = True
            vector.close(scope, now)
        return now

    def _ask(self, ctx: CycleContext, vectors: Sequence[FilterVector], rows: Rows) -> None:
        """Have filters judge rows; those with reservations that the pod may use as if the reserve pods were not there."""
        if not vectors:
            return
        plain, special = self._split(rows)
        if isinstance(plain, slice) or len(plain):
            for vector in vectors:
                plugin = vector.plugin
                vector.put(plain, self.framework.ask_for_all(plugin, "Filter", plugin.filter, ctx, plain), self.cluster.capacity)
        for row in special:
            with ctx.restoring(row.item()):
                for vector in vectors:
                    codes = self.framework.trust.ask(vector.plugin, "Filter", vector.plugin.filter, ctx, row)
                    vector.put(row, codes, self.cluster.capacity)

    def _split(self, rows: Rows) -> tuple[Rows, list[Slots]]:
        """Rows without usable reservations, and those with some one by one."""
        if not self.restored:
            return rows, []
        slots = self.cluster.slots[rows]
        special = self._special[slots]
        return slots[~special], [np.array((slot,), dtype=np.intp) for slot in slots[special].tolist() if self.cluster.alive[slot]]

    # ---------------------------------------------------------------- scores

    def _score(self, ctx: CycleContext) -> None:
        """Score plugins whose preScore does not opt out, and their weighted sum."""
        self._scored = True
        skipped = self.framework.run_pre_score(ctx)
        self.scores = [
            ScoreVector(plugin, weight, plugin.normalizer_of(ctx), kept=plugin.name not in self.framework.trust.unkept)
            for plugin, weight in self.framework.scores
            if plugin.name not in skipped
        ]
        self._ask_scores(ctx, self.scores, ALL_ROWS)
        for vector in self.scores:
            vector.stamp = vector.stamp_of(ctx)
            vector.set_extremes(self.feasible)
        self._replan(ctx)
        self._sum()

    def _ask_scores(self, ctx: CycleContext, vectors: Sequence[ScoreVector], rows: Rows) -> None:
        """Have plugins score rows. Those whose scores follow from counts over all nodes take reserve pods for pods."""
        plain, special = self._split(rows)
        for vector in vectors:
            plugin = vector.plugin
            asked = plain if plugin.score_reads else rows
            vector.put(asked, self.framework.ask_for_all(plugin, "Score", plugin.score, ctx, asked), self.cluster.capacity)
        for row in special:
            if self.feasible[row[0]]:
                with ctx.restoring(row.item()):
                    for vector in vectors:
                        if vector.plugin.score_reads:
                            score = self.framework.trust.ask(vector.plugin, "Score", vector.plugin.score, ctx, row)
                            vector.put(row, score, self.cluster.capacity)

    def _rescore(
        self, ctx: CycleContext, rows: Rows, kinds: int, scope: Rows, now: NDArray[np.bool_], fresh: NDArray[np.bool_] | None
    ) -> None:
        """Raw scores of rows that changed and of those that have become feasible (`fresh`, of those in `scope`)."""
        slots = self.cluster.slots[scope]
        if fresh is not None and fresh.any():
            kinds = _EVERYTHING  # no score of these is known
            if scope is not rows:
                fresh[rows] = now[rows]
            slots = slots[fresh if scope is not rows else now]
        else:
            slots = self.cluster.slots[rows]
            slots = slots[self.feasible[slots]]
        asked = self._plan(kinds).scores
        if asked and len(slots):
            self._ask_scores(ctx, asked, slots)

    def _settle(self, ctx: CycleContext, stale: list[ScoreVector], scope: Rows, flipped: bool) -> None:
        """Bring raw scores that changed everywhere, extremes and totals up to date after rows changed."""
        if flipped:
            stale = stale + [v for v in self.scores if v.plugin.uses_feasible and v not in stale]
        if stale:
            self._ask_scores(ctx, stale, ALL_ROWS)
            for vector in stale:
                vector.stamp = vector.stamp_of(ctx)
        resum = bool(stale) or isinstance(scope, slice)
        for vector in self.scores:
            if (flipped or vector.touched) and vector.set_extremes(self.feasible):
                resum = True
            vector.touched = False
        if resum:
            self._sum()
        elif len(scope):  # type: ignore[arg-type]
            self._total(scope)

    def _sum(self) -> None:
        """Totals of all rows."""
        self.totals = np.zeros(self.cluster.capacity)
        self._total(ALL_ROWS)

    def _total(self, rows: Rows) -> None:
        """Totals of some rows. Raw scores are whole numbers: any order adds up alike."""
        constant = 0.0
        totals: Any = None
        for vector in self.scores:
            part = vector.contribution(rows)
            if isinstance(part, float):
                constant += part
            else:
                totals = part if totals is None else np.add(totals, part)
        feasible = self.feasible[rows]
        if totals is None:
            totals = np.full(len(feasible), constant)
        elif constant or totals.base is not None:
            totals = totals + constant
        np.putmask(totals, ~feasible, INFEASIBLE)
        self.totals[rows] = totals
        self._best = None

    def _total_of(self, slot: int) -> float:
        """The total of a row that passes, added up as `_total` does."""
        constant, total = 0.0, 0.0
        for vector in self.scores:
            if isinstance(vector.raw, float):
                constant += vector.fixed
            else:
                total += vector.value(slot)
        return total + constant

    def _move(self, slot: int, before: float, total: float) -> None:
        """A row has another total."""
        best = self._best
        if best is None:
            return
        if total > self._top:
            self._best, self._top = [slot], total
        elif total == self._top:
            insort(best, slot)
        elif before == self._top:
            del best[bisect_left(best, slot)]
            if not best:
                self._best = None

    def best(self) -> Sequence[int]:
        """Slots with the highest total, in order. Only while there is a feasible one."""
        if self._best is None:
            totals = self.totals
            self._top = totals.item(totals.argmax())
            self._best = (totals == self._top).nonzero()[0].tolist()
        return self._best

    # ---------------------------------------------------------------- reservations

    def _restore(self, ctx: CycleContext) -> None:
        """Ask which reservations the shape may use on which rows."""
        restorer = self.framework.restorer
        found = restorer.restored_rows(ctx) if restorer is not None else None
        self._restores = found is not None
        self._restored(ctx, found or NOTHING)

    def _restored(self, ctx: CycleContext, found: Restored) -> None:
        self.restored = ctx.restored = found
        self._special = np.zeros(self.cluster.capacity, dtype=np.bool_)
        self._special[list(found)] = True

    def _follow_restored(self, ctx: CycleContext, rows: Slots, kinds: int) -> bool:
        """Ask the same about rows that changed; True when it is not as before for one of them."""
        restorer = self.framework.restorer
        assert restorer is not None
        if not kinds & restorer.restore_reads:
            return False
        found = dict(self.restored)  # decisions that are being carried out still look at the old one
        for slot in rows.tolist():
            now = restorer.restored_row(ctx, slot)
            if now:
                found[slot] = now
            else:
                found.pop(slot, None)
        if found == self.restored:
            return False
        self._restored(ctx, found)
        return True
