"""inotify by ctypes: directories that come and go, and files that are replaced, as events on a descriptor."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_MOVED_TO, IN_IGNORED = 0x100, 0x200, 0x400, 0x80, 0x8000
IN_ISDIR, IN_ONLYDIR, IN_Q_OVERFLOW = 0x40000000, 0x01000000, 0x4000
_MASK = IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVED_TO | IN_ONLYDIR
_HEAD = struct.Struct("iIII")


@dataclass(frozen=True, slots=True)
class DirectoryEvent:
    """A directory ``name`` below the watched ``path``, or a file that was moved there; an empty name is the watched directory itself that
    went away."""

    path: str
    name: str
    created: bool


class Inotify:
    """Watches directories for directories, and for files that are moved there. Raises OSError where the kernel refuses."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._paths: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        self.overflowed = False

    def __contains__(self, path: str) -> bool:
        return path in self._watches

    @property
    def paths(self) -> tuple[str, ...]:
        """What is watched."""
        return tuple(self._watches)

    def watch(self, path: str) -> bool:
        """Watch a directory; False when it does not exist."""
        if path in self._watches:
            return True
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(path), _MASK)
        if watch < 0:
            number = ctypes.get_errno()
            if number in {2, 20}:  # ENOENT, ENOTDIR
                return False
            raise OSError(number, os.strerror(number), path)
        self._paths[watch] = path
        self._watches[path] = watch
        return True

    def unwatch(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is not None:
            self._paths.pop(watch, None)
            self._libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> list[DirectoryEvent]:
        """What happened since the last call."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        out: list[DirectoryEvent] = []
        at = 0
        while at + _HEAD.size <= len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, at)
            name = os.fsdecode(data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0"))
            at += _HEAD.size + length
            if mask & IN_Q_OVERFLOW:
                self.overflowed = True
                continue
            path = self._paths.get(watch)
            if path is None:
                continue
            if mask & (IN_DELETE_SELF | IN_IGNORED):
                self._paths.pop(watch, None)
                self._watches.pop(path, None)
                out.append(DirectoryEvent(path, "", created=False))
            elif mask & (IN_ISDIR | IN_MOVED_TO):
                out.append(DirectoryEvent(path, name, created=not mask & IN_DELETE))
        return out

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
