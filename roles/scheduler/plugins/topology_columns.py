"""Pods counted by topology value: what PodTopologySpread and InterPodAffinity build on. One counter per (selector, scope), by slot.

Pods are grouped by namespace and label set, with how many of each group are on which slot. A counter is filled from the groups that its
selector can match, found by one of its label values, and follows them from then on: a pod that comes or goes touches the counters that
count it and no others. Sums over a topology key are one bincount.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import EXISTS, IN, Requirement, Selector

_BYTES = 64 << 20  # of counters that are kept; those not asked for the longest are dropped, and filled again when they are
_FEWEST = 64
_EMPTY = 1024  # groups without pods that are kept, for they come back

Matches = Callable[[PodInfo], float]
Pair = tuple[str, str | None]
T = TypeVar("T")


class Group:
    """Pods of one namespace with the same labels, all of them or none on their way out. `pod` stands for them; `counters` are those that
    count them, with how much each pod counts."""

    __slots__ = ("counters", "pod", "slots")

    def __init__(self, pod: PodInfo) -> None:
        self.pod = pod
        self.slots: dict[int, int] = {}
        self.counters: dict[Counter, float] = {}


class Counter:
    """How much the pods of each slot count; `version` names the state: the same one never stands for two. `pairs` are labels of which every
    pod that counts has one; none if that is not known."""

    __slots__ = ("by_slot", "groups", "matches", "namespace", "pairs", "version")

    def __init__(self, matches: Matches, capacity: int, namespace: str = "", pairs: tuple[Pair, ...] = ()) -> None:
        self.matches = matches
        self.namespace = namespace
        self.pairs = pairs
        self.by_slot: Vector = np.zeros(capacity)
        self.groups: list[Group] = []
        self.version = 0


def pairs_of(selector: Selector | None, crowd: Callable[[Pair], int]) -> tuple[Pair, ...]:
    """Labels of which whatever a selector matches has one: those of the requirement that tells most apart, for `crowd` is how much is found
    under a label already. None as the value stands for any (Exists). () if it has no such requirement."""
    found = [_pairs(requirement) for requirement in selector or () if requirement.op in (IN, EXISTS)]
    return min(found, key=lambda pairs: (sum(map(crowd, pairs)), len(pairs)), default=())


def _pairs(requirement: Requirement) -> tuple[Pair, ...]:
    values: tuple[str | None, ...] = requirement.values if requirement.op == IN else (None,)
    return tuple((requirement.key, value) for value in values)


def places_of(labels: Mapping[str, str]) -> Iterator[Pair | None]:
    """Where whatever may select these labels is found."""
    yield None
    for key, value in labels.items():
        yield key, value
        yield key, None


class CountColumns(Columns):
    """All counters in use, and the groups of pods that they count."""

    def __init__(self) -> None:
        self._counters: OrderedDict[Hashable, Counter] = OrderedDict()
        self._groups: dict[Hashable, Group] = {}
        # Groups and counters by namespace ("" for counters over several) and label; those of a namespace without known labels under None.
        self._groups_with: dict[tuple[str, Pair | None], dict[Group, None]] = {}
        self._counters_with: dict[tuple[str, Pair | None], dict[Counter, None]] = {}
        self._empty: dict[Hashable, None] = {}
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
        """Counters over several namespaces may choose them by label."""
        for counter in [counter for counter in self._counters.values() if not counter.namespace]:
            self._leave(counter)
            counter.by_slot[:] = 0.0
            counter.version = next(self._versions)
            self._enter(counter)

    # ---------------------------------------------------------------- groups

    def _count(self, slot: int, pod: PodInfo, step: int) -> None:
        key = _key_of(pod)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._new_group(pod)
        left = group.slots.get(slot, 0) + step
        if left:
            group.slots[slot] = left
            self._empty.pop(key, None)
        else:
            del group.slots[slot]
            if not group.slots:
                self._empty[key] = None
                self._purge()
        for counter, amount in group.counters.items():
            counter.by_slot[slot] += step * amount
            if self._before is not None:
                self._before.setdefault(counter, counter.version)
            counter.version = next(self._versions)

    def _new_group(self, pod: PodInfo) -> Group:
        group = Group(pod)
        found: dict[Counter, None] = {}
        for namespace in (pod.namespace, ""):
            for pair in places_of(pod.labels):
                found.update(self._counters_with.get((namespace, pair), ()))
        for pair in places_of(pod.labels):
            for namespace in (pod.namespace, ""):
                self._groups_with.setdefault((namespace, pair), {})[group] = None
        for counter in found:
            self._join(counter, group)
        return group

    def _purge(self) -> None:
        """Groups that have been without pods for longest are forgotten."""
        while len(self._empty) > _EMPTY and self._before is None:
            key = next(iter(self._empty))
            del self._empty[key]
            group = self._groups.pop(key)
            for pair in places_of(group.pod.labels):
                for namespace in (group.pod.namespace, ""):
                    _drop(self._groups_with, (namespace, pair), group)
            for counter in group.counters:
                counter.groups.remove(group)

    # ---------------------------------------------------------------- counters

    def _join(self, counter: Counter, group: Group) -> None:
        amount = counter.matches(group.pod)
        if amount:
            group.counters[counter] = amount
            counter.groups.append(group)
            for slot, pods in group.slots.items():
                counter.by_slot[slot] += amount * pods

    def _enter(self, counter: Counter) -> None:
        found: dict[Group, None] = {}
        for pair in counter.pairs or (None,):
            self._counters_with.setdefault((counter.namespace, pair), {})[counter] = None
            found.update(self._groups_with.get((counter.namespace, pair), ()))
        for group in found:
            self._join(counter, group)

    def _leave(self, counter: Counter) -> None:
        for group in counter.groups:
            del group.counters[counter]
        counter.groups.clear()
        for pair in counter.pairs or (None,):
            _drop(self._counters_with, (counter.namespace, pair), counter)

    def _pairs_of(self, selector: Selector | None, namespace: str) -> tuple[Pair, ...]:
        """The labels of a selector that the fewest groups and counters have."""
        groups, counters = self._groups_with, self._counters_with
        return pairs_of(selector, lambda pair: len(groups.get((namespace, pair), ())) + len(counters.get((namespace, pair), ())))

    def counter(self, key: Hashable, matches: Matches, namespace: str = "", selector: Selector | None = None) -> Counter:
        """The counter of a key; `matches(pod)` is how much a pod counts, which must depend on the key and on the pod's namespace, labels
        and `deleting` only.

        `namespace` is given when only pods of it can match, `selector` when only pods that it selects can.
        """
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = Counter(matches, self.cluster.capacity, namespace, self._pairs_of(selector, namespace))
            counter.version = next(self._versions)
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


def _drop(table: dict[tuple[str, Pair | None], dict[T, None]], key: tuple[str, Pair | None], item: T) -> None:
    found = table[key]
    del found[item]
    if not found:
        del table[key]
