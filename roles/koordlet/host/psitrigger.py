"""Kernel pressure triggers: be woken within tenths of a second when the machine stalls (KLO-SYS-06).

A trigger is a line written into a pressure file that stays open; the kernel then raises POLLPRI on it when the stall time within a
window passes the threshold. An epoll object of its own turns that into a readable descriptor, which every event loop can watch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import Callable

log = logging.getLogger(__name__)

#: Stall time within a window that is worth a look (µs). Windows below two seconds need CAP_SYS_RESOURCE; those that are open to all
#: are looked at by the kernel every two seconds, which is later than the next tick.
STALL_US, WINDOW_US = 50_000, 500_000


class PressureTrigger:
    """One trigger on one pressure file (``/proc/pressure/cpu`` or a cgroup's ``cpu.pressure``)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._epoll: select.epoll | None = None

    def arm(self) -> bool:
        """Install the trigger; False, with a line in the log, where the kernel has none or does not let us."""
        try:
            self.install()
        except OSError as error:
            log.info("no pressure trigger on %s (%s): it is read instead", self.path, error.strerror or error)
            return False
        return True

    def install(self) -> None:
        """The same; raises OSError where `arm` returns False."""
        fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.fstatvfs(fd).f_blocks:
                raise OSError(0, "a plain file raises no events")
            os.write(fd, f"some {STALL_US} {WINDOW_US}".encode() + b"\0")
            epoll = select.epoll()
            epoll.register(fd, select.EPOLLPRI | select.EPOLLERR)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._epoll = fd, epoll

    def watch(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Call ``wake`` on the loop at each event, at most once a window (the kernel sees to that)."""
        epoll = self._epoll
        if epoll is None:
            return

        def ready() -> None:
            for _, event in epoll.poll(0):
                if event & select.EPOLLERR:  # the pressure file is gone
                    loop.remove_reader(epoll.fileno())
                    return
            wake()

        loop.add_reader(epoll.fileno(), ready)

    def close(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        if self._epoll is not None:
            if loop is not None:
                loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
