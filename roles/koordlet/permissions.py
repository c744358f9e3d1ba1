"""What the agent may not look at, and what is therefore not known on this node: told once, at the start (BEY-MODE-01).

Files that are not there are no matter of permission, and root reads everything: this is for the agent that runs without root.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from roles.koordlet.host.root import HostRoot

Gate = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Look:
    """One thing to look at, and what is missing without it."""

    path: Callable[[HostRoot], str]
    missing: str
    when: Callable[[Gate], bool] = lambda gate: True


ROWS: tuple[Look, ...] = (
    Look(lambda root: root.cgroup, "use and limits of pods are not known"),
    Look(lambda root: root.proc_path("stat"), "the node's CPU use is not known"),
    Look(lambda root: root.proc_path("meminfo"), "the node's memory use is not known"),
    Look(lambda root: root.proc_path("pressure"), "pressure is not known", lambda gate: gate("PSICollector")),
    Look(lambda root: root.kubelet_path("cpu_manager_state"), "CPUs that the kubelet pinned are not known"),
    Look(lambda root: root.resctrl_path(), "cache partitions are not known", lambda gate: gate("RdtResctrl")),
    Look(lambda root: root.sys_path("kernel/mm/kidled"), "cold memory is not known", lambda gate: gate("ColdPageCollector")),
)


def _refused(path: str) -> str | None:
    """The first directory on the way that may not be entered, or the path itself that may not be read; None when all is well."""
    here = "/"
    for name in path.strip("/").split("/"):
        if not os.access(here, os.X_OK):
            return here
        here = os.path.join(here, name)
        if not os.path.lexists(here):
            return None
    needed = os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
    return None if os.access(path, needed) else path


def unreadable(root: HostRoot, gate: Gate) -> list[str]:
    """One sentence for each thing that is there and may not be read by this user."""
    out = []
    for row in ROWS:
        if row.when(gate) and (refused := _refused(row.path(root))) is not None:
            out.append(f"{refused} may not be read by user {os.geteuid()}: {row.missing}")
    return out
