"""koordlet on a full node: 110 pods of two containers each, every default collector, strategy and report; CPU, memory, growth.

As root the pods are real cgroups (v1) with sleeping processes in them; elsewhere a tree of plain files stands for the machine.
With --pressure (part of every run as root) a second agent runs while processes of both tiers fight for the CPUs, so that the
pressure path never comes to rest.
usage: bench_koordlet.py [--quick] [--minutes=N | --seconds=N] [--pods=N] [--pressure=SECONDS] [--gates=A=true,…] [--flags="…"]
       [--profile=FILE]
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.koordlet_node import Agent, Machine, agent, container_directory, machine
from tests.benchmarks.table import Row, cpu_seconds, current_rss_mib, script

WARM_UP = 8.0
SLO = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}, "hostApplications": []}
#: Works for 40 ms of every 50: two of them leave best-effort work something to fight for.
BUSY = "import time\nwhile True:\n e=time.perf_counter()+.04\n while time.perf_counter()<e: pass\n time.sleep(.01)\n"
HOG = "while True: pass\n"


def option(name: str, default: str) -> str:
    return next((a.split("=", 1)[1] for a in sys.argv if a.startswith(f"--{name}=")), default)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through points by least squares; NaN with fewer than two."""
    count = len(points)
    if count < 2:
        return float("nan")
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else float("nan")


@dataclass(frozen=True, slots=True)
class Course:
    """Samples once a second of one agent: (seconds, MiB) and (seconds, CPU seconds)."""

    rss: list[tuple[float, float]]
    cpu: list[tuple[float, float]]
    healthy: float
    longest_ms: float
    ticks_ms: float
    open_files: float
    woken: float
    complaints: int

    def cpu_percent(self, begin: float = 0.0) -> float:
        """Mean since a moment, percent of a core."""
        later = [(t, c) for t, c in self.cpu if t >= begin]
        return 100 * (later[-1][1] - later[0][1]) / (later[-1][0] - later[0][0])

    def cpu_slope(self) -> float:
        """How the CPU use of ten-second windows drifts, percent of a core an hour."""
        windows = [(b[0], 100 * (b[1] - a[1]) / (b[0] - a[0])) for a, b in zip(self.cpu, self.cpu[10:], strict=False)]
        return slope(windows) * 3600

    def growth(self, begin: float = 0.0) -> float:
        """KiB a minute since a moment."""
        return slope([(t, mib) for t, mib in self.rss if t >= begin]) * 1024 * 60


def _metric(text: str, pattern: str) -> float:
    found = re.search(pattern + r" (\S+)", text, re.MULTILINE)
    return float(found[1]) if found else float("nan")


async def watch(one: Agent, seconds: float) -> Course:
    """Sample the agent once a second for so long."""
    rss: list[tuple[float, float]] = []
    cpu: list[tuple[float, float]] = []
    began = time.monotonic()
    while (at := time.monotonic() - began) <= seconds:
        rss.append((at, current_rss_mib(one.pid)))
        cpu.append((at, cpu_seconds(one.pid)))
        await asyncio.sleep(1.0 - at % 1.0)
    text = await one.metrics()
    return Course(
        rss,
        cpu,
        one.healthy,
        _metric(text, r'koordlet_tick_seconds\{[^}]*stat="longest"[^}]*\}') * 1000,
        _metric(text, r'koordlet_tick_seconds\{[^}]*stat="last"[^}]*\}') * 1000,
        _metric(text, "^process_open_fds"),
        sum(float(n) for n in re.findall(r"^koordlet_pressure_wakeups\S* (\S+)", text, re.MULTILINE)),
        len(one.complaints()),
    )


async def calm(node: Machine, seconds: float) -> Course:
    async with agent(node, slo=SLO, gates=option("gates", ""), flags=option("flags", "").split(), profile=option("profile", "")) as one:
        await asyncio.sleep(WARM_UP)
        return await watch(one, seconds)


async def pressed(node: Machine, seconds: float) -> Course:
    """The same while two latency-sensitive containers and four best-effort ones fight for the CPUs."""
    async with agent(node, slo=SLO, gates=option("gates", ""), flags=option("flags", "").split()) as one:
        for number, program in ((1, BUSY), (4, BUSY), (2, HOG), (5, HOG), (8, HOG), (11, HOG)):
            node.start([sys.executable, "-S", "-c", program], container_directory(number, 0))
        await asyncio.sleep(WARM_UP)
        return await watch(one, seconds)


def rows(quick: bool) -> list[Row]:
    minutes = option("minutes", "")
    seconds = float(minutes) * 60 if minutes else float(option("seconds", "20" if quick else "60"))
    press = float(option("pressure", "10" if quick else "30"))
    pods = int(option("pods", "110"))
    with machine(pods) as node:
        found = asyncio.run(calm(node, seconds))
        hard = asyncio.run(pressed(node, press)) if node.top and press else None
        where = f"{pods} pods, {2 * pods} containers, {'cgroup v1' if node.top else 'plain files'}, {seconds:.0f} s"
    # the series of pods have their full length after seven minutes
    full = 450.0 if seconds >= 550 else seconds / 2
    drift = f"; drift {found.cpu_slope():+.2f} points an hour" if seconds >= 300 else ""
    out = [
        Row("koordlet CPU", found.cpu_percent(), "% of a core", 3.0, note=where + drift),
        Row(
            "koordlet RSS",
            found.rss[-1][1],
            "MiB",
            90.0,
            note=f"{found.rss[0][1]:.1f} after {WARM_UP:.0f} s, {found.open_files:.0f} open files",
        ),
        Row(
            "koordlet RSS growth",
            found.growth(),
            "KiB/min",
            note="least squares; the series of pods fill their windows in the first seven minutes",
        ),
        Row(f"koordlet RSS growth from second {full:.0f} on", found.growth(full), "KiB/min", note="least squares"),
        Row(
            "koordlet longest tick",
            found.longest_ms,
            "ms",
            note=f"sensing and strategies together, the first one included; last {found.ticks_ms:.1f} ms",
        ),
        Row("koordlet until healthy", found.healthy, "s", 1.5, note=f"{found.complaints} errors in its log"),
    ]
    if hard is not None:
        ratio = hard.cpu_percent() / found.cpu_percent()
        note = f"{ratio:.1f} times that of a calm node, {press:.0f} s; {hard.woken / (press + WARM_UP):.2f} ticks out of turn a second"
        out.append(Row("koordlet CPU under steady pressure", hard.cpu_percent(), "% of a core", note=note))
    return out


if __name__ == "__main__":
    script(rows)
