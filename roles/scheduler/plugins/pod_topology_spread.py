"""PodTopologySpread: hard and soft spreading over topology values (SCH-KS-07)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.labels import ABSENT
from roles.scheduler.cluster.podinfo import PodInfo, PodShape, may_select
from roles.scheduler.cluster.terms import HOSTNAME, SpreadConstraint, selects, spread_constraint
from roles.scheduler.cluster.tolerations import HARD, first_untolerated
from roles.scheduler.config.args import PodTopologySpreadArgs
from roles.scheduler.framework.context import ALL_ROWS, CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Feed, Filter, PreFilter, PreScore, Rejection, Score
from roles.scheduler.framework.status import SKIP, SUCCESS, Status
from roles.scheduler.plugins.default_selectors import DefaultSelectors
from roles.scheduler.plugins.node_affinity import selected_rows
from roles.scheduler.plugins.topology_columns import CountColumns, Counter

_SKEWED, _NO_KEY = 1, 2
_TEXT = "node(s) didn't match pod topology spread constraints"
_REJECTIONS = {_SKEWED: Rejection((_TEXT,)), _NO_KEY: Rejection((f"{_TEXT} (missing required label)",), resolvable=False)}
_ZONE = "topology.kubernetes.io/zone"
_SYSTEM_DEFAULTS = tuple(SpreadConstraint(key, skew, False, None, 1, True, False) for key, skew in ((HOSTNAME, 3), (_ZONE, 5)))
_PLACES = "PodTopologySpread/places"
_IGNORED = -1.0  # raw score of a node without the topology keys


class _BySpread:
    """100·(max + min - s)/max over nodes that have the keys, 0 for the others; 100 everywhere when the maximum is 0."""

    ignored: float | None = _IGNORED

    def apply(self, raw: Any, low: float, high: float) -> Any:
        if high <= 0:
            return np.where(np.equal(raw, _IGNORED), 0.0, 100.0)
        return np.where(np.equal(raw, _IGNORED), 0.0, np.floor(100.0 * (high + low - raw) / high))


class Place(NamedTuple):
    """Where a constraint counts, which changes with nodes only: eligible rows, and the value ids of its key among them."""

    eligible: NDArray[np.bool_]
    domains: NDArray[np.intp]


class Spread(NamedTuple):
    """A hard constraint as it stands now: the code of a node by the value of its key. Values are few, nodes are many."""

    constraint: SpreadConstraint
    codes: NDArray[np.int32]


class PodTopologySpread(PreFilter, Filter, PreScore, Score):
    """Codes: 1 too skewed, 2 the node lacks a key. Counters are shared by all pods of a namespace with the same selector."""

    name = "PodTopologySpread"
    Args = PodTopologySpreadArgs
    reads = score_reads = 0  # the stamps move with every node and with every pod that matters
    uses_feasible = True
    normalizer = _BySpread()

    def __init__(self, args: PodTopologySpreadArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._columns = handle.cluster.register("PodCounts", CountColumns())
        self._system = args.defaulting_type == "System"
        self._defaults = _SYSTEM_DEFAULTS if self._system else tuple(
            spread_constraint(constraint, {}) for constraint in args.default_constraints
        )  # fmt: skip
        self._selectors = DefaultSelectors()

    def feeds(self) -> Sequence[Feed]:
        return self._selectors.feeds() if self._defaults else ()

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(ASSIGNED_POD, Action.ADD | Action.DELETE | Action.UPDATE_LABELS, self._counted),
            Subscription(NODE, Action.ADD | Action.DELETE | Action.UPDATE_LABELS | Action.UPDATE_TAINTS, self._moved),
            Subscription(UNSCHEDULED_POD, Action.UPDATE_LABELS),
        )

    def _counted(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """Whether a hard constraint counts the other pod, as it is or was. Which defaults a pod has its shape does not tell."""
        others = [other for other in (event.old, event.new) if other is not None and other.namespace == pod.namespace]
        if not pod.shape.spread:
            return bool(others)
        return any(selects(constraint.selector, other.labels) for other in others for constraint in pod.shape.spread if constraint.hard)

    def _moved(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A node came or went, is in another domain now, or may count where it did not."""
        old, new = event.old, event.new
        if old is None or new is None or not pod.shape.spread:
            return True
        shape, relabelled = pod.shape, old.labels != new.labels
        retainted = (old.taints, old.unschedulable) != (new.taints, new.unschedulable)
        chosen = bool(shape.node_selector or shape.required_nodes is not None) and relabelled
        return any(
            (retainted and constraint.honor_taints) or (chosen and constraint.honor_affinity)
            or old.labels.get(constraint.topology_key) != new.labels.get(constraint.topology_key)
            for constraint in shape.spread if constraint.hard
        )  # fmt: skip

    def shape_key(self, pod: PodInfo) -> Hashable:
        """The selector of pods without constraints of their own follows from what owns and what serves the single pod."""
        return None if pod.shape.spread or not self._defaults else self._selectors.selector(pod)

    # ---------------------------------------------------------------- constraints

    def _constraints(self, pod: PodInfo) -> tuple[SpreadConstraint, ...]:
        """The pod's own constraints, else the defaults for what its owner and the services that select it have in common."""
        shape = pod.shape
        if shape.spread or not self._defaults:
            return shape.spread
        selector = self._selectors.selector(pod)
        if not selector:
            return ()
        known: tuple[SpreadConstraint, ...] | None = shape.memo.get((self, selector))
        if known is None:
            known = tuple(constraint._replace(selector=selector) for constraint in self._defaults)
            shape.memo[self, selector] = known
        return known

    def _counter(self, shape: PodShape, constraint: SpreadConstraint) -> Counter:
        namespace, selector = shape.namespace, constraint.selector
        return self._columns.counter(("spread", namespace, selector), selector, namespace, leaving=False)

    def _place(self, ctx: CycleContext, constraint: SpreadConstraint, keys: tuple[str, ...]) -> Place:
        """Where a constraint counts; kept until a node changes."""
        version, store, rows = ctx.data.get(_PLACES, (-1, {}, {}))
        if version != ctx.cluster.node_version:
            store, rows = {}, {}
            ctx.data[_PLACES] = (ctx.cluster.node_version, store, rows)
        known: Place | None = store.get((constraint, keys))
        if known is None:
            policies = (constraint.honor_affinity, constraint.honor_taints, keys)
            eligible = rows.get(policies)
            if eligible is None:
                eligible = rows[policies] = self._eligible(ctx, constraint, keys)
            ids = ctx.cluster.labels.column(constraint.topology_key).ids
            known = store[constraint, keys] = Place(eligible, np.unique(ids[eligible]))
        return known

    def _eligible(self, ctx: CycleContext, constraint: SpreadConstraint, keys: Sequence[str]) -> NDArray[np.bool_]:
        """Nodes whose pods count: they have all keys, and the pod may go there as far as the constraint's policies care."""
        cluster, shape = ctx.cluster, ctx.pod.shape
        result = cluster.alive.copy()
        for key in keys:
            np.logical_and(result, cluster.labels.column(key).ids != ABSENT, out=result)
        if constraint.honor_affinity:
            selected = selected_rows(cluster, shape.node_selector, shape.required_nodes, ALL_ROWS)
            if selected is not None:
                np.logical_and(result, selected, out=result)
        if constraint.honor_taints and cluster.tainted:
            sets = cluster.vocabulary.taint_sets
            tolerated = np.fromiter((first_untolerated(taints, shape.tolerations, HARD) is None for taints in sets), np.bool_, len(sets))
            np.logical_and(result, tolerated[cluster.taints], out=result)
        return result

    # ---------------------------------------------------------------- filter

    def pre_filter(self, ctx: CycleContext) -> Status:
        return SUCCESS if any(constraint.hard for constraint in self._constraints(ctx.pod)) else SKIP

    def filter_stamp(self, ctx: CycleContext) -> Any:
        hard = (constraint for constraint in self._constraints(ctx.pod) if constraint.hard)
        return (ctx.cluster.node_version, *(self._counter(ctx.pod.shape, constraint).version for constraint in hard))

    def _spreads(self, ctx: CycleContext) -> list[Spread]:
        """The hard constraints as they stand; computed once for each state of counters and nodes."""
        stamp = self.filter_stamp(ctx)
        known = ctx.data.get(self.name)
        if known is None or known[0] != stamp:
            hard = [constraint for constraint in self._constraints(ctx.pod) if constraint.hard]
            keys = tuple(constraint.topology_key for constraint in hard)
            known = ctx.data[self.name] = (stamp, [self._spread(ctx, constraint, keys) for constraint in hard])
        spreads: list[Spread] = known[1]
        return spreads

    def _spread(self, ctx: CycleContext, constraint: SpreadConstraint, keys: tuple[str, ...]) -> Spread:
        eligible, domains = self._place(ctx, constraint, keys)
        counts = self._columns.by_value(self._counter(ctx.pod.shape, constraint), constraint.topology_key, eligible)
        least = float(counts[domains].min()) if len(domains) and len(domains) >= constraint.min_domains else 0.0
        own = float(selects(constraint.selector, ctx.pod.labels))
        codes = (counts + (own - least) > constraint.max_skew).astype(np.int32)
        codes[ABSENT] = _NO_KEY
        return Spread(constraint, codes)

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        codes: NDArray[np.int32] | None = None
        for spread in self._spreads(ctx):
            one = spread.codes[ctx.cluster.labels.column(spread.constraint.topology_key).ids[rows]]
            codes = one if codes is None else np.where(codes != 0, codes, one)
        return codes

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        if other.namespace != ctx.pod.shape.namespace:
            return False
        hard = [constraint.selector for constraint in self._constraints(ctx.pod) if constraint.hard]
        return any(may_select(selector, other) for selector in hard)

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _REJECTIONS[code]

    # ---------------------------------------------------------------- score

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS if any(not constraint.hard for constraint in self._constraints(ctx.pod)) else SKIP

    def score_stamp(self, ctx: CycleContext) -> Any:
        soft = (constraint for constraint in self._constraints(ctx.pod) if not constraint.hard)
        return (ctx.cluster.node_version, *(self._counter(ctx.pod.shape, constraint).version for constraint in soft))

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        cluster, shape = ctx.cluster, ctx.pod.shape
        soft = [constraint for constraint in self._constraints(ctx.pod) if not constraint.hard]
        # Pods that wrote constraints themselves want all of the keys; system defaults make do with those a node has.
        need_all = bool(shape.spread) or not self._system
        keys = tuple(constraint.topology_key for constraint in soft)
        ignored = np.zeros(cluster.capacity, dtype=np.bool_)
        if need_all:
            for key in keys:
                np.logical_or(ignored, cluster.labels.column(key).ids == ABSENT, out=ignored)
        counted = np.logical_and(ctx.feasible, ~ignored)
        total = np.zeros(cluster.capacity)
        for constraint in soft:
            ids = cluster.labels.column(constraint.topology_key).ids
            counter = self._counter(shape, constraint)
            if constraint.topology_key == HOSTNAME:
                domains = int(np.count_nonzero(counted))
                matching = counter.by_slot
            else:
                present = np.bincount(ids[counted], minlength=1)
                domains = int(np.count_nonzero(present[1:]))
                eligible = self._place(ctx, constraint, keys if need_all else ()).eligible
                matching = self._columns.by_value(counter, constraint.topology_key, eligible)[ids]
            part = matching * math.log(domains + 2) + (constraint.max_skew - 1)
            total += np.where(ids == ABSENT, 0.0, part)
        total = np.floor(total + 0.5)
        total[ignored] = _IGNORED
        return np.asarray(total[rows])
