"""The files of a modelled machine as one process has them: its system calls, with the kernel's rules, faults and a history."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from koord import seams

if TYPE_CHECKING:
    from roles.sandbox.world.host.machine import Machine


class Killed(BaseException):
    """The process died in this very call; nothing of it may go on."""


class ProcessFiles(seams.Files):
    """System calls of one life of one process.

    `dead` says whether that life is over: a dead process neither changes nor closes anything. `fell` is called at a change that the
    process does not survive.
    """

    def __init__(self, machine: Machine, author: str, dead: Callable[[], bool], fell: Callable[[], None]) -> None:
        self._machine = machine
        self._author = author
        self._dead = dead
        self._fell = fell
        self._cause = ""
        self._open: dict[int, str] = {}

    def because(self, reason: str) -> None:
        self._cause = reason

    def abandon(self) -> None:
        """The kernel closes what a dead process had open."""
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _alive(self) -> None:
        if self._dead():
            raise Killed

    def _changes(self, path: str) -> None:
        """Before each change: some are the last thing that a process asks for, some find no room on the disk."""
        self._alive()
        machine = self._machine
        if machine.steps_to_live > 0:
            machine.steps_to_live -= 1
            if machine.steps_to_live == 0:
                self._fell()
                raise Killed
        self._takes(path)

    def _takes(self, path: str) -> None:
        """Whether the disk takes something; the kernel's own files lie on none."""
        machine = self._machine
        if (machine.disk_full or machine.write_errors) and not machine.is_kernels(path):
            number = errno.EIO if machine.write_errors else errno.ENOSPC
            raise OSError(number, os.strerror(number), path)

    # -- calls ---------------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        self._alive()
        if flags & os.O_CREAT and not os.path.lexists(path):
            self._changes(path)
        if self._machine.is_kernels(path):
            flags &= ~(os.O_TRUNC | os.O_APPEND | os.O_CREAT)
        fd = os.open(path, flags, mode)
        self._open[fd] = path
        return fd

    def close(self, fd: int) -> None:
        if fd in self._open and not self._dead():
            del self._open[fd]
            os.close(fd)

    def read(self, fd: int, count: int) -> bytes:
        self._alive()
        said = self._machine.reading(self._open[fd])
        if said is None:
            return os.read(fd, count)
        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, at + len(said[at : at + count]), os.SEEK_SET)
        return said[at : at + count]

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        if self._dead():
            raise Killed
        said = self._machine.reading(self._open[fd])
        return os.pread(fd, count, offset) if said is None else said[offset : offset + count]

    def write(self, fd: int, data: bytes | memoryview) -> int:
        path = self._open[fd]
        self._changes(path)
        if self._machine.is_kernels(path):
            self._machine.write(path, bytes(data), self._author, self._cause)
            return len(data)
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        self._alive()
        if self._machine.write_errors:
            self._takes(self._open[fd])

    def truncate(self, fd: int, length: int) -> None:
        self._alive()
        os.ftruncate(fd, length)

    def rename(self, source: str, target: str) -> None:
        self._changes(target)
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        self._alive()
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        self._alive()
        if not os.path.isdir(path):
            self._changes(path)
        os.makedirs(path, mode=0o755, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        self._alive()
        os.rmdir(path)
