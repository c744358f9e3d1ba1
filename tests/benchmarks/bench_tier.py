"""What a best-effort tier's cgroup settings cost a service, without koord: the parts of `bench_colocation`. As root, cgroup v1.

The sandbox's service and load generator in groups of a pod's weights, three CPU burners and a memory walker in a tier beside them: at the
least weight or at `cpu.idle`, with a quota or without. Each way is measured several times in random order, with a new "alone" each time.
usage: bench_tier.py [--seconds=10] [--rounds=3] [--rates=100,250,400] [--ways=alone,idle,…]
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roles.sandbox.workload.work import calibrate

CPU, ACCOUNTING = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")
TOP = CPU / f"koord-bench-tier-{os.getpid()}"
SERVICE, LOAD, TIER = TOP / "service", TOP / "load", TOP / "tier"
#: Weights of a service that asks for 1.2 cores and of a load generator that asks for 0.2.
SHARES = {SERVICE: 1228, LOAD: 204}
WORK_MS, WORKERS, BURNERS, MEMORY_MIB = 1.5, 2, 3, 192
WARM_UP = 3.0
HEAD = "| load | tier | p50 | p99 | p99 / alone | CPU busy |\n| --- | --- | ---: | ---: | ---: | ---: |"


@dataclass(frozen=True, slots=True)
class Way:
    """Settings of the tier; ``quota`` in cores (None: no limit)."""

    name: str
    idle: bool = False
    quota: float | None = None
    period_ms: int = 100

    def set(self) -> None:
        (TIER / "cpu.cfs_quota_us").write_text("-1")
        (TIER / "cpu.idle").write_text("0")
        if self.idle:
            (TIER / "cpu.idle").write_text("1")
        else:
            (TIER / "cpu.shares").write_text("2")
        (TIER / "cpu.cfs_period_us").write_text(str(self.period_ms * 1000))
        if self.quota is not None:
            (TIER / "cpu.cfs_quota_us").write_text(str(int(self.quota * self.period_ms * 1000)))


ALONE = "alone"
WAYS = {
    ALONE: None,
    "shares": Way("least weight"),
    "idle": Way("cpu.idle"),
    "shares-quota": Way("least weight, quota 1.3 cores", quota=1.3),
    "idle-quota": Way("cpu.idle, quota 1.5 cores", idle=True, quota=1.5),
    "idle-quota-10ms": Way("cpu.idle, quota 1.5 cores, period 10 ms", idle=True, quota=1.5, period_ms=10),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds, and CPU use of the machine in percent."""

    p50: float
    p99: float
    busy: float


def start(group: Path, *workload: str, out: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """A workload of the sandbox in a group; the children that it makes follow it."""
    command = [sys.executable, "-m", "koord.cli", "sandbox", "workload", *workload]
    shell = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    return subprocess.Popen(["sh", "-c", shell, "sh", *command], stdout=out, start_new_session=True)


def end(group: Path) -> None:
    """Kill what is in a group, and wait until it is empty."""
    procs = group / "cgroup.procs"
    while pids := procs.read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        time.sleep(0.02)


def measure(way: Way | None, port: int, rate: float, seconds: float) -> Measured:
    hogs = []
    if way is not None:
        way.set()
        hogs = [start(TIER, "burn-cpu") for _ in range(BURNERS)] + [start(TIER, "burn-memory", f"--mib={MEMORY_MIB}")]
        time.sleep(WARM_UP)
    try:
        used, began = int(ACCOUNTING.read_text()), time.monotonic()
        load = start(LOAD, "load", f"--port={port}", f"--step={rate:g}:{seconds:g}", out=subprocess.PIPE)
        said = load.communicate()[0].splitlines()
        busy = (int(ACCOUNTING.read_text()) - used) / 1e7 / (time.monotonic() - began) / (os.cpu_count() or 1)
        (step,) = json.loads(said[-1])["steps"]
        if step["errors"]:
            raise RuntimeError(f"{step['errors']} of {step['count']} requests failed")
        return Measured(step["p50"], step["p99"], busy)
    finally:
        end(TIER)
        for hog in hogs:
            hog.wait()


@contextlib.contextmanager
def service(port: int) -> Iterator[None]:
    """Groups and the service; gone afterwards."""
    for group in (TOP, SERVICE, LOAD, TIER):
        group.mkdir()
    try:
        for group, shares in SHARES.items():
            (group / "cpu.shares").write_text(str(shares))
        server = start(SERVICE, "serve", f"--port={port}", f"--iterations={calibrate(WORK_MS)}", f"--workers={WORKERS}")
        time.sleep(2.0)
        try:
            yield
        finally:
            end(SERVICE)
            server.wait()
    finally:
        for group in (SERVICE, LOAD, TIER, TOP):
            end(group)
            group.rmdir()


def main(ways: Sequence[str], rates: Sequence[float], rounds: int, seconds: float, port: int = 18_731) -> None:
    if not (CPU / "cpu.shares").exists() or os.geteuid() != 0:
        sys.exit("needs root and cgroup v1")
    found: dict[tuple[str, float], list[Measured]] = {}
    ratios: dict[tuple[str, float], list[float]] = {}
    with service(port):
        if not (TIER / "cpu.idle").exists():
            sys.exit("needs a kernel with cpu.idle")
        for _ in range(rounds):
            for rate in rates:
                alone = measure(None, port, rate, seconds)
                found.setdefault((ALONE, rate), []).append(alone)
                for name in random.sample([w for w in ways if w != ALONE], len(ways) - (ALONE in ways)):
                    one = measure(WAYS[name], port, rate, seconds)
                    found.setdefault((name, rate), []).append(one)
                    ratios.setdefault((name, rate), []).append(one.p99 / alone.p99)
                    print(f"{rate:g}/s {name}: p99 {one.p99:.2f} ms, alone {alone.p99:.2f} ms", file=sys.stderr, flush=True)
    print(HEAD)
    for rate in rates:
        for name in (ALONE, *(w for w in ways if w != ALONE)):
            rows = found[name, rate]
            p50, p99, busy = (statistics.median(getattr(m, field) for m in rows) for field in ("p50", "p99", "busy"))
            way = WAYS[name]
            ratio = 1.0 if way is None else statistics.median(ratios[name, rate])
            print(f"| {rate:g} /s | {ALONE if way is None else way.name} | {p50:.2f} ms | {p99:.2f} ms | {ratio:.2f} | {busy:.0f} % |")


def option(name: str, default: str) -> str:
    return next((a.split("=", 1)[1] for a in sys.argv if a.startswith(f"--{name}=")), default)


if __name__ == "__main__":
    chosen = option("ways", ",".join(WAYS)).split(",")
    if not set(chosen) <= set(WAYS):
        sys.exit(f"--ways: known are {', '.join(WAYS)}, not {','.join(chosen)}")
    main(chosen, [float(r) for r in option("rates", "100,250,400").split(",")], int(option("rounds", "3")), float(option("seconds", "10")))
