"""CPUs that share their time as Linux' fair scheduler does: by weight, from tick to tick, with a quota for one group (pure).

A model, not a measurement: no caches, no memory bandwidth, no hyper-threads, no migration between CPUs. Times are seconds of CPU or of
virtual time. What matters for latencies is modelled: a process that wakes up waits for the next tick, unless the running one is far
ahead of its share, as processes of little weight are as soon as they run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

QUANTUM = 0.00025
TICK = 0.004
"""The kernel looks so often whether somebody else is to run (CONFIG_HZ=250)."""
PERIOD = 0.1
"""Of the quota."""
NORMAL = 1024
TICK_STEPS = round(TICK / QUANTUM)


@dataclass(slots=True)
class Process:
    """One process on one CPU. It has work for ever, or the requests in `queue`: (planned time, seconds of CPU that are left)."""

    weight: float
    batch: bool = False
    limited: bool = False
    """Whether the quota holds it."""
    queue: deque[list[float]] = field(default_factory=deque)
    waited: float = 0.0
    """Virtual run time: seconds of CPU by weight."""
    used: float = 0.0

    def runnable(self) -> bool:
        return self.batch or bool(self.queue)


@dataclass(slots=True)
class _Cpu:
    processes: list[Process] = field(default_factory=list)
    current: Process | None = None

    def mean(self) -> float:
        """Virtual run time that whoever joins begins with: the mean by weight."""
        ready = [one for one in self.processes if one.runnable()]
        weight = sum(one.weight for one in ready)
        return sum(one.waited * one.weight for one in ready) / weight if weight else max((p.waited for p in self.processes), default=0.0)


class Machine:
    """Some CPUs; processes are spread over them and stay. `quota` is in cores, None for no limit."""

    def __init__(self, cpus: int, answered: Callable[[float, float], None]) -> None:
        self.cpus = [_Cpu() for _ in range(cpus)]
        self.answered = answered
        """Called with the time of an answer and the latency of its request."""
        self.now = 0.0
        self.quota: float | None = None
        self._left = 0.0
        self._renewed = -PERIOD
        self._steps = 0

    def place(self, processes: Sequence[Process]) -> None:
        """Put processes on the CPUs that have the fewest, in turn."""
        for one in processes:
            cpu = min(self.cpus, key=lambda cpu: len(cpu.processes))
            one.waited = cpu.mean()
            cpu.processes.append(one)

    def remove(self, processes: Sequence[Process]) -> None:
        """Take processes away."""
        for cpu in self.cpus:
            cpu.processes = [one for one in cpu.processes if one not in processes]
            if cpu.current in processes:
                cpu.current = None

    def request(self, process: Process, planned: float, work: float) -> None:
        """A request arrives; a process that slept wakes up and may take the CPU over."""
        if process.runnable():
            process.queue.append([planned, work])
            return
        cpu = next(cpu for cpu in self.cpus if process in cpu.processes)
        process.waited = max(process.waited, cpu.mean())
        process.queue.append([planned, work])
        running = cpu.current
        if running is not None and running.waited - process.waited > TICK * NORMAL / process.weight:
            cpu.current = None

    def step(self) -> None:
        """One quantum on each CPU."""
        if self.now - self._renewed >= PERIOD - QUANTUM / 2:
            self._renewed = self.now
            self._left = (self.quota or 0.0) * PERIOD
        tick = self._steps % TICK_STEPS == 0
        for cpu in self.cpus:
            ready = [one for one in cpu.processes if one.runnable() and not self._held(one)]
            if ready:
                self._run(cpu, ready, tick=tick)
            else:
                cpu.current = None
        self._steps += 1
        self.now = self._steps * QUANTUM

    def _held(self, process: Process) -> bool:
        return process.limited and self.quota is not None and self._left <= 0

    def _run(self, cpu: _Cpu, ready: list[Process], *, tick: bool) -> None:
        current = cpu.current
        if tick or current not in ready:
            current = cpu.current = min(ready, key=lambda one: one.waited)
        assert current is not None
        current.used += QUANTUM
        current.waited += QUANTUM * NORMAL / current.weight
        if current.limited:
            self._left -= QUANTUM
        if current.queue:
            first = current.queue[0]
            first[1] -= QUANTUM
            if first[1] <= QUANTUM / 100:
                current.queue.popleft()
                self.answered(self.now + QUANTUM, self.now + QUANTUM - first[0])
