"""The live scheduler: pop, decide, carry out. One cycle at a time; bindings run beside it (SCH-FW-05, SCH-FW-06)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from koord import seams
from koord.seams import perf_counter
from roles.scheduler.binding.binder import Task
from roles.scheduler.binding.carrier import Carrier
from roles.scheduler.cluster.defects import DEFECTS, ends_us
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.advice import Advice
from roles.scheduler.cycle.decision import ERROR, Decision
from roles.scheduler.cycle.record import record_of, score_table
from roles.scheduler.diagnosis import filter_lines
from roles.scheduler.extenders.client import ExtenderError
from roles.scheduler.framework.framework import Framework, told
from roles.scheduler.framework.interfaces import NextPod
from roles.scheduler.framework.status import Candidate, error
from roles.scheduler.framework.steps import Steps, at_once, begun, in_steps
from roles.scheduler.journal.lines import Made, Operation
from roles.scheduler.observing.observer import Acting
from roles.scheduler.outcomes import Outcomes
from roles.scheduler.parts import Parts
from roles.scheduler.planner.placements import Placement
from roles.scheduler.queue.entry import Entry
from roles.scheduler.turns import CATCH_UP, SLICE, Turns

log = logging.getLogger(__name__)

_TRIES = 3  # long decisions of which each did not hold any more when it was made
_MAX_BACKLOG = 2000  # placements under way beyond which no more are decided
_FLUSH_EVERY = 30.0
_LOOK_EVERY = 1.0  # seconds between two looks at the age of what we know


class Scheduler(Acting):
    """Live scheduling: pops, decides, and hands placements and evictions to those who carry them out. Everything on one event loop."""

    def __init__(self, parts: Parts) -> None:
        self.journal = parts.journal
        self.ruling: Callable[[Decision], Decision] | None = None  # a replay carries out what was decided then
        self._state = parts.state
        self._cache = parts.cache
        self._queue = parts.queue
        self._waiting = parts.waiting
        self._cycle = parts.cycle
        self._frameworks = parts.frameworks
        self._reporter = parts.reporter
        self._recorder = parts.recorder
        self._metrics = parts.metrics
        self._clock = parts.clock
        self._binder = parts.binder
        self._leading = parts.leading
        self._monitor, self._debug = parts.monitor, parts.debug
        self._extenders, self.turns = parts.extenders, Turns(parts.gate, parts.metrics.held)
        self.outdated_plans = 0  # long decisions that did not hold any more when they were made
        self._later: deque[Steps[None]] = deque()  # work on many pods, for when nothing else is half done
        self._wake, self.placements = asyncio.Event(), parts.placements
        self.outcomes = Outcomes(parts, wake=self.wake, later=self._later.append)
        self.carrier = Carrier(parts, self.outcomes)
        self.evictor = parts.evictor
        self.outdated: Callable[[], str] = str  # why nothing may be decided on what we know now; "" when it may
        self._outdated = ""

    def wake(self) -> None:
        """Something may be there to schedule."""
        self._wake.set()

    async def run(self) -> None:
        """Schedule until cancelled."""
        loop = asyncio.get_running_loop()
        next_flush, next_look = loop.time() + _FLUSH_EVERY, loop.time()
        turn_ends, began = loop.time() + SLICE, perf_counter()
        while True:
            began = await self.turns.others(began)
            if loop.time() >= next_flush:
                next_flush = loop.time() + _FLUSH_EVERY
                self._flush()
            if loop.time() >= next_look:
                next_look = loop.time() + _LOOK_EVERY
                self._look_at_age()
                self._tell_places()
            held = self._outdated or self._binder.backlog > _MAX_BACKLOG or not self.placements.leading
            entry = None if held else self._next()
            if entry is not None and not isinstance(entry, Entry):
                await self._work(entry, began)
            elif entry is None:
                if not held:
                    self.journal.nothing(self._clock())
                self._metrics.held(perf_counter() - began)
                await self._rest()
                turn_ends, began = loop.time() + SLICE, perf_counter()
                continue
            elif self._extenders is not None and self._extenders.concern(entry.pod):
                await self.attempt_with_extenders(entry)
                began = perf_counter()
            else:
                work = begun(self._attempting(entry))
                if work is not None and not isinstance(work, Decision):
                    await self.turns.take(work, began)
            if self.turns.gave_way:
                self.turns.gave_way, turn_ends, began = False, loop.time() + SLICE, perf_counter()
            if loop.time() >= turn_ends:
                began = await self.turns.others(began)
                self._tick()
                self._metrics.held(perf_counter() - began)
                await seams.sleep(0)
                turn_ends, began = loop.time() + SLICE, perf_counter()

    async def _work(self, steps: Steps[None], since: float) -> None:
        """Long work that comes before the next pod. What it leaves undone, its pods make up for when they are tried."""
        self.journal.happened(Operation.WORK, self._clock())
        try:
            await self.turns.take(steps, since)
        except DEFECTS as failure:
            if ends_us(failure):
                raise
            log.error("work on many pods failed: %s", told(failure), exc_info=failure)

    def _look_at_age(self) -> None:
        before, self._outdated = self._outdated, self.outdated()
        if self._outdated and not before:
            log.error("no pod is scheduled: %s", self._outdated)
        elif before and not self._outdated:
            log.info("scheduling goes on: the caches are up to date again")

    def _tell_places(self) -> None:
        """Pods that have a node and wait for something else show it, so that autoscalers add no node for them and the next leader begins
        there. What is bound within a second shows its node soon enough, and who is sent back by then never had one."""
        for placement in self.placements.lasting(self._clock() - _LOOK_EVERY):
            task: Task = placement.task
            if not task.announced:
                task.announced = True
                self.journal.happened(Operation.PLACES, self._clock(), task.decision.pod.uid)
                self._reporter.nominated(task.decision.pod, placement.node)

    async def _rest(self) -> None:
        """Wait for something to do, at most until a backoff or a permit ends."""
        self._wake.clear()
        now = self._clock()
        due = (self._queue.next_wake(), self._waiting.next_deadline(), self.placements.next_time(), self._state.evictions.next_time())
        times = [time for time in due if time is not None]
        pause = 0.005 if self._binder.backlog > _MAX_BACKLOG else min([1.0, *(max(0.0, time - now) for time in times)])
        if len(self._queue) and not self._wake.is_set() and pause == 0.0:
            pause = 0.001
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        await self.turns.gate.passed()
        self._tick()

    def _tick(self) -> None:
        """Time has passed."""
        now, evictions = self._clock(), self._state.evictions
        lost = self.placements.leading and not self._leading()
        if lost or any(_due(time, now) for time in (self._waiting.next_deadline(), self.placements.next_time(), evictions.next_time())):
            self.journal.happened(Operation.TICK, now, "", not lost)
        if self._waiting.expire(now):
            log.info("pods timed out on permit")
        if lost:
            self.carrier.run(self.placements.lease_lost())
            self.evictor.run(evictions.lease_lost())
        if _due(self.placements.next_time(), now):
            self.carrier.run(self.placements.tick(now))
        if _due(evictions.next_time(), now):
            self.evictor.run(evictions.tick(now))

    def _flush(self) -> None:
        now = self._clock()
        self.journal.turn_over()
        self.journal.happened(Operation.FLUSH, now)
        self._queue.flush_leftover(now)

    def _next(self) -> Entry | Steps[None] | None:
        """The pod to be tried next, or long work that comes before it."""
        if self._later:
            return self._later.popleft()
        now = self._clock()
        if self._queue.returning:
            return self._queue.come_back(now)
        for framework in self._frameworks.values():
            if framework.next_pod is not None:
                try:
                    entry = self._next_of(framework, framework.next_pod, now)
                except DEFECTS:
                    log.exception("plugin %s: nextPod failed; the queue decides", framework.next_pod.name)
                    continue
                if entry is not None:
                    return entry
        return self._queue.pop(now)

    def _next_of(self, framework: Framework, plugin: NextPod, now: float) -> Entry | Steps[None] | None:
        while (wanted := framework.ask(plugin, "NextPod", plugin.next_pod)) is not None:
            if not isinstance(wanted, PodInfo):
                return wanted
            entry = self._queue.take(wanted.uid, now)
            self._metrics.taken(self._clock() - now)
            if entry is not None:
                return entry
        return None

    # ---------------------------------------------------------------- one attempt

    def attempt(self, entry: Entry) -> Decision | None:
        """One cycle for a popped pod, and what follows from it. Never raises: a defect costs the pod an attempt."""
        return at_once(self._attempting(entry))

    def _attempting(self, entry: Entry) -> Steps[Decision | None]:
        """An attempt, in steps where it is long."""
        placement = self._begin(entry)
        if placement is None:
            return None
        try:
            began = perf_counter()
            found = self._cycle.begin(entry.pod)
            decision = found if isinstance(found, Decision) else (yield from self._decided_late(entry, placement, found))
            if decision is None:
                return None
            self._metrics.decided(perf_counter() - began)
            if self.ruling is not None:
                decision = self.ruling(decision)
            yield from self._concluding(entry, placement, decision)
            return decision
        except DEFECTS as failure:
            self._crashed(entry, placement, failure)
            return None

    def _decided_late(self, entry: Entry, placement: Placement, work: Steps[Decision]) -> Steps[Decision | None]:
        """A long decision that holds when it is made; one that does not is made again. None: the pod went meanwhile, or backs off."""
        changes = self._state.cluster.changes
        for _ in range(_TRIES):
            decision = yield from work
            position = changes.position
            yield CATCH_UP
            self.journal.happened(Operation.WENT_ON, self._clock())
            if self._went(entry, placement):
                return None
            changed = changes.since(position)
            if changed is not None and (yield from self._holds(decision, frozenset(changed[0].tolist()))):
                return decision
            self.outdated_plans += 1
            self._state.now = self._clock()
            work = in_steps(self._cycle.begin(entry.pod))
        self._outrun(entry, placement)
        return None

    def _outrun(self, entry: Entry, placement: Placement) -> None:
        """No decision held until it could be carried out."""
        log.info("pod %s: the cluster changes faster than its place can be planned; it is tried again later", entry.pod.key)
        self.outcomes.requeue(entry.pod.uid, self._erred(entry, placement), error=True)

    def _erred(self, entry: Entry, placement: Placement) -> float:
        """An attempt ends with an error; returns when."""
        now = self._clock()
        self._monitor.ended(entry.pod.uid, now)
        self._metrics.attempt(ERROR, entry.pod.shape.scheduler_name, now - placement.since)
        self.placements.undecided(placement)
        return now

    def _went(self, entry: Entry, placement: Placement) -> bool:
        """Whether a pod went, or was asked to go, while its decision was made: nothing follows from it then."""
        uid, now = entry.pod.uid, self._clock()
        if self.placements.get(uid) is placement and self._queue.get(uid) is entry and not entry.pod.deleting:
            return False
        self._monitor.ended(uid, now)
        self.placements.undecided(placement)
        self.outcomes.requeue(uid, now)
        return True

    def _holds(self, decision: Decision, changed: frozenset[int]) -> Steps[bool]:
        """Whether a decision is still right now that some slots have changed."""
        if decision.scheduled:
            return decision.slot not in changed
        if any(node and self._queue.get(pod.uid) is None for pod, node in decision.others):
            return False
        if decision.recheck is not None and decision.victims:
            return (yield from decision.recheck(changed))
        touched = {self._state.cluster.slot_of(victim.node_name or decision.nominate or "") for victim in decision.victims}
        return not touched & changed

    async def attempt_with_extenders(self, entry: Entry) -> Decision | None:
        """As `attempt`, asking extenders about the nodes that the plugins left; meanwhile bindings and events go on."""
        placement = self._begin(entry, outside=True)
        if placement is None:
            return None
        try:
            for _ in range(_TRIES):
                began = perf_counter()
                decision, position = await self._decide_with_extenders(entry.pod)
                await self.turns.gate.passed()
                if self._went(entry, placement):
                    return None
                self._metrics.decided(perf_counter() - began)
                if await self.turns.take(self._concluding_as_things_are(entry, placement, decision, position)):
                    return decision
                self.outdated_plans += 1
                self._state.now = self._clock()
            self._outrun(entry, placement)
            return None
        except DEFECTS as failure:
            if ends_us(failure):
                raise
            self._crashed(entry, placement, failure)
            return None

    def _concluding_as_things_are(self, entry: Entry, placement: Placement, decision: Decision, position: int) -> Steps[bool]:
        """What follows from a decision that was right at a position of the changes; False where that is no longer so."""
        if decision.verdict != ERROR and (yield from self._right_since(decision, position)) is None:
            return False
        yield from self._concluding(entry, placement, decision)
        return True

    def _right_since(self, decision: Decision, position: int) -> Steps[int | None]:
        """The position of the changes now, None where a decision that was right at a former one does not hold any more."""
        changes = self._state.cluster.changes
        if changes.position != position:
            changed = changes.since(position)
            if changed is None or not (yield from self._holds(decision, frozenset(changed[0].tolist()))):
                return None
        return changes.position

    def _making(self, pod: PodInfo, advice: Advice) -> Steps[tuple[Decision, int]]:
        """A decision, with the position of the changes at which it was made: others may have their turns before it is carried out."""
        decision = yield from in_steps(self._cycle.begin(pod, advice))
        return decision, self._state.cluster.changes.position

    async def _decide_with_extenders(self, pod: PodInfo) -> tuple[Decision, int]:
        """A decision, and the position of the changes at which it was right."""
        assert self._extenders is not None
        problem = "the cluster changes faster than extenders say who is to make room"
        for _ in range(_TRIES):
            advice = Advice()
            decision, position = await self.turns.take(self._making(pod, advice))
            try:
                if decision.scheduled:
                    await self._extenders.advise(pod, advice)
                    await self._anew()
                    decision, position = await self.turns.take(self._making(pod, advice))
                    if not decision.scheduled:  # nobody knows what changes an extender's mind, and nodes that came were not asked about
                        decision.rejected_by = frozenset()  # so any event brings the pod back
                if not decision.candidates:
                    return decision, position
                made = await self._room_is_made(decision, advice)
                if made is not None:
                    return decision, made
            except ExtenderError as failure:
                problem = str(failure)
                break
            self.outdated_plans += 1
        decision.verdict, decision.status, decision.rejected_by = ERROR, error(problem), frozenset()
        decision.nominate, decision.victims = None, ()
        return decision, position

    async def _room_is_made(self, decision: Decision, advice: Advice) -> int | None:
        """Have extenders choose where pods are to leave; returns the position of the changes at which that was right. None when it is not
        right any more once they have answered. Raises ExtenderError."""
        assert self._extenders is not None
        before, changes = decision.candidates, self._state.cluster.changes
        position = changes.position
        await self._extenders.preempt(decision)
        await self._anew()
        if not decision.victims or changes.position == position:
            return changes.position
        fresh, made = await self.turns.take(self._making(decision.pod, advice))
        if fresh.scheduled:
            return None
        right = await self.turns.take(self._right_since(decision, position))
        if right is not None:
            return right
        # of many nodes not all are candidates again: then extenders are asked anew
        return made if _victims_on(decision.nominate, before) & _victims_on(decision.nominate, fresh.candidates) else None

    async def _anew(self) -> None:
        """Others had their turns meanwhile."""
        await self.turns.gate.passed()
        self._state.now = self._clock()

    def _begin(self, entry: Entry, *, outside: bool = False) -> Placement | None:
        """The placement of a popped pod; None when it is not to be scheduled at all."""
        pod, now = entry.pod, self._clock()
        self.journal.happened(Operation.OUTSIDE if outside else Operation.ATTEMPT, now, pod.uid)
        if pod.deleting:
            self._reporter.event(pod, "Warning", "FailedScheduling", f"skip schedule deleting pod: {pod.key}", "Scheduling")
            self._queue.done(pod.uid)
            return None
        if self._cache.cluster.slot_of_pod(pod.uid) >= 0 or self.placements.get(pod.uid) is not None:
            self._queue.done(pod.uid)
            return None
        self._state.now = now
        self._metrics.sample(self._frameworks[pod.shape.scheduler_name])
        self._monitor.started(pod.uid, pod.key, pod.shape.scheduler_name, now)
        return self.placements.begin(pod.uid, now)

    def _concluding(self, entry: Entry, placement: Placement, decision: Decision) -> Steps[None]:
        """What follows from a decision. The attempt began before its extenders were asked and before it was decided anew."""
        now, began = self._state.now, placement.since
        made = made_of(decision) if self.journal.keeps else None
        decision.take_effect()
        if self._debug.filters:
            for line in filter_lines(decision):
                log.info("%s", line)
        if decision.scheduled:
            if self._debug.scores:
                log.info("%s", score_table(decision, self._debug.scores))
            self._metrics.found(decision.evaluated, decision.feasible)
            placement.task = Task(decision, entry.attempts, entry.first_attempt or began, began)
            self.carrier.run(self.placements.decided(placement, decision.node))
            self._record(decision, made, entry, now)
        else:
            self.placements.undecided(placement)
            self._record(decision, made, entry, now)
            yield from self.outcomes.fail(decision)
            self._metrics.attempt(decision.verdict, decision.framework.name, self._clock() - began)

    def _record(self, decision: Decision, made: Made | None, entry: Entry, now: float) -> None:
        record = record_of(decision, now=now, attempt=entry.attempts)
        self._recorder.record(record)
        if made is not None:
            self.journal.decided(made, record)

    def _crashed(self, entry: Entry, placement: Placement, failure: BaseException) -> None:
        """A defect in a plugin or in us: the pod backs off, the scheduler goes on."""
        log.error("scheduling of %s failed", entry.pod.key, exc_info=failure)
        if placement.task is not None:
            return  # decided: the carrier sees it to its end
        uid, now = entry.pod.uid, self._erred(entry, placement)
        self.outcomes.forget(uid)
        try:
            self._reporter.failed(entry.pod, error(told(failure)).message, error=True, nominate=None, now=now)
        except DEFECTS:
            log.exception("the failure of %s could not be told", entry.pod.key)
        self.outcomes.requeue(uid, now, error=True)

    # ---------------------------------------------------------------- what the informer shows

    def pod_on_node(self, pod: PodInfo) -> None:
        """A pod is shown on a node."""
        self.carrier.run(self.placements.seen(pod.uid, pod.node_name))
        self.carrier.on_node(pod.uid)

    def pod_leaving(self, uid: str) -> None:
        """A pod is shown on its way out."""
        self.carrier.run(self.placements.leaving(uid))
        self.evictor.run(self._state.evictions.seen_leaving(uid, self._clock()))
        self.evictor.run(self._state.evictions.over(uid))  # nobody need leave for it any more

    def pod_gone(self, uid: str) -> None:
        """A pod is gone, or has ended."""
        self.carrier.run(self.placements.vanished(uid))
        self.carrier.gone(uid)
        self.evictor.run(self._state.evictions.vanished(uid, self._clock()))
        self.outcomes.forget(uid)

    def released(self, uid: str) -> None:
        """The devices that a pod had by its claims were given back."""
        self.evictor.run(self._state.evictions.released(uid))

    def node_gone(self, name: str) -> None:
        """A node is gone: who waits on permit with a place there looks for another one."""
        for held in self._waiting.all():
            if held.node == name:
                self._waiting.fail(held.pod.uid, f"node {name} is gone")

    def loop(self) -> dict[str, Any]:
        """How scheduling shares the event loop: the longest turn in seconds, decisions that took several turns, those that did not hold
        when they were made, and objects whose changes are, and at most were, held back meanwhile."""
        gate = self.turns.gate
        return {
            "longestTurnSeconds": self._metrics.longest_turn, "slicedDecisions": self.turns.sliced, "outdatedPlans": self.outdated_plans,
            "changesHeldBack": gate.held_back, "mostChangesHeldBack": gate.most_held,
        }  # fmt: skip

    def health(self) -> tuple[bool, str]:
        """Whether every placement under way is in time."""
        now = self._clock()
        late = self.placements.stuck(now)
        if late is None:
            return True, f"{len(self.placements)} placements under way"
        return False, f"the placement of pod {late.uid} on {late.node or 'no node yet'} is {late.stage.value} for {now - late.since:.0f} s"


def made_of(decision: Decision) -> Made:
    """What a decision comes to, as a journal tells it."""
    return Made(decision.verdict, decision.node, decision.nominate, tuple(victim.uid for victim in decision.victims))


def _victims_on(node: str | None, candidates: Iterable[Candidate]) -> set[frozenset[str]]:
    return {frozenset(victim.uid for victim in candidate.victims) for candidate in candidates if candidate.node == node}


def _due(time: float | None, now: float) -> bool:
    return time is not None and time <= now
