"""Pods counted by topology value: what PodTopologySpread and InterPodAffinity build on. One counter per (selector, scope), by slot.

Pods are grouped by namespace and label set, with how many of each group are on which slot. Which groups a new counter counts follows from
sets of groups by label, without a look at any group; a group learns of the counters that count it when its next pod comes or goes. Sums
over a topology key are one bincount.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import DOES_NOT_EXIST, EXISTS, IN, NOT_IN, Requirement, Selector, selects

_BYTES = 64 << 20  # of counters that are kept; those not asked for the longest are dropped, and filled again when they are
_FEWEST = 64
_EMPTY = 1024  # groups without pods that are kept, for they come back
_FEW = 64  # groups that are summed one by one: of more than one in so many it is cheaper to look at all

Reaches = Callable[[str], bool]
Pair = tuple[str, str | None]
K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


@dataclass(slots=True, eq=False)
class Group:
    """Pods of one namespace with the same labels, all of them or none on their way out. `pod` stands for them, `edges` are where they are,
    by slot. `counters` are those that count them, of the counters up to the number `seen`."""

    pod: PodInfo
    number: int
    edges: dict[int, int] = field(default_factory=dict)
    counters: list[Counter] = field(default_factory=list)
    seen: int = 0


@dataclass(slots=True, eq=False)
class Counter:
    """How many pods of each slot a selector matches, in the namespaces that it reaches, of the pods on their way out only if `leaving`.

    `version` names the state: the same one never stands for two. `pairs` are labels of which every pod that counts has one; none if that
    is not known. `number` grows from counter to counter.
    """

    number: int
    selector: Selector | None
    namespace: str
    reaches: Reaches | None
    leaving: bool
    version: int
    pairs: tuple[Pair, ...] = ()
    by_slot: Vector = field(default_factory=lambda: np.zeros(0))
    kept: bool = True

    def matches(self, pod: PodInfo) -> bool:
        """Whether a pod counts."""
        return (self.leaving or not pod.deleting) and self._reached(pod.namespace) and selects(self.selector, pod.labels)

    def _reached(self, namespace: str) -> bool:
        return self.reaches(namespace) if self.reaches is not None else self.namespace in ("", namespace)

    def spaces(self, known: Collection[str]) -> Collection[str]:
        """Those of the namespaces that are known which it reaches."""
        if self.namespace:
            return [self.namespace] if self.namespace in known else []
        return known if self.reaches is None else set(filter(self._reached, known))


def pairs_of(selector: Selector | None, crowd: Callable[[Pair], int]) -> tuple[Pair, ...]:
    """Labels of which whatever a selector matches has one: those of the requirement that tells most apart, for `crowd` is how much is found
    under a label already. None as the value stands for any (Exists). () if it has no such requirement."""
    found = [_pairs(requirement) for requirement in selector or () if requirement.op in (IN, EXISTS)]
    return min(found, key=lambda pairs: (sum(map(crowd, pairs)), len(pairs)), default=())


def _pairs(requirement: Requirement) -> tuple[Pair, ...]:
    values: tuple[str | None, ...] = requirement.values if requirement.op in (IN, NOT_IN) else (None,)
    return tuple((requirement.key, value) for value in values)


def places_of(labels: Mapping[str, str]) -> Iterator[Pair | None]:
    """Where whatever may select these labels is found."""
    yield None
    for key, value in labels.items():
        yield key, value
        yield key, None


class GroupIndex:
    """Numbers of groups by label and by namespace, and how many of their pods are on which slot: one edge for a group on a slot."""

    def __init__(self) -> None:
        self.groups: list[Group | None] = []
        self._unused: list[int] = []
        self._with: dict[Pair | None, set[int]] = {}
        self._in: dict[str, set[int]] = {}
        self._leaving: set[int] = set()
        self._edges = 0
        self._unused_edges: list[int] = []
        self._owner: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._slot: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._pods: Vector = np.zeros(0)

    def crowd(self, pair: Pair) -> int:
        """How many groups have a label."""
        return len(self._with.get(pair, ()))

    def add(self, pod: PodInfo) -> Group:
        """A group for pods like this one."""
        if not self._unused:
            self._unused.append(len(self.groups))
            self.groups.append(None)
        group = Group(pod, self._unused.pop())
        self.groups[group.number] = group
        for pair in places_of(pod.labels):
            self._with.setdefault(pair, set()).add(group.number)
        self._in.setdefault(pod.namespace, set()).add(group.number)
        if pod.deleting:
            self._leaving.add(group.number)
        return group

    def remove(self, group: Group) -> None:
        """Nobody is left of a group."""
        number = group.number
        for pair in places_of(group.pod.labels):
            _drop(self._with, pair, number)
        _drop(self._in, group.pod.namespace, number)
        self._leaving.discard(number)
        self.groups[number] = None
        self._unused.append(number)

    def count(self, group: Group, slot: int, step: int) -> None:
        """So many pods of a group more (or less) are on a slot."""
        edge = group.edges.get(slot)
        if edge is None:
            edge = group.edges[slot] = self._new_edge()
            self._owner[edge], self._slot[edge] = group.number, slot
        left = self._pods.item(edge) + step
        self._pods[edge] = left
        if not left:
            del group.edges[slot]
            self._unused_edges.append(edge)

    def _new_edge(self) -> int:
        if self._unused_edges:
            return self._unused_edges.pop()
        if self._edges == len(self._pods):
            length = max(1024, 2 * self._edges)
            self._owner, self._slot = np.resize(self._owner, length), np.resize(self._slot, length)
            self._pods = grown(self._pods, length)
        self._edges += 1
        return self._edges - 1

    def pods_of(self, counter: Counter, capacity: int) -> Vector:
        """How many pods of the groups that a counter counts are on each slot."""
        found = self._counted(counter)
        if len(found) * _FEW <= len(self.groups):
            count = sum(len(self._group(number).edges) for number in found)
            edges = np.fromiter((edge for number in found for edge in self._group(number).edges.values()), np.intp, count)
        else:
            chosen = np.zeros(len(self.groups), dtype=np.bool_)
            chosen[np.fromiter(found, np.intp, len(found))] = True
            edges = np.flatnonzero(chosen[self._owner[: self._edges]])  # edges that are not in use have no pods
        return np.bincount(self._slot[edges], weights=self._pods[edges], minlength=capacity).astype(np.float64)

    def _group(self, number: int) -> Group:
        group = self.groups[number]
        assert group is not None
        return group

    def _counted(self, counter: Counter) -> set[int] | frozenset[int]:
        """The groups that a counter counts, from the smallest set on. Not to be changed."""
        if counter.selector is None:
            return frozenset()
        spaces = counter.spaces(self._in)
        everywhere = len(spaces) == len(self._in)
        having, lacking = list[set[int]](), list[set[int]]()
        for requirement in counter.selector:
            if requirement.op not in (IN, EXISTS, NOT_IN, DOES_NOT_EXIST):
                return {group.number for group in self.groups if group is not None and counter.matches(group.pod)}
            found = [self._with[pair] for pair in _pairs(requirement) if pair in self._with]
            (having if requirement.op in (IN, EXISTS) else lacking).append(found[0] if len(found) == 1 else set[int]().union(*found))
        if len(spaces) == 1:
            having.append(self._in[next(iter(spaces))])
            everywhere = True
        having.sort(key=len)
        result = having[0].intersection(*having[1:]) if having else self._with.get(None, set())
        for numbers in lacking if counter.leaving else (*lacking, self._leaving):
            result = result - numbers
        return result if everywhere else {number for number in result if self._group(number).pod.namespace in spaces}


class CountColumns(Columns):
    """All counters in use, and the groups of pods that they count."""

    def __init__(self) -> None:
        self._counters: OrderedDict[Hashable, Counter] = OrderedDict()
        self._groups: dict[Hashable, Group] = {}
        self._index = GroupIndex()
        # By namespace ("" for counters over several) and label; those of a namespace without known labels under None. Newer ones later.
        self._counters_with: dict[tuple[str, Pair | None], dict[Counter, None]] = {}
        self._empty: dict[Hashable, None] = {}
        self._newest = 0  # the number of the last counter
        self._versions = itertools.count(1)
        self._before: dict[Counter, int] | None = None  # versions at the start of a what-if that leaves no trace

    def quiet_begins(self) -> None:
        self._before = {}

    def quiet_ends(self) -> None:
        for counter, version in (self._before or {}).items():
            counter.version = version
        self._before = None

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def grow(self, capacity: int) -> None:
        for counter in self._counters.values():
            counter.by_slot = grown(counter.by_slot, capacity)

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        self._count(slot, pod, 1)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        self._count(slot, pod, -1)

    def pod_replaced(self, slot: int, old: PodInfo, new: PodInfo) -> None:
        if old.deleting != new.deleting or old.labels != new.labels:
            self._count(slot, old, -1)
            self._count(slot, new, 1)

    def namespace_changed(self, name: str) -> None:
        """Counters over several namespaces may choose them by label: they are filled again when they are asked for."""
        for key in [key for key, counter in self._counters.items() if not counter.namespace]:
            self._leave(self._counters.pop(key))

    # ---------------------------------------------------------------- groups

    def _count(self, slot: int, pod: PodInfo, step: int) -> None:
        key = _key_of(pod)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._index.add(pod)
        if group.seen != self._newest:
            self._catch_up(group)
        self._index.count(group, slot, step)
        if group.edges:
            self._empty.pop(key, None)
        else:
            self._empty[key] = None
            self._purge()
        for counter in group.counters:
            if counter.kept:
                counter.by_slot[slot] += step
                if self._before is not None:
                    self._before.setdefault(counter, counter.version)
                counter.version = next(self._versions)

    def _catch_up(self, group: Group) -> None:
        """Find the counters that are newer than those which a group has seen."""
        pod = group.pod
        found = {counter: None for counter in group.counters if counter.kept}
        for namespace in (pod.namespace, ""):
            for pair in places_of(pod.labels):
                for counter in reversed(self._counters_with.get((namespace, pair), {})):
                    if counter.number <= group.seen:
                        break
                    if counter.matches(pod):
                        found[counter] = None
        group.counters, group.seen = list(found), self._newest

    def _purge(self) -> None:
        """Groups that have been without pods for longest are forgotten."""
        while len(self._empty) > _EMPTY and self._before is None:
            key = next(iter(self._empty))
            del self._empty[key]
            self._index.remove(self._groups.pop(key))

    # ---------------------------------------------------------------- counters

    def _enter(self, counter: Counter) -> None:
        counters, index = self._counters_with, self._index
        namespace = counter.namespace
        counter.pairs = pairs_of(counter.selector, lambda pair: index.crowd(pair) + len(counters.get((namespace, pair), ())))
        for pair in counter.pairs or (None,):
            counters.setdefault((namespace, pair), {})[counter] = None
        counter.by_slot = index.pods_of(counter, self.cluster.capacity)

    def _leave(self, counter: Counter) -> None:
        """Its groups drop it when they look for newer ones."""
        counter.kept, counter.by_slot = False, counter.by_slot[:0].copy()
        for pair in counter.pairs or (None,):
            _drop(self._counters_with, (counter.namespace, pair), counter)

    def counter(
        self, key: Hashable, selector: Selector | None, namespace: str = "", reaches: Reaches | None = None, leaving: bool = True
    ) -> Counter:
        """The counter of a key: pods that a selector matches, in a namespace or in those that `reaches` says, which may depend on the
        namespace's labels. Pods on their way out count if `leaving`."""
        counter = self._counters.get(key)
        if counter is None:
            self._newest += 1
            counter = self._counters[key] = Counter(self._newest, selector, namespace, reaches, leaving, next(self._versions))
            if self._before is not None:
                self._before[counter] = next(self._versions)
            self._enter(counter)
            if len(self._counters) > max(_FEWEST, _BYTES // (8 * self.cluster.capacity)):
                self._leave(self._counters.popitem(last=False)[1])
        else:
            self._counters.move_to_end(key)
        return counter

    def by_value(self, counter: Counter, topology_key: str, included: NDArray[np.bool_] | None = None) -> Vector:
        """Sums by value id of a topology key; index 0, nodes without the key, is 0. Only rows `included` count, by default live ones."""
        column = self.cluster.labels.column(topology_key)
        kept = self.cluster.alive if included is None else included
        sums = np.bincount(column.ids, weights=counter.by_slot * kept, minlength=len(column.values))
        sums[0] = 0.0
        return np.asarray(sums, dtype=np.float64)


def _key_of(pod: PodInfo) -> Hashable:
    """What tells the group of a pod; pods of a template mostly share their labels."""
    shape = pod.shape
    if pod.labels is not shape.labels:
        return pod.namespace, frozenset(pod.labels.items()), pod.deleting
    labels = shape.memo.get(_LABELS)
    if labels is None:
        labels = shape.memo[_LABELS] = frozenset(shape.labels.items())
    return pod.namespace, labels, pod.deleting


_LABELS = "labels as a set"


def _drop(table: MutableMapping[K, set[T]] | MutableMapping[K, dict[T, None]], key: K, item: T) -> None:
    found = table[key]
    if isinstance(found, set):
        found.remove(item)
    else:
        del found[item]
    if not found:
        del table[key]
