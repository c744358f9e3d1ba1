"""Making room within a quota (SCH-EQ-08): lower-priority pods of the same quota go, on a node where that lets the
pod in; for a gang group on whatever nodes, so that all of it is let in. Decides only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from koord.accounting.resources import add_into, sub_into
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.config.args import DefaultPreemptionArgs
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.gangs import Rule, VictimGroup
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.status import Candidate, Code
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.default_preemption import DefaultPreemption
from roles.scheduler.plugins.elastic_quota.admission import exceeded, limit_of
from roles.scheduler.plugins.elastic_quota.args import ElasticQuotaArgs
from roles.scheduler.plugins.elastic_quota.cache import QuotaCache, is_preemptible
from roles.scheduler.plugins.elastic_quota.model import DEFAULT, ROOT
from roles.scheduler.plugins.elastic_quota.tree import Quota


class QuotaPreemption(DefaultPreemption):
    """As DefaultPreemption, but among the pods of one quota, and the quota must have room afterwards too. What the quota may use is
    what it was in this cycle: a what-if changes what is used, not what is due."""

    def __init__(
        self, args: ElasticQuotaArgs, handle: Handle, cache: QuotaCache, plugin: str, refuses: Callable[[CycleContext, Quota], str]
    ) -> None:
        super().__init__(DefaultPreemptionArgs(), handle)
        self._quota_args = args
        self._cache = cache
        self._plugin = plugin
        self._refuses = refuses  # why the quota has no room for the pod as things are (or are supposed to be), "" when it has

    def quota_of(self, pod: PodInfo) -> Quota | None:
        """The quota in which victims are looked for; None when nothing may be preempted there."""
        name = self._cache.resolve(pod.shape)
        if not name or (name == DEFAULT and self._quota_args.disable_default_quota_preemption):
            return None
        found = self._cache.quota(name)
        return found[1] if found is not None else None

    def slots(self, ctx: CycleContext, failure: FitFailure) -> list[int]:
        """Nodes with possible victims, in slot order: all of them if the quota refused the pod, else those that filters left open."""
        quota = self.quota_of(ctx.pod)
        if quota is None:
            return []
        refused = failure.pre_filter
        if refused is not None and (refused.plugin != self._plugin or refused.code is not Code.UNSCHEDULABLE):
            return []
        slots = self._slots_of(ctx.cluster, (quota.name,), ctx.pod.priority)
        return slots if refused is not None else sorted(frozenset(failure.resolvable()).intersection(slots))

    def removable(self, ctx: CycleContext, pod: PodInfo) -> bool:
        member, quota = self._cache.member(pod.uid), self.quota_of(ctx.pod)
        same = member is not None and member.quota is quota
        return same and is_preemptible(pod) and super().removable(ctx, pod)

    def obstacles(self, ctx: CycleContext, failure: FitFailure, slot: int) -> tuple[str, ...]:
        quota = self.quota_of(ctx.pod)
        refusal = self._refuses(ctx, quota) if quota is not None else ""
        return (refusal,) if refusal else super().obstacles(ctx, failure, slot)

    def fits(self, ctx: CycleContext, failure: FitFailure, slot: int) -> bool:
        quota = self.quota_of(ctx.pod)
        return failure.fits(slot) and quota is not None and not self._refuses(ctx, quota)

    def _candidates(self, ctx: CycleContext, failure: FitFailure, slots: Sequence[int], reasons: Counter[str]) -> Steps[list[Candidate]]:
        return self._search(ctx, failure, slots, reasons, len(slots))

    def lockstep(self, ctx: CycleContext, failure: FitFailure) -> None:
        """What is used of the quota is no amount of a node."""

    def touched(self, cluster: Cluster, slot: int, group: VictimGroup) -> list[tuple[PodInfo, int]]:
        """All of a group: what its pods on other nodes use counts in the quota too."""
        return [(pod, cluster.slot_of_pod(pod.uid)) for pod in group.pods]

    # ---------------------------------------------------------------- for a whole gang group

    def for_gang(self, ctx: CycleContext, failure: FitFailure, pending: Sequence[PodInfo]) -> Rule | None:
        """Victims are of the quotas that members belong to, on any node if a quota refused the pod, and all members must be let in."""
        refused = failure.pre_filter
        if refused is not None and (refused.plugin != self._plugin or refused.code is not Code.UNSCHEDULABLE):
            return None
        quotas = {quota.name: quota for pod in pending if (quota := self.quota_of(pod)) is not None}
        below = min(pod.priority for pod in pending)

        def may_go(pod: PodInfo) -> bool:
            member = self._cache.member(pod.uid)
            mine = member is not None and quotas.get(member.quota.name) is member.quota
            return mine and pod.priority < below and is_preemptible(pod) and DefaultPreemption.removable(self, ctx, pod)

        if self.quota_of(ctx.pod) is None or not self._could_admit(pending, quotas, may_go):
            return None
        slots = tuple(self._slots_of(ctx.cluster, quotas, inf)) if refused is not None else None
        return Rule(self._plugin, may_go, slots, lambda: self._admits(pending, quotas))

    def _slots_of(self, cluster: Cluster, quotas: Iterable[str], below: float) -> list[int]:
        """Nodes with pods of these quotas that have a lower priority, in slot order."""
        members = (member for name in quotas for member in self._cache.members(name) if member.assigned and member.pod.priority < below)
        slots = {cluster.slot_of_pod(member.pod.uid) for member in members}
        return sorted(slot for slot in slots if slot >= 0 and cluster.alive[slot])

    def _could_admit(self, pending: Sequence[PodInfo], quotas: Mapping[str, Quota], may_go: Callable[[PodInfo], bool]) -> bool:
        """Whether the quotas would have room for all members if all who may go went; a what-if would tell no more."""
        for quota in quotas.values():
            left = dict(quota.used)
            for member in self._cache.members(quota.name):
                if member.assigned and may_go(member.pod):
                    sub_into(left, member.amount)
            for pod in pending:
                if self.quota_of(pod) is quota:
                    add_into(left, self._cache.amount(pod, quota))
            if exceeded(left, limit_of(quota, runtime=self._quota_args.enable_runtime_quota)):
                return False
        return True

    def _admits(self, pending: Sequence[PodInfo], quotas: Mapping[str, Quota]) -> bool:
        """Whether the quotas hold all members, who are on nodes in the what-if."""
        runtime = self._quota_args.enable_runtime_quota
        for quota in quotas.values():
            if exceeded(quota.used, limit_of(quota, runtime=runtime)):
                return False
            mine = [pod for pod in pending if self.quota_of(pod) is quota]
            if not all(is_preemptible(pod) for pod in mine) and exceeded(quota.non_preemptible_used, quota.spec.min):
                return False
            if self._quota_args.enable_check_parent_quota:
                asked = {name for pod in mine for name in self._cache.amount(pod, quota)}
                for ancestor in (above for above in quota.path()[1:] if above.name != ROOT):
                    if exceeded({name: ancestor.used.get(name, 0) for name in asked}, limit_of(ancestor, runtime=runtime)):
                        return False
        return True

    def _not_eligible(self, ctx: CycleContext, failure: FitFailure) -> str:
        reason = super()._not_eligible(ctx, failure)
        quota, slot = self.quota_of(ctx.pod), self.nominated_slot(ctx, failure)
        if reason or quota is None or slot < 0:
            return reason
        for other in ctx.cluster.row(slot).pods.values():
            member = self._cache.member(other.uid)
            if other.deleting and other.priority < ctx.pod.priority and member is not None and member.quota is quota:
                return "not eligible due to a terminating pod of the quota on the nominated node."
        return ""
