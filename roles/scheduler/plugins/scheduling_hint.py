"""SchedulingHint: nodes that a pod's annotation requires, or prefers in order (SCH-HINT-01, SCH-HINT-02)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from koord.api.annotations import AnnotationError, parse_scheduling_hint
from koord.api.annotations import SchedulingHint as Hint
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.config.args import PluginArgs
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import NODE, UNSCHEDULED_POD, Action, Subscription
from roles.scheduler.framework.interfaces import NodeSet, PreferNodes, PreFilter
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, error

_MEMO = "SchedulingHint"


class SchedulingHintArgs(PluginArgs):
    """SchedulingHint: at most so many preferred nodes of a pod are tried."""

    max_hint_nodes: int = Field(default=100, gt=0, le=2**31 - 1)
    """Preferred nodes of a pod that are tried at most."""


def hint_of(pod: PodInfo) -> Hint | None:
    """The hint of a pod, read once for a shape; None without one. Raises AnnotationError."""
    memo = pod.shape.memo
    if _MEMO not in memo:
        memo[_MEMO] = parse_scheduling_hint(pod.shape.annotations)
    found: Hint | None = memo[_MEMO]
    return found


def extension_of(pod: PodInfo, plugin: str) -> Any:
    """What the hint's `extensions` hold for a plugin; None without any, or with a hint that cannot be read."""
    try:
        hint = hint_of(pod)
    except AnnotationError:
        return None
    return None if hint is None else hint.extensions.get(plugin)


class SchedulingHint(PreFilter, PreferNodes):
    """`nodeNames` is a hard restriction; of `preferredNodeNames` the first that passes all filters is taken without scoring."""

    name = "SchedulingHint"
    Args = SchedulingHintArgs

    def subscriptions(self) -> Sequence[Subscription]:
        return (Subscription(NODE, Action.ADD), Subscription(UNSCHEDULED_POD, Action.ALL))

    def pre_filter(self, ctx: CycleContext) -> Status | NodeSet:
        try:
            hint = hint_of(ctx.pod)
        except AnnotationError as failure:
            return error(str(failure))
        if hint is None:
            return SKIP
        return NodeSet(frozenset(hint.node_names)) if hint.node_names else SUCCESS

    def prefer_nodes(self, ctx: CycleContext, candidates: NDArray[np.bool_]) -> tuple[Status, Sequence[str]]:
        """The first names of the hint; where something restricts the nodes, of those that it leaves. One that is no node counts too."""
        try:
            hint = hint_of(ctx.pod)
        except AnnotationError as failure:
            return error(str(failure)), ()
        if hint is None or not hint.preferred_node_names:
            return SKIP, ()
        names, cluster = list(dict.fromkeys(hint.preferred_node_names)), ctx.cluster
        if not candidates[cluster.alive].all():
            slots = ((name, cluster.slot_of(name)) for name in names)
            names = [name for name, slot in slots if slot >= 0 and candidates[slot]]
        return SUCCESS, names[: self.args.max_hint_nodes]
