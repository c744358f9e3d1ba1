"""Counters of a network namespace, as ``/proc/<pid>/net`` shows them (BEY-INT-01). Pure: bytes in, values out."""

from __future__ import annotations

from dataclasses import dataclass

from roles.koordlet.host.errors import ParseError

_FACE_FIELDS = 16
_RX_BYTES, _RX_PACKETS, _RX_DROPS, _TX_BYTES, _TX_PACKETS, _TX_DROPS = 0, 1, 3, 8, 9, 11
LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Sums over all interfaces, both directions; bytes without loopback, which burdens nobody else's network."""

    bytes: int
    packets: int
    drops: int


def interfaces(path: str, data: bytes) -> Interfaces:
    """``net/dev``: two lines of titles, then ``name: `` and sixteen counters a line. A namespace without interfaces has zeros."""
    moved = packets = drops = 0
    for line in data.decode("utf-8", "replace").splitlines()[2:]:
        name, colon, rest = line.rpartition(":")
        counters = rest.split()
        if not colon or len(counters) < _FACE_FIELDS:
            raise ParseError(path, f"line {line.strip()[:40]!r} is not '<interface>: ' and {_FACE_FIELDS} counters")
        try:
            values = [_counter(value) for value in counters]
        except ValueError:
            raise ParseError(path, f"a counter of interface {name.strip()!r} is not a number") from None
        if name.strip() != LOOPBACK:
            moved += values[_RX_BYTES] + values[_TX_BYTES]
        packets += values[_RX_PACKETS] + values[_TX_PACKETS]
        drops += values[_RX_DROPS] + values[_TX_DROPS]
    return Interfaces(moved, packets, drops)


def protocol(path: str, data: bytes, name: str) -> dict[str, int]:
    """Counters of one protocol (``Tcp``, ``Udp``, ``TcpExt``) in ``net/snmp`` or ``net/netstat``: a line of titles, one of values.

    Empty where the kernel does not have the protocol. Values may be negative (``Tcp: MaxConn -1``).
    """
    head = f"{name}:".encode()
    lines = [line.split()[1:] for line in data.splitlines() if line.startswith(head)]
    if not lines:
        return {}
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise ParseError(path, f"protocol {name} has not one line of titles and one of as many values")
    titles, values = lines
    try:
        return {title.decode("utf-8", "replace"): int(value) for title, value in zip(titles, values, strict=True)}
    except ValueError:
        raise ParseError(path, f"a counter of protocol {name} is not a number") from None


def _counter(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)
