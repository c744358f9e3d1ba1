"""How resource tuning follows what is measured: steps up while it hurts, steps down when it has been calm (BEY-TUNE-01). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roles.koordlet.qos.burst_limits import NodeState
from roles.koordlet.states.slo import CPUTuning, MemoryTuning

#: The kernel's burst buffer begins with so much of the quota and doubles (percent).
FIRST_BURST = 25
#: Steps of memory protection; at the last one the request is protected without condition.
LEVELS = 3


@dataclass(frozen=True, slots=True)
class CPUStep:
    """``burst`` and ``quota`` in percent of the container's own quota; ``calm`` is since when nothing hurts (Unix seconds)."""

    burst: int = 0
    quota: int = 100
    calm: float | None = None

    @property
    def active(self) -> bool:
        return self.burst > 0 or self.quota > 100


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """``level`` 0 (nothing) to :data:`LEVELS`."""

    level: int = 0
    calm: float | None = None


@dataclass(frozen=True, slots=True)
class MemorySigns:
    """What a container's memory shows: bytes, percent of time waited, pages read back a second, kills since the last look.

    ``stall`` and ``refaults`` are None where they are not measured.
    """

    usage: int
    limit: int
    working_set: int
    stall: float | None = None
    refaults: float | None = None
    kills: int = 0

    def pressed(self, config: MemoryTuning) -> bool:
        """A kill is enough; a stall or pages read back count only near the limit."""
        if self.kills > 0:
            return True
        if self.limit <= 0 or self.usage * 100 < self.limit * config.near_limit_percent:
            return False
        return (self.stall or 0.0) >= config.stall_percent or (self.refaults or 0.0) >= config.refaults_per_second


def next_cpu(step: CPUStep, throttled: float | None, node: NodeState, config: CPUTuning, *, can_burst: bool, now: float) -> CPUStep:
    """The next step by the throttled share of CFS periods (0..1; None: not known, nothing changes).

    The burst buffer comes first: it spends only what the container saved. The quota follows where that is not enough, and only while
    the share pool is idle; where the pool is overloaded it falls at once.
    """
    if throttled is None:
        return step
    if node is NodeState.OVERLOAD and step.quota > 100:
        return replace(step, quota=max(step.quota - config.step_percent, 100), calm=None)
    threshold = config.throttled_percent / 100
    if throttled >= threshold:
        return _more_cpu(replace(step, calm=None), node, config, can_burst)
    if throttled * 2 > threshold:
        return replace(step, calm=None)
    calm = now if step.calm is None or step.calm > now else step.calm
    if not step.active or now - calm < config.calm_seconds:
        return replace(step, calm=calm)
    if step.quota > 100:
        return CPUStep(step.burst, max(step.quota - config.step_percent, 100), now)
    return CPUStep(step.burst // 2 if step.burst > FIRST_BURST else 0, 100, now)


def _more_cpu(step: CPUStep, node: NodeState, config: CPUTuning, can_burst: bool) -> CPUStep:
    if can_burst and step.burst < config.max_burst_percent:
        return replace(step, burst=min(max(step.burst * 2, FIRST_BURST), config.max_burst_percent))
    if node is NodeState.IDLE and step.quota < config.max_quota_percent:
        return replace(step, quota=min(step.quota + config.step_percent, config.max_quota_percent))
    return step


def next_memory(step: MemoryStep, signs: MemorySigns, config: MemoryTuning, now: float) -> MemoryStep:
    """The next step: one up while pressed (all of them after a kill), one down for each calm stretch."""
    if signs.pressed(config):
        return MemoryStep(LEVELS if signs.kills > 0 else min(step.level + 1, LEVELS))
    calm = now if step.calm is None or step.calm > now else step.calm
    if step.level > 0 and now - calm >= config.calm_seconds:
        return MemoryStep(step.level - 1, now)
    return MemoryStep(step.level, calm)


def protection(level: int, signs: MemorySigns, request: int, page: int) -> tuple[int, int]:
    """memory.min and memory.low for a level, bytes in whole pages.

    Low protects a growing share of the working set. Min, at the last level, holds what the scheduler promised: never more than the
    request, so that the sum on a node stays below what it has.
    """
    if level <= 0:
        return 0, 0
    working_set = min(signs.working_set, signs.limit) if signs.limit > 0 else signs.working_set
    low = working_set * level // LEVELS // page * page
    least = min(request, working_set) // page * page if level >= LEVELS else 0
    return least, max(low, least)


def score(base: int, level: int, config: MemoryTuning) -> int:
    """``oom_score_adj`` for a level: lower than the base, but never among the processes that the system cannot do without."""
    return base if level <= 0 or base <= 2 else max(base - level * config.oom_score_step, 2)
