"""Carrying a gang group through its try: who is next, what a failure means for the others, letting them go (SCH-GANG-06, 07, 10).

One group is tried at a time, its pods back to back. Nobody of a strict group keeps a place once a member found none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koord.decisions.record import Record, Subject, Term
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.status import JOB_REJECT, PostFilterResult
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.coscheduling.cache import BOUND, PENDING, RELEASED, WAITING, Gang, GangCache, Round, unnamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PLUGIN = "Coscheduling"
FEATURES = ("SCH-GANG-06", "SCH-GANG-07")
_CROWD = 100
_FEW = 32  # members that are told something at once
_CROWD_REST = 30.0  # seconds before so many members that were not tried are told again
_PLACES = 10  # places in the network whose offer a record tells
_EXPLAINED = 200  # members that get a decision record of their own when their group fails

DRAFT = "Coscheduling"
"""Key in `CycleContext.drafts`."""


def drafted(ctx: CycleContext) -> Round | None:
    """The round as a decision would leave it, None for a pod that is in none."""
    found: Round | None = ctx.drafts.get(DRAFT)
    return found


class Rounds:
    """Moves the cache's `round` on. `handle.waiting` holds the pods that have a place and wait for the others.

    One for each profile; the first profile's is asked for the next pod, and tells what members of all of them have to be told."""

    def __init__(self, handle: Handle, cache: GangCache, best: Callable[[Gang, PodInfo, Round], Steps[int]]) -> None:
        self._handle = handle
        self._best = best  # how many members beyond the one that failed would find nodes
        self._cache = cache

    def lost_binding(self, gang: Gang, pod: PodInfo) -> None:
        """A pod of a batch was let go but not bound: it is tried again by itself, whatever refuses it."""
        self._cache.lost.append(pod)
        together = gang.group.binding.get(pod.uid, ())
        bound = sum(1 for other in self._cache.members(gang, BOUND) if other.uid in together)
        self._cache.metrics.batch_lost(bound=bound, first=not gang.group.partial)
        gang.group.partial = True

    # ---------------------------------------------------------------- who is next

    def draft(self, gang: Gang, ctx: CycleContext) -> None:
        """A pod of a group is being decided: it would begin a round, or be part of the one under way."""
        pod, before = ctx.pod, self._cache.round
        if before is not None and before.group == gang.group.id:
            draft = replace(before)  # what it shares decisions do not change: pods are tried when they are carried out
        else:
            draft = Round(gang.id, gang.group.id, pod.key, self._handle.state.now)
        ctx.drafts[DRAFT] = draft
        ctx.effects.append(lambda: self._take(gang, pod, before, draft))

    def _take(self, gang: Gang, pod: PodInfo, before: Round | None, draft: Round) -> None:
        """The decision is carried out: the round is what it drafted, unless the one of then has come to its end meanwhile."""
        current = self._cache.round
        if before is not None and before.group == draft.group and current is not before:
            return
        if current is not None and current.group != draft.group:
            self._end("interrupted")  # only when its pods could not be taken from the queue
        if before is None or before.group != draft.group:
            gang.group.representative = ""
            self._handle.audit(gang.group.id, "gangMinMemberSatisfied")
        if draft.unplanned is not None:
            gang.group.unplanned = draft.unplanned
        draft.attempted.add(pod.uid)
        self._cache.round = draft

    def next_pod(self) -> PodInfo | Steps[None] | None:
        """The next pod of the group under way; None when nothing is under way (any more). Before anybody else is tried, members that are
        let go or sent back are told."""
        if not self._cache.todo:
            found = self._next()
            if not self._cache.todo:
                return found
        return self._tell()

    def _tell(self) -> Steps[None]:
        while self._cache.todo:
            yield from self._cache.todo.popleft()

    def _next(self) -> PodInfo | None:
        if self._cache.lost:
            lost, self._cache.lost = self._cache.lost, []
            self._handle.activate([pod for pod in lost if self._cache.pod(pod.uid) is not None])
        current = self._cache.round
        if current is None:
            return None
        gang = self._cache.gangs.get(current.gang)
        if gang is None or gang.spec is None or gang.group.id != current.group:
            self._end("gang gone")
            if gang is not None:
                self._reject(gang, f"gang {gang.id} is no more", PLUGIN)
            return None
        if current.doomed is not None:
            self._end("failed")
            self._soon(self._tell_others(gang, current.doomed, current))
            self._reject(gang, current.failure, current.rejector)
            return None
        uid = current.next(lambda: self._cache.ready(gang))
        while uid:
            pod = self._cache.pod(uid)
            stage_gang = self._cache.gang_of(pod) if pod is not None else None
            if pod is not None and stage_gang is not None and stage_gang.stage_of(uid) is PENDING:
                return pod
            uid = current.next(lambda: self._cache.ready(gang))
        self._exhausted(gang, current)
        return None

    def _exhausted(self, gang: Gang, current: Round) -> None:
        """Every member was tried. Those of a strict group that still wait, wait for nobody."""
        self._handle.audit(current.group, "gangAllPodsAlreadyAttempted")
        waiting = self._cache.members(gang, WAITING)
        if waiting and any(other.spec is not None and other.spec.strict for other in self._cache.peers(gang)):
            needed = self._needed(gang)
            message = current.failure or f"gang group {current.group}: {len(waiting)} member(s) found nodes, {needed} are needed together"
            self._end("not enough members")
            self._reject(gang, message)
        else:
            self._end("attempted all" if not current.failure else "failed")
            if current.plan is not None and not current.failure:
                self._cache.wake(gang)  # who came after the plan was made is no part of it

    def _needed(self, gang: Gang) -> int:
        return sum(other.spec.min_number for other in self._cache.peers(gang) if other.spec is not None)

    def _end(self, reason: str) -> None:
        current = self._cache.round
        if current is not None:
            self._cache.round = None
            if current.batch:
                waiting = self._waiting_of(current) if current.failure else 0
                self._cache.metrics.batch_ended(self._handle.state.now - current.started, done=not current.failure, rolled_back=waiting)
            self._cache.metrics.round_ended(self._handle.state.now - current.started, len(current.attempted), reason)

    def _waiting_of(self, current: Round) -> int:
        gang = self._cache.gangs.get(current.gang)
        return len(self._cache.members(gang, WAITING)) if gang is not None else 0

    # ---------------------------------------------------------------- success

    def release(self, gang: Gang, pod: PodInfo | None = None) -> None:
        """Everybody who waits may go, `pod`, which is being permitted, among them. The round goes on where later members have to be placed
        together too."""
        released = self._cache.release(gang)
        gang.group.terms = ()
        gang.group.refused("")
        self._changed(gang)
        self._soon(self._allow([other for other in released if pod is None or other.uid != pod.uid]))
        current = self._cache.round
        tried = current is not None and current.group == gang.group.id
        if tried and all(other.spec is None or other.spec.once_satisfied for other in self._cache.peers(gang)):
            self._end("released")
        self._record(gang, "Released", f"{len(released)} members of gang group {gang.group.id} have nodes and are bound", ())

    def _soon(self, work: Steps[None]) -> None:
        """Tell members something: at once where they are few, else before the next pod is tried."""
        for _ in range(0 if self._cache.todo else _FEW):
            try:
                next(work)
            except StopIteration:
                return
        self._cache.todo.append(work)

    def _allow(self, pods: Sequence[PodInfo]) -> Steps[None]:
        if self._handle.waiting is not None:
            for pod in pods:
                self._handle.waiting.allow(pod.uid, PLUGIN)
                yield

    def bound(self, gang: Gang) -> None:
        """A member was bound: when nobody of those let go together is left, they are forgotten."""
        group = gang.group
        if group.partial:
            self._cache.metrics.batch_bound_late()
        if any(other.count(RELEASED) for other in self._cache.peers(gang)):
            return
        peers = self._cache.peers(gang)
        if not any(uid in other.children and other.stage_of(uid) is not BOUND for uid in group.binding for other in peers):
            group.binding.clear()
            group.partial = False

    # ---------------------------------------------------------------- failure

    def failed(self, gang: Gang, ctx: CycleContext, failure: FitFailure, result: PostFilterResult) -> Steps[None]:
        """A member found no node. In a strict gang that ends the round; else the others are tried all the same and keep their places.
        Only noted here, inside the cycle; carried out when the next pod is asked for."""
        current = drafted(ctx)
        if current is None:
            return
        waiting = len(self._cache.members(gang, WAITING)) + len(self._cache.members(gang, RELEASED))
        if not current.failure:
            current.failure = (
                f"gang group {gang.group.id}: pod {ctx.pod.key} cannot be placed while {waiting} member(s) wait for it: {failure.message()}"
            )
            gist = failure.message()
            if result.status.message:
                current.failure += f" {result.status.message}"
                gist += unnamed(result.status.message)
            more = yield from self._best(gang, ctx.pod, current)
            self._explain(gang, ctx, failure, current, (waiting, more), gist)
        if gang.spec is not None and gang.spec.strict:
            current.doomed = ctx.pod

    def give_up(self, gang: Gang, message: str) -> None:
        """A member of a strict group lost its place: so do the others."""
        current = self._cache.round
        if current is not None and current.group == gang.group.id:
            self._end("lost a place")
        self._reject(gang, message)

    def send_back(self, pods: Iterable[PodInfo], message: str) -> None:
        """Pods have waited for a gang that they do not wait for any more. The room that they held may help others."""
        self._soon(self._send_back(pods, PLUGIN, message))

    def _reject(self, gang: Gang, message: str, rejector: str = JOB_REJECT) -> None:
        self._soon(self._send_back(self._cache.withdraw(gang), rejector, message))

    def _send_back(self, pods: Iterable[PodInfo], rejector: str, message: str) -> Steps[None]:
        if self._handle.waiting is not None:
            for pod in pods:
                self._handle.waiting.reject(pod.uid, rejector, message)
                yield

    def _tell_others(self, gang: Gang, failed: PodInfo, current: Round) -> Steps[None]:
        """Members that were not tried show why (SCH-GANG-10)."""
        others = [pod for pod in self._cache.ready(gang) if pod.uid not in current.attempted]
        now, group = self._handle.state.now, gang.group
        if len(others) > _CROWD and now - group.told < _CROWD_REST:
            return  # thousands of conditions that differ in a number from those of a moment ago
        group.told = now
        if self._handle.gates.get("GangPendingPodsConditionPatch", True):
            for pod in others:
                self._handle.report(pod, group.wording(pod.uid, current.failure))
                yield
        for pod in others[:_EXPLAINED]:
            self._handle.record(
                Record(
                    "scheduler", Subject("Pod", pod.namespace, pod.name, pod.pod.metadata.uid), self._handle.state.now, "Unschedulable",
                    PLUGIN, current.failure, {"gang": gang.id, "firstMissing": failed.key}, (), ("SCH-GANG-10",),
                )
            )  # fmt: skip
            yield

    # ---------------------------------------------------------------- explaining

    def _explain(self, gang: Gang, ctx: CycleContext, failure: FitFailure, current: Round, counts: tuple[int, int], gist: str) -> None:
        placed, more = counts
        needed = self._needed(gang)
        short = sorted(failure.histogram().items(), key=lambda item: (-item[1], item[0]))
        places = sorted(current.places, key=lambda place: (-place[1], place[0])) if current.unplanned else []
        wanted = len(self._cache.ready(gang))
        terms = (
            Term("members with a node", placed, f"of {needed} needed", "pods"),
            Term("best achievable", max(placed + more, places[0][1] if places else 0), unit="pods"),
            Term("first missing member", ctx.pod.key),
            *(Term(f"short: {reason}", count, unit="nodes") for reason, count in short),
            *(Term(f"short: {name}", wanted - count, f"takes {count} of {wanted} together", "pods") for name, count in places[:_PLACES]),
            *self._refuser(ctx, failure),
        )
        ctx.effects.append(lambda: self._failed(gang, current.failure, terms, ctx.pod.uid, gist))

    def _failed(self, gang: Gang, failure: str, terms: tuple[Term, ...], missing: str, gist: str) -> None:
        gang.group.terms = terms
        gang.group.refused(failure, missing, gist)
        self._changed(gang)
        self._record(gang, "Unschedulable", failure, terms)

    def _changed(self, gang: Gang) -> None:
        for other in self._cache.peers(gang):
            self._cache.changed(other)

    def _refuser(self, ctx: CycleContext, failure: FitFailure) -> Sequence[Term]:
        """The numbers of the plugin that refused the member before any node was looked at: of its quota, say."""
        framework = self._handle.frameworks.get(ctx.pod.shape.scheduler_name)
        name = failure.pre_filter.plugin if failure.pre_filter is not None else ""
        plugin = framework.plugins.get(name) if framework is not None and name != PLUGIN else None
        return plugin.explain(ctx) if plugin is not None else ()

    def _record(self, gang: Gang, verdict: str, message: str, terms: tuple[Term, ...]) -> None:
        for other in self._cache.peers(gang):
            declared = other.pod_group or other.native
            uid = declared.metadata.uid if declared is not None else ""
            numbers = {"minimum": other.spec.min_number if other.spec is not None else 0, "members": len(other.children)}
            subject = Subject("PodGroup", other.namespace, other.name, uid)
            now = self._handle.state.now
            self._handle.record(Record("scheduler", subject, now, verdict, PLUGIN, message, dict(numbers), terms, FEATURES))
