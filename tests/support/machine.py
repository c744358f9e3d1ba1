"""A machine of its own on this one: its own files (in memory, over this machine's), processes, network and cgroups.

What a node's programs change anywhere is changed there only, at the paths that they have on any node. It ends with all its processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.roles.runtime_proxy.support_containerd import CGROUPS, remove_groups
from tests.support import patience
from tests.support.real_kubelet import KERNEL

#: Enters the groups of $1 in all hierarchies, then is the command that follows.
_ENTER = 'for g in /sys/fs/cgroup/*/"$1"; do echo $$ > "$g/cgroup.procs" || exit; done; shift; exec "$@"'
PROGRAMS = ("unshare", "nsenter", "pivot_root", "ip")


@dataclass
class Machine:
    """`pid` is its first process, as this machine sees it."""

    pid: int
    group: str
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def path(self, path: str) -> Path:
        """A file of the machine, for this one."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def write(self, path: str, content: str | bytes) -> None:
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    def command(self, *command: str) -> list[str]:
        """What runs a command there, as one of the system's services."""
        spaces = ("--mount", "--net", "--pid", "--cgroup", "--uts", "--ipc")
        return ["sh", "-c", _ENTER, "sh", f"{self.group}/system", "nsenter", f"--target={self.pid}", *spaces, "--", *command]

    def run(self, *command: str, limit: float = 60, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command), capture_output=True, text=True, timeout=patience.seconds(limit), check=False, **more
        )  # fmt: skip

    def start(self, name: str, *command: str) -> None:
        """A daemon; its output is in /var/log/NAME.log."""
        with self.path(f"/var/log/{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(self.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return self.path(f"/var/log/{name}.log").read_text(errors="replace")


def require() -> None:
    """Skip, with the reason, where there cannot be one."""
    if os.geteuid() != 0:
        pytest.skip("a machine of its own needs root")
    if not (CGROUPS / "cpu").is_dir():
        pytest.skip("needs cgroup v1 controllers in /sys/fs/cgroup")
    for name in PROGRAMS:
        if shutil.which(name) is None:
            pytest.skip(f"needs {name} on PATH")


@contextlib.contextmanager
def machine(addresses: Sequence[str]) -> Iterator[Machine]:
    """A booted machine with these further addresses; skips, with what was said, where it does not come up."""
    require()
    space = Path(tempfile.mkdtemp(prefix="koord-machine-"))
    group = f"koord-machine-{os.getpid()}-{os.urandom(3).hex()}"
    _make_groups(group)
    node: Machine | None = None
    try:
        init = [sys.executable, str(Path(__file__).with_name("machine_init.py")), str(space), ",".join(addresses)]
        settings = [f"{path}={value}" for path, value in KERNEL.items()]
        spaces = ["--mount", "--net", "--pid", "--cgroup", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        command = ["sh", "-c", _ENTER, "sh", group, "unshare", *spaces, "--", *init, *settings]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
            try:
                assert first.stdout is not None
                if first.stdout.readline().strip() != "ready":
                    pytest.skip(f"no machine of its own here: {first.communicate()[1].strip()[-500:]}")
                node = Machine(_child(first.pid), group)
                yield node
            finally:
                first.kill()
    finally:
        for child in node.children.values() if node is not None else ():
            child.wait(patience.seconds(20))
        remove_groups(group)
        shutil.rmtree(space, ignore_errors=True)


def _child(pid: int) -> int:
    """unshare waits for the first process of the new namespace."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _make_groups(group: str) -> None:
    for controller in sorted(CGROUPS.iterdir()):
        if controller.is_symlink() or not controller.is_dir():
            continue
        for path in (controller / group, controller / group / "system"):
            path.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if controller.name == "cpuset":
                    (path / name).write_text((CGROUPS / "cpuset" / name).read_text())
