"""Which nodes a gang takes: as deep in the tree as it fits, in counts that every layer allows (SCH-NT-02). Pure.

A layer may demand that the number of the job's pods in each of its places is a multiple of k. Which counts a place can take is then a set,
kept as the bits of one whole number: bit n is set when n pods can be laid out below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koord.api.annotations import NetworkTopologyGatherSpec
from koord.api.v1alpha1.clusternetworktopology import ROOT_LAYER
from roles.scheduler.plugins.network_topology.tree import Place, Tree

MUST_GATHER = "MustGather"
Counts = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Demand:
    """`pods` is how many have to be laid out; `gather` the layer in one place of which all must be; `multiples` by layer."""

    pods: int
    gather: str = ROOT_LAYER
    multiples: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """What nodes offer, in the order of the tree's leaves: how many of the pods fit, how good the node is, how many pods of the same kind
    are there, and how many of the job itself (they count for multiples, and where all must gather they say where). None: nothing."""

    slots: Counts
    scores: NDArray[np.float64] | None = None
    existing: Counts | None = None
    own: Counts | None = None


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
    """One question: where in a tree do the pods go, given what the nodes offer? What is known of places is an array by place."""

    def __init__(self, tree: Tree, demand: Demand, offer: Offer) -> None:
        self._tree = tree
        self._demand = demand
        self._nothing = np.zeros(len(tree.places), dtype=np.intp)
        self._scores = tree.sums(offer.scores) if offer.scores is not None else np.zeros(len(tree.places))
        self._own = tree.sums(offer.own) if offer.own is not None else self._nothing
        self._there = self._own + tree.sums(offer.existing) if offer.existing is not None else self._own
        self._slots: Counts = np.zeros(len(tree.places), dtype=np.intp)
        if tree.leaves:
            self._slots[tree.levels[-1]] = np.minimum(offer.slots, demand.pods)
        tree.add_up(self._slots, self._round_down if demand.multiples else lambda level: None)
        self._possible: list[int] = []
        if demand.multiples:
            self._possible = [0] * len(tree.places)
            for place in reversed(tree.places):
                self._fill_in(place)

    # ---------------------------------------------------------------- what each place can take

    def _round_down(self, level: int) -> None:
        """Places of a level take what makes a multiple with who is there."""
        here = self._tree.levels[level]
        multiple = self._demand.multiples.get(self._layer(level), 1)
        own, slots = self._own[here], self._slots[here]
        self._slots[here] = np.maximum((slots + own) // multiple * multiple - own, 0)

    def _layer(self, level: int) -> str:
        return self._tree.layers[-1 - level].name

    def _fill_in(self, place: Place) -> None:
        """Which counts a place can take, those of its children being known."""
        limit, index = self._demand.pods, place.index
        possible = _bits(min(self._slots.item(index), limit)) if not place.children else self._combined(place.children)
        multiple = self._demand.multiples.get(place.layer, 1)
        self._possible[index] = possible & _multiples(multiple, self._own.item(index), limit)

    def _combined(self, places: Sequence[Place]) -> int:
        """Which sums the places can take together."""
        total, mask = 1, _bits(self._demand.pods)
        for place in places:
            total = _sums(total, self._possible[place.index]) & mask
        return total

    def _takes(self, places: Counts) -> Counts:
        """Those of some places that can take all pods."""
        pods = self._demand.pods
        if self._demand.multiples:
            return places[[bool(self._possible[index] >> pods & 1) for index in places.tolist()]]
        return places[self._slots[places] >= pods]

    # ---------------------------------------------------------------- choosing

    def plan(self) -> Layout:
        """The best layout, or what there is to offer."""
        tree = self._tree
        gathering = self._gathering()
        level = self._takes(gathering)
        if self._demand.multiples:
            level = level[[self._allowed_above(tree.places[index]) for index in level.tolist()]]
        if not len(level):
            offered = sorted((tree.places[index].name or ROOT_LAYER, self._slots.item(index)) for index in gathering.tolist())
            return Layout(offered=tuple(offered))
        candidates = level
        while len(level):
            candidates = level
            depth = tree.places[level.item(0)].depth + 1
            if depth == len(tree.levels):
                break
            below = tree.levels[depth]
            able = np.zeros(len(tree.places), dtype=np.bool_)
            able[level] = True
            level = self._takes(np.flatnonzero(able[tree.parents[below]]) + below.start)
        best = tree.places[self._best(candidates)]
        counts: list[tuple[str, int]] = []
        self._lay(best, self._demand.pods, counts)
        return Layout(tuple(counts), best)

    def _allowed_above(self, place: Place) -> bool:
        """Whether the places around this one may have all the pods: they have a multiple then too."""
        around = [above for above in place.lineage() if above is not place]
        return all((self._demand.pods + self._own.item(above.index)) % self._demand.multiples.get(above.layer, 1) == 0 for above in around)

    def _gathering(self) -> Counts:
        """The places in one of which all must be. Members that are somewhere already decide it."""
        depth = self._tree.depth_of(self._demand.gather)
        if not 0 <= depth < len(self._tree.levels):
            return np.zeros(0, dtype=np.intp)
        level = self._tree.levels[depth]
        places = np.arange(level.start, level.stop, dtype=np.intp)
        own = self._own[places]
        return places[own == self._own[0]] if own.any() else places

    def _best(self, places: Counts) -> int:
        """The place with more pods of the same kind here, then above; fewer slots here, then above; the higher score; the first name."""
        for values, sign in ((self._there, -1), (self._slots, 1))[not self._there.any() :]:
            above = places
            for _ in range(self._tree.places[places.item(0)].depth + 1):
                if len(places) == 1:
                    return places.item(0)
                keys = values[above] * sign
                least = keys == keys.min()
                places, above = places[least], self._tree.parents[above[least]]
        places = places[self._scores[places] == self._scores[places].max()]
        return places.item(int(self._tree.ranks[places].argmin()))

    def _shared(self, place: Place) -> list[Place]:
        """The children of a place in the order in which they are filled: as for `_best`, but the roomiest first."""
        here = self._tree.children(place)
        order = np.lexsort((-self._scores[here], -self._slots[here], -self._there[here]))
        return [place.children[index] for index in order.tolist()]

    def _lay(self, place: Place, pods: int, counts: list[tuple[str, int]]) -> None:
        """Lay out pods that the place can take."""
        if not place.children:
            if pods:
                counts.append((place.name, pods))
            return
        order = self._shared(place)
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
            return min(self._slots.item(child.index), pods)
        possible = self._possible[child.index]
        return next(
            given for given in range(min(self._slots.item(child.index), pods), -1, -1) if possible >> given & 1 and rest >> pods - given & 1
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
