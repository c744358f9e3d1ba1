"""Where the cgroups of a sandbox node lie, for cgroup v1 (a tree for each controller) and v2 (one tree).

Everything hangs below one directory of our own, `koord-sandbox-<id>`, in each hierarchy; below it the paths are those of a
kubelet with the cgroupfs driver: `kubepods[/burstable|/besteffort]/pod<uid>/<container id>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "koord-sandbox-"
RUN_ID = re.compile(r"[0-9a-f]{8}")
# perf_event and net_cls are not needed by a kubelet; unified carries no controller on v1 machines but gives each group PSI files.
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids")
V1_REQUIRED = ("cpu", "cpuacct", "cpuset", "memory")
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "io", "pids")
V2_REQUIRED = ("cpu", "memory")
KUBEPODS = "kubepods"


class LayoutError(Exception):
    """This machine's cgroups cannot carry a node; the text says which part is missing."""


def group_name(run_id: str) -> str:
    """The top directory of a run in each hierarchy. Raises ValueError for anything but eight hexadecimal digits."""
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(f"a run id is eight hexadecimal digits, not {run_id!r}")
    return PREFIX + run_id


def qos_dir(kubernetes_qos: str) -> str:
    """`kubepods`, `kubepods/burstable` or `kubepods/besteffort`: Guaranteed pods lie directly below kubepods."""
    return {"Burstable": f"{KUBEPODS}/burstable", "BestEffort": f"{KUBEPODS}/besteffort"}.get(kubernetes_qos, KUBEPODS)


def pod_dir(kubernetes_qos: str, uid: str) -> str:
    return f"{qos_dir(kubernetes_qos)}/pod{uid}"


def container_dir(kubernetes_qos: str, uid: str, container_id: str) -> str:
    """Directory of a container; `container_id` may carry its `containerd://` scheme."""
    return f"{pod_dir(kubernetes_qos, uid)}/{container_id.rpartition('://')[2]}"


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The mounted cgroup hierarchies of this machine: controller name to mount point (v2: one entry, `""`)."""

    version: int
    mounts: tuple[tuple[str, Path], ...]

    def mount(self, controller: str) -> Path | None:
        """The mount point that serves a controller, None if this machine has it not."""
        if self.version == 2:
            return self.mounts[0][1]
        return dict(self.mounts).get(controller)

    def roots(self, run_id: str) -> Iterator[tuple[str, Path]]:
        """(controller, our own top directory) of each distinct hierarchy."""
        seen: set[Path] = set()
        for controller, mount in self.mounts:
            top = mount / group_name(run_id)
            if top not in seen:
                seen.add(top)
                yield controller, top


def detect(root: Path = Path("/sys/fs/cgroup")) -> Hierarchies:
    """What is mounted below `root`. Raises `LayoutError` with the missing controllers.

    Controllers mounted together (`cpu,cpuacct`) are one hierarchy reached by two names; the resolved path tells.
    """
    controllers = root / "cgroup.controllers"
    if controllers.exists():
        names = controllers.read_text().split()
        missing = [c for c in V2_REQUIRED if c not in names]
        if missing:
            raise LayoutError(f"cgroup v2 at {root} has no controller {', '.join(missing)}")
        return Hierarchies(2, (("", root),))
    found: list[tuple[str, Path]] = []
    for name in V1_CONTROLLERS:
        mount = (root / name).resolve()
        if (mount / "cgroup.procs").exists():
            found.append((name, mount))
    missing = [c for c in V1_REQUIRED if c not in dict(found)]
    if missing:
        raise LayoutError(f"no cgroup v1 controller {', '.join(missing)} is mounted below {root}")
    unified = root / "unified"
    if (unified / "cgroup.controllers").exists():
        found.append(("unified", unified))
    return Hierarchies(1, tuple(found))
