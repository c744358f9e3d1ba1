"""RDMA network cards from sysfs (KLO-DEV-02)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from roles.koordlet.host.errors import HostError, HostFileError, ParseError
from roles.koordlet.host.root import HostRoot
from roles.koordlet.sensing.base import Collector, Round

#: Name of the snapshot in the store (KLO-TSDB-02).
RDMA = "RDMA"
_RDMA_CM = "/dev/infiniband/rdma_cm"
_NETWORK_CLASS = "0x02"
_MELLANOX = re.compile(r"mlx\d+_(\d+)")
_TRAILING = re.compile(r".*?(\d+)")
_BY_PLACE = re.compile(r"mlx\d+_bond_\d+|(?:ib|iw|opa|roce|usnic)(?:(?:P\d+)?p\d+s\d+\w*|o\d+\w*|x[0-9a-f]+)")
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class RDMADevice:
    """One PCI function with RDMA; ``functions`` are the bus ids of its virtual functions, empty when they are off."""

    name: str
    minor: int
    bus_id: str
    healthy: bool
    numa_node: int
    pcie_root: str
    functions: tuple[str, ...] = ()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        raise HostFileError(path, f"cannot be read: {error.strerror}") from error


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def device_files(root: HostRoot, addresses: Iterable[str]) -> list[str]:
    """What a program needs to use PCI functions by verbs: the connection manager and a verbs device of each. Raises ValueError."""
    return list(dict.fromkeys([_RDMA_CM, *(_uverbs(root, address) for address in addresses)]))


def _uverbs(root: HostRoot, address: str) -> str:
    directory = root.sys_path("bus/pci/devices", address, "infiniband_verbs")
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise ValueError(f"RDMA device {address}: {directory} cannot be listed: {error.strerror}") from None
    if not names:
        raise ValueError(f"RDMA device {address}: {directory} is empty")
    return f"/dev/infiniband/{names[0]}"


def minor_of(name: str) -> int | None:
    """The number that a card's name ends with: ``mlx5_3`` and ``irdma3`` are 3; None without one."""
    found = _MELLANOX.fullmatch(name) or _TRAILING.fullmatch(name)
    return int(found[1]) if found is not None and len(found[1]) <= 9 else None


def minor_of_place(name: str, bus_id: str) -> int | None:
    """A number of its own for a card that was named after its place or its GUID (udev's ``rocep23s0f0``), or is a bond: what such a name
    ends with says nothing. None for other names."""
    found = _ADDRESS.fullmatch(bus_id)
    if found is None or not _BY_PLACE.fullmatch(name):
        return None
    domain, bus, slot, function = (int(part, 16) for part in found.groups())
    return (domain << 16 | bus << 8 | slot << 3 | function) & 0x7FFFFFFF


def is_active(root: HostRoot, name: str) -> bool:
    """Whether there is a port and all ports are active."""
    ports = root.sys_path("class/infiniband", name, "ports")
    states = []
    for port in _names(ports):
        try:
            states.append("ACTIVE" in _text(os.path.join(ports, port, "state")))
        except HostFileError:
            states.append(False)
    return bool(states) and all(states)


def _functions(directory: str) -> tuple[str, ...]:
    """Bus ids of virtual functions while they are switched on."""
    count = os.path.join(directory, "sriov_numvfs")
    if not os.path.exists(count) or _text(count) in ("", "0"):
        return ()
    links = [n for n in _names(directory) if n.startswith("virtfn")]
    return tuple(sorted(os.path.basename(os.path.realpath(os.path.join(directory, n))) for n in links))


def read_device(root: HostRoot, bus_id: str) -> RDMADevice | None:
    """The RDMA card at a PCI address; None for what is none. Raises HostFileError or ValueError when it cannot be placed."""
    directory = root.sys_path("bus/pci/devices", bus_id)
    if not _text(os.path.join(directory, "class")).startswith(_NETWORK_CLASS) or os.path.lexists(os.path.join(directory, "physfn")):
        return None
    name = next(iter(_names(os.path.join(directory, "infiniband"))), None)
    if name is None:
        return None
    minor = minor_of(name)
    if minor is None:
        minor = minor_of_place(name, bus_id)
    if minor is None:
        raise ParseError(directory, f"RDMA device {name!r} has no number in its name")
    node_path = os.path.join(directory, "numa_node")
    node = _text(node_path)
    if not re.fullmatch(r"-?\d{1,9}", node):
        raise ParseError(node_path, f"{node[:40]!r} is not a number")
    found = _ROOT.search(os.path.realpath(directory))
    if found is None:
        raise ParseError(directory, "is below no PCI root")
    return RDMADevice(name, minor, bus_id, is_active(root, name), max(int(node), 0), found[0], _functions(directory))


class RDMACollector(Collector):
    """Keeps the snapshot. A card that cannot be placed, or whose minor another card has, is left out and named."""

    name: ClassVar[str] = "rdma"
    gate: ClassVar[str] = "RDMADevices"
    #: Cards change by hand; their ports' state should show within a reporting period.
    _PERIOD = 3.0

    @property
    def interval(self) -> float:
        return max(self._PERIOD, self.context.interval)

    def collect(self, at: Round) -> None:
        root, store = self.context.host.root, self.context.store
        cards: list[RDMADevice] = []
        for bus_id in _names(root.sys_path("bus/pci/devices")):
            try:
                device = read_device(root, bus_id)
            except (HostError, ValueError) as error:
                self.troubles.failed(bus_id, error)
            else:
                cards += [device] if device is not None else []
        found: dict[int, RDMADevice] = {}
        # names that say their number first: only of the others there is a choice
        for card in sorted(cards, key=lambda card: minor_of_place(card.name, card.bus_id) is not None):
            place = minor_of_place(card.name, card.bus_id)
            device = card if card.minor not in found or place is None else replace(card, minor=place)
            other = found.setdefault(device.minor, device)
            if other is device:
                self.troubles.ok(device.bus_id)
            else:
                self.troubles.failed(device.bus_id, HostError(f"{device.name} has the same number as {other.name}"))
        devices = tuple(found[minor] for minor in sorted(found))
        if devices != store.snapshot(RDMA):
            store.put_snapshot(RDMA, devices)
