"""Scheduling without a cluster to write to: who is next, reserve, permit, and back, as the live scheduler does it, in memory only.

What differs from live scheduling: nothing is bound or evicted, so victims are named and stay, and nobody rests after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from roles.scheduler.binding.waiting import WaitingPods
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import ERROR, UNSCHEDULABLE, Decision
from roles.scheduler.engine import Engine
from roles.scheduler.framework.status import JOB_PREEMPTION_SUCCESS, JOB_REJECT, Code, Status, unschedulable
from roles.scheduler.framework.steps import at_once

_MOST_TRIES = 5  # of one pod that plugins bring back again and again


@dataclass(slots=True)
class Outcome:
    """What became of a pod: a decision, or what kept it out of the queue."""

    pod: PodInfo
    decision: Decision | None = None
    refusal: Status | None = None


class Rehearsal:
    """`pending` are pods without a node that the live scheduler would have in its queue: they are tried when a plugin names them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.waiting = WaitingPods()
        self.pending: dict[str, PodInfo] = {}
        self._queue: dict[str, PodInfo] = {}
        self._tries: dict[str, int] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._placed: list[Decision] = []
        for handle in engine.handles.values():
            handle.waiting, handle.activate = self.waiting, self._activate

    def run(self, pods: Sequence[PodInfo]) -> list[Outcome]:
        """Try pods in this order, and in between those that plugins name. They stay where they were placed."""
        self._tries, self._outcomes, self._placed = {}, {}, []
        for pod in pods:
            self.pending.pop(pod.uid, None)
        self._queue = {pod.uid: pod for pod in pods}
        while (chosen := self._next()) is not None:
            self._attempt(chosen)
        self.pending.update(self._queue)
        return [self._outcomes[pod.uid] for pod in pods]

    def take_back(self) -> None:
        """The pods that `run` placed, and those that it left waiting, are on no node again. What plugins noted of jobs stays."""
        for waiting in self.waiting.all():
            self.waiting.drop(waiting.pod.uid)
        for decision in reversed(self._placed):
            self._unreserve(decision)
        self._placed = []

    @property
    def attempts(self) -> int:
        """How many the last run took."""
        return sum(self._tries.values())

    # ---------------------------------------------------------------- who is next

    def _next(self) -> PodInfo | None:
        for framework in self._engine.frameworks.values():
            plugin = framework.next_pod
            while plugin is not None and (wanted := plugin.next_pod()) is not None:
                if not isinstance(wanted, PodInfo):
                    at_once(wanted)
                    continue
                known = self._queue if wanted.uid in self._queue else self.pending
                if wanted.uid in known and self._tries.get(wanted.uid, 0) < _MOST_TRIES:
                    return known.pop(wanted.uid)
        for uid, pod in list(self._queue.items()):
            gate = self._engine.pre_enqueue(pod)
            if gate.ok:
                return self._queue.pop(uid)
            if uid not in self._outcomes:
                self._outcomes[uid] = Outcome(pod, refusal=gate)
        return None

    def _activate(self, pods: Iterable[PodInfo]) -> None:
        for pod in pods:
            if pod.uid in self.pending and self._tries.get(pod.uid, 0) < _MOST_TRIES:
                self._queue[pod.uid] = self.pending.pop(pod.uid)

    # ---------------------------------------------------------------- one attempt

    def _attempt(self, pod: PodInfo) -> None:
        self._tries[pod.uid] = self._tries.get(pod.uid, 0) + 1
        decision = self._engine.cycle.decide(pod)
        decision.take_effect()
        self._outcomes[pod.uid] = Outcome(pod, decision)
        if decision.scheduled:
            self._reserve(decision)
            return
        nominations = self._engine.state.nominations
        if decision.nominate is not None:
            nominations.add(pod, decision.nominate)
        for other, node in decision.others:
            nominations.add(other, node)
        self.pending[pod.uid] = pod

    def _reserve(self, decision: Decision) -> None:
        framework, cluster = decision.framework, self._engine.cluster
        framework.run_resize(decision.ctx, decision.slot)
        cluster.place(decision.pod, decision.slot)
        self._placed.append(decision)
        status = framework.run_reserve(decision.ctx, decision.slot)
        if not status.ok:
            self._fail(decision, status)
            return
        status, waits = framework.run_permit(decision.ctx, decision.slot)
        if status.code is Code.WAIT:
            text = f"the pod would wait on node {decision.node} for {', '.join(sorted(waits))}"
            decision.verdict, decision.status = UNSCHEDULABLE, unschedulable(text)
            nominated = self._engine.state.nominations.node_of(decision.pod.uid)
            self._engine.state.nominations.remove(decision.pod.uid)
            self.waiting.hold(decision.pod, decision.node, waits, self._engine.state.now, self._resumed(decision, nominated))
        elif status.ok:
            self._bound(decision)
        else:
            self._fail(decision, status)

    def _resumed(self, decision: Decision, nominated: str) -> Callable[[Status], None]:
        return lambda answer: self._bound(decision) if answer.ok else self._fail(decision, answer, nominated)

    def _bound(self, decision: Decision) -> None:
        decision.verdict, decision.status = "Scheduled", Status()
        self._engine.state.nominations.remove(decision.pod.uid)
        decision.framework.run_post_bind(decision.ctx, decision.node)

    def _fail(self, decision: Decision, status: Status, nominated: str = "") -> None:
        """The pod lost its place; it was nominated to that node before."""
        pod, nominations = decision.pod, self._engine.state.nominations
        decision.verdict = UNSCHEDULABLE if status.rejected else ERROR
        decision.status = status
        self._placed.remove(decision)
        self._unreserve(decision)
        nominations.add(pod, {JOB_REJECT: nominated, JOB_PREEMPTION_SUCCESS: decision.node}.get(status.plugin, ""))
        self.pending[pod.uid] = pod

    def _unreserve(self, decision: Decision) -> None:
        cluster = self._engine.cluster
        decision.framework.run_unreserve(decision.ctx, cluster.slot_of(decision.node))
        cluster.remove_pod(decision.pod.uid)
        decision.framework.run_forget(decision.pod)
