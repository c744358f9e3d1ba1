"""Sinks that carry records out of the process: the log, and files that are rotated."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from koord import seams
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


class LineFile:
    """A file of lines that is rotated by size.

    What is to be written is collected, and written off the event loop a tenth of a second later, so that deciding does not wait for a
    disk; at most `backlog` items wait, then the oldest are dropped and counted. Files are `path`, `path.1`, … `path.<keep>`, with
    `compress` `path.1.gz` and so on; with `total_bytes` the oldest of them go when all together hold more.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 64 * 2**20,
        keep: int = 3,
        backlog: int = 10_000,
        total_bytes: int | None = None,
        compress: bool = False,
    ) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.keep = keep
        self.total_bytes = total_bytes
        self.dropped = 0
        self._suffix = ".gz" if compress else ""
        self._waiting: deque[Any] = deque(maxlen=backlog)
        self._task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._size: int | None = None
        self._failing = False

    def put(self, item: Any) -> None:
        """Take an item; it is written soon after (at once where no event loop runs)."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(item)
        if self._task is not None and not self._task.done():
            return
        try:
            self._task = asyncio.get_running_loop().create_task(self._later(), name=f"decisions to {self.path}")
        except RuntimeError:
            self.flush()

    def _lines(self, items: list[Any]) -> bytes:
        """Items as they stand in the file."""
        raise NotImplementedError

    async def _later(self) -> None:
        while self._waiting:
            await seams.sleep(0.1)
            await seams.to_thread(self.flush)

    def flush(self) -> None:
        """Write what waits. A file that cannot be written is reported once; what waited is dropped and counted."""
        with self._lock:  # whoever writes takes what waits: nobody overtakes, and a thread that never began has taken nothing
            items = []
            while self._waiting:
                items.append(self._waiting.popleft())
            self._put(items)

    def close(self) -> None:
        """Write what waits and stop."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.flush()

    async def finish(self) -> None:
        """As `close`: a step of the end."""
        self.close()

    def _put(self, items: list[Any]) -> None:
        if not items:
            return
        try:
            self._write(items)
            self._failing = False
        except OSError as error:
            self._size = None  # half a line may stand there, or the directory be gone: the next write opens it anew
            self.dropped += len(items)
            if not self._failing:
                log.error("decisions cannot be written to %s: %s; they are dropped until it works again", self.path, error)
            self._failing = True

    def _write(self, items: list[Any]) -> None:
        data = self._lines(items)
        self._open()
        if self._size and self._size + len(data) > self.max_bytes:
            self._rotate()
        self._append(data)

    def _open(self) -> None:
        if self._size is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._size = self._complete()

    def _append(self, data: bytes) -> None:
        with open(self.path, "ab", opener=lambda path, flags: os.open(path, flags, 0o640)) as file:
            file.write(data)
        self._size = (self._size or 0) + len(data)

    def _complete(self) -> int:
        """Cut off what a crash left of a last line; the size of the file."""
        if not self.path.exists():
            return 0
        with self.path.open("rb+") as file:
            size = whole = file.seek(0, os.SEEK_END)
            begin = size
            while whole == begin > 0:  # back to the end of the line before, however long this one is
                begin = file.seek(max(0, whole - 2**20))
                whole = begin + file.read(whole - begin).rfind(b"\n") + 1
            if whole < size:
                file.truncate(whole)
        return whole

    def _old(self, number: int) -> Path:
        return Path(f"{self.path}.{number}{self._suffix}")

    def _rotate(self) -> None:
        for number in range(self.keep - 1, 0, -1):
            if self._old(number).exists():
                self._old(number).replace(self._old(number + 1))
        if not self.keep:
            self.path.unlink()
        elif self._suffix:
            making = Path(f"{self.path}.making")
            with self.path.open("rb") as source, gzip.open(making, "wb", compresslevel=6) as sink:
                shutil.copyfileobj(source, sink, 2**20)
            making.replace(self._old(1))
            self.path.unlink()
        else:
            self.path.replace(self._old(1))
        self._size = 0
        self._forget()

    def _forget(self) -> None:
        """Delete the oldest files as long as all of them, and a full new one, are more than is allowed."""
        if self.total_bytes is None:
            return
        left = self.total_bytes - self.max_bytes
        for number in range(1, self.keep + 1):
            if not self._old(number).exists():
                return
            left -= self._old(number).stat().st_size
            if left < 0:
                self._old(number).unlink()


class FileSink(LineFile):
    """Decision records as JSON lines (`read_records`)."""

    def write(self, record: Record) -> None:
        """Take a record."""
        self.put(record)

    def _lines(self, items: list[Record]) -> bytes:
        return b"".join(encode(record) + b"\n" for record in items)


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a file that FileSink wrote. Raises ValueError with the line number for a line that is no record.

    A last line without an end, which a crash may leave, is no record and no mistake.
    """
    compressed = os.fspath(path).endswith(".gz")
    with cast("IO[bytes]", gzip.open(path, "rb") if compressed else open(path, "rb")) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield decode(line)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    return
                raise ValueError(f"{os.fspath(path)}, line {number}: {error}") from error


def log_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The files of a decision log, of each role the oldest first. Raises OSError."""

    def age(path: Path) -> tuple[str, int]:
        role, _, rest = path.name.partition(".jsonl")
        number = rest.removesuffix(".gz").lstrip(".")
        return role, -int(number or 0)

    found = [path for path in Path(directory).iterdir() if re.fullmatch(r"[^.]+\.jsonl(\.\d+(\.gz)?)?", path.name)]
    return sorted(found, key=age)
