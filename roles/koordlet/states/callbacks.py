"""Notifies other modules that a state changed (KLO-SI-08).

Pending events of one kind coalesce into one, each kind runs in its own sequence, and nothing runs before every state is
synced; what happened before that is kept, one event a kind.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

log = logging.getLogger(__name__)


class StateKind(StrEnum):
    NODE_SLO = "NodeSLO spec"
    ALL_PODS = "all pods"
    NODE_TOPOLOGY = "node topology"
    NODE_METADATA = "node metadata"


Callback = Callable[[], Awaitable[Any] | None]


class Callbacks:
    """Registered callbacks by kind. They take no argument: the current snapshot says everything."""

    def __init__(self) -> None:
        self._callbacks: dict[StateKind, dict[str, Callback]] = {kind: {} for kind in StateKind}
        self._pending = {kind: asyncio.Event() for kind in StateKind}

    def register(self, kind: StateKind, name: str, callback: Callback) -> None:
        """A second callback of the same name is a mistake in the program: ValueError."""
        if name in self._callbacks[kind]:
            raise ValueError(f"callback {name!r} for {kind} is registered twice")
        self._callbacks[kind][name] = callback

    def emit(self, kind: StateKind) -> None:
        """Something of this kind changed; callbacks run soon."""
        self._pending[kind].set()

    async def run(self, kind: StateKind) -> None:
        """Run the callbacks of one kind until cancelled. A failing one is logged and does not keep the others from running."""
        pending = self._pending[kind]
        while True:
            await pending.wait()
            pending.clear()
            for name, callback in list(self._callbacks[kind].items()):
                try:
                    result = callback()
                    if inspect.isawaitable(result):
                        await result
                except Exception:
                    log.exception("callback %s for %s failed", name, kind)
