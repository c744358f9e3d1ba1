"""ScaleDownBinPack: rank pods so that scaling down empties nodes (DS-SDB-01), or evict in that order (DS-SDB-02)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, ClassVar

from pydantic import Field, model_validator

from koord.accounting.resources import sum_
from koord.api import names
from koord.api.times import parse_time
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel
from roles.descheduler.cost import eviction_cost
from roles.descheduler.framework.effects import PAUSE, Annotate, Evict, PluginError, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import Runs
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.plugins.fragmentationaware import check_resources
from roles.descheduler.selection import Namespaces, PodChoice, PodSelector, optional_selector
from roles.descheduler.snapshot import NodeView, PodView, Vector

STRATEGIES = ("CalculateOnly", "EvictDirectly")
NEVER = 2**31 - 1
REASON = "scale-down binpack"


class ScaleDownBinPackArgs(ConfigModel):
    """ScaleDownBinPack. Weights of resources that are not named are 1."""

    paused: bool = False
    """Do nothing."""
    strategy: str = "CalculateOnly"
    """`CalculateOnly` writes the deletion cost of pods; `EvictDirectly` evicts in that order."""
    max_pods_to_evict: int = Field(0, ge=0)
    """Pods that `EvictDirectly` evicts in a round at most; it needs more than 0."""
    node_selector: dict[str, Any] | None = None
    """LabelSelector of the nodes that are looked at; unset: all."""
    pod_selectors: list[PodSelector] = []
    """Pods that may leave; one matching selector is enough. Empty: all."""
    evictable_namespaces: Namespaces | None = None
    """Namespaces whose pods may leave."""
    resources: list[str] = ["cpu", "memory"]
    """Resources by which nodes are ranked."""
    resource_weights: dict[str, float | int] = {}
    """Weight by resource; 1 where left out."""

    @model_validator(mode="after")
    def _accepted(self) -> ScaleDownBinPackArgs:
        self.strategy = self.strategy or STRATEGIES[0]
        if self.strategy not in STRATEGIES:
            raise ConfigError("strategy", f"{self.strategy!r} is not known; accepted: {', '.join(STRATEGIES)}")
        if self.strategy == "EvictDirectly" and self.max_pods_to_evict <= 0:
            raise ConfigError("maxPodsToEvict", "must be more than 0 with strategy EvictDirectly")
        check_resources(self.resources)
        for name, weight in self.resource_weights.items():
            if weight <= 0 or not isfinite(weight):
                raise ConfigError(f"resourceWeights.{name}", f"{weight} must be a positive number")
        optional_selector(self.node_selector)
        PodChoice(self.evictable_namespaces, self.pod_selectors)
        return self


@dataclass(slots=True)
class Ranked:
    """One node with the pods that are to go, and those that match but must stay. `score` is low where the node is easily emptied."""

    node: NodeView
    eligible: list[PodView]
    skipped: list[PodView]
    score: float


class ScaleDownBinPack:
    """A Balance plugin without memory."""

    name: ClassVar[str] = "ScaleDownBinPack"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: ScaleDownBinPackArgs, interval: float) -> None:
        self.args = args
        self._nodes = optional_selector(args.node_selector)
        self._choice = PodChoice(args.evictable_namespaces, args.pod_selectors)
        self._weights = {name: float(args.resource_weights.get(name, 1.0)) for name in args.resources}

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Rank all pods, then write the ranks or evict in their order."""
        if self.args.paused:
            handle.note("the plugin is paused by its arguments")
            return
        ranked = Runs[Ranked]()
        skipped: list[PodView] = []
        for node in nodes:
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            if (entry := self._rank(node, handle)) is not None:
                ranked.add((entry.score, len(entry.eligible), node.name), entry)
        order = ((view, entry) for entry in self._noting(ranked, skipped) for view in self._within(entry))
        if self.args.strategy == "EvictDirectly":
            yield from self._evict(order)
        else:
            yield from self._annotate(order, skipped)

    @staticmethod
    def _noting(ranked: Runs[Ranked], skipped: list[PodView]) -> Iterator[Ranked]:
        """The nodes in their order; the pods of each that must stay are added to `skipped`."""
        for _, entry in ranked.in_order():
            skipped += entry.skipped
            yield entry

    def _rank(self, node: NodeView, handle: Handle) -> Ranked | None:
        """None for a node without pods that may go, or that is not selected."""
        if self._nodes is not None and not self._nodes.matches(node.node.metadata.labels):
            return None
        eligible: list[PodView] = []
        staying: list[PodView] = []
        skipped: list[PodView] = []
        for view in node.pods:
            if not self._choice.refuse(view.pod) and not view.leaving and not handle.filter(view.pod):
                eligible.append(view)
                continue
            staying.append(view)
            if self._choice.selected(view.pod):
                skipped.append(view)
        if not eligible:
            return None
        stay, go = self._load(staying, node.allocatable), self._load(eligible, node.allocatable)
        return Ranked(node, eligible, skipped, stay / go if go else inf if stay else 0.0)

    def _load(self, views: list[PodView], allocatable: Mapping[str, int]) -> float:
        return self._share(sum_(view.requests for view in views), allocatable)

    def _share(self, requests: Vector, allocatable: Mapping[str, int]) -> float:
        """Σ weight × requests / allocatable over the resources that the node has."""
        weights = self._weights.items()
        return sum(weight * requests.get(name, 0) / whole for name, weight in weights if (whole := allocatable.get(name, 0)) > 0)

    def _within(self, entry: Ranked) -> list[PodView]:
        """A node's pods: those whose eviction costs less first, then the largest, then the newest."""

        def key(view: PodView) -> tuple[int, float, float, str, str]:
            meta = view.pod.metadata
            created = parse_time(meta.creation_timestamp) if meta.creation_timestamp else 0.0
            return eviction_cost(view.pod), -self._share(view.requests, allocatable), -created, meta.namespace, meta.name

        allocatable = entry.node.allocatable
        return sorted(entry.eligible, key=key)

    def _annotate(self, order: Iterable[tuple[PodView, Ranked]], skipped: Iterable[PodView]) -> Turn:
        failed = asked = 0
        for rank, (view, entry) in enumerate(order):
            reason = f"rank {rank}: score {entry.score:.4f} of node {entry.node.name}"
            asked += 1
            failed += not (yield Annotate(view.pod, names.ANNOTATION_POD_DELETION_COST, str(rank), reason))
        for view in skipped:
            asked += 1
            failed += not (yield Annotate(view.pod, names.ANNOTATION_POD_DELETION_COST, str(NEVER), "it must not leave"))
        if failed:
            raise PluginError(f"{failed} of {asked} pods could not be annotated")

    def _evict(self, order: Iterable[tuple[PodView, Ranked]]) -> Turn:
        evicted = 0
        for rank, (view, entry) in enumerate(order):
            if evicted >= self.args.max_pods_to_evict:
                return
            if (yield Evict(view.pod, REASON, numbers={"rank": rank, "score": entry.score})):
                evicted += 1
