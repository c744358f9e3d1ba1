"""Reading cgroup files: bytes in, numbers out; every error names the file (KLO-SYS-02).

All functions are pure: the caller passes the path for the error text. A numeric ``max`` reads as -1 (signed) or 2^63-1
(unsigned), as the kernel means "no limit" by it.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

from roles.koordlet.host.cgroup_files import MAX_INT64, V1_MEMORY_UNLIMITED, weight_to_shares
from roles.koordlet.host.errors import ParseError

_DISK = re.compile(r"[0-9]+:[0-9]+")


def signed(path: str, data: bytes) -> int:
    """A signed number; ``max`` is -1."""
    text = data.strip()
    if text == b"max":
        return -1
    try:
        return int(text)
    except ValueError:
        raise ParseError(path, f"{text[:60].decode('utf-8', 'replace')!r} is not a number") from None


def unsigned(path: str, data: bytes) -> int:
    """A non-negative number; ``max`` is 2^63-1."""
    text = data.strip()
    if text == b"max":
        return MAX_INT64
    number = signed(path, data)
    if number < 0:
        raise ParseError(path, f"{number} is negative")
    return number


def key_values(data: bytes) -> dict[bytes, bytes]:
    """First two tokens of every line; shorter lines are ignored."""
    out: dict[bytes, bytes] = {}
    for line in data.splitlines():
        tokens = line.split(None, 2)
        if len(tokens) >= 2:
            out[tokens[0]] = tokens[1]
    return out


def value_of(path: str, data: bytes, key: bytes) -> int:
    """The number after ``key`` at the start of a line, found without parsing the other lines. A missing key is an error."""
    if data.startswith(key + b" "):
        start = len(key) + 1
    else:
        at = data.find(b"\n" + key + b" ")
        if at < 0:
            raise ParseError(path, f"key {key.decode()!r} is missing")
        start = at + len(key) + 2
    end = data.find(b"\n", start)
    token = data[start : end if end >= 0 else len(data)]
    try:
        return int(token)
    except ValueError:
        first = token.split(None, 1)[:1]
        try:
            return int(first[0]) if first else int("")
        except ValueError:
            raise ParseError(path, f"value {token[:40].decode('utf-8', 'replace')!r} of {key.decode()!r} is not a number") from None


def cpu_usage_ns(path: str, data: bytes, *, v2: bool) -> int:
    """Cumulative CPU time in ns: v1 ``cpuacct.usage``, v2 ``usage_usec`` of ``cpu.stat``."""
    return value_of(path, data, b"usage_usec") * 1000 if v2 else unsigned(path, data)


def throttled_periods(path: str, data: bytes, *, v2: bool) -> tuple[int, int]:
    """As :func:`throttling`, at a fifth of its cost."""
    at = data.find(b"nr_periods ") if v2 else 0
    fields = data[at:].split(None, 6) if at >= 0 else []
    wanted = b"throttled_usec" if v2 else b"throttled_time"
    if len(fields) >= 6 and fields[0] == b"nr_periods" and fields[2] == b"nr_throttled" and fields[4] == wanted:
        try:
            return int(fields[1]), int(fields[3])
        except ValueError:
            pass  # told below, with the name of the field
    return throttling(path, data, v2=v2)


def throttling(path: str, data: bytes, *, v2: bool) -> tuple[int, int]:
    """CFS periods of a cgroup so far, and the throttled ones; the time that was lost must be there, too."""
    value_of(path, data, b"throttled_usec" if v2 else b"throttled_time")
    return value_of(path, data, b"nr_periods"), value_of(path, data, b"nr_throttled")


def cpu_max(path: str, data: bytes) -> tuple[int, int]:
    """v2 ``cpu.max`` as (quota µs or -1, period µs); exactly two fields are required."""
    fields = data.split()
    if len(fields) != 2:
        raise ParseError(path, f"{len(fields)} fields, wanted '<quota> <period>'")
    return signed(path, fields[0]), signed(path, fields[1])


def cpu_quota(path: str, data: bytes, *, v2: bool) -> int:
    """CFS quota in µs, -1 for none."""
    return cpu_max(path, data)[0] if v2 else signed(path, data)


def cpu_period(path: str, data: bytes, *, v2: bool) -> int:
    """CFS period in µs."""
    return cpu_max(path, data)[1] if v2 else signed(path, data)


def cpu_shares(path: str, data: bytes, *, v2: bool) -> int:
    """cpu.shares, or those that correspond to cpu.weight."""
    number = signed(path, data)
    if not v2:
        return number
    try:
        return weight_to_shares(number)
    except ValueError as error:
        raise ParseError(path, str(error)) from None


def memory_limit(path: str, data: bytes) -> int:
    """Limit in bytes, -1 for none in either version's spelling."""
    number = signed(path, data)
    return -1 if number >= V1_MEMORY_UNLIMITED else number


@dataclass(frozen=True, slots=True)
class MemoryStat:
    """memory.stat of a cgroup including its children; bytes."""

    cache: int
    rss: int
    inactive_file: int
    active_file: int
    inactive_anon: int
    active_anon: int
    unevictable: int

    @property
    def without_page_cache(self) -> int:
        return self.inactive_anon + self.active_anon + self.unevictable

    @property
    def with_page_cache(self) -> int:
        return self.without_page_cache + self.active_file + self.inactive_file


