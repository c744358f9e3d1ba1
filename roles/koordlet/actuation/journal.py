"""The write journal: what every file held before this agent first touched it (BEY-JRN-01).

Append-only lines ``<crc32> <json>``, one a file, written *before* the file is: an agent that is killed at any moment leaves a
journal from which everything can be put back. A torn last line means that its file was not touched yet and is dropped. A
journal that cannot be written makes the executor leave files alone whose value is not on record.

The journal lies below ``/var/run``, which lives exactly as long as what it describes: a reboot resets both.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import orjson

from roles.koordlet.host.errors import HostError
from roles.koordlet.host.proc import start_ticks

log = logging.getLogger(__name__)

NAME = "journal"
#: A file of a single process.
PROCESS_FILE = "oom_score_adj"
#: Compact when there are this many entries and most of them are of cgroups that are gone.
_COMPACT_AT = 4096


class Undo(StrEnum):
    """How a file is put back."""

    WRITE = "write"
    LINES = "lines"
    """Line by line, as resctrl takes it."""
    WORDS = "words"
    """Word by word (sched_features)."""
    DEVICES = "devices"
    """A line a disk (blkio); disks that had no line are set to 0."""
    REPLACE = "replace"
    """The agent replaced a whole file of its own kind."""
    UNMOUNT = "unmount"
    """The agent mounted it."""
    REMOVE = "remove"
    """The agent made the file."""
    REMOVE_DIRECTORY = "rmdir"
    """The agent made the directory (a resctrl group: its tasks fall back to the root group)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file before it was first written. ``inode`` is its :func:`identity`, 0 when it says nothing (sysctl)."""

    path: str
    value: str
    undo: Undo = Undo.WRITE
    resource: str = ""
    inode: int = 0


class JournalError(Exception):
    """The journal cannot be read or written."""


def _encode(entry: Entry) -> bytes:
    body = orjson.dumps([entry.path, entry.value, str(entry.undo), entry.resource, entry.inode])
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decode(line: bytes) -> Entry | None:
    crc, _, body = line.partition(b" ")
    try:
        if int(crc, 16) != zlib.crc32(body):
            return None
        path, value, undo, resource, inode = orjson.loads(body)
        entry = Entry(path, value, Undo(undo), resource, inode)
    except (ValueError, TypeError):
        return None
    whole = all(isinstance(text, str) for text in (path, value, resource)) and isinstance(inode, int)
    return entry if whole else None


def directory_inode(path: str) -> int:
    """Identity of the directory that holds a cgroup file: a cgroup that was made anew has another. 0 when it is gone."""
    try:
        return os.stat(os.path.dirname(path)).st_ino
    except OSError:
        return 0


def identity(path: str) -> int:
    """What tells a file from another one that later has its path: the inode of a cgroup's directory, the start of a process in clock
    ticks since boot (its number may be given to another one). 0 when it is gone."""
    directory, name = os.path.split(path)
    if name != PROCESS_FILE:
        return directory_inode(path)
    try:
        with open(os.path.join(directory, "stat"), "rb") as file:
            return start_ticks(file.name, file.read())
    except (OSError, HostError):
        return 0


class Journal:
    """First values of written files. Belongs to one process (the node lock sees to that)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure = ""
        """Why the last attempt to put something on record failed; empty when it worked."""
        self._entries: dict[str, Entry] = {}
        self._fd: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, path: str) -> Entry | None:
        return self._entries.get(path)

    # -- opening -------------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what an earlier run left. A damaged line is reported and left out. Raises JournalError when it cannot be read."""
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"journal {self.path} cannot be read: {error.strerror}") from error
        body, _, torn = data.rpartition(b"\n")
        damaged = 0
        for line in body.split(b"\n") if body else []:
            entry = _decode(line)
            if entry is None:
                damaged += 1
            else:
                self._take(entry)
        if damaged:
            log.error("journal %s: %d damaged lines are left out; the values of those files cannot be put back", self.path, damaged)
        if torn:
            log.warning("journal %s ends in an unfinished line, as after a kill; its file was not touched", self.path)

    def open(self) -> None:
        """Load, drop what no longer exists, and be ready to append. Raises JournalError."""
        self.load()
        self.compact()

    def compact(self) -> None:
        """Write the journal anew with the entries whose files still exist (atomically). Raises JournalError."""
        self._close()
        kept = {e.path: e for e in self._entries.values() if _alive(e)}
        temporary = f"{self.path}.new"
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, b"".join(map(_encode, kept.values())))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, self.path)
            _sync_directory(os.path.dirname(self.path))
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"journal {self.path} cannot be written: {error.strerror}") from error
        self._entries = kept

    # -- recording -----------------------------------------------------------------------------------------------------------

    def known(self, path: str, inode: int) -> bool:
        """Whether the first value of this very file is on record."""
        entry = self._entries.get(path)
        return entry is not None and (not inode or not entry.inode or entry.inode == inode)

    def remember(self, entries: Iterable[Entry]) -> bool:
        """Put first values on record, before the files are written: one append and one sync for all. False: they are not."""
        fresh = [e for e in entries if not self.known(e.path, e.inode)]
        if not fresh:
            return True
        try:
            if self._fd is None:
                self.compact()
            if len(self._entries) > _COMPACT_AT and len(self._entries) % 256 == 0:
                self.compact()
            fd = self._fd
            if fd is None:
                raise JournalError(f"journal {self.path} is closed")
            self._append(fd, b"".join(map(_encode, fresh)))
        except (OSError, JournalError) as error:
            text = str(error) if isinstance(error, JournalError) else f"journal {self.path} cannot be written: {error.strerror}"
            if text != self.failure:
                log.error("%s; nothing is changed whose present value is not on record", text)
            self.failure = text
            return False
        if self.failure:
            log.info("journal %s can be written again", self.path)
            self.failure = ""
        for entry in fresh:
            self._take(entry)
        return True

    def _append(self, fd: int, data: bytes) -> None:
        """All or nothing: what a full disk took of the lines is cut off again, or the next line would join a torn one."""
        before = os.fstat(fd).st_size
        try:
            _write_all(fd, data)
            os.fdatasync(fd)
        except OSError:
            os.ftruncate(fd, before)
            raise

    def _take(self, entry: Entry) -> None:
        known = self._entries.get(entry.path)
        # the first value counts; a cgroup made anew under the same name starts over
        if known is None or (entry.inode and known.inode and entry.inode != known.inode):
            self._entries[entry.path] = entry

    def clear(self) -> None:
        """Everything was put back: start with an empty journal. Raises JournalError."""
        self._entries.clear()
        self.compact()

    def keep_only(self, entries: Iterable[Entry]) -> None:
        """Keep what could not be put back. Raises JournalError."""
        self._entries = {e.path: e for e in entries}
        self.compact()

    def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _alive(entry: Entry) -> bool:
    if not os.path.lexists(entry.path):
        return False
    return not entry.inode or identity(entry.path) == entry.inode


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
