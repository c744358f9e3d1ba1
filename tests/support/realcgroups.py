"""Groups of this machine's own cgroup v1 controllers that stand in for the hierarchies of a machine of files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tests.support import patience

CONTROLLERS = tuple(name for name in ("cpu", "cpuacct", "cpuset", "memory", "blkio") if Path("/sys/fs/cgroup", name).is_dir())
BURN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


class Tree:
    """Own groups below each controller, seen by the machine as the roots of its hierarchies."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.name = f"koord-test-{uuid.uuid4().hex[:8]}"
        self.processes: list[subprocess.Popen[bytes]] = []
        for controller in CONTROLLERS:
            real = Path("/sys/fs/cgroup", controller, self.name)
            real.mkdir()
            link = Path(machine.root.cgroup, controller)
            for left in sorted(link.rglob("*"), reverse=True):
                left.rmdir()
            link.rmdir()
            link.symlink_to(real)
        self._inherit_cpuset(Path("/sys/fs/cgroup/cpuset", self.name))

    def _inherit_cpuset(self, directory: Path) -> None:
        """A cpuset takes no task before it has CPUs and memory nodes."""
        for name in ("cpuset.cpus", "cpuset.mems"):
            os.write(fd := os.open(directory / name, os.O_WRONLY), (directory.parent / name).read_bytes())
            os.close(fd)

    def make(self, *directories: str) -> None:
        for directory in directories:
            for controller in CONTROLLERS:
                path = Path(self.machine.root.cgroup, controller)
                for part in directory.split("/"):
                    path = path / part
                    if not path.exists():
                        path.mkdir()
                        if controller == "cpuset":
                            self._inherit_cpuset(path)

    def burn(self, directory: str, processes: int = 1, *, cpu: int | None = None) -> None:
        """Processes that want all they can get; on one ``cpu`` only where what groups get is compared.

        On several, the kernel may for long keep one group's on a CPU that others load as well, and the other group's on one that is idle.
        """
        for _ in range(processes):
            process = self.run(directory, BURN)
            if cpu is not None:
                os.sched_setaffinity(process.pid, {cpu})

    def run(self, directory: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A Python program in a group; it starts when it is there, and may say things on its output."""
        waiting = f"import sys; sys.stdin.readline()\n{program}"
        command = [sys.executable, "-c", waiting, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        for controller in CONTROLLERS:
            Path(self.machine.root.cgroup, controller, directory, "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        return process

    def used(self, directory: str) -> int:
        return int(Path(self.machine.root.cgroup, "cpuacct", directory, "cpuacct.usage").read_text())

    def values(self) -> dict[str, str]:
        """What every file that the agent may write holds."""
        names = ("cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.shares", "cpuset.cpus", "memory.limit_in_bytes")
        out = {}
        for controller in CONTROLLERS:
            for path in Path("/sys/fs/cgroup", controller, self.name).rglob("*"):
                if path.name in names:
                    out[str(path)] = path.read_text()
        return out

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for controller in CONTROLLERS:
            root = Path("/sys/fs/cgroup", controller, self.name)
            for path in sorted((p for p in root.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
                self._rmdir(path)
            self._rmdir(root)

    def _rmdir(self, path: Path) -> None:
        for _ in patience.tries(50):
            with contextlib.suppress(OSError):
                path.rmdir()
                return
            time.sleep(0.05)
