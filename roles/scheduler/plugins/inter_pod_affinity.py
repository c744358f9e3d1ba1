"""InterPodAffinity: near these pods, away from those, both ways (SCH-KS-06)."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from koord.api.kinds import NAMESPACES
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.labels import ABSENT
from roles.scheduler.cluster.podinfo import PodInfo, PodShape, may_select
from roles.scheduler.cluster.terms import PodTerm, Selector, selects
from roles.scheduler.config.args import InterPodAffinityArgs
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Filter, PreFilter, PreScore, Rejection, Score
from roles.scheduler.framework.normalize import SPREAD
from roles.scheduler.framework.status import SUCCESS, Status
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.pod_terms import Brought, TermColumns, TermIndex
from roles.scheduler.plugins.topology_columns import CountColumns, Counter

_AFFINITY, _ANTI, _EXISTING = 1, 2, 3
_REJECTIONS = {
    _AFFINITY: Rejection(("node(s) didn't match pod affinity rules",), resolvable=False),
    _ANTI: Rejection(("node(s) didn't match pod anti-affinity rules",)),
    _EXISTING: Rejection(("node(s) didn't satisfy existing pods anti-affinity rules",)),
}


class InterPodAffinity(PreFilter, Filter, PreScore, Score):
    """Codes: 1 the pod's affinity, 2 its anti-affinity, 3 anti-affinity of pods that are there."""

    name = "InterPodAffinity"
    Args = InterPodAffinityArgs
    reads = score_reads = 0  # the stamps move with every node and with every pod that matters
    normalizer = SPREAD

    def __init__(self, args: InterPodAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._counts = handle.cluster.register("PodCounts", CountColumns())
        self._terms = handle.cluster.register("PodTerms", TermColumns())

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(ASSIGNED_POD, Action.ADD | Action.DELETE | Action.UPDATE_LABELS, self._other_helps),
            Subscription(NODE, Action.ADD | Action.DELETE | Action.UPDATE_LABELS, self._node_helps),
            Subscription(UNSCHEDULED_POD, Action.UPDATE_LABELS),
            Subscription(NAMESPACES.kind, Action.UPDATE_LABELS),
        )

    def _other_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A pod came that ours wants to be near, or one left that ours or that one wanted to be away from; or the last one left of those
        that ours wants to be near, so that it may be the first of them."""
        mine, old, new = pod.shape, event.old, event.new
        if new is not None and any(self._may_select(term, new) for term in mine.affinity):
            return True
        if old is None:
            return False
        if any(self._may_select(term, old) for term in (*mine.affinity, *mine.anti_affinity)):
            return True
        return new is None and any(self._may_select(term, pod) for term in old.shape.anti_affinity)

    def _node_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A node came, or one with a key of the terms went (its pods count no more) or has another value of it now."""
        if event.old is None:
            return True
        mine, old, new = pod.shape, event.old.labels, event.new.labels if event.new is not None else {}
        theirs = self._terms.anti.concerning(pod.namespace, pod.labels, self.handle.state.namespaces.get(pod.namespace, {}))
        terms = itertools.chain(mine.affinity, mine.anti_affinity, (brought.term for brought in theirs))
        return any(old.get(term.topology_key) != new.get(term.topology_key) for term in terms)

    def _may_select(self, term: PodTerm, pod: PodInfo) -> bool:
        """Whether a term may select a pod, as far as the pod's shape tells where it is one of several."""
        return self._reaches(term, pod.namespace) and (selects(term.selector, pod.labels) or may_select(term.selector, pod.shape))

    def _reaches(self, term: PodTerm, namespace: str) -> bool:
        return term.reaches(namespace, self.handle.state.namespaces.get(namespace, {}))

    def shape_key(self, pod: PodInfo) -> Hashable:
        """Labels that differ within a shape count as long as a pod that is there selects by them."""
        return tuple(pod.unique_labels.items()) if self._terms.unique else None

    # ---------------------------------------------------------------- counting

    def _counter(self, ctx: CycleContext, terms: Iterable[PodTerm]) -> Counter:
        """How many pods match all of the terms."""
        wanted = tuple(terms)
        namespaces = ctx.state.namespaces
        reached = {term.namespaces if term.namespace_selector is None else None for term in wanted}
        named = reached.pop() if len(reached) == 1 else None  # by all of the terms, whatever labels namespaces have
        only = next(iter(named)) if named is not None and len(named) == 1 else ""

        def reaches(namespace: str) -> bool:
            own = namespaces.get(namespace, {})
            return all(term.reaches(namespace, own) for term in wanted)

        selector: Selector | None = ()
        for term in wanted:
            selector = None if selector is None or term.selector is None else selector + term.selector
        return self._counts.counter(("terms", wanted), selector, only, reaches)

    def _by_node(self, ctx: CycleContext, counter: Counter, key: str) -> Vector:
        """For each row the sum over the nodes that share its value of a key; 0 for rows without the key."""
        return np.asarray(self._counts.by_value(counter, key)[ctx.cluster.labels.column(key).ids])

    def _brought(self, ctx: CycleContext, terms: TermIndex) -> list[Brought]:
        """Terms of pods that are there which the pod falls under."""
        if not terms:
            return []
        namespace = ctx.pod.shape.namespace
        return list(terms.concerning(namespace, ctx.pod.labels, ctx.state.namespaces.get(namespace, {})))

    def _weights(self, ctx: CycleContext, terms: Iterable[tuple[Brought, float]]) -> Iterator[Vector]:
        """Of the terms of one key together (there may be thousands), for each row how many pods that bring one are on nodes that share its
        value of the key, times what the term counts; 0 for rows without the key."""
        by_key: dict[str, list[tuple[Brought, float]]] = {}
        for brought, value in terms:
            by_key.setdefault(brought.term.topology_key, []).append((brought, value))
        for key, found in by_key.items():
            column, lengths = ctx.cluster.labels.column(key), [len(brought.slots) for brought, _ in found]
            count = sum(lengths)
            slots = np.fromiter(itertools.chain.from_iterable(brought.slots for brought, _ in found), np.intp, count)
            pods = np.fromiter(itertools.chain.from_iterable(brought.slots.values() for brought, _ in found), np.float64, count)
            pods *= np.repeat([value for _, value in found], lengths)
            sums = np.bincount(column.ids[slots], weights=pods * ctx.cluster.alive[slots], minlength=len(column.values))
            sums[ABSENT] = 0.0
            yield np.asarray(sums[column.ids])

    # ---------------------------------------------------------------- filter

    def pre_filter(self, ctx: CycleContext) -> Status:
        return SUCCESS

    def filter_stamp(self, ctx: CycleContext) -> Any:
        shape = ctx.pod.shape
        if not shape.affinity and not shape.anti_affinity and not self._terms.anti:
            return (0,)
        versions = [self._counter(ctx, (term,)).version for term in shape.anti_affinity]
        if shape.affinity:
            versions.append(self._counter(ctx, shape.affinity).version)
        return (ctx.cluster.node_version, *versions, *(brought.version for brought in self._brought(ctx, self._terms.anti)))

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        codes = self._codes(ctx)
        return None if codes is None else codes[rows]

    def tally(self, ctx: CycleContext) -> Tally | None:
        shape = ctx.pod.shape
        return None if shape.affinity or shape.anti_affinity or self._brought(ctx, self._terms.anti) else FIXED

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        mine = ctx.pod.shape
        pairs = [(term, other) for term in (*mine.anti_affinity, *mine.affinity)] + [(term, mine) for term in other.anti_affinity]
        return any(self._reaches(term, shape.namespace) and may_select(term.selector, shape) for term, shape in pairs)

    def _codes(self, ctx: CycleContext) -> Codes | None:
        """Codes of all rows; kept until a counter or a node changes."""
        stamp = self.filter_stamp(ctx)
        known = ctx.data.get(self.name)
        if known is None or known[0] != stamp:
            known = ctx.data[self.name] = (stamp, self._judge(ctx))
        codes: Codes | None = known[1]
        return codes

    def _judge(self, ctx: CycleContext) -> Codes | None:
        shape = ctx.pod.shape
        codes: Codes | None = None
        for weights in self._weights(ctx, ((brought, 1.0) for brought in self._brought(ctx, self._terms.anti))):
            codes = _refuse(codes, weights > 0, _EXISTING)
        for term in shape.anti_affinity:
            codes = _refuse(codes, self._by_node(ctx, self._counter(ctx, (term,)), term.topology_key) > 0, _ANTI)
        if shape.affinity:
            codes = _refuse(codes, ~self._near(ctx), _AFFINITY)
        return codes

    def _near(self, ctx: CycleContext) -> Any:
        """Rows where each term finds a matching pod. The first pod of a group that matches itself may go anywhere with the keys."""
        shape = ctx.pod.shape
        counter = self._counter(ctx, shape.affinity)
        near = ctx.cluster.alive.copy()
        has_keys = ctx.cluster.alive.copy()
        found = False
        for term in shape.affinity:
            sums = self._by_node(ctx, counter, term.topology_key)
            found = found or bool((sums > 0).any())
            np.logical_and(near, sums > 0, out=near)
            np.logical_and(has_keys, ctx.cluster.labels.column(term.topology_key).ids != ABSENT, out=has_keys)
        own = ctx.state.namespaces.get(shape.namespace, {})
        if not found and all(term.matches(shape.namespace, ctx.pod.labels, own) for term in shape.affinity):
            return has_keys
        return near

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _REJECTIONS[code]

    # ---------------------------------------------------------------- score

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS

    def score_stamp(self, ctx: CycleContext) -> Any:
        shape = ctx.pod.shape
        if not shape.preferred_affinity and not self._terms.preferred:
            return (0,)
        versions = [self._counter(ctx, (item.term,)).version for item in shape.preferred_affinity]
        return (ctx.cluster.node_version, *versions, *(brought.version for brought in self._brought(ctx, self._terms.preferred)))

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        shape = ctx.pod.shape
        parts = [weight * self._by_node(ctx, self._counter(ctx, (term,)), term.topology_key) for weight, term in shape.preferred_affinity]
        if shape.preferred_affinity or not self.args.ignore_preferred_terms_of_existing_pods:
            hard = self.args.hard_pod_affinity_weight
            weighted = ((brought, float(brought.weight or hard)) for brought in self._brought(ctx, self._terms.preferred))
            parts += self._weights(ctx, ((brought, value) for brought, value in weighted if value))
        return np.asarray(sum(parts[1:], parts[0])[rows]) if parts else 0.0


def _refuse(codes: Codes | None, refused: Any, code: int) -> Codes:
    """Mark rows with a code; later calls win, in the order in which kube-scheduler would name the reason first."""
    if codes is None:
        codes = np.zeros(len(refused), dtype=np.int32)
    codes[refused] = code
    return codes
