"""Rows that the pods nominated to them make too full for a shape, kept row by row like the shape's vectors.

A row is looked at again when it changed, when its nominations did, or when a filter that these pods concern says that its answers may
differ (its stamp). Filters that they do not concern say what they say anyway. Where those that they do concern add up (framework/tally.py)
all rows are worked out together; the others are tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.cycle.judgement import Judgement
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.interfaces import Rejection
from roles.scheduler.framework.steps import Steps
from roles.scheduler.framework.tally import Tally

_FEW = 8  # pods that are put on their rows one by one faster than they are added up
_ROWS_A_STEP = 16

Refused = dict[int, tuple[str, Rejection]]
JobOf = Callable[[PodInfo], Hashable]


class Blocked(NamedTuple):
    """Slots that are closed while the nominated pods are counted, as a mask (None: no slot), and who refuses which and why."""

    mask: NDArray[np.bool_] | None
    refused: Refused

    def among(self, feasible: NDArray[np.bool_]) -> Refused:
        """Of slots that would be open otherwise."""
        return {slot: refusal for slot, refusal in self.refused.items() if feasible[slot]}


NOBODY = Blocked(None, {})


class Asked(NamedTuple):
    """The filters that pods of one shape concern, in order: by position with what such a pod adds; None where only trying tells.
    `sums`: whether sums of all of them are to tell."""

    filters: dict[int, tuple[float, ...] | None]
    sums: bool


class NominatedRows:
    """The kept answers of one shape. `judgement` is its current one."""

    def __init__(self, judgement: Judgement) -> None:
        self._judgement = judgement
        self._refused: Refused = {}
        self._concerned: set[int] = set()  # slots about which a filter with a stamp was asked
        self._mask: NDArray[np.bool_] | None = None
        self._stamp: Any = None
        self._rows_at = self._nominations_at = -1
        self._base: Any = None  # what all answers rest on

    def blocked(self, ctx: CycleContext, job_of: JobOf) -> Steps[Blocked]:
        """What is closed to the pod of `ctx`. Comes in steps where many rows have to be tried."""
        nominations, cluster = ctx.state.nominations, ctx.cluster
        yield from self._catch_up(ctx, job_of)
        own = nominations.node_of(ctx.pod.uid)
        slot = cluster.slot_of(own) if own else -1
        if slot < 0 or not cluster.alive[slot]:
            return Blocked(self._mask, self._refused) if self._refused else NOBODY
        # The pod does not stand in its own way.
        others = [(slot, pod) for pod in nominations.ahead_of(ctx.pod, own)]
        found = yield from _look(self._judgement, ctx, self._counting(ctx, others, job_of))
        refused = {other: known for other, known in self._refused.items() if other != slot} | found.refused
        return Blocked(_mask_of(refused, cluster.capacity), refused) if refused else NOBODY

    def _catch_up(self, ctx: CycleContext, job_of: JobOf) -> Steps[None]:
        nominations, changes = ctx.state.nominations, ctx.cluster.changes
        filters = (*self._judgement.filters, *self._judgement.row_filters)
        stamp = [vector.stamp_of(ctx) for vector in filters]
        base = (changes.epoch, job_of(ctx.pod), [vector.plugin for vector in filters])
        anew = self._base != base
        if not anew and self._stamp == stamp and self._rows_at == changes.position and self._nominations_at == nominations.position:
            return
        changed = None if anew else self._changed(ctx)
        if changed is None:
            slot_of = ctx.cluster.slot_of
            ahead = [(slot_of(node), pod) for node, pod in nominations.all_ahead_of(ctx.pod)]
        else:
            if self._stamp != stamp:
                changed |= self._concerned
            names = ((slot, ctx.cluster.known_name(slot)) for slot in changed)
            ahead = [(slot, pod) for slot, node in names if node for pod in nominations.ahead_of(ctx.pod, node, besides="")]
        found = yield from _look(self._judgement, ctx, self._counting(ctx, ahead, job_of))
        # Nothing was taken over before: work that is given up leaves everything as it was.
        if changed is None or self._mask is None:
            self._refused, self._concerned = found.refused, found.concerned
            self._mask = _mask_of(self._refused, ctx.cluster.capacity)
        else:
            for slot in changed:
                self._refused.pop(slot, None)
            self._refused.update(found.refused)
            self._concerned = (self._concerned - changed) | found.concerned
            self._mask[list(changed)] = [slot in self._refused for slot in changed]
        self._rows_at, self._nominations_at = changes.position, nominations.position
        self._base, self._stamp = base, [vector.stamp_of(ctx) for vector in filters]

    def _changed(self, ctx: CycleContext) -> set[int] | None:
        """Slots whose rows or nominations changed since and that have or had some; None when nobody knows."""
        nominations, cluster = ctx.state.nominations, ctx.cluster
        changed, nodes = cluster.changes.since(self._rows_at), nominations.since(self._nominations_at)
        if changed is None or nodes is None:
            return None
        slots = {cluster.slot_of(node) for node in nodes}
        for slot in changed[0].tolist():
            node = cluster.known_name(slot)
            if slot in self._refused or slot in self._concerned or (node and nominations.any_on(node)):
                slots.add(slot)
        slots.discard(-1)
        return slots

    def _counting(self, ctx: CycleContext, ahead: Iterable[tuple[int, PodInfo]], job_of: JobOf) -> list[tuple[int, PodInfo]]:
        """Those on live rows that do not count anywhere yet and are not placed together with the pod."""
        cluster, mine = ctx.cluster, job_of(ctx.pod)
        where, alive = cluster.slot_of_pod, cluster.alive
        found = [(slot, pod) for slot, pod in ahead if slot >= 0 and where(pod.uid) < 0 and alive[slot]]
        return found if mine is None else [(slot, pod) for slot, pod in found if job_of(pod) != mine]


def _look(judgement: Judgement, ctx: CycleContext, pods: Sequence[tuple[int, PodInfo]]) -> Steps[_Look]:
    """Put pods on rows and ask the filters that they concern."""
    found = _Look(judgement, ctx)
    if pods:
        yield from found.at(pods)
    return found


class _Look:
    """What a shape's filters say of rows with more pods on them: `refused` has the first refusal by slot, `concerned` the slots of which
    a filter with a stamp was asked."""

    def __init__(self, judgement: Judgement, ctx: CycleContext) -> None:
        self._judgement = judgement
        self._ctx = ctx
        self._vectors = [vector for vector in (*judgement.filters, *judgement.row_filters) if not vector.of_node_alone]
        self._tallies: dict[int, Tally] = {}
        self.refused: Refused = {}
        self.concerned: set[int] = set()

    def at(self, pods: Sequence[tuple[int, PodInfo]]) -> Steps[None]:
        """Judge these rows with these pods."""
        asked: dict[PodShape | None, Asked] = {}
        alike: dict[Hashable, Asked] = {}
        tried: set[int] = set()
        summed: list[tuple[int, Asked]] = []
        for slot, pod in pods:
            shape = None if pod.reservation else pod.shape  # what a reservation takes is no matter of its shape
            about = asked.get(shape)
            if about is None:
                about = self._asked(shape, len(pods) <= _FEW)
                about = asked[shape] = alike.setdefault(tuple(about.filters.items()), about)
            if not about.sums:
                tried.add(slot)
            elif about.filters:
                summed.append((slot, about))
        if summed:
            tried |= self._work_out(summed, list(alike.values()), tried)
        if tried:
            yield from self._try(tried, pods, asked)

    def _asked(self, shape: PodShape | None, few: bool) -> Asked:
        """Whom to ask about pods of a shape."""
        filters: dict[int, tuple[float, ...] | None] = {}
        for position, vector in enumerate(self._vectors):
            if shape is None:
                filters[position] = None
            elif not vector.plugin.affected_by(self._ctx, shape):
                continue
            elif few:
                filters[position] = None
            else:
                tally = self._tallies.get(position)
                if tally is None:
                    tally = self._tallies[position] = vector.plugin.tally(self._ctx) or Tally()
                filters[position] = tally.brought(shape)
        return Asked(filters, not few and None not in filters.values())

    def _work_out(self, pods: Sequence[tuple[int, Asked]], distinct: Sequence[Asked], tried: set[int]) -> set[int]:
        """Judge rows by sums, all together; returns those that have to be tried."""
        rows, at = np.unique(np.fromiter((slot for slot, _ in pods), np.intp, len(pods)), return_inverse=True)
        kinds = {id(about): number for number, about in enumerate(distinct)}
        kind = np.fromiter((kinds[id(about)] for _, about in pods), np.intp, len(pods))
        brought = [about.filters for about in distinct]
        open_to_all = np.ones(len(rows), dtype=np.bool_)
        again = self._ctx.may_use(rows)
        for position, vector in enumerate(self._vectors):
            concerned = np.array([position in filters for filters in brought])
            if not concerned.any():
                continue
            tally = self._tallies[position]
            weights = np.array([filters.get(position) or (0.0,) * tally.size for filters in brought])
            theirs = concerned[kind]
            freed = np.zeros((tally.size, len(rows)))
            for amount in range(tally.size):
                freed[amount] -= np.bincount(at[theirs], weights=weights[kind[theirs], amount], minlength=len(rows))
            unknown = tally.unknown(rows)
            if unknown is not None:
                again = again | unknown
            there = np.bincount(at[theirs], minlength=len(rows)) > 0
            if vector.stamp is not None:
                self.concerned.update(rows[there].tolist())
            full = open_to_all & there & ~tally.passes(rows, freed)
            closed = np.flatnonzero(full & ~again)
            codes = tally.codes(rows[closed], freed[:, closed]).tolist()
            told = {code: (vector.plugin.name, vector.plugin.rejection(self._ctx, int(code))) for code in set(codes)}
            self.refused.update((slot, told[code]) for slot, code in zip(rows[closed].tolist(), codes, strict=True) if slot not in tried)
            open_to_all &= ~full
        for slot in rows[again].tolist():
            self.refused.pop(slot, None)
        return set(rows[again].tolist())

    def _try(self, slots: set[int], pods: Sequence[tuple[int, PodInfo]], asked: dict[PodShape | None, Asked]) -> Steps[None]:
        """Put the pods on rows, one row after another, and ask those whom they concern."""
        by_slot: dict[int, list[PodInfo]] = {}
        for slot, pod in pods:
            if slot in slots:
                by_slot.setdefault(slot, []).append(pod)
        for number, (slot, others) in enumerate(by_slot.items(), 1):
            if slot in self._ctx.restored:
                vectors = self._vectors
            else:
                wanted = {at for other in others for at in asked[None if other.reservation else other.shape].filters}
                vectors = [self._vectors[position] for position in sorted(wanted)]
            if any(vector.stamp is not None for vector in vectors):
                self.concerned.add(slot)
            with Hypothesis(self._ctx.cluster, quiet=True) as supposed:
                for other in others:
                    supposed.add(other, slot)
                refusal = self._judgement.check_row(self._ctx, slot, vectors)
            if refusal is not None:
                self.refused[slot] = refusal
            if not number % _ROWS_A_STEP:
                yield


def _mask_of(refused: Iterable[int], capacity: int) -> NDArray[np.bool_]:
    mask = np.zeros(capacity, dtype=np.bool_)
    mask[list(refused)] = True
    return mask
