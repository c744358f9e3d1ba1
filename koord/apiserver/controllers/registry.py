"""The controllers that run inside the server, and which of them are on."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from koord.apiserver.controllers.claims import ClaimController
from koord.apiserver.controllers.crds import CustomResources
from koord.apiserver.controllers.disruption import DisruptionController, QuotaController
from koord.apiserver.controllers.gc import GarbageCollector, NamespaceController
from koord.apiserver.controllers.queue import Controller
from koord.apiserver.controllers.roles import RoleAggregation
from koord.apiserver.store import DELETED, Event
from koord.apiserver.turns import Turn

if TYPE_CHECKING:
    from koord.apiserver.core import Core

log = logging.getLogger(__name__)

_BUCKET = "/events"
_SWEEP_SECONDS = 15.0


class EventExpiry(Controller[str]):
    """Removes events that nobody wrote to for as long as `event_ttl` says."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
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
        loop, turn = asyncio.get_running_loop(), Turn()
        oldest = loop.time() - self.core.config.event_ttl
        bucket = self.core.store.bucket(_BUCKET)
        try:
            while self._written and self._written[0][0] <= oldest:
                _, key, rv = self._written[0]
                entry = bucket.entries.get(key)
                if entry is not None and entry.rv == rv:
                    bucket.remove(entry.namespace, entry.name)
                self._written.popleft()  # only now: what could not be removed is for the next sweep
                if turn.over:  # the rest when others have had their turn
                    self._timer = loop.call_later(0.0, self._sweep)
                    return
        except Exception:
            log.exception("%s failed", type(self).__name__)
        self._arm()


CONTROLLERS: dict[str, type[Controller[Any]]] = {
    "namespace": NamespaceController,
    "garbagecollector": GarbageCollector,
    "event-ttl": EventExpiry,
    "resourcequota": QuotaController,
    "resourceclaim": ClaimController,
    "disruption": DisruptionController,
    "clusterrole-aggregation": RoleAggregation,
}
# unless asked for
_OFF = frozenset({"disruption"})


class Controllers:
    """Starts and stops the controllers. Definitions come first: the others look at what is served."""

    def __init__(self, core: Core) -> None:
        on, off = core.config.enabled_controllers, core.config.disabled_controllers
        names = [name for name in CONTROLLERS if (name not in _OFF or name in on) and name not in off]
        self._running = [CustomResources(core), *(CONTROLLERS[name](core) for name in names)]

    def start(self) -> None:
        for controller in self._running:
            controller.start()

    def stop(self) -> None:
        for controller in self._running:
            controller.stop()
