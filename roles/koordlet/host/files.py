"""Reading host files cheaply: kept file descriptors, each file read at most once a tick (KLO-SYS-02).

A tick begins with :meth:`HostFiles.begin_tick`; until the next one every reader of a path gets the same bytes, so that all
strategies of a tick see the same numbers. Descriptors of removed cgroups are closed when their directory is dropped with
:meth:`HostFiles.forget_dir` or when reading says that the file is gone.
"""

from __future__ import annotations

import errno
import os
import resource
import weakref
from collections.abc import Callable

from koord import seams
from roles.koordlet.host.errors import CgroupGoneError, FileMissingError, HostFileError

_CHUNK = 1 << 16
_PAGE = 1 << 12
# seq_file hands out whole records of at most about a page at a time: only an answer well below a page is surely complete.
_SURELY_WHOLE = 2048
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESTALE, errno.EBADF, errno.ENOTDIR)


def raise_descriptor_limit() -> int:
    """Lift the soft limit of open files to the hard one and return it (a kept descriptor a file needs thousands)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 1 << 16) if hard != resource.RLIM_INFINITY else 1 << 16
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return soft


def subdirectories(path: str) -> list[str]:
    """Names of the directories in one, sorted. Raises OSError."""
    # cgroupfs counts a link for each: most cgroups hold none, and a stat costs a quarter of a listing
    if os.stat(path).st_nlink == 2:
        return []
    with os.scandir(path) as entries:
        return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))


def missing(path: str) -> HostFileError:
    """The right error for a path that cannot be opened: directory gone or only the file."""
    if os.path.isdir(os.path.dirname(path)):
        return FileMissingError(path)
    return CgroupGoneError(path)


Read = Callable[[int, int, int], bytes]


def _read_all(pread: Read, fd: int) -> bytes:
    data = pread(fd, _PAGE, 0)
    if len(data) < _SURELY_WHOLE:
        return data
    parts = [data]
    offset = len(data)
    while True:
        more = pread(fd, _CHUNK, offset)
        if not more:
            return b"".join(parts)
        parts.append(more)
        offset += len(more)


def _close_fds(files: seams.Files, fds: dict[str, tuple[int, bool]]) -> None:
    for fd, _ in fds.values():
        files.close(fd)
    fds.clear()


class HostFiles:
    """A reader with kept descriptors and one read a path and tick.

    ``max_open`` bounds the kept descriptors; beyond it files are opened and closed each time. Not thread-safe (one event
    loop). Paths must come from :class:`~roles.koordlet.host.root.HostRoot` or ``Cgroups``, which confine them.
    """

    __slots__ = ("__weakref__", "_fds", "_files", "_max_open", "_memo", "_pread", "opens", "reads")

    def __init__(self, max_open: int = 16_384) -> None:
        self._files = seams.files()
        self._pread = self._files.pread
        self._fds: dict[str, tuple[int, bool]] = {}
        self._memo: dict[str, bytes | HostFileError] = {}
        self._max_open = max_open
        self.reads = 0
        self.opens = 0
        # raw descriptors have no owner that closes them: a dropped reader must not leave thousands behind
        weakref.finalize(self, _close_fds, self._files, self._fds)

    @property
    def open_count(self) -> int:
        """Number of descriptors kept open."""
        return len(self._fds)

    def of_kernel(self, path: str) -> bool:
        """Whether a path that was read is a file of the kernel (a plain file stands for one in a tree of files)."""
        kept = self._fds.get(path)
        return kept is not None and kept[1]

    def begin_tick(self) -> None:
        """Forget what was read: the next read of each path goes to the kernel."""
        self._memo.clear()

    def invalidate(self, path: str) -> None:
        """Forget one path, because this process has just written it."""
        self._memo.pop(path, None)

    def read(self, path: str) -> bytes:
        """The file's bytes as of this tick. Raises FileMissingError, CgroupGoneError or HostFileError."""
        got = self._memo.get(path)
        if got is None:
            kept = self._fds.get(path)
            if kept is not None and kept[1]:
                # the way of nearly every read: a small file of the kernel, more than a thousand a tick
                try:
                    data = self._pread(kept[0], _PAGE, 0)
                except OSError:
                    data = b"?" * _SURELY_WHOLE  # read again below, where errors are told apart
                if len(data) < _SURELY_WHOLE:
                    self.reads += 1
                    self._memo[path] = data
                    return data
            got = self._memo[path] = self._fetch(path)
        if isinstance(got, HostFileError):
            raise got.again()
        return got

    def read_fresh(self, path: str) -> bytes:
        """The file's bytes now, whatever was read in this tick (for checks just before or after a write)."""
        self.invalidate(path)
        return self.read(path)

    def text(self, path: str) -> str:
        """The content without the newlines around it."""
        return self.read(path).decode("utf-8", "replace").strip("\n")

    def exists(self, path: str) -> bool:
        return path in self._fds or os.path.exists(path)

    def _fetch(self, path: str) -> bytes | HostFileError:
        self.reads += 1
        kept = self._fds.get(path)
        if kept is not None:
            fd, kernel_file = kept
            try:
                # a plain file may have been replaced or unlinked; its old content must not live on in the descriptor
                if kernel_file or os.fstat(fd).st_nlink > 0:
                    return _read_all(self._pread, fd)
            except OSError as error:
                if error.errno not in _GONE:
                    return HostFileError(path, f"cannot be read: {error.strerror}")
            self.close(path)
        return self._open_and_read(path)

    def _open_and_read(self, path: str) -> bytes | HostFileError:
        try:
            fd = self._files.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return missing(path)
        except OSError as error:
            return HostFileError(path, f"cannot be opened: {error.strerror}")
        self.opens += 1
        keep = len(self._fds) < self._max_open
        try:
            data = _read_all(self._pread, fd)
            if keep:
                # proc, sysfs and cgroup file systems have no blocks: their files cannot be replaced behind a descriptor
                self._fds[path] = (fd, os.fstatvfs(fd).f_blocks == 0)
        except OSError as error:
            self._files.close(fd)
            return CgroupGoneError(path) if error.errno in _GONE else HostFileError(path, f"cannot be read: {error.strerror}")
        if not keep:
            self._files.close(fd)
        return data

    def close(self, path: str) -> None:
        """Close the kept descriptor of one path, if any."""
        kept = self._fds.pop(path, None)
        if kept is not None:
            self._files.close(kept[0])

    def forget_dir(self, *directories: str) -> int:
        """Close the descriptors of all files below the given directories; returns how many."""
        prefixes = tuple(d.rstrip("/") + "/" for d in directories)
        gone = [p for p in self._fds if p.startswith(prefixes)] if prefixes else []
        for path in gone:
            self.close(path)
        return len(gone)

    def sweep(self) -> int:
        """Close what is kept of directories that are gone; returns how many. Not everybody who read a file hears that its group went."""
        there: dict[str, bool] = {}
        gone = []
        for path in self._fds:
            directory = os.path.dirname(path)
            if directory not in there:
                there[directory] = os.path.isdir(directory)
            if not there[directory]:
                gone.append(path)
        for path in gone:
            self.close(path)
        return len(gone)

    def close_all(self) -> None:
        """Close everything; reading opens files again. Dropping the object does the same."""
        _close_fds(self._files, self._fds)
        self._memo.clear()
