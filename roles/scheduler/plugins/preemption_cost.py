"""What a choice of victims costs, and how little it could cost at best (SCH-KS-12). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.gangs import VictimGroup
from roles.scheduler.framework.status import Candidate

PreemptionCost = tuple[int, int, int, int, str]
Lacking = tuple[tuple[int, float], ...]

_LATE = "9999"
_FIT = "NodeResourcesFit"
_MIRROR = {code: chr(255 - code) for code in range(128)}
_NONE: PreemptionCost = (0, -(2**63), 0, 0, "")
_OFFSET = 2**31  # keeps priorities positive, so that more victims cost more


def start_of(pod: PodInfo) -> str:
    """Start time as text; RFC 3339 in UTC sorts as text. A pod that has not started counts as starting last."""
    return pod.pod.status.start_time or _LATE


def importance(pod: PodInfo) -> tuple[int, str]:
    """Sorts the most important pod first: higher priority, then longer running."""
    return (-pod.shape.priority, pod.pod.status.start_time or _LATE)


def cost_of(candidate: Candidate) -> PreemptionCost:
    """Less is better: budget violations, highest victim priority, sum of priorities, number of victims, and the earliest start among
    the highest-priority victims (the later, the better). Those that leave anyway do not count."""
    victims = [pod for pod in candidate.victims if pod.uid not in candidate.leaving]
    if not victims:
        return _NONE
    highest = victims[0].priority
    earliest = min(start_of(pod) for pod in victims if pod.priority == highest)
    return (candidate.violations, highest, sum(pod.priority + _OFFSET for pod in victims), len(victims), _late(earliest))


def _late(start: str) -> str:
    """Sorts the later start first."""
    return start.translate(_MIRROR)


def lacking_of(evaluation: Evaluation, ctx: CycleContext) -> Lacking:
    """What must be free on a node, as (resource, amount); () where nobody looks at resources."""
    looked_at = any(vector.plugin.name == _FIT for vector in evaluation.filters)
    if not looked_at or ctx.restored:
        return ()
    found: Lacking = ctx.data.get(_FIT, ())
    return found


class Shortfall:
    """What must come free on a node, whose leaving could free it (`groups`), and how little that could cost at best."""

    def __init__(self, cluster: Cluster, slot: int, groups: Sequence[VictimGroup], lacking: Lacking) -> None:
        self.groups = groups
        self._slot = slot
        self._cluster = cluster
        self._lacking = [(resource, amount) for resource, amount in lacking if cluster.free[resource].item(slot) < amount]

    def met(self) -> bool:
        """Whether there is as much as is needed now. Spares asking all filters."""
        free, slot = self._cluster.free, self._slot
        return all(free[resource].item(slot) >= amount for resource, amount in self._lacking)

    def hopeless(self, best: PreemptionCost) -> bool:
        """Whether no choice among the groups can cost less than `best`: those that go must free what lacks."""
        groups, slot, free = self.groups, self._slot, self._cluster.free
        needs = [(resource, amount - free[resource].item(slot)) for resource, amount in self._lacking]
        freed = [dict(_frees(self._cluster, slot, group)) for group in groups] if needs else []
        rising = sorted((group_priority(group), index) for index, group in enumerate(groups))
        highest, left = rising[0][0], dict(needs)
        for priority, index in rising:  # until enough would be free: somebody of that priority at least has to go
            if not left:
                break
            highest = priority
            left = {resource: rest for resource, amount in left.items() if (rest := amount - freed[index].get(resource, 0.0)) > 0}
        if best[0] or highest != best[1]:
            return not best[0] and highest > best[1]
        count = max((_fewest(amount, [got.get(resource, 0.0) for got in freed]) for resource, amount in needs), default=1)
        size = sum(sorted(group.size for group in groups)[:count])
        total = sum(sorted(sum(pod.priority + _OFFSET for pod in group.pods) for group in groups)[:count])
        latest = max((start_of(pod) for group in groups for pod in group.pods if pod.priority == highest), default="")
        return (0, highest, total, size, _late(latest)) >= best


def group_priority(group: VictimGroup) -> int:
    """The highest priority that goes with a group."""
    return max(pod.priority for pod in group.pods)


def _frees(cluster: Cluster, slot: int, group: VictimGroup) -> Iterable[tuple[int, float]]:
    """What a group's leaving frees on a node."""
    amounts: dict[int, float] = {}
    for pod in group.pods:
        if cluster.slot_of_pod(pod.uid) == slot:
            for resource, amount in pod.shape.requests:
                amounts[resource] = amounts.get(resource, 0.0) + amount
    return amounts.items()


def _fewest(amount: float, parts: Iterable[float]) -> int:
    """How many parts it takes at least to come to an amount."""
    count = 0
    for part in sorted(parts, reverse=True):
        if amount <= 0:
            break
        amount -= part
        count += 1
    return max(1, count)
