"""One koordlet a node: two would fight over the same files (KLO-LIFE-01)."""

from __future__ import annotations

import errno
import fcntl
import os

from koord.process.errors import ConfigurationError


class NodeLock:
    """An exclusive lock on a file, held until :meth:`release` or the end of the process, however it ends."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Raises ConfigurationError when another process holds it or the file cannot be made."""
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(f"lock file {self.path} cannot be made: {error.strerror}; see --lock-file") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise ConfigurationError(f"lock file {self.path} cannot be locked: {error.strerror}") from error
            raise ConfigurationError(
                f"another koordlet (pid {holder}) runs on this node and holds {self.path}; stop it or set another --lock-file"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
