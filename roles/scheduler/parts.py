"""What live scheduling is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from koord.decisions.recorder import Recorder
from roles.scheduler.auditor import Audit
from roles.scheduler.binding.binder import Binder
from roles.scheduler.binding.preemption import Evictor
from roles.scheduler.binding.readback import ReadBack
from roles.scheduler.binding.reporter import Reporter
from roles.scheduler.binding.waiting import WaitingPods
from roles.scheduler.cluster.cache import Cache
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.diagnosis import Dump
from roles.scheduler.extenders.chain import Extenders
from roles.scheduler.framework.context import State
from roles.scheduler.framework.framework import Framework
from roles.scheduler.gate import Gate
from roles.scheduler.journal.journal import Journal
from roles.scheduler.metrics import SchedulerMetrics
from roles.scheduler.monitor import Monitor
from roles.scheduler.options import Debug
from roles.scheduler.planner.placements import Placements
from roles.scheduler.queue.queue import SchedulingQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Those that the scheduler, the carrier and the outcomes of attempts share. `clock` gives seconds since the epoch."""

    state: State
    cache: Cache
    queue: SchedulingQueue
    waiting: WaitingPods
    cycle: Cycle
    frameworks: Mapping[str, Framework]
    reporter: Reporter
    recorder: Recorder
    metrics: SchedulerMetrics
    clock: Callable[[], float]
    binder: Binder
    evictor: Evictor
    readback: ReadBack
    leading: Callable[[], bool]
    monitor: Monitor
    debug: Debug
    dump: Dump
    audit: Audit
    extenders: Extenders | None
    gate: Gate
    journal: Journal
    placements: Placements = field(default_factory=Placements)
