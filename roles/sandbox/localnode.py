"""Whether and how this machine can be a node: root, writable cgroups and a mount namespace of our own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from roles.sandbox import mounts
from roles.sandbox.process_kubelet import layout
from roles.sandbox.process_kubelet.cgroups import RunGroups
from roles.sandbox.process_kubelet.layout import LayoutError


@dataclass(frozen=True, slots=True)
class LocalNode:
    """The cgroups of this run and the directory in which the agent sees them."""

    groups: RunGroups
    cgroup_root: Path


def hierarchies() -> layout.Hierarchies | None:
    """The machine's cgroups, None where there are none that could carry a node."""
    try:
        return layout.detect()
    except (LayoutError, OSError):
        return None


def impossible() -> str:
    """Why this machine cannot be a node however long one waits; "" where nothing is known against it."""
    if not sys.platform.startswith("linux"):
        return "a real node needs Linux"
    if os.geteuid() != 0:
        return "a real node needs root"
    try:
        layout.detect()
    except (LayoutError, OSError) as error:
        return str(error)
    return ""


def prepare(run_id: str, scratch: Path) -> LocalNode:
    """Make the run's top groups and the agent's view of them. Raises `LayoutError` with the reason why this machine cannot be a node."""
    if why := impossible():
        raise LayoutError(why)
    groups = RunGroups(layout.detect(), run_id)
    groups.create_top()
    try:
        view = mounts.cgroup_view(groups, scratch / "cgroup")
    except (LayoutError, OSError) as error:
        groups.remove_all()
        raise LayoutError(str(error)) from error
    return LocalNode(groups, view)
