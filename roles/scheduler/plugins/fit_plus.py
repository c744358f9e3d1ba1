"""NodeResourcesFitPlus: every resource scored by a strategy of its own (SCH-FITP-01)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from koord.config.model import ConfigModel
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodShape
from roles.scheduler.cluster.vocabulary import MEMORY
from roles.scheduler.config.args import PluginArgs
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import PreScore, Score
from roles.scheduler.framework.status import SUCCESS, Status

_INDIFFERENT = 100.0


class ResourceStrategy(ConfigModel):
    """How one resource is scored: `LeastAllocated` prefers nodes with more of it left, `MostAllocated` with less."""

    type: Literal["LeastAllocated", "MostAllocated"]
    """`LeastAllocated` spreads this resource, `MostAllocated` packs it."""
    weight: int = Field(default=1, ge=0)
    """How much it counts against the others."""


class NodeResourcesFitPlusArgs(PluginArgs):
    """NodeResourcesFitPlus: strategies by resource name."""

    resources: dict[str, ResourceStrategy] = Field(default_factory=dict)
    """Strategy by resource name."""


class _Part(NamedTuple):
    """One resource that counts: its id, what the pod adds (base units), the strategy and the weight."""

    resource: int
    amount: float
    most: bool
    weight: float


class NodeResourcesFitPlus(PreScore, Score):
    """Only resources that the pod requests and the arguments list count; a pod that requests none of them scores 100 everywhere."""

    name = "NodeResourcesFitPlus"
    Args = NodeResourcesFitPlusArgs

    def __init__(self, args: NodeResourcesFitPlusArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._memo = f"{self.name}/{args.model_dump_json()}"

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS

    def _parts(self, ctx: CycleContext) -> tuple[_Part, ...]:
        shape = ctx.pod.shape
        parts: tuple[_Part, ...] | None = shape.memo.get(self._memo)
        if parts is None:
            parts = shape.memo[self._memo] = tuple(self._read(shape))
        for part in parts:
            ctx.cluster.ensure(part.resource)
        return parts

    def _read(self, shape: PodShape) -> Sequence[_Part]:
        intern = self.handle.cluster.vocabulary.resources.intern
        parts = []
        for name, strategy in sorted(self.args.resources.items()):
            amount = shape.amounts.get(name, 0)
            if amount > 0:
                resource = intern(name)
                adds = shape.non_zero[resource] if resource <= MEMORY else float(amount)
                parts.append(_Part(resource, adds, strategy.type == "MostAllocated", float(strategy.weight)))
        return parts

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        parts = self._parts(ctx)
        weights = sum(part.weight for part in parts)
        if not weights:
            return _INDIFFERENT
        cluster = ctx.cluster
        total: Any = 0.0
        for part in parts:
            free = cluster.non_zero_free[part.resource] if part.resource <= MEMORY else cluster.free[part.resource]
            capacity, divisor = cluster.allocatable[part.resource][rows], cluster.divisor[part.resource][rows]
            left = free[rows] - part.amount
            kept = np.clip(capacity - left, 0.0, capacity) if part.most else np.maximum(left, 0.0)
            total = total + part.weight * np.floor(kept * 100.0 / divisor)
        return np.asarray(np.floor(total / weights))
