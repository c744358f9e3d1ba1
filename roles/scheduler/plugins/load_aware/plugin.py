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
from roles.scheduler.cluster.changes import NODE, PODS
from roles.scheduler.cluster.columns import HUNDRED, Vector, constant, picked
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.config.args import LoadAwareSchedulingArgs
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.events import NODE as NODE_EVENTS
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.hints import OPENS, closed
from roles.scheduler.framework.interfaces import Codes, Endpoint, Feed, Filter, Rejection, Reserve, Score
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.load_aware.columns import OTHER, PROD, LoadColumns, PodClass, Report, Row
from roles.scheduler.plugins.node_resources import added_up, left_percent, left_percent_of

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

    def __init__(self, args: LoadAwareSchedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        key = f"{self.name}/{args.model_dump_json()}"
        self.columns = handle.cluster.register(key, LoadColumns(args, handle.state, key))
        self.reads = self.score_reads = NODE | PODS | self.columns.kind
        self._resources = self.columns.resources
        # By class, no more than what any of those that were refused would use.
        self._least = [[math.inf] * len(self._resources) for _ in self.columns.classes]
        weights = tuple(float(args.resource_weights.get(name, 0)) for name in self._resources)
        self._lines = [index for index, weight in enumerate(weights) if weight or args.dominant_resource_weight]  # resources that score
        self._weighted = [(index, weights[index]) for index in self._lines]
        self._weights = None if set(weights) == {1.0} else np.array(weights)[self._lines, None]
        self._dominant = float(args.dominant_resource_weight)
        self._weight_sum = constant(sum(weights) + self._dominant)

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
        return (before is None or bool(self._refuses(pod, before, slot))) and not self._closed(pod, slot)

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

    def _refuses(self, pod: PodInfo, report: Report, slot: int) -> int:
        """The code that a pod gets from what a node showed, 0 where it passes."""
        if pod.shape.daemonset:
            return 0
        return self._over(report.rows[self.class_of(pod)], self.columns.estimator.estimate(pod), slot)

    def _over(self, row: Row, estimate: Sequence[float], slot: int) -> int:
        used, limits, expires = row
        if expires <= self.handle.state.now:
            return 0 if self.args.enable_schedule_when_node_metrics_expired else _EXPIRED
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

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        return None if ctx.pod.shape.daemonset else self.refused(ctx, rows)

    def filter_one(self, ctx: CycleContext, slot: int) -> int:
        limited = any(self._group(ctx).limited) or self.columns.stale(ctx.now)
        return super().filter_one(ctx, slot) if limited and not ctx.pod.shape.daemonset else 0

    def tally(self, ctx: CycleContext) -> Tally:
        return FIXED if ctx.pod.shape.daemonset else _LoadTally(self, ctx)

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        return not ctx.pod.shape.daemonset and any(self._group(ctx).limited)

    def refused(self, ctx: CycleContext, rows: Rows, freed: Vector | None = None) -> NDArray[np.bool_] | None:
        """Rows that are over a limit or whose report expired, where so much less (by resource) is used; None for no row."""
        group = self._group(ctx)
        estimate = self._estimate(ctx)
        over: NDArray[np.bool_] | None = None
        for index, limited in enumerate(group.limited):
            if limited:
                percent = self._percent(group, index, estimate[index], rows, None if freed is None else freed[index])
                refused = np.greater_equal(percent, group.limit[index][rows])
                over = refused if over is None else np.logical_or(over, refused, out=over)
        if not self.columns.stale(ctx.now):
            return over
        expired = np.less_equal(group.expires[rows], ctx.now)
        if self.args.enable_schedule_when_node_metrics_expired:
            return None if over is None else np.logical_and(over, ~expired)
        return np.logical_or(expired, over) if over is not None else np.asarray(expired)

    def _percent(self, group: PodClass, index: int, estimate: Vector | float, rows: Rows, freed: Vector | None) -> Vector:
        """Usage with the pod in percent of what the node has, not rounded."""
        part: Vector = np.add(group.used[index][rows], estimate)
        if freed is not None:
            np.subtract(part, freed, out=part)
        np.multiply(part, HUNDRED, out=part)
        np.divide(part, self.columns.divisor[index][rows], out=part)
        return part

    def refine(self, ctx: CycleContext, slots: NDArray[np.intp], codes: Codes) -> Codes:
        least = self._least[self.class_of(ctx.pod)]
        least[:] = map(min, least, self.columns.estimator.estimate(ctx.pod))
        return self.refined(ctx, slots)

    def refined(self, ctx: CycleContext, slots: NDArray[np.intp], freed: Vector | None = None) -> Codes:
        """Codes of rows that are refused, where so much less is used."""
        group = self._group(ctx)
        estimate = self.columns.estimator.estimate(ctx.pod)
        refined = np.zeros(len(slots), dtype=np.int32)
        aggregated = group.aggregated[slots].astype(np.int32)
        for index in reversed(range(len(self._resources))):
            percent = self._percent(group, index, estimate[index], slots, None if freed is None else freed[index])
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

    def _estimate(self, ctx: CycleContext) -> Vector:
        """What the pod is expected to use, by resource."""
        known: Vector | None = ctx.data.get(self.name)
        if known is None:
            known = ctx.data[self.name] = np.array(self.columns.estimator.estimate(ctx.pod))[:, None]
        return known

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        if not self._lines:
            return 0.0
        group, estimate = self._group(ctx), self._estimate(ctx)
        room, divisor = group.room, self.columns.divisor
        if len(self._lines) == len(room):
            part = left_percent(picked(room, rows), estimate, picked(divisor, rows))
        else:
            lines = [left_percent(room[line][rows], estimate[line], divisor[line][rows]) for line in self._lines]
            part = np.array(lines)
        least = np.minimum(part.min(axis=0), HUNDRED) * self._dominant if self._dominant else None
        if self._weights is not None:
            np.multiply(part, self._weights, out=part)
        total = added_up(part)
        if least is not None:
            np.add(total, least, out=total)
        np.divide(total, self._weight_sum, out=total)
        np.floor(total, out=total)
        if self.columns.stale(ctx.now):
            np.putmask(total, np.less_equal(group.score_expires[rows], ctx.now), 0.0)
        if self.columns.distrusted:
            np.floor(np.multiply(total, self.columns.trust[rows], out=total), out=total)
        return np.asarray(total)

    def score_one(self, ctx: CycleContext, slot: int) -> float:
        columns = self.columns
        if self._dominant or not self._lines or columns.distrusted or columns.stale(ctx.now):
            return super().score_one(ctx, slot)
        room, divisor, estimate, total = self._group(ctx).room, columns.divisor, columns.estimator.estimate(ctx.pod), 0.0
        for line, weight in self._weighted:
            total += left_percent_of(room.item(line, slot), estimate[line], divisor.item(line, slot)) * weight
        return float(math.floor(total / self._weight_sum.item()))


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
