"""Where a file is on the machine, whatever path it is seen under (BEY-JRN-01).

A journal outlives the mount namespace that wrote it: the DaemonSet sees the machine below ``/host``, a restore on the node below ``/``.
So a place is a base directory of the machine and a path relative to it, and what stands there is known by device, inode and boot.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum

from roles.koordlet.host.errors import HostError
from roles.koordlet.host.proc import start_ticks
from roles.koordlet.host.root import HostRoot, PathEscapeError, confine

#: A file of a single process.
PROCESS_FILE = "oom_score_adj"


class Base(StrEnum):
    """A directory of :class:`HostRoot`, the longest that holds a file."""

    CGROUP = "cgroup"
    SYS_FS = "sys_fs"
    SYS = "sys"
    PROC = "proc"
    HOOKS = "hooks_config"
    VAR_RUN = "var_run"
    RUN = "run"
    ROOT = "root"
    ABSOLUTE = ""
    """Below none of them: a path as this process sees it."""


#: File systems that the kernel makes anew with every boot.
_VOLATILE = frozenset({Base.CGROUP, Base.SYS_FS, Base.SYS, Base.PROC})
#: One in the whole kernel, wherever it is mounted.
_SINGLE = frozenset({Base.SYS_FS, Base.SYS, Base.PROC})

# Where the paths of other layouts begin, most telling first: the mounts of upstream's DaemonSet, and the machine's own directories below
# whatever its root was seen under.
_MARKS: tuple[tuple[str, Base], ...] = (
    ("/host-cgroup/", Base.CGROUP),
    ("/host-sys-fs/", Base.SYS_FS),
    ("/host-sys/", Base.SYS),
    ("/sys/fs/cgroup/", Base.CGROUP),
    ("/sys/fs/", Base.SYS_FS),
    ("/proc/", Base.PROC),
    ("/sys/", Base.SYS),
)
_PROCESS = re.compile(r"\d+/")

FileId = tuple[int, int]
"""Device and inode."""
NOTHING: FileId = (0, 0)


@dataclass(frozen=True, slots=True)
class Place:
    base: Base
    path: str

    def __str__(self) -> str:
        return f"{self.base or 'absolute'}:{self.path}"


def file_id(path: str) -> FileId:
    """Device and inode; zeros when there is nothing."""
    try:
        found = os.stat(path)
    except OSError:
        return NOTHING
    return found.st_dev, found.st_ino


def directory_inode(path: str) -> int:
    """Inode of the directory that holds a file: a cgroup that was made anew has another. 0 when it is gone."""
    return file_id(os.path.dirname(path))[1]


def identity(path: str) -> int:
    """What tells a file from another one that later has its path: the inode of a cgroup's directory, the start of a process in clock
    ticks since boot (its number may be given to another one). 0 when it is gone."""
    directory, name = os.path.split(path)
    if name != PROCESS_FILE:
        return directory_inode(path)
    try:
        with open(os.path.join(directory, "stat"), "rb") as file:
            return start_ticks(file.name, file.read())
    except (OSError, HostError):
        return 0


class Places:
    """One machine as this process sees it. ``root`` None: nothing is known of its layout, paths are what they are."""

    def __init__(self, root: HostRoot | None = None) -> None:
        self.root = root
        self._bases: list[tuple[str, Base]] = []
        if root is not None:
            found = [(str(getattr(root, base)), base) for base in Base if base is not Base.ABSOLUTE]
            self._bases = sorted(found, key=lambda pair: -len(pair[0]))
        self.boot = _boot_id(root)

    def of(self, path: str) -> Place:
        """The place of a path of this process."""
        for directory, base in self._bases:
            below = directory.rstrip("/") + "/"
            if path.startswith(below):
                return Place(base, path[len(below) :])
        return Place(Base.ABSOLUTE, path)

    def of_foreign(self, path: str) -> Place:
        """The place of a path that another process saw, perhaps under other mounts."""
        place = self.of(path)
        if self.root is None or place.base not in (Base.ROOT, Base.ABSOLUTE):
            return place
        for mark, base in _MARKS:
            at = path.find(mark)
            if at >= 0:
                return Place(base, path[at + len(mark) :])
        return place

    def path(self, place: Place) -> str:
        """Where a place is now. Raises PathEscapeError."""
        if place.base is Base.ABSOLUTE:
            return place.path
        directory = str(getattr(self.root or HostRoot(), place.base))
        controller, _, rest = place.path.partition("/")
        if place.base is Base.CGROUP and rest and controller != "..":
            return confine(f"{directory}/{controller}", rest)  # which may be a link: `cpu` is often one to `cpu,cpuacct`
        return confine(directory, place.path)

    def top(self, place: Place) -> str:
        """The directory at which the tree begins that a place is in."""
        if place.base is Base.ABSOLUTE:
            return "/"
        directory = str(getattr(self.root or HostRoot(), place.base))
        if place.base is Base.CGROUP and not os.path.exists(f"{directory}/cgroup.controllers"):
            return f"{directory}/{place.path.split('/', 1)[0]}"  # a v1 controller is a tree of its own
        return directory

    def tree(self, place: Place) -> FileId:
        """What tells the tree that a place is in from other trees: the root of its hierarchy, the process ids that /proc shows."""
        directory = self.top(place)
        if place.base is Base.PROC:
            space = file_id(f"{directory}/1/ns/pid")
            if space != NOTHING:
                return space
        return file_id(directory)

    def same_tree(self, place: Place, tree: FileId, boot: str) -> bool:
        """Whether what was noted of a place's tree is this machine's tree, so that a file that is missing is gone."""
        now = self.tree(place)
        if tree == now and now != NOTHING:
            return True
        if not boot or boot != self.boot:
            return False
        # a file system of the kernel that was mounted anew has another device
        if place.base in _VOLATILE and tree[1] == now[1] != 0:
            return True
        process = place.base is Base.PROC and _PROCESS.match(place.path) is not None
        return place.base in _SINGLE and not process and now != NOTHING

    def rebooted(self, place: Place, boot: str) -> bool:
        """Whether the kernel that had the file runs no more: its values went with it."""
        return self.passing(place, boot) and bool(self.boot) and boot != self.boot

    def passing(self, place: Place, boot: str) -> bool:
        """Whether a value goes with the kernel that has it, and a later kernel knows that: there is nothing to put back then."""
        return bool(boot) and place.base in _VOLATILE


def _boot_id(root: HostRoot | None) -> str:
    try:
        with open((root or HostRoot()).proc_path("sys/kernel/random/boot_id"), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except (OSError, PathEscapeError):
        return ""
