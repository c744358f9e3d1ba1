"""Victims on many nodes at once (SCH-KS-12): where all filters add up (framework/tally.py), no what-if is needed.

On every node the pods go one after another until the pending pod fits, then those come back that can. One step of that is taken on all
nodes together: the n-th pod of each goes, or is tried again, in a few vector operations. The outcome must equal trying each node by
itself (tests/roles/scheduler/plugins/test_lockstep.py). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.cycle.vectors import FilterVector
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.tally import FIXED, Mask, Slots, Tally


class Outcome(NamedTuple):
    """By candidate: the positions of the pods that have to go, in the order that was given; None where the pod does not fit even
    without them all. `refusals` counts the reasons of those."""

    gone: list[list[int] | None]
    refusals: Counter[str]


class Lockstep:
    """One pending pod. Valid until the cluster changes."""

    def __init__(self, ctx: CycleContext, parts: Sequence[tuple[FilterVector, Tally | None]]) -> None:
        self._ctx = ctx
        self._parts: list[tuple[FilterVector, Tally | None, slice]] = []  # None: what the filter says of the node, whoever is there
        self._tallies: list[Tally] = []
        self._size = 0
        for vector, tally in parts:
            size = tally.size if tally is not None else 0
            self._parts.append((vector, tally, slice(self._size, self._size + size)))
            self._size += size
            if tally is not None and size:
                self._tallies.append(tally)

    @classmethod
    def of(cls, ctx: CycleContext, evaluation: Evaluation) -> Lockstep | None:
        """None when a filter has to be asked, wherever it is."""
        parts: list[tuple[FilterVector, Tally | None]] = []
        for vector in (*evaluation.filters, *evaluation.row_filters):
            plugin = vector.plugin
            tally = FIXED if vector.of_node_alone else plugin.tally(ctx)
            if tally is None:
                return None
            if tally is not FIXED:
                parts.append((vector, tally))
            elif vector.codes is not None:
                parts.append((vector, None))
        return cls(ctx, parts)

    def knows(self, slots: Slots) -> Mask:
        """Of which slots sums tell; the others are to be tried."""
        known = ~self._ctx.may_use(slots)
        for _, tally, _ in self._parts:
            unknown = tally.unknown(slots) if tally is not None else None
            if unknown is not None:
                np.greater(known, unknown, out=known)
        return known

    def judge(self, slots: Slots, orders: Sequence[Sequence[PodInfo]]) -> Outcome:
        """Who has to go from each slot. `orders` has the pods that may go, by slot, who goes first first; they come back in reverse."""
        freed, steps, needed = self._until_it_fits(slots, orders)
        gone = np.zeros((len(steps) + 1, len(slots)), dtype=np.bool_)
        gone[needed - 1, np.arange(len(slots))] = True  # with this one back the pod did not fit; the last row stands for nobody
        shares = np.array(steps)
        place = needed - 2
        left = np.flatnonzero(place >= 0)
        while len(left):
            tried = freed[:, left] - shares[place[left], :, left].T
            fits = self._passes(slots[left], tried)
            freed[:, left[fits]] = tried[:, fits]
            stays_away = left[~fits]
            gone[place[stays_away], stays_away] = True
            place[left] -= 1
            left = left[place[left] >= 0]
        outside = np.flatnonzero(needed == 0)
        refusals = self._refusals(slots[outside], freed[:, outside]) if len(outside) else Counter[str]()
        found: list[list[int] | None] = [[] if count else None for count in needed.tolist()]
        for index, position in zip(*(axis.tolist() for axis in np.nonzero(gone[:-1].T)), strict=True):
            found[index].append(position)  # type: ignore[union-attr]
        return Outcome(found, refusals)

    def _until_it_fits(self, slots: Slots, orders: Sequence[Sequence[PodInfo]]) -> tuple[Vector, list[Vector], Slots]:
        """What is freed by slot when enough have gone, what the n-th of each frees, and how many had to go (0: it never fits)."""
        freed = np.zeros((self._size, len(slots)))
        needed = np.zeros(len(slots), dtype=np.intp)
        steps: list[Vector] = []
        left = np.array([index for index, order in enumerate(orders) if order], dtype=np.intp)
        while len(left):
            step = np.zeros_like(freed)
            turn = len(steps)
            step[:, left] = self._weights(slots, [(index, orders[index][turn]) for index in left.tolist()])
            freed += step
            steps.append(step)
            fits = self._passes(slots[left], freed[:, left])
            needed[left[fits]] = turn + 1
            left = np.array([index for index in left[~fits].tolist() if len(orders[index]) > turn + 1], dtype=np.intp)
        return freed, steps, needed

    def _weights(self, slots: Slots, pods: Sequence[tuple[int, PodInfo]]) -> Vector:
        """What each of the pods frees on its slot, by amount and pod."""
        at = slots.tolist()
        blocks = []
        for tally in self._tallies:
            weigh = tally.weigh
            blocks.append(np.array([weigh(at[index], pod) for index, pod in pods]).T)
        return np.concatenate(blocks) if blocks else np.zeros((0, len(pods)))

    def _passes(self, slots: Slots, freed: Vector) -> Mask:
        result: Mask = np.ones(len(slots), dtype=np.bool_)
        for vector, tally, amounts in self._parts:
            if tally is None:
                vector.close(slots, result)
            else:
                np.logical_and(result, tally.passes(slots, freed[amounts]), out=result)
        return result

    def _refusals(self, slots: Slots, freed: Vector) -> Counter[str]:
        """The reasons of the first filter that refuses each slot."""
        ctx, reasons = self._ctx, Counter[str]()
        left: Mask = np.ones(len(slots), dtype=np.bool_)
        for vector, tally, amounts in self._parts:
            plugin = vector.plugin
            if tally is not None:
                codes = tally.codes(slots, freed[amounts])
            else:
                assert vector.codes is not None
                codes = vector.codes[slots].astype(np.int64)
                closed = np.flatnonzero(codes)
                codes[closed] = plugin.refine(ctx, slots[closed], vector.codes[slots[closed]])
            refused = np.logical_and(left, codes != 0)
            values, numbers = np.unique(codes[refused], return_counts=True)
            for code, number in zip(values.tolist(), numbers.tolist(), strict=True):
                for reason in plugin.rejection(ctx, int(code)).reasons:
                    reasons[reason] += number
            np.greater(left, refused, out=left)
        return reasons
