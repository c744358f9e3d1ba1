"""Taking back what a quota uses beyond its share (SCH-EQ-09, scheduler-job.md 14.11). Decides only; time is an argument."""

from __future__ import annotations

from collections.abc import Iterable

from koord.accounting.resources import ResourceVector, add_into, sub_into
from roles.scheduler.plugins.elastic_quota.admission import exceeded
from roles.scheduler.plugins.elastic_quota.book import Member, QuotaBook
from roles.scheduler.plugins.elastic_quota.model import ROOT, SYSTEM


def _importance(member: Member) -> tuple[int, str]:
    """Sorts the most important first: higher priority, then longer running (RFC 3339 in UTC sorts as text)."""
    return (-member.pod.priority, member.pod.pod.status.start_time or "9999")


def victims(members: Iterable[Member], used: ResourceVector, runtime: ResourceVector) -> list[Member]:
    """Which pods of a quota have to go so that it uses no more than its runtime, least important first.

    Non-preemptible pods stay. If it does not fit without all the others, they all go; else the important ones among those
    taken come back where there is room.
    """
    left = dict(used)
    taken: list[Member] = []
    for member in sorted((member for member in members if member.assigned and member.preemptible), key=_importance, reverse=True):
        if not exceeded(left, runtime):
            break
        sub_into(left, member.amount)
        taken.append(member)
    if exceeded(left, runtime):
        return taken
    gone: list[Member] = []
    for member in reversed(taken):
        add_into(left, member.amount)
        if exceeded(left, runtime):
            sub_into(left, member.amount)
            gone.append(member)
    return gone[::-1]


class Revoker:
    """Watches how long quotas have been over; a quota that was for longer than `delay` seconds has pods evicted, and then has the same
    time again."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._since: dict[str, float] = {}

    def due(self, book: QuotaBook, now: float) -> list[tuple[str, Member]]:
        """Quota and pod of what is to be evicted now."""
        result: list[tuple[str, Member]] = []
        over: dict[str, float] = {}
        for _, quota in book.quotas():
            if quota.name in (ROOT, SYSTEM):
                continue
            runtime = quota.limit()
            if not exceeded(quota.used, runtime):
                continue
            since = self._since.get(quota.name, now)
            if now - since > self._delay:
                since = now
                result.extend((quota.name, member) for member in victims(book.members(quota.name), quota.used, runtime))
            over[quota.name] = since
        self._since = over
        return result
