"""How much of this machine others use: figures that are taken beside them would say nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

LOOK_SECONDS = 3.0
MOST_SHARE = 0.35
"""Of the CPUs; the demo's service needs about a third of two, its batch jobs the rest."""


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def _busy(stat: str, mine: set[int]) -> float:
    """CPU seconds that were not idle, on CPUs of ours, from the text of /proc/stat."""
    ticks, total = os.sysconf("SC_CLK_TCK"), 0
    for line in stat.splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in mine:
            idle = int(values[3]) + int(values[4])
            total += sum(int(value) for value in values[:8]) - idle
    return total / ticks


def busy_cores(seconds: float = LOOK_SECONDS, path: Path = Path("/proc/stat")) -> float:
    """CPUs of ours that are in use now, looked at for so long. Raises OSError where the kernel does not tell."""
    mine = os.sched_getaffinity(0)
    began, before = time.monotonic(), _busy(path.read_text(), mine)
    time.sleep(seconds)
    return max(0.0, (_busy(path.read_text(), mine) - before) / (time.monotonic() - began))


def too_busy(used: float, available: int) -> str:
    """Why nothing can be measured, in words; "" when it can."""
    if used <= MOST_SHARE * available:
        return ""
    plural = "CPU is" if available == 1 else "CPUs are"
    return (
        f"{used:.1f} of {available} {plural} used by others, so that figures would mean nothing; "
        "wait until the machine is quiet, or measure all the same with --force"
    )
