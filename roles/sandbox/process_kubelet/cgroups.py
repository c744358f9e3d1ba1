"""The cgroups of one sandbox run: made, set, joined, emptied and removed. Nothing outside the run's own directories is written."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from roles.sandbox.process_kubelet import layout
from roles.sandbox.process_kubelet.layout import Hierarchies, LayoutError
from roles.sandbox.process_kubelet.limits import CFS_PERIOD_US, CgroupLimits, weight_of


def write(path: Path, value: str) -> None:
    """Write one value by one system call; errors of the kernel (EINVAL, EBUSY) come out as OSError with the path in them."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode() or b"\n")
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)} writing {value!r}", str(path)) from error
    finally:
        os.close(fd)


def read(path: Path) -> str:
    """The stripped content of a cgroup file."""
    return path.read_text().strip()


class RunGroups:
    """All cgroups of one run. `directory` arguments are relative to the run's top, such as `kubepods/burstable/pod1`."""

    def __init__(self, hierarchies: Hierarchies, run_id: str) -> None:
        self.hierarchies = hierarchies
        self.run_id = run_id
        self.roots: dict[str, Path] = dict(hierarchies.roots(run_id))

    @property
    def version(self) -> int:
        return self.hierarchies.version

    def path(self, controller: str, directory: str = "") -> Path:
        """A directory in the hierarchy of a controller. Raises `LayoutError` when there is none."""
        mount = self.hierarchies.mount(controller)
        if mount is None:
            raise LayoutError(f"no cgroup hierarchy for controller {controller}")
        return mount / layout.group_name(self.run_id) / directory

    def has(self, controller: str) -> bool:
        return self.hierarchies.mount(controller) is not None

    def create_top(self) -> None:
        """Make the run's top directory in each hierarchy. Raises `LayoutError` if one is not writable."""
        for top in self.roots.values():
            try:
                if self.version == 2:
                    self._delegate(top.parent)
                top.mkdir(exist_ok=True)
                self._prepare(top)
            except OSError as error:
                self.remove_all()
                raise LayoutError(f"cannot make {top}: {error.strerror}") from error

    def create(self, directory: str, limits: CgroupLimits | None = None) -> None:
        """Make a group in every hierarchy, its parents must exist; then set its limits."""
        for top in self.roots.values():
            target = top / directory
            if self.version == 2:
                self._delegate(target.parent)
            target.mkdir(exist_ok=True)
            self._prepare(target)
        if limits is not None:
            self.set_limits(directory, limits)

    def _prepare(self, target: Path) -> None:
        """A v1 cpuset takes no task before it has CPUs and memory nodes; they come from the parent."""
        if self.version != 1 or not (target / "cpuset.cpus").exists():
            return
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not read(target / name):
                write(target / name, read(target.parent / name))

    def _delegate(self, parent: Path) -> None:
        """v2: hand the controllers down to the children of `parent`. Raises OSError (EBUSY) where tasks sit in it."""
        available = read(parent / "cgroup.controllers").split()
        enabled = read(parent / "cgroup.subtree_control").split()
        wanted = [c for c in layout.V2_CONTROLLERS if c in available and c not in enabled]
        if wanted:
            write(parent / "cgroup.subtree_control", " ".join("+" + c for c in wanted))

    def set_limits(self, directory: str, limits: CgroupLimits) -> None:
        """Write shares, quota and memory limit of a group in the form of the machine's cgroup version."""
        if self.version == 2:
            base = self.path("", directory)
            quota = "max" if limits.cpu_quota_us < 0 else str(limits.cpu_quota_us)
            write(base / "cpu.weight", str(weight_of(limits.cpu_shares)))
            write(base / "cpu.max", f"{quota} {CFS_PERIOD_US}")
            write(base / "memory.max", "max" if limits.memory_bytes < 0 else str(limits.memory_bytes))
            return
        cpu = self.path("cpu", directory)
        write(cpu / "cpu.shares", str(limits.cpu_shares))
        write(cpu / "cpu.cfs_period_us", str(CFS_PERIOD_US))
        write(cpu / "cpu.cfs_quota_us", str(limits.cpu_quota_us))
        write(self.path("memory", directory) / "memory.limit_in_bytes", str(limits.memory_bytes))

    def set_shares(self, directory: str, shares: int) -> None:
        """Write only the CPU weight of a group, given in v1 shares."""
        if self.version == 2:
            write(self.path("", directory) / "cpu.weight", str(weight_of(shares)))
        else:
            write(self.path("cpu", directory) / "cpu.shares", str(shares))

    def attach(self, directory: str, pid: int) -> None:
        """Move a process into the group in every hierarchy."""
        for top in self.roots.values():
            write(top / directory / "cgroup.procs", str(pid))

    def pids(self, directory: str = "", *, recursive: bool = False) -> set[int]:
        """Process ids in a group (of all hierarchies), optionally with those below it."""
        found: set[int] = set()
        for top in self.roots.values():
            base = top / directory
            for one in _walk(base) if recursive else (base,):
                with suppress(FileNotFoundError, OSError):
                    found.update(int(word) for word in (one / "cgroup.procs").read_text().split())
        return found

    def oom_kills(self, directory: str) -> int:
        """How many tasks of a group the kernel has killed for lack of memory; 0 when the group is gone or the kernel is silent."""
        base = self.path("memory", directory)
        with suppress(OSError):
            for line in (base / ("memory.events" if self.version == 2 else "memory.oom_control")).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def cpu_usage_ns(self, directory: str) -> int | None:
        """Cumulative CPU time of a group in nanoseconds, None when it is gone."""
        try:
            if self.version == 1:
                return int((self.path("cpuacct", directory) / "cpuacct.usage").read_text())
            for line in (self.path("", directory) / "cpu.stat").read_text().splitlines():
                if line.startswith("usage_usec "):
                    return int(line.split()[1]) * 1000
        except OSError:
            return None
        return None

    def cfs_quota_us(self, directory: str) -> int | None:
        """Current CFS quota of a group in microseconds per period; -1 without a limit, None when it is gone."""
        try:
            if self.version == 1:
                return int(read(self.path("cpu", directory) / "cpu.cfs_quota_us"))
            word = read(self.path("", directory) / "cpu.max").split()[0]
        except OSError:
            return None
        return -1 if word == "max" else int(word)

    def kill(self, directory: str, number: int = signal.SIGKILL) -> int:
        """Signal every process in and below a group; returns how many there were."""
        pids = self.pids(directory, recursive=True) - {os.getpid()}
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    def remove(self, directory: str) -> bool:
        """Remove a group with all below it, bottom-up; False while tasks keep one of them busy."""
        clean = True
        for top in self.roots.values():
            clean &= _remove_tree(top / directory)
        return clean

    def remove_all(self, *, timeout: float = 5.0, sleep: Callable[[float], None] = time.sleep) -> list[Path]:
        """Kill what runs in the run's groups and remove them; returns the directories that could not be removed in time."""
        deadline = time.monotonic() + timeout
        while True:
            self.kill("")
            if self.remove("") or time.monotonic() > deadline:
                break
            sleep(0.02)
        return [top for top in self.roots.values() if top.exists()]


def _walk(base: Path) -> Iterator[Path]:
    """A directory and all directories below it, parents first; what vanishes meanwhile is passed over."""
    yield base
    try:
        entries = sorted(os.scandir(base), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _remove_tree(base: Path) -> bool:
    if not base.exists():
        return True
    clean = True
    for directory in reversed(list(_walk(base))):
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            clean = False
    return clean
