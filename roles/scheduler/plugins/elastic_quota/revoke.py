"""Taking back what a quota uses beyond its share (SCH-EQ-09). Decides only; time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from koord.accounting.resources import ResourceVector, add_into, sub_into
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.gangs import Gangs, VictimGroup, VictimGroups
from roles.scheduler.plugins.elastic_quota.admission import exceeded
from roles.scheduler.plugins.elastic_quota.cache import Member, QuotaCache, is_preemptible
from roles.scheduler.plugins.elastic_quota.model import ROOT, SYSTEM
from roles.scheduler.plugins.preemption_cost import importance


def victims(members: Iterable[Member], used: ResourceVector, runtime: ResourceVector, gangs: Gangs) -> list[PodInfo]:
    """Which pods have to go so that a quota uses no more than its runtime, least important first.

    Non-preemptible pods stay, and so do pods that hold nothing of what is exceeded. A job gives what it has above its minimum, or goes as a
    whole, with its pods in other quotas. The important ones among those taken come back where there is room.
    """
    own = {member.pod.uid: member for member in members if member.assigned and member.preemptible}
    victim_groups = VictimGroups(gangs, is_preemptible, importance)
    groups = victim_groups.groups(member.pod for member in own.values())
    left = dict(used)
    taken: list[VictimGroup] = []
    for group in reversed(groups):
        over = exceeded(left, runtime)
        if not over:
            break
        # What a job can spare comes before the rest of it, and has to be among those taken if that rest goes.
        if _holds(_amounts(group, own), over) or (group.minimum is not None and _holds(_amounts(group.minimum, own), over)):
            for amount in _amounts(group, own):
                sub_into(left, amount)
            taken.append(group)
    gone = _not_back(taken, own, left, runtime)
    return [pod for group in taken if group in gone for pod in reversed(group.pods)]


def _not_back(
    taken: Sequence[VictimGroup], own: Mapping[str, Member], left: ResourceVector, runtime: ResourceVector
) -> dict[VictimGroup, None]:
    """Those that cannot come back, the important ones being asked first; what a job can spare does not outlast it."""
    gone: dict[VictimGroup, None] = {}
    for group in reversed(taken):
        if group.minimum in gone:
            gone[group] = None
            continue
        amounts = _amounts(group, own)
        for amount in amounts:
            add_into(left, amount)
        if _holds(amounts, exceeded(left, runtime)):
            for amount in amounts:
                sub_into(left, amount)
            gone[group] = None
    return gone


def _amounts(group: VictimGroup, own: Mapping[str, Member]) -> list[ResourceVector]:
    """What the group's pods count with in the quota at hand."""
    return [own[pod.uid].amount for pod in group.pods if pod.uid in own]


def _holds(amounts: Iterable[ResourceVector], names: Iterable[str]) -> bool:
    """Whether there is anything of these resources in the amounts."""
    return any(amount.get(name, 0) > 0 for amount in amounts for name in names)


class Revoker:
    """Watches how long quotas have been over; a quota that was for longer than `delay` seconds has pods evicted, and then has the same
    time again. What pods use that are `leaving` is as good as free."""

    def __init__(self, delay: float, leaving: Callable[[PodInfo], bool] = lambda pod: pod.deleting) -> None:
        self._delay = delay
        self._leaving = leaving
        self._since: dict[str, float] = {}

    def due(self, cache: QuotaCache, now: float, gangs: Gangs) -> list[tuple[str, PodInfo]]:
        """Quota and pod of what is to be evicted now."""
        result: dict[str, tuple[str, PodInfo]] = {}
        over: dict[str, float] = {}
        for _, quota in cache.quotas():
            if quota.name in (ROOT, SYSTEM):
                continue
            used, runtime = quota.used, quota.limit()
            if not exceeded(used, runtime):
                continue
            used, members = dict(used), list(cache.members(quota.name))
            for member in members:
                if member.assigned and self._leaving(member.pod):
                    sub_into(used, member.amount)
            if not exceeded(used, runtime):
                continue
            since = self._since.get(quota.name, now)
            if now - since > self._delay:
                since = now
                for pod in victims([member for member in members if not self._leaving(member.pod)], used, runtime, gangs):
                    result.setdefault(pod.uid, (quota.name, pod))
            over[quota.name] = since
        self._since = over
        return list(result.values())
