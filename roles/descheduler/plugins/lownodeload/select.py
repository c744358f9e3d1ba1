"""Which pods leave hot nodes, until the nodes are cool or the low nodes are full (DS-LNL-06, DS-LNL-07). Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass, field

from koord.accounting.resources import add_into, sub_into, sum_
from koord.decisions.record import Number, Term
from roles.descheduler.arrivals import expected_use
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Filter, Handle
from roles.descheduler.percentile import Percentile
from roles.descheduler.plugins.lownodeload.args import Pool
from roles.descheduler.plugins.lownodeload.classify import Placed, over
from roles.descheduler.plugins.lownodeload.effect import Effects, unreported, used_up
from roles.descheduler.plugins.lownodeload.order import leaving_order, node_score
from roles.descheduler.plugins.lownodeload.room import Expected, Room
from roles.descheduler.plugins.lownodeload.stuck import NO_PLACE, Kept, terms
from roles.descheduler.relief import CANDIDATES, TARGETS, Ceiling, Relief
from roles.descheduler.snapshot import PodView, Vector, restrict
from roles.descheduler.spreading import spreads

EXPLAINED = 25  # nodes of a pass of which is said what would help
_REASONS = 5  # the most frequent ones that a record names


@dataclass(slots=True)
class Outcome:
    """What became of a hot node. `cooling`: what has been told to leave, or is on its way out, suffices."""

    cooling: bool
    message: str
    terms: tuple[Term, ...] = ()
    """Of a node that stays hot: what keeps its pods, and what would help."""


@dataclass(slots=True)
class Pass:
    """One pass over hot (or prod-hot) nodes with the low nodes that may take their pods."""

    pool: Pool
    prod: bool
    sources: list[Placed]
    targets: list[Placed]
    budget: Vector
    columns: Columns
    expected: Expected
    max_age: float = 0.0
    percentile: Percentile | None = None
    explained: int = 0
    _room: Room | None = None
    _ceilings: dict[str, Ceiling] = field(default_factory=dict)

    def usage(self, node: Placed) -> Vector:
        return node.usage(prod=self.prod)

    def high(self, node: Placed) -> Vector:
        return node.high(prod=self.prod)

    @property
    def room(self) -> Room:
        """Made at the first question, after what earlier passes sent to the same nodes is known."""
        if self._room is None:
            self._room = Room(self.targets, self.pool.resources, self.columns, self.expected, with_prod=self.pool.prod_enabled)
        return self._room

    def ceiling(self, target: Placed) -> Ceiling:
        """The thresholds of a target as migrations remember them."""
        found = self._ceilings.get(target.view.name)
        if found is None:
            found = Ceiling(dict(target.bounds.high), dict(target.bounds.prod_high) if self.pool.prod_enabled else {})
            self._ceilings[target.view.name] = found
        return found


def find_targets(candidate: PodView, run: Pass, *, node_fit: bool) -> list[Placed]:
    """The targets that stay cool with the pod, the one that keeps the most room first. Without node fit only load is looked at."""
    if node_fit and candidate.usage is None:
        return []
    return run.room.best(candidate, expected_use(candidate), CANDIDATES if spreads(candidate.pod) else TARGETS, node_fit=node_fit)


def relief(candidate: PodView, targets: list[Placed], run: Pass) -> Relief:
    """What a migration of the pod has to keep to."""
    nodes = {target.view.name: run.ceiling(target) for target in targets}
    return Relief(expected_use(candidate), nodes, candidate.is_prod, run.max_age, run.percentile)


def relieve(
    run: Pass, refuse: Filter, outcome: dict[str, Outcome], handle: Handle, effects: Effects, *, node_fit: bool, dry_run: bool
) -> Turn:
    """Evict from each source, hottest first, until it is cool or the budget is spent. Says in `outcome` why each source was left."""
    if not run.targets:
        outcome.update({node.view.name: Outcome(False, "no node can take its pods") for node in run.sources})
        return

    def coolness(node: Placed) -> tuple[int, str]:
        return -node_score(node.usage(prod=False), node.view.capacity, run.pool.weights), node.view.name

    for node in sorted(run.sources, key=coolness):
        view = node.view
        if handle.pause(1 + len(view.pods)):
            yield PAUSE
        if why := effects.why_not(view.name, handle.now):
            outcome[view.name] = Outcome(False, why)
            continue
        source = _Source(node, run, refuse, handle, node_fit, dry_run)
        before = dict(node.usage(prod=False))
        yield from source.relieve(outcome)
        if source.left:
            hot = over(before, node.bounds.high) or sorted({name for use in source.left.values() for name in use})
            known = {name: before.get(name, 0) for name in hot if name != "pods"}
            effects.moved(view.name, source.left, known, full=used_up(view), new=unreported(view))


@dataclass(slots=True)
class _Source:
    """One hot node. `under_way` is what its pods use whose migration goes on, though nobody has told them to leave yet: the node is hot as
    long as they are there, but nobody else has to leave for it."""

    node: Placed
    run: Pass
    refuse: Filter
    handle: Handle
    node_fit: bool
    dry_run: bool
    under_way: Vector = field(default_factory=dict)
    kept: Counter[str] = field(default_factory=Counter)  # reasons for which pods stayed
    staying: dict[str, tuple[PodView, str]] = field(default_factory=dict)  # pods that stayed, by uid, and the first reason of each
    moving: int = 0
    left: dict[str, Vector] = field(default_factory=dict)  # uids of the pods that were told to leave, and what they use
    evicted: int = 0

    def relieve(self, outcome: dict[str, Outcome]) -> Turn:
        run, name = self.run, self.node.view.name
        for view in self.node.view.pods:
            if view.leaving and not view.accepted and (view.is_prod or not run.prod):
                self.moving += 1
                add_into(self.under_way, {**restrict(view.usage or {}, run.pool.resources), "pods": 1})
        high = run.high(self.node)
        excess = {each: self._usage()[each] - high[each] for each in self._over()}
        order = deque(leaving_order(self._possible(), excess, run.pool.weights, self.handle.now))
        while order and self._over():
            if spent := [each for each, left in sorted(run.budget.items()) if left <= 0]:
                why = f"the low nodes have no room left for {', '.join(spent)}"
                for view in order:
                    self._keep(view, why)
                outcome[name] = Outcome(False, f"still hot{self._sum()}, and {why}", (yield from self._why(why)))
                return
            yield from self._ask(order.popleft())
        if self._over():
            why = ", ".join(f"{count} x {reason}" for reason, count in self.kept.most_common(_REASONS)) or "none is left"
            outcome[name] = Outcome(False, f"still hot{self._sum()}; pods that stay: {why}", (yield from self._why()))
        else:
            told = f"hot until the pods have gone: {self.evicted} evictions begun and {self.moving} migrations under way suffice"
            outcome[name] = Outcome(True, told if self.evicted or self.moving else "not hot any more")

    def _ask(self, view: PodView) -> Turn:
        run = self.run
        targets = find_targets(view, run, node_fit=self.node_fit)
        if self.node_fit and not targets:
            self._keep(view, NO_PLACE if view.usage is not None else "no metric tells of it")
            return
        reason, numbers = _reason(self.node, run, self._over())
        keeps_to = relief(view, targets or run.room.targets[: CANDIDATES if spreads(view.pod) else TARGETS], run)
        if not (yield Evict(view.pod, reason, targets[0].view.name if targets else "", numbers, self.dry_run, keeps_to)):
            self._keep(view, self.handle.refused.get(view.pod.metadata.uid) or "its eviction was refused")
            return
        self.evicted += 1
        if view.pod.metadata.uid not in self.handle.listed:
            self.left[view.pod.metadata.uid] = restrict(view.usage or {}, run.pool.resources)
        if targets:
            run.room.take(targets[0], view, expected_use(view))
        if view.usage is not None:
            gone = {**restrict(view.usage, run.pool.resources), "pods": 1}
            sub_into(run.budget, {name: value for name, value in gone.items() if name in run.budget})

    def _keep(self, view: PodView, reason: str) -> None:
        self.kept[reason] += 1
        self.staying[view.pod.metadata.uid] = (view, reason)

    def _why(self, spent: str = "") -> Generator[Effect, bool, tuple[Term, ...]]:
        """What keeps the pods that stay, and the smallest change that would help; of the hottest nodes, for it costs a what-if a pod.

        `spent` is the reason of pods that were not asked, for there is no room left."""
        if self.run.explained >= EXPLAINED:
            return ()
        self.run.explained += 1
        run, high, usage = self.run, self.run.high(self.node), self._usage()
        excess = {name: usage[name] - high[name] for name in self._over()}
        kept = []
        for view, reason in self.staying.values():
            if self.handle.pause(4):
                yield PAUSE
            fits = reason != NO_PLACE and bool(find_targets(view, run, node_fit=self.node_fit))
            reasons = [NO_PLACE if reason == spent and not fits else reason, *self.handle.reasons(view.pod)]
            nearest = "" if fits or view.usage is None else run.room.nearest(view, expected_use(view), node_fit=self.node_fit)
            kept.append(Kept(view.key, restrict(view.usage or {}, run.pool.resources), tuple(dict.fromkeys(reasons)), fits, nearest))
        waiting = {
            view.key: why for view in self.node.view.pods if view.leaving and not view.accepted and (why := self.handle.waits_for(view.pod))
        }
        by_pods = sum_({**(view.usage or {}), "pods": 1} for view in self.node.view.pods if not view.accepted)
        outside = {name: run.usage(self.node)[name] - by_pods.get(name, 0) - high[name] for name in excess}
        return terms(kept, waiting, excess, outside)

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
                self._keep(view, reason)
            else:
                found.append(view)
        return found


def _reason(source: Placed, run: Pass, hot: list[str]) -> tuple[str, dict[str, Number]]:
    """The reason text and the numbers behind it: utilisation and threshold of each overused resource in percent."""
    usage, percents = run.usage(source), run.pool.prod_high if run.prod else run.pool.high
    scope = "prod" if run.prod else "node"
    parts: list[str] = []
    numbers: dict[str, Number] = {}
    for name in hot:
        capacity = source.view.capacity.get(name, 0)
        used = 100.0 * usage.get(name, 0) / capacity if capacity else 0.0
        parts.append(f"{scope} {name} usage({used:.2f}%)>threshold({percents[name]:.2f}%)")
        numbers[f"{scope}.{name}.usage"] = usage.get(name, 0)
        numbers[f"{scope}.{name}.threshold"] = run.high(source)[name]
        numbers[f"{scope}.{name}.allocatable"] = capacity
    return "node is overutilized, " + ", ".join(parts), numbers
