"""What would have happened: replay usage day by day under a policy (BEY-REC-01). Pure.

Every day begins with the target that all earlier days give; the container then runs with it as request and limit. Slack is the
share of what was requested that was not used, over time. A container-day is free of OOM kills when memory never passed
the target; a kill is told to the recommender, as in a cluster. The first day only teaches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from roles.manager.recommender.estimate import estimates
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.policy import DAY, Policy

VPA_DEFAULTS = Policy()
"""The published defaults of the Vertical Pod Autoscaler: p90 of both, 15 % on top, half-life of a day, 25m and 250 MiB."""


class Usage(NamedTuple):
    """A sample: seconds since the epoch, cores, bytes."""

    time: float
    cpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class Series:
    """The usage of one replica of a container, oldest first; series with one `workload` and `container` are learnt from together."""

    workload: str
    container: str
    replica: str
    usage: Sequence[Usage]


@dataclass(slots=True)
class Outcome:
    """Totals of a replay."""

    cpu_requested: float = 0.0
    cpu_used: float = 0.0
    memory_requested: float = 0.0
    memory_used: float = 0.0
    samples: int = 0
    starved: int = 0  # samples in which the container wanted more CPU than the target
    days: int = 0
    killed_days: int = 0
    kills: list[tuple[str, str, float]] = field(default_factory=list)

    @property
    def cpu_slack(self) -> float:
        """Share of requested CPU that was not used."""
        return 1 - self.cpu_used / self.cpu_requested if self.cpu_requested else math.nan

    @property
    def memory_slack(self) -> float:
        """Share of requested memory that was not used."""
        return 1 - self.memory_used / self.memory_requested if self.memory_requested else math.nan

    @property
    def starved_share(self) -> float:
        """Share of samples above the CPU target."""
        return self.starved / self.samples if self.samples else math.nan

    @property
    def oom_free(self) -> float:
        """Share of container-days without an OOM kill."""
        return 1 - self.killed_days / self.days if self.days else math.nan


def replay(series: Iterable[Series], policy: Policy) -> Outcome:
    """Replay all series under a policy."""
    outcome = Outcome()
    workloads: dict[str, dict[str, list[Series]]] = {}
    for one in series:
        if one.usage:
            workloads.setdefault(one.workload, {}).setdefault(one.container, []).append(one)
    for name in sorted(workloads):
        _replay_workload(workloads[name], policy, outcome)
    return outcome


def _replay_workload(containers: dict[str, list[Series]], policy: Policy, outcome: Outcome) -> None:
    everything = [one for replicas in containers.values() for one in replicas]
    begin = min(one.usage[0].time for one in everything)
    end = max(one.usage[-1].time for one in everything)
    groups = {name: ContainerGroup(policy.half_life) for name in containers}
    days = {id(one): _by_day(one.usage, begin) for one in everything}
    for day in range(int((end - begin) // DAY) + 1):
        found = estimates(groups, policy) if day else {}
        for name, replicas in containers.items():
            for one in replicas:
                usage = days[id(one)].get(day, ())
                if not usage:
                    continue
                if name in found:
                    _live_through(one, usage, found[name].target.cpu, found[name].target.memory, groups[name], outcome)
                for sample in usage:
                    groups[name].add(one.replica, sample.time, cpu=sample.cpu, memory=sample.memory, cpu_request=sample.cpu)


def _by_day(usage: Sequence[Usage], begin: float) -> dict[int, list[Usage]]:
    days: dict[int, list[Usage]] = {}
    for sample in usage:
        days.setdefault(int((sample.time - begin) // DAY), []).append(sample)
    return days


def _live_through(one: Series, usage: Sequence[Usage], cpu: float, memory: float, group: ContainerGroup, outcome: Outcome) -> None:
    """One container-day under a target."""
    outcome.days += 1
    outcome.samples += len(usage)
    killed = False
    for sample in usage:
        outcome.cpu_requested += cpu
        outcome.cpu_used += min(sample.cpu, cpu)
        outcome.starved += sample.cpu > cpu
        outcome.memory_requested += memory
        outcome.memory_used += min(sample.memory, memory)
        if sample.memory > memory and not killed:
            killed = True
            outcome.killed_days += 1
            outcome.kills.append((one.workload, one.container, sample.time))
            group.out_of_memory(one.replica, sample.time, request=memory)
