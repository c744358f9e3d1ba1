"""How soon best-effort CPU gives way when a service's load rises: a real load generator in real cgroups, koordlet on a full node, as root.

Three best-effort processes take what they get; the load generator, in a latency-sensitive container, steps from 0.15 to 0.85 cores
again and again at random distances. Measured from each step: until the best-effort quota is lowered (by a tenth of its whole fall:
less is noise), and until best-effort CPU use, over the last 100 ms, has made half of its fall. With the pressure path and without.
usage: bench_reaction.py [--quick] [--steps=12] [--pods=110] [--seed=N] [--threshold=65] [--flags="…"] [--only=with|without] [--verbose]
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.bench_koordlet import HOG, option
from tests.benchmarks.koordlet_node import Machine, agent, container_directory, machine, qos_directory
from tests.benchmarks.table import Row, script

LOW, HIGH = 0.15, 0.85
HIGH_SECONDS, LOW_SECONDS = 2.0, 3.6
SAMPLE = 0.005
WINDOW = 0.1
SETTLE = 10.0
#: Best-effort CPU (cores) below which a step would have nothing to take away.
ROOM = 0.4
THRESHOLD = int(option("threshold", "65"))
SLO = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": THRESHOLD}}
TARGET = {True: 0.6, False: 2.0}

#: Reads shares of a core from standard input and uses that much CPU, in slices of 10 ms.
GENERATOR = """
import os, select, time
share = 0.0
while True:
    begun = time.perf_counter()
    while time.perf_counter() - begun < share * 0.01: pass
    left = 0.01 - (time.perf_counter() - begun)
    if select.select([0], [], [], max(left, 0.0))[0]:
        line = os.read(0, 100)
        if not line: break
        share = float(line.split()[-1])
        time.sleep(max(0.01 - (time.perf_counter() - begun), 0.0))
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """Of the best-effort level: time (monotonic seconds), CFS quota (µs, -1 for none), CPU time (ns)."""

    time: float
    quota: int
    used: int


@dataclass(slots=True)
class Sampler:
    """A thread that reads the level's two files 200 times a second."""

    node: Machine
    samples: list[Sample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        level = qos_directory("BestEffort")
        paths = (self.node.path("cpu", level) / "cpu.cfs_quota_us", self.node.path("cpuacct", level) / "cpuacct.usage")
        quota, usage = (os.open(path, os.O_RDONLY) for path in paths)
        try:
            while not self._stop.wait(SAMPLE):
                self.samples.append(Sample(time.monotonic(), int(os.pread(quota, 64, 0)), int(os.pread(usage, 64, 0))))
        finally:
            os.close(quota)
            os.close(usage)


def cores(samples: Sequence[Sample], begin: float, end: float) -> float:
    """Mean CPU between the samples nearest to two moments; NaN where there are none."""
    inside = [s for s in samples if begin <= s.time <= end]
    if len(inside) < 2:
        return math.nan
    return (inside[-1].used - inside[0].used) / 1e9 / (inside[-1].time - inside[0].time)


def reaction(samples: Sequence[Sample], step: float, end: float) -> tuple[float, float]:
    """Seconds from a step until the quota was lowered and until half of the fall of CPU use was made; infinite when it was not."""
    before = [s for s in samples if s.time < step]
    during = [s for s in samples if step <= s.time < end]
    if not before or not during or before[-1].quota < 0:
        return math.inf, math.inf
    start = before[-1].quota
    least = min((s.quota for s in during if s.quota >= 0), default=start)
    cut = next((s.time - step for s in during if 0 <= s.quota <= start - (start - least) / 10 and s.quota < start), math.inf)
    high, low = cores(samples, step - 1.0, step), cores(samples, end - 0.6, end)
    half = next(
        (s.time - step for s in during if s.time - WINDOW >= step and cores(samples, s.time - WINDOW, s.time) <= (high + low) / 2), math.inf
    )
    return (cut, half) if high - low > 0.1 else (cut, math.inf)


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


async def steps(node: Machine, count: int, seed: int, flags: list[str]) -> list[tuple[float, float]]:
    """The reactions to so many steps, under one agent."""
    dice = random.Random(seed)
    async with agent(node, slo=SLO, flags=flags):
        hogs = [node.start([sys.executable, "-S", "-c", HOG], container_directory(number, 0)) for number in (2, 5, 8)]
        loads = [node.start([sys.executable, "-S", "-c", GENERATOR], container_directory(1, index)) for index in range(2)]
        try:
            set_load(loads, LOW)
            await asyncio.sleep(SETTLE)
            found: list[tuple[float, float]] = []
            with Sampler(node) as sampler:
                for _ in range(2 * count):
                    await asyncio.sleep(LOW_SECONDS + dice.random())
                    sampler.samples[:] = sampler.samples[-1000:]
                    begun = time.monotonic()
                    if not cores(sampler.samples, begun - 1.0, begun) >= ROOM:
                        continue  # something else on the machine takes what best-effort work could lose
                    set_load(loads, HIGH)
                    await asyncio.sleep(HIGH_SECONDS)
                    found.append(reaction(list(sampler.samples), begun, time.monotonic()))
                    set_load(loads, LOW)
                    if "--verbose" in sys.argv:
                        print(f"{found[-1][0]:.3f} {found[-1][1]:.3f}", file=sys.stderr, flush=True)
                    if len(found) == count:
                        break
            return found
        finally:
            for child in (*hogs, *loads):
                child.kill()


def set_load(loads: Sequence[subprocess.Popen[bytes]], share: float) -> None:
    for load in loads:
        assert load.stdin is not None
        load.stdin.write(f"{share / len(loads)}\n".encode())
        load.stdin.flush()


def rows(quick: bool) -> list[Row]:
    count = int(option("steps", "6" if quick else "12"))
    only = option("only", "")
    flags = option("flags", "").split()
    out = []
    with machine(int(option("pods", "110"))) as node:
        if not node.top:
            print("bench_reaction needs root and cgroup v1", file=sys.stderr)
            return []
        for path in (True, False):
            if only and (only == "with") is not path:
                continue
            found = asyncio.run(steps(node, count, int(option("seed", "1")), [*flags, f"--pressure-triggers={str(path).lower()}"]))
            how = "with the pressure path" if path else "without"
            if path and not Path("/proc/pressure/cpu").exists():
                how += " (this kernel has no PSI)"
            if not found:
                print("something else takes the CPU that best-effort work could lose: no step was measured", file=sys.stderr)
                continue
            for name, values in (("quota lowered", [c for c, _ in found]), ("best-effort CPU half down", [h for _, h in found])):
                missed = sum(math.isinf(v) for v in values)
                note = f"{len(found)} steps{f', {missed} without a fall' if missed else ''}"
                kept = [v for v in values if not math.isinf(v)] or [math.inf]
                out.append(Row(f"load step to {name}, {how}, p50", percentile(kept, 50), "s", note=note))
                out.append(
                    Row(f"load step to {name}, {how}, p99", percentile(kept, 99), "s", TARGET[path], note=f"maximum {max(kept):.2f} s")
                )
    return out


if __name__ == "__main__":
    script(rows)
