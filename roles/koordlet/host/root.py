"""Where a machine's directories are: every path of the agent hangs below one host root (KLO-CFG-01).

A directory can be a machine: with ``HostRoot.at("/some/tree")`` the agent reads and writes only below that tree, which is how
fixtures, the sandbox and a DaemonSet with host mounts all work through the same code. No path leaves its base directory,
neither through ``..`` nor through a symbolic link.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Self


class PathEscapeError(ValueError):
    """A path would leave the directory it has to stay in."""

    def __init__(self, base: str, path: str) -> None:
        super().__init__(f"path {path!r} leaves {base!r}: only paths below it are accepted")
        self.base = base
        self.path = path


def confine(base: str, *parts: str) -> str:
    """Join ``parts`` to ``base`` and prove that the result stays below it.

    Leading slashes of parts are dropped (a cgroup directory may be written ``/kubepods``). Symbolic links are followed
    only as far as they stay below ``base``; the last component need not exist. Raises :class:`PathEscapeError`.
    """
    path = prefix = base
    linked = False
    for part in parts:
        names = part.strip("/").split("/")
        if ".." in names or "\0" in part:
            raise PathEscapeError(base, part)
        for name in filter(None, names):
            prefix = f"{prefix.rstrip('/')}/{name}"
            linked = linked or os.path.islink(prefix)
        path = prefix
    # without a link nothing can lead out; resolving the whole path costs several times as much
    if base == "/" or not linked:
        return path
    real_base = os.path.realpath(base)
    real = os.path.realpath(path)
    if real != real_base and not real.startswith(real_base.rstrip("/") + "/"):
        raise PathEscapeError(base, path)
    return path


_MAX_LINKS = 40


def rooted(base: str, path: str) -> str:
    """``path`` below ``base`` with its links followed as the machine itself would: an absolute target starts at ``base``.

    A machine's ``/var/run`` is a link to ``/run``; seen through a mount of its root it would lead out of it.
    """
    if base == "/":
        return os.path.normpath(path)
    todo = [name for name in path.split("/") if name]
    done: list[str] = []
    links = 0
    while todo:
        name = todo.pop(0)
        if name in (".", ".."):
            del done[len(done) - (name == "..") :]
            continue
        here = "/".join([base, *done, name])
        if os.path.islink(here) and links < _MAX_LINKS:
            links += 1
            target = os.readlink(here)
            if target.startswith("/"):
                done = []
            todo = [part for part in target.split("/") if part] + todo
            continue
        done.append(name)
    return "/".join([base, *done])


# flag name -> (attribute, path below the host in host mode, default mount in a DaemonSet)
PATH_FLAGS: tuple[tuple[str, str, str, str], ...] = (
    ("cgroup-root-dir", "cgroup", "/sys/fs/cgroup", "/host-cgroup"),
    ("sys-root-dir", "sys", "/sys", "/host-sys"),
    ("sys-fs-root-dir", "sys_fs", "/sys/fs", "/host-sys-fs"),
    ("proc-root-dir", "proc", "/proc", "/proc"),
    ("var-run-root-dir", "var_run", "/var/run", "/host-var-run"),
    ("run-root-dir", "run", "/run", "/host-run"),
    ("var-lib-kubelet-dir", "kubelet", "/var/lib/kubelet", "/var/lib/kubelet"),
    ("runtime-hooks-config-path", "hooks_config", "/etc/runtime/hookserver.d", "/host-etc-hookserver"),
)


@dataclass(frozen=True, slots=True)
class HostRoot:
    """The directories of one machine, absolute and without a trailing slash.

    ``root`` bounds whatever has no directory of its own (``/etc``, ``/host-var-lib``). Methods take path parts below the
    directory they are named after and return absolute paths; all raise :class:`PathEscapeError`.
    """

    root: str = "/"
    cgroup: str = "/sys/fs/cgroup"
    sys: str = "/sys"
    sys_fs: str = "/sys/fs"
    proc: str = "/proc"
    var_run: str = "/var/run"
    run: str = "/run"
    kubelet: str = "/var/lib/kubelet"
    hooks_config: str = "/etc/runtime/hookserver.d"

    @classmethod
    def at(cls, root: str = "/", overrides: dict[str, str] | None = None, *, daemonset: bool = False) -> Self:
        """Directories below ``root``; ``overrides`` maps flag names (``cgroup-root-dir``) to absolute directories.

        With ``daemonset`` the defaults are the mounts of the upstream DaemonSet (``/host-cgroup`` …), which only make sense
        for ``root="/"``.
        """
        base = os.path.abspath(root)
        values: dict[str, str] = {"root": base}
        for flag, attribute, host_path, mounted in PATH_FLAGS:
            default = mounted if daemonset and base == "/" else host_path
            given = (overrides or {}).get(flag)
            values[attribute] = os.path.abspath(given) if given else rooted(base, default)
        return cls(**values)

    def with_dirs(self, **dirs: str) -> HostRoot:
        """The same machine with some directories replaced (``cgroup=…``)."""
        known = {f.name for f in fields(self)}
        unknown = set(dirs) - known
        if unknown:
            raise ValueError(f"unknown host directories {sorted(unknown)}: accepted are {sorted(known)}")
        return replace(self, **{k: os.path.abspath(v) for k, v in dirs.items()})

    @property
    def machine_directories(self) -> tuple[str, ...]:
        """Where files may lie that the agent changes."""
        return (self.cgroup, self.proc, self.sys, self.sys_fs, self.hooks_config, self.root)

    def on_machine(self, path: str) -> str:
        """What the machine itself calls a path of this process: without the directory at which its root is mounted."""
        return path.removeprefix(self.root) if self.root != "/" and path.startswith(f"{self.root}/") else path

    def path(self, *parts: str) -> str:
        """A path below the host root itself."""
        return confine(self.root, *parts)

    def cgroup_path(self, *parts: str) -> str:
        return confine(self.cgroup, *parts)

    def sys_path(self, *parts: str) -> str:
        return confine(self.sys, *parts)

    def resctrl_path(self, *parts: str) -> str:
        return confine(self.sys_fs, "resctrl", *parts)

    def proc_path(self, *parts: str) -> str:
        return confine(self.proc, *parts)

    def var_run_path(self, *parts: str) -> str:
        return confine(self.var_run, *parts)

    def kubelet_path(self, *parts: str) -> str:
        return confine(self.kubelet, *parts)
