"""Which pods leave hot nodes, until the nodes are cool or the low nodes are full (DS-LNL-06, DS-LNL-07). Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from koord.accounting.resources import add_into, sub_into
from roles.descheduler.arrivals import estimate
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Filter, Handle
from roles.descheduler.picture import PodView, Vector, restrict
from roles.descheduler.plugins.lownodeload import explain
from roles.descheduler.plugins.lownodeload.args import Pool
from roles.descheduler.plugins.lownodeload.classify import Placed, over
from roles.descheduler.plugins.lownodeload.effect import Effects
from roles.descheduler.plugins.lownodeload.order import hottest_first, leaving_order
from roles.descheduler.plugins.lownodeload.room import Room, ceiling
from roles.descheduler.relief import TARGETS, Relief

_REASONS = 5  # the most frequent ones that a record names


@dataclass(slots=True)
class Outcome:
    """What became of a hot node. `cooling`: what has been told to leave, or is on its way out, suffices."""

    cooling: bool
    message: str


@dataclass(slots=True)
class Pass:
    """One pass over hot (or prod-hot) nodes with the low nodes that may take their pods."""

    pool: Pool
    prod: bool
    sources: list[Placed]
    targets: list[Placed]
    budget: Vector
    columns: Columns
    max_age: float = 0.0
    expected: dict[str, list[tuple[Vector, bool]]] = field(default_factory=dict)  # target node -> usage of pods sent there in thought
    _room: Room | None = None

    def usage(self, node: Placed) -> Vector:
        return (node.view.prod_usage if self.prod else node.view.usage) or {}

    def high(self, node: Placed) -> Vector:
        return node.bounds.prod_high if self.prod else node.bounds.high

    @property
    def room(self) -> Room:
        """Made at the first question, after what earlier passes sent to the same nodes is known."""
        if self._room is None:
            self._room = Room(self.targets, self.pool.resources, self.columns, self.expected, with_prod=self.pool.prod_enabled)
        return self._room


def find_targets(candidate: PodView, run: Pass, *, node_fit: bool) -> list[Placed]:
    """The targets that stay cool with the pod, the one that keeps the most room first. Without node fit only load is looked at."""
    if node_fit and candidate.usage is None:
        return []
    return run.room.best(candidate, expected_use(candidate), TARGETS, node_fit=node_fit)


def expected_use(candidate: PodView) -> Vector:
    """What the pod will use where it goes: what it uses, or what the scheduler would take it to."""
    return candidate.usage if candidate.usage is not None else estimate(candidate.pod)


def relief(candidate: PodView, targets: list[Placed], run: Pass) -> Relief:
    """What a migration of the pod has to keep to."""
    nodes = {target.view.name: ceiling(target, with_prod=run.pool.prod_enabled) for target in targets}
    return Relief(expected_use(candidate), nodes, candidate.is_prod, run.max_age)


def relieve(
    run: Pass, refuse: Filter, outcome: dict[str, Outcome], handle: Handle, effects: Effects, *, node_fit: bool, dry_run: bool
) -> Turn:
    """Evict from each source, hottest first, until it is cool or the budget is spent. Says in `outcome` why each source was left."""
    if not run.targets:
        outcome.update({node.view.name: Outcome(False, "no node can take its pods") for node in run.sources})
        return
    by_name = {node.view.name: node for node in run.sources}
    for view in hottest_first([node.view for node in run.sources], run.pool.weights):
        if handle.pause(1 + len(view.pods)):
            yield PAUSE
        if why := effects.why_not(view.name, handle.now):
            outcome[view.name] = Outcome(False, why)
            continue
        source = _Source(by_name[view.name], run, refuse, node_fit, dry_run)
        before = dict(view.usage or {})
        yield from source.relieve(outcome)
        if source.left and not dry_run:
            hot = over(before, by_name[view.name].bounds.high) or sorted(source.relieved)
            expected = {name: before.get(name, 0) - source.relieved.get(name, 0) for name in hot if name != "pods"}
            effects.moved(view.name, source.left, {name: before.get(name, 0) for name in expected}, expected)


@dataclass(slots=True)
class _Source:
    """One hot node. `under_way` is what its pods use whose migration goes on, though nobody has told them to leave yet: the node is hot as
    long as they are there, but nobody else has to leave for it."""

    node: Placed
    run: Pass
    refuse: Filter
    node_fit: bool
    dry_run: bool
    under_way: Vector = field(default_factory=dict)
    kept: Counter[str] = field(default_factory=Counter)  # reasons for which pods stayed
    moving: int = 0
    left: list[str] = field(default_factory=list)  # uids of the pods that were told to leave
    relieved: Vector = field(default_factory=dict)  # what they use
    evicted: int = 0

    def relieve(self, outcome: dict[str, Outcome]) -> Turn:
        run, name = self.run, self.node.view.name
        for view in self.node.view.pods:
            if view.leaving and not view.accepted and (view.is_prod or not run.prod):
                self.moving += 1
                add_into(self.under_way, {**restrict(view.usage or {}, run.pool.resources), "pods": 1})
        high = run.high(self.node)
        excess = {each: self._usage()[each] - high[each] for each in self._over()}
        for view in leaving_order(self._possible(), excess, run.pool.weights):
            if not self._over():
                break
            if spent := [each for each, left in sorted(run.budget.items()) if left <= 0]:
                outcome[name] = Outcome(False, f"still hot{self._sum()}, and the low nodes have no room left for {', '.join(spent)}")
                return
            yield from self._ask(view)
        if self._over():
            why = ", ".join(f"{count} x {reason}" for reason, count in self.kept.most_common(_REASONS)) or "none is left"
            outcome[name] = Outcome(False, f"still hot{self._sum()}; pods that stay: {why}")
        else:
            told = f"hot until the pods have gone: {self.evicted} evictions begun and {self.moving} migrations under way suffice"
            outcome[name] = Outcome(True, told if self.evicted or self.moving else "not hot any more")

    def _ask(self, view: PodView) -> Turn:
        run = self.run
        targets = find_targets(view, run, node_fit=self.node_fit)
        if self.node_fit and not targets:
            self.kept["it fits no low node" if view.usage is not None else "no metric tells of it"] += 1
            return
        reason, numbers = explain.reason(self.node, run, self._over())
        keeps_to = relief(view, targets or run.room.targets[:TARGETS], run)
        if not (yield Evict(view.pod, reason, targets[0].view.name if targets else "", numbers, self.dry_run, keeps_to)):
            self.kept["its eviction was refused"] += 1
            return
        self.evicted += 1
        self.left.append(view.pod.metadata.uid)
        add_into(self.relieved, restrict(view.usage or {}, run.pool.resources))
        if targets:
            run.room.take(targets[0], view, expected_use(view))
        if view.usage is not None:
            gone = {**restrict(view.usage, run.pool.resources), "pods": 1}
            sub_into(run.budget, {name: value for name, value in gone.items() if name in run.budget})

    def _usage(self) -> Vector:
        """What the node will use when those have left whose migration goes on."""
        return {name: value - self.under_way.get(name, 0) for name, value in self.run.usage(self.node).items()}

    def _over(self) -> list[str]:
        return over(self._usage(), self.run.high(self.node))

    def _sum(self) -> str:
        return f" after {self.evicted} evictions" + (f" with {self.moving} migrations under way" if self.moving else "")

    def _possible(self) -> list[PodView]:
        """Pods that this pass may take from the node; why others stay is counted."""
        found = []
        for view in self.node.view.pods:
            if view.leaving or (self.run.prod and not view.is_prod):
                continue
            if reason := self.refuse(view.pod):
                self.kept[reason] += 1
            else:
                found.append(view)
        return found
