"""The audit log: JSON lines of what koordlet did to the node, rotated by size (KLO-AUD-01)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from koord import seams

log = logging.getLogger(__name__)

ROTATE_AT = 2 << 20
BUFFER_BYTES = 1 << 20
FLUSH_AFTER = 5.0
MAX_SUFFIX = 9
CURRENT = "audit.log"
TYPES = ("node", "pod", "group", "unknown")


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line; empty fields are left out. ``type`` is node, pod, group or unknown."""

    type: str = "unknown"
    namespace: str = ""
    name: str = ""
    container: str = ""
    reason: str = ""
    message: str = ""

    def line(self, now: float) -> bytes:
        created = datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds")
        row = {
            "createdAt": created,
            "type": self.type if self.type in TYPES else "unknown",
            "namespace": self.namespace,
            "name": self.name,
            "container": self.container,
            "reason": self.reason,
            "message": self.message,
        }
        return orjson.dumps({k: v for k, v in row.items() if v}) + b"\n"


def log_files(directory: str) -> list[str]:
    """Paths of all audit files, oldest first, the current one last."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    rotated = sorted(n for n in names if n.startswith("audit-") and n.endswith(".log"))
    current = [CURRENT] if CURRENT in names else []
    return [os.path.join(directory, n) for n in (*rotated, *current)]


class AuditLog:
    """Appends events. ``verbosity`` > 0 drops events of a higher one; ``max_megabytes`` bounds all files together.

    An instance with ``enabled=False`` takes events and drops them, so that callers need not ask. Writing never raises: a full or
    read-only disk is reported once and must not stop the agent.
    """

    def __init__(
        self, directory: str, *, verbosity: int = 3, max_megabytes: int = 16, enabled: bool = True, clock: Callable[[], float] = seams.now
    ) -> None:
        self.directory = directory
        self.enabled = enabled
        self._verbosity = verbosity
        self._max_files = max(max_megabytes // 2, 1)
        self._clock = clock
        self._buffer = bytearray()
        self._flushed_at = clock()
        self._fd: int | None = None
        self._size = 0
        self._broken = False

    @property
    def path(self) -> str:
        return os.path.join(self.directory, CURRENT)

    def emit(self, event: AuditEvent, verbosity: int = 1) -> None:
        """Log one event."""
        if not self.enabled or (self._verbosity > 0 and verbosity > self._verbosity):
            return
        now = self._clock()
        self._buffer += event.line(now)
        if len(self._buffer) >= BUFFER_BYTES or now - self._flushed_at >= FLUSH_AFTER:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered; also to be called every few seconds, so that a quiet node's last event reaches the disk."""
        self._flushed_at = self._clock()
        if not self._buffer:
            return
        data, self._buffer = bytes(self._buffer), bytearray()
        try:
            if self._fd is not None and not self._is_current(self._fd):
                self._close()  # somebody moved or removed the file: nobody would ever read what is written to it
            for line in data.splitlines(keepends=True):
                self._write(line)
            self._broken = False
        except OSError as error:
            if not self._broken:
                log.error("audit log %s cannot be written, events are lost: %s", self.path, error.strerror)
            self._broken = True
            self._close()

    def _write(self, line: bytes) -> None:
        if self._fd is None:
            seams.files().make_directory(self.directory)
            self._fd = seams.files().open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            # an existing file counts with what it holds, or it would grow beyond the limit after every restart
            self._size = os.fstat(self._fd).st_size
        if self._size and self._size + len(line) > ROTATE_AT:
            self._rotate()
            self._write(line)
            return
        seams.files().write(self._fd, line)
        self._size += len(line)

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        self._close()
        stamp = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%d-%H-%M-%S")
        for suffix in range(MAX_SUFFIX):
            target = os.path.join(self.directory, f"audit-{stamp}-{suffix}.log")
            if not os.path.exists(target):
                seams.files().rename(self.path, target)
                break
        else:
            seams.files().unlink(self.path)  # nine files within a second: the newest is given up rather than the limit
        files = log_files(self.directory)
        for path in files[: max(len(files) + 1 - self._max_files, 0)]:
            seams.files().unlink(path)

    def _close(self) -> None:
        if self._fd is not None:
            seams.files().close(self._fd)
            self._fd = None

    def close(self) -> None:
        self.flush()
        self._close()
