"""Room for a waiting pod that wants whole GPUs: which small pods move, and where they fit (DS-FA-02)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from koord.api.objects import Pod
from koord.config.model import ConfigModel
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Rehearse, Turn
from roles.descheduler.framework.handle import Handle, pod_subject
from roles.descheduler.gpus import Cards, Group, Wanted, fewest, lacking, wanted
from roles.descheduler.snapshot import NodeView, PodView, pod_view, time_of

TRIED = 32
"""Nodes that are looked at closely for one waiting pod: those where fewest pods would have to move."""
REHEARSED = 3
"""Plans for one waiting pod that the scheduler is asked about in a round."""
PATIENCE = 600.0
"""Seconds that moves for a pod may take before others are thought of."""


class GPURoomArgs(ConfigModel):
    """Room for pods that wait for whole GPUs. Without it none is made."""

    max_moves_per_pod: int = Field(4, ge=1)
    """Pods that may move for one waiting pod; when more would have to, that is told and none moves."""
    max_moves_per_round: int = Field(8, ge=1)
    """Pods that may move in one round, for all waiting pods together."""
    min_cards: int = Field(2, ge=1)
    """Pods that want fewer cards are not waited upon."""
    min_waiting_seconds: int = Field(60, ge=0)
    """How long a pod must have waited."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Pods that leave a node for another pod to fit there, and where they would fit."""

    node: str
    moves: tuple[tuple[PodView, str], ...]


@dataclass(slots=True)
class Room:
    """The GPUs of a round: who holds which card, and what is promised. Nodes whose pods are on their way out are left alone (`busy`)."""

    columns: Columns
    cards: dict[str, Cards] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)

    def read(self, node: NodeView) -> None:
        """Look at one node."""
        found = Cards.of(node)
        if found is not None:
            self.cards[node.name] = found
            if any(view.leaving for view, _ in found.pods.values()):
                self.busy.add(node.name)

    def suited(self, view: PodView) -> list[Cards]:
        """Nodes with GPUs that suit a pod by labels and taints."""
        rows = self.columns.suited(view, np.ones(len(self.columns.nodes), dtype=bool))
        return [self.cards[name] for row in np.flatnonzero(rows).tolist() if (name := self.columns.names[row]) in self.cards]

    def fits(self, view: PodView, asked: Wanted) -> str:
        """A node that has room for the pod now, or will have once the pods that are on their way out are gone; "" for none."""
        for cards in self.suited(view):
            if cards.whole >= asked.cards and not lacking(cards.node, view.requests):
                return cards.node.name
            if cards.node.name in self.busy:
                gone = [each for each, _ in cards.pods.values() if each.leaving]
                if self._after(cards, gone, view, asked):
                    return cards.node.name
        return ""

    def _after(self, cards: Cards, gone: Sequence[PodView], view: PodView, asked: Wanted) -> bool:
        uids = {each.pod.metadata.uid for each in gone}
        held = {minor for uid, (_, minors) in cards.pods.items() if uid not in uids for minor in minors}
        short = lacking(cards.node, view.requests)
        for name in short:
            short[name] -= sum(each.requests.get(name, 0) for each in gone)
        return cards.count - len(held) >= asked.cards and all(value <= 0 for value in short.values())

    def elsewhere(self, view: PodView, asked: Wanted, but: str) -> tuple[str, dict[int, int]] | None:
        """Another node with room for a pod, the one with fewest whole cards free, and the cards that it would hold; None for none."""
        rows = self.columns.fitting(view, np.ones(len(self.columns.nodes), dtype=bool))
        best: tuple[int, str, dict[int, int]] | None = None
        for row in np.flatnonzero(rows).tolist():
            name = self.columns.names[row]
            cards = self.cards.get(name)
            if cards is None or name == but or name in self.busy or (best is not None and cards.whole >= best[0]):
                continue
            if (minors := cards.room(asked)) is not None:
                best = cards.whole, name, minors
        return best[1:] if best is not None else None

    def move(self, view: PodView, target: str, minors: dict[int, int]) -> None:
        """Count a pod where it would go."""
        self.cards[view.pod.spec.node_name].remove(view.pod.metadata.uid)
        self.cards[target].add(view, minors)
        self.columns.promise(target, view.requests)

    def plan(self, cards: Cards, waiting: PodView, asked: Wanted, may_leave: Callable[[PodView], bool], most: int) -> Plan | None:
        """The fewest pods of a node that make room, with a place for each; None where there is none for some. Nothing is counted."""
        small = [group for group in cards.groups() if all(movable(each, asked) and may_leave(each) for each in group.pods)]
        while True:
            chosen = fewest(small, asked.cards - cards.whole, lacking(cards.node, waiting.requests))
            if not chosen or len(chosen) > most:
                return None
            moves, stuck = [], None
            for view in chosen:
                own = wanted(view.requests)
                found = self.elsewhere(view, own, cards.node.name) if own is not None else None
                if found is None:
                    stuck = view
                    break
                self.cards[found[0]].add(view, found[1])
                self.columns.promise(found[0], view.requests)
                moves.append((view, found[0]))
            for view, target in moves:
                self.cards[target].remove(view.pod.metadata.uid)
                self.columns.promise(target, {name: -value for name, value in view.requests.items()})
            if stuck is None:
                return Plan(cards.node.name, tuple(moves))
            small = [group for group in small if stuck not in group.pods]

    def count(self, plan: Plan, waiting: PodView, asked: Wanted) -> None:
        """What a plan does, counted."""
        for view, target in plan.moves:
            own = wanted(view.requests)
            minors = self.cards[target].room(own) if own is not None else None
            if minors is not None:
                self.move(view, target, minors)
        cards = self.cards[plan.node]
        cards.add(waiting, cards.room(asked) or {})
        self.columns.promise(plan.node, waiting.requests)
        self.busy.add(plan.node)


