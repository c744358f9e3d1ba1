"""What comes of decisions: pods that are bound, that lost their place, that found none, and those who make room for them (SCH-FW-05,
SCH-FW-06, SCH-KS-12). Reports, queues again, and asks victims to leave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from roles.scheduler.binding.binder import Outcome, Task
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import ERROR, SCHEDULED, UNSCHEDULABLE, Decision
from roles.scheduler.cycle.record import record_of, victim_records
from roles.scheduler.diagnosis import diagnosis_of
from roles.scheduler.engine import EVICTING
from roles.scheduler.framework.status import JOB_PREEMPTION_FAILURE, JOB_PREEMPTION_SUCCESS, JOB_REJECT, JOB_REJECTORS, Code, Status
from roles.scheduler.framework.steps import Steps, at_once
from roles.scheduler.parts import Parts
from roles.scheduler.queue.entry import GATED, IN_FLIGHT

log = logging.getLogger(__name__)


class Outcomes:
    """The ends of attempts. `wake` is called when something may be there to schedule, `later` takes work on many pods for when nothing else
    is half done."""

    def __init__(self, parts: Parts, *, wake: Callable[[], None], later: Callable[[Steps[None]], None]) -> None:
        self._state = parts.state
        self._cache = parts.cache
        self._queue = parts.queue
        self._placements = parts.placements
        self._reporter = parts.reporter
        self._recorder = parts.recorder
        self._metrics = parts.metrics
        self._clock = parts.clock
        self._evictor = parts.evictor
        self._monitor = parts.monitor
        self._debug = parts.debug
        self._dump = parts.dump
        self._audit = parts.audit
        self._wake = wake
        self._later = later
        self._evicting: dict[str, tuple[dict[str, Any], list[PodInfo]]] = {}  # by preemptor: how it is queued again, its job
        parts.evictor.issued = self._issued
        parts.evictor.cleared = self._cleared
        parts.queue.gated = self._gated

    def forget(self, uid: str) -> None:
        """A preemptor is gone, or its attempt failed: nobody waits for the answers of its victims."""
        self._evicting.pop(uid, None)

    # ---------------------------------------------------------------- what comes of placements

    def settled(self, task: Task) -> None:
        """A pod is bound."""
        pod, now = task.decision.pod, self._clock()
        self._monitor.ended(pod.uid, now)
        self._queue.done(pod.uid)
        self._evictor.run(self._state.evictions.over(pod.uid))
        self._reporter.scheduled(pod, task.decision.node)
        self._metrics.attempt(SCHEDULED, task.decision.framework.name, now - task.began)
        self._metrics.bound(task.attempt, now - task.first)
        self._audit.scheduled(pod, now)

    def taken_back(self, task: Task) -> None:
        """A pod counts no more on the node that was found for it: tell everybody that room has come free."""
        decision = task.decision
        self._evictor.run(self._state.evictions.left(decision.pod.uid))
        # What a job gives back that was tried at one go was free when those who wait were refused: they need not look again, unless it was
        # kept for the pod even then.
        rejector = task.status.plugin
        if rejector not in JOB_REJECTORS or (rejector == JOB_PREEMPTION_FAILURE and task.nominated == decision.node):
            self._queue.room_given_up(decision.pod, self._clock())
        self._wake()

    def placed_elsewhere(self, task: Task) -> None:
        """A pod counts on another node than the one where room was kept for it."""
        self._queue.room_given_up(task.decision.pod, self._clock())
        self._wake()

    def dropped(self, task: Task) -> None:
        """The pod is gone, or somewhere else: nothing is told of it."""
        pod = task.decision.pod
        self._monitor.ended(pod.uid, self._clock())
        log.info("pod %s was not bound to %s: %s", pod.key, task.decision.node, task.status.message or "it is gone or on another node")
        self._let_informer_decide(pod)

    def _let_informer_decide(self, pod: PodInfo) -> None:
        """The pod is gone, or a new one of its name is there, or the informer has yet to say so."""
        self._reporter.forget(pod.uid)
        self.requeue(pod.uid, self._clock(), error=True)
        self._wake()

    def failed(self, task: Task) -> None:
        """A node was found for a pod, and the pod did not get there."""
        uid = task.decision.pod.uid
        try:
            self._lost_its_place(task)
        finally:
            if task.outcome is not Outcome.GONE:  # else nobody waits for its end any more
                verdict = task.decision.verdict if task.decision.verdict != SCHEDULED else ERROR
                self._metrics.attempt(verdict, task.decision.framework.name, self._clock() - task.began)
            if self._placements.get(uid) is None:
                self.requeue(uid, self._clock(), error=True)  # only where that is not done yet
        self._wake()

    def _lost_its_place(self, task: Task) -> None:
        decision, status, outcome = task.decision, task.status, task.outcome
        pod, now = decision.pod, self._clock()
        decision.status = status
        if outcome is None:  # Reserve or Permit said no
            decision.verdict = UNSCHEDULABLE if status.rejected else ERROR
            decision.rejected_by = frozenset((status.plugin,)) if status.plugin and status.rejected else frozenset()
            at_once(self.fail(decision))
            return
        self._monitor.ended(pod.uid, now)
        if outcome is Outcome.GONE:
            log.info("pod %s was not bound: %s", pod.key, status.message)
            self._let_informer_decide(pod)
        else:
            again = outcome in (Outcome.RETRY, Outcome.OPEN, Outcome.LOST)
            decision.rejected_by = frozenset() if again else frozenset((status.plugin or "DefaultBinder",))
            decision.verdict = UNSCHEDULABLE if outcome is Outcome.REJECTED else ERROR
            self._renominate(task, status.plugin, kept=again and task.nominated == decision.node)
            self._report(decision)
            self.requeue(pod.uid, now, rejected_by=decision.rejected_by, error=again)
        self._recorder.record(record_of(decision, now=now, attempt=task.attempt))

    def _renominate(self, task: Task, rejector: str, *, kept: bool) -> None:
        """What becomes of the nomination of a pod that lost its place. `kept`: others left for it and only its binding failed; if somebody
        else took the room now, others still would have to leave when it is tried again."""
        decision, pod = task.decision, task.decision.pod
        if rejector == JOB_REJECT:
            decision.nominate = task.nominated if task.announced else None
            self._state.nominations.add(pod, task.nominated)
            return
        decision.nominate = decision.node if rejector == JOB_PREEMPTION_SUCCESS or kept else ""
        self._state.nominations.add(pod, decision.nominate)

    # ---------------------------------------------------------------- no node was found

    def fail(self, decision: Decision) -> Steps[None]:
        """Report, carry a preemption out, and queue the pod again: after a preemption once all victims were asked to leave."""
        pod, now = decision.pod, self._clock()
        self._monitor.ended(pod.uid, now)
        if self._debug.diagnosis:
            self._dump.put(diagnosis_of(decision, now))
        self._audit.failed(pod, decision.victims, preempted_in_vain=bool(decision.post_filter_message), now=now)
        if decision.nominate is not None:
            self._nominate(pod, decision.nominate)
        for other, node in decision.others:
            self._nominate(other, node)
            self._reporter.nominated(other, node)
            yield
        self._report(decision)
        if decision.failure is not None and decision.framework.post_filters:
            self._metrics.sought_room()
        how = {"rejected_by": decision.rejected_by, "error": decision.verdict == ERROR, "pending": decision.pending}
        if decision.victims:
            yield from self._make_room(decision, how, now)
        else:
            self.requeue(pod.uid, now, **how)

    def _make_room(self, decision: Decision, how: dict[str, Any], now: float) -> Steps[None]:
        """Ask the victims to leave. Until all have answered the pod stays in flight, and its job is kept from being decided."""
        pod = decision.pod
        yield
        fresh = [victim for victim in decision.victims if not self._state.leaving(victim)]
        self._outbid(pod, {victim.node_name or decision.nominate or "" for victim in decision.victims}, decision.others)
        yield
        if fresh:
            self._metrics.preempted(len(fresh))
            for record in victim_records(decision, fresh, now=now):
                self._recorder.record(record)
                yield
        members = [other for other, node in decision.others if node]
        self._evicting[pod.uid] = (how, members)
        yield from self._evictor.evicting(pod, decision.victims, decision.nominate or "", [member.uid for member in members])

    def _issued(self, uid: str, failed: bool) -> None:
        """All victims of a pod were asked. If some stay it comes back with what is left, after a rest."""
        how, members = self._evicting.pop(uid, ({}, []))
        now = self._clock()
        self.requeue(uid, now, **({"error": True} if failed else how))
        if members:
            self._later(self._let_in_again(members))
        self._wake()

    def _let_in_again(self, members: Iterable[PodInfo]) -> Steps[None]:
        """Members of a job were kept out of the queue while its victims were being asked."""
        for member in members:
            entry = self._queue.get(member.uid)
            if entry is not None and entry.gate == EVICTING:
                self._queue.activate((member,), self._clock())
            yield

    def _cleared(self, uid: str) -> None:
        """The victims of a pod are gone: however often it was tried in vain meanwhile, it need not rest now."""
        entry = self._queue.get(uid)
        if entry is not None:
            self._queue.activate((entry.pod,), self._clock(), rested=True)
            self._wake()

    def _gated(self, pod: PodInfo, status: Status) -> None:
        """A pod is kept out of the queue, by nothing that is under way: room that was made for it or its job is free for others."""
        if status.code is not Code.PENDING and status.plugin != EVICTING and self._state.nominations.node_of(pod.uid):
            self._later(self._give_up_room(pod))
            self._wake()

    def _give_up_room(self, pod: PodInfo) -> Steps[None]:
        nominations, job = self._state.nominations, self._queue.job_of(pod)
        known = [other for node in list(nominations.nodes()) for other in nominations.on(node)]
        members = [other for other in known if other.uid == pod.uid or (job is not None and self._queue.job_of(other) == job)]
        yield
        entry = self._queue.get(pod.uid)
        if entry is None or entry.state != GATED or any(self._state.evictions.leaving_for(member.uid) for member in members):
            return
        for member in members:
            if nominations.node_of(member.uid):
                self._nominate(member, "")
                self._reporter.nominated(member, "")
            yield

    def _nominate(self, pod: PodInfo, node: str) -> None:
        """A pod is (or is no longer) nominated to a node. The room that was kept for it on another one is free."""
        before = self._state.nominations.node_of(pod.uid)
        self._state.nominations.add(pod, node)
        if before and before != node:
            self._queue.room_given_up(pod, self._clock())

    def _outbid(self, pod: PodInfo, nodes: Iterable[str], others: Iterable[tuple[PodInfo, str]]) -> None:
        """Pods of lower priority that were nominated where room is made now look for another place."""
        job = {other.uid for other, _ in others}
        for node in nodes:
            for lower in [o for o in self._state.nominations.on(node) if o.priority < pod.priority and o.uid not in job]:
                self._state.nominations.remove(lower.uid)
                self._reporter.nominated(lower, "")
                self._evictor.run(self._state.evictions.over(lower.uid))

    def _report(self, decision: Decision) -> None:
        entry = self._queue.get(decision.pod.uid)
        pod = entry.pod if entry is not None else decision.pod
        finder, message = decision.framework.next_pod, decision.message()
        if finder is not None:
            try:
                message = finder.wording(pod, message)
            except DEFECTS:
                log.exception("plugin %s: wording for pod %s failed", finder.name, pod.key)
        self._reporter.failed(pod, message, error=decision.verdict == ERROR, nominate=decision.nominate, now=self._clock())

    def requeue(self, uid: str, now: float, **how: Any) -> None:
        """Back to the queue, unless the pod is gone, on a node, or on its way out by now."""
        entry = self._queue.get(uid)
        if entry is None or entry.state != IN_FLIGHT or uid in self._evicting:
            return
        if entry.pod.deleting:
            self._nominate(entry.pod, "")
            self._queue.done(uid)
        elif self._cache.cluster.slot_of_pod(uid) >= 0:
            self._queue.done(uid)
        else:
            self._queue.requeue(uid, now, **how)
