"""Pods counted by topology value: what PodTopologySpread and InterPodAffinity build on. One counter per (selector, scope), by slot.

A counter is built when a pod first asks for it and follows every pod from then on; sums over a topology key are one bincount.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.podinfo import PodInfo

_KEPT = 512

Matches = Callable[[PodInfo], float]


class Counter:
    """How much the pods of each slot count; `version` names the state: the same one never stands for two."""

    __slots__ = ("by_slot", "matches", "namespace", "version")

    def __init__(self, matches: Matches, capacity: int, namespace: str = "") -> None:
        self.matches = matches
        self.namespace = namespace
        self.by_slot: Vector = np.zeros(capacity)
        self.version = 0


class CountColumns(Columns):
    """All counters in use; those not asked for the longest are dropped beyond 512."""

    def __init__(self) -> None:
        self._counters: OrderedDict[Hashable, Counter] = OrderedDict()
        # By the only namespace whose pods can match, "" for counters over several: most pods need not be asked about most counters.
        self._by_namespace: dict[str, list[Counter]] = {}
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
        self._count(slot, pod, 1.0)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        self._count(slot, pod, -1.0)

    def pod_replaced(self, slot: int, old: PodInfo, new: PodInfo) -> None:
        if old.deleting != new.deleting or old.labels != new.labels:
            self._count(slot, old, -1.0)
            self._count(slot, new, 1.0)

    def namespace_changed(self, name: str) -> None:
        """Counters over several namespaces may choose them by label."""
        for counter in self._by_namespace.get("", ()):
            counter.by_slot[:] = 0.0
            counter.version = next(self._versions)
            self._fill(counter)

    def _fill(self, counter: Counter) -> None:
        for row in self.cluster.rows():
            for pod in row.pods.values():
                counter.by_slot[row.slot] += counter.matches(pod)

    def _count(self, slot: int, pod: PodInfo, sign: float) -> None:
        for counter in (*self._by_namespace.get(pod.namespace, ()), *self._by_namespace.get("", ())):
            amount = counter.matches(pod)
            if amount:
                counter.by_slot[slot] += sign * amount
                if self._before is not None:
                    self._before.setdefault(counter, counter.version)
                counter.version = next(self._versions)

    def counter(self, key: Hashable, matches: Matches, namespace: str = "") -> Counter:
        """The counter of a key; `matches(pod)` is how much a pod counts, which must depend on the key and the pod only.

        `namespace` is given when only pods of it can match.
        """
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = Counter(matches, self.cluster.capacity, namespace)
            counter.version = next(self._versions)
            if self._before is not None:
                self._before[counter] = next(self._versions)
            self._by_namespace.setdefault(namespace, []).append(counter)
            self._fill(counter)
            if len(self._counters) > _KEPT:
                _, dropped = self._counters.popitem(last=False)
                self._by_namespace[dropped.namespace].remove(dropped)
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