def movable(view: PodView, asked: Wanted) -> bool:
    """Whether a pod is small beside what waits: at most half of it; and what it asks for is known in cards."""
    own = wanted(view.requests)
    return own is not None and not view.leaving and 0 < own.gpu * 2 <= asked.gpu


def least(cards: Cards, waiting: PodView, asked: Wanted) -> tuple[int, int] | None:
    """How many pods would have to move from a node at least, and their GPUs in percent, whether or not they may and fit elsewhere."""
    small: list[Group] = [group for group in cards.groups() if all(movable(each, asked) for each in group.pods)]
    chosen = fewest(small, asked.cards - cards.whole, lacking(cards.node, waiting.requests))
    return Group(chosen, 0).cost if chosen else None


class Rooms:
    """Makes room round by round; remembers for whom it is being made."""

    def __init__(self, args: GPURoomArgs) -> None:
        self.args = args
        self._made: dict[str, float] = {}  # by uid of the waiting pod: until when nothing more is done for it

    def turn(self, nodes: list[NodeView], columns: Columns, handle: Handle, refuse: Callable[[Pod], str], *, dry_run: bool) -> Turn:
        """Pods that wait for whole cards, those that want most first, then those that wait longest."""
        large = list(self._large(handle))
        known = {view.pod.metadata.uid for view, _ in large}
        self._made = {uid: until for uid, until in self._made.items() if until > handle.now and uid in known}
        if not large:
            return
        room = Room(columns)
        for node in nodes:
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            room.read(node)
        left = self.args.max_moves_per_round
        for waiting, asked in large:
            if waiting.pod.metadata.uid not in self._made and left > 0:
                left -= yield from self._for(waiting, asked, room, left, handle, refuse, dry_run)

    def _large(self, handle: Handle) -> Iterator[tuple[PodView, Wanted]]:
        found = []
        for pod in handle.waiting:
            view = pod_view(pod, None)
            asked = wanted(view.requests)
            since = time_of(pod.metadata.creation_timestamp)
            if asked is None or not asked.whole or asked.cards < self.args.min_cards or since is None:
                continue
            if handle.now - since >= self.args.min_waiting_seconds:
                found.append((view, asked, since))
        for view, asked, _ in sorted(found, key=lambda each: (-(each[0].pod.spec.priority or 0), -each[1].cards, each[2], each[0].key)):
            yield view, asked

    def _for(
        self, waiting: PodView, asked: Wanted, room: Room, left: int, handle: Handle, refuse: Callable[[Pod], str], dry_run: bool
    ) -> Generator[Effect, bool, int]:
        """Room for one pod; returns how many pods were told to move."""
        if where := room.fits(waiting, asked):
            self._tell(
                handle, waiting, f"node {where} has room for its {asked.cards} cards, or will have once pods that leave it are gone", 0
            )
            return 0
        most = min(self.args.max_moves_per_pod, left)
        ranked = []
        for cards in room.suited(waiting):
            if handle.pause():
                yield PAUSE
            if cards.count >= asked.cards and cards.node.name not in room.busy and not cards.node.node.spec.unschedulable:
                cost = least(cards, waiting, asked)
                if cost is not None:
                    ranked.append((cost, cards))
        ranked.sort(key=lambda each: (each[0], each[1].node.name))
        stays: dict[str, str] = {}
        may_leave = _remembered(refuse, stays)
        rehearsed = 0
        for _ in room.columns.learn() if ranked else ():
            yield PAUSE
        for cost, cards in ranked[:TRIED]:
            if handle.pause(1 + len(cards.pods)):
                yield PAUSE
            if cost[0] > most or rehearsed >= REHEARSED:
                break
            plan = room.plan(cards, waiting, asked, may_leave, most)
            if plan is None:
                continue
            rehearsed += 1
            if (yield Rehearse(waiting.pod, tuple(view.pod for view, _ in plan.moves))):
                return (yield from self._carry_out(plan, waiting, asked, room, handle, dry_run))
        self._tell(handle, waiting, *self._why_not(ranked, most, asked, rehearsed, stays))
        return 0

    def _carry_out(
        self, plan: Plan, waiting: PodView, asked: Wanted, room: Room, handle: Handle, dry_run: bool
    ) -> Generator[Effect, bool, int]:
        number = len(plan.moves)
        reason = f"makes room for pod {waiting.key}, which waits for {asked.cards} cards, on node {plan.node} by moving {_pods(number)}"
        numbers: dict[str, float | int | str] = {"moves": number, "cards": asked.cards, "waiting": waiting.key}
        room.count(plan, waiting, asked)
        self._made[waiting.pod.metadata.uid] = handle.now + PATIENCE
        moved = 0
        for view, target in plan.moves:
            if not (yield Evict(view.pod, reason, target, numbers, dry_run)):
                why = handle.refused.get(view.pod.metadata.uid, "it was refused")
                self._tell(handle, waiting, f"room on node {plan.node} is not made: pod {view.key} stays: {why}", number)
                if not moved:
                    self._made.pop(waiting.pod.metadata.uid, None)
                return moved
            moved += 1
        self._tell(handle, waiting, f"moving {_pods(number)} from node {plan.node} frees {asked.cards} cards there", number)
        return moved

    def _why_not(
        self, ranked: list[tuple[tuple[int, int], Cards]], most: int, asked: Wanted, rehearsed: int, stays: dict[str, str]
    ) -> tuple[str, int]:
        if not ranked:
            return f"no node gets {asked.cards} cards free by moving small pods", 0
        (moves, _), cards = ranked[0]
        name = cards.node.name
        if moves > most:
            limit = "maxMovesPerPod" if most == self.args.max_moves_per_pod else "what maxMovesPerRound leaves"
            return f"{_pods(moves)} would have to move from node {name} at least, more than {limit} ({most}) allows", moves
        if rehearsed:
            return f"the scheduler would not place it and the {_pods(moves)} or more that would have to move", moves
        if here := {view.key: why for view, _ in cards.pods.values() if (why := stays.get(view.key))}:
            key, why = min(here.items())
            return f"{_pods(moves)} would have to move from node {name} at least, and some may not leave, such as {key}: {why}", moves
        return f"{_pods(moves)} would have to move from node {name} at least, and fit nowhere else", moves

    @staticmethod
    def _tell(handle: Handle, waiting: PodView, message: str, moves: int) -> None:
        handle.record(pod_subject(waiting.pod), "Fragmented", message, {"moves": moves})


def _remembered(refuse: Callable[[Pod], str], known: dict[str, str]) -> Callable[[PodView], bool]:
    """Whether pods may leave; why not stands in `known`, by their keys."""

    def may_leave(view: PodView) -> bool:
        if view.key not in known:
            known[view.key] = refuse(view.pod)
        return not known[view.key]

    return may_leave


def _pods(number: int) -> str:
    return f"{number} pod" if number == 1 else f"{number} pods"
