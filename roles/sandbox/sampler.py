"""Reads the counters of this machine and of the run's cgroups at a steady pace, and turns them into what the view shows."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from roles.sandbox.measure import Sample
from roles.sandbox.process_kubelet import layout
from roles.sandbox.process_kubelet.cgroups import RunGroups
from roles.sandbox.process_kubelet.limits import CFS_PERIOD_US
from roles.sandbox.view.frame import Frame

INTERVAL = 0.05
RECENT_SECONDS = 1.0
TICK = 1.0 / os.sysconf("SC_CLK_TCK")
BEST_EFFORT = layout.qos_dir("BestEffort")


def busy_seconds(proc: Path = Path("/proc"), accounting: Path = Path("/sys/fs/cgroup/cpuacct")) -> float:
    """Busy CPU seconds of the machine since boot.

    To the nanosecond where the cgroup of all processes counts them (only that one has a release agent). Else user, nice, system, irq
    and softirq: many kernels only look once a tick, and miss what a service does in between when its requests come at the same pace.
    """
    if (accounting / "release_agent").exists():
        return int((accounting / "cpuacct.usage").read_text()) / 1e9
    with open(proc / "stat", "rb") as file:
        fields = file.readline().split()
    return sum(int(fields[i]) for i in (1, 2, 3, 6, 7)) * TICK


def process_ns(pid: int, proc: Path = Path("/proc")) -> int:
    """CPU time of a process in nanoseconds; 0 when it is gone."""
    try:
        words = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int((int(words[11]) + int(words[12])) * TICK * 1e9)


class Sampler:
    """Samples every 50 ms into `keep`, the list of the running phase; `recent` holds the last second for the view."""

    def __init__(
        self,
        groups: RunGroups,
        service_directory: Callable[[], str | None],
        batch_directories: Callable[[], list[str]],
        batch_cpu: Callable[[], int | None],
        children: Callable[[], list[int]] = list,
    ) -> None:
        self.groups = groups
        self._service_directory = service_directory
        self._batch_directories = batch_directories
        self._batch_cpu = batch_cpu
        self._children = children
        self.keep: list[Sample] | None = None
        self.recent: deque[Sample] = deque()

    def sample(self) -> Sample:
        """Read everything once."""
        service = self._service_directory()
        batch = [ns for d in self._batch_directories() if (ns := self.groups.cpu_usage_ns(d)) is not None]
        return Sample(
            time=time.monotonic(),
            node_busy=busy_seconds(),
            be_ns=self.groups.cpu_usage_ns(BEST_EFFORT),
            service_ns=self.groups.cpu_usage_ns(service) if service else None,
            batch_ns=sum(batch) if batch else None,
            pods_ns=self.groups.cpu_usage_ns(layout.KUBEPODS),
            be_quota_us=self.groups.cfs_quota_us(BEST_EFFORT),
            batch_cpu=self._batch_cpu(),
            own_ns=time.process_time_ns() + sum(process_ns(pid) for pid in self._children()),
        )

    async def run(self) -> None:
        """Sample for ever; a late wake-up is not made up for, its sample carries its own time."""
        while True:
            one = self.sample()
            if self.keep is not None:
                self.keep.append(one)
            self.recent.append(one)
            while self.recent and one.time - self.recent[0].time > RECENT_SECONDS:
                self.recent.popleft()
            await asyncio.sleep(INTERVAL)

    def frame(self, base: Frame) -> Frame:
        """`base` with the rates of the last second."""
        quota = self.recent[-1].be_quota_us if self.recent else None
        return replace(
            base,
            node_busy=self.rate("node_busy", 1.0),
            service_cpu=self.rate("service_ns", 1e9),
            batch_cpu_used=self.rate("batch_ns", 1e9),
            be_quota=None if quota is None else (-1.0 if quota < 0 else quota / CFS_PERIOD_US),
        )

    def rate(self, counter: str, scale: float) -> float | None:
        """Rate of a cumulative counter over the last second, None when it was not there."""
        if len(self.recent) < 2:
            return None
        first, last = self.recent[0], self.recent[-1]
        begin, end = getattr(first, counter), getattr(last, counter)
        if begin is None or end is None or last.time <= first.time:
            return None
        return max(0.0, float((end - begin) / scale / (last.time - first.time)))
