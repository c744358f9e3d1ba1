"""The socket to listen on: handed over by the service manager, or made here, private and never in another process's way."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

MAX_SOCKET_PATH = 107  # bytes that a unix socket address can hold
_BACKLOG = 1024  # callers that wait to be accepted
_FIRST_FD = 3  # where the service manager puts the first socket that it hands over


class SocketError(Exception):
    """The socket cannot be made; the text says where and why."""


class Listener:
    """A socket that callers connect to. `open` makes them find it; `close` ends that."""

    def open(self) -> socket.socket:
        """The listening socket, in place. Raises SocketError."""
        raise NotImplementedError

    def lost(self) -> bool:
        """Whether callers cannot find it any more, and another call of `open` may help."""
        return False

    def close(self) -> None:
        """Take it away, as far as it is this process's own."""


class Inherited(Listener):
    """A socket of the service manager's (`koord-runtime-proxy.socket`). It outlives this process: who connects meanwhile waits."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    def open(self) -> socket.socket:
        return self._socket


class Own(Listener):
    """A socket of this process. A lock file beside it keeps a second proxy away from the path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name[:12]}.{os.getpid()}")
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None

    def claim(self) -> None:
        """Make the directory and take the lock. Raises SocketError."""
        path = self._path
        longest = max(len(os.fsencode(path)), len(os.fsencode(self._temporary)))
        if longest > MAX_SOCKET_PATH:
            raise SocketError(f"{path}: a unix socket path may have {MAX_SOCKET_PATH} bytes, this one needs {longest}")
        try:
            self._make_directory()
            self._look()
            self._lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise SocketError(f"{path}: another runtime proxy is about to listen on it, or does") from None
            self._temporary.unlink(missing_ok=True)
        except OSError as error:
            raise SocketError(f"{error.filename or path}: {error.strerror}") from None

    def open(self) -> socket.socket:
        """Listen, restrict the socket to its owner and move it to its name, over a stale one. Raises SocketError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._make_directory()
            self._temporary.unlink(missing_ok=True)
            listening.bind(str(self._temporary))
            self._temporary.chmod(0o600)
            listening.listen(_BACKLOG)
            self._look()  # again: the engine may have let this process wait for long
            found = self._temporary.stat()
            self._temporary.replace(self._path)
        except OSError as error:
            listening.close()
            raise SocketError(f"{error.filename or self._path}: {error.strerror}") from None
        except SocketError:
            listening.close()
            self._temporary.unlink(missing_ok=True)
            raise
        self._identity = (found.st_dev, found.st_ino)
        return listening

    def lost(self) -> bool:
        """Whether the path was taken away or replaced since `open`."""
        return self._identity is not None and not self._leads_here()

    def _leads_here(self) -> bool:
        try:
            found = self._path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _make_directory(self) -> None:
        if not self._path.parent.is_dir():
            self._path.parent.mkdir(mode=0o700, parents=True)

    def close(self) -> None:
        """Remove the path if it still leads to this process's socket, and let others have it."""
        if self._identity is not None:
            if self._leads_here():
                self._path.unlink(missing_ok=True)
            self._identity = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _look(self) -> None:
        path = self._path
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise SocketError(f"{path}: exists and is no socket; remove it or choose another --koord-runtimeproxy-endpoint")
        if path.exists() and _answers(path):
            raise SocketError(f"{path}: another process is listening on it")


def listener(path: Path, environ: MutableMapping[str, str] = os.environ) -> Listener:
    """The socket that the service manager hands over (its sd_listen_fds protocol), or one of our own at `path`. Raises SocketError."""
    meant, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if meant == str(os.getpid()) and count.isdecimal() and int(count) > 0:
        if int(count) > 1:
            raise SocketError(f"{count} sockets were handed over; one is needed")
        return Inherited(_inherited(_FIRST_FD))
    own = Own(path)
    own.claim()
    return own


def _inherited(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        found = socket.socket(fileno=number)
        listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise SocketError(f"the socket that was handed over cannot be used: {error.strerror}") from None
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM or not listening:
        raise SocketError("the socket that was handed over is no listening unix stream socket (ListenStream=/path)")
    return found


def peer_uid(connection: Any) -> int:
    """The user at the other end of a unix socket, as the kernel says; -1 when it cannot say."""
    try:
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    except (OSError, AttributeError):
        return -1
    return int(uid)


def trusted(uid: int) -> bool:
    """Whether a user may connect: root and the proxy's own. Whoever may create containers owns the node."""
    return uid in (0, os.geteuid())


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
