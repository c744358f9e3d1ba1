"""The live scheduler: pop, decide, carry out. One cycle at a time; bindings run beside it (SCH-FW-05, SCH-FW-06)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from koord import seams
from koord.decisions.recorder import Recorder
from koord.seams import perf_counter
from roles.scheduler.auditor import Audit
from roles.scheduler.binding.binder import Binder, Outcome, Task
from roles.scheduler.binding.preemption import Evictor
from roles.scheduler.binding.reporter import Reporter
from roles.scheduler.binding.waiting import WaitingPods
from roles.scheduler.cluster.cache import Cache
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.advice import Advice
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.cycle.decision import ERROR, UNSCHEDULABLE, Decision
from roles.scheduler.cycle.record import record_of, score_table, victim_records
from roles.scheduler.diagnosis import Debug, Dump, diagnosis_of, filter_lines
from roles.scheduler.extenders.chain import Extenders
from roles.scheduler.extenders.client import ExtenderError
from roles.scheduler.framework.context import State
from roles.scheduler.framework.events import ASSIGNED_POD, Action, ClusterEvent
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.status import JOB_PREEMPTION_SUCCESS, JOB_REJECT, JOB_REJECTORS, Code, Status, error
from roles.scheduler.metrics import SchedulerMetrics
from roles.scheduler.monitor import Monitor
from roles.scheduler.queue.entry import IN_FLIGHT, Entry
from roles.scheduler.queue.queue import SchedulingQueue

log = logging.getLogger(__name__)

_SLICE = 0.004  # seconds of scheduling after which events and bindings get their turn
_MAX_BACKLOG = 2000  # placements under way beyond which no more are decided
_FLUSH_EVERY = 30.0


class Scheduler:
    """The planner of live scheduling: assumes, reserves, permits, binds, and tells what failed. Everything on one event loop."""

    def __init__(
        self,
        *,
        state: State,
        cache: Cache,
        queue: SchedulingQueue,
        waiting: WaitingPods,
        cycle: Cycle,
        frameworks: Mapping[str, Framework],
        reporter: Reporter,
        recorder: Recorder,
        metrics: SchedulerMetrics,
        clock: Callable[[], float],
        binder: Binder,
        evictor: Evictor,
        monitor: Monitor,
        debug: Debug,
        dump: Dump,
        audit: Audit,
        extenders: Extenders | None = None,
    ) -> None:
        self._state = state
        self._cache = cache
        self._queue = queue
        self._waiting = waiting
        self._cycle = cycle
        self._frameworks = frameworks
        self._reporter = reporter
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._binder = binder
        self._evictor = evictor
        self._monitor = monitor
        self._debug = debug
        self._dump = dump
        self._audit = audit
        self._extenders = extenders
        self._wake = asyncio.Event()
        self._evictions: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Something may be there to schedule."""
        self._wake.set()

    async def run(self) -> None:
        """Schedule until cancelled."""
        loop = asyncio.get_running_loop()
        next_flush = loop.time() + _FLUSH_EVERY
        turn_ends = loop.time() + _SLICE
        while True:
            if loop.time() >= next_flush:
                next_flush = loop.time() + _FLUSH_EVERY
                self._flush()
            entry = None if self._binder.backlog > _MAX_BACKLOG else self._next()
            if entry is None:
                await self._rest()
                turn_ends = loop.time() + _SLICE
                continue
            if self._extenders is not None and self._extenders.concern(entry.pod):
                await self.attempt_with_extenders(entry)
            else:
                self.attempt(entry)
            if loop.time() >= turn_ends:
                await seams.sleep(0)
                turn_ends = loop.time() + _SLICE

    async def _rest(self) -> None:
        """Wait for something to do, at most until a backoff or a permit ends."""
        self._wake.clear()
        now = self._clock()
        times = [time for time in (self._queue.next_wake(), self._waiting.next_deadline()) if time is not None]
        pause = 0.005 if self._binder.backlog > _MAX_BACKLOG else min([1.0, *(max(0.0, time - now) for time in times)])
        if len(self._queue) and not self._wake.is_set() and pause == 0.0:
            pause = 0.001
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        if self._waiting.expire(self._clock()):
            log.info("pods timed out on permit")

    def _flush(self) -> None:
        now = self._clock()
        self._queue.flush_leftover(now)
        for pod in self._cache.expire(now):
            log.warning("pod %s was bound but never seen on its node; it no longer counts there", pod.key)

    def _next(self) -> Entry | None:
        now = self._clock()
        for framework in self._frameworks.values():
            if framework.next_pod is not None:
                while (wanted := framework.ask(framework.next_pod, "NextPod", framework.next_pod.next_pod)) is not None:
                    entry = self._queue.take(wanted.uid, now)
                    self._metrics.taken(self._clock() - now)
                    if entry is not None:
                        return entry
        return self._queue.pop(now)

    # ---------------------------------------------------------------- one attempt

    def attempt(self, entry: Entry) -> Decision | None:
        """One cycle for a popped pod, and what follows from it."""
        if not self._wanted(entry):
            return None
        now = self._begin(entry.pod)
        self._metrics.sample(self._frameworks[entry.pod.shape.scheduler_name])
        began = perf_counter()
        try:
            decision = self._cycle.decide(entry.pod)
        except Exception as failure:
            log.exception("scheduling of %s failed", entry.pod.key)
            self._crashed(entry, failure, now)
            return None
        self._metrics.decided(perf_counter() - began)
        return self._conclude(entry, decision, now)

    async def attempt_with_extenders(self, entry: Entry) -> Decision | None:
        """As `attempt`, asking extenders about the nodes that the plugins left; meanwhile bindings and events go on."""
        if not self._wanted(entry):
            return None
        now = self._begin(entry.pod)
        began = perf_counter()
        try:
            decision = await self._decide_with_extenders(entry.pod)
        except Exception as failure:
            log.exception("scheduling of %s failed", entry.pod.key)
            self._crashed(entry, failure, now)
            return None
        if self._queue.get(entry.pod.uid) is not entry or entry.state != IN_FLIGHT:
            self._monitor.ended(entry.pod.uid, self._clock())  # the pod went while the extenders were thinking
            return None
        self._metrics.decided(perf_counter() - began)
        return self._conclude(entry, decision, now)

    async def _decide_with_extenders(self, pod: PodInfo) -> Decision:
        assert self._extenders is not None
        advice = Advice()
        decision = self._cycle.decide(pod, advice)
        try:
            if decision.scheduled:
                await self._extenders.advise(pod, advice)
                self._state.now = self._clock()
                decision = self._cycle.decide(pod, advice)
                if advice.refused and not decision.scheduled:
                    decision.rejected_by = frozenset()  # nobody knows what would change an extender's mind: any event brings the pod back
            if decision.candidates:
                await self._extenders.preempt(decision)
        except ExtenderError as failure:
            decision.verdict, decision.status, decision.rejected_by = ERROR, error(str(failure)), frozenset()
            decision.nominate, decision.victims = None, ()
        return decision

    def _wanted(self, entry: Entry) -> bool:
        """Whether a popped pod is to be scheduled at all."""
        pod = entry.pod
        if pod.deleting:
            self._reporter.event(pod, "Warning", "FailedScheduling", f"skip schedule deleting pod: {pod.key}", "Scheduling")
            self._queue.done(pod.uid)
            return False
        if self._cache.cluster.slot_of_pod(pod.uid) >= 0:
            self._queue.done(pod.uid)
            return False
        return True

    def _begin(self, pod: PodInfo) -> float:
        now = self._state.now = self._clock()
        self._monitor.started(pod.uid, pod.key, pod.shape.scheduler_name, now)
        return now

    def _conclude(self, entry: Entry, decision: Decision, now: float) -> Decision:
        """What follows from a decision."""
        if self._debug.filters:
            for line in filter_lines(decision):
                log.info("%s", line)
        if decision.scheduled:
            if self._debug.scores:
                log.info("%s", score_table(decision, self._debug.scores))
            self._metrics.found(decision.evaluated, decision.feasible)
            self._place(decision, entry)
        else:
            self._fail(decision, entry.attempts)
        self._metrics.attempt(decision.verdict, decision.framework.name, self._clock() - now)
        self._recorder.record(record_of(decision, now=now, attempt=entry.attempts))
        return decision

    def _place(self, decision: Decision, entry: Entry) -> None:
        """Assume, reserve, ask permit, bind."""
        framework, ctx, slot = decision.framework, decision.ctx, decision.slot
        framework.run_resize(ctx, slot)
        pod = decision.pod
        self._cache.assume(pod, slot)
        began = perf_counter()
        status = framework.run_reserve(ctx, slot)
        self._metrics.point("Reserve", status, framework.name, perf_counter() - began)
        if not status.ok:
            self._take_back(decision, unreserve=False)
            self._refused(decision, status, entry.attempts)
            return
        began = perf_counter()
        status, waits = framework.run_permit(ctx, slot)
        self._metrics.point("Permit", status, framework.name, perf_counter() - began)
        if not status.ok and status.code is not Code.WAIT:
            self._take_back(decision)
            self._refused(decision, status, entry.attempts)
            return
        self._state.nominations.remove(pod.uid)
        task = Task(decision, entry.attempts, entry.first_attempt or self._clock())
        if waits:
            self._monitor.ended(pod.uid, self._clock())
            held = self._clock()
            self._waiting.hold(pod, decision.node, waits, held, lambda answer: self._permitted(task, answer, held))
        else:
            self._binder.submit(task)

    def _permitted(self, task: Task, answer: Status, held: float) -> None:
        """A pod that was held since then is let go or sent back."""
        self._metrics.permitted(answer.ok, self._clock() - held)
        if answer.ok:
            pod = task.decision.pod
            self._monitor.started(pod.uid, pod.key, pod.shape.scheduler_name, self._clock())
            self._binder.submit(task)
        else:
            self.finished(task, Outcome.REJECTED, answer)

    def _refused(self, decision: Decision, status: Status, attempts: int) -> None:
        """Reserve or permit said no after a node was found."""
        decision.verdict = UNSCHEDULABLE if status.rejected else ERROR
        decision.status = status
        decision.rejected_by = frozenset((status.plugin,)) if status.plugin else frozenset()
        self._fail(decision, attempts)

    # ---------------------------------------------------------------- after binding

    def finished(self, task: Task, outcome: Outcome, status: Status) -> None:
        """The binder is through with a placement."""
        decision = task.decision
        pod, now = decision.pod, self._clock()
        self._monitor.ended(pod.uid, now)
        if outcome is Outcome.BOUND:
            self._cache.finish_binding(pod.uid, now)
            self._queue.done(pod.uid)
            self._reporter.scheduled(pod, decision.node)
            self._metrics.bound(task.attempt, now - task.first)
            self._audit.scheduled(pod, now)
            return
        self._take_back(decision, rejector=status.plugin)
        if outcome is Outcome.GONE:
            log.info("pod %s was not bound: %s", pod.key, status.message)
            self._drop(pod, now)
        else:
            decision.rejected_by = frozenset((status.plugin or "DefaultBinder",)) if outcome is not Outcome.RETRY else frozenset()
            decision.verdict = ERROR if outcome is not Outcome.REJECTED else UNSCHEDULABLE
            decision.status = status
            self._renominate(decision, status.plugin)
            self._report(decision)
            self._requeue(pod.uid, now, rejected_by=decision.rejected_by, error=outcome is Outcome.RETRY)
        self._recorder.record(record_of(decision, now=now, attempt=task.attempt))
        self.wake()

    def _renominate(self, decision: Decision, rejector: str) -> None:
        """What becomes of the nomination of a pod that lost its place (scheduler-job.md 6.5)."""
        pod = decision.pod
        if rejector == JOB_REJECT:
            decision.nominate = None
            self._state.nominations.add(pod, pod.nominated)
            return
        decision.nominate = decision.node if rejector == JOB_PREEMPTION_SUCCESS else ""
        self._state.nominations.add(pod, decision.nominate)

    def _drop(self, pod: PodInfo, now: float) -> None:
        """The pod is gone, or a new one of its name is there, or the informer has yet to say so: let the informer decide."""
        self._reporter.forget(pod.uid)
        self._requeue(pod.uid, now, error=True)

    def _take_back(self, decision: Decision, *, unreserve: bool = True, rejector: str = "") -> None:
        """Unreserve, forget, and tell everybody that room has come free."""
        pod = decision.pod
        if unreserve:
            decision.framework.run_unreserve(decision.ctx, decision.slot)
        self._cache.forget(pod.uid)
        for plugin in decision.framework.forgets:
            plugin.forget(pod)
        # What a job gives back that was tried at one go was free when those who wait were refused: they need not look again.
        if rejector not in JOB_REJECTORS:
            finder = decision.framework.next_pod
            kin = finder.kin(pod) if finder is not None else None
            self._queue.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, pod, None, kin), self._clock())

    # ---------------------------------------------------------------- failures

    async def _make_room(self, decision: Decision, now: float) -> None:
        """Remove victims; if that fails no event will come that brings the pod back, so it is tried again at once."""
        if not await self._evictor.evict(decision.pod, decision.victims, decision.nominate or "", now):
            self._queue.activate((decision.pod,), self._clock())
            self.wake()

    def _fail(self, decision: Decision, attempts: int) -> None:
        """Report, carry a preemption out, and queue the pod again."""
        pod, now = decision.pod, self._clock()
        self._monitor.ended(pod.uid, now)
        if self._debug.diagnosis:
            self._dump.put(diagnosis_of(decision, now))
        self._audit.failed(pod, decision.victims, preempted_in_vain=bool(decision.post_filter_message), now=now)
        if decision.nominate is not None:
            self._state.nominations.add(pod, decision.nominate)
        for other, node in decision.others:
            self._nominate(other, node)
        if decision.victims:
            self._outbid(pod, {victim.node_name or decision.nominate or "" for victim in decision.victims}, decision.others)
            self._metrics.preempted(len(decision.victims))
            for record in victim_records(decision, now=now):
                self._recorder.record(record)
            task = asyncio.get_running_loop().create_task(self._make_room(decision, now), name=f"preemption for {pod.key}")
            self._evictions.add(task)
            task.add_done_callback(self._evictions.discard)
        self._report(decision)
        is_error = decision.verdict == ERROR
        self._requeue(pod.uid, now, rejected_by=decision.rejected_by, error=is_error, pending=decision.pending)

    def _nominate(self, pod: PodInfo, node: str) -> None:
        """Another pod is (or is no longer) nominated to a node: kept here and shown on the pod."""
        self._state.nominations.add(pod, node)
        self._reporter.nominated(pod, node)

    def _outbid(self, pod: PodInfo, nodes: Iterable[str], others: Iterable[tuple[PodInfo, str]]) -> None:
        """Pods of lower priority that were nominated where room is made now look for another place."""
        job = {other.uid for other, _ in others}
        for node in nodes:
            for lower in [o for o in self._state.nominations.on(node) if o.priority < pod.priority and o.uid not in job]:
                self._nominate(lower, "")

    def _report(self, decision: Decision) -> None:
        self._reporter.failed(
            decision.pod, decision.message(), error=decision.verdict == ERROR, nominate=decision.nominate, now=self._clock()
        )

    def _requeue(self, uid: str, now: float, **how: Any) -> None:
        entry = self._queue.get(uid)
        if entry is not None and entry.state == IN_FLIGHT:
            self._queue.requeue(uid, now, **how)

    def _crashed(self, entry: Entry, failure: Exception, now: float) -> None:
        """A defect in a plugin or in us: the pod backs off, the scheduler goes on."""
        self._monitor.ended(entry.pod.uid, now)
        status = error(f"{type(failure).__name__}: {failure}")
        self._reporter.failed(entry.pod, status.message, error=True, nominate=None, now=now)
        self._requeue(entry.pod.uid, now, error=True)
