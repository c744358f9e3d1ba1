"""What would have happened: replay usage under a policy (BEY-REC-01). Pure.

The learning is the controller's own, sample by sample in the order of time. Every day begins with the target that all earlier days give;
the container then runs with it as request and limit, or follows in place. Slack is the share of what was requested that was not used,
over time. A container-day is free of OOM kills when memory never passed the target; a kill is told to the recommender, as in a cluster.
The first day of a container only teaches.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import itemgetter
from typing import NamedTuple

from roles.manager.recommender import memory, resize
from roles.manager.recommender.estimate import Amount
from roles.manager.recommender.learner import Learner
from roles.manager.recommender.policy import DAY, Policy
from roles.manager.recommender.samples import Kill, Sample

VPA_DEFAULTS = Policy(memory_model="percentile")
"""The published defaults of the Vertical Pod Autoscaler: p90 of both, 15 % on top, half-life of a day, 25m and 250 MiB."""
MOVING_MAXIMUM = Policy(cpu_percentile=0.95, half_life=DAY / 2, margin=0.10, memory_model=memory.MOVING_MAXIMUM)
"""As Google describes its Autopilot: p95 of CPU with a half-life of half a day, the highest memory of a week, 10 % on top."""


class Usage(NamedTuple):
    """A sample: seconds since the epoch, cores, bytes."""

    time: float
    cpu: float
    memory: float
    cpu_request: float = 0.0
    """Cores that the container requested then; 0: the target of the day."""


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

    def live(self, usage: Usage, target: Amount) -> None:
        """One sample under a target."""
        self.samples += 1
        self.cpu_requested += target.cpu
        self.cpu_used += min(usage.cpu, target.cpu)
        self.starved += usage.cpu > target.cpu
        self.memory_requested += target.memory
        self.memory_used += min(usage.memory, target.memory)

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


def replay(series: Iterable[Series], policy: Policy, *, in_place: bool = False) -> Outcome:
    """Replay all series under a policy; `in_place`: running pods are resized."""
    outcome = Outcome()
    workloads: dict[str, dict[str, list[Series]]] = {}
    for one in series:
        if one.usage:
            workloads.setdefault(one.workload, {}).setdefault(one.container, []).append(one)
    for name in sorted(workloads):
        _replay_workload(workloads[name], policy, outcome, in_place)
    return outcome


class Moment(NamedTuple):
    """All samples of one instant, after they were learnt."""

    time: float
    learner: Learner
    """What the controller would know now; `estimates()` are its targets."""
    lived: list[tuple[Series, Usage, Amount | None]]
    """Each sample, with the target in force (None on a container's first day)."""
    kills: list[Kill]
    """Ends for lack of memory, the first of each day and replica: in a cluster the target would have followed it."""


def moments(containers: Mapping[str, Sequence[Series]], policy: Policy, *, in_place: bool = False) -> Iterator[Moment]:
    """The life of one workload, instant by instant, as the recommender sees it: a round of the controller each.

    Every day begins with the target that all earlier samples give; with `in_place` each pod is resized to it as often as that is
    allowed, from the second day on. A sample weighs as much as the container requests: what was
    recorded, else the target of the day; on a container's first day, what that day would have made the target.
    """
    everything = [one for replicas in containers.values() for one in replicas]
    begin = min(one.usage[0].time for one in everything)
    learner, today = Learner(policy), 0
    in_force: dict[str, Amount] = {}
    resized = _Resized(learner) if in_place else None
    first = {name: _first_request(name, replicas, policy) for name, replicas in containers.items()}
    killed: set[tuple[str, str]] = set()
    merged = heapq.merge(*(_ordered(number, one) for number, one in enumerate(everything)))
    for time, samples in groupby(merged, key=itemgetter(0)):
        learner.expire(time)
        day = int((time - begin) // DAY)
        if day != today:
            in_force = {name: found.target.written() for name, found in learner.estimates(in_place=in_place).items()}
            today, killed = day, set()
        lived: list[tuple[Series, Usage, Amount | None]] = []
        every: list[Kill] = []
        for _, of_pod in groupby(samples, key=itemgetter(1)):
            fed, kills = [], []
            for *_, one, usage in of_pod:
                target = in_force.get(one.container)
                if resized is not None and target is not None:
                    target = resized.target(one, target, time)
                request = usage.cpu_request or (target.cpu if target is not None else first[one.container])
                fed.append(Sample(one.container, one.replica, time, usage.cpu, usage.memory, request))
                if target is not None and usage.memory > target.memory and (one.container, one.replica) not in killed:
                    killed.add((one.container, one.replica))
                    kills.append(Kill(one.container, one.replica, time, target.memory))
                lived.append((one, usage, target))
            learner.feed(fed, kills)
            every += kills
        yield Moment(time, learner, lived, every)


class _Resized:
    """What each replica has, where it follows the recommendation in place."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._asked, self._wanted = -math.inf, dict[str, Amount]()
        self._held: dict[tuple[str, str], tuple[float, Amount]] = {}

    def target(self, one: Series, first: Amount, time: float) -> Amount:
        """What the replica has at a time; `first` is what it starts with."""
        key = (one.container, one.replica)
        since, held = self._held.setdefault(key, (time, first))
        if time - since < resize.PAUSE:
            return held
        if time > self._asked:
            self._asked = time
            self._wanted = {name: target.written() for name, target in self._learner.targets().items()}
        wanted = self._wanted.get(one.container, held)
        moved = Amount(_moved(held.cpu, wanted.cpu), _moved(held.memory, wanted.memory))
        if moved == held:
            return held
        self._held[key] = (time, moved)
        return moved


def _moved(present: float, wanted: float) -> float:
    """What a request becomes: small differences are worth no resize."""
    return wanted if resize.is_worth(present, wanted) else present


def _ordered(number: int, one: Series) -> Iterator[tuple[float, str, int, Series, Usage]]:
    """Samples by time, of one time by replica, so that a pod's containers come together."""
    return ((usage.time, one.replica, number, one, usage) for usage in one.usage)


def _first_request(container: str, replicas: Sequence[Series], policy: Policy) -> float:
    """Cores that the first day of a container, all samples alike, would have made its target."""
    begin = min(one.usage[0].time for one in replicas)
    learner = Learner(policy)
    for one in replicas:
        for usage in takewhile(lambda usage: usage.time < begin + DAY, one.usage):
            learner.feed([Sample(container, one.replica, usage.time, usage.cpu, usage.memory, 1.0)])
    return learner.estimates()[container].target.written().cpu


def _replay_workload(containers: dict[str, list[Series]], policy: Policy, outcome: Outcome, in_place: bool) -> None:
    begin = min(one.usage[0].time for replicas in containers.values() for one in replicas)
    workload = next(one.workload for replicas in containers.values() for one in replicas)
    days: set[tuple[int, int]] = set()
    for moment in moments(containers, policy, in_place=in_place):
        day = int((moment.time - begin) // DAY)
        for one, usage, target in moment.lived:
            if target is None:
                continue
            place = (id(one), day)
            if place not in days:
                days.add(place)
                outcome.days += 1
            outcome.live(usage, target)
        outcome.killed_days += len(moment.kills)
        outcome.kills += [(workload, kill.container, kill.time) for kill in moment.kills]
