"""CustomPriority: move pods from expensive groups of nodes to cheaper ones (DS-CP-01, DS-CP-02)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field, model_validator

from koord.accounting.resources import parse, sum_
from koord.api import names
from koord.api.objects import Pod
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel
from koord.config.selectors import compile_selector
from roles.descheduler.columns import Columns
from roles.descheduler.cost import eviction_cost
from roles.descheduler.framework.effects import PAUSE, Cordon, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.plugins.firstfit import FirstFit
from roles.descheduler.relief import Relief
from roles.descheduler.selection import Namespaces, PodChoice, PodSelector, optional_selector
from roles.descheduler.snapshot import NodeView, PodView, Vector, pod_view

MODES = ("BestEffort", "DrainNode")
PATIENCE = 1800.0  # seconds without progress after which a drain is given up, and for which the node is then left alone
GIVE_UP_AFTER = 5  # consecutive pods of one node that fit nowhere


class PriorityLevel(ConfigModel):
    """A group of nodes. The thresholds are accepted and have no effect, as upstream."""

    name: str = Field(min_length=1)
    """Name of the group."""
    node_selector: dict[str, Any]
    """LabelSelector of its nodes."""
    keep_threshold: float | int | None = None
    """Accepted and left alone, as upstream."""
    reject_threshold: float | int | None = None
    """Accepted and left alone, as upstream."""


class CustomPriorityArgs(ConfigModel):
    """CustomPriority; `evictionOrder` goes from the group that is emptied first to the cheapest."""

    paused: bool = False
    """Do nothing."""
    dry_run: bool = False
    """Decide and record, evict nothing."""
    evictable_namespaces: Namespaces | None = None
    """Namespaces whose pods may leave."""
    node_selector: dict[str, Any] | None = None
    """LabelSelector of the nodes that are looked at; unset: all."""
    pod_selectors: list[PodSelector] = []
    """Pods that may leave; one matching selector is enough. Empty: all."""
    node_fit: bool = True
    """A pod may leave only if a node of a cheaper group would take it."""
    eviction_order: list[PriorityLevel] = []
    """Groups of nodes, the one that is emptied first at the front."""
    mode: str = "BestEffort"
    """`BestEffort`: pod by pod; `DrainNode`: only nodes that can be emptied."""
    auto_cordon: bool = False
    """Cordon nodes that are drained."""

    @model_validator(mode="after")
    def _accepted(self) -> CustomPriorityArgs:
        self.mode = self.mode or MODES[0]
        if self.mode not in MODES:
            raise ConfigError("mode", f"{self.mode!r} is not known; accepted: {', '.join(MODES)}")
        if len(self.eviction_order) < 2:
            raise ConfigError("evictionOrder", f"needs at least two entries, has {len(self.eviction_order)}")
        names = [level.name for level in self.eviction_order]
        for index, level in enumerate(self.eviction_order):
            if names.index(level.name) != index:
                raise ConfigError(f"evictionOrder[{index}].name", f"{level.name!r} is already used; names must be unique")
            compile_selector(level.node_selector, f"evictionOrder[{index}].nodeSelector")
        optional_selector(self.node_selector)
        PodChoice(self.evictable_namespaces, self.pod_selectors)
        return self


@dataclass(slots=True)
class Drain:
    """A drain in progress, of the node with this uid. `cordoned`: by this plugin. `progress`: when a pod was last told to leave, or was
    leaving, in seconds since the epoch; `planned` are the uids of the pods that were asked to leave."""

    reason: str
    node: str
    cordoned: bool
    progress: float
    evicted: int = 0
    planned: set[str] = field(default_factory=set)


class CustomPriority:
    """A Balance plugin. Remembers the drains that are in progress, and those that were given up."""

    name: ClassVar[str] = "CustomPriority"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: CustomPriorityArgs, interval: float) -> None:
        self.args = args
        self._interval = interval
        self._drains: dict[str, Drain] = {}
        self._given_up: dict[str, float] = {}  # node -> until when it is left alone
        self._nodes = optional_selector(args.node_selector)
        self._levels = [(level.name, compile_selector(level.node_selector)) for level in args.eviction_order]
        self._choice = PodChoice(args.evictable_namespaces, args.pod_selectors)

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Each level but the last gives pods to the nodes of all later levels."""
        if self.args.paused:
            handle.note("the plugin is paused by its arguments")
            return
        levels = yield from self._grouped(nodes, handle)
        if len(levels) < 2:
            handle.note(f"{len(levels)} levels of evictionOrder have nodes, at least two are needed")
            return
        drain = self.args.mode == "DrainNode"
        present = {node.name: node.node.metadata.uid for node in nodes}  # a new node may have the name of one that is gone
        self._drains = {name: found for name, found in self._drains.items() if present.get(name) == found.node}
        columns = yield from Columns.paced([node for _, members in levels for node in members])
        for index, (level, sources) in enumerate(levels[:-1]):
            targets = FirstFit(columns, [node for _, later in levels[index + 1 :] for node in later], labels=self.args.node_fit)
            for source in sources:
                if handle.pause(1 + len(source.everyone)):
                    yield PAUSE
                if drain:
                    yield from self._drain(level, source, targets, handle)
                else:
                    yield from self._best_effort(level, source, targets, handle)

    def _grouped(self, nodes: list[NodeView], handle: Handle) -> Generator[Effect, bool, list[tuple[str, list[NodeView]]]]:
        """Nodes by the first level that they match; levels without nodes are left out."""
        groups: dict[str, list[NodeView]] = {name: [] for name, _ in self._levels}
        for node in nodes:
            if handle.pause():
                yield PAUSE
            labels = node.node.metadata.labels
            if self._nodes is not None and not self._nodes.matches(labels):
                continue
            level = next((name for name, selector in self._levels if selector.matches(labels)), None)
            if level is not None:
                groups[level].append(node)
        return [(name, members) for name, members in groups.items() if members]

    def _candidates(self, source: NodeView, handle: Handle) -> list[PodView]:
        """Pods that may leave, the smallest first; of equally large ones those whose eviction costs less."""
        refuse = self._choice.filter_with(handle.filter)
        views = {view.pod.metadata.uid: view for view in source.pods}
        chosen = [views.get(pod.metadata.uid) or pod_view(pod, None) for pod in source.everyone if not refuse(pod)]
        return sorted((view for view in chosen if not view.leaving), key=_size)

    def _best_effort(self, level: str, source: NodeView, targets: FirstFit, handle: Handle) -> Turn:
        """Every pod that fits a target leaves; room that is expected to be taken is not promised twice."""
        reason = f"evicting from {level} priority resource to lower priority resource"
        misses = 0
        for view in self._candidates(source, handle):
            if handle.pause():
                yield PAUSE
            target = targets.of(view, view.requests) if self.args.node_fit else ""
            if self.args.node_fit and not target:
                misses += 1
                if misses >= GIVE_UP_AFTER:
                    handle.note(f"node {source.name}: {misses} pods in a row fit no cheaper node, the others are not tried")
                    return
                continue
            misses = 0
            where = self._only_cheaper(view, view.requests, target, targets)
            if (yield Evict(view.pod, reason, target, dry_run=self.args.dry_run, relief=where)) and target:
                targets.take(target, view.requests)

    def _drain(self, level: str, source: NodeView, targets: FirstFit, handle: Handle) -> Turn:
        """All pods that may leave find a place, or none of them leaves. What limits let leave later leaves in later rounds, and the cordon
        stays until then."""
        drain = self._drains.get(source.name)
        if drain is None and self._given_up.get(source.name, 0.0) > handle.now:
            return
        if _taken_back(source):
            given_up = drain or Drain(_reason(level, source), source.node.metadata.uid, True, handle.now)
            yield from self._give_up(given_up, source, "somebody has uncordoned it", handle)
            return
        candidates = self._candidates(source, handle)
        if drain is None and not self.args.dry_run and candidates and _cordoned_before(source):
            drain = self._drains[source.name] = Drain(_reason(level, source), source.node.metadata.uid, True, handle.now)
        where = (yield from self._plan(source, candidates, targets, handle)) if candidates else None
        if drain is None:
            if where and (drain := (yield from self._begin(level, source, where, handle))) is not None:
                yield from self._go_on(drain, source, where, targets, handle)
            return
        if where:
            yield from self._go_on(drain, source, where, targets, handle)
        elif any(view.leaving for view in source.pods):
            drain.progress = handle.now
        elif not candidates and not self._still_here(drain, source):
            del self._drains[source.name]
            handle.note(f"node {source.name} is drained")
            return
        if handle.now - drain.progress >= PATIENCE:
            yield from self._give_up(drain, source, f"nothing has left it for {handle.now - drain.progress:.0f} s", handle)

    def _plan(
        self, source: NodeView, candidates: list[PodView], targets: FirstFit, handle: Handle
    ) -> Generator[Effect, bool, list[tuple[PodView, str]] | None]:
        """A place for every pod, or None and why in a note."""
        where: list[tuple[PodView, str]] = []
        for view in candidates:
            if handle.pause():
                yield PAUSE
            target = targets.of(view, _wanted(view, node_fit=self.args.node_fit))
            if not target:
                handle.note(f"node {source.name} is not drained: no cheaper node has room for pod {view.key}")
                targets.give_back((name, own.requests) for own, name in where)
                return None
            targets.take(target, view.requests)
            where.append((view, target))
        return where

    def _begin(
        self, level: str, source: NodeView, where: list[tuple[PodView, str]], handle: Handle
    ) -> Generator[Effect, bool, Drain | None]:
        """Every pod is asked about before anything is done; then the node is cordoned."""
        for view, _ in where:
            if why := handle.pre_eviction_filter(view.pod):
                handle.note(f"node {source.name} is not drained: pod {view.key} may not leave: {why}")
                return None
        reason, dry_run = _reason(level, source), self.args.dry_run
        cordon = self.args.auto_cordon and not source.node.spec.unschedulable
        if cordon and not (yield Cordon(source.node, True, reason, dry_run)):
            return None
        drain = Drain(reason, source.node.metadata.uid, cordon, handle.now)
        if not dry_run:
            self._drains[source.name] = drain
        return drain

    def _go_on(self, drain: Drain, source: NodeView, where: list[tuple[PodView, str]], targets: FirstFit, handle: Handle) -> Turn:
        """Evict in order. Pods that are refused stay for a later round; where nothing left at all, or no round follows, the plan is
        given up."""
        refused: list[str] = []
        for view, target in where:
            cheaper = self._only_cheaper(view, _wanted(view, node_fit=self.args.node_fit), target, targets)
            if (yield Evict(view.pod, drain.reason, target, dry_run=self.args.dry_run, relief=cheaper)):
                drain.progress = handle.now
                drain.evicted += 1
            else:
                refused.append(view.key)
            drain.planned.add(view.pod.metadata.uid)
        if refused and (not drain.evicted or self._interval <= 0):
            yield from self._give_up(drain, source, f"pod {refused[0]} could not be evicted", handle)
        elif refused:
            handle.note(f"node {source.name} is being drained: {drain.evicted} pods were told to leave, {len(refused)} have to wait")

    def _only_cheaper(self, view: PodView, wanted: Vector, target: str, targets: FirstFit) -> Relief | None:
        """A migration must not end on a node of the same level. Without node fit nobody knows which cheaper node would take the pod."""
        if not self.args.node_fit:
            return None
        return targets.relief(view, wanted, target)

    @staticmethod
    def _still_here(drain: Drain, source: NodeView) -> bool:
        return any(view.pod.metadata.uid in drain.planned for view in source.pods)

    def _give_up(self, drain: Drain, source: NodeView, why: str, handle: Handle) -> Turn:
        """The cordon is taken back, and the node is left alone for a while: it must not be cordoned and uncordoned in turns."""
        self._drains.pop(source.name, None)
        if not self.args.dry_run:
            self._given_up = {name: until for name, until in self._given_up.items() if until > handle.now}
            self._given_up[source.name] = handle.now + PATIENCE
        if drain.cordoned:
            yield Cordon(source.node, False, why, self.args.dry_run)
        handle.note(f"the drain of node {source.name} is given up: {why}")


