"""What a Deschedule or Balance plugin is (DS-FW-02)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from koord.config.model import ConfigModel
from roles.descheduler.framework.effects import Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.snapshot import NodeView

DESCHEDULE = "deschedule"
BALANCE = "balance"


class Plugin(Protocol):
    """A plugin of one profile; it lives as long as the process, so that it may remember from round to round. `point` is its only turn."""

    name: ClassVar[str]
    point: ClassVar[str]

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """One round on the profile's nodes, in name order. Pods that leave are taken from the views at once, so iterate over copies."""


@runtime_checkable
class Reads(Protocol):
    """A plugin that goes by usage from beside koordlet. `reads` is the key of `roles.descheduler.usage.Sources`, "" for none."""

    reads: str


def minds_place(plugin: Plugin) -> bool:
    """Whether a plugin takes pods away so that they run elsewhere. One that minds their age or state says `minds_place = False`."""
    return bool(getattr(plugin, "minds_place", True))


@dataclass(frozen=True, slots=True)
class PluginType:
    """A registry row: `lenient` arguments ignore unknown fields, as upstream does for the plugins that it adapted.

    `make(args, interval)`: `interval` is the time between rounds, in seconds."""

    name: str
    point: str
    args: type[ConfigModel]
    make: Any
    lenient: bool = False
