"""Which pods leave hot nodes, until the nodes are cool or the low nodes are full (DS-LNL-06, DS-LNL-07). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from koord.accounting.resources import add_into, sub_into
from roles.descheduler.framework.effects import Evict, Turn
from roles.descheduler.framework.handle import Filter
from roles.descheduler.nodefit import Placeable
from roles.descheduler.picture import PodView, Vector, restrict
from roles.descheduler.plugins.lownodeload import explain
from roles.descheduler.plugins.lownodeload.args import Pool
from roles.descheduler.plugins.lownodeload.classify import Placed, over
from roles.descheduler.plugins.lownodeload.order import hottest_first, leaving_order

_REASONS = 5  # the most frequent ones that a record names


@dataclass(slots=True)
class Pass:
    """One pass over hot (or prod-hot) nodes with the low nodes that may take their pods."""

    pool: Pool
    prod: bool
    sources: list[Placed]
    targets: list[Placed]
    budget: Vector
    expected: dict[str, Vector] = field(default_factory=dict)  # target node -> usage of pods sent there in thought
    placed: dict[str, Vector] = field(default_factory=dict)  # target node -> their requests
    _room: Room | None = None

    def usage(self, node: Placed) -> Vector:
        return (node.view.prod_usage if self.prod else node.view.usage) or {}

    def high(self, node: Placed) -> Vector:
        return node.bounds.prod_high if self.prod else node.bounds.high

    @property
    def room(self) -> Room:
        """Made at the first question, after what earlier passes sent to the same nodes is known."""
        if self._room is None:
            self._room = Room(self)
        return self._room


class Room:
    """How far each target is below its thresholds: a row a resource, a column a target, so that all targets are asked at once."""

    def __init__(self, run: Pass) -> None:
        self.resources = run.pool.resources
        self.targets = sorted(run.targets, key=lambda target: target.view.name)
        self._high = np.array([[run.high(target)[name] for target in self.targets] for name in self.resources], dtype=np.float64)
        self._per_high = np.divide(1.0, self._high, out=np.zeros_like(self._high), where=self._high > 0)
        self._unbounded = (self._high <= 0).astype(np.float64)  # nothing may be used there, so it says nothing about who has most room
        used = [[self._used(name, target, run) for target in self.targets] for name in self.resources]
        self._left = self._high - np.array(used, dtype=np.float64)

    @staticmethod
    def _used(name: str, target: Placed, run: Pass) -> int:
        return run.usage(target).get(name, 0) + run.expected.get(target.view.name, {}).get(name, 0)

    def _column(self, usage: Vector) -> Any:
        return np.array([[usage.get(name, 0)] for name in self.resources], dtype=np.float64)

    def best_first(self, usage: Vector) -> Iterator[int]:
        """Columns of the targets that stay at or below every threshold with this usage; the one that keeps the largest smallest share
        of its thresholds comes first, then by name."""
        after = self._left - self._column(usage)
        share = (after * self._per_high + self._unbounded).min(axis=0)
        share[after.min(axis=0) < 0] = -1.0
        while len(share):
            column = int(share.argmax())
            if share[column] < 0:
                return
            yield column
            share[column] = -1.0

    def take(self, column: int, usage: Vector) -> None:
        """Count a pod's usage at a target."""
        self._left[:, column] -= self._column(usage)[:, 0]


def headroom(nodes: Iterable[Placed], *, prod: bool) -> Vector:
    """What the nodes can take before they are hot, per resource; a node above its threshold counts against the others."""
    total: Vector = {}
    for node in nodes:
        usage = (node.view.prod_usage if prod else node.view.usage) or {}
        high = node.bounds.prod_high if prod else node.bounds.high
        add_into(total, {name: bound - usage.get(name, 0) for name, bound in high.items()})
    return total


def find_target(candidate: PodView, run: Pass) -> tuple[int, str] | None:
    """The target that keeps the most room after taking the pod: its column in `Room` and its name. None: the pod fits nowhere."""
    if candidate.usage is None:
        return None
    pod = Placeable(candidate)
    for column in run.room.best_first(candidate.usage):
        target = run.room.targets[column].view
        if not pod.unfit(target, run.placed.get(target.name)):
            return column, target.name
    return None


def keep_room(candidate: PodView, column: int, run: Pass) -> None:
    """Count the pod at its target for the rest of the round."""
    name, usage = run.room.targets[column].view.name, candidate.usage or {}
    run.room.take(column, usage)
    add_into(run.expected.setdefault(name, {}), usage)
    add_into(run.placed.setdefault(name, {}), candidate.requests)


def relieve(run: Pass, refuse: Filter, outcome: dict[str, str], *, node_fit: bool, dry_run: bool) -> Turn:
    """Evict from each source, hottest first, until it is cool or the budget is spent. Says in `outcome` why each source was left."""
    if not run.targets:
        outcome.update({node.view.name: "no node can take its pods" for node in run.sources})
        return
    by_name = {node.view.name: node for node in run.sources}
    for view in hottest_first([node.view for node in run.sources], run.pool.weights):
        source = by_name[view.name]
        yield from _relieve_node(source, run, refuse, outcome, node_fit=node_fit, dry_run=dry_run)


def _relieve_node(source: Placed, run: Pass, refuse: Filter, outcome: dict[str, str], *, node_fit: bool, dry_run: bool) -> Turn:
    usage, high = run.usage(source), run.high(source)
    excess = {name: usage[name] - high[name] for name in over(usage, high)}
    kept: Counter[str] = Counter()  # reasons for which pods stayed
    possible = _possible(source, run, refuse, kept)
    evicted = 0
    for view in leaving_order(possible, excess, run.pool.weights):
        if not over(run.usage(source), high):
            break
        if spent := [name for name, left in sorted(run.budget.items()) if left <= 0]:
            outcome[source.view.name] = f"the low nodes have no room left for {', '.join(spent)}"
            return
        target = find_target(view, run) if node_fit else None
        if node_fit and target is None:
            kept["it fits no low node" if view.usage is not None else "no metric tells of it"] += 1
            continue
        reason, numbers = explain.reason(source, run, over(run.usage(source), high))
        if not (yield Evict(view.pod, reason, target[1] if target else "", numbers, dry_run)):
            kept["its eviction was refused"] += 1
            continue
        evicted += 1
        if target is not None:
            keep_room(view, target[0], run)
        if view.usage is not None:
            gone = {**restrict(view.usage, run.pool.resources), "pods": 1}
            sub_into(run.budget, {name: value for name, value in gone.items() if name in run.budget})
    if over(run.usage(source), high):
        why = ", ".join(f"{count} x {reason}" for reason, count in kept.most_common(_REASONS)) or "none is left"
        outcome[source.view.name] = f"still hot after {evicted} evictions; pods that stay: {why}"
    else:
        outcome[source.view.name] = f"cool after {evicted} evictions"


def _possible(source: Placed, run: Pass, refuse: Filter, kept: Counter[str]) -> list[PodView]:
    """Pods that this pass may take from the node; why others stay is counted."""
    found = []
    for view in source.view.pods:
        if view.leaving or (run.prod and not view.is_prod):
            continue
        if reason := refuse(view.pod):
            kept[reason] += 1
        else:
            found.append(view)
    return found
