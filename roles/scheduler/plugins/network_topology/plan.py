"""Which nodes a gang takes: as deep in the tree as it fits, in counts that every layer allows (SCH-NT-02). Pure.

A layer may demand that the number of the job's pods in each of its places is a multiple of k. Which counts a place can take is then a set,
kept as the bits of one whole number: bit n is set when n pods can be laid out below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koord.api.annotations import NetworkTopologyGatherSpec
from koord.api.v1alpha1.clusternetworktopology import ROOT_LAYER
from roles.scheduler.plugins.network_topology.tree import Place, Tree

MUST_GATHER = "MustGather"


@dataclass(frozen=True, slots=True)
class Demand:
    """`pods` is how many have to be laid out; `gather` the layer in one place of which all must be; `multiples` by layer."""

    pods: int
    gather: str = ROOT_LAYER
    multiples: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """What nodes offer, by node name: how many of the pods fit, how good the node is, how many pods of the same kind are there, and how
    many of the job itself (they count for multiples, and where all must gather they say where)."""

    slots: Mapping[str, int]
    scores: Mapping[str, float] = field(default_factory=dict)
    existing: Mapping[str, int] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """How many pods each node takes, in the order in which they are filled; empty with `offered` (by place of the gathering layer)
    when the job fits nowhere."""

    counts: tuple[tuple[str, int], ...] = ()
    place: Place | None = None
    offered: tuple[tuple[str, int], ...] = ()


def demand_of(tree: Tree, spec: NetworkTopologyGatherSpec, pods: int) -> Demand:
    """A gang's strategies as a demand: the deepest layer with MustGather counts, PreferGather is what is done anyway."""
    gather, multiples = ROOT_LAYER, {}
    for strategy in spec.gather_strategy:
        depth = tree.depth_of(strategy.layer)
        if depth < 0:
            continue
        if strategy.strategy == MUST_GATHER and depth > tree.depth_of(gather):
            gather = strategy.layer
        if strategy.pod_count_multiple > 1:
            multiples[strategy.layer] = strategy.pod_count_multiple
    return Demand(pods, gather, multiples)


