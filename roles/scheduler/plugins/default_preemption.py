"""DefaultPreemption: which lower-priority pods would have to go so that a pod fits (SCH-KS-12). Decides only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from koord.api import names
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.config.args import DefaultPreemptionArgs
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import ASSIGNED_POD, Action, Subscription
from roles.scheduler.framework.gangs import Rule, VictimGroup, VictimGroups
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Feed, PostFilter
from roles.scheduler.framework.status import SUCCESS, Candidate, PostFilterResult, Status, unschedulable
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.budgets import DisruptionBudgets
from roles.scheduler.plugins.lockstep import Lockstep
from roles.scheduler.plugins.preemption_cost import Lacking, PreemptionCost, Shortfall, cost_of, importance, lacking_of

_TOGETHER = 100  # nodes judged in one step
_NOT_HELPFUL = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"
_PREEMPTED = "PreemptionByScheduler"


class DefaultPreemption(PostFilter):
    """Tries nodes from a random offset on until enough candidates are found, then picks the one that hurts least."""

    name = "DefaultPreemption"
    for_reservations: ClassVar[bool] = False  # whether room is made for reserve pods too
    Args = DefaultPreemptionArgs

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.budgets = DisruptionBudgets(handle)

    def feeds(self) -> Sequence[Feed]:
        return self.budgets.feeds()

    def subscriptions(self) -> Sequence[Subscription]:
        return (Subscription(ASSIGNED_POD, Action.DELETE),)

    # ---------------------------------------------------------------- deciding

    def post_filter(self, ctx: CycleContext, failure: FitFailure) -> PostFilterResult | Steps[PostFilterResult]:
        if ctx.pod.reservation and not self.for_reservations:
            return PostFilterResult(unschedulable())
        members = ctx.state.gangs.pending_members(ctx.pod)
        if members:
            rule = self.for_gang(ctx, failure, members)
            return ctx.state.gangs.make_room(ctx, failure, rule) if rule is not None else PostFilterResult(unschedulable())
        refusal = self._not_eligible(ctx, failure)
        return PostFilterResult(_message(refusal)) if refusal else self._for_one(ctx, failure)

    def _for_one(self, ctx: CycleContext, failure: FitFailure) -> Steps[PostFilterResult]:
        slots = self.slots(ctx, failure)
        total = ctx.cluster.live
        reasons: Counter[str] = Counter()
        if total > len(slots):
            reasons[_NOT_HELPFUL] = total - len(slots)
        candidates = yield from self._candidates(ctx, failure, slots, reasons)
        if not candidates:
            # The nomination, if there is one, is of no use any more; where no node was the trouble it is while somebody leaves for it.
            kept = failure.pre_filter is not None and ctx.state.evictions.leaving_for(ctx.pod.uid)
            items = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
            return PostFilterResult(_message(f"0/{total} nodes are available: {items}."), None if kept else "")
        best = candidates[0]
        return PostFilterResult(SUCCESS, best.node, best.victims, tuple(candidates) if self.handle.all_candidates else (best,))

    def for_gang(self, ctx: CycleContext, failure: FitFailure, members: Sequence[PodInfo]) -> Rule | None:
        """On which terms room is made for pods that are placed together; None when removing pods helps none of them."""
        if failure.pre_filter is not None:
            return None
        below = min(pod.priority for pod in members)
        return Rule(self.name, lambda pod: pod.priority < below and not pod.reservation and self.removable(ctx, pod))

    def slots(self, ctx: CycleContext, failure: FitFailure) -> list[int]:
        """Nodes on which removing pods may help."""
        return failure.resolvable()

    def removable(self, ctx: CycleContext, pod: PodInfo) -> bool:
        """Whether a pod of lower priority may be a victim. One that was asked and should be gone by now frees nothing."""
        return pod.shape.labels.get(names.LABEL_POD_DISABLE_PREEMPTIBLE) != "true" and not ctx.state.evictions.overdue(pod.uid)

    def obstacles(self, ctx: CycleContext, failure: FitFailure, slot: int) -> tuple[str, ...]:
        """Why the pod does not fit even without all the victims."""
        refusal = failure.evaluation.check_row(ctx, slot)
        return refusal[1].reasons if refusal is not None else ()

    def fits(self, ctx: CycleContext, failure: FitFailure, slot: int) -> bool:
        """Whether the pod fits with some of the victims back."""
        return failure.fits(slot)

    def _not_eligible(self, ctx: CycleContext, failure: FitFailure) -> str:
        """Why the pod may not preempt now, "" when it may."""
        if ctx.pod.shape.preemption_policy == names.PREEMPTION_POLICY_NEVER:
            return "not eligible due to preemptionPolicy=Never."
        evictions = ctx.state.evictions
        if evictions.awaited(ctx.pod.uid):
            return "not eligible due to terminating pods that make room for it."
        slot = self.nominated_slot(ctx, failure)
        for other in ctx.cluster.row(slot).pods.values() if slot >= 0 else ():
            if other.priority < ctx.pod.priority and other.deleting and was_preempted(other) and not evictions.overdue(other.uid):
                return "not eligible due to a terminating pod on the nominated node."
        held = slot >= 0 and evictions.unreleased(slot, ctx.now)
        return "not eligible due to claims on the nominated node that are being given back." if held else ""

    def nominated_slot(self, ctx: CycleContext, failure: FitFailure) -> int:
        """The node that the pod is nominated to; -1 for none, and for one that is of no use any more, whoever leaves it."""
        nominated = ctx.state.nominations.node_of(ctx.pod.uid)
        slot = ctx.cluster.slot_of(nominated) if nominated else -1
        if slot < 0 or not ctx.cluster.alive[slot]:
            return -1
        return slot if failure.pre_filter is not None or slot in failure.resolvable() else -1

    def _candidates(self, ctx: CycleContext, failure: FitFailure, slots: Sequence[int], reasons: Counter[str]) -> Steps[list[Candidate]]:
        if not slots:
            return []
        kept = yield from self._kept_node(ctx, failure, slots)
        if kept:
            return kept
        wanted = max(ctx.cluster.live * self.args.min_candidate_nodes_percentage // 100, self.args.min_candidate_nodes_absolute)
        offset = ctx.state.random.randrange(len(slots))
        return (yield from self._search(ctx, failure, (*slots[offset:], *slots[:offset]), reasons, wanted))

    def _kept_node(self, ctx: CycleContext, failure: FitFailure, slots: Sequence[int]) -> Steps[list[Candidate]]:
        """The nominated node once pods leave it for this one: room is made there and nowhere else as long as that can be done."""
        slot = self.nominated_slot(ctx, failure)
        if slot not in slots or not ctx.state.evictions.begun(ctx.pod.uid):
            return []
        return (yield from self._search(ctx, failure, (slot,), Counter(), 1))

    def _search(
        self, ctx: CycleContext, failure: FitFailure, slots: Sequence[int], reasons: Counter[str], wanted: int
    ) -> Steps[list[Candidate]]:  # fmt: skip
        """Candidates among so many nodes that have victims, and among more as long as each breaks a disruption budget, what hurts least
        first. Where filters add up nodes are judged together. Others are tried one by one, but for those that cannot beat the best one
        found so far, unless somebody else is to choose among all."""
        priority, lockstep = ctx.pod.priority, self.lockstep(ctx, failure)
        victim_groups = VictimGroups(
            ctx.state.gangs, lambda pod: pod.priority < priority and self.removable(ctx, pod), importance, ctx.state.leaving
        )  # fmt: skip
        lacking = lacking_of(failure.evaluation, ctx)
        found: list[tuple[PreemptionCost, int, Candidate]] = []
        looked, harmless = 0, False
        for begin in range(0, len(slots), _TOGETHER):
            chunk = slots[begin : begin + _TOGETHER]
            judged = self._judge(ctx, lockstep, chunk, reasons) if lockstep is not None else {}
            for slot in chunk:
                best = found[0][0] if found and not self.handle.all_candidates else None
                answer: Candidate | bool | None
                if slot in judged:
                    answer = judged[slot]
                else:
                    yield
                    answer = self._tried(ctx, failure, slot, victim_groups, lacking, reasons, best)
                if answer is None:
                    continue
                looked += 1
                if isinstance(answer, Candidate):
                    entry = (cost_of(answer), looked, answer)
                    harmless = harmless or not entry[0][0]
                    if best is None:
                        found.append(entry)
                    elif entry < found[0]:
                        found = [entry]
                if looked >= wanted and harmless:
                    return [candidate for _, _, candidate in sorted(found)]
            yield
        return [candidate for _, _, candidate in sorted(found)]

    # ---------------------------------------------------------------- many nodes at once

    def lockstep(self, ctx: CycleContext, failure: FitFailure) -> Lockstep | None:
        """How nodes are judged together; None where each has to be tried."""
        return Lockstep.of(ctx, failure.evaluation)

    def _judge(
        self, ctx: CycleContext, lockstep: Lockstep, slots: Sequence[int], reasons: Counter[str]
    ) -> dict[int, Candidate | None]:  # fmt: skip
        """Candidates by slot, None where there is none. Nodes are left out where more than sums matters: those with reservations, with
        pods nominated to them, or with pods of jobs."""
        state, cluster, priority = ctx.state, ctx.cluster, ctx.pod.priority
        at = np.array(slots, dtype=np.intp)
        judged: dict[int, Candidate | None] = {}
        open_slots: list[int] = []
        removals: list[_Removal] = []
        for slot in at[lockstep.knows(at)].tolist():
            row = cluster.row(slot)
            if state.holdings.on(slot) or (state.nominations.any_on(row.name) and state.nominations.ahead_of(ctx.pod, row.name)):
                continue
            pods = [p for p in row.pods.values() if p.shape.priority < priority and not p.reservation and self.removable(ctx, p)]
            if not pods:
                judged[slot] = None
                reasons[_NO_VICTIMS] += 1
                continue
            leaving = frozenset(pod.uid for pod in pods if state.leaving(pod))
            if any(state.gangs.of(pod) and pod.uid not in leaving for pod in pods):
                continue
            pods.sort(key=importance)
            open_slots.append(slot)
            removals.append(self._removal(pods, leaving))
        outcome = lockstep.judge(np.array(open_slots, dtype=np.intp), [removal.order for removal in removals])
        reasons.update(outcome.refusals)
        for slot, removal, gone in zip(open_slots, removals, outcome.gone, strict=True):
            judged[slot] = removal.candidate(cluster.name_of(slot), gone) if gone is not None else None
        return judged

    def _removal(self, pods: list[PodInfo], leaving: frozenset[str]) -> _Removal:
        """Pods, given the most important first: those that leave anyway go first, whom a budget protects last."""
        if not leaving and not self.budgets:
            return _Removal(pods[::-1], leaving, leaving, mixed=False)
        others = [pod for pod in pods if pod.uid not in leaving]
        violating = self.budgets.violating(others)
        back = [pod for pod in others if pod.uid in violating] + [pod for pod in others if pod.uid not in violating]
        back += [pod for pod in pods if pod.uid in leaving]  # they go in any case: first of all, and they are the last to come back
        return _Removal(back[::-1], leaving, violating, mixed=True)

    # ---------------------------------------------------------------- one node

    def _tried(
        self, ctx: CycleContext, failure: FitFailure, slot: int, victim_groups: VictimGroups, lacking: Lacking, reasons: Counter[str],
        best: PreemptionCost | None,
    ) -> Candidate | bool | None:  # fmt: skip
        """The candidate on a node, None for none; True for one that could not beat the best one."""
        pods = (pod for pod in ctx.cluster.row(slot).pods.values() if not pod.reservation)  # what is reserved stays reserved
        groups = victim_groups.groups(pod for pod in pods if victim_groups.may_go(pod))
        if not groups:
            reasons[_NO_VICTIMS] += 1
            return None
        shortfall = Shortfall(ctx.cluster, slot, groups, lacking)
        some_leave = any(ctx.state.leaving(pod) for group in groups for pod in group.pods)
        if best is not None and not some_leave and shortfall.hopeless(best):
            return True
        return self._try(ctx, failure, slot, shortfall, reasons)

    def _try(self, ctx: CycleContext, failure: FitFailure, slot: int, shortfall: Shortfall, reasons: Counter[str]) -> Candidate | None:
        """The least important go one after another until the pod fits; of those, who can comes back, the important ones first.

        What is left is what taking all away and giving back one after another would leave, where taking away never hurts.
        """
        cluster, name = ctx.cluster, ctx.cluster.name_of(slot)
        touched = {group: self.touched(cluster, slot, group) for group in shortfall.groups}
        free = [group for group in shortfall.groups if all(ctx.state.leaving(pod) for pod in group.pods)]
        order, violating = self.budgets.ordered([group for group in shortfall.groups if group not in free] if free else shortfall.groups)
        order += free  # they go in any case: first of all, and they are the last to come back
        with ctx.state.suppose() as supposed:
            for other in ctx.state.nominations.ahead_of(ctx.pod, name):
                if cluster.slot_of_pod(other.uid) < 0:
                    supposed.add(other, slot)
            away: list[VictimGroup] = []
            enough = False
            while order and not enough:
                away.append(order.pop())
                for pod, _ in touched[away[-1]]:
                    supposed.remove(pod.uid)
                enough = shortfall.met() and self.fits(ctx, failure, slot)
            if not enough:
                reasons.update(self.obstacles(ctx, failure, slot))
                return None
            gone = {away[-1]: None}  # with this one back the pod did not fit
            for group in reversed(away[:-1]):
                if group.minimum not in gone:
                    for pod, where in touched[group]:
                        supposed.add(pod, where)
                    if shortfall.met() and self.fits(ctx, failure, slot):
                        continue
                    for pod, _ in touched[group]:
                        supposed.remove(pod.uid)
                gone[group] = None
        victims = sorted((pod for group in gone for pod in group.pods), key=importance)
        leaving = frozenset(pod.uid for pod in victims if ctx.state.leaving(pod))
        return Candidate(name, tuple(victims), sum(pod.uid in violating for pod in victims), leaving)

    def touched(self, cluster: Cluster, slot: int, group: VictimGroup) -> list[tuple[PodInfo, int]]:
        """Pods of a group that the what-if about a node takes away, with their slots. Those on other nodes are in nobody's way."""
        if group.size == 1:
            return [(group.pods[0], slot)]
        return [(pod, slot) for pod in group.pods if cluster.slot_of_pod(pod.uid) == slot]


def _message(text: str) -> Status:
    return unschedulable(f"preemption: {text}")


class _Removal(NamedTuple):
    """Pods of a node that may go, in the order in which they do, unless that is `mixed` the least important first; UIDs of those that leave
    anyway, and of those whose leaving breaks budgets."""

    order: list[PodInfo]
    leaving: frozenset[str]
    violating: frozenset[str]
    mixed: bool

    def candidate(self, node: str, gone: Sequence[int]) -> Candidate:
        """The node with those victims."""
        victims = [self.order[index] for index in reversed(gone)]
        if not self.mixed:
            return Candidate(node, tuple(victims), 0)
        victims.sort(key=importance)
        leaving = self.leaving.intersection(pod.uid for pod in victims)
        return Candidate(node, tuple(victims), sum(pod.uid in self.violating for pod in victims), leaving)


def was_preempted(pod: PodInfo) -> bool:
    """Whether the scheduler is removing the pod to make room."""
    return any(c.type == "DisruptionTarget" and c.status == "True" and c.reason == _PREEMPTED for c in pod.pod.status.conditions)