def _reason(level: str, source: NodeView) -> str:
    return f"drain node {source.name} (sourcePriority={level})"


def _cordoned_before(source: NodeView) -> bool:
    """Whether an earlier process has cordoned the node for a drain whose end it has not seen."""
    return source.node.spec.unschedulable and names.ANNOTATION_DRAIN_CORDONED in source.node.metadata.annotations


def _taken_back(source: NodeView) -> bool:
    """Whether a person has uncordoned a node that was cordoned for a drain: the note is still there, which the plugin takes off with it."""
    return not source.node.spec.unschedulable and names.ANNOTATION_DRAIN_CORDONED in source.node.metadata.annotations


def _wanted(view: PodView, *, node_fit: bool) -> Vector:
    """What a target must have left in a drain: cpu, memory and a slot, and with node fit everything that the pod requests."""
    asked = container_requests(view.pod)
    wanted = {"cpu": asked.get("cpu", 0), "memory": asked.get("memory", 0), "pods": 1}
    return {**wanted, **{name: max(value, wanted.get(name, 0)) for name, value in view.requests.items()}} if node_fit else wanted


def container_requests(pod: Pod) -> Vector:
    """Requests of the main containers alone, which is what upstream sorts and plans by."""
    return sum_(parse(container.resources.requests) for container in pod.spec.containers)


def _size(view: PodView) -> tuple[int, int, int, str, str]:
    pod = view.pod
    asked, meta = container_requests(pod), pod.metadata
    return asked.get("cpu", 0), asked.get("memory", 0), eviction_cost(pod), meta.namespace, meta.name
