"""TaintToleration: refuse untolerated NoSchedule/NoExecute taints, avoid untolerated PreferNoSchedule ones (SCH-KS-04).

Nodes hold the number of their taint set, so a pod judges each distinct set once and the answer is looked up for all nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.changes import NODE as NODE_CHANGED
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.cluster.tolerations import HARD, PREFER_NO_SCHEDULE, first_untolerated
from roles.scheduler.cluster.vocabulary import TaintKey
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.interfaces import Codes, Filter, Rejection, Score
from roles.scheduler.framework.normalize import REVERSE_PROPORTIONAL


class TaintToleration(Filter, Score):
    """Codes are 1 + the number of the taint set; the reason names the first untolerated taint of it."""

    name = "TaintToleration"
    reads = NODE_CHANGED
    score_reads = NODE_CHANGED
    normalizer = REVERSE_PROPORTIONAL

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        numbers = ctx.cluster.taints[rows]
        if not ctx.cluster.tainted or not np.count_nonzero(numbers):
            return None
        table = self._refused(ctx)
        return table[numbers] if table.any() else None

    def _refused(self, ctx: CycleContext) -> NDArray[np.int32]:
        sets = ctx.cluster.vocabulary.taint_sets
        tolerations = ctx.pod.shape.tolerations
        return np.fromiter(
            (0 if first_untolerated(taints, tolerations, HARD) is None else number + 1 for number, taints in enumerate(sets)),
            np.int32,
            len(sets),
        )

    def _first(self, ctx: CycleContext, number: int) -> TaintKey | None:
        return first_untolerated(ctx.cluster.vocabulary.taint_sets[number], ctx.pod.shape.tolerations, HARD)

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return Rejection((f"node(s) had untolerated taint {self._first(ctx, code - 1)}",), resolvable=False)

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        if not ctx.cluster.tainted:
            return 0.0
        shape = ctx.pod.shape
        sets = ctx.cluster.vocabulary.taint_sets
        table = np.fromiter((_avoided(shape, taints) for taints in sets), np.float64, len(sets))
        return table[ctx.cluster.taints[rows]] if table.any() else 0.0

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(NODE, Action.ADD | Action.UPDATE_TAINTS, _tolerable),
            Subscription(UNSCHEDULED_POD, Action.UPDATE_TOLERATIONS),
        )


def _avoided(shape: PodShape, taints: Sequence[TaintKey]) -> float:
    """How many PreferNoSchedule taints the pod does not tolerate."""
    return float(sum(1 for t in taints if t.effect == PREFER_NO_SCHEDULE and not any(tol.tolerates(t) for tol in shape.tolerations)))


def _tolerable(pod: PodInfo, event: ClusterEvent) -> bool:
    return event.new is not None and first_untolerated(event.new.taints, pod.shape.tolerations, HARD) is None
