"""What every collector is made of: the round, the context, the memory of rates, and quiet error reporting.

A collector reads host files and appends samples; it holds nothing but what the next rate needs. Time comes with the round.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from roles.koordlet.host.errors import HostError
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options
from roles.koordlet.sensing.gpulibrary import GPULibrary
from roles.koordlet.states.model import HostState, PodState
from roles.koordlet.states.slo import SLO
from roles.koordlet.store.store import MetricStore

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Memory of a pod, container or host application reading lives this many collect intervals (KLO-COL).
FORGET_AFTER_INTERVALS = 20

#: Failing objects that are remembered; pods and disks that are gone make room.
MAX_TROUBLES = 1024
#: Rounds after which an object that did not fail again is taken to be gone (a collector may come to each only every few rounds).
TROUBLE_ROUNDS = 16

POLICY_WITH_PAGE_CACHE = "usageWithPageCache"


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a collector: wall clock for stamps (Unix seconds), monotonic clock for elapsed time (seconds)."""

    now: float
    mono: float


@dataclass(frozen=True, slots=True)
class Stamped:
    """CPU and memory of a part of the machine and when they were taken; ``memory`` None where it could not be read."""

    time: float
    cpu: float
    memory: float | None


@dataclass(slots=True)
class Shared:
    """What collectors hand to the system collector (KLO-COL-07)."""

    node: Stamped | None = None
    node_numa_time: float = 0.0
    node_numa_cpu: dict[int, float] = field(default_factory=dict)
    node_numa_memory: dict[int, float] = field(default_factory=dict)
    pods: Stamped | None = None
    pods_numa: tuple[float, dict[int, float]] | None = None
    idle: frozenset[tuple[str, ...]] = frozenset()
    """Pods and containers, by key, that used no CPU between the last two rounds; taken by the collector that asks."""
    host_apps: Stamped | None = None
    cold_memory: bool = False
    """Whether cold memory is being collected, so that there are hot-page series (KLO-COL-09)."""


@dataclass(slots=True)
class SensingContext:
    """Everything that a collector may use."""

    host: HostState
    store: MetricStore
    metrics: Metrics
    pods: Callable[[], tuple[PodState, ...]]
    slo: Callable[[], SLO | None]
    memory_policy: Callable[[], str]
    gate: Callable[[str], bool]
    pods_known: Callable[[], bool] = lambda: True
    shared: Shared = field(default_factory=Shared)
    options: Options = field(default_factory=Options)
    ticks_per_second: int = 100
    page_size: int = 4096
    change: Callable[[str, str, str], str] = lambda name, path, value: "nobody sets files here"
    """Have the executor set a file of the node (its name, path, value); why that cannot be, "" when it was done."""
    gpus: GPULibrary | None = None
    """The library of the machine's graphics cards."""

    @property
    def interval(self) -> float:
        """Seconds between two rounds of the collectors that have no period of their own."""
        return self.options.collect_res_used_interval

    @property
    def page_cache(self) -> bool:
        """Collect page-cache-inclusive memory: by flag, or because the NodeMetric policy asks for it."""
        return self.options.enable_pagecache_collector or self.memory_policy() == POLICY_WITH_PAGE_CACHE

    def sensed_pods(self) -> tuple[PodState, ...]:
        """Pods to read: terminated ones have left their cgroups and only cost reads and errors."""
        pods = self.pods()
        return pods if self.options.collect_terminated_pods else tuple(p for p in pods if not p.terminated)


class Rate:
    """Turns a cumulative counter into a rate; the first reading, a reset and a long gap only seed the memory."""

    __slots__ = ("_before", "_forget_after")

    def __init__(self, forget_after: float | None = None) -> None:
        self._before: tuple[float, int] | None = None
        self._forget_after = forget_after

    def update(self, mono: float, counter: int) -> float | None:
        """Units per second since the last reading, or None when there is nothing to compare with."""
        before, self._before = self._before, (mono, counter)
        if before is None:
            return None
        elapsed = mono - before[0]
        grown = counter - before[1]
        if elapsed <= 0 or grown < 0 or (self._forget_after is not None and elapsed > self._forget_after):
            return None
        return grown / elapsed


class Troubles:
    """Reports a failing object once, and once more when it works again, instead of every second."""

    def __init__(self, collector: str, metrics: Metrics) -> None:
        self._collector = collector
        self._metrics = metrics
        self._open: dict[str, tuple[str, int]] = {}
        self._round = 0

    def next_round(self) -> None:
        """Forget objects that neither failed nor worked for long: they exist no more."""
        self._round += 1
        if self._open and self._round % TROUBLE_ROUNDS == 0:
            self._open = {k: v for k, v in self._open.items() if v[1] > self._round - TROUBLE_ROUNDS}

    def failed(self, key: str, error: Exception, *, quiet: bool = False) -> bool:
        """Count and report; whether it is news."""
        self._metrics.sensing_errors.inc(self._collector)
        text = str(error)
        before = self._open.get(key)
        if before is None and len(self._open) >= MAX_TROUBLES:
            del self._open[next(iter(self._open))]
        self._open[key] = text, self._round
        if before is not None and before[0] == text:
            return False
        log.log(logging.DEBUG if quiet else logging.WARNING, "%s: %s is left out: %s", self._collector, key, text)
        return True

    def ok(self, key: str) -> None:
        if self._open and self._open.pop(key, None) is not None:
            log.info("%s: %s can be read again", self._collector, key)

    def keep(self, keys: set[str]) -> None:
        """Forget objects that exist no more."""
        for key in [k for k in self._open if k not in keys]:
            del self._open[key]


class Collector(ABC):
    """One collector: a name, a period, and a round.

    ``collect`` raises :class:`HostError` when the whole round failed; single objects that fail are left out. ``started`` becomes
    True after the first round that succeeded, which is what later stages of the start wait for (KLO-LIFE-01).
    """

    name: ClassVar[str]
    gate: ClassVar[str] = ""
    """The feature gate that it waits for."""

    def __init__(self, context: SensingContext, interval: float | None = None) -> None:
        """``interval`` in seconds; without it the collect interval."""
        self.context = context
        self._interval = context.interval if interval is None else interval
        self.troubles = Troubles(self.name, context.metrics)
        self.started = False

    @property
    def enabled(self) -> bool:
        return not self.gate or self.context.gate(self.gate)

    @property
    def interval(self) -> float:
        """Seconds from the end of a round to the start of the next."""
        return self._interval

    @abstractmethod
    def collect(self, at: Round) -> None:
        """Read, append, publish."""

    def run(self, at: Round) -> bool:
        """One round with its failure reported; whether it succeeded."""
        self.troubles.next_round()
        try:
            self.collect(at)
        except (HostError, ValueError) as error:
            self.troubles.failed("round", error)
            return False
        except Exception as error:  # one collector's mistake must not end the agent
            if self.troubles.failed("round", error):
                log.exception("collector %s failed", self.name)
            return False
        self.troubles.ok("round")
        self.started = True
        return True

    def attempt(self, label: str, read: Callable[..., T], *arguments: Any, quiet: bool = False) -> T | None:
        """What ``read`` gives of one object; None, and reported, where it cannot be read."""
        try:
            found = read(*arguments)
        except (HostError, ValueError) as error:
            self.troubles.failed(label, error, quiet=quiet)
            return None
        self.troubles.ok(label)
        return found

    def read(self, resource: str, directory: str) -> tuple[str, bytes]:
        """Path and content of a cgroup file as of this tick."""
        path = self.context.host.cgroups.file(resource, directory)
        return path, self.context.host.files.read(path)
