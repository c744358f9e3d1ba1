"""Decisions made again: a scheduler of its own, which lives by a journal (BEY-REPLAY-01).

It is the live scheduler without a way out: objects, answers and moments come from the journal in their order, and each pod has its turn
when it had it then. What was decided then is carried out whatever is decided now, so that every decision is made on the state of then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from koord import seams
from koord.config.scheduler import KubeSchedulerConfiguration, LeaderElection, parse
from koord.decisions.deltas import Obj
from koord.decisions.recorder import Recorder
from koord.process.http import OpsServer
from roles.scheduler.app import App
from roles.scheduler.binding.binder import Outcome
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import SCHEDULED, Decision
from roles.scheduler.cycle.record import record_of
from roles.scheduler.framework.status import Code, Status
from roles.scheduler.framework.steps import at_once
from roles.scheduler.journal.lines import FORMAT, Decided, Happening, Made, Operation, Told
from roles.scheduler.journal.watches import Watches
from roles.scheduler.live import made_of
from roles.scheduler.options import Options
from roles.scheduler.planner import evictions, placements
from roles.scheduler.queue.entry import IN_FLIGHT, Entry
from roles.scheduler.turns import CATCH_UP

NOT_ASKED = "NotAsked"
"""Verdict on a pod that has no turn now: a preEnqueue plugin keeps it out, or it is somewhere else."""


_END: Any = object()
_BETWEEN = frozenset((Operation.ATTEMPT, Operation.OUTSIDE, Operation.NOTHING, Operation.WORK, Operation.FLUSH))
"""What happens between two pods' turns only."""


class Moment(seams.System):
    """Surroundings whose wall clock shows what the journal says."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def now(self) -> float:
        return self.time


@dataclass(slots=True)
class Turn:
    """A pod's turn: what was decided then and what is decided now. `decision` is there where a cycle ran; good until the next turn."""

    pod: str
    now: float
    then: Decided
    today: Decided
    decision: Decision | None = None
    refusal: Status | None = None

    @property
    def same(self) -> bool:
        """Whether the same is decided: verdict, node, nomination and victims."""
        a, b = self.then.made, self.today.made
        return (a.verdict, a.node, a.nominated or "", sorted(a.victims)) == (b.verdict, b.node, b.nominated or "", sorted(b.victims))

    @property
    def alike(self) -> bool:
        """Whether it is also explained by the same rule, score and message."""
        then, today = self.then, self.today
        return self.same and (not then.message or (then.rule, then.score, then.message) == (today.rule, today.score, today.message))


def options_of(head: Obj, config: KubeSchedulerConfiguration | None) -> Options:
    """How the scheduler of a journal was set up, with its own configuration or another. Raises InvalidConfig, ValueError."""
    if head.get("format") != FORMAT:
        raise ValueError(f"the journal has format {head.get('format')!r}, this koord reads {FORMAT}")
    model = parse(head["config"], "the journal's configuration") if config is None else config.model_copy()
    model.leader_election = LeaderElection.model_validate({**model.leader_election.model_dump(), "leader_elect": False})
    return Options(
        model,
        plugin_paths=tuple(head["pluginPaths"]),
        gates=dict(head["featureGates"]),
        network_topology=head["networkTopology"],
        max_unschedulable=head["maxUnschedulable"],
        verify=0,
        seed=0,
    )


