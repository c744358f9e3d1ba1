"""Hardware counters of a cgroup by perf_event_open (KLO-COL-10).

A counter exists for a cgroup and one CPU, so a cgroup needs two descriptors a CPU. Both counters of a CPU form one group: the
kernel schedules them together, which keeps their ratio right when counters are multiplexed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roles.koordlet.host.errors import CgroupGoneError, HostError, HostFileError

_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "loongarch64": 241, "ppc64le": 319, "s390x": 331}
_PID_CGROUP, _CLOEXEC = 1 << 2, 1 << 3
_TIMES = 1 | 2  # read_format: time enabled, time running
_ATTR = struct.Struct("=IIQQQQQIIQ")  # perf_event_attr up to config1, which every kernel takes
_READING = struct.Struct("=QQQ")


@dataclass(frozen=True, slots=True)
class Event:
    """``type`` and ``config`` as linux/perf_event.h numbers them."""

    type: int
    config: int


CYCLES, INSTRUCTIONS = Event(0, 0), Event(0, 1)

#: (event, descriptor of the cgroup's directory, CPU, group leader or -1) -> descriptor; raises OSError
Opener = Callable[[Event, int, int, int], int]


def perf_event_open(event: Event, cgroup: int, cpu: int, leader: int) -> int:
    """One counter of a cgroup on a CPU, counting at once. Raises OSError; ENOSYS on machines whose call number is not known."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open of {platform.machine()} is not known")
    attributes = _ATTR.pack(event.type, _ATTR.size, event.config, 0, 0, _TIMES, 0, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = [ctypes.c_long(v) for v in (cgroup, cpu, leader, _PID_CGROUP | _CLOEXEC)]
    fd = libc.syscall(ctypes.c_long(number), ctypes.c_char_p(attributes), *numbers)
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(fd)


class NoCountersError(HostError):
    """This machine offers no counters to this process at all, whatever the cgroup."""


_NO_SUPPORT = (errno.ENOENT, errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_RIGHT = (errno.EPERM, errno.EACCES)


def scaled(data: bytes) -> float:
    """A reading, extrapolated when the counter did not run all the time it was enabled."""
    value, enabled, running = _READING.unpack(data)
    return value * enabled / running if enabled and running and enabled != running else float(value)


class CgroupCounters:
    """Counters of one cgroup on all given CPUs, from opening to :meth:`close`."""

    __slots__ = ("_fds", "path")

    def __init__(
        self, path: str, cpus: Sequence[int], events: tuple[Event, ...] = (CYCLES, INSTRUCTIONS), opener: Opener = perf_event_open
    ) -> None:
        """Open everything or nothing. Raises NoCountersError, CgroupGoneError, or HostFileError."""
        self.path = path
        self._fds: list[list[int]] = [[] for _ in events]
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise CgroupGoneError(path) from None
        except OSError as error:
            raise HostFileError(path, f"cannot be opened: {error.strerror}") from error
        try:
            for cpu in cpus:
                leader = -1
                for fds, event in zip(self._fds, events, strict=True):
                    fds.append(opener(event, directory, cpu, leader))
                    leader = fds[-1] if leader < 0 else leader
        except OSError as error:
            self.close()
            if error.errno in _NO_SUPPORT:
                raise NoCountersError(f"this machine has no such hardware counters: {error.strerror}") from error
            if error.errno in _NO_RIGHT:
                raise NoCountersError(
                    f"hardware counters are refused ({error.strerror}): CAP_PERFMON or kernel.perf_event_paranoid is missing"
                ) from error
            raise HostFileError(path, f"counters cannot be opened: {error.strerror}") from error
        finally:
            os.close(directory)

    def read(self) -> list[float]:
        """Sum over all CPUs since opening, one an event. Raises HostFileError."""
        try:
            return [sum(scaled(os.read(fd, _READING.size)) for fd in fds) for fds in self._fds]
        except (OSError, struct.error) as error:
            raise HostFileError(self.path, f"counters cannot be read: {error}") from error

    def close(self) -> None:
        for fds in self._fds:
            while fds:
                os.close(fds.pop())
