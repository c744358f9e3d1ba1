"""Memory evictions: BE pods, opted-in pods by priority, allocatable overcommit (KA-MEV-01, KA-MEV-02, KA-MEV-03)."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial
from typing import ClassVar

from koord.api import names
from koord.api.quantity import value_or
from roles.koordlet.eviction.victims import be_pods, easiest_first, memory_used, opted_in, order_by_memory
from roles.koordlet.qos.evict_common import EvictState, EvictStrategy, Found, Invalid, allocatable_task, lasts, used_task
from roles.koordlet.qos.outcome import Outcome
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.states.slo import SLO, ThresholdStrategy
from roles.koordlet.store import kinds

Pods = Callable[[], list[PodState]]

#: Pods whose memory is not known are spared this long (seconds): a missing sample is no reason to evict.
UNSAMPLED_PATIENCE = 5.0


def capacity_bytes(snapshot: Snapshot) -> int:
    """Memory capacity of the node; 0 when it is not known."""
    return 0 if snapshot.node is None else value_or(snapshot.node.status.capacity.get(names.RESOURCE_MEMORY))


class MemoryEvict(EvictStrategy):
    """Memory: use of the node by best-effort pods first, requests of what the node offers, use by pods that opted in."""

    name: ClassVar[str] = "MemoryEvict"
    features: ClassVar[tuple[str, ...]] = ("KA-MEV-01", "KA-MEV-02", "KA-MEV-03")
    gates: ClassVar[tuple[str, ...]] = ("BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict")

    @property
    def interval(self) -> float:
        return self.options.memory_evict_interval_seconds

    def decide(self, snapshot: Snapshot, slo: SLO, state: EvictState, now: float) -> Outcome[EvictState]:
        threshold = slo.threshold
        if not threshold.enable or capacity_bytes(snapshot) <= 0:
            return Outcome(state)
        if lasts(state.cooling_since, now, self.options.memory_evict_cool_time_seconds):
            return Outcome(state)
        # they may just not have been read yet
        unknown = [p.uid for p in be_pods(snapshot, "BEMemoryEvict") if memory_used(snapshot, p) is None]
        state = replace(state, unsampled={uid: state.unsampled.get(uid, now) for uid in unknown})
        best_effort = partial(self._best_effort, young={u for u, t in state.unsampled.items() if lasts(t, now, UNSAMPLED_PATIENCE)})
        return self.tasks((best_effort, self._allocatable, self._by_priority), snapshot, threshold, state, now)

    def _best_effort(self, snapshot: Snapshot, threshold: ThresholdStrategy, young: Container[str]) -> Found:
        """Of pods whose memory is not known no ``young`` one, and one a run: what it releases is not known, so nothing would be enough."""
        gate = "BEMemoryEvict"

        def pods() -> list[PodState]:
            ordered = easiest_first(snapshot, order_by_memory(snapshot, be_pods(snapshot, gate)), gate)
            unknown = [p.uid for p in ordered if memory_used(snapshot, p) is None]
            left_out = {*unknown} - {next((uid for uid in unknown if uid not in young), "")}
            return [p for p in ordered if p.uid not in left_out]

        return self._by_use(snapshot, threshold, gate, pods)

    def _by_priority(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> Found:
        gate, priority = "MemoryEvict", threshold.evict_enabled_priority_threshold
        if priority is None:
            return Invalid(gate, "evictEnabledPriorityThreshold is needed")

        return self._by_use(snapshot, threshold, gate, lambda: opted_in(snapshot, gate, priority, partial(memory_used, snapshot)))

    def _by_use(self, snapshot: Snapshot, threshold: ThresholdStrategy, gate: str, pods: Pods) -> Found:
        limit = threshold.memory_evict_threshold_percent
        lower = threshold.memory_evict_lower_percent
        lower = limit - 2 if lower is None else lower
        if limit < 0 or lower >= limit:
            return Invalid(gate, f"memoryEvictLowerPercent {lower} is not below the threshold {limit}")
        used = snapshot.metrics.last(kinds.NODE_MEMORY)
        if used is None:
            return None
        capacity = capacity_bytes(snapshot)
        return used_task(snapshot, gate, names.RESOURCE_MEMORY, used=int(used), capacity=capacity, limit=limit, lower=lower, pods=pods)

    def _allocatable(self, snapshot: Snapshot, threshold: ThresholdStrategy) -> Found:
        return allocatable_task(
            snapshot,
            gate="MemoryAllocatableEvict",
            native=names.RESOURCE_MEMORY,
            threshold=threshold.memory_allocatable_evict_threshold_percent,
            lower=threshold.memory_allocatable_evict_lower_percent,
            priority=threshold.allocatable_evict_priority_threshold,
            measured=partial(memory_used, snapshot),
            release=lambda total, offered, lower: math.trunc((total / offered - lower / 100) * offered),
        )
