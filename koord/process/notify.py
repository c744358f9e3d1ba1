"""Notifies systemd of how a process is: ready, ending, and alive (its sd_notify protocol; nothing where there is no systemd)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


def notify(state: str) -> bool:
    """Send `READY=1`, `STOPPING=1` or `WATCHDOG=1` to the service manager; False when there is none that listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.sendall(state.encode())
    except OSError as error:
        log.warning("the service manager at %s cannot be told %s: %s", address, state, error.strerror)
        return False
    return True


def watchdog_period(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between signs of life: half of what systemd waits for one (`WatchdogSec=`); None where it does not wait."""
    try:
        limit = int(environ.get("WATCHDOG_USEC", ""))
        meant = int(environ.get("WATCHDOG_PID") or os.getpid())
    except ValueError:
        return None
    return limit / 2e6 if limit > 0 and meant == os.getpid() else None


async def stay_watched(stopping: asyncio.Event, alive: Callable[[], bool]) -> None:
    """Give signs of life while `alive()`, until stopping. Without them, and when the event loop hangs, systemd restarts the unit."""
    period = watchdog_period()
    if period is None:
        return
    was = True
    while not stopping.is_set():
        now = alive()
        if now:
            notify("WATCHDOG=1")
        elif was:
            log.error("this process is not well; the service manager is given no more signs of life and will restart it")
        was = now
        try:
            await asyncio.wait_for(stopping.wait(), period)
        except TimeoutError:
            continue