_V1_KEYS = tuple(
    b"total_" + k for k in (b"cache", b"rss", b"inactive_file", b"active_file", b"inactive_anon", b"active_anon", b"unevictable")
)
_V2_KEYS = (b"file", b"anon", b"inactive_file", b"active_file", b"inactive_anon", b"active_anon", b"unevictable")


def memory_stat(path: str, data: bytes, *, v2: bool) -> MemoryStat:
    """All seven keys are required."""
    return MemoryStat(*[value_of(path, data, key) for key in (_V2_KEYS if v2 else _V1_KEYS)])


_V1_RUN = (b"total_inactive_anon", b"total_active_anon", b"total_inactive_file", b"total_active_file", b"total_unevictable")
_V2_RUN = (b"inactive_anon", b"active_anon", b"inactive_file", b"active_file", b"unevictable")


def memory_usage(path: str, data: bytes, *, v2: bool) -> tuple[int, int]:
    """Bytes without and with page cache of :func:`memory_stat`, at a fraction of its cost: kernels write the five keys in a row."""
    names = _V2_RUN if v2 else _V1_RUN
    at = data.find(b"\n" + names[0] + b" ")
    whole_file = b"\nfile " in data and data.startswith(b"anon ") if v2 else b"\ntotal_cache " in data and b"\ntotal_rss " in data
    if at >= 0 and whole_file:
        tokens = data[at:].split(None, 10)
        if len(tokens) >= 10 and (tokens[2], tokens[4], tokens[6], tokens[8]) == names[1:]:
            try:
                plain = int(tokens[1]) + int(tokens[3]) + int(tokens[9])
                return plain, plain + int(tokens[5]) + int(tokens[7])
            except ValueError:
                pass  # told below, with the name of the field
    whole = memory_stat(path, data, v2=v2)
    return whole.without_page_cache, whole.with_page_cache


def _numa_tokens(path: str, line: bytes) -> dict[int, int]:
    out: dict[int, int] = {}
    for token in line.split():
        name, eq, value = token.partition(b"=")
        if eq and name[:1] == b"N" and name[1:].isdigit():
            if not value.isdigit():
                raise ParseError(path, f"{token.decode('utf-8', 'replace')!r} is not N<node>=<number>")
            out[int(name[1:])] = int(value)
    return out


def numa_memory(path: str, data: bytes, *, v2: bool, page_size: int) -> dict[int, int]:
    """Bytes of anonymous and unevictable memory of a cgroup and its children on each NUMA node.

    Page cache is left out, as it is on the node's side of the subtraction. v1 prefers the ``hierarchical_*`` lines (a pod's
    processes live in child cgroups) and falls back to ``total`` where a kernel has none of them; v2 is in bytes already.
    """
    lines: dict[bytes, dict[int, int]] = {}
    for line in data.splitlines():
        tokens = line.split(None, 1)
        if len(tokens) == 2:
            lines.setdefault(tokens[0].partition(b"=")[0], _numa_tokens(path, tokens[1]))
    if v2:
        names: tuple[bytes, ...] = (b"anon", b"unevictable")
        unit = 1
    else:
        unit = page_size
        if b"hierarchical_anon" in lines:
            names = (b"hierarchical_anon", b"hierarchical_unevictable")
        else:
            names = (b"anon", b"unevictable") if b"anon" in lines else (b"total",)
    if names[0] not in lines:
        raise ParseError(path, f"line {names[0].decode()!r} is missing")
    out: dict[int, int] = {}
    for name in names:
        for node, value in lines.get(name, {}).items():
            out[node] = out.get(node, 0) + value * unit
    return out


def ids(path: str, data: bytes) -> list[int]:
    """One id a line (tasks, cgroup.procs, cgroup.threads)."""
    try:
        return [int(line) for line in data.split()]
    except ValueError:
        raise ParseError(path, "a line is not a process id") from None


def disk_bytes(data: bytes, *, v2: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes read and written of each disk (``major:minor``): v1 ``blkio.throttle.io_service_bytes``, v2 ``io.stat``. What cannot be
    read is left out."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for line in data.decode("ascii", "replace").splitlines():
        disk, *fields = line.split()[:8] or [""]
        if not _DISK.fullmatch(disk):
            continue
        pairs = [field.partition("=")[::2] for field in fields] if v2 else [tuple(fields[:2])] if len(fields) >= 2 else []
        for name, value in pairs:
            into = {"Read": read, "rbytes": read, "Write": written, "wbytes": written}.get(name)
            if into is not None and value.isascii() and value.isdigit():
                into[disk] = int(value)
    return read, written


def whole_disks(data: bytes) -> list[str]:
    """Numbers (``major:minor``) of the disks in ``/proc/diskstats`` that were read or written, without their partitions."""
    rows: dict[str, tuple[str, bool]] = {}
    for line in data.decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) >= 8:
            rows[fields[2]] = (f"{fields[0]}:{fields[1]}", fields[3] != "0" or fields[7] != "0")
    return [number for name, (number, used) in rows.items() if used and _DISK.fullmatch(number) and not _is_partition(name, rows)]


def _is_partition(name: str, names: Container[str]) -> bool:
    whole = name.rstrip("0123456789")
    if whole == name:
        return False
    # sda1 of sda; nvme0n1p1 of nvme0n1
    return whole in names or (whole.endswith("p") and whole[:-1] in names)
