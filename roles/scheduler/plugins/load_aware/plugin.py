"""LoadAwareScheduling: refuse nodes whose usage plus the pod's estimate is over a threshold, prefer the least used (SCH-LA-01..09)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api.kinds import NODEMETRICS
from koord.api.objects import NodeMetric
from koord.api.priority import PriorityClass
from roles.scheduler.cluster.arithmetic import AnyRows, at, at_most, floored
from roles.scheduler.cluster.changes import NODE, PODS
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.config.args import LoadAwareSchedulingArgs
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import ASSIGNED_POD, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.events import NODE as NODE_EVENTS
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.hints import OPENS, closed
from roles.scheduler.framework.interfaces import Codes, Endpoint, Feed, Filter, Rejection, Reserve, Score
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.load_aware.columns import OTHER, PROD, LoadColumns, PodClass, Report, Row
from roles.scheduler.plugins.node_resources import left_percent

_EXPIRED = 1
# never resolvable: nobody is evicted because a node is busy now, usage may fall by itself and is not known of a victim alone
_EXPIRED_REJECTION = Rejection(("node(s) nodeMetric expired",), resolvable=False)


def _node_of(event: ClusterEvent) -> str:
    """The node that a NodeMetric, or what is kept of its event, is about."""
    found = event.new if event.new is not None else event.old
    return str(found.name if isinstance(found, Report) else found.metadata.name)


class LoadAwareScheduling(Filter, Score, Reserve):
    """Refined codes: 1 expired, 2 + 2·i resource i over its threshold, 3 + 2·i over its aggregated one.

    Reserve has nothing to do: the columns charge every pod that counts on a node, from when it is assumed until it is forgotten."""

    name = "LoadAwareScheduling"
    Args = LoadAwareSchedulingArgs
    takes_slot = True

    def __init__(self, args: LoadAwareSchedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        key = f"{self.name}/{args.model_dump_json()}"
        self.columns = handle.cluster.register(key, LoadColumns(args, handle.state, key))
        self.reads = self.score_reads = NODE | PODS | self.columns.kind
        self._resources = self.columns.resources
        # By class, no more than what any of those that were refused would use.
        self._least = [[math.inf] * len(self._resources) for _ in self.columns.classes]
        weights = tuple(float(args.resource_weights.get(name, 0)) for name in self._resources)
        self._dominant = float(args.dominant_resource_weight)
        self._lines = [(index, weight) for index, weight in enumerate(weights) if weight or self._dominant]  # resources that score
        self._weight_sum = sum(weights) + self._dominant

    def feeds(self) -> Sequence[Feed]:
        return (Feed(NODEMETRICS, NodeMetric, self.columns.metric_set),)

    def endpoints(self) -> Sequence[Endpoint]:
        return (Endpoint("node/{name}", self._node_view),)

    def _node_view(self, match: dict[str, str]) -> dict[str, Any]:
        slot = self.handle.cluster.slot_of(match["name"])
        return self.columns.view(slot) if slot >= 0 else {}

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(ASSIGNED_POD, Action.DELETE | Action.SCALE_DOWN, self._leaving_helps),
            Subscription(UNSCHEDULED_POD, Action.ALL),
            Subscription(NODE_EVENTS, OPENS, self._change_helps),
            Subscription(NODEMETRICS.kind, Action.ADD | Action.UPDATE | Action.DELETE, self._report_helps, self._keep, self._helps_nobody),
        )

    def _leaving_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A pod left a node, or shrank, that is not too busy for the pending one."""
        found: PodInfo = event.old
        if not found.node_name:
            return True  # it was only to be there
        slot = self._slot(found.node_name)
        return slot >= 0 and not self._refuses(pod, self.columns.report(found.node_name, slot), slot)

    def _change_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A node appeared or changed, and lets the pod in."""
        slot = self._slot(event.new.name)
        return slot >= 0 and not self._refuses(pod, self.columns.report(event.new.name, slot), slot) and not self._closed(pod, slot)

    def _report_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A report of a node that refused the pod and does not any more. Where the node keeps the pod out for reasons of its own, it is
        looked at again when those are over."""
        name = _node_of(event)
        slot = self._slot(name)
        if slot < 0 or self._refuses(pod, self.columns.report(name, slot), slot):
            return False
        before = event.old if isinstance(event.old, Report) else self.columns.before(name)
        return (before is None or bool(self._refuses(pod, before, slot, then=True))) and not self._closed(pod, slot)

    def _helps_nobody(self, event: ClusterEvent) -> bool:
        """A report of a node that is too busy for whoever was refused so far."""
        name = _node_of(event)
        slot = self._slot(name)
        rows = self.columns.report(name, slot).rows if slot >= 0 else ()
        return all(self._over(row, least, slot) for row, least in zip(rows, self._least, strict=False))

    def _slot(self, name: str) -> int:
        slot = self.handle.cluster.slot_of(name)
        return slot if slot >= 0 and self.handle.cluster.alive[slot] else -1

    def _closed(self, pod: PodInfo, slot: int) -> bool:
        framework = self.handle.frameworks.get(self.handle.profile)
        return framework is not None and closed(framework, self.handle.state, pod, slot)

    def _keep(self, event: ClusterEvent) -> ClusterEvent:
        """For pods in flight: what the node showed before."""
        name = _node_of(event)
        return event._replace(old=self.columns.before(name), new=Report(name, ()))

    def _refuses(self, pod: PodInfo, report: Report, slot: int, *, then: bool = False) -> int:
        """The code that a pod gets from what a node showed, 0 where it passes. `then`: or got, before that expired and let it in."""
        if pod.shape.daemonset:
            return 0
        return self._over(report.rows[self.class_of(pod)], self.columns.estimator.estimate(pod), slot, then=then)

    def _over(self, row: Row, estimate: Sequence[float], slot: int, *, then: bool = False) -> int:
        used, limits, expires = row
        lets_in = self.args.enable_schedule_when_node_metrics_expired
        if expires <= self.handle.state.now and not (then and lets_in):
            return 0 if lets_in else _EXPIRED
        for index, limit in enumerate(limits):
            if (used[index] + estimate[index]) * 100.0 / self.columns.divisor[index].item(slot) >= limit:
                return 1
        return 0

    @staticmethod
    def class_of(pod: PodInfo) -> int:
        """Whose usage and thresholds a pod is held to: OTHER or PROD."""
        return PROD if pod.shape.priority_class is PriorityClass.PROD else OTHER

    def _group(self, ctx: CycleContext) -> PodClass:
        return self.columns.classes[self.class_of(ctx.pod)]

    # ---------------------------------------------------------------- filter

    def filter_stamp(self, ctx: CycleContext) -> Any:
        return self.columns.stamp(ctx.now)

    def filter(self, ctx: CycleContext, rows: AnyRows) -> Any:
        return None if ctx.pod.shape.daemonset else self.refused(ctx, rows)

    def tally(self, ctx: CycleContext) -> Tally:
        return FIXED if ctx.pod.shape.daemonset else _LoadTally(self, ctx)

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        return not ctx.pod.shape.daemonset and any(self._group(ctx).limited)

    def refused(self, ctx: CycleContext, rows: AnyRows, freed: Vector | None = None) -> Any:
        """Rows that are over a limit or whose report expired, where so much less (by resource) is used; None for no row."""
        group = self._group(ctx)
        over: Any = None
        for index, limited in enumerate(group.limited):
            if limited:
                refused = self._percent(ctx, group, index, rows, freed) >= at(group.limit[index], rows)
                over = refused if over is None else over | refused
        if not self.columns.stale(ctx.now):
            return over
        expired = at(group.expires, rows) <= ctx.now
        if self.args.enable_schedule_when_node_metrics_expired:
            return None if over is None else over > expired  # over and not expired
        return expired if over is None else expired | over

    def _percent(self, ctx: CycleContext, group: PodClass, index: int, rows: AnyRows, freed: Vector | None) -> Any:
        """Usage with the pod in percent of what the node has, not rounded."""
        part = at(group.used[index], rows) + self.columns.estimator.estimate(ctx.pod)[index]
        if freed is not None:
            part -= freed[index]
        part *= 100.0
        part /= at(self.columns.divisor[index], rows)
        return part

    def refine(self, ctx: CycleContext, slots: NDArray[np.intp], codes: Codes) -> Codes:
        least = self._least[self.class_of(ctx.pod)]
        least[:] = map(min, least, self.columns.estimator.estimate(ctx.pod))
        return self.refined(ctx, slots)

    def refined(self, ctx: CycleContext, slots: NDArray[np.intp], freed: Vector | None = None) -> Codes:
        """Codes of rows that are refused, where so much less is used."""
        group = self._group(ctx)
        refined = np.zeros(len(slots), dtype=np.int32)
        aggregated = group.aggregated[slots].astype(np.int32)
        for index in reversed(range(len(self._resources))):
            percent = self._percent(ctx, group, index, slots, freed)
            over = np.greater_equal(percent, group.limit[index][slots])
            refined = np.where(over, 2 + 2 * index + aggregated, refined)
        return np.where(group.expires[slots] <= ctx.now, _EXPIRED, refined)

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        if code == _EXPIRED:
            return _EXPIRED_REJECTION
        resource = self._resources[(code - 2) // 2]
        return Rejection((f"node(s) {resource} {'aggregated ' if code % 2 else ''}usage exceed threshold",), resolvable=False)

    # ---------------------------------------------------------------- score

    def score_stamp(self, ctx: CycleContext) -> Any:
        return self.columns.stamp(ctx.now)

    def score(self, ctx: CycleContext, rows: AnyRows) -> Any:
        columns, group = self.columns, self._group(ctx)
        if not self._lines:
            return 0.0
        estimate = columns.estimator.estimate(ctx.pod)
        total: Any = None
        least: Any = 100.0
        for line, weight in self._lines:
            part = left_percent(at(group.room[line], rows), estimate[line], at(columns.divisor[line], rows))
            if self._dominant:
                least = at_most(part + 0.0, least)
            if weight != 1.0:
                part *= weight
            if total is None:
                total = part
            else:
                total += part
        if self._dominant:
            least *= self._dominant
            total += least
        total /= self._weight_sum
        total = floored(total)
        if columns.stale(ctx.now):
            total *= at(group.score_expires, rows) > ctx.now
        if columns.distrusted:
            total *= at(columns.trust, rows)
            total = floored(total)
        return total


class _LoadTally(Tally):
    """What pods are charged on top of the reports, by resource."""

    def __init__(self, plugin: LoadAwareScheduling, ctx: CycleContext) -> None:
        self._plugin = plugin
        self._ctx = ctx
        self._class = plugin.class_of(ctx.pod)
        self.size = len(plugin.columns.resources)

    def weigh(self, slot: int, pod: PodInfo) -> tuple[float, ...]:
        return self._plugin.columns.counted(slot, pod.uid, number=self._class)

    def passes(self, slots: NDArray[np.intp], freed: Vector) -> NDArray[np.bool_]:
        refused = self._plugin.refused(self._ctx, slots, freed)
        return np.ones(len(slots), dtype=np.bool_) if refused is None else ~refused

    def codes(self, slots: NDArray[np.intp], freed: Vector) -> Codes:
        refused = self._plugin.refused(self._ctx, slots, freed)
        if refused is None:
            return np.zeros(len(slots), dtype=np.int32)
        return np.where(refused, self._plugin.refined(self._ctx, slots, freed), 0)
