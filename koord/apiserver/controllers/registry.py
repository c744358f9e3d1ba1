"""The controllers that run inside the server, and which of them are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from koord.apiserver.controllers.crds import CustomResources
from koord.apiserver.controllers.disruption import DisruptionController
from koord.apiserver.controllers.events import EventExpiry
from koord.apiserver.controllers.gc import GarbageCollector
from koord.apiserver.controllers.namespaces import NamespaceController
from koord.apiserver.controllers.quotas import QuotaController

if TYPE_CHECKING:
    from koord.apiserver.core import Core


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
