"""A private view of the cgroup tree for the local node's agent: `<dir>/<controller>` shows this run's own directory and nothing else.

The agent finds `<cgroup root>/<controller>/kubepods/...` as on any node, and cannot reach a group outside the run. The view is made of
bind mounts in a mount namespace of our own, so that nobody else sees it and the kernel takes it away with the last process.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from roles.sandbox.process_kubelet.cgroups import RunGroups
from roles.sandbox.process_kubelet.layout import LayoutError

CLONE_NEWNS = 0x0002_0000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise LayoutError(f"{what}: {os.strerror(number)}")


def private_namespace() -> None:
    """Give this process (and its children) a mount namespace of its own. Raises `LayoutError` where that is not allowed."""
    libc = _libc()
    _check(libc.unshare(CLONE_NEWNS), "cannot have a mount namespace of our own")
    result = libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    # In a bare chroot the mounts cannot be told from those of the system around it, which must not see ours.
    chroot = " (/ is not a mount point, as in a chroot; use a container or a virtual machine)" if ctypes.get_errno() == errno.EINVAL else ""
    _check(result, f"cannot make the mounts private{chroot}")


def bind(source: Path, target: Path) -> None:
    """Show `source` at `target`. Raises `LayoutError`."""
    result = _libc().mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(MS_BIND), None)
    _check(result, f"cannot bind {source} to {target}")


def cgroup_view(groups: RunGroups, directory: Path) -> Path:
    """Build the view of a run's groups below `directory` and return it. The groups must exist. Raises `LayoutError`."""
    private_namespace()
    directory.mkdir(parents=True, exist_ok=True)
    if groups.version == 2:
        bind(groups.path("cpu"), directory)
        return directory
    for controller, top in groups.roots.items():
        target = directory / controller
        target.mkdir(exist_ok=True)
        bind(top, target)
    # Controllers mounted together are one hierarchy under several names; the agent asks by name.
    for controller, mount in groups.hierarchies.mounts:
        if controller not in groups.roots:
            target = directory / controller
            target.mkdir(exist_ok=True)
            bind(mount / groups.roots[next(iter(groups.roots))].name, target)
    return directory


def release(directory: Path) -> None:
    """Take the view of `cgroup_view` away again, so that its directory can be removed; what is not mounted is passed over."""
    libc = _libc()
    for target in [*(sorted(directory.iterdir()) if directory.is_dir() else []), directory]:
        libc.umount2(os.fsencode(target), MNT_DETACH)
