"""What is answered when a pod of a job found no node (SCH-JP-01): room for the whole job, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from koord import seams
from koord.api import names
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.gangs import Rule
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.status import (
    JOB_PREEMPTION_FAILURE,
    JOB_PREEMPTION_SUCCESS,
    SUCCESS,
    PostFilterResult,
    Status,
    unresolvable,
    unschedulable,
)
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.budgets import DisruptionBudgets
from roles.scheduler.plugins.coscheduling.cache import WAITING, Gang, GangCache, Round
from roles.scheduler.plugins.coscheduling.placement import PLUGIN, Placement, rank_of
from roles.scheduler.plugins.coscheduling.preemption import JobPlan, JobPreemption, job_rule, supposing
from roles.scheduler.plugins.coscheduling.rounds import drafted
from roles.scheduler.plugins.default_preemption import was_preempted

_SAID = "preemption: "
_PROBED = 500  # members that are looked at to tell how many would fit


class Jobs:
    """Decides on preemption for jobs. `enabled` is the argument enablePreemption; without it other plugins may make room on their terms,
    for the whole gang group too."""

    def __init__(self, handle: Handle, cache: GangCache, placement: Placement, budgets: DisruptionBudgets, *, enabled: bool) -> None:
        self._handle = handle
        self._cache = cache
        self._placement = placement
        self._budgets = budgets
        self._enabled = enabled
        self._preemption: JobPreemption | None = None

    @property
    def preemption(self) -> JobPreemption:
        """The planner of room."""
        if self._preemption is None:
            self._preemption = JobPreemption(self._placement.cycle, self._handle.state, self._budgets, PLUGIN)
        return self._preemption

    def pending(self, gang: Gang) -> Sequence[PodInfo]:
        """Members of the group that have to find room together, in order of rank; () when there is but one of them."""
        pods = self._cache.ready(gang)
        return sorted(pods, key=rank_of) if len(pods) + len(self._cache.members(gang, WAITING)) > 1 else ()

    def answer(self, ctx: CycleContext, failure: FitFailure, gang: Gang | None) -> Steps[PostFilterResult]:
        """For a pod by itself when `gang` is None, else for its gang group. A no ends the chain: every pod that may go was looked at, and
        no other plugin is to evict for a part of the job or whom a budget protects."""
        current = drafted(ctx) if gang is not None else None
        planned = failure.pre_filter is not None and failure.pre_filter.plugin == PLUGIN and current is not None and bool(current.unplanned)
        if current is not None and current.batch:
            size = len(current.plan or ())
            return PostFilterResult(unresolvable(f"batch of {size} pods is rolled back: {ctx.pod.key} does not fit where it was planned"))
        if failure.pre_filter is not None and not planned:
            # no node was the trouble: removing pods from one helps nobody
            if gang is None:
                return PostFilterResult(unschedulable(), _given_up(ctx))
            if failure.pre_filter.plugin == PLUGIN or current is None or current.failure:
                return PostFilterResult(unschedulable())
            pods = self._cache.ready(gang)
            if any(ctx.state.evictions.leaving_for(pod.uid) for pod in (*pods, *self._cache.members(gang, WAITING))):
                return PostFilterResult(unschedulable())
            return self._give_up(unschedulable(), ctx.pod, pods, current)
        pods = sorted(self._cache.ready(gang), key=rank_of) if gang is not None else [ctx.pod]
        if not self._enabled or all(pod.reservation for pod in pods or [ctx.pod]):
            return PostFilterResult(unschedulable())  # whether Reservations displace anybody is an argument of their own plugin
        priority = gang.spec.priority if gang is not None and gang.spec is not None else None
        rule = job_rule(PLUGIN, pods or [ctx.pod], priority, self._cache.priority_of)
        refusal, plan = yield from self._decide(ctx, failure, pods, gang, rule)
        if plan is None:
            return PostFilterResult(unresolvable(refusal))
        return self._give_up(unresolvable(refusal), ctx.pod, pods, current) if refusal else self._success(ctx, plan, pods, rule, current)

    def on_terms_of(self, ctx: CycleContext, failure: FitFailure, rule: Rule) -> Steps[PostFilterResult]:
        """For a pod of a gang group, by another plugin's rule: enough for the whole group, or nobody goes."""
        gang, current = self._cache.gang_of(ctx.pod), drafted(ctx)
        if gang is None or (current is not None and current.batch):
            return PostFilterResult(unschedulable())
        pods = self.pending(gang)
        refusal, plan = yield from self._decide(ctx, failure, pods, gang, rule)
        if refusal:
            return PostFilterResult(unschedulable(f"preemption: not for a part of gang group {gang.group.id}: {refusal[len(_SAID) :]}"))
        assert plan is not None
        return self._success(ctx, plan, pods, rule, current)

    def _decide(
        self, ctx: CycleContext, failure: FitFailure, pods: Sequence[PodInfo], gang: Gang | None, rule: Rule
    ) -> Steps[tuple[str, JobPlan | None]]:
        """Why nobody goes ("" when somebody does), and the plan if one was made."""
        current = drafted(ctx) if gang is not None else None
        if current is not None:
            if current.rejector == JOB_PREEMPTION_SUCCESS or rule.plugin in current.room_for:
                before = current.room_for.get(rule.plugin) or next(iter(current.room_for.values()), "")
                return f"{_SAID}preemption for the job was already attempted by {before}", None
            current.room_for = {**current.room_for, rule.plugin: ctx.pod.key}
        if not pods:
            return f"{_SAID}the job has no pending pods", None
        refusal = yield from self._not_eligible(ctx, failure, pods, rule)
        if refusal:
            return f"{_SAID}{refusal}", None
        started = seams.perf_counter()
        plan = yield from self._plan(pods, gang, rule, current)
        done = not plan.refusal and bool(plan.victims or plan.awaited)
        job = gang.group.id if gang is not None else ctx.pod.key
        took = seams.perf_counter() - started
        ctx.effects.append(lambda: self._cache.metrics.preempted(job, "success" if done else "failure", took))
        return "" if done else f"{_SAID}{plan.refusal or 'no pod has to leave, but the pod found no node'}", plan

    def best(self, gang: Gang, failed: PodInfo, current: Round) -> Steps[int]:
        """How many members that were not tried would find nodes beside those that have one; pods like the one that failed would not."""
        others = [p for p in self._cache.ready(gang) if p.uid not in current.attempted and p.shape is not failed.shape][:_PROBED]
        if not others:
            return 0
        found, _ = yield from supposing(self._handle.state, partial(self.preemption.as_is, others))
        return len(found)

    # ---------------------------------------------------------------- deciding

    def _not_eligible(self, ctx: CycleContext, failure: FitFailure, pods: Sequence[PodInfo], rule: Rule) -> Steps[str]:
        """Why the job may not preempt now, "" when it may."""
        pod = ctx.pod
        if pod.shape.preemption_policy == names.PREEMPTION_POLICY_NEVER:
            return "not eligible due to preemptionPolicy=Never."
        nominations, cluster, evictions = ctx.state.nominations, ctx.cluster, ctx.state.evictions
        open_slots: frozenset[int] | None = None
        for member in {pod.uid: pod, **{other.uid: other for other in pods}}.values():
            yield
            if evictions.awaited(member.uid):
                return f"pods that make room for {member.key} are still terminating."
            node = nominations.node_of(member.uid)
            slot = cluster.slot_of(node) if node else -1
            if slot < 0 or not cluster.alive[slot]:
                continue
            if member.uid == pod.uid and rule.slots is None:
                open_slots = open_slots if open_slots is not None else frozenset(failure.resolvable())
                if slot not in open_slots:
                    continue  # that node is of no use any more
            if evictions.unreleased(slot, ctx.now):
                return f"claims on node {node}, where room was made for {member.key}, are being given back."
            for other in cluster.row(slot).pods.values():
                if other.deleting and rule.may_go(other) and was_preempted(other) and not evictions.overdue(other.uid):
                    return f"pod {other.key}, preempted for {member.key} on node {node}, is still terminating."
        return self._leaving(rule)

    def _leaving(self, rule: Rule) -> str:
        """Where victims help wherever the members go, those that are on their way out are waited for."""
        cluster, state = self._handle.state.cluster, self._handle.state
        for slot in rule.slots or ():
            for other in cluster.row(slot).pods.values():
                if rule.may_go(other) and state.leaving(other) and (was_preempted(other) or not other.deleting):
                    return f"pod {other.key}, preempted on node {cluster.name_of(slot)}, is still terminating."
        return ""

    def _plan(self, pods: Sequence[PodInfo], gang: Gang | None, rule: Rule, current: Round | None) -> Steps[JobPlan]:
        if current is not None and current.plan is not None:
            return JobPlan(refusal="the plan of the job's place in the network became invalid")
        if gang is not None and self._placement.gathers(gang):
            return (yield from self.preemption.within_budgets(lambda protected: self._plan_in_network(pods, gang, rule, protected)))
        return (yield from self.preemption.planning(pods, rule))

    def _plan_in_network(self, pods: Sequence[PodInfo], gang: Gang, rule: Rule, protected: set[str]) -> Steps[JobPlan]:
        """As for others, with the members laid out along the network tree on the nodes without the victims."""
        tree = self._placement.tree_of(gang)
        if tree is None:
            return JobPlan(refusal="there is no cluster network topology")
        state, cluster = self._handle.state, self._handle.state.cluster
        slots = rule.slots if rule.slots is not None else np.flatnonzero(cluster.alive).tolist()
        with state.suppose() as supposed:
            leaving = yield from self.preemption.without_leaving(rule, supposed)
            groups = yield from self.preemption.groups_on(slots, rule, protected)
            where = yield from self.preemption.take_away(groups, supposed)
            layout, found = yield from self._placement.layout(tree, gang, pods, cluster.alive)
            if not layout.counts:
                yield from supposed.undo()
                return JobPlan(refusal=f"no place in the network even without the victims: {found.first.failure().message()}")
            placed: dict[int, list[PodInfo]] = {}
            rest = list(pods)
            for name, count in layout.counts:
                slot = cluster.slot_of(name)
                placed[slot], rest = rest[:count], rest[count:]
                for pod in placed[slot]:
                    supposed.add(pod, slot)
            plan = yield from self.preemption.settle(placed, groups, where, rule, supposed)
            plan.awaited = self.preemption.awaited(plan.nodes, leaving)
            yield from supposed.undo()
            return plan

    # ---------------------------------------------------------------- answering

    def _success(self, ctx: CycleContext, plan: JobPlan, pods: Sequence[PodInfo], rule: Rule, current: Round | None) -> PostFilterResult:
        others = tuple((pod, plan.nodes[pod.uid]) for pod in pods if pod.uid != ctx.pod.uid)
        if current is not None:
            current.rejector = JOB_PREEMPTION_SUCCESS
        return PostFilterResult(
            SUCCESS, plan.nodes[ctx.pod.uid], (*plan.victims, *plan.awaited), others=others,
            recheck=lambda changed: self.preemption.recheck(plan, pods, rule, changed),
        )  # fmt: skip

    def _give_up(self, status: Status, pod: PodInfo, pods: Iterable[PodInfo], current: Round | None) -> PostFilterResult:
        """The job is not placed now and nobody leaves for it: room that was made for it before is free for others."""
        node_of = self._handle.state.nominations.node_of
        if current is not None:
            current.rejector = JOB_PREEMPTION_FAILURE
        others = tuple((other, "") for other in pods if other.uid != pod.uid and (node_of(other.uid) or other.nominated))
        return PostFilterResult(status, "", others=others)


def _given_up(ctx: CycleContext) -> str | None:
    """What becomes of the nomination of a pod that no node would take: others may have that room, once nobody leaves for its sake."""
    state, uid = ctx.state, ctx.pod.uid
    return "" if state.nominations.node_of(uid) and not state.evictions.leaving_for(uid) else None
