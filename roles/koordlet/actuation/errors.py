"""What can go wrong when the node is written, by what the agent does about it (KA-EXE-01)."""

from __future__ import annotations

import errno
from enum import StrEnum


class Trouble(StrEnum):
    GONE = "gone"
    """The cgroup or file does not exist (any more): nothing to do, not a failure."""
    UNSUPPORTED = "unsupported"
    """This kernel does not offer it: nothing to do, not a failure."""
    BUSY = "busy"
    """The kernel refuses it for now, for example a cpuset that a child still uses: tried again next time."""
    INVALID = "invalid"
    """The value cannot be held by the file."""
    READ_ONLY = "read-only"
    """The file system or the file cannot be written by this process."""
    UNJOURNALLED = "unjournalled"
    """The value that was found could not be put on record, so the file is left alone."""
    OTHER = "other"


_BY_ERRNO = {
    errno.ENOENT: Trouble.GONE,
    errno.ENODEV: Trouble.GONE,
    errno.ENOTDIR: Trouble.GONE,
    errno.ESRCH: Trouble.GONE,
    errno.EOPNOTSUPP: Trouble.UNSUPPORTED,
    errno.ENOSYS: Trouble.UNSUPPORTED,
    errno.EBUSY: Trouble.BUSY,
    errno.EAGAIN: Trouble.BUSY,
    # cpuset v1: a directory without memory nodes cannot take tasks or CPUs yet
    errno.ENOSPC: Trouble.BUSY,
    errno.EINVAL: Trouble.INVALID,
    errno.ERANGE: Trouble.INVALID,
    errno.E2BIG: Trouble.INVALID,
    errno.EROFS: Trouble.READ_ONLY,
    errno.EACCES: Trouble.READ_ONLY,
    errno.EPERM: Trouble.READ_ONLY,
}

IGNORED = frozenset({Trouble.GONE, Trouble.UNSUPPORTED})


class WriteError(Exception):
    """A wanted value could not be brought about."""

    def __init__(self, trouble: Trouble, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.trouble = trouble
        self.path = path
        self.detail = detail

    @property
    def ignored(self) -> bool:
        """Whether it counts as nothing to do rather than as a failure."""
        return self.trouble in IGNORED


def from_os_error(path: str, error: OSError, doing: str) -> WriteError:
    trouble = _BY_ERRNO.get(error.errno or 0, Trouble.OTHER)
    return WriteError(trouble, path, f"{doing}: {error.strerror or error}")
