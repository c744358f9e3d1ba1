"""Pressure stall information: parsing pressure files (KLO-SYS-06)."""

from __future__ import annotations

from dataclasses import dataclass

from roles.koordlet.host.errors import ParseError


@dataclass(frozen=True, slots=True)
class Pressure:
    """One line: averages in percent over 10, 60 and 300 s, total in µs."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Psi:
    """One pressure file. ``full_supported`` is False when the kernel writes no ``full`` line (cpu, before 5.13)."""

    some: Pressure
    full: Pressure
    full_supported: bool


def _line(path: str, words: list[bytes]) -> Pressure:
    values: dict[bytes, bytes] = {}
    for word in words:
        name, _, value = word.partition(b"=")
        values[name] = value
    try:
        return Pressure(float(values[b"avg10"]), float(values[b"avg60"]), float(values[b"avg300"]), int(values[b"total"]))
    except KeyError as error:
        raise ParseError(path, f"field {error.args[0].decode()!r} is missing") from None
    except ValueError:
        raise ParseError(path, "a field is not a number") from None


def parse_psi(path: str, data: bytes) -> Psi:
    """Lines ``some …`` and optionally ``full …``; anything else is an error."""
    some: Pressure | None = None
    full: Pressure | None = None
    for line in data.splitlines():
        words = line.split()
        if not words:
            continue
        match words[0]:
            case b"some":
                some = _line(path, words[1:])
            case b"full":
                full = _line(path, words[1:])
            case other:
                raise ParseError(path, f"line starts with {other.decode('utf-8', 'replace')!r}, wanted 'some' or 'full'")
    if some is None:
        raise ParseError(path, "line 'some' is missing")
    return Psi(some, full or Pressure(), full is not None)
