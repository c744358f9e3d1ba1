"""How much of this machine others use: figures that are taken beside them would say nothing."""

from __future__ import annotations

import os

import psutil

LOOK_SECONDS = 3.0
MOST_SHARE = 0.35
"""Of the CPUs; the demo's service needs about a third of two, its batch jobs the rest."""


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_cores(seconds: float = LOOK_SECONDS) -> float:
    """CPUs of ours that are in use now, looked at for so long."""
    used = psutil.cpu_percent(interval=seconds, percpu=True)
    return sum(used[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(used)) / 100


def too_busy(used: float, available: int) -> str:
    """Why nothing can be measured, in words; "" when it can."""
    if used <= MOST_SHARE * available:
        return ""
    plural = "CPU is" if available == 1 else "CPUs are"
    return (
        f"{used:.1f} of {available} {plural} used by others, so that figures would mean nothing; "
        "wait until the machine is quiet, or measure all the same with --force"
    )
