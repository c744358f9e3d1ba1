"""Cycles and instructions of containers (KLO-COL-10)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from roles.koordlet.host.errors import HostError
from roles.koordlet.host.perf import CYCLES, INSTRUCTIONS, CgroupCounters, Event, NoCountersError, Opener, perf_event_open
from roles.koordlet.host.topology import CPUTopology
from roles.koordlet.sensing.base import Collector, Round, SensingContext
from roles.koordlet.sensing.nodeinfo import CPU_INFO
from roles.koordlet.states.model import ContainerState, PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

#: Property in the store, and label of the gauge, in the order of the events.
_FIELDS = (("cycle", "cycles"), ("instruction", "instructions"))


@dataclass(frozen=True, slots=True)
class _Counted:
    pod: PodState
    container: ContainerState
    counters: CgroupCounters

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.container.id, self.container.name, self.pod.uid, self.pod.name, self.pod.namespace)


class CPICollector(Collector):
    """Each container is counted for one window a period.

    A counted container holds two descriptors a CPU. The period has room for several windows, so containers take turns: of 200
    containers on 128 CPUs 8,700 descriptors are open at a time instead of 51,200.
    """

    name: ClassVar[str] = "cpi"
    gate: ClassVar[str] = "CPICollector"

    def __init__(self, context: SensingContext, interval: float = 60.0, window: float = 10.0) -> None:
        super().__init__(context)
        self._window = window
        self._turns = max(math.floor(interval / window), 1) if window > 0 else 1
        self._gap = max(interval / self._turns - window, 0.0)
        """Seconds between the end of a window and the start of the next one."""
        self._counting = False
        self._turn = 0
        self._waiting: list[tuple[PodState, ContainerState]] = []
        self._open: list[_Counted] = []
        self.events: tuple[Event, ...] = (CYCLES, INSTRUCTIONS)
        self.opener: Opener = perf_event_open

    @property
    def interval(self) -> float:
        """Until the window ends, or until the next one begins."""
        return self._window if self._counting else max(self._gap, 1.0)

    def collect(self, at: Round) -> None:
        listed = {c.id for p in self.context.pods() for c in p.containers}
        self._read(at, listed)
        was_counting, self._counting = self._counting, False
        if was_counting and self._gap >= 1.0:
            return
        topology = self.context.store.snapshot(CPU_INFO)
        if not isinstance(topology, CPUTopology):
            raise HostError("the CPUs of this node are not known yet")
        if self._turn == 0:
            self._list()
        share = math.ceil(len(self._waiting) / (self._turns - self._turn))
        batch, self._waiting = self._waiting[:share], self._waiting[share:]
        batch = [(pod, container) for pod, container in batch if container.id in listed]
        self._turn = (self._turn + 1) % self._turns
        cpus = sorted(topology.node_of)
        self._counting = True
        try:
            for pod, container in batch:
                self._count(pod, container, cpus)
        except NoCountersError as error:
            # not a failed round: rounds in which nothing runs would tell it as over each time
            self.troubles.failed("every container", error)

    def _list(self) -> None:
        """Containers of this period; gauges of others go."""
        self._waiting = [(p, c) for p in self.context.sensed_pods() for c in p.containers if c.cgroup_dir and c.running]
        gauge = self.context.metrics.container_cpi
        alive = {container.id for _, container in self._waiting}
        for container_id in {labels[0] for _, _, labels, _ in gauge.samples()} - alive:
            gauge.remove_where("container_id", container_id)

    def _count(self, pod: PodState, container: ContainerState, cpus: list[int]) -> None:
        label = f"{pod.key}/{container.name}"
        try:
            path = self.context.host.cgroups.subsystem_dir("perf_event", container.cgroup_dir)
            self._open.append(_Counted(pod, container, CgroupCounters(path, cpus, self.events, self.opener)))
        except NoCountersError:
            raise
        except (HostError, ValueError) as error:
            self.troubles.failed(label, error, quiet=True)
            return
        self.troubles.ok(label)
        self.troubles.ok("every container")

    def _read(self, at: Round, listed: set[str]) -> None:
        """What was counted since the last turn; of containers that are gone nothing is kept."""
        samples: list[Sample] = []
        counted, self._open = self._open, []
        for one in counted:
            try:
                values = one.counters.read()
            except HostError as error:
                self.troubles.failed(f"{one.pod.key}/{one.container.name}", error, quiet=True)
                continue
            finally:
                one.counters.close()
            if one.container.id not in listed:
                continue
            for (name, label), value in zip(_FIELDS, values, strict=True):
                samples.append((kinds.CONTAINER_CPI, (one.pod.uid, one.container.id, name), value))
                self.context.metrics.container_cpi.set(value, *one.labels, label)
        self.context.store.append(at.now, samples)