class Planner:
    """One question: where in a tree do the pods go, given what the nodes offer?"""

    def __init__(self, tree: Tree, demand: Demand, offer: Offer) -> None:
        self._tree = tree
        self._demand = demand
        size = len(tree.places)
        self._slots = [0] * size
        self._scores = [0.0] * size
        self._existing = [0] * size
        self._own = [0] * size
        self._possible: list[int] = [0] * size
        for name, leaf in tree.leaves.items():
            self._slots[leaf.index] = min(offer.slots.get(name, 0), demand.pods)
            for place in leaf.lineage():
                self._scores[place.index] += offer.scores.get(name, 0.0)
                self._existing[place.index] += offer.existing.get(name, 0)
                self._own[place.index] += offer.own.get(name, 0)
        self._sum(tree.root)

    # ---------------------------------------------------------------- what each place can take

    def _sum(self, place: Place) -> None:
        multiple = self._demand.multiples.get(place.layer, 1)
        own = self._own[place.index]
        if place.children:
            for child in place.children:
                self._sum(child)
            self._slots[place.index] = sum(self._slots[child.index] for child in place.children)
        slots = max(0, (self._slots[place.index] + own) // multiple * multiple - own)
        self._slots[place.index] = slots
        if not self._demand.multiples:
            return
        limit = self._demand.pods
        possible = _bits(min(slots, limit)) if not place.children else self._combined(place.children)
        self._possible[place.index] = possible & _multiples(multiple, own, limit)

    def _combined(self, places: Sequence[Place]) -> int:
        """Which sums the places can take together."""
        total, mask = 1, _bits(self._demand.pods)
        for place in places:
            total = _sums(total, self._possible[place.index]) & mask
        return total

    def _takes(self, place: Place, pods: int) -> bool:
        if self._demand.multiples:
            return bool(self._possible[place.index] >> pods & 1)
        return self._slots[place.index] >= pods

    # ---------------------------------------------------------------- choosing

    def plan(self) -> Layout:
        """The best layout, or what there is to offer."""
        gathering = self._gathering()
        offered = tuple((place.name or ROOT_LAYER, self._slots[place.index]) for place in gathering)
        level = [place for place in gathering if self._takes(place, self._demand.pods) and self._allowed_above(place)]
        candidates: list[Place] = []
        while level:
            candidates = level
            level = [child for place in level for child in place.children if self._takes(child, self._demand.pods)]
        if not candidates:
            return Layout(offered=offered)
        best = min(candidates, key=self._rank)
        counts: list[tuple[str, int]] = []
        self._lay(best, self._demand.pods, counts)
        return Layout(tuple(counts), best, offered)

    def _allowed_above(self, place: Place) -> bool:
        """Whether the places around this one may have all the pods: they have a multiple then too."""
        around = [above for above in place.lineage() if above is not place]
        return all((self._demand.pods + self._own[above.index]) % self._demand.multiples.get(above.layer, 1) == 0 for above in around)

    def _gathering(self) -> list[Place]:
        """The places in one of which all must be. Members that are somewhere already decide it."""
        places = self._tree.at(self._demand.gather)
        if any(self._own[place.index] for place in places):
            places = [place for place in places if self._own[place.index] == self._own[self._tree.root.index]]
        return sorted(places, key=lambda place: place.name)

    def _rank(self, place: Place) -> tuple[object, ...]:
        """Smaller is better: more pods of the same kind here, then above; fewer slots here, then above; higher score; name."""
        lineage = list(place.lineage())
        return (
            tuple(-self._own[above.index] - self._existing[above.index] for above in lineage),
            tuple(self._slots[above.index] for above in lineage),
            -self._scores[place.index],
            place.name,
        )

    def _share(self, place: Place) -> tuple[object, ...]:
        """The order in which the children of a place are filled: as `_rank`, but the roomiest first."""
        index = place.index
        return (-self._own[index] - self._existing[index], -self._slots[index], -self._scores[index], place.name)

    def _lay(self, place: Place, pods: int, counts: list[tuple[str, int]]) -> None:
        """Lay out pods that the place can take."""
        if not place.children:
            if pods:
                counts.append((place.name, pods))
            return
        order = sorted(place.children, key=self._share)
        rests = self._rests(order)
        for number, child in enumerate(order):
            if not pods:
                return
            given = self._portion(child, pods, rests[number] if rests else -1)
            self._lay(child, given, counts)
            pods -= given

    def _rests(self, order: Sequence[Place]) -> list[int]:
        """After each child, which sums the ones behind it can take; empty where any sum up to the room does."""
        if not self._demand.multiples:
            return []
        rests = [1] * len(order)
        mask = _bits(self._demand.pods)
        for number in range(len(order) - 2, -1, -1):
            rests[number] = _sums(rests[number + 1], self._possible[order[number + 1].index]) & mask
        return rests

    def _portion(self, child: Place, pods: int, rest: int) -> int:
        """The most that a child can take so that what is left fits behind it."""
        if rest < 0:
            return min(self._slots[child.index], pods)
        possible = self._possible[child.index]
        return next(
            given for given in range(min(self._slots[child.index], pods), -1, -1) if possible >> given & 1 and rest >> pods - given & 1
        )


def _bits(highest: int) -> int:
    """All counts from 0 to `highest`."""
    return (1 << highest + 1) - 1


def _multiples(multiple: int, own: int, limit: int) -> int:
    """Counts that make a multiple together with `own`; 0 too, where nothing has to be there."""
    if multiple <= 1:
        return _bits(limit)
    first = -own % multiple
    bits = sum(1 << count for count in range(first, limit + 1, multiple))
    return bits | 1


def _sums(some: int, others: int) -> int:
    """All sums of a count of each set."""
    if some.bit_count() > others.bit_count():
        some, others = others, some
    total = 0
    while some:
        low = some & -some
        total |= others << low.bit_length() - 1
        some ^= low
    return total
