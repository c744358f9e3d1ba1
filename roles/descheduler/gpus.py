"""GPUs of nodes card by card, as pods hold them, and which pods would have to move so that whole cards come free (DS-FA-02). Pure.

Nothing but what nodes and pods say is needed: `allocatable` tells how many cards there are, a pod's annotation device-allocated which it
holds. NUMA nodes, partitions and the like are the scheduler's to judge, which is asked before anything moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from koord.accounting.resources import fits, parse, sub
from koord.api import names
from koord.api.annotations import parse_device_allocations
from koord.api.quantity import QuantityError
from roles.descheduler.snapshot import NodeView, PodView, Vector

WHOLE = 100  # percent
_CARDS = (names.RESOURCE_NVIDIA_GPU, names.RESOURCE_AMD_GPU, names.RESOURCE_HYGON_DCU)
_PERCENT = (names.RESOURCE_GPU, names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY_RATIO)
GPUS = frozenset((*_CARDS, *_PERCENT, names.RESOURCE_GPU_MEMORY, names.RESOURCE_GPU_SHARED))


class Wanted(NamedTuple):
    """So many cards, and so many percent of each; 0 percent where a pod asks by bytes of memory."""

    cards: int
    percent: int

    @property
    def gpu(self) -> int:
        """Percent of a card in all."""
        return self.cards * self.percent

    @property
    def whole(self) -> bool:
        return self.percent >= WHOLE


def wanted(requests: Mapping[str, int]) -> Wanted | None:
    """What requests (base units) ask for of GPUs; None for nothing."""
    if cards := max((requests.get(name, 0) for name in _CARDS), default=0):
        return Wanted(cards, WHOLE)
    percent = max(requests.get(name, 0) for name in _PERCENT)
    if shared := requests.get(names.RESOURCE_GPU_SHARED, 0):
        return Wanted(shared, -(-percent // shared))
    if percent > WHOLE:
        return Wanted(-(-percent // WHOLE), WHOLE)
    return Wanted(1, percent) if percent or requests.get(names.RESOURCE_GPU_MEMORY, 0) else None


def cards_of(allocatable: Mapping[str, int]) -> int:
    """How many cards a node has."""
    return max((allocatable.get(name, 0) for name in _CARDS), default=0) or allocatable.get(names.RESOURCE_GPU_CORE, 0) // WHOLE


def held(view: PodView, found: Wanted) -> dict[int, int]:
    """Percent that a pod holds by minor; empty where its annotation does not tell."""
    try:
        allocated = (parse_device_allocations(view.pod.metadata.annotations) or {}).get(names.DEVICE_TYPE_GPU, ())
        result = {}
        for entry in allocated:
            amounts = parse(entry.resources)
            result[entry.minor] = min(WHOLE, max((amounts.get(name, 0) for name in _PERCENT), default=0) or found.percent or WHOLE)
        return result
    except (QuantityError, ValueError):
        return {}


@dataclass(slots=True)
class Cards:
    """The cards of one node. `pods` says who holds which of them, in percent by minor; cards in use that nobody names are -1 and below."""

    node: NodeView
    count: int
    pods: dict[str, tuple[PodView, dict[int, int]]] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)  # percent by minor

    @classmethod
    def of(cls, node: NodeView) -> Cards | None:
        """None for a node without GPUs."""
        count = cards_of(node.allocatable)
        if not count:
            return None
        found = cls(node, count)
        for view in node.pods:
            if (asked := wanted(view.requests)) is not None:
                found.add(view, held(view, asked) or found._unknown(asked))
        if (asked := wanted(node.reserved)) is not None:
            found.used.update(found._unknown(asked))
        return found

    def _unknown(self, asked: Wanted) -> dict[int, int]:
        """Cards that are in use, though nobody says which."""
        first = min((0, *self.used)) - 1
        return {first - number: WHOLE for number in range(asked.cards)}

    def add(self, view: PodView, minors: dict[int, int]) -> None:
        """A pod holds these."""
        self.pods[view.pod.metadata.uid] = (view, minors)
        for minor, percent in minors.items():
            self.used[minor] = self.used.get(minor, 0) + percent

    def remove(self, uid: str) -> None:
        """The pod holds nothing any more."""
        _, minors = self.pods.pop(uid, (None, {}))
        for minor, percent in minors.items():
            self.used[minor] -= percent
            if self.used[minor] <= 0:
                del self.used[minor]

    @property
    def whole(self) -> int:
        """Cards that nobody holds a part of."""
        return max(0, self.count - len(self.used))

    def room(self, asked: Wanted) -> dict[int, int] | None:
        """The minors that a pod would hold here: of shares the fullest card that takes it. None where it does not fit."""
        if asked.whole or asked.cards > 1:
            free = [minor for minor in range(self.count + len(self.used)) if minor not in self.used][: asked.cards]
            return dict.fromkeys(free, WHOLE) if self.whole >= asked.cards else None
        takes = [(used, minor) for minor, used in self.used.items() if minor >= 0 and used + asked.percent <= WHOLE]
        if takes:
            return {max(takes)[1]: asked.percent}
        return {min(minor for minor in range(self.count + 1) if minor not in self.used): asked.percent} if self.whole else None

    def groups(self) -> list[Group]:
        """Pods that hold parts of the same cards, and the cards that come free when all of them leave."""
        owner: dict[int, int] = {}
        made: dict[int, tuple[set[str], set[int]]] = {}
        for number, (uid, (_, minors)) in enumerate(self.pods.items()):
            pods, cards = {uid}, set(minors)
            for other in {owner[minor] for minor in minors if minor in owner}:
                joined = made.pop(other)
                pods |= joined[0]
                cards |= joined[1]
            made[number] = (pods, cards)
            owner.update(dict.fromkeys(cards, number))
        return [Group(tuple(self.pods[uid][0] for uid in sorted(pods)), len(cards)) for pods, cards in made.values()]


class Group(NamedTuple):
    """Pods that have to leave together for so many cards to come free."""

    pods: tuple[PodView, ...]
    cards: int

    @property
    def cost(self) -> tuple[int, int]:
        """Pods, and percent of GPUs that they ask for."""
        return len(self.pods), sum((asked.gpu or WHOLE) for view in self.pods if (asked := wanted(view.requests)) is not None)


def fewest(groups: Iterable[Group], cards: int, lacking: Vector) -> tuple[PodView, ...] | None:
    """The fewest pods that free so many cards and what else is lacking (base units), those with least GPU among equals; None where all of
    them are not enough. Exact for cards; more that must leave for other resources is added one group at a time, the largest first."""
    known = list(groups)
    best: list[tuple[tuple[int, int], tuple[int, ...]] | None] = [((0, 0), ())] + [None] * max(cards, 0)
    for index, group in enumerate(known):
        cost = group.cost
        for need in range(len(best) - 1, 0, -1):
            before = best[max(0, need - group.cards)]
            if before is None:
                continue
            total = (before[0][0] + cost[0], before[0][1] + cost[1])
            now = best[need]
            if now is None or total < now[0]:
                best[need] = (total, (*before[1], index))
    found = best[-1]
    if found is None:
        return None
    chosen = set(found[1])
    still = _less(lacking, (view for index in chosen for view in known[index].pods))
    while still:
        rest = [index for index in range(len(known)) if index not in chosen]
        gains = [(_gain(known[index], still), -len(known[index].pods), -index) for index in rest]
        if not gains or max(gains)[0] <= 0:
            return None
        chosen.add(-max(gains)[2])
        still = _less(lacking, (view for index in chosen for view in known[index].pods))
    return tuple(view for index in sorted(chosen) for view in known[index].pods)


def _less(lacking: Vector, pods: Iterable[PodView]) -> Vector:
    left = dict(lacking)
    for view in pods:
        left = {name: value - view.requests.get(name, 0) for name, value in left.items()}
    return {name: value for name, value in left.items() if value > 0}


def _gain(group: Group, still: Vector) -> float:
    """How much of what is lacking a group brings, for each pod that leaves."""
    brought = sum(min(1.0, sum(view.requests.get(name, 0) for view in group.pods) / value) for name, value in still.items())
    return brought / len(group.pods)


def lacking(node: NodeView, requests: Vector) -> Vector:
    """What a node has too little of for these requests, GPUs apart."""
    others = {name: value for name, value in requests.items() if name not in GPUS}
    free = {name: node.allocatable.get(name, 0) - node.held(name) for name in others}
    return {name: sub(others, free)[name] for name in fits(others, free)}
