"""From histograms to what a container should request (MGR-REC-02, manager.md 14.4). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.quantity import format_decimal, format_milli
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.policy import Policy


@dataclass(frozen=True, slots=True)
class Amount:
    """CPU in cores, memory in bytes; infinite where history is too short to bound it."""

    cpu: float
    memory: float

    def resources(self) -> dict[str, str]:
        """As a resource list, rounded up to 1m and to a byte; what is not bounded is left out."""
        found = {}
        if math.isfinite(self.cpu):
            found["cpu"] = format_milli(math.ceil(round(self.cpu * 1000, 6)))
        if math.isfinite(self.memory):
            found["memory"] = format_decimal(math.ceil(round(self.memory, 3)))
        return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """Target and bounds of one container, with the confidence in days that widens the bounds."""

    target: Amount
    lower: Amount
    upper: Amount
    confidence: float
    samples: int


def estimates(groups: Mapping[str, ContainerGroup], policy: Policy) -> dict[str, Estimate]:
    """By container name; a container without a sample has none. The floors of the pod are shared by its containers."""
    known = {name: group for name, group in sorted(groups.items()) if not (group.cpu.empty and group.memory.empty)}
    floor = Amount(policy.min_cpu / 1000 / len(known), policy.min_memory / len(known)) if known else Amount(0.0, 0.0)
    return {name: _estimate(group, policy, floor) for name, group in known.items()}


def _estimate(group: ContainerGroup, policy: Policy, floor: Amount) -> Estimate:
    confidence = group.confidence
    safe = 1 + policy.margin
    cpu = group.cpu.percentiles((policy.lower_percentile, policy.cpu_percentile, policy.upper_percentile))
    memory = group.memory.percentiles((policy.lower_percentile, policy.memory_percentile, policy.upper_percentile))
    narrow = safe * (1 + 0.001 / confidence) ** -2 if confidence > 0 else 0.0
    wide = safe * (1 + 1 / confidence) if confidence > 0 else math.inf

    def amount(index: int, factor: float) -> Amount:
        return Amount(_scaled(cpu[index], factor, floor.cpu), _scaled(memory[index], factor, floor.memory))

    return Estimate(amount(1, safe), amount(0, narrow), amount(2, wide), confidence, group.samples)


def _scaled(value: float, factor: float, floor: float) -> float:
    return factor if math.isinf(factor) else max(value * factor, floor)
