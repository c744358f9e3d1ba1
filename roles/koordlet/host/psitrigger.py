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

#: Stall time (µs) that wakes the strategies.
CPU_STALL, MEMORY_STALL = 150_000, 100_000
#: Windows (µs) to try: one of a second needs CAP_SYS_RESOURCE, multiples of two seconds are open to all.
WINDOWS = (1_000_000, 2_000_000)


class PressureTrigger:
    """One trigger on one pressure file (``/proc/pressure/cpu`` or a cgroup's ``cpu.pressure``)."""

    def __init__(self, path: str, stall_us: int) -> None:
        self.path = path
        self._stall_us = stall_us
        self._fd = -1
        self._epoll: select.epoll | None = None

    def arm(self) -> bool:
        """Install the trigger; False, with a line in the log, where the kernel has none or does not let us."""
        reason = ""
        for window in WINDOWS:
            try:
                self._install(window)
                return True
            except OSError as error:
                reason = error.strerror or str(error)
        log.info("no pressure trigger on %s (%s): strategies run at their intervals only", self.path, reason)
        return False

    def _install(self, window_us: int) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.fstatvfs(fd).f_blocks:
                raise OSError(0, "a plain file raises no events")
            os.write(fd, f"some {self._stall_us} {window_us}".encode() + b"\0")
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
