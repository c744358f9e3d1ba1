"""CPU evictions: BE satisfaction, node CPU use, allocatable overcommit (KA-CEV-01, KA-CEV-02, KA-CEV-03)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from koord.api import names
from koord.api.quantity import value_or
from koord.decisions.record import Term
from roles.koordlet.eviction.tasks import REQUEST, EvictionTask
from roles.koordlet.eviction.victims import be_pods, cpu_used, easiest_first, opted_in, order_by_cpu_ratio, victim
from roles.koordlet.qos.allowance import capacity_milli
from roles.koordlet.qos.evict_common import EvictState, EvictStrategy, Found, Invalid, allocatable_task, lasts, used_task
from roles.koordlet.qos.outcome import Outcome
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.slo import SLO, ThresholdStrategy
from roles.koordlet.store import kinds

DEFAULT_USAGE_PERCENT = 90
MAX_LOWER_PERCENT = 60
BY_ALLOCATABLE = "evictByAllocatable"


@dataclass(frozen=True, slots=True)
class BETier:
    """CPU of the best-effort tier in milli-cores."""

    usage: float
    request: float
    limit: float


def _tier(snapshot: Snapshot, window: float | None) -> BETier | None:
    """Mean of a window, or the newest sample; None unless all three are known."""
    values: list[float] = []
    for allocation in ("usage", "request", "real-limit"):
        if window is None:
            value = snapshot.metrics.last(kinds.NODE_BE, be_resource="cpu", be_allocation=allocation)
        else:
            value = snapshot.metrics.avg(kinds.NODE_BE, window, be_resource="cpu", be_allocation=allocation)
        if value is None:
            return None
        values.append(value)
    return BETier(*values)


def _covered(snapshot: Snapshot, window: float) -> bool:
    """Whether there are samples for at least a third of the window."""
    counts = [snapshot.metrics.count(kinds.NODE_BE, window, be_resource="cpu", be_allocation=a) for a in ("usage", "request", "real-limit")]
    return min(counts) * snapshot.collect_interval >= window / 3


def usage_high(tier: BETier, percent: int) -> bool:
    """Whether the tier uses nearly all it may: a limit below one core always counts as used up, none at all never."""
    if tier.limit <= 0:
        return False
    return tier.limit < 1000 or tier.usage / tier.limit >= percent / 100


def release_of(tier: BETier, lower: int, upper: int) -> int:
    """Milli batch-cpu to release so that limit/request rises from at most ``lower`` to ``upper`` percent."""
    if tier.request <= 0 or tier.limit / tier.request > lower / 100:
        return 0
    return math.trunc(tier.request * (upper / 100 - tier.limit / tier.request))


class CPUEvict(EvictStrategy):
    """CPU: satisfaction of the best-effort tier, requests of what the node offers, use of the node."""

    name: ClassVar[str] = "CPUEvict"
    features: ClassVar[tuple[str, ...]] = ("KA-CEV-01", "KA-CEV-02", "KA-CEV-03")
    gates: ClassVar[tuple[str, ...]] = ("BECPUEvict", "CPUAllocatableEvict", "CPUEvict")

    @property
    def interval(self) -> float:
        return self.options.cpu_evict_interval_seconds

    def decide(self, snapshot: Snapshot, slo: SLO, state: EvictState, now: float) -> Outcome[EvictState]:
        if state.cooling_since is None:
            # the cool-down also runs from the start: the first samples of a fresh agent prove nothing
            state = replace(state, cooling_since=now)
        threshold = slo.threshold
        if not threshold.enable or snapshot.node is None or capacity_milli(snapshot.node) <= 0:
            return Outcome(state)
        if lasts(state.cooling_since, now, self.options.cpu_evict_cool_time_seconds):
            return Outcome(state)
        return self.tasks((self._satisfaction, self._allocatable, self._usage), snapshot, threshold, state, now)

    def _window(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> float:
        return max(snapshot.collect_interval, float(threshold.cpu_evict_time_window_seconds or 0))

    def _satisfaction(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> Found:
        gate = "BECPUEvict"
        lower, upper = threshold.cpu_evict_be_satisfaction_lower_percent, threshold.cpu_evict_be_satisfaction_upper_percent
        if lower is None or upper is None or not (0 < lower <= MAX_LOWER_PERCENT and 0 < upper < 100 and upper >= lower):
            return Invalid(
                gate, f"satisfaction lower {lower} and upper {upper} percent: 0 < lower ≤ {MAX_LOWER_PERCENT}, lower ≤ upper < 100"
            )
        percent = threshold.cpu_evict_be_usage_threshold_percent
        percent = DEFAULT_USAGE_PERCENT if percent is None else percent
        window = self._window(snapshot, threshold)
        mean, last = _tier(snapshot, window), _tier(snapshot, None)
        if mean is None or last is None or not _covered(snapshot, window):
            return None
        if threshold.cpu_evict_policy == BY_ALLOCATABLE:
            limit = _batch_allocatable(snapshot)
            mean, last = replace(mean, limit=limit), replace(last, limit=limit)
        if not usage_high(mean, percent):
            return None
        release = release_of(mean, lower, upper)
        if release <= 0 or not usage_high(last, percent):
            return None
        if (last.request, last.limit) != (mean.request, mean.limit):
            release = min(release, release_of(last, lower, upper))
        if release <= 0:
            return None
        pods = easiest_first(snapshot, order_by_cpu_ratio(snapshot, be_pods(snapshot, gate)), gate)
        return EvictionTask(
            gate,
            REQUEST,
            {names.RESOURCE_BATCH_CPU: release},
            tuple(victim(snapshot, p) for p in pods),
            f"best-effort pods get {mean.limit:.0f}m of {mean.request:.0f}m requested (≤ {lower} %); {release}m to release",
            {"usage_milli": int(mean.usage), "request_milli": int(mean.request), "limit_milli": int(mean.limit), "release_milli": release},
            (Term("satisfaction", round(100 * mean.limit / mean.request, 1), f"lower {lower} %, upper {upper} %", "percent"),),
        )

    def _usage(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> Found:
        gate, limit, priority = "CPUEvict", threshold.cpu_evict_threshold_percent, threshold.evict_enabled_priority_threshold
        if limit is None or limit < 0:
            return Invalid(gate, f"cpuEvictThresholdPercent {limit} is needed, at least 0")
        lower = threshold.cpu_evict_lower_percent if threshold.cpu_evict_lower_percent is not None else limit - 2
        if lower >= limit:
            return Invalid(gate, f"cpuEvictLowerPercent {lower} is not below the threshold {limit}")
        if priority is None:
            return Invalid(gate, "evictEnabledPriorityThreshold is needed")
        mean = snapshot.metrics.avg(kinds.NODE_CPU, self._window(snapshot, threshold))
        if mean is None or snapshot.node is None:
            return None

        return used_task(
            snapshot,
            gate,
            names.RESOURCE_CPU,
            used=int(mean * 1000),
            capacity=capacity_milli(snapshot.node),
            limit=limit,
            lower=lower,
            pods=lambda: opted_in(snapshot, gate, priority, partial(cpu_used, snapshot)),
        )

    def _allocatable(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> Found:
        return allocatable_task(
            snapshot,
            gate="CPUAllocatableEvict",
            native=names.RESOURCE_CPU,
            threshold=threshold.cpu_allocatable_evict_threshold_percent,
            lower=threshold.cpu_allocatable_evict_lower_percent,
            priority=threshold.allocatable_evict_priority_threshold,
            measured=partial(cpu_used, snapshot),
            release=lambda total, offered, lower: math.trunc(total - lower / 100 * offered),
        )


def _batch_allocatable(snapshot: Snapshot) -> float:
    """Batch CPU that the node offers: -1 when it does not say, and 1 for zero (everything then counts as unsatisfied)."""
    value = -1 if snapshot.node is None else value_or(snapshot.node.status.allocatable.get(names.RESOURCE_BATCH_CPU), -1)
    return -1.0 if value < 0 else float(value or 1)
