"""Running vendors' tools on the host, and finding out where a PCI function sits (KLO-DEV-05)."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
TIMEOUT = 60.0


class DetectError(Exception):
    """A family of accelerators cannot be described: a tool is missing, failed, or said what nobody understands."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine. ``root`` is where its file system is mounted; tools run inside it."""

    root: str

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *(part.lstrip("/") for part in parts))

    def run(self, *command: str) -> str:
        """What a tool prints, errors included. Raises DetectError."""
        inside = command if self.root == "/" else ("chroot", self.root, *command)
        try:
            done = subprocess.run(
                inside, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise DetectError(f"{' '.join(command)}: did not end within {TIMEOUT:g} s") from None
        except OSError as error:
            raise DetectError(f"{inside[0]}: {error.strerror}") from None
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            raise ToolFailedError(command, done.returncode, text)
        return text

    def pci(self) -> list[tuple[str, str]]:
        """Vendor and product of every PCI function, four hexadecimal digits each."""
        base = self.path("sys/bus/pci/devices")
        try:
            names = sorted(os.listdir(base))
        except OSError:
            return []
        return [(self._id(base, name, "vendor"), self._id(base, name, "device")) for name in names]

    def _id(self, base: str, name: str, file: str) -> str:
        try:
            with open(os.path.join(base, name, file), encoding="ascii", errors="replace") as found:
                return found.read().strip().lower().removeprefix("0x")
        except OSError:
            return ""

    def place(self, bus_id: str) -> dict[str, str]:
        """Topology of a PCI function as device files have it; what is unknown is left out."""
        address = bus_id.strip().lower()
        if address.count(":") == 1:
            address = f"0000:{address}"
        directory = self.path("sys/bus/pci/devices", address)
        found = _PCIE_ROOT.search(os.path.realpath(directory))
        node = "-1"
        try:
            with open(os.path.join(directory, "numa_node"), encoding="ascii", errors="replace") as file:
                node = str(max(int(file.read()), 0))
        except (OSError, ValueError):
            pass
        return {"socketID": "-1", "nodeID": node, "busID": address, **({"pcieID": found[0]} if found is not None else {})}


class ToolFailedError(DetectError):
    """A tool ended with an error; ``output`` is what it printed."""

    def __init__(self, command: tuple[str, ...], status: int, output: str) -> None:
        super().__init__(f"{' '.join(command)}: status {status}: {output.strip()[:200]}")
        self.output = output


def last_number(line: str) -> int:
    """The number that a line ends with. Raises DetectError."""
    *_, word = line.split() or [""]
    try:
        return int(word)
    except ValueError:
        raise DetectError(f"{line.strip()[:80]!r} does not end in a number") from None


def value_of(line: str) -> str:
    """What stands behind the first colon."""
    return line.partition(":")[2].strip()
