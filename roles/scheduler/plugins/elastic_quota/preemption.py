"""Making room within a quota (SCH-EQ-08, scheduler-job.md 14.10): lower-priority pods of the same quota go, on a node where that lets the
pod in. Decides only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.config.args import DefaultPreemptionArgs
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Candidate
from roles.scheduler.framework.status import Code
from roles.scheduler.plugins.default_preemption import DefaultPreemption
from roles.scheduler.plugins.elastic_quota.args import ElasticQuotaArgs
from roles.scheduler.plugins.elastic_quota.book import QuotaBook, is_preemptible
from roles.scheduler.plugins.elastic_quota.model import DEFAULT
from roles.scheduler.plugins.elastic_quota.tree import Quota


class QuotaPreemption(DefaultPreemption):
    """As DefaultPreemption, but among the pods of one quota, and the quota must have room afterwards too. What the quota may use is
    what it was in this cycle: a what-if changes what is used, not what is due."""

    def __init__(
        self, args: ElasticQuotaArgs, handle: Handle, book: QuotaBook, plugin: str, refuses: Callable[[CycleContext, Quota], str]
    ) -> None:
        super().__init__(DefaultPreemptionArgs(), handle)
        self._quota_args = args
        self._book = book
        self._plugin = plugin
        self._refuses = refuses  # why the quota has no room for the pod as things are (or are supposed to be), "" when it has

    def quota_of(self, pod: PodInfo) -> Quota | None:
        """The quota in which victims are looked for; None when nothing may be preempted there."""
        name = self._book.resolve(pod.shape)
        if not name or (name == DEFAULT and self._quota_args.disable_default_quota_preemption):
            return None
        found = self._book.quota(name)
        return found[1] if found is not None else None

    def slots(self, ctx: CycleContext, failure: FitFailure) -> list[int]:
        """Nodes with possible victims, in slot order: all of them if the quota refused the pod, else those that filters left open."""
        quota = self.quota_of(ctx.pod)
        if quota is None:
            return []
        refused = failure.pre_filter
        if refused is not None and (refused.plugin != self._plugin or refused.code is not Code.UNSCHEDULABLE):
            return []
        cluster = ctx.cluster
        of_quota = {
            cluster.slot_of_pod(member.pod.uid)
            for member in self._book.members(quota.name)
            if member.assigned and member.pod.priority < ctx.pod.priority
        }
        open_slots = None if refused is not None else frozenset(failure.resolvable())
        return sorted(slot for slot in of_quota if slot >= 0 and cluster.alive[slot] and (open_slots is None or slot in open_slots))

    def removable(self, ctx: CycleContext, pod: PodInfo) -> bool:
        member, quota = self._book.member(pod.uid), self.quota_of(ctx.pod)
        same = member is not None and member.quota is quota
        return same and is_preemptible(pod) and super().removable(ctx, pod)

    def obstacles(self, ctx: CycleContext, failure: FitFailure, slot: int) -> tuple[str, ...]:
        quota = self.quota_of(ctx.pod)
        refusal = self._refuses(ctx, quota) if quota is not None else ""
        return (refusal,) if refusal else super().obstacles(ctx, failure, slot)

    def fits(self, ctx: CycleContext, failure: FitFailure, slot: int) -> bool:
        quota = self.quota_of(ctx.pod)
        return failure.fits(slot) and quota is not None and not self._refuses(ctx, quota)

    def _candidates(self, ctx: CycleContext, failure: FitFailure, slots: Sequence[int], reasons: Counter[str]) -> list[Candidate]:
        found = (self._try(ctx, failure, slot, reasons) for slot in slots)
        return [candidate for candidate in found if candidate is not None]

    def _not_eligible(self, ctx: CycleContext) -> str:
        reason = super()._not_eligible(ctx)
        quota, nominated = self.quota_of(ctx.pod), ctx.state.nominations.node_of(ctx.pod.uid)
        slot = ctx.cluster.slot_of(nominated) if nominated else -1
        if reason or quota is None or slot < 0:
            return reason
        for other in ctx.cluster.row(slot).pods.values():
            member = self._book.member(other.uid)
            if other.deleting and other.priority < ctx.pod.priority and member is not None and member.quota is quota:
                return "not eligible due to a terminating pod of the quota on the nominated node."
        return ""
