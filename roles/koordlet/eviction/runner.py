"""Carrying eviction tasks out: victim by victim, accounting shared by the tasks of a tick (KA-EVX-01)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from koord import seams
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.eviction.evictor import LINGERS, REMEMBER, Evictor, PassedOver, Unanswered
from roles.koordlet.eviction.tasks import EvictionTask, Ledger, Victim

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

FEATURES = ("KA-EVX-01",)


@dataclass(eq=False)
class EvictionRunner:
    """Runs the tasks of a strategy in the background, one run a strategy at a time; runs of different strategies take turns.

    ``mode_of`` says for a gate whether its evictions are carried out or only recorded.
    """

    evictor: Evictor
    recorder: Recorder
    mode_of: Callable[[str], Mode]
    _: KW_ONLY
    metrics: Metrics | None = None
    clock: Callable[[], float] = seams.now
    steady: Callable[[], float] = seams.monotonic

    def __post_init__(self) -> None:
        self._told_to_leave: dict[str, float] = {}
        """Pods that were evicted, and when (monotonic)."""
        self._hastens = bool(getattr(self.evictor, "hastens", True))
        self._takes_critical = "critical" in inspect.signature(self.evictor.evict).parameters
        self._lock = asyncio.Lock()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._would: dict[tuple[str, str], float] = {}

    def busy(self, strategy: str) -> bool:
        return strategy in self._running

    def submit(self, strategy: str, tasks: Sequence[EvictionTask], mode: Mode, done: Callable[[int], None]) -> None:
        """Start a run; ``done`` gets the number of newly evicted pods. A strategy that is busy loses this one."""
        if self.busy(strategy):
            return
        work = asyncio.get_running_loop().create_task(self._run(strategy, tuple(tasks), mode, done), name=f"evictions of {strategy}")
        self._running[strategy] = work

    async def stop(self) -> None:
        """Cancel what runs."""
        running = list(self._running.values())
        for work in running:
            work.cancel()
        if running:
            await asyncio.wait(running)

    async def _run(self, strategy: str, tasks: tuple[EvictionTask, ...], mode: Mode, done: Callable[[int], None]) -> None:
        fresh = 0
        try:
            async with self._lock:
                fresh = await self.run(tasks, mode)
        except Exception:
            log.exception("evictions of %s failed", strategy)
        finally:
            self._running.pop(strategy, None)
            done(fresh)

    async def run(self, tasks: tuple[EvictionTask, ...], mode: Mode = Mode.ENFORCE) -> int:
        """Walk the tasks in order; the number of newly evicted pods.

        Pods that are about to leave anyhow are waited for, unless the need is critical; what those hold that may stay for long is not
        counted on. What a task that only observes would have evicted
        counts for its like: it frees nothing for a task that evicts. While the API server is silent, nobody is asked in vain: a need that
        is critical may be waiting for its turn.
        """
        critical = any(task.critical for task in tasks)
        going = {v.pod.uid: v for task in tasks for v in task.victims if self._goes(v, critical)}
        ledgers = {observe: Ledger(tasks, going.values()) for observe in (False, True)}
        handled = {observe: set(going) for observe in (False, True)}
        fresh, silent = 0, False
        for task in tasks:
            observe = Mode.OBSERVE in (mode, self.mode_of(task.gate))
            ledger = ledgers[observe]
            if silent and not (observe or task.critical):
                continue
            for victim in sorted(task.victims, key=self._evicted_in_vain):
                if ledger.covers(task):
                    break
                uid = victim.pod.uid
                if uid in handled[observe] or self.evictor.recently_evicted(uid):
                    continue
                handled[observe].add(uid)
                if victim.lingering and not self._hastens:
                    continue
                if observe:
                    ledger.add(victim)
                    self._observed(task, victim)
                    continue
                refusal = await self._evict(task, victim)
                if isinstance(refusal, Unanswered):
                    silent = True
                    handled[observe].discard(uid)
                    break
                if refusal is None:
                    ledger.add(victim)
                    if uid not in handled[True]:
                        handled[True].add(uid)
                        ledgers[True].add(victim)
                    fresh += 1
            if not ledger.covers(task):
                log.info("%s: not enough could be evicted: %s of %s", task.gate, ledger.released(task), dict(task.targets))
        return fresh

    def _goes(self, victim: Victim, critical: bool) -> bool:
        """Whether what a pod holds comes free without a call. One that was evicted is not counted on for long unless it is about to go."""
        told = self.evictor.recently_evicted(victim.pod.uid) or (victim.ending and not critical)
        return told and (victim.ending or self._since(victim) < LINGERS)

    def _evicted_in_vain(self, victim: Victim) -> bool:
        """Whether a pod is still there although its eviction was long enough ago: others are taken first."""
        return not victim.ending and LINGERS <= self._since(victim) < REMEMBER

    def _since(self, victim: Victim) -> float:
        """Seconds since the pod was evicted."""
        return self.steady() - self._told_to_leave.get(victim.pod.uid, -math.inf)

    async def _evict(self, task: EvictionTask, victim: Victim) -> str | None:
        """What stood against it, or None."""
        pod = victim.pod
        how = {"critical": task.critical} if self._takes_critical else {}
        try:
            refusal = await self.evictor.evict(pod, task.gate, task.message, **how)
        except (Exception, SystemExit) as error:  # an evictor of somebody else's: this victim is passed over, and those before it count
            log.exception("the evictor failed at pod %s", pod.key)
            refusal = f"the evictor failed: {type(error).__name__}: {error}"
        if refusal is None:
            now = self.steady()
            self._told_to_leave = {uid: at for uid, at in self._told_to_leave.items() if now - at < REMEMBER}
            self._told_to_leave[pod.uid] = now
            self._record(task, victim, "Evicted", task.message)
            log.info("%s evicted pod %s: %s", task.gate, pod.key, task.message)
            return None
        if isinstance(refusal, PassedOver):
            return refusal
        self._record(task, victim, "EvictionRefused", f"{refusal}; {task.message}")
        log.warning("%s could not evict pod %s: %s", task.gate, pod.key, refusal)
        return refusal

    def _observed(self, task: EvictionTask, victim: Victim) -> None:
        """Once a minute for a gate and a pod: it would be evicted again and again, since nothing is done."""
        now = self.clock()
        key = (task.gate, victim.pod.uid)
        self._would = {k: at for k, at in self._would.items() if now - at < 60.0}
        if key in self._would:
            return
        self._would[key] = now
        if self.metrics is not None:
            self.metrics.would_evict.inc(task.gate)
        self._record(task, victim, "WouldEvict", task.message)

    def _record(self, task: EvictionTask, victim: Victim, verdict: str, message: str) -> None:
        pod = victim.pod
        self.recorder.record(
            Record(
                role="koordlet",
                subject=Subject("Pod", pod.namespace, pod.name, pod.uid),
                time=self.clock(),
                verdict=verdict,
                rule=task.gate,
                message=message,
                numbers={**task.numbers, **victim.releases.get(task.key, {})},
                terms=task.terms,
                features=FEATURES,
            )
        )
