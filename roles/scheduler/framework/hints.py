"""What queueing hints ask of a node beside their plugin's own rule (SCH-FW-05)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from roles.scheduler.cluster.changes import NODE
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext, State
from roles.scheduler.framework.events import Action
from roles.scheduler.framework.interfaces import Filter, Plugin, PreFilter
from roles.scheduler.framework.status import Code, Status

if TYPE_CHECKING:
    from roles.scheduler.framework.framework import Framework

OPENS = (
    Action.ADD | Action.UPDATE_ALLOCATABLE | Action.UPDATE_LABELS | Action.UPDATE_TAINTS | Action.UPDATE_ANNOTATIONS
    | Action.UPDATE_DECLARED_FEATURES
)  # fmt: skip
"""Changes of a node that may open it where `closed` held. Who uses that subscribes to them, and to pods that leave or shrink."""


def closed(framework: Framework, state: State, pod: PodInfo, slot: int) -> bool:
    """Whether a node is closed to pods of a shape, whatever a plugin with other reasons says: by a filter that looks at the node alone, or
    because it has less free than they request. Where they may use a reservation nobody knows without a cycle: False."""
    ctx = CycleContext(state, pod)
    if framework.restorer is not None and framework.restorer.restored_row(ctx, slot):
        return False
    row = np.array((slot,), dtype=np.intp)
    for plugin in framework.filters:
        if _looks_at_the_node(plugin):
            codes = None if _skips(plugin, ctx) else plugin.filter(ctx, row)
            if codes is not None and codes[0]:
                return True
        elif any(state.cluster.free[resource].item(slot) < amount for resource, amount in _needed(plugin, pod)):
            return True
    return False


def _looks_at_the_node(plugin: Filter) -> bool:
    kind = type(plugin)
    alone = plugin.reads == NODE and not plugin.row_wise
    return alone and kind.filter_stamp is Filter.filter_stamp and kind.shape_key is Plugin.shape_key


def _skips(plugin: Filter, ctx: CycleContext) -> bool:
    answer = plugin.pre_filter(ctx) if isinstance(plugin, PreFilter) else None
    return isinstance(answer, Status) and answer.code is Code.SKIP


def _needed(plugin: Filter, pod: PodInfo) -> list[tuple[int, float]]:
    wanted = frozenset(plugin.must_fit(pod))
    return [(resource, amount) for resource, amount in pod.shape.requests if resource in wanted] if wanted else []
