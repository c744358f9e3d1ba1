"""How much of this machine others use, and whether that leaves enough to measure anything."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

LOOK_SECONDS = 3.0
MOST_SHARE = 0.5
"""Of the CPUs that others may use: the rest has to hold a service, its batch jobs and koord."""
MARGIN_SHARE, LEAST_MARGIN = 0.15, 0.3
"""By how much others may use more than at the start before a second counts as disturbed: of the CPUs, and in cores at least."""


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


def too_few(available: int, online: int) -> str:
    """Why a part of a machine cannot be measured: koord sees the CPUs of the node, not those of this process. "" for a whole machine."""
    if available >= online:
        return ""
    return (
        f"this process may use {available} of {online} CPUs (taskset or a cpuset), and koord would count with all of them; "
        "run it on the whole machine, or measure all the same with --force"
    )


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of the machine before anything ran: CPUs, and how many of them others used."""

    cpus: int
    used: float

    @property
    def free(self) -> float:
        """CPUs that are free."""
        return max(self.cpus - self.used, 0.0)

    @property
    def quiet(self) -> float:
        """CPU of others, in cores, that is no disturbance: what they used at the start, and a little more."""
        return self.used + max(MARGIN_SHARE * self.cpus, LEAST_MARGIN)

    def why_not(self) -> str:
        """Why nothing can be measured here, in words; "" when it can."""
        return too_few(self.cpus, os.cpu_count() or self.cpus) or too_busy(self.used, self.cpus)


def look() -> Look:
    """Look at the machine for a few seconds. Raises OSError where that cannot be seen."""
    return Look(cpus(), busy_cores())
