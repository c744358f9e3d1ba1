"""From histograms to what a container should request (MGR-REC-02). Pure."""

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

    def written(self) -> Amount:
        """As a pod can ask for it: rounded up to 1m and to a byte."""
        return Amount(_up(self.cpu * 1000, 6) / 1000, _up(self.memory, 3))

    def resources(self) -> dict[str, str]:
        """As a resource list; what is not bounded is left out."""
        found, written = {}, self.written()
        if math.isfinite(written.cpu):
            found["cpu"] = format_milli(round(written.cpu * 1000))
        if math.isfinite(written.memory):
            found["memory"] = format_decimal(int(written.memory))
        return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """Target and bounds of one container, with the confidence in days that widens the bounds."""

    target: Amount
    lower: Amount
    upper: Amount
    confidence: float
    samples: int
    model: str = "percentile"
    """What memory follows; see `memory.py`."""
    growth: float = 0.0
    """Share by which memory grows each day, 0 when it does not."""


def estimates(groups: Mapping[str, ContainerGroup], policy: Policy, *, in_place: bool = False) -> dict[str, Estimate]:
    """By container name; a container without a sample has none. The floors of the pod are shared by its containers."""
    known, floor = _known(groups, policy)
    return {name: _estimate(group, policy, floor, in_place) for name, group in known.items()}


def targets(groups: Mapping[str, ContainerGroup], policy: Policy) -> dict[str, Amount]:
    """What containers of running pods should request now, by name: the target of `estimates(..., in_place=True)` alone."""
    known, floor = _known(groups, policy)
    return {name: _in_place(group, policy, floor) for name, group in known.items()}


def _known(groups: Mapping[str, ContainerGroup], policy: Policy) -> tuple[dict[str, ContainerGroup], Amount]:
    known = {name: group for name, group in sorted(groups.items()) if not (group.cpu.empty and group.memory.empty)}
    return known, Amount(policy.min_cpu / 1000 / len(known), policy.min_memory / len(known)) if known else Amount(0.0, 0.0)


def _in_place(group: ContainerGroup, policy: Policy, floor: Amount) -> Amount:
    bytes_ = group.history.target(group.memory_percentile, policy.kill_price, policy.memory_model)[1]
    recent = group.recent_cpu.percentile(policy.resize_cpu_percentile)
    cores = recent or group.cpu.percentile(policy.cpu_percentile) * (1 + policy.margin)
    return Amount(max(cores, floor.cpu), max(bytes_, floor.memory))


def _estimate(group: ContainerGroup, policy: Policy, floor: Amount, in_place: bool) -> Estimate:
    confidence = group.confidence
    safe = 1 + policy.margin
    cpu = group.cpu.percentiles((policy.lower_percentile, policy.cpu_percentile, policy.upper_percentile))
    memory = group.memory.percentiles((policy.lower_percentile, policy.memory_percentile, policy.upper_percentile))
    narrow = safe * (1 + 0.001 / confidence) ** -2 if confidence > 0 else 0.0
    wide = safe * (1 + 1 / confidence) if confidence > 0 else math.inf
    model, bytes_ = group.history.target(lambda: memory[1] * safe, policy.kill_price, policy.memory_model)
    target = _in_place(group, policy, floor) if in_place else Amount(max(cpu[1] * safe, floor.cpu), max(bytes_, floor.memory))

    def amount(index: int, factor: float) -> Amount:
        return Amount(_scaled(cpu[index], factor, floor.cpu), _scaled(memory[index], factor, floor.memory))

    lower, upper = amount(0, narrow), amount(2, wide)
    return Estimate(
        target,
        Amount(min(lower.cpu, target.cpu), min(lower.memory, target.memory)),
        Amount(max(upper.cpu, target.cpu), max(upper.memory, target.memory)),
        confidence,
        group.samples,
        model,
        group.history.growth(),
    )


def _up(value: float, digits: int) -> float:
    """The next whole number, but for what arithmetic added in the last digits."""
    return float(math.ceil(round(value, digits))) if math.isfinite(value) else value


def _scaled(value: float, factor: float, floor: float) -> float:
    return factor if math.isinf(factor) else max(value * factor, floor)
