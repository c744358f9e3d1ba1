"""Reading and writing kernel files so that every error surfaces (KA-EXE-01).

Buffered files swallow what the kernel says at close; here each write is one ``write(2)``, as cgroupfs and resctrl want it.
"""

from __future__ import annotations

import ctypes
import errno
import os

from koord import seams
from roles.koordlet.actuation.errors import Trouble, WriteError, from_os_error
from roles.koordlet.host.ownfiles import replace

_LIMIT = 1 << 20
#: Files of a resctrl group, which the kernel makes and removes with it.
GROUP_FILES = ("schemata", "tasks")


def read(path: str) -> str:
    """The file's content without the newlines at its end. Raises WriteError."""
    files = seams.files()
    try:
        fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(path, error, "cannot be read") from None
    try:
        parts: list[bytes] = []
        while chunk := files.read(fd, 1 << 16):
            parts.append(chunk)
            if len(parts) > _LIMIT >> 16:
                raise WriteError(Trouble.OTHER, path, "is larger than 1 MiB")
        return b"".join(parts).decode("utf-8", "replace").rstrip("\n")
    except OSError as error:
        raise from_os_error(path, error, "cannot be read") from None
    finally:
        files.close(fd)


def write(path: str, text: str) -> None:
    """Replace the content by one write. An empty text is written as a newline, because writing nothing does nothing.

    Raises WriteError.
    """
    data = text.encode() or b"\n"
    # O_TRUNC means nothing to the kernel's files and lets plain files stand in for them
    _write(path, data, os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC)


def append_line(path: str, line: str) -> None:
    """One line of a file that takes lines one by one. Plain files that stand in for it keep the earlier lines. Raises WriteError."""
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_APPEND
    # files of resctrl groups come with the group; kernel file systems take no notice of this flag for what is there
    if os.path.basename(path) in GROUP_FILES:
        flags |= os.O_CREAT
    _write(path, line.rstrip("\n").encode() + b"\n", flags)


def _write(path: str, data: bytes, flags: int) -> None:
    files = seams.files()
    try:
        fd = files.open(path, flags, 0o644)
    except OSError as error:
        raise from_os_error(path, error, "cannot be opened for writing") from None
    try:
        written = files.write(fd, data)
    except OSError as error:
        raise from_os_error(path, error, f"{data[:60].decode(errors='replace').strip()!r} is refused") from None
    finally:
        files.close(fd)
    if written != len(data):
        raise WriteError(Trouble.OTHER, path, f"only {written} of {len(data)} bytes were taken")


def replace_file(path: str, text: str) -> None:
    """Write a file of the agent's own so that a reader sees the old or the new content, never half. Raises WriteError."""
    try:
        replace(path, text.encode())
    except OSError as error:
        raise from_os_error(path, error, "cannot be written") from None


def change_own(path: str, wanted: bool, *, directory: bool) -> None:
    """Make or remove a directory, or remove a file, of the agent's own making. Raises WriteError."""
    try:
        if wanted:
            seams.files().make_directory(path)
        elif directory:
            _remove_directory(path)
        else:
            seams.files().unlink(path)
    except OSError as error:
        raise from_os_error(path, error, "cannot be made" if wanted else "cannot be removed") from None


def others_in(path: str) -> list[str]:
    """What is in a directory of the agent's own making beside what the kernel, or the agent, puts there."""
    try:
        return sorted(set(os.listdir(path)) - set(GROUP_FILES))
    except OSError:
        return []


def _remove_directory(path: str) -> None:
    """The kernel removes a group with its files; a plain directory that stands in for one has to be emptied of them first."""
    files = seams.files()
    try:
        files.remove_directory(path)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or set(os.listdir(path)) - set(GROUP_FILES):
            raise
        for name in os.listdir(path):
            files.unlink(os.path.join(path, name))
        files.remove_directory(path)


# -- mounts ------------------------------------------------------------------------------------------------------------------

_MS_RELATIME = 1 << 21


def _mounts() -> list[tuple[str, str]]:
    """Mount point and file system type of every mount, in mount order."""
    out: list[tuple[str, str]] = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields = before.split()
            if len(fields) > 4 and after:
                out.append((fields[4].encode().decode("unicode_escape"), after.split()[0]))
    return out


def is_mounted(path: str, kind: str) -> bool:
    """Whether a file system of that type is mounted exactly there."""
    real = os.path.realpath(path)
    return any(point == real and fs == kind for point, fs in _mounts())


def mount(kind: str, path: str) -> None:
    """Mount a kernel file system (``resctrl``) on its place in a real sysfs; elsewhere it is unsupported. Raises WriteError."""
    real = os.path.realpath(path)
    around = max(
        (p for p in _mounts() if real == p[0] or real.startswith(p[0].rstrip("/") + "/")), key=lambda p: len(p[0]), default=("", "")
    )
    if around[1] != "sysfs" or not os.path.isdir(real):
        raise WriteError(Trouble.UNSUPPORTED, path, "is no place in sysfs that a file system could be mounted on")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), real.encode(), kind.encode(), _MS_RELATIME, None) != 0:
        number = ctypes.get_errno()
        raise from_os_error(path, OSError(number, os.strerror(number)), f"{kind} cannot be mounted")


def unmount(path: str) -> None:
    """Raises WriteError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(path.encode(), 0) != 0:
        number = ctypes.get_errno()
        raise from_os_error(path, OSError(number, os.strerror(number)), "cannot be unmounted")
