"""Memory evictions: BE pods, opted-in pods by priority, allocatable overcommit (KA-MEV-01, KA-MEV-02, KA-MEV-03)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from koord.api import names
from koord.api.quantity import QuantityError, parse_value
from roles.koordlet.eviction.tasks import USED, EvictionTask, critical_percent
from roles.koordlet.eviction.victims import be_pods, memory_used, opted_in, order_by_memory, victim, willing_first
from roles.koordlet.qos.evict_common import EvictState, Invalid, allocatable_task, lasts, told
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.states.slo import SLO, ThresholdStrategy
from roles.koordlet.store import kinds

Pods = Callable[[], list[PodState]]

#: Pods whose memory is not known are spared this long (seconds): a missing sample is no reason to evict.
UNSAMPLED_PATIENCE = 5.0


def capacity_bytes(snapshot: Snapshot) -> int:
    """Memory capacity of the node; 0 when it is not known."""
    quantity = None if snapshot.node is None else snapshot.node.status.capacity.get(names.RESOURCE_MEMORY)
    try:
        return 0 if quantity is None else parse_value(quantity)
    except QuantityError:
        return 0


class MemoryEvict(Strategy[EvictState]):
    """One strategy for all three, because they share victims, accounting and cool-down."""

    name: ClassVar[str] = "MemoryEvict"
    features: ClassVar[tuple[str, ...]] = ("KA-MEV-01", "KA-MEV-02", "KA-MEV-03")
    urgent: ClassVar[bool] = True
    gates: ClassVar[tuple[str, ...]] = ("BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict")

    @property
    def enabled(self) -> bool:
        return any(self.gate(g) for g in self.gates)

    @property
    def interval(self) -> float:
        return self.options.memory_evict_interval_seconds

    def initial(self) -> EvictState:
        return EvictState()

    def evicted(self, state: EvictState, now: float) -> EvictState:
        return replace(state, cooling_since=now)

    def decide(self, snapshot: Snapshot, slo: SLO, state: EvictState, now: float) -> Outcome[EvictState]:
        threshold = slo.threshold
        if not threshold.enable or capacity_bytes(snapshot) <= 0:
            return Outcome(state)
        if lasts(state.cooling_since, now, self.options.memory_evict_cool_time_seconds):
            return Outcome(state)
        state = replace(state, unsampled_since=self._unsampled(snapshot, state, now))
        patient = state.unsampled_since is None or lasts(state.unsampled_since, now, UNSAMPLED_PATIENCE)
        makers = (
            ("BEMemoryEvict", self._patient if patient else self._best_effort),
            ("MemoryAllocatableEvict", self._allocatable),
            ("MemoryEvict", self._by_priority),
        )
        found = [make(snapshot, threshold) for gate, make in makers if self.gate(gate)]
        complaints, records = told(snapshot, state, [f for f in found if isinstance(f, Invalid)], now)
        tasks = tuple(f for f in found if isinstance(f, EvictionTask))
        return Outcome(replace(state, complaints=complaints), tasks=tasks, records=records)

    def _unsampled(self, snapshot: Snapshot, state: EvictState, now: float) -> float | None:
        """Since when there are BE pods whose memory is not known; they may just not have been read yet."""
        if all(memory_used(snapshot, p) is not None for p in be_pods(snapshot, "BEMemoryEvict")):
            return None
        return now if state.unsampled_since is None else state.unsampled_since

    def _patient(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> EvictionTask | Invalid | None:
        return self._best_effort(snapshot, threshold, unsampled=0)

    def _best_effort(self, snapshot: Snapshot, threshold: ThresholdStrategy, unsampled: int = 1) -> EvictionTask | Invalid | None:
        """At most so many ``unsampled`` pods a run: what they release is not known, so nothing would ever be enough."""
        gate = "BEMemoryEvict"

        def pods() -> list[PodState]:
            ordered = willing_first(order_by_memory(snapshot, be_pods(snapshot, gate)), gate)
            unknown = [p for p in ordered if memory_used(snapshot, p) is None]
            left_out = {p.uid for p in unknown[unsampled:]}
            return [p for p in ordered if p.uid not in left_out]

        return self._by_use(snapshot, threshold, gate, pods)

    def _by_priority(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> EvictionTask | Invalid | None:
        gate, priority = "MemoryEvict", threshold.evict_enabled_priority_threshold
        if priority is None:
            return Invalid(gate, "evictEnabledPriorityThreshold is needed")

        def used(pod: PodState) -> int | None:
            return memory_used(snapshot, pod)

        return self._by_use(snapshot, threshold, gate, lambda: opted_in(snapshot, gate, priority, used, used))

    def _by_use(self, snapshot: Snapshot, threshold: ThresholdStrategy, gate: str, pods: Pods) -> EvictionTask | Invalid | None:
        limit = threshold.memory_evict_threshold_percent
        lower = threshold.memory_evict_lower_percent
        lower = limit - 2 if lower is None else lower
        if limit < 0 or lower >= limit:
            return Invalid(gate, f"memoryEvictLowerPercent {lower} is not below the threshold {limit}")
        used = snapshot.metrics.last(kinds.NODE_MEMORY)
        if used is None:
            return None
        capacity = capacity_bytes(snapshot)
        percent = int(used) * 100 // capacity
        if percent < limit:
            return None
        release = capacity * (percent - lower) // 100
        return EvictionTask(
            gate,
            USED,
            {names.RESOURCE_MEMORY: release},
            tuple(victim(snapshot, p) for p in pods()),
            f"the node uses {percent} % of its memory (threshold {limit} %); {release} bytes to release",
            {"usage_percent": percent, "threshold_percent": limit, "lower_percent": lower, "release_bytes": release},
            critical=percent >= critical_percent(limit),
        )

    def _allocatable(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> EvictionTask | Invalid | None:
        return allocatable_task(
            snapshot,
            gate="MemoryAllocatableEvict",
            native=names.RESOURCE_MEMORY,
            threshold=threshold.memory_allocatable_evict_threshold_percent,
            lower=threshold.memory_allocatable_evict_lower_percent,
            priority=threshold.allocatable_evict_priority_threshold,
            measured=lambda pod: memory_used(snapshot, pod),
            release=lambda total, offered, lower: math.trunc((total / offered - lower / 100) * offered),
        )
