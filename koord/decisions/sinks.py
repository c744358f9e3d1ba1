"""Sinks that carry records out of the process: the log, a rotated file, an event."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import msgspec

from koord.decisions.record import Record, decode, encode

log = logging.getLogger("koord.decisions")


class LogSink:
    """One line a record at `level`; only the verdicts in `verdicts`, if given."""

    def __init__(self, level: int = logging.INFO, verdicts: Container[str] | None = None) -> None:
        self.level = level
        self.verdicts = verdicts

    def write(self, record: Record) -> None:
        """Log a record, with its numbers."""
        if not log.isEnabledFor(self.level) or (self.verdicts is not None and record.verdict not in self.verdicts):
            return
        numbers = " ".join(f"{name}={value}" for name, value in record.numbers.items())
        log.log(self.level, "%s%s", record, f" [{numbers}]" if numbers else "")


class EventSink:
    """Hands the records of some verdicts to a function, which makes Kubernetes events (or whatever it likes) of them."""

    def __init__(self, emit: Callable[[Record], object], verdicts: Container[str] | None = None) -> None:
        self.emit = emit
        self.verdicts = verdicts

    def write(self, record: Record) -> None:
        """Pass a record on."""
        if self.verdicts is None or record.verdict in self.verdicts:
            self.emit(record)


class FileSink:
    """JSON lines in a file that is rotated by size: the replay format (`read_records`).

    Records are collected and written by one task, so that deciding does not wait for a disk; at most `backlog` records wait,
    then the oldest are dropped and counted. Files are `path`, `path.1`, … `path.<keep>`.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 64 * 2**20, keep: int = 3, backlog: int = 10_000) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.keep = keep
        self.dropped = 0
        self._waiting: deque[Record] = deque(maxlen=backlog)
        self._handle: asyncio.Handle | None = None
        self._size: int | None = None
        self._failing = False

    def write(self, record: Record) -> None:
        """Take a record; it is written soon after (at once where no event loop runs)."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(record)
        if self._handle is not None:
            return
        try:
            self._handle = asyncio.get_running_loop().call_later(0.1, self._later)
        except RuntimeError:
            self.flush()

    def _later(self) -> None:
        self._handle = None
        self.flush()

    def flush(self) -> None:
        """Write what waits. A file that cannot be written is reported once; its records are dropped and counted."""
        records, data = len(self._waiting), b"".join(encode(record) + b"\n" for record in self._waiting)
        self._waiting.clear()
        if not data:
            return
        try:
            self._append(data)
            self._failing = False
        except OSError as error:
            self.dropped += records
            if not self._failing:
                log.error("decisions cannot be written to %s: %s; they are dropped until it works again", self.path, error)
            self._failing = True

    def close(self) -> None:
        """Write what waits and stop."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.flush()

    def _append(self, data: bytes) -> None:
        if self._size is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._size = self.path.stat().st_size if self.path.exists() else 0
        if self._size and self._size + len(data) > self.max_bytes:
            self._rotate()
        with self.path.open("ab") as file:
            file.write(data)
        self._size += len(data)

    def _rotate(self) -> None:
        for number in range(self.keep - 1, 0, -1):
            older = Path(f"{self.path}.{number}")
            if older.exists():
                older.replace(f"{self.path}.{number + 1}")
        if self.keep:
            self.path.replace(f"{self.path}.1")
        else:
            self.path.unlink()
        self._size = 0


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a file that FileSink wrote. Raises ValueError with the line number for a line that is no record."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{os.fspath(path)}, line {number}: {error}") from error
