"""How the kubelet names its cgroups, by its own configuration, where no kubepods directory tells it yet (KLO-SYS-01)."""

from __future__ import annotations

import os
from pathlib import Path

from roles.koordlet.host.cgroup import CgroupDriver, Layout
from roles.koordlet.host.root import HostRoot, PathEscapeError

_LISTEN = "0A"


def listening_inodes(table: str, port: int) -> set[str]:
    """Socket inodes that listen on a TCP port, of a table as in ``/proc/net/tcp``; lines that cannot be read are left out."""
    found: set[str] = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            try:
                if int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
            except ValueError:
                continue
    return found


def _listening_inodes(root: HostRoot, port: int) -> set[str]:
    found: set[str] = set()
    for name in ("net/tcp", "net/tcp6"):
        try:
            found |= listening_inodes(Path(root.proc_path(name)).read_text(errors="replace"), port)
        except OSError:
            continue
    return found


def kubelet_pid(root: HostRoot, port: int) -> int | None:
    """The process that listens on the kubelet's port."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(root, port)}
    if not wanted:
        return None
    try:
        pids = [n for n in os.listdir(root.proc) if n.isdecimal()]
    except OSError:
        return None
    for pid in sorted(pids, key=int):
        directory = os.path.join(root.proc, pid, "fd")
        try:
            if any(os.readlink(os.path.join(directory, fd)) in wanted for fd in os.listdir(directory)):
                return int(pid)
        except OSError:
            continue  # gone, or not ours to look at
    return None


def _flag(arguments: list[str], name: str) -> str | None:
    """A Go flag of a command line: ``--name=value`` or ``--name value``."""
    for at, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in {f"--{name}", f"-{name}"}:
            return value if equals else arguments[at + 1] if at + 1 < len(arguments) else None
    return None


def _config_text(root: HostRoot, pid: int, path: str) -> str | None:
    """The kubelet's configuration file; relative paths count from its working directory, its executable's, then ``/``."""
    bases = [""]
    if not os.path.isabs(path):
        bases = []
        for link in ("cwd", "exe"):
            try:
                target = os.readlink(os.path.join(root.proc, str(pid), link))
            except OSError:
                continue
            bases.append(target if link == "cwd" else os.path.dirname(target))
        bases.append("/")
    for base in bases:
        try:
            return Path(root.path(os.path.join(base, path))).read_text(errors="replace")
        except (OSError, PathEscapeError):
            continue
    return None


def kubelet_driver(root: HostRoot, port: int) -> CgroupDriver | None:
    """The driver of :func:`kubelet_layout`."""
    layout = kubelet_layout(root, port)
    return layout.driver if layout is not None else None


def kubelet_layout(root: HostRoot, port: int) -> Layout | None:
    """``--cgroup-driver`` and ``--cgroup-root``, else ``cgroupDriver`` and ``cgroupRoot`` of the ``--config`` file, else cgroupfs at the
    top; None while no kubelet can be looked at."""
    pid = kubelet_pid(root, port)
    if pid is None:
        return None
    try:
        arguments = [a.decode("utf-8", "replace") for a in Path(root.proc, str(pid), "cmdline").read_bytes().split(b"\0")]
    except OSError:
        return None
    driver, top = _flag(arguments, "cgroup-driver"), _flag(arguments, "cgroup-root")
    config = _flag(arguments, "config")
    if config and not (driver and top):
        content = _config_text(root, pid, config)
        found = layout_of(content) if content is not None else None
        if found is None and not driver:
            return None
        if found is not None:
            driver, top = driver or found.driver, top or found.cgroup_root
    return _layout(driver, top)


def layout_of(content: str) -> Layout | None:
    """``cgroupDriver`` and ``cgroupRoot`` of a kubelet's configuration file, cgroupfs at the top where it says nothing; None where it
    cannot be read."""
    import yaml

    from koord.config import plainyaml

    try:
        loaded = plainyaml.load(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    told = loaded if isinstance(loaded, dict) else {}
    return _layout(str(told.get("cgroupDriver") or ""), str(told.get("cgroupRoot") or ""))


def _layout(driver: str | None, cgroup_root: str | None) -> Layout | None:
    names = [name for name in (cgroup_root or "").split("/") if name]
    if ".." in names:
        return None
    try:
        return Layout(CgroupDriver(driver or "cgroupfs"), "/".join(names))
    except ValueError:
        return None
