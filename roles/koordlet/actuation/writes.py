"""What a strategy or a hook wants the node to look like: writes, and batches of writes by cgroup level (KA-EXE-01).

Plain data. Values are spelled as on cgroup v1 (``-1`` is no limit, CPU weight is shares); the executor turns them into what
the machine's version takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Merge(StrEnum):
    """When a value may already be written on the way down, before the children are (growth goes parent to child)."""

    NONE = ""
    LARGER = "larger value"
    LARGER_QUOTA = "larger quota"
    LOOSER_CPUSET = "looser cpuset"


class Kind(StrEnum):
    CGROUP = "cgroup"
    """A cgroup file; ``target`` is a cgroup directory relative to the root, ``resource`` a row of the file table."""
    TRIGGER = "trigger"
    """A cgroup file that makes the kernel do something once and holds no value (memory.reclaim)."""
    FILE = "file"
    """A whole file; ``target`` is its absolute path. It must exist and be readable."""
    LINE = "line"
    """One write to a kernel file that takes a line at a time (schemata, tasks, sched_features)."""
    CREATE = "create"
    """A file of the agent's own making, written whole and made if it is not there."""
    DIRECTORY = "directory"
    """A directory that has to exist (a resctrl group)."""
    ABSENT = "absent"
    """A file of the agent's own making that must not exist."""
    MOUNT = "mount"
    """A file system of type ``resource`` that has to be mounted on ``target``."""
    NO_DIRECTORY = "no directory"
    """A directory of the agent's own making that must not exist (a resctrl group)."""


class Hold(StrEnum):
    """Whether a write changes who owns its file."""

    NONE = ""
    TAKE = "take"
    """The rule has the file for itself from now on; what other rules want there waits."""
    RELEASE = "release"
    """The rule lets go: the file gets what others want there, else ``value``, else (``value`` empty) what it held before."""


@dataclass(frozen=True, slots=True)
class About:
    """Whom a write concerns; for the audit log and the decision record."""

    type: str = "node"
    """node, pod or group."""
    namespace: str = ""
    name: str = ""
    container: str = ""
    uid: str = ""

    @classmethod
    def of(cls, pod: Any, container: str = "") -> About:
        """A pod, or a container of it: whatever has its namespace, name and uid."""
        return cls("pod", pod.namespace, pod.name, container, pod.uid)


NODE = About()


@dataclass(frozen=True, slots=True)
class Write:
    """One wanted value.

    ``cached`` writes are left out while the last successful write of the same value is younger than
    ``--resource-force-update-seconds``. ``device`` makes writes of one file that concern different disks distinct.
    """

    resource: str
    target: str
    value: str
    kind: Kind = Kind.CGROUP
    merge: Merge = Merge.NONE
    cached: bool = True
    reason: str = "UpdateCgroups"
    about: About = NODE
    device: str = ""
    fallback: str = ""
    """Written instead when the kernel calls ``value`` invalid (EINVAL): what some kernels take and others do not."""
    event: str = ""
    """Reason of an event on the pod that it is about, once it was written."""
    hold: Hold = Hold.NONE
    origin: str = ""
    """What the file is to get back one day, where that is not what it holds (a child inherited what its parent was given)."""
    native: str | None = None
    """What the container runtime would have set by itself: the value before, where the file holds the wanted one already because a hook
    answered the runtime. Empty for a cpuset: the CPUs of the group around it."""
    answered: str | None = None
    """What a hook answered when the container was made, in the place of ``native``. Another value may be wanted by now."""

    def __str__(self) -> str:
        where = f"{self.target}/{self.resource}" if self.kind is Kind.CGROUP else self.target
        return f"{where} := {self.value!r}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Writes by level, outermost first. One level is a plain sequence, written in its order."""

    levels: tuple[tuple[Write, ...], ...]
    stop_on_error: bool = False
    """Only for batches without merge rules: what follows a failed write would break the order that it was to prepare."""

    def __iter__(self) -> Iterator[Write]:
        for level in self.levels:
            yield from level

    def __bool__(self) -> bool:
        return any(self.levels)


def sequence(*writes: Write, stop_on_error: bool = False) -> Batch:
    """A batch without levels."""
    return Batch((tuple(writes),), stop_on_error)


def in_steps(writes: Iterable[Write]) -> Iterator[Batch]:
    """Batches that each end with a directory: what is to be written in it can only be looked at when it is there."""
    step: list[Write] = []
    for write in writes:
        step.append(write)
        if write.kind is Kind.DIRECTORY:
            yield sequence(*step)
            step = []
    if step:
        yield sequence(*step)
