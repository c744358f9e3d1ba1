"""Reading what strategies need of the host, in their units; None where it cannot be read (then they keep what is set)."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from typing import Any

from koord.accounting.cpuset import CPUSet, CPUSetError
from roles.koordlet.host import cgroup_files, files, parse
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US
from roles.koordlet.host.errors import HostError
from roles.koordlet.states.model import HostState, PodState


def raw(host: HostState, resource: str, directory: str) -> bytes | None:
    """Content of a file of a cgroup directory."""
    try:
        return host.files.read(host.cgroups.file(resource, directory))
    except (HostError, ValueError):
        return None


def text(host: HostState, path_of: Callable[..., str], *parts: Any) -> str | None:
    """Content of a file of the machine, without the newlines around it; ``path_of`` tells where it is."""
    try:
        return host.files.text(path_of(*parts))
    except (HostError, ValueError):
        return None


def idle(host: HostState, directory: str) -> bool:
    """Whether the kernel puts the processes of a cgroup directory off a CPU that anybody else wants (``cpu.idle``)."""
    return (raw(host, "cpu.idle", directory) or b"").strip() == b"1"


def cpu_quota(host: HostState, directory: str) -> int | None:
    """CFS quota of a cgroup directory in µs, -1 for none."""
    try:
        path = host.cgroups.file("cpu.cfs_quota_us", directory)
        return parse.cpu_quota(path, host.files.read(path), v2=host.cgroups.v2)
    except (HostError, ValueError):
        return None


def cpu_period(host: HostState, directory: str) -> int:
    """CFS period of a cgroup directory in µs; the kernel's default where it cannot be read."""
    try:
        path = host.cgroups.file("cpu.cfs_period_us", directory)
        words = host.files.read(path).split()
        period = int(words[1 if host.cgroups.v2 else 0])
    except (HostError, ValueError, IndexError):
        return CFS_PERIOD_US
    return period if period > 0 else CFS_PERIOD_US


def usual_quota(host: HostState, directory: str) -> int | None:
    """CFS quota of a cgroup directory as one of a 100 ms period (µs), whatever its period; -1 for none."""
    quota = cpu_quota(host, directory)
    return quota if quota is None or quota <= 0 else cgroup_files.usual_quota(quota, cpu_period(host, directory))


def cpuset(host: HostState, directory: str) -> CPUSet | None:
    """CPUs that a directory may use (v2: the effective ones)."""
    for resource in ("cpuset.cpus.effective", "cpuset.cpus") if host.cgroups.v2 else ("cpuset.cpus",):
        try:
            return CPUSet.parse(host.files.read(host.cgroups.file(resource, directory)).decode("ascii", "replace"))
        except (HostError, CPUSetError, ValueError):
            continue
    return None


#: How many cgroups a container has is up to it; so many are looked at.
MOST_WITHIN = 256
#: A file of each hierarchy: its path is cached and proven to stay below the root, so that walking costs no look-ups.
_FILE_OF = {"cpuset": "cpuset.cpus", "cpu": "cpu.cfs_quota_us"}


def subdirectories(host: HostState, subsystem: str, directory: str) -> list[str]:
    """Cgroup directories right below one, sorted; empty when it is gone. ``subsystem`` is cpu or cpuset."""
    try:
        names = files.subdirectories(os.path.dirname(host.cgroups.file(_FILE_OF[subsystem], directory)))
    except (OSError, ValueError):
        return []
    return [f"{directory}/{name}" for name in names]


def tree(host: HostState, subsystem: str, directory: str, depth: int) -> list[list[str]]:
    """Directories by level: the directory itself, then ``depth`` levels below it."""
    levels = [[directory]]
    for _ in range(depth):
        levels.append([d for parent in levels[-1] for d in subdirectories(host, subsystem, parent)])
    return levels


def tier(host: HostState, subsystem: str, placed: Container[str] = ()) -> list[list[str]]:
    """Directories of the best-effort tier by level: its own, its pods', their containers' (but those of ``placed`` pods), and on cgroup v1
    what these made in them: there a group has no fewer CPUs and no smaller quota than what is in it."""
    levels = tree(host, subsystem, host.cgroups.qos_dir(BESTEFFORT), 1)
    while len(levels) < 3 or (levels[-1] and not host.cgroups.v2):
        levels.append([d for parent in levels[-1] if parent not in placed for d in subdirectories(host, subsystem, parent)])
    return levels


def container_dirs(host: HostState, pod: PodState) -> list[str]:
    """Directories of a pod's containers, and of its sandbox where that can be told."""
    containers = {c.cgroup_dir for c in pod.all_containers() if c.cgroup_dir}
    try:
        return [*sorted(containers), host.cgroups.sandbox_dir(pod.cgroup_dir, containers)]
    except HostError:
        # not made yet, or not to be told from a container that the kubelet has not listed yet
        return sorted(containers)


def ids(host: HostState, resource: str, directory: str) -> list[int]:
    """Process or thread ids in a directory (``tasks``, ``cgroup.procs``); empty when it cannot be read."""
    try:
        return ids_in(host, host.cgroups.file(resource, directory))
    except ValueError:
        return []


def within(host: HostState, directory: str) -> list[str]:
    """A container's directory and what it made below (systemd, Docker), :data:`MOST_WITHIN` at most."""
    found = [directory]
    for each in found:  # it grows
        if len(found) < MOST_WITHIN:
            found += subdirectories(host, "cpu", each)
    return found[:MOST_WITHIN]


def ids_within(host: HostState, resource: str, directory: str) -> list[int]:
    """Ids in a container's directory and in what it made below."""
    return [one for each in within(host, directory) for one in ids(host, resource, each)]


def ids_in(host: HostState, path: str, *, fresh: bool = False) -> list[int]:
    """Ids in a file; ``fresh``: as of this moment rather than of this tick."""
    try:
        return parse.ids(path, (host.files.read_fresh if fresh else host.files.read)(path))
    except HostError:
        return []
