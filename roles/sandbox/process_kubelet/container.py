"""One container of a pod as a host process: started held, joined to its cgroups, let go, waited for and stopped."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from roles.sandbox.process_kubelet.cgroups import RunGroups
from roles.sandbox.process_kubelet.child import Child
from roles.sandbox.process_kubelet.limits import CgroupLimits

# The shell waits for a line before it becomes the container's command, so that not one instruction of it runs outside its cgroup.
HOLD = 'read -r go || exit 125; exec "$@" </dev/null'


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run: the command of the pod spec, nothing else. `uid`/`gid` None means the kubelet's own."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    uid: int | None = None
    gid: int | None = None
    oom_score_adj: int | None = None


@dataclass(slots=True)
class Exit:
    """How a container ended. `signal` is 0 for an ordinary exit; `code` is 128 + signal otherwise."""

    code: int
    signal: int
    oom: bool
    started_at: float
    finished_at: float


@dataclass(slots=True)
class Container:
    """A running or ended container process and its groups."""

    name: str
    directory: str
    groups: RunGroups
    log_path: Path
    id: str = field(default_factory=lambda: secrets.token_hex(32))
    process: Child | None = None
    started_at: float = 0.0
    exit: Exit | None = None

    @property
    def group(self) -> str:
        """Directory of the container's cgroup, relative to the run's top."""
        return f"{self.directory}/{self.id}"

    async def start(self, spec: ProcessSpec, limits: CgroupLimits, now: float) -> None:
        """Make the cgroup, start the process in it and let it go.

        Raises OSError when the group cannot be made or joined or the command cannot be started; nothing is left behind then.
        """
        self.groups.create(self.group, limits)
        try:
            with self._open_log() as log:
                argv = ["/bin/sh", "-c", HOLD, "sh", *spec.argv]
                self.process = Child.start(argv, env=spec.env, output=log, cwd=spec.cwd, uid=spec.uid, gid=spec.gid)
            self.groups.attach(self.group, self.process.pid)
            if spec.oom_score_adj is not None:
                _set_oom_score_adj(self.process.pid, spec.oom_score_adj)
            self.process.tell(b"go\n")
        except OSError:
            if self.process is not None:
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, signal.SIGKILL)
                await self.process.wait()
            self.groups.remove(self.group)
            raise
        self.started_at = now

    def _open_log(self) -> IO[bytes]:
        """The log file, appended to over restarts; made here, in one short call, so that the child inherits it."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        return open(self.log_path, "ab")

    async def wait(self, clock: Callable[[], float]) -> Exit:
        """Wait for the main process; what it left behind in its groups is killed. `clock` is called for the time of the end."""
        assert self.process is not None
        code = await self.process.wait()
        number = -code if code < 0 else 0
        # 137 from a shell wrapper is a killed child as well; the kernel's own counter decides about memory.
        oom = self.groups.oom_kills(self.group) > 0 and (number == signal.SIGKILL or code == 128 + signal.SIGKILL)
        await self._empty()
        self.exit = Exit(128 + number if number else code, number, oom, self.started_at, clock())
        return self.exit

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to the main process's session, SIGKILL to the whole group when `grace_seconds` are over."""
        if self.process is None or self.exit is not None:
            return
        if grace_seconds > 0:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), grace_seconds)
        self.groups.kill(self.group)

    async def _empty(self) -> None:
        """Kill and await descendants that outlived the main process, at most two seconds."""
        for _ in range(100):
            if self.groups.kill(self.group) == 0:
                return
            await asyncio.sleep(0.02)

    async def remove(self) -> None:
        """Remove the container's groups; the kernel may need a moment after the last task has gone."""
        for _ in range(100):
            if self.groups.remove(self.group):
                return
            self.groups.kill(self.group)
            await asyncio.sleep(0.02)

    def tail(self, limit: int = 1024) -> str:
        """The last `limit` bytes of the log, for a termination message."""
        with suppress(OSError), open(self.log_path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - limit))
            return log.read().decode(errors="replace")
        return ""


def _set_oom_score_adj(pid: int, value: int) -> None:
    """Lowering needs CAP_SYS_RESOURCE, which containers often lack: a kubelet in such a place goes on without it."""
    with suppress(PermissionError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(value))
