"""The listen socket: a private directory, a private socket, and no moment at which it exists half made."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any

MAX_SOCKET_PATH = 107  # bytes that a unix socket address can hold


class SocketError(Exception):
    """The socket cannot be made; the text says where and why."""


def prepare(path: Path) -> Path:
    """Make the directory and return the temporary name to listen on; `publish` moves it in place. Raises SocketError."""
    temporary = path.with_name(f".{path.name[:12]}.{os.getpid()}")
    longest = max(len(os.fsencode(path)), len(os.fsencode(temporary)))
    if longest > MAX_SOCKET_PATH:
        raise SocketError(f"{path}: a unix socket path may have {MAX_SOCKET_PATH} bytes, this one needs {longest}")
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True)
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise SocketError(f"{path}: exists and is no socket; remove it or choose another --koord-runtimeproxy-endpoint")
        if path.exists() and _answers(path):
            raise SocketError(f"{path}: another process is listening on it")
        temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SocketError(f"{error.filename or path}: {error.strerror}") from None
    return temporary


def publish(temporary: Path, path: Path) -> None:
    """Restrict the socket to its owner and move it to its name, over a stale one. Raises SocketError."""
    try:
        temporary.chmod(0o600)
        temporary.replace(path)
    except OSError as error:
        raise SocketError(f"{error.filename or path}: {error.strerror}") from None


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