class Replay:
    """One scheduler that lives by a journal. Feed it the items in order; `turns` is told of every decision, before it is carried out.

    Raises PluginError or InvalidConfig for a configuration that cannot run.
    """

    def __init__(self, head: Obj, moment: Moment, *, config: KubeSchedulerConfiguration | None = None) -> None:
        self._head, self._moment = head, moment
        moment.time = head["time"]
        recorder = Recorder("scheduler")
        recorder.sinks.clear()  # what is decided is told by turns
        self._watches = Watches()
        ops = OpsServer(recorder=recorder, role="scheduler")
        self._app = app = App(options_of(head, config), client=None, informers=self._watches, recorder=recorder, ops=ops)
        self._scheduler = app.scheduler
        self._without_hands()
        app.observer.attach(self._watches)
        version, numbers, gauss = head["random"]
        app.engine.state.random.setstate((version, tuple(numbers), gauss))
        app.engine.state.next_start = head["nextStart"]
        self._standing = True  # objects are told that stood there before
        self._pods: dict[str, str] = {}
        self._turn: Turn | None = None
        self._happening: Happening | None = None
        self._then: Decided | None = None
        self._paused: Generator[Any, None, Any] | None = None
        self.told: Callable[[Turn], None] = lambda turn: None
        self._scheduler.ruling = self._rule

    def _without_hands(self) -> None:
        """Nothing is written, read or waited for: what came of it is in the journal."""
        app, scheduler = self._app, self._scheduler
        app.binder.submit = lambda task: any(p.waits(task.decision.ctx) for p in task.decision.framework.pre_binds)  # type: ignore[method-assign]
        scheduler.evictor._start = lambda name, function, *args: None  # type: ignore[method-assign]
        scheduler.carrier._steps[placements.Do.READ] = lambda placement, task: ()
        for name in ("failed", "waits", "nominated", "scheduled", "event"):
            setattr(app.reporter, name, lambda *args, **more: None)

    # ---------------------------------------------------------------- items

    def take(self, item: Told | Happening | None) -> None:
        """What happened next; None: what stood there is told. Decisions are taken by `turn`."""
        if item is None:
            self._settle_in()
        elif isinstance(item, Told):
            self._moment.time = item.now
            self._watches.tell(item)
        else:
            self._moment.time = item.now
            self._steps[item.what](self, item)

    def _settle_in(self) -> None:
        self._standing = False
        engine, cache = self._app.engine, self._app.cache
        for uid, node in self._head["nominations"]:
            entry = self._app.queue.get(uid)
            if entry is not None:
                engine.state.nominations.add(entry.pod, node)
        for uid, node in self._head["assumed"]:
            entry, slot = self._app.queue.get(uid), engine.cluster.slot_of(node)
            if entry is not None and slot >= 0:
                self._app.queue.delete(uid)
                cache.assume(entry.pod, slot)

    def turn(self, item: Happening, then: Decided | None) -> None:
        """A pod's turn, and what was decided then; None: nothing was, because the pod went or another turn came before the end."""
        self._moment.time = item.now
        self._happening, self._then = item, then
        if self._paused is not None:
            self._paused.close()
            self._paused = None
        entry = self._next(item.uid, item.now)
        if entry is None:
            if then is not None:
                self._not_asked(item, then)
            return
        self._go_on(self._scheduler._attempting(entry))

    def _go_on(self, work: Generator[Any, None, Any]) -> None:
        self._paused = work
        try:
            while next(work) is not CATCH_UP:
                pass
        except StopIteration:
            self._paused = None

    def _next(self, uid: str, now: float) -> Entry | None:
        """What the live scheduler does before a pod's turn: plugins are asked first."""
        queue = self._app.queue
        found = self._asked(uid, now)
        if found is not None:
            return found
        queue.flush_backoff(now)
        entry = queue.get(uid)
        if entry is not None and entry.gate and not self._app.engine.pre_enqueue(entry.pod).ok:
            return None
        return queue.take(uid, now)

    def _asked(self, uid: str, now: float, *, once: bool = False) -> Entry | None:
        """Ask the plugins who is next, `once`: until they have done some work."""
        queue = self._app.queue
        for framework in self._app.engine.frameworks.values():
            plugin = framework.next_pod
            while plugin is not None and (wanted := framework.ask(plugin, "NextPod", plugin.next_pod)) is not None:
                if not isinstance(wanted, PodInfo):
                    at_once(wanted)
                    if once:
                        return None
                elif wanted.uid == uid:
                    return queue.take(uid, now)
                elif (entry := queue.get(wanted.uid)) is not None and entry.state != IN_FLIGHT:
                    break  # it had no turn then
        return None

    def _not_asked(self, item: Happening, then: Decided) -> None:
        entry = self._app.queue.get(item.uid)
        refusal = self._app.engine.pre_enqueue(entry.pod) if entry is not None else None
        name = entry.pod.key if entry is not None else item.uid
        rule = refusal.plugin if refusal is not None else ""
        self.told(Turn(name, item.now, then, Decided(Made(NOT_ASKED), rule), refusal=refusal))

    # ---------------------------------------------------------------- decisions

    def _rule(self, decision: Decision) -> Decision:
        """A decision was made: tell it, and have carried out what was decided then."""
        then, item = self._then, self._happening
        if then is None or item is None:
            return decision
        self._then = None
        record = record_of(decision, now=item.now)
        made = made_of(decision)
        today = Decided.of(made, record)
        turn = Turn(decision.pod.reservation or decision.pod.key, item.now, then, today, decision)
        if not turn.same and self._tied(decision, then):
            turn.today = msgspec.structs.replace(today, made=then.made)
        self.told(turn)
        return decision if made.node == then.made.node and turn.same else self._as_then(decision, then.made)

    def _tied(self, decision: Decision, then: Decided) -> bool:
        """Whether the node of then is one of several that are best now: the lot decides between them."""
        if not decision.scheduled or then.made.verdict != SCHEDULED or decision.ties < 2 or decision.evaluation is None:
            return False
        slot = self._app.engine.cluster.slot_of(then.made.node)
        return slot >= 0 and float(decision.evaluation.totals[slot]) == decision.total

    def _as_then(self, decision: Decision, then: Made) -> Decision:
        cluster, ctx = self._app.engine.cluster, decision.ctx
        slot = cluster.slot_of(then.node) if then.node else -1
        if then.verdict == SCHEDULED and slot >= 0:
            decision.verdict, decision.node, decision.slot, decision.status = SCHEDULED, then.node, slot, Status()
            decision.nominate, decision.victims, decision.others = None, (), ()
            restorer = decision.framework.restorer
            ctx.reservation = restorer.nominate(ctx, slot) if restorer is not None and slot in ctx.restored else None
            return decision
        decision.verdict, decision.slot, decision.node = then.verdict, -1, ""
        decision.status = decision.status if not decision.status.ok else Status(Code.UNSCHEDULABLE)
        known = (cluster.pod(uid) for uid in then.victims)
        decision.nominate, decision.victims = then.nominated, tuple(pod for pod in known if pod is not None)
        return decision

    # ---------------------------------------------------------------- happenings

    def _went_on(self, item: Happening) -> None:
        if self._paused is not None:
            self._go_on(self._paused)

    def _nothing(self, item: Happening) -> None:
        self._asked("", item.now)
        self._app.queue.flush_backoff(item.now)

    def _work(self, item: Happening) -> None:
        later = self._scheduler._later
        if later:
            at_once(later.popleft())
        elif self._app.queue.returning:
            at_once(self._app.queue.come_back(item.now))
        else:
            self._asked("", item.now, once=True)

    def _tick(self, item: Happening) -> None:
        leading = bool(item.more[0])
        self._scheduler._leading = lambda: leading
        self._scheduler._tick()

    def _bound(self, item: Happening) -> None:
        outcome, code, plugin, message = item.more
        placement = self._scheduler.placements.get(item.uid)
        if placement is not None and placement.task is not None:
            status = Status(Code(code), (message,) if message else (), plugin)
            self._scheduler.carrier.finished(placement.task, Outcome(outcome), status)

    def _found(self, item: Happening) -> None:
        machine = self._scheduler.placements
        placement = machine.get(item.uid)
        if placement is not None:
            self._scheduler.carrier.run(machine.found(placement, placements.Found(item.more[0]), item.now))

    def _answered(self, item: Happening) -> None:
        machine = self._app.engine.state.evictions
        self._scheduler.evictor.run(machine.answered(item.uid, evictions.Answer(item.more[0]), item.now))

    def _seen(self, item: Happening) -> None:
        self._scheduler.evictor.run(self._app.engine.state.evictions.found(item.uid, item.more[0], item.now))

    def _places(self, item: Happening) -> None:
        placement = self._scheduler.placements.get(item.uid)
        if placement is not None and placement.task is not None:
            placement.task.announced = True

    _steps: dict[Operation, Callable[[Replay, Happening], None]] = {
        Operation.WENT_ON: _went_on,
        Operation.NOTHING: _nothing,
        Operation.WORK: _work,
        Operation.TICK: _tick,
        Operation.FLUSH: lambda self, item: self._scheduler._flush(),
        Operation.RESIZES: lambda self, item: self._app.resizes.look(),
        Operation.BOUND: _bound,
        Operation.FOUND: _found,
        Operation.ANSWERED: _answered,
        Operation.SEEN: _seen,
        Operation.PLACES: _places,
        Operation.OUTSIDE: lambda self, item: None,
    }


def turns(items: Iterable[Any], take: Callable[[Any], None], turn: Callable[[Happening, Decided | None], None]) -> None:
    """Hand a journal's items to `take`, and pods' turns with what was decided then to `turn`, in order."""
    waiting: deque[Any] = deque()
    source = iter(items)
    while True:
        item = waiting.popleft() if waiting else next(source, _END)
        if item is _END:
            return
        if isinstance(item, Decided):
            continue  # of a turn that was handed on
        if not isinstance(item, Happening) or item.what is not Operation.ATTEMPT:
            take(item)
            continue
        then: Decided | None = None
        while then is None and not (waiting and isinstance(waiting[-1], Happening) and waiting[-1].what in _BETWEEN):
            following = next(source, _END)
            if following is _END:
                break
            if isinstance(following, Decided):
                then = following
            else:
                waiting.append(following)
        turn(item, then)
