"""The controllers that run inside the server, and which of them are on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from koord.apiserver.controllers.claims import ClaimController
from koord.apiserver.controllers.crds import CustomResources
from koord.apiserver.controllers.disruption import DisruptionController, QuotaController
from koord.apiserver.controllers.gc import GarbageCollector, NamespaceController
from koord.apiserver.store import DELETED, Event

if TYPE_CHECKING:
    from koord.apiserver.core import Core

_BUCKET = "/events"
_SWEEP_SECONDS = 15.0


class EventExpiry:
    """Removes events that nobody wrote to for as long as `event_ttl` says."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._written: deque[tuple[float, str, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        bucket = self.core.store.bucket(_BUCKET)
        for entry in bucket.entries.values():
            self._written.append((loop.time(), entry.key, entry.rv))
        bucket.listeners.append(self._on_event)
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_event(self, event: Event) -> None:
        if event.type != DELETED:
            self._written.append((asyncio.get_running_loop().time(), event.entry.key, event.rv))

    def _arm(self) -> None:
        pause = min(_SWEEP_SECONDS, max(0.05, self.core.config.event_ttl / 4))
        self._timer = asyncio.get_running_loop().call_later(pause, self._sweep)

    def _sweep(self) -> None:
        oldest = asyncio.get_running_loop().time() - self.core.config.event_ttl
        bucket = self.core.store.bucket(_BUCKET)
        while self._written and self._written[0][0] <= oldest:
            _, key, rv = self._written.popleft()
            entry = bucket.entries.get(key)
            if entry is not None and entry.rv == rv:
                bucket.remove(entry.namespace, entry.name)
        self._arm()


class Controller(Protocol):
    """What a controller has."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ControllerRow:
    """A controller that can be turned on or off."""

    name: str
    make: Callable[[Core], Controller]
    default_on: bool = True


CONTROLLERS: tuple[ControllerRow, ...] = (
    ControllerRow("namespace", NamespaceController),
    ControllerRow("garbagecollector", GarbageCollector),
    ControllerRow("event-ttl", EventExpiry),
    ControllerRow("resourcequota", QuotaController),
    ControllerRow("resourceclaim", ClaimController),
    ControllerRow("disruption", DisruptionController, default_on=False),
)


class Controllers:
    """Starts and stops the controllers."""

    def __init__(self, core: Core) -> None:
        config = core.config
        self.crds = CustomResources(core)
        on = [
            c for c in CONTROLLERS if (c.default_on or c.name in config.enabled_controllers) and c.name not in config.disabled_controllers
        ]
        self._running = [c.make(core) for c in on]

    def start(self) -> None:
        """Definitions first: the others look at what is served."""
        self.crds.start()
        for controller in self._running:
            controller.start()

    def stop(self) -> None:
        for controller in self._running:
            controller.stop()
