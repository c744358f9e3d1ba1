"""Filters on single properties of nodes: NodeUnschedulable, NodeName; the queue's PrioritySort and SchedulingGates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roles.scheduler.cluster.changes import NODE as NODE_CHANGED
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.tolerations import UNSCHEDULABLE_TAINT, first_untolerated
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.interfaces import Codes, Filter, NodeSet, PreEnqueue, PreFilter, QueueSort, Rejection
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, unresolvable

_UNSCHEDULABLE = Rejection(("node(s) were unschedulable",), resolvable=False)
_NAME = Rejection(("node(s) didn't match the requested node name",), resolvable=False)


class PrioritySort(QueueSort):
    """Higher priority first, then who came first (SCH-FW-05)."""

    name = "PrioritySort"

    def sort_key(self, pod: PodInfo, entered: float) -> tuple[Any, ...]:
        return (-pod.shape.priority, entered)


class SchedulingGates(PreEnqueue):
    """Keeps pods with scheduling gates out of the queue (SCH-KS-11)."""

    name = "SchedulingGates"

    def pre_enqueue(self, pod: PodInfo) -> Status:
        gates = pod.shape.gates
        if not gates:
            return SUCCESS
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gates)}]")

    def subscriptions(self) -> Sequence[Subscription]:
        return (Subscription(UNSCHEDULED_POD, Action.UPDATE_GATES),)


class NodeUnschedulable(PreFilter, Filter):
    """Refuses cordoned nodes to pods that do not tolerate it."""

    name = "NodeUnschedulable"
    reads = NODE_CHANGED

    def pre_filter(self, ctx: CycleContext) -> Status:
        return SKIP if _tolerates(ctx.pod) else SUCCESS

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        return ctx.cluster.unschedulable[rows] if ctx.cluster.cordoned else None

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _UNSCHEDULABLE

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(NODE, Action.ADD | Action.UPDATE_TAINTS, _became_schedulable),
            Subscription(UNSCHEDULED_POD, Action.UPDATE_TOLERATIONS, lambda pod, event: _tolerates(pod)),
        )


def _tolerates(pod: PodInfo) -> bool:
    return first_untolerated((UNSCHEDULABLE_TAINT,), pod.shape.tolerations, ("NoSchedule",)) is None


def _became_schedulable(pod: PodInfo, event: ClusterEvent) -> bool:
    return event.new is not None and not event.new.unschedulable


class NodeName(PreFilter):
    """A pod that names its node goes there or nowhere."""

    name = "NodeName"

    def pre_filter(self, ctx: CycleContext) -> Status | NodeSet:
        node = ctx.pod.node_name
        return NodeSet(frozenset((node,))) if node else SKIP

    per_pod = True

    def subscriptions(self) -> Sequence[Subscription]:
        return (Subscription(NODE, Action.ADD),)
