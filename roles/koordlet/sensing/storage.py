"""Local storage: disks, volume groups and mounts, for whoever limits disks (KLO-SYS-07, KLO-COL-13).

The tools run in a thread of their own, because one that waits for a sick disk must not hold up a tick. They run again when the
machine's block devices or mounts changed, and once a minute.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar

from roles.koordlet.host.errors import HostError
from roles.koordlet.host.root import HostRoot, PathEscapeError
from roles.koordlet.host.storage import COMMANDS, LocalStorage, parse_mounts, parse_storage
from roles.koordlet.host.tools import environment, locate
from roles.koordlet.sensing.base import Collector, Round, SensingContext

#: Name of the snapshot in the store (KLO-TSDB-02).
STORAGE = "node_local_storage_info"
TIMEOUT = 5.0
#: Without a sign of a change the tools run again after so long (seconds).
AGAIN = 60.0


class ToolError(HostError):
    """A tool is missing or failed."""


def run_tool(command: tuple[str, ...], root: HostRoot | None = None) -> str:
    """What a program prints, the machine's own if it has one: which sees its mounts as they are. Raises ToolError."""
    program = locate(command[0], root)
    try:
        if program is None:
            raise FileNotFoundError
        done = subprocess.run(
            (*program, *command[1:]), env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{' '.join(command)}: did not end within {TIMEOUT:g} s") from None
    except FileNotFoundError:
        # a machine without LVM has no volume groups; without lsblk nothing can be known
        if command[0] in ("vgs", "lvs"):
            return ""
        raise ToolError(f"{command[0]}: not found on PATH; it is needed to find disks") from None
    except OSError as error:
        raise ToolError(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise ToolError(f"{' '.join(command)}: {done.stderr.decode('utf-8', 'replace').strip() or f'status {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")


def read_storage(root: HostRoot | None = None) -> LocalStorage:
    """Ask the tools. Raises HostError."""
    storage = parse_storage(*(run_tool(command, root) for command in COMMANDS))
    return replace(storage, mounts={**_machines_mounts(root or HostRoot()), **storage.mounts})


def _machines_mounts(root: HostRoot) -> dict[str, str]:
    """Those of process 1, none where they cannot be read: a container does not see what the machine mounts after it was made."""
    try:
        with open(root.proc_path("1/mounts"), encoding="utf-8", errors="replace") as file:
            return parse_mounts(file.read())
    except (OSError, PathEscapeError):
        return {}


class StorageCollector(Collector):
    """Keeps the snapshot; a failing tool leaves the previous one."""

    name: ClassVar[str] = "local storage"
    gate: ClassVar[str] = "BlkIOReconcile"

    def __init__(self, context: SensingContext, interval: float = 1.0) -> None:
        super().__init__(context, interval)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="storage") if self.enabled else None
        self._pending: Future[LocalStorage] | None = None
        self._seen: tuple[bytes, bytes] | None = None
        self._next = 0.0

    def collect(self, at: Round) -> None:
        if self._pending is not None:
            if not self._pending.done():
                return
            pending, self._pending = self._pending, None
            self._take(pending, at)
        seen = (self._bytes("partitions"), self._bytes("1/mounts"))
        if self._worker is not None and (seen != self._seen or at.mono >= self._next):
            self._seen, self._next = seen, at.mono + AGAIN
            self._pending = self._worker.submit(read_storage, self.context.host.root)

    def _take(self, done: Future[LocalStorage], at: Round) -> None:
        store, metrics = self.context.store, self.context.metrics
        try:
            storage = done.result()
        except HostError:
            metrics.collect_storage_info.inc("failed")
            self._next = at.mono
            raise
        metrics.collect_storage_info.inc("succeeded")
        if storage != store.snapshot(STORAGE):
            store.put_snapshot(STORAGE, storage)

    def _bytes(self, name: str) -> bytes:
        host = self.context.host
        try:
            return host.files.read(host.root.proc_path(name))
        except HostError:
            return b""
