"""HighNodeUtilization: empty nodes with little requested, so that they can be given back (DS-K8S-10)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.plugins.community.common import LenientModel, one_of
from roles.descheduler.plugins.community.requested import (
    BASIC,
    ExcludedNamespaces,
    Leaving,
    Percentages,
    Requested,
    check_percentages,
    headroom,
    why_not,
)
from roles.descheduler.plugins.firstfit import FirstFit
from roles.descheduler.snapshot import NodeView, PodView

ONLY_THRESHOLDING = "OnlyThresholdingResources"


class HighNodeUtilizationArgs(LenientModel):
    """HighNodeUtilization; thresholds in percent of allocatable."""

    thresholds: Percentages = {}
    """Percent of allocatable by resource, 0 to 100; a node that requests less of all is emptied."""
    number_of_nodes: int = Field(0, ge=0)
    """Pods leave only if more than so many nodes are below the thresholds."""
    eviction_modes: list[str] = []
    """`OnlyThresholdingResources`: only pods that request a resource with a threshold leave."""
    evictable_namespaces: ExcludedNamespaces | None = None
    """Namespaces whose pods stay."""

    @model_validator(mode="after")
    def _accepted(self) -> HighNodeUtilizationArgs:
        check_percentages("thresholds", self.thresholds)
        one_of("evictionModes", self.eviction_modes, (ONLY_THRESHOLDING,))
        if self.evictable_namespaces is not None:
            self.evictable_namespaces.check("evictableNamespaces")
        return self


class HighNodeUtilization:
    """A Balance plugin without memory."""

    name: ClassVar[str] = "HighNodeUtilization"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: HighNodeUtilizationArgs, interval: float) -> None:
        self.args = args
        self._stay = frozenset(args.evictable_namespaces.exclude if args.evictable_namespaces is not None else ())
        self._thresholds: dict[str, float] = dict.fromkeys(BASIC, 100.0) | args.thresholds

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """The emptiest node first, while the others have room."""
        measured: list[Requested] = []
        sources: list[Requested] = []
        targets: list[Requested] = []
        for node in nodes:
            if handle.pause():
                yield PAUSE
            found = Requested.of(node, self.args.thresholds)
            measured.append(found)
            if found.under(self._thresholds):
                sources.append(found)
            elif not node.node.spec.unschedulable:
                targets.append(found)
        if why := why_not(len(sources), len(measured), self.args.number_of_nodes) or ("" if targets else "no node can take pods"):
            handle.note(why)
            sources = targets = []
            yield from free(handle, measured)
            return
        sources.sort(key=lambda node: node.weight)
        targets.sort(key=lambda node: -node.weight)
        columns = yield from Columns.paced([node.view for node in targets])
        yield from Leaving(
            places=FirstFit(columns, [node.view for node in targets], labels=True),
            sources=sources,
            targets=targets,
            budget=headroom(targets, {}),
            still=lambda node: True,
            allowed=lambda view: self._allowed(view) and not handle.filter(view.pod),
            reason=self._reason,
            pause=handle.pause,
            now=handle.now,
        ).turn()
        sources = targets = []
        yield from columns.free(handle)
        yield from free(handle, measured)

    def _allowed(self, view: PodView) -> bool:
        if view.pod.metadata.namespace in self._stay:
            return False
        if ONLY_THRESHOLDING not in self.args.eviction_modes:
            return True
        return any(view.requests.get(name, 0) > 0 for name in self.args.thresholds)

    def _reason(self, node: Requested) -> str:
        parts = (
            f"{name} requests({node.percent(name):.2f}%)<=threshold({limit:.2f}%)" for name, limit in sorted(self.args.thresholds.items())
        )
        return f"node is underutilized, {', '.join(parts)}"
