"""What Coscheduling answers when a pod found no node (SCH-JP-01, scheduler-job.md 12): room for the whole job, or nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from koord.api import names
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import PostFilterResult
from roles.scheduler.framework.status import SUCCESS, unresolvable, unschedulable
from roles.scheduler.plugins.coscheduling.book import WAITING, Gang, GangBook
from roles.scheduler.plugins.coscheduling.placement import PLUGIN, Placement, rank_of
from roles.scheduler.plugins.coscheduling.preemption import JobPlan, JobPreemption, preemptible
from roles.scheduler.plugins.coscheduling.round import Round
from roles.scheduler.plugins.default_preemption import DefaultPreemption, was_preempted

_PROBED = 500  # members that are looked at to tell how many would fit


class Jobs:
    """Decides on preemption for jobs. `enabled` is the argument enablePreemption; without it a pod of a gang may be helped by another
    plugin only where the whole gang could be."""

    def __init__(self, handle: Handle, book: GangBook, placement: Placement, budgets: DefaultPreemption, *, enabled: bool) -> None:
        self._handle = handle
        self._book = book
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

    def answer(self, ctx: CycleContext, failure: FitFailure, gang: Gang | None) -> PostFilterResult:
        """For a pod by itself when `gang` is None, else for its gang group. A no ends the chain: every pod that may go was looked at, and
        no other plugin is to evict for a part of the job or whom a budget protects."""
        current = self._book.round if gang is not None else None
        planned = failure.pre_filter is not None and failure.pre_filter.plugin == PLUGIN and gang is not None and gang.group.unplanned
        if current is not None and current.batch:
            size = len(current.plan or ())
            return PostFilterResult(unresolvable(f"batch of {size} pods is rolled back: {ctx.pod.key} does not fit where it was planned"))
        if failure.pre_filter is not None and not planned:
            return PostFilterResult(unschedulable())  # no node was the trouble: removing pods from one helps nobody
        pods = sorted(self._book.ready(gang), key=rank_of) if gang is not None else [ctx.pod]
        if not self._enabled:
            return self._guard(pods, gang, planned=planned)
        if current is not None:
            if current.preempted_for:
                return PostFilterResult(unresolvable(f"preemption for the job was already attempted by {current.preempted_for}"))
            current.preempted_for = ctx.pod.key
        if not pods:
            return PostFilterResult(unresolvable("preemption: the job has no pending pods"))
        refusal = self._not_eligible(ctx, failure, pods)
        if refusal:
            return PostFilterResult(unresolvable(f"preemption: {refusal}"))
        started = time.perf_counter()
        plan = self._plan(pods, gang, planned=planned)
        done = not plan.refusal and bool(plan.victims)
        job = gang.group.id if gang is not None else ctx.pod.key
        self._book.metrics.preempted(job, "success" if done else "failure", time.perf_counter() - started)
        return self._success(ctx, plan, pods, current) if done else self._failure(plan, ctx.pod, pods)

    def _guard(self, pods: Sequence[PodInfo], gang: Gang | None, *, planned: bool) -> PostFilterResult:
        """Nobody is to be evicted for a part of a gang."""
        if gang is None or len(pods) + len(self._book.members(gang, WAITING)) < 2:
            return PostFilterResult(unschedulable())
        if not any(post.name != PLUGIN for post in self._handle.frameworks[pods[0].shape.scheduler_name].post_filters):
            return PostFilterResult(unschedulable())
        plan = self._plan(pods, gang, planned=planned)
        if plan.refusal:
            return PostFilterResult(unresolvable(f"preemption: not for a part of gang group {gang.group.id}: {plan.refusal}"))
        return PostFilterResult(unschedulable())

    def best(self, gang: Gang, failed: PodInfo, current: Round) -> int:
        """How many members that were not tried would find nodes beside those that have one; pods like the one that failed would not."""
        others = [p for p in self._book.ready(gang) if p.uid not in current.attempted and p.shape is not failed.shape][:_PROBED]
        if not others:
            return 0
        with self._handle.state.suppose() as supposed:
            return len(self.preemption.as_is(others, supposed)[0])

    # ---------------------------------------------------------------- deciding

    def _not_eligible(self, ctx: CycleContext, failure: FitFailure, pods: Sequence[PodInfo]) -> str:
        """Why the job may not preempt now, "" when it may."""
        pod = ctx.pod
        if pod.shape.preemption_policy == names.PREEMPTION_POLICY_NEVER:
            return "not eligible due to preemptionPolicy=Never."
        nominations, cluster = ctx.state.nominations, ctx.cluster
        open_slots: frozenset[int] | None = None
        for member in {pod.uid: pod, **{other.uid: other for other in pods}}.values():
            node = nominations.node_of(member.uid)
            slot = cluster.slot_of(node) if node else -1
            if slot < 0 or not cluster.alive[slot]:
                continue
            if member.uid == pod.uid:
                open_slots = open_slots if open_slots is not None else frozenset(failure.resolvable())
                if slot not in open_slots:
                    continue  # that node is of no use any more
            for other in cluster.row(slot).pods.values():
                if other.deleting and preemptible(other, member.priority) and was_preempted(other):
                    return f"pod {other.key}, preempted for {member.key} on node {node}, is still terminating."
        return ""

    def _plan(self, pods: Sequence[PodInfo], gang: Gang | None, *, planned: bool) -> JobPlan:
        if not planned:
            current = self._book.round
            if current is not None and gang is not None and current.plan is not None:
                return JobPlan(refusal="the plan of the job's place in the network became invalid")
            return self.preemption.plan(pods)
        assert gang is not None
        return self._plan_in_network(pods, gang)

    def _plan_in_network(self, pods: Sequence[PodInfo], gang: Gang) -> JobPlan:
        """As for others, with the members laid out along the network tree on the nodes without the victims."""
        tree = self._placement.network.tree()
        if tree is None:
            return JobPlan(refusal="there is no cluster network topology")
        state, cluster = self._handle.state, self._handle.state.cluster
        below = min(pod.priority for pod in pods)
        with state.suppose() as supposed:
            slots = np.flatnonzero(cluster.alive).tolist()
            victims = self.preemption.victims_on(slots, below, self.preemption.protected(slots, below))
            for others in victims.values():
                for pod in others:
                    supposed.remove(pod.uid)
            layout, first = self._placement.layout(tree, gang, pods, cluster.alive)
            if not layout.counts:
                return JobPlan(refusal=f"no place in the network even without the victims: {first.failure().message()}")
            placed: dict[int, list[PodInfo]] = {}
            rest = list(pods)
            for name, count in layout.counts:
                slot = cluster.slot_of(name)
                placed[slot], rest = rest[:count], rest[count:]
                for pod in placed[slot]:
                    supposed.add(pod, slot)
            plan = self.preemption.settle(placed, victims, supposed)
        violating, _ = self._budgets.split_by_budget(list(plan.victims))
        return JobPlan(refusal="the victims would break disruption budgets") if violating else plan

    # ---------------------------------------------------------------- answering

    def _success(self, ctx: CycleContext, plan: JobPlan, pods: Sequence[PodInfo], current: Round | None) -> PostFilterResult:
        others = tuple((pod, plan.nodes[pod.uid]) for pod in pods if pod.uid != ctx.pod.uid)
        if current is not None:
            current.preempted = True
        return PostFilterResult(SUCCESS, plan.nodes[ctx.pod.uid], plan.victims, others=others)

    def _failure(self, plan: JobPlan, pod: PodInfo, pods: Sequence[PodInfo]) -> PostFilterResult:
        """Nobody is evicted; nominations of before are of no use any more."""
        node_of = self._handle.state.nominations.node_of
        others = tuple((other, "") for other in pods if other.uid != pod.uid and (node_of(other.uid) or other.nominated))
        text = plan.refusal or "nobody has to go, but the pod found no node"
        return PostFilterResult(unresolvable(f"preemption: {text}"), "", others=others)
