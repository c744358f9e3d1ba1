"""NodeAffinity: nodeSelector, required and preferred node affinity, and the profile's addedAffinity (SCH-KS-05)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roles.scheduler.cluster.changes import NODE as NODE_CHANGED
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.labels import BoolVector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import IN, NOT_IN, NodeTerm, PreferredNodeTerm, Selector, matches_value, node_term, selects
from roles.scheduler.config.args import NodeAffinityArgs
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Filter, NodeSet, PreFilter, PreScore, Rejection, Score
from roles.scheduler.framework.normalize import PROPORTIONAL
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, unresolvable

_OWN = Rejection(("node(s) didn't match Pod's node affinity/selector",), resolvable=False)
_ADDED = Rejection(("node(s) didn't match scheduler-enforced node affinity",), resolvable=False)
_ADDED_CODE = 2
_NAME_FIELD = "metadata.name"


class NodeAffinity(PreFilter, Filter, PreScore, Score):
    """Code 1: the pod's own demand, 2: the profile's."""

    name = "NodeAffinity"
    Args = NodeAffinityArgs
    reads = NODE_CHANGED
    score_reads = NODE_CHANGED
    normalizer = PROPORTIONAL

    def __init__(self, args: NodeAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._added: tuple[NodeTerm, ...] | None = None
        self._added_preferred: tuple[PreferredNodeTerm, ...] = ()
        added = args.added_affinity
        if added is not None:
            required = added.required_during_scheduling_ignored_during_execution
            preferred = added.preferred_during_scheduling_ignored_during_execution
            self._added = None if required is None else tuple(node_term(term) for term in required.node_selector_terms)
            self._added_preferred = tuple(PreferredNodeTerm(item.weight, node_term(item.preference)) for item in preferred)

    def pre_filter(self, ctx: CycleContext) -> Status | NodeSet:
        shape = ctx.pod.shape
        if self._added is None and not shape.node_selector and shape.required_nodes is None:
            return SKIP
        if not shape.required_nodes:
            return SUCCESS
        pinned: set[str] = set()
        for term in shape.required_nodes:
            names = _pinned(term)
            if names is None:
                return SUCCESS
            pinned |= names
        if not pinned:
            return unresolvable("pod affinity terms conflict")
        return NodeSet(frozenset(pinned))

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        shape = ctx.pod.shape
        fits = selected_rows(ctx.cluster, shape.node_selector, shape.required_nodes, rows)
        codes: Codes | None = None if fits is None else np.logical_not(fits)
        if self._added is not None:
            refused = np.logical_not(any_term(ctx.cluster, self._added, rows))
            own = np.zeros(len(refused), np.int32) if codes is None else codes.astype(np.int32)
            codes = np.where(refused, _ADDED_CODE, own)
        return codes

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _ADDED if code == _ADDED_CODE else _OWN

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS if ctx.pod.shape.preferred_nodes or self._added_preferred else SKIP

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        total = np.zeros(_length(ctx.cluster, rows))
        for weight, term in (*ctx.pod.shape.preferred_nodes, *self._added_preferred):
            if weight and not term.empty:
                total += weight * _term(ctx.cluster, term, rows)
        return total

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(NODE, Action.ADD | Action.UPDATE_LABELS, self._may_match),
            Subscription(UNSCHEDULED_POD, Action.UPDATE_LABELS),
        )

    def _may_match(self, pod: PodInfo, event: ClusterEvent) -> bool:
        view = event.new
        if view is None:
            return False
        shape = pod.shape
        wanted = shape.required_nodes
        return (
            selects(shape.node_selector, view.labels)
            and (wanted is None or any(term.matches(view.name, view.labels) for term in wanted))
            and (self._added is None or any(term.matches(view.name, view.labels) for term in self._added))
        )


def _pinned(term: NodeTerm) -> set[str] | None:
    """Node names to which a term pins metadata.name; None when it does not."""
    pinned: set[str] | None = None
    for field in term.fields:
        if field.key == _NAME_FIELD and field.op == IN:
            pinned = set(field.values) if pinned is None else pinned & set(field.values)
    return pinned


def _length(cluster: Cluster, rows: Rows) -> int:
    return cluster.capacity if isinstance(rows, slice) else len(rows)


def selected_rows(cluster: Cluster, selector: Selector, terms: Sequence[NodeTerm] | None, rows: Rows) -> BoolVector | None:
    """Which rows a pod's selector and its required terms (None without any) allow; None for all of them."""
    fits = cluster.labels.match_all(selector, rows)
    if terms is None:
        return fits
    required = any_term(cluster, terms, rows)
    return required if fits is None else np.logical_and(fits, required)


def any_term(cluster: Cluster, terms: Sequence[NodeTerm], rows: Rows) -> BoolVector:
    """Which rows meet one of the terms."""
    result = np.zeros(_length(cluster, rows), dtype=np.bool_)
    for term in terms:
        if not term.empty:
            np.logical_or(result, _term(cluster, term, rows), out=result)
    return result


def _term(cluster: Cluster, term: NodeTerm, rows: Rows) -> BoolVector:
    """Which rows meet a term that is not empty."""
    result = cluster.labels.match_all(term.expressions, rows)
    if term.fields:
        named = _fields(cluster, term, rows)
        result = named if result is None else np.logical_and(result, named)
    assert result is not None
    return result


def _fields(cluster: Cluster, term: NodeTerm, rows: Rows) -> BoolVector:
    """Which rows meet the requirements on metadata.name (the only field there is); another field matches nothing. Where names are listed
    only those are looked at: each pod of a DaemonSet lists another one, and so is judged by itself."""
    slots, fields = cluster.slots[rows], term.fields
    if not all(field.key == _NAME_FIELD for field in fields):
        return np.zeros(len(slots), dtype=np.bool_)
    listed, excluded = _pinned(term), {name for field in fields if field.op == NOT_IN for name in field.values}
    rest = [field for field in fields if field.op not in (IN, NOT_IN)]
    if listed is not None:
        fitting = [name for name in listed - excluded if all(matches_value(field, name) for field in rest)]
        return np.isin(slots, [slot for name in fitting if (slot := cluster.slot_of(name)) >= 0])
    if not rest:
        return cluster.alive[slots] & np.isin(slots, [slot for name in excluded if (slot := cluster.slot_of(name)) >= 0], invert=True)
    names = [cluster.known_name(slot) for slot in slots.tolist()]
    fits = (bool(name) and name not in excluded and all(matches_value(field, name) for field in rest) for name in names)
    return np.fromiter(fits, np.bool_, len(names))
