"""Parsing /proc (KLO-SYS-03). Pure: bytes in, values out; the caller passes the path for error texts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from roles.koordlet.host.errors import ParseError

DEFAULT_CLOCK_TICKS = 100


def clock_ticks() -> int:
    """Clock ticks per second; 100 (10 ms a tick) where the system does not tell."""
    try:
        ticks = os.sysconf("SC_CLK_TCK")
    except (ValueError, OSError):
        return DEFAULT_CLOCK_TICKS
    return ticks if ticks > 0 else DEFAULT_CLOCK_TICKS


def _used_ticks(path: str, fields: list[bytes]) -> int:
    # fields: name user nice system idle iowait irq softirq steal …; idle, iowait, steal and guest are not use
    if len(fields) < 8:
        raise ParseError(path, f"line {fields[0].decode('utf-8', 'replace')!r} has {len(fields)} fields, at least 8 are needed")
    try:
        return int(fields[1]) + int(fields[2]) + int(fields[3]) + int(fields[6]) + int(fields[7])
    except ValueError:
        raise ParseError(path, f"line {fields[0].decode('utf-8', 'replace')!r} holds a field that is not a number") from None


def cpu_ticks(path: str, data: bytes) -> int:
    """Used ticks of the whole machine: user + nice + system + irq + softirq of the ``cpu`` line."""
    for line in data.splitlines():
        if line.startswith(b"cpu "):
            return _used_ticks(path, line.split())
    raise ParseError(path, "line 'cpu' is missing")


def per_cpu_ticks(path: str, data: bytes) -> dict[int, int]:
    """Used ticks of each CPU. One malformed line fails the whole, none found is an error."""
    out: dict[int, int] = {}
    for line in data.splitlines():
        if not line.startswith(b"cpu"):
            if out:
                break  # the rest of the file is long on big machines and holds no CPU lines
            continue
        fields = line.split()
        if fields[0] == b"cpu":
            continue
        if not fields[0][3:].isdigit():
            raise ParseError(path, f"line {fields[0].decode('utf-8', 'replace')!r} is not cpu<N>")
        out[int(fields[0][3:])] = _used_ticks(path, fields)
    if not out:
        raise ParseError(path, "no line cpu<N>")
    return out


@dataclass(frozen=True, slots=True)
class MemInfo:
    """meminfo of the machine or of one NUMA node; bytes, 0 for fields that are not there."""

    total: int = 0
    free: int = 0
    available: int = 0
    active_file: int = 0
    inactive_file: int = 0
    slab_reclaimable: int = 0

    @property
    def used(self) -> int:
        """Without page cache: MemTotal - MemAvailable, never negative."""
        return max(self.total - self.available, 0)

    @property
    def used_with_page_cache(self) -> int:
        """MemTotal - MemFree, never negative."""
        return max(self.total - self.free, 0)

    @property
    def numa_used(self) -> int:
        """Estimate for a NUMA node, which has no MemAvailable: free + file pages + reclaimable slab count as available."""
        available = self.free + self.active_file + self.inactive_file + self.slab_reclaimable
        return max(self.total - available, 0)


_MEMINFO = {
    b"MemTotal:": "total",
    b"MemFree:": "free",
    b"MemAvailable:": "available",
    b"Active(file):": "active_file",
    b"Inactive(file):": "inactive_file",
    b"SReclaimable:": "slab_reclaimable",
}


def meminfo(path: str, data: bytes, *, prefix: bytes = b"") -> MemInfo:
    """``name: value kB`` lines; ``prefix`` is ``Node <N> `` for a NUMA node. A file without MemTotal is an error."""
    found: dict[str, int] = {}
    for line in data.splitlines():
        if prefix:
            if not line.startswith(prefix):
                continue
            line = line[len(prefix) :]
        tokens = line.split(None, 2)
        name = _MEMINFO.get(tokens[0]) if len(tokens) >= 2 else None
        if name is None:
            continue
        try:
            found[name] = int(tokens[1]) * 1024
        except ValueError:
            raise ParseError(path, f"value of {tokens[0].decode()!r} is not a number") from None
    if "total" not in found:
        raise ParseError(path, "MemTotal is missing")
    return MemInfo(**found)


@dataclass(frozen=True, slots=True)
class CPUModel:
    """What /proc/cpuinfo tells of the CPU; ``unknown`` where it tells nothing."""

    model: str = "unknown"
    vendor: str = "unknown"
    flags: frozenset[str] = frozenset()


def cpuinfo(data: bytes) -> CPUModel:
    """Model name, first vendor and flags."""
    model = vendor = ""
    flags: frozenset[str] = frozenset()
    for line in data.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            continue
        match name.strip():
            case "model name" | "Model Name":
                model = model or value.strip()
            case "vendor_id":
                vendor = vendor or value.strip()
            case "flags" | "Features":
                flags = flags or frozenset(value.split())
        if model and vendor and flags:
            break
    return CPUModel(model or "unknown", vendor or "unknown", flags)


def start_ticks(path: str, data: bytes) -> int:
    """When a process started, in clock ticks since boot, from ``<proc>/<pid>/stat``."""
    fields = data.rpartition(b")")[2].split()
    try:
        return int(fields[19])
    except (ValueError, IndexError):
        raise ParseError(path, "has no start time in field 22") from None
