"""Accelerators that a device daemon describes in files (KLO-DEV-03)."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import msgspec

from roles.koordlet.host.errors import HostFileError, ParseError
from roles.koordlet.sensing.base import Collector, Round, SensingContext

#: Name of the snapshot in the store (KLO-TSDB-02).
XPU = "XPU"
_MAX_BYTES = 8 << 20


class P2PLink(msgspec.Struct, rename="camel", frozen=True):
    peer_minor: str = ""
    """Comma list of minors."""
    type: str = ""


class XPUTopology(
    msgspec.Struct,
    rename={
        "p2p_links": "p2pLinks",
        "must_honor_partition": "mustHonorPartition",
        "socket_id": "socketID",
        "node_id": "nodeID",
        "pcie_id": "pcieID",
        "bus_id": "busID",
    },
    frozen=True,
):
    """Where an accelerator sits; ids are texts, "" where unknown."""

    p2p_links: tuple[P2PLink, ...] | None = None
    must_honor_partition: bool = False
    socket_id: str = ""
    node_id: str = ""
    pcie_id: str = ""
    bus_id: str = ""


class XPUStatus(msgspec.Struct, rename="camel", frozen=True):
    healthy: bool = False
    err_code: str = ""
    err_message: str = ""


class XPUDevice(msgspec.Struct, frozen=True):
    """One accelerator of a file; ``minor`` is a decimal text."""

    vendor: str = ""
    model: str = ""
    uuid: str = ""
    minor: str = ""
    resources: dict[str, str] | None = None
    topology: XPUTopology | None = None
    status: XPUStatus | None = None


def _decode(data: bytes) -> tuple[XPUDevice, ...]:
    """The devices of a file. Null is what is not there, as a Go program reads it; it writes a list of nothing so. Raises MsgspecError."""
    return msgspec.convert(_without_nulls(msgspec.json.decode(data)), tuple[XPUDevice, ...] | None) or ()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def read_devices(directory: str) -> tuple[XPUDevice, ...]:
    """All files of the directory in name order, concatenated; one broken file fails the whole. No directory: no devices."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(e.name for e in entries if e.is_file(follow_symlinks=False))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise HostFileError(directory, f"cannot be listed: {error.strerror}") from error
    found: list[XPUDevice] = []
    for name in names:
        path = os.path.join(directory, name)
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise HostFileError(path, f"cannot be read: {error.strerror}") from error
        if len(data) > _MAX_BYTES:
            raise ParseError(path, f"is larger than {_MAX_BYTES} bytes")
        try:
            found += _decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ParseError(path, f"is not an array of devices: {error}") from None
    return tuple(found)


class XPUCollector(Collector):
    """Keeps the snapshot; a broken file leaves the previous one."""

    name: ClassVar[str] = "xpu"
    gate: ClassVar[str] = "Accelerators"

    def __init__(self, context: SensingContext, directory: str) -> None:
        super().__init__(context)
        self._directory = directory

    def collect(self, at: Round) -> None:
        devices = read_devices(self._directory)
        if devices != self.context.store.snapshot(XPU):
            self.context.store.put_snapshot(XPU, devices)
