"""Sends bindings (SCH-FW-06, SCH-FW-12): preBind, one patch, bind, so many at a time, and what each answer says about the pod."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from koord.api import trust
from koord.kube.errors import ApiError, Conflict, Invalid, NotFound, ServerError, Unreachable
from koord.seams import perf_counter
from roles.scheduler.cluster.defects import DEFECTS, ends_us
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.extenders.chain import Extenders
from roles.scheduler.extenders.client import ExtenderError, ExtenderRefusal
from roles.scheduler.framework.answers import check_draft, status_of
from roles.scheduler.framework.context import BindDraft
from roles.scheduler.framework.framework import Framework, told
from roles.scheduler.framework.interfaces import Plugin
from roles.scheduler.framework.status import SUCCESS, Code, Status, error
from roles.scheduler.gate import Gate
from roles.scheduler.planner.placements import Placement
from roles.scheduler.tasks import Tasks

log = logging.getLogger(__name__)

_RESERVED = frozenset(trust.RESERVED)
_UNKNOWN = "\0"  # no annotation has this value
_LEASE_LOST = "the lease is lost: no more writes"


class Outcome(Enum):
    """What became of a binding."""

    BOUND = "bound"
    RETRY = "retry"  # not bound: back to the queue with backoff
    OPEN = "open"  # failed, and only the API server knows in which state the pod is
    LOST = "lost"  # no answer, or one of a server that was not able to finish: it may have taken place, or take place yet
    REJECTED = "rejected"  # a plugin refused
    PARKED = "parked"  # the API server will not have it: no use in trying again soon
    GONE = "gone"  # the pod is no more, or not ours any more


@dataclass(slots=True)
class Task:
    """One placement on its way. `attempt` counts the pod's attempts, `first` is when the first one began (seconds), `began` when this one
    did. `outcome` and `status` are what came last; the outcome is None until Reserve and Permit are through. `waits`: who holds the pod on
    permit, for how many seconds at most; `prepared`: preBind is done, and `wrote` these annotations (None: took them off); `unsure`: those
    that former placements wrote, which the pod may have whether it shows them or not; `announced`: the pod shows the node that was found
    for it; `nominated`: the node to which the pod was nominated before, empty for none."""

    decision: Decision
    attempt: int
    first: float = 0.0
    began: float = 0.0
    outcome: Outcome | None = None
    status: Status = SUCCESS
    prepared: bool = False
    wrote: dict[str, str | None] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    announced: bool = False
    nominated: str = ""
    waits: dict[str, float] = field(default_factory=dict)
    placement: Placement | None = None


Finished = Callable[[Task, Outcome, Status], None]
Measure = Callable[[str, Status, str, float], None]
Reread = Callable[[PodInfo], PodInfo | None]


class Binder:
    """`workers` bindings at a time. `may_write` is asked before every write: a lost lease stops binding at once.

    `reread(pod)` gives the pod as the informer has it now (None = gone); with `check` every pod is looked at once more before it is bound.
    `quiet(uid)` ends what is being told about a pod before it is bound.
    """

    def __init__(
        self,
        *,
        workers: int,
        finished: Finished,
        may_write: Callable[[], bool],
        reread: Reread | None = None,
        check: bool = True,
        extenders: Extenders | None = None,
        measure: Measure = lambda point, status, profile, seconds: None,
        quiet: Callable[[str], Awaitable[None]] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._count = max(1, workers)
        self._finished = finished
        self._may_write = may_write
        self._reread = reread
        self._check = check and reread is not None
        self._extenders = extenders
        self._measure = measure
        self._quiet = quiet
        self._gate = gate or Gate()
        self._queue: deque[Task] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()  # workers that have nothing to do, each waiting by itself
        self._busy = 0
        self._tasks = Tasks()

    def start(self) -> None:
        """Start the workers on the running loop."""
        for number in range(self._count):
            self._tasks.start(self._gate.drive(self._work), f"binder {number}")

    async def stop(self) -> None:
        """Cancel what is under way; pods that were not bound are found pending by the next leader."""
        await self._tasks.stop()

    def submit(self, task: Task) -> bool:
        """Bind a pod as soon as a worker is free, at once if something outside must be waited for; returns whether that is so."""
        decision = task.decision
        if any(plugin.waits(decision.ctx) for plugin in decision.framework.waiting):
            self._by_itself(self._run, task)
            return True
        self._queue.append(task)
        while self._idle:
            worker = self._idle.pop()
            if not worker.done():
                worker.set_result(None)
                break
        return False

    def withdraw(self, task: Task) -> None:
        """Others have bound the pod: what was written on it for the placement that was decided here is not to be obeyed."""
        framework = task.decision.framework
        written = {key: value for key, value in task.wrote.items() if value is not None}
        if written and framework.patchers:
            self._by_itself(self._withdraw, task, written)

    async def _withdraw(self, task: Task, written: dict[str, str]) -> None:
        for patcher in task.decision.framework.patchers:
            try:
                if self._may_write():
                    await patcher.withdraw(task.decision.ctx, written)
            except NotFound:
                return
            except DEFECTS as failure:
                if ends_us(failure):
                    raise
                pod, node = task.decision.pod.key, task.decision.node
                log.error("pod %s was bound by others, and shows what was written for node %s: %s", pod, node, told(failure))

    def _by_itself(self, function: Callable[..., Coroutine[Any, Any, None]], task: Task, *args: Any) -> None:
        self._tasks.start(self._gate.drive(function, task, *args), f"binding of {task.decision.pod.key}")

    @property
    def backlog(self) -> int:
        """Placements that are not finished."""
        return len(self._queue) + self._busy

    async def _work(self) -> None:
        while True:
            while not self._queue:
                idle = asyncio.get_running_loop().create_future()
                self._idle.append(idle)
                await idle
            await self._run(self._queue.popleft())

    async def _run(self, task: Task) -> None:
        """Bind one pod and hand over what came of it. Never raises but for cancellation: a worker lives as long as the binder does."""
        self._busy += 1
        try:
            outcome, status = await self._carry_out(task)
        finally:
            self._busy -= 1
        try:
            self._finished(task, outcome, status)
        except DEFECTS:
            log.exception("what follows from the binding of %s failed", task.decision.pod.key)

    async def _carry_out(self, task: Task) -> tuple[Outcome, Status]:
        """Bind one pod. Never raises but for cancellation: a defect in a plugin costs that pod an attempt, not the scheduler."""
        pod = task.decision.pod
        try:
            refusal = await self._prepare(task)
            if refusal is not None:
                return refusal
        except NotFound as failure:
            gone = failure.details.get("name", pod.name) in (pod.name, pod.reservation)
            return (Outcome.GONE if gone else Outcome.RETRY), error(f"binding rejected: {failure}")
        except ApiError as failure:
            return _outcome_of(failure, {Invalid: Outcome.PARKED})
        except DEFECTS as failure:
            if ends_us(failure):
                raise
            log.exception("preparing the binding of %s failed", pod.key)
            return Outcome.RETRY, error(f"binding failed: {told(failure)}")
        try:
            return await self._bind(task.decision)
        except (Unreachable, ServerError) as failure:
            return Outcome.LOST, error(f"binding failed: {failure}")
        except ApiError as failure:
            return _outcome_of(failure, {NotFound: Outcome.GONE, Conflict: Outcome.OPEN, Invalid: Outcome.PARKED})
        except DEFECTS as failure:
            if ends_us(failure):
                raise
            log.exception("binding of %s failed", pod.key)
            return Outcome.OPEN, error(f"binding failed: {told(failure)}")

    async def _prepare(self, task: Task) -> tuple[Outcome, Status] | None:
        """Everything before the binding itself; None when it may be sent."""
        decision = task.decision
        framework = decision.framework
        refusal = self._look_again(decision)
        if refusal is not None:
            return Outcome.GONE, refusal
        draft = self._written_since(task) if task.prepared else BindDraft()
        if framework.pre_binds and not (task.prepared and draft.empty):
            began = perf_counter()
            status = await self._pre_bind(task, draft)
            self._measure("PreBind", status, framework.name, perf_counter() - began)
            if not status.ok:
                return (Outcome.REJECTED if status.rejected else Outcome.RETRY), status
        task.prepared = True
        cluster = decision.ctx.cluster
        slot = cluster.slot_of(decision.node)
        if slot < 0 or not cluster.alive[slot]:
            return Outcome.RETRY, error(f"node {decision.node} is gone")
        if self._quiet is not None:
            await self._quiet(decision.pod.uid)
        return None

    async def _bind(self, decision: Decision) -> tuple[Outcome, Status]:
        framework, ctx, node = decision.framework, decision.ctx, decision.node
        if self._extenders is not None:
            answer = await self._bind_by_extender(self._extenders, decision)
            if answer is not None:
                return answer
        began = perf_counter()
        for plugin in framework.binds:
            if not self._may_write():
                return Outcome.RETRY, error(_LEASE_LOST)
            status = await self._timed(framework, plugin, "Bind", plugin.bind(ctx, node))
            if status.code is Code.SKIP:
                continue
            self._measure("Bind", status, framework.name, perf_counter() - began)
            if not status.ok:
                return Outcome.OPEN, status.by(plugin.name)
            return Outcome.BOUND, SUCCESS
        return Outcome.RETRY, error("no bind plugin took the pod")

    async def _bind_by_extender(self, extenders: Extenders, decision: Decision) -> tuple[Outcome, Status] | None:
        """Let the extender that binds pods like this one do it; None leaves it to the bind plugins."""
        bind = extenders.binds(decision.pod)
        if bind is None:
            return None
        if not self._may_write():
            return Outcome.RETRY, error(_LEASE_LOST)
        try:
            await bind(decision.node)
        except ExtenderError as failure:
            if extenders.bind_is_ignorable:
                log.warning("%s; it is ignorable, so the bind plugins go on", failure)
                return None
            refused = isinstance(failure, ExtenderRefusal)
            return (Outcome.OPEN if refused else Outcome.LOST), error(f"binding failed: {failure}")
        return Outcome.BOUND, SUCCESS

    def _look_again(self, decision: Decision) -> Status | None:
        """SCH-FW-12: is the pod still there, still ours, and not being deleted?"""
        if not self._check or self._reread is None:
            return None
        pod = decision.pod
        current = self._reread(pod)
        if current is None or current.uid != pod.uid:
            return error(f"pod {pod.key} is gone")
        if current.shape.scheduler_name != decision.framework.name:
            return error(f"pod {pod.key} belongs to scheduler {current.shape.scheduler_name!r} now")
        if current.deleting:
            return error(f"pod {pod.key} is being deleted")
        if current.node_name not in ("", decision.node):
            return error(f"pod {pod.key} is on node {current.node_name}")
        return None

    async def _timed(self, framework: Framework, plugin: Plugin, point: str, step: Awaitable[Status]) -> Status:
        """Await a plugin's step; about a tenth of them are measured."""
        timer = framework.timer
        if timer is None:
            return await step
        began = perf_counter()
        status = await step
        timer(plugin.name, point, status, perf_counter() - began)
        return status

    def _written_since(self, task: Task) -> BindDraft:
        """What has to be written before a binding is sent again: others may have written what only schedulers write meanwhile."""
        draft, pod = BindDraft(), task.decision.pod
        current = self._reread(pod) if self._reread is not None and task.decision.framework.patchers and not pod.reservation else None
        draft.present = current.pod.metadata.annotations or {} if current is not None else {}
        for key, value in draft.present.items():
            if key in _RESERVED and task.wrote.get(key) != value:
                draft.annotations[key] = task.wrote.get(key)
        return draft

    async def _pre_bind(self, task: Task, draft: BindDraft) -> Status:
        decision, framework = task.decision, task.decision.framework
        for plugin in () if task.prepared else framework.pre_binds:
            step = plugin.pre_bind(decision.ctx, decision.node, draft)
            status = await (step if framework.timer is None else self._timed(framework, plugin, "PreBind", step))
            if status is not SUCCESS and not status_of(plugin, "pre_bind", status).ok and status.code is not Code.SKIP:
                return status.by(plugin.name)
            if not draft.empty:
                check_draft(plugin, draft)
        if framework.patchers and not task.prepared:
            _leave_nothing(decision.ctx.pod, task.unsure, draft)
            task.wrote = dict(draft.annotations)
        if draft.empty:
            return SUCCESS
        for patcher in framework.patchers:
            if not self._may_write():
                return error(_LEASE_LOST)
            status = await patcher.apply(decision.ctx, decision.node, draft)
            if status.code is not Code.SKIP:
                return status if status.ok else status.by(patcher.name)
        return error("preBind plugins want annotations written, but no plugin of the profile writes them (DefaultPreBind)")


def _outcome_of(failure: ApiError, rejections: Mapping[type[ApiError], Outcome]) -> tuple[Outcome, Status]:
    """What an answer comes to that is an error."""
    for kind, outcome in rejections.items():
        if isinstance(failure, kind):
            return outcome, error(f"binding rejected: {failure}")
    return Outcome.RETRY, error(f"binding failed: {failure}")


def _leave_nothing(pod: PodInfo, unsure: frozenset[str], draft: BindDraft) -> None:
    """What no plugin wants of the annotations that only schedulers write goes: it is left over, or of the pod's author (BEY-SEC-03). Of
    those that nobody is sure about all are written."""
    if pod.reservation:
        return
    present = pod.pod.metadata.annotations or {}
    for key in (*present, *unsure):
        if key in _RESERVED:
            draft.annotations.setdefault(key, None)
    if unsure:
        draft.present = {**present, **dict.fromkeys(unsure, _UNKNOWN)}
