"""What a vendor's library tells of graphics cards (KLO-DEV-01)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

#: Who does not answer for so long (seconds) is not healthy, for this reason.
DEADLINE, SILENT = 5.0, "DeviceNotAnswering"


@dataclass(frozen=True, slots=True)
class GPUCard:
    """One card. Memory in bytes; ``numa_node`` is at least 0; ``pcie_root`` and ``bus_id`` are "" where unknown."""

    uuid: str
    minor: int
    memory_total: int
    model: str = ""
    vendor: str = ""
    driver: str = ""
    numa_node: int = -1
    pcie_root: str = ""
    bus_id: str = ""
    problem: str = ""
    """Why the card is not healthy, as a condition reason; "" for a healthy one."""


@dataclass(frozen=True, slots=True)
class GPUProcess:
    """A process on a card: share of its multiprocessors in percent, memory in bytes."""

    pid: int
    uuid: str
    core_percent: float
    memory: int


class GPULibrary(Protocol):
    """A vendor's library. Methods raise HostError when it fails."""

    def cards(self) -> tuple[GPUCard, ...]:
        """All cards with their present health."""

    def processes(self) -> list[GPUProcess]:
        """Processes of which both memory and use are known."""
