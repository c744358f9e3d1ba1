"""Carries out what follows from decisions: assume, reserve, permit, bind, and back. What comes after what, the machine decides
(planner/placements.py); here every step is done, its answer is handed to the machine, and whatever raises costs that pod an attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from koord.seams import perf_counter
from roles.scheduler.binding.binder import Outcome, Task
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.framework.framework import told
from roles.scheduler.framework.status import Code, Status, error
from roles.scheduler.journal.lines import Operation
from roles.scheduler.outcomes import Outcomes
from roles.scheduler.parts import Parts
from roles.scheduler.planner.placements import Answer, Do, Effect, Found, Placement
from roles.scheduler.tasks import Tasks

log = logging.getLogger(__name__)

_ANSWERS = {Outcome.BOUND: Answer.BOUND, Outcome.OPEN: Answer.OPEN, Outcome.LOST: Answer.LOST}
_SLOW = 3600.0
"""Seconds that a placement may take whose preBind waits for something outside (volumes, locks of vendors)."""

Told = Callable[[Task], None]


class Carrier:
    """Runs the effects of placements. What belongs to the queue and to reports is told to `outcomes`."""

    def __init__(self, parts: Parts, outcomes: Outcomes) -> None:
        self._journal = parts.journal
        self.placements = parts.placements
        self._state = parts.state
        self._cache = parts.cache
        self._queue = parts.queue
        self._waiting = parts.waiting
        self._binder = parts.binder
        self._readback = parts.readback
        self._metrics = parts.metrics
        self._monitor = parts.monitor
        self._clock = parts.clock
        self._gate = parts.gate
        self._outcomes = outcomes
        self._tasks = Tasks()
        self._written: dict[str, Task] = {}  # by UID, of pods that did not get to their node: what may be written on them still
        self._steps: dict[Do, Callable[[Placement, Task], Iterable[Effect]]] = {
            Do.ASSUME: self._assume,
            Do.RESERVE: self._reserve,
            Do.PERMIT: self._permit,
            Do.HOLD: self._hold,
            Do.BIND: self._bind,
            Do.READ: self._read,
        }
        self._ends: dict[Do, Told] = {
            Do.LET_GO: lambda task: self._waiting.drop(task.decision.pod.uid),
            Do.TAKE_BACK: self._take_back,
            Do.SETTLE: self._settle,
            Do.FAIL: lambda task: self._lose(task, outcomes.failed),
            Do.DROP: lambda task: self._lose(task, outcomes.dropped),
        }

    def run(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order. Never raises."""
        for do, placement in effects:
            end = self._ends.get(do)
            if end is not None:
                try:
                    end(placement.task)
                except DEFECTS:
                    log.exception("pod %s: %s failed", placement.uid, do.value)
            elif self.placements.get(placement.uid) is placement:
                try:
                    following = self._steps[do](placement, placement.task)
                except DEFECTS as failure:
                    following = self._raised(do, placement, failure)
                self.run(following)

    async def stop(self) -> None:
        """Cancel what is being read."""
        await self._tasks.stop()

    def _raised(self, do: Do, placement: Placement, failure: BaseException) -> Iterable[Effect]:
        task: Task = placement.task
        log.error("pod %s: %s failed", task.decision.pod.key, do.value, exc_info=failure)
        task.status = error(told(failure))
        if do in (Do.ASSUME, Do.RESERVE, Do.PERMIT):
            return self.placements.raised(placement)
        task.outcome = Outcome.RETRY
        if do is Do.BIND:
            return self.placements.answered(placement, Answer.REFUSED)
        if do is Do.HOLD:
            return self.placements.released(placement, False, self._clock())
        return self.placements.found(placement, Found.UNREADABLE, self._clock())

    # ---------------------------------------------------------------- steps

    def _assume(self, placement: Placement, task: Task) -> Iterable[Effect]:
        decision = task.decision
        decision.framework.run_resize(decision.ctx, decision.slot)
        self._cache.assume(decision.pod, decision.slot)
        return ()

    def _reserve(self, placement: Placement, task: Task) -> Iterable[Effect]:
        decision = task.decision
        began = perf_counter()
        status = decision.framework.run_reserve(decision.ctx, decision.slot)
        self._metrics.point("Reserve", status, decision.framework.name, perf_counter() - began)
        task.status = status
        return self.placements.reserved(placement, status.ok)

    def _permit(self, placement: Placement, task: Task) -> Iterable[Effect]:
        decision = task.decision
        began = perf_counter()
        status, waits = decision.framework.run_permit(decision.ctx, decision.slot)
        self._metrics.point("Permit", status, decision.framework.name, perf_counter() - began)
        task.status = status
        if status.ok or waits:
            task.nominated = self._state.nominations.node_of(decision.pod.uid)
            self._state.nominations.remove(decision.pod.uid)
            if task.nominated not in ("", decision.node):
                self._outcomes.placed_elsewhere(task)
        if waits and status.code is Code.WAIT:
            task.waits = waits
            return self.placements.permitted(placement, False, waits=True)
        return self.placements.permitted(placement, status.ok)

    def _hold(self, placement: Placement, task: Task) -> Iterable[Effect]:
        held = self._clock()
        self._monitor.ended(placement.uid, held)
        self._waiting.hold(task.decision.pod, task.decision.node, task.waits, held, lambda answer: self._released(placement, answer, held))
        return ()

    def _released(self, placement: Placement, answer: Status, held: float) -> None:
        """A pod that was held since then is let go or sent back."""
        now = self._clock()
        self._metrics.permitted(answer, now - held)
        if answer.ok:
            pod = placement.task.decision.pod
            self._monitor.started(pod.uid, pod.key, pod.shape.scheduler_name, now)
        else:
            placement.task.outcome = Outcome.REJECTED if answer.rejected else Outcome.RETRY
            placement.task.status = answer
        self.run(self.placements.released(placement, answer.ok, now))

    def _bind(self, placement: Placement, task: Task) -> Iterable[Effect]:
        task.placement = placement
        self._queue.committed(placement.uid)  # permit is over
        former = self._written.get(placement.uid)
        if former is not None:
            task.unsure = former.unsure.union(former.wrote)
        if self._binder.submit(task):
            placement.limit = _SLOW
        return ()

    def finished(self, task: Task, outcome: Outcome, status: Status) -> None:
        """The binder is through with a placement."""
        placement, task.placement = task.placement, None  # not each other's any more: nobody has to look for them as garbage
        if placement is not None:
            task.outcome, task.status = outcome, status
            self._journal.bound(placement.uid, outcome, status, self._clock())
            self.run(self.placements.answered(placement, _ANSWERS.get(outcome, Answer.REFUSED)))

    def _read(self, placement: Placement, task: Task) -> Iterable[Effect]:
        self._tasks.start(self._gate.drive(self._look, placement, task), f"reading {task.decision.pod.key}")
        return ()

    async def _look(self, placement: Placement, task: Task) -> None:
        found = Found.UNREADABLE
        try:
            found = await self._readback.placed(task.decision.pod, placement.node)
        except Exception:
            log.exception("pod %s could not be read", task.decision.pod.key)
        log.info("pod %s: %s; it is %s", task.decision.pod.key, task.status.message, found.value)
        self._journal.happened(Operation.FOUND, self._clock(), placement.uid, found.value)
        self.run(self.placements.found(placement, found, self._clock()))

    # ---------------------------------------------------------------- ends

    def _take_back(self, task: Task) -> None:
        """Unreserve, forget, and tell everybody that room has come free."""
        decision = task.decision
        decision.framework.run_unreserve(decision.ctx, self._cache.cluster.slot_of(decision.node))
        self._cache.forget(decision.pod.uid)
        decision.framework.run_forget(decision.pod)
        self._outcomes.taken_back(task)

    def _lose(self, task: Task, told: Told) -> None:
        """The pod is not where it was placed."""
        uid = task.decision.pod.uid
        if task.wrote:
            self._written[uid] = task
        if self._cache.cluster.slot_of_pod(uid) >= 0:
            self.on_node(uid)
        told(task)

    def on_node(self, uid: str) -> None:
        """A pod is shown on a node. If it was not bound there by us, nothing that was written for other placements may stay on it."""
        task = self._written.pop(uid, None) if self.placements.get(uid) is None else None
        if task is not None:
            self._binder.withdraw(task)

    def gone(self, uid: str) -> None:
        """A pod is no more."""
        self._written.pop(uid, None)

    def _settle(self, task: Task) -> None:
        decision = task.decision
        self._written.pop(decision.pod.uid, None)
        decision.framework.run_post_bind(decision.ctx, decision.node)
        self._outcomes.settled(task)
