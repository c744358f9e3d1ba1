"""FragmentationAware: take the pod away whose leaving evens out how full a node's resources are, and make room for pods that wait for GPUs
(DS-FA-01, DS-FA-02)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import ClassVar

from pydantic import Field, model_validator

from koord.accounting.resources import sub
from koord.config.errors import ConfigError
from roles.descheduler.columns import Columns
from roles.descheduler.cost import eviction_cost
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.plugins.gpuroom import GPURoomArgs, Rooms
from roles.descheduler.selection import PodChoice, SelectionArgs, optional_selector
from roles.descheduler.snapshot import NodeView, PodView


class FragmentationAwareArgs(SelectionArgs):
    """FragmentationAware. Thresholds are standard deviations of shares (0..1) of the node's allocatable."""

    resources: list[str] = ["cpu", "memory"]
    """Resources whose shares should be alike; two at least make sense."""
    imbalance_threshold: float | int = Field(0.15, ge=0)
    """Standard deviation of the shares (0 to 1) above which a node is looked at."""
    min_improvement_threshold: float | int = Field(0.02, ge=0)
    """By how much the deviation must fall for a pod to leave."""
    even_nodes: bool = True
    """Even out how full the resources of nodes are. Off: only what `gpus` says is done."""
    gpus: GPURoomArgs | None = None
    """Move small GPU pods to make room for pods that wait for whole cards; unset: none."""

    @model_validator(mode="after")
    def _accepted(self) -> FragmentationAwareArgs:
        check_resources(self.resources)
        return self


def check_resources(resources: Sequence[str]) -> None:
    """Raises ConfigError unless the names are given, not empty, and each once."""
    if not resources:
        raise ConfigError("resources", "must name at least one resource")
    for index, name in enumerate(resources):
        if not name:
            raise ConfigError(f"resources[{index}]", "must not be empty")
        if resources.index(name) != index:
            raise ConfigError(f"resources[{index}]", f"{name!r} is given twice")


def imbalance(requested: Mapping[str, int], allocatable: Mapping[str, int], resources: Sequence[str]) -> float:
    """Population standard deviation of requested/allocatable over the resources that the node has."""
    shares = [requested.get(name, 0) / allocatable[name] for name in resources if allocatable.get(name)]
    if not shares:
        return 0.0
    mean = sum(shares) / len(shares)
    return sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))


class FragmentationAware:
    """A Balance plugin. To even nodes out, at most one pod leaves a node in a round. It remembers for which pods room is being made."""

    name: ClassVar[str] = "FragmentationAware"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: FragmentationAwareArgs, interval: float) -> None:
        self.args = args
        self._nodes = optional_selector(args.node_selector)
        self._choice = PodChoice(args.evictable_namespaces, args.pod_selectors)
        self._rooms = Rooms(args.gpus) if args.gpus is not None else None

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Room for pods that wait for cards, then the best pod of each node that is uneven enough."""
        if self.args.paused:
            handle.note("the plugin is paused by its arguments")
            return
        selected = [node for node in nodes if self._nodes is None or self._nodes.matches(node.node.metadata.labels)]
        columns = yield from Columns.paced(selected)
        if self._rooms is not None:
            yield from self._rooms.turn(selected, columns, handle, self._choice.filter_with(handle.filter), dry_run=self.args.dry_run)
        for node in selected if self.args.even_nodes else ():
            if handle.pause(1 + len(node.everyone)):
                yield PAUSE
            before = imbalance(node.staying, node.allocatable, self.args.resources)
            if before <= self.args.imbalance_threshold:
                continue
            gains = self._gains(node, before, handle)
            for _ in columns.learn() if gains and self.args.node_fit else ():
                yield PAUSE
            best = self._best(gains, columns)
            if best is None:
                handle.note(f"node {node.name} is uneven by {before:.4f}, and no pod that may leave would help enough")
                continue
            view, after, target = best
            gain = before - after
            reason = f"fragmentation reduction: stdBefore={before:.4f} stdAfter={after:.4f} gain={gain:.4f}"
            numbers: dict[str, float | int | str] = {"stdBefore": before, "stdAfter": after, "gain": gain}
            yield Evict(view.pod, reason, target, numbers, self.args.dry_run)
        yield from columns.free(handle)

    def _gains(self, node: NodeView, before: float, handle: Handle) -> list[tuple[PodView, float]]:
        """The pods that may leave and whose gain is above the least one asked for, with what is left without them."""
        refuse = self._choice.filter_with(handle.filter)
        gains = []
        staying = node.staying
        for view in sorted(node.pods, key=lambda view: view.key):
            after = imbalance(sub(staying, view.requests), node.allocatable, self.args.resources)
            if not view.leaving and before - after > self.args.min_improvement_threshold and not refuse(view.pod):
                gains.append((view, after))
        return gains

    def _best(self, gains: list[tuple[PodView, float]], columns: Columns) -> tuple[PodView, float, str] | None:
        """The pod with the largest gain that fits a node, what is left without it, and that node."""
        for view, after in sorted(gains, key=lambda entry: (entry[1], eviction_cost(entry[0].pod))):  # stable: the first wins a tie
            target = columns.elsewhere(view) if self.args.node_fit else ""
            if target or not self.args.node_fit:
                return view, after, target
        return None
