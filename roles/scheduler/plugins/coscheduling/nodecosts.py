"""What it costs to take a node for a job: whose pods would have to go (SCH-JP-01). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.gangs import VictimGroup
from roles.scheduler.framework.steps import Steps

_NAME_BITS, _LOST_BITS = 21, 20
_MOST_LOST = (1 << _LOST_BITS) - 1


class NodeCosts:
    """Nodes with pods that may go. A node is the dearer, the higher the priorities of the jobs with pods there rank among all victims; of
    equal ones it is the dearer, the more pods of broken-up jobs would go from other nodes too; then names decide. A job that has to go
    anyway costs nothing any more."""

    def __init__(self, cluster: Cluster, groups: Sequence[VictimGroup], job_of: Callable[[PodInfo], str]) -> None:
        self._capacity = cluster.capacity
        self._job_of = job_of
        self._groups = list(groups)
        self._rank: dict[int, int] = {}
        self._where: dict[str, int] = {}
        self._at: dict[int, list[tuple[PodInfo, VictimGroup]]] = {}
        self._doomed: set[VictimGroup] = set()
        self._named: dict[int, int] = {}
        self._costs: dict[int, int] = {}
        self.slots: list[int] = []

    @classmethod
    def worked_out(cls, cluster: Cluster, groups: Sequence[VictimGroup], job_of: Callable[[PodInfo], str]) -> Steps[NodeCosts]:
        """NodeCosts of all nodes, as they are while nobody has gone."""
        costs = cls(cluster, groups, job_of)
        priorities: set[int] = set()
        for group in groups:
            for pod in group.pods:
                priorities.add(pod.priority)
                slot = costs._where[pod.uid] = cluster.slot_of_pod(pod.uid)
                costs._at.setdefault(slot, []).append((pod, group))
            yield
        costs._rank = {priority: rank for rank, priority in enumerate(sorted(priorities))}
        costs._named = {slot: place for place, slot in enumerate(sorted(costs._at, key=cluster.name_of))}
        for slot in costs._at:
            costs._costs[slot] = costs._cost(slot)
            yield
        costs.slots = sorted(costs._at, key=costs._costs.__getitem__)
        yield
        return costs

    def _cost(self, slot: int) -> int:
        """One number: first what the jobs there rank, then how many pods elsewhere go with them, then the name's place."""
        jobs: dict[str, int] = {}
        broken: set[VictimGroup] = set()
        for pod, group in self._at[slot]:
            if group in self._doomed or (group.minimum is not None and group.minimum in self._doomed):
                continue
            key = self._job_of(pod)
            jobs[key] = max(jobs.get(key, 0), self._rank[pod.priority])
            if group.whole:
                broken.add(group)
        lost = min(_MOST_LOST, sum(group.size for group in broken))
        return (sum(jobs.values()) << (_NAME_BITS + _LOST_BITS)) + (lost << _NAME_BITS) + self._named[slot]

    def cheapest(self, count: int) -> list[VictimGroup]:
        """Groups with pods on so many of the cheapest nodes, in the order given; with a job's minimum what it can spare."""
        if count >= len(self.slots):
            return self._groups
        chosen = {group for slot in self.slots[:count] for _, group in self._at[slot]}
        return [group for group in self._groups if group in chosen or group.minimum in chosen]

    def keys(self, groups: Iterable[VictimGroup]) -> NDArray[np.int64]:
        """By slot, what taking it costs while these groups are away; -1 where nobody has to go."""
        keys = np.full(self._capacity, -1, dtype=np.int64)
        self._doomed.clear()
        for slot in {self._where[pod.uid] for group in groups for pod in group.pods}:
            keys[slot] = self._costs[slot]
        return keys

    def taken(self, slot: int, keys: NDArray[np.int64]) -> None:
        """A node was taken: jobs that it breaks up are lost, so their other nodes become cheaper."""
        if keys[slot] < 0:
            return
        fresh = {group for _, group in self._at[slot] if group.whole and group.size > 1} - self._doomed
        self._doomed |= fresh
        for other in {self._where[pod.uid] for group in fresh for pod in group.pods}:
            keys[other] = self._cost(other)
