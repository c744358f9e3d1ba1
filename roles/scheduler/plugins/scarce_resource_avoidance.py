"""ScarceResourceAvoidance: keeps pods that need no scarce resource off the nodes that have it (SCH-SCARCE-01)."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from roles.scheduler.cluster.changes import NODE
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.config.args import PluginArgs
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.interfaces import PreScore, Score
from roles.scheduler.framework.status import SUCCESS, Status

_INDIFFERENT = 100.0
_PODS = "pods"


class ScarceResourceAvoidanceArgs(PluginArgs):
    """ScarceResourceAvoidance: names of the scarce resources."""

    resources: list[str] = Field(default_factory=list)
    """Scarce resources: nodes that have one are left to pods that request it."""


class ScarceResourceAvoidance(PreScore, Score):
    """Of the resources that a node has and the pod does not request, the scarce ones cost their share of 100."""

    name = "ScarceResourceAvoidance"
    Args = ScarceResourceAvoidanceArgs
    score_reads = NODE

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        scarce = frozenset(self.args.resources)
        requested = {name for name, amount in ctx.pod.shape.amounts.items() if amount > 0}
        if not scarce - requested:
            return _INDIFFERENT
        cluster = ctx.cluster
        spare: Any = np.zeros(cluster.capacity)[rows]
        avoided: Any = np.zeros(cluster.capacity)[rows]
        for resource, column in enumerate(cluster.allocatable):
            name = cluster.vocabulary.resources[resource]
            if name == _PODS or name in requested or not cluster.providers[resource]:
                continue
            there = column[rows] > 0
            spare += there
            if name in scarce:
                avoided += there
        if not np.any(avoided):
            return _INDIFFERENT
        return np.asarray(np.where(avoided > 0, np.floor(100.0 * (spare - avoided) / np.maximum(spare, 1.0)), _INDIFFERENT))
