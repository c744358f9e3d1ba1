"""The cgroup file table: for each resource its v1 and v2 file, how support is decided and what may be written (KA-FS-01).

Resources are named by their v1 file. Rows hold: v1 subsystem and file, v2 file, the check, the validator of a value to be
written (in that version's own unit) and the converter from the v1 value, which callers always use, to what the file takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

MAX_INT64 = (1 << 63) - 1
#: v1 memory limits at or above this mean "no limit".
V1_MEMORY_UNLIMITED = 0x7FFFFFFFFFFFF000
MIN_SHARES, MAX_SHARES = 2, 262_144
MIN_WEIGHT, MAX_WEIGHT = 1, 10_000
CFS_PERIOD_US = 100_000
MIN_QUOTA_US = 1_000

Validator = Callable[[str], str | None]
Converter = Callable[[str], str]


class Check(StrEnum):
    """How it is decided whether the kernel has a file."""

    ALWAYS = "always"
    KUBEPODS = "in the kubepods directory"
    TARGET = "in the target directory"
    ROOT = "in the root cgroup"


# -- validators: None, or what is wrong --------------------------------------------------------------------------------


def in_range(low: int, high: int) -> Validator:
    """An integer of [low, high]; ``max`` counts as 2^63-1."""

    def check(value: str) -> str | None:
        text = value.strip()
        if text == "max":
            number = MAX_INT64
        else:
            try:
                number = int(text)
            except ValueError:
                return f"{value!r} is not an integer of [{low}, {high}]"
        return None if low <= number <= high else f"{number} is outside [{low}, {high}]"

    return check


def cpu_list(value: str) -> str | None:
    """A Linux CPU list such as ``0-3,8``; the empty list is accepted."""
    for part in value.strip().split(",") if value.strip() else []:
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and (not last.isdecimal() or int(last) < int(first))):
            return f"{value!r} is not a CPU list such as 0-3,8"
    return None


def _device_number(low: int, high: int) -> Validator:
    number = in_range(low, high)

    def check(value: str) -> str | None:
        tokens = value.split()
        return number(tokens[1]) if len(tokens) >= 2 else f"{value!r} is not '<major>:<minor> <number>'"

    return check


def _io_max(value: str) -> str | None:
    return _fields(value.split()[1:], ("rbps", "wbps", "riops", "wiops"), 1)


def _cost_qos(value: str) -> str | None:
    tokens = value.split()
    if len(tokens) != 7:
        return None
    return _fields(tokens, ("rpct", "rlat", "wpct", "wlat"), 0)


def _cost_model(value: str) -> str | None:
    tokens = value.split()
    if len(tokens) != 8:
        return None
    return _fields(tokens, ("rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"), 1)


def _fields(tokens: list[str], names: tuple[str, ...], low: int) -> str | None:
    number = in_range(low, MAX_INT64)
    for token in tokens:
        name, _, text = token.partition("=")
        if name in names and (bad := number(text)) is not None:
            return f"{name}: {bad}"
    return None


def _classid(value: str) -> str | None:
    text = value.strip()
    if text.startswith("0x"):
        digits = text[2:]
        ok = digits.isdecimal() and int(digits) <= 99_999_999
    else:
        ok = text.isdecimal() and int(text) <= (1 << 31) - 1
    return None if ok else f"{value!r} is not a class id"


# -- converters ------------------------------------------------------------------------------------------------------


def shares_to_weight(shares: int) -> int:
    """cpu.shares to cpu.weight, clamped to [1, 10000]."""
    return max(MIN_WEIGHT, min(MAX_WEIGHT, 1 + (shares - 2) * 9999 // 262_142))


def weight_to_shares(weight: int) -> int:
    """cpu.weight to cpu.shares, clamped to [2, 262144]; a weight outside [1, 10000] is a ValueError."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"cpu.weight {weight} is outside [{MIN_WEIGHT}, {MAX_WEIGHT}]")
    return max(MIN_SHARES, min(MAX_SHARES, (weight - 1) * 262_142 // 9999 + 2))


def milli_to_shares(milli: int) -> int:
    """CPU request (milli-cores) to shares: 2 for none."""
    return MIN_SHARES if milli <= 0 else max(MIN_SHARES, min(MAX_SHARES, milli * 1024 // 1000))


def shares_to_milli(shares: int) -> int:
    """The CPU request (milli-cores) that shares stand for; 0 for the least there are."""
    return 0 if shares <= MIN_SHARES else (shares * 1000 + 512) // 1024


def milli_to_quota(milli: int, period: int = CFS_PERIOD_US) -> int:
    """CPU limit (milli-cores) to a CFS quota in µs of a period (100 ms): -1 for none, at least 1000."""
    return -1 if milli <= 0 else max(MIN_QUOTA_US, milli * period // 1000)


def quota_of(quota: int, period: int) -> int:
    """A quota of a 100 ms period as one of another period (µs); none stays none."""
    return quota if quota <= 0 or period == CFS_PERIOD_US else max(quota * period // CFS_PERIOD_US, MIN_QUOTA_US)


def usual_quota(quota: int, period: int) -> int:
    """A quota of any period (µs, 0 for the usual one) as one of a 100 ms period; none stays none."""
    return quota if quota <= 0 else quota * CFS_PERIOD_US // (period or CFS_PERIOD_US)


def normalized_quota(quota: int, ratio: float) -> int:
    """The quota that gives the same work on CPUs that are ``ratio`` times as fast as the cluster's slowest; the kernel takes none below
    its least."""
    return max(math.ceil(quota / ratio), MIN_QUOTA_US) if quota > 0 and ratio > 1 else quota


def _weight_text(value: str) -> str:
    return str(shares_to_weight(int(value)))


def _minus_one_is_max(value: str) -> str:
    return "max" if value.strip() == "-1" else value


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file of one cgroup version.

    ``convert`` turns the v1-style value into this file's text; ``validate`` judges the converted text. ``v1_layout`` marks a
    file that keeps its subsystem directory even on v2 (net_cls).
    """

    subsystem: str
    file: str
    check: Check = Check.ALWAYS
    validate: Validator | None = None
    convert: Converter | None = None
    v1_layout: bool = False

    def encode(self, value: str) -> str:
        """The text to write for a v1-style value; a value that the file cannot hold is a ValueError."""
        text = self.convert(value) if self.convert is not None else value
        problem = self.validate(text) if self.validate is not None else None
        if problem is not None:
            raise ValueError(f"{self.file}: {problem}")
        return text


@dataclass(frozen=True, slots=True)
class CgroupResource:
    name: str
    v1: FileSpec | None
    v2: FileSpec | None


_A, _K, _F, _R = Check.ALWAYS, Check.KUBEPODS, Check.TARGET, Check.ROOT
_ANY_SIZE = in_range(0, MAX_INT64)
_FLAG = in_range(0, 1)


def _both(name: str, subsystem: str, v1_check: Check, v2_check: Check, validate: Validator | None = None) -> CgroupResource:
    """A file of one name in both versions."""
    return _renamed(name, subsystem, name, v1_check, v2_check, validate)


def _renamed(
    name: str,
    subsystem: str,
    v2: str,
    v1_check: Check = _A,
    v2_check: Check = _A,
    validate: Validator | None = None,
    convert: Converter | None = None,
) -> CgroupResource:
    """A file that v2 calls otherwise; ``convert`` is for v2 alone."""
    return CgroupResource(name, FileSpec(subsystem, name, v1_check, validate), FileSpec(subsystem, v2, v2_check, validate, convert))


def _only_v2(name: str, subsystem: str, check: Check = _A, validate: Validator | None = None) -> CgroupResource:
    return CgroupResource(name, None, FileSpec(subsystem, name, check, validate))


ROWS: tuple[CgroupResource, ...] = (
    _both("cpu.stat", "cpu", _A, _A),
    CgroupResource(
        "cpu.shares",
        FileSpec("cpu", "cpu.shares", _A, in_range(MIN_SHARES, MAX_SHARES)),
        FileSpec("cpu", "cpu.weight", _A, in_range(MIN_WEIGHT, MAX_WEIGHT), _weight_text),
    ),
    _renamed("cpu.cfs_quota_us", "cpu", "cpu.max", convert=_minus_one_is_max),
    _renamed("cpu.cfs_period_us", "cpu", "cpu.max", convert=_minus_one_is_max),
    CgroupResource(
        "cpu.cfs_burst_us",
        FileSpec("cpu", "cpu.cfs_burst_us", _F, in_range(0, 100_000_000)),
        FileSpec("cpu", "cpu.max.burst", _K, _ANY_SIZE),
    ),
    _both("cpu.bvt_warp_ns", "cpu", _F, _F, in_range(-1, 2)),
    _both("cpu.idle", "cpu", _K, _K, _FLAG),
    _renamed("tasks", "cpu", "cgroup.threads"),
    _both("cgroup.procs", "cpu", _A, _A),
    _both("cpuset.cpus", "cpuset", _A, _A, cpu_list),
    _only_v2("cpuset.cpus.effective", "cpuset"),
    _renamed("cpuacct.stat", "cpuacct", "cpu.stat"),
    _renamed("cpuacct.usage", "cpuacct", "cpu.stat"),
    _both("cpu.pressure", "cpuacct", _K, _K),
    _both("memory.pressure", "cpuacct", _K, _K),
    _both("io.pressure", "cpuacct", _K, _K),
    _renamed("memory.limit_in_bytes", "memory", "memory.max", convert=_minus_one_is_max),
    _renamed("memory.usage_in_bytes", "memory", "memory.current"),
    _both("memory.stat", "memory", _A, _A),
    CgroupResource("memory.events", FileSpec("memory", "memory.oom_control"), FileSpec("memory", "memory.events")),
    _both("memory.numa_stat", "memory", _A, _A),
    _both("memory.min", "memory", _K, _A, _ANY_SIZE),
    _both("memory.low", "memory", _K, _A, _ANY_SIZE),
    _both("memory.high", "memory", _K, _A, _ANY_SIZE),
    _only_v2("memory.reclaim", "memory", _F, _ANY_SIZE),
    _both("memory.wmark_ratio", "memory", _K, _F, in_range(0, 100)),
    _both("memory.wmark_scale_factor", "memory", _K, _F, in_range(1, 1000)),
    _both("memory.wmark_min_adj", "memory", _K, _F, in_range(-25, 50)),
    _both("memory.priority", "memory", _K, _F, in_range(0, 12)),
    _both("memory.use_priority_oom", "memory", _K, _F, _FLAG),
    _both("memory.oom.group", "memory", _K, _F, _FLAG),
    CgroupResource("memory.idle_page_stats", FileSpec("memory", "memory.idle_page_stats", _K), None),
    _only_v2("memory.pagecache_limit.enable", "memory", _F, _FLAG),
    _only_v2("memory.pagecache_limit.sync", "memory", _F, _FLAG),
    _only_v2("memory.pagecache_limit.size", "memory", _F, _ANY_SIZE),
    *(
        CgroupResource(name, FileSpec("blkio", name, _K, _device_number(0, MAX_INT64)), None)
        for name in (f"blkio.throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("iops", "bps"))
    ),
    _renamed("blkio.throttle.io_service_bytes", "blkio", "io.stat"),
    _only_v2("io.max", "blkio", _F, _io_max),
    _renamed("blkio.cost.weight", "blkio", "io.weight", _K, _F, _device_number(1, 100)),
    _renamed("blkio.cost.qos", "blkio", "io.cost.qos", _R, _R, _cost_qos),
    _renamed("blkio.cost.model", "blkio", "io.cost.model", _R, _R, _cost_model),
    CgroupResource(
        "net_cls.classid",
        FileSpec("net_cls", "net_cls.classid", _K, _classid, v1_layout=True),
        FileSpec("net_cls", "net_cls.classid", _K, _classid, v1_layout=True),
    ),
)

TABLE: dict[str, CgroupResource] = {row.name: row for row in ROWS}
