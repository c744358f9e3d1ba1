"""One koordlet a node: two would fight over the same files (KLO-LIFE-01)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select

from koord import seams
from koord.process.errors import ConfigurationError

#: A guard (``--guard``) has it for moments (seconds).
PATIENCE = 0.5
_PAUSE = 0.05


class NodeLock:
    """An exclusive lock on a file, held until :meth:`release` or the end of the process, however it ends."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, patience: float = PATIENCE) -> None:
        """Raises ConfigurationError when another process holds it for ``patience`` seconds or the file cannot be made."""
        try:
            seams.files().make_directory(os.path.dirname(self.path))
            fd = seams.files().open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(f"lock file {self.path} cannot be made: {error.strerror}; see --lock-file") from error
        try:
            self._flock(fd, patience)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            seams.files().close(fd)
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise ConfigurationError(f"lock file {self.path} cannot be locked: {error.strerror}") from error
            raise ConfigurationError(
                f"another koordlet (pid {holder}) runs on this node and holds {self.path}; stop it or set another --lock-file"
            ) from None
        self._fd = fd
        with contextlib.suppress(OSError):  # on a full disk nobody learns who holds it; it is held all the same
            seams.files().truncate(fd, 0)
            seams.files().write(fd, f"{os.getpid()}\n".encode())

    def stay(self) -> str:
        """Take it anew where others removed the file: who looks for the holder looks there. What stands against that, "" for nothing."""
        if self._fd is None or os.fstat(self._fd).st_nlink:
            return ""
        former, self._fd = self._fd, None
        try:
            self.acquire(patience=0.0)  # on the event loop; the next look tries again
        except ConfigurationError as error:
            self._fd = former
            return str(error)
        seams.files().close(former)
        return ""

    @staticmethod
    def _flock(fd: int, patience: float) -> None:
        # counted and not timed: the clock of a process may stand still while it waits here
        for left in range(round(patience / _PAUSE), -1, -1):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not left:
                    raise
            select.select([], [], [], _PAUSE)

    def release(self) -> None:
        if self._fd is not None:
            seams.files().close(self._fd)
            self._fd = None
