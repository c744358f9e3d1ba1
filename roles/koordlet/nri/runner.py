"""Keeps the NRI plugin connected: waits for the socket, connects again after a loss, with growing pauses (KA-RH-02)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from koord import seams
from roles.koordlet.hooks.delivery import Delivery
from roles.koordlet.listening import identity
from roles.koordlet.options import Options
from roles.koordlet.waiting import pause

log = logging.getLogger(__name__)

#: How often it is seen whether a socket is there, or another one than that at which the last attempt failed: a runtime may be upgraded, or
#: start again, at any time (seconds).
LOOK = 3.0
JITTER = 0.1


def pause_after(attempt: int, options: Options) -> float:
    """Seconds before the attempt after the ``attempt``-th failure, without jitter."""
    # beyond a hundred doublings only the cap counts
    grown = options.runtime_hooks_nri_backoff_duration * options.runtime_hooks_nri_backoff_factor ** min(attempt - 1, 100)
    return float(min(grown, options.runtime_hooks_nri_backoff_cap, 3600.0 * 24))


class NRIRunner:
    """Off where the flag says so. ``delivery`` is made at the first connection, because it imports protobuf."""

    def __init__(self, options: Options, path: str, delivery: Callable[[], Delivery]) -> None:
        self._path = path
        self._options = options
        self._delivery = delivery

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until stopping."""
        attempt, complaint = 0, ""
        while not stopping.is_set():
            if not self._there():
                await pause(stopping, LOOK)
                continue
            began, tried = asyncio.get_running_loop().time(), identity(self._path)
            text = await self._serve(stopping)
            if stopping.is_set():
                return
            if asyncio.get_running_loop().time() - began >= self._options.runtime_hooks_nri_connect_timeout:
                attempt, complaint = 0, ""  # it was connected
            attempt += 1
            if text != complaint:
                log.warning("NRI: %s; it is tried again", text)
            complaint = text
            if attempt > self._options.runtime_hooks_nri_backoff_steps:
                log.error("NRI: given up after %d attempts", attempt)
                return
            seconds = pause_after(attempt, self._options)
            if await self._another(tried, stopping, seconds * (1 + JITTER * seams.rng().random())):
                attempt = 0

    async def _another(self, tried: tuple[int, int, int], stopping: asyncio.Event, seconds: float) -> bool:
        """Wait so long, or until another socket is there; whether one is."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0 and not await pause(stopping, min(left, LOOK)):
            if self._there() and identity(self._path) != tried:
                return True
        return False

    def _there(self) -> bool:
        return os.path.exists(self._path)

    async def _serve(self, stopping: asyncio.Event) -> str:
        """One session; why it ended."""
        from roles.koordlet.nri.plugin import Plugin
        from roles.koordlet.nri.session import Session, SessionError

        options = self._options
        name, index = options.runtime_hooks_nri_plugin_name, options.runtime_hooks_nri_plugin_index
        plugin = Plugin(self._delivery(), options.default_runtime_type)
        try:
            await Session(self._path, name, index, plugin.serve, plugin.prepare).run(stopping)
        except SessionError as error:
            return str(error)
        return "stopped"
