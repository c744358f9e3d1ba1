"""Keeps the NRI plugin connected: waits for the socket, connects again after a loss, with growing pauses (KA-RH-02)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from koord import seams
from roles.koordlet.hooks.delivery import Delivery
from roles.koordlet.options import Options
from roles.koordlet.waiting import pause

log = logging.getLogger(__name__)

#: How often an absent socket is looked for: a runtime may be upgraded while the agent runs (seconds).
LOOK_AGAIN = 30.0
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
                await pause(stopping, LOOK_AGAIN)
                continue
            began = asyncio.get_running_loop().time()
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
            await pause(stopping, seconds * (1 + JITTER * seams.rng().random()))

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
