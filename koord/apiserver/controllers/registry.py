"""The controllers that run inside the server, and which of them are on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord.apiserver.controllers.crds import CustomResources

if TYPE_CHECKING:
    from koord.apiserver.core import Core


@dataclass(frozen=True, slots=True)
class ControllerRow:
    """A controller that can be turned off."""

    name: str


CONTROLLERS: tuple[ControllerRow, ...] = ()


class Controllers:
    """Starts and stops the controllers."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.crds = CustomResources(core)

    def start(self) -> None:
        self.crds.start()

    async def stop(self) -> None:
        return None
