"""Rows that the pods nominated to them make too full for a shape, kept row by row like the shape's vectors.

A row is looked at again when it changed, when its nominations did, or when a filter says that its answers may differ (its stamp).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.judgement import Judgement
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.interfaces import Rejection

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


class NominatedRows:
    """The kept answers of one shape. `judgement` is its current one."""

    def __init__(self, judgement: Judgement) -> None:
        self._judgement = judgement
        self._refused: Refused = {}
        self._mask: NDArray[np.bool_] | None = None
        self._stamp: Any = None
        self._rows_at = self._nominations_at = -1

    def blocked(self, ctx: CycleContext, job_of: JobOf) -> Blocked:
        """What is closed to the pod of `ctx`."""
        nominations, cluster = ctx.state.nominations, ctx.cluster
        self._catch_up(ctx, job_of)
        own = nominations.node_of(ctx.pod.uid)
        slot = cluster.slot_of(own) if own else -1
        if slot < 0 or not cluster.alive[slot]:
            return Blocked(self._mask, self._refused) if self._refused else NOBODY
        # The pod does not stand in its own way.
        refusal = self._ask(ctx, slot, own, job_of, besides=ctx.pod.uid)
        refused = {other: known for other, known in self._refused.items() if other != slot}
        if refusal is not None:
            refused[slot] = refusal
        return Blocked(_mask_of(refused, cluster.capacity), refused) if refused else NOBODY

    def _catch_up(self, ctx: CycleContext, job_of: JobOf) -> None:
        nominations, changes = ctx.state.nominations, ctx.cluster.changes
        stamp = (changes.epoch, *(vector.stamp_of(ctx) for vector in self._judgement.filters))
        if self._rows_at == changes.position and self._nominations_at == nominations.position and self._stamp == stamp:
            return
        nodes = self._changed(ctx) if self._stamp == stamp else None
        if nodes is None:
            self._refused = {}
            nodes = list(nominations.nodes())
        before = dict(self._refused)
        for node in nodes:
            slot = ctx.cluster.slot_of(node)
            if slot < 0:
                continue
            self._refused.pop(slot, None)
            refusal = self._ask(ctx, slot, node, job_of) if ctx.cluster.alive[slot] else None
            if refusal is not None:
                self._refused[slot] = refusal
        if self._refused.keys() != before.keys() or self._stamp != stamp:
            self._mask = _mask_of(self._refused, ctx.cluster.capacity)
        self._rows_at, self._nominations_at = changes.position, nominations.position
        self._stamp = (changes.epoch, *(vector.stamp_of(ctx) for vector in self._judgement.filters))

    def _changed(self, ctx: CycleContext) -> list[str] | None:
        """Nodes whose rows or nominations changed since; None when nobody knows."""
        nominations, cluster = ctx.state.nominations, ctx.cluster
        changed, nodes = cluster.changes.since(self._rows_at), nominations.since(self._nominations_at)
        if changed is None or nodes is None:
            return None
        for slot in changed[0].tolist():
            node = cluster.known_name(slot)
            if node and nominations.any_on(node):
                nodes.add(node)
            elif not node:
                self._refused.pop(slot, None)
        return list(nodes)

    def _ask(self, ctx: CycleContext, slot: int, node: str, job_of: JobOf, *, besides: str = "") -> tuple[str, Rejection] | None:
        """The first refusal of a row with the pods nominated to it that count before this one; None when there is none."""
        cluster, pod = ctx.cluster, ctx.pod
        mine = job_of(pod)
        ahead: Iterable[PodInfo] = ctx.state.nominations.ahead_of(pod, node, besides=besides)
        others = [o for o in ahead if cluster.slot_of_pod(o.uid) < 0 and (mine is None or job_of(o) != mine)]
        if not others:
            return None
        with Hypothesis(cluster, quiet=True) as supposed:
            for other in others:
                supposed.add(other, slot)
            return self._judgement.check_row(ctx, slot)


def _mask_of(refused: Iterable[int], capacity: int) -> NDArray[np.bool_]:
    mask = np.zeros(capacity, dtype=np.bool_)
    mask[list(refused)] = True
    return mask
