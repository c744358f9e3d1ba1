"""Cache occupancy, memory bandwidth: what the lines of resctrl mean on this machine, by mount options and `info` (KA-RDT-01, KA-RDT-02).

Everything is read: mount options, ``info`` and the root group's own schemata. Nothing is taken from the vendor's name but AMD's unit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from roles.koordlet.qos import view
from roles.koordlet.states.model import HostState

AMD = "AuthenticAMD"
#: AMD counts bandwidth in 1/8 GB/s; 2048 is no limit. 25 GB/s × 8 × 0.8, as measured on Milan.
AMD_NO_LIMIT = 2048
AMD_PER_NODE = 160
#: Percentages of bandwidth go in steps of so much where the kernel does not say.
INTEL_STEP = 10


class ResctrlError(ValueError):
    """What the kernel says about its caches cannot be understood."""


def ways(cbm_mask: str) -> int:
    """Number of ways of a cache from ``info/L3/cbm_mask``, whose low bits must all be set. Raises ResctrlError."""
    try:
        mask = int(cbm_mask.strip(), 16)
    except ValueError:
        raise ResctrlError(f"cbm_mask {cbm_mask.strip()[:40]!r} is not a hexadecimal number") from None
    if mask <= 0 or mask & (mask + 1):
        raise ResctrlError(f"cbm_mask {cbm_mask.strip()[:40]} is not a row of ones")
    return mask.bit_length()


def l3_mask(total: int, start: int, end: int) -> int | None:
    """The ways from ``start`` to ``end`` percent of ``total``; None for a range that is none."""
    if not 0 <= start < end <= 100:
        return None
    first, last = -(-total * start // 100), -(-total * end // 100)
    return ((1 << (last - first)) - 1) << first or None


def cache_ids(schemata: str, resource: str) -> list[int]:
    """Cache ids of ``L3`` or ``MB`` in a schemata file, ascending; empty when it has no such line."""
    return sorted(cache_values(schemata, resource))


def cache_values(schemata: str, resource: str) -> dict[int, int]:
    """Decimal values by cache id of a line such as ``MB:0=100;1=100``; domains without a number count as 0."""
    out: dict[int, int] = {}
    for line in schemata.splitlines():
        name, _, domains = line.strip().partition(":")
        if name.strip() != resource:
            continue
        for part in domains.split(";"):
            key, _, value = (text.strip() for text in part.partition("="))
            if key.isdecimal():
                out[int(key)] = int(value) if value.isdecimal() else 0
    return out


def schemata_line(resource: str, values: Mapping[int, int]) -> str:
    """``L3:0=f;1=f;``, masks in hexadecimal, ascending by id."""
    form = "x" if resource.startswith("L3") else "d"
    return f"{resource}:" + "".join(f"{cache}={value:{form}};" for cache, value in sorted(values.items()))


#: Resources of the last-level cache: one, or one each for code and data (CDP).
CACHE, CODE_AND_DATA = ("L3",), ("L3CODE", "L3DATA")
MB = "MB"


class Scale(StrEnum):
    """What the numbers of an MB line are."""

    PERCENT = "percent"
    MEGABYTES = "MB/s"
    """The file system is mounted with mba_MBps."""
    EIGHTHS = "1/8 GB/s"


@dataclass(frozen=True, slots=True)
class Units:
    """``ways`` 0: no cache can be divided. ``whole``: the MB value that limits nothing; ``step``, ``least``: of percentages."""

    caches: tuple[str, ...] = ()
    ways: int = 0
    cache_ids: tuple[int, ...] = ()
    mb_ids: tuple[int, ...] = ()
    scale: Scale = Scale.PERCENT
    whole: int = 100
    step: int = INTEL_STEP
    least: int = 1
    groups: int = 0
    """How many groups the hardware can hold, the root group among them; 0: not known."""

    def bandwidth(self, percent: int) -> int | None:
        """The value of an MB line; None outside 1..100, and for what this machine's unit cannot say (:meth:`unsaid`)."""
        if not 1 <= percent <= 100:
            return None
        if percent == 100:
            return self.whole
        if self.scale is Scale.PERCENT:
            return min(max(-(-percent // self.step) * self.step, self.least), self.whole)
        if self.scale is Scale.EIGHTHS and self.whole == AMD_NO_LIMIT:
            return AMD_PER_NODE * percent // 100
        return None

    def unsaid(self, percent: int) -> str:
        """Why a percentage of bandwidth cannot be written; empty when it can."""
        if not self.mb_ids or not 1 <= percent <= 100 or self.bandwidth(percent) is not None:
            return ""
        return f"memory bandwidth is set in {self.scale} here, and the kernel tells no total: {percent} % of it is left unlimited"

    def mask(self, start: int, end: int) -> int | None:
        """The ways from ``start`` to ``end`` percent; None for a range that is none."""
        return l3_mask(self.ways, start, end) if self.ways else None

    def cache_lines(self, masks: dict[int, int]) -> list[tuple[str, str]]:
        """(resource, line) of a mask by cache; code and data get the same."""
        return [(name, schemata_line(name, masks)) for name in self.caches] if masks else []

    def bandwidth_line(self, values: dict[int, int]) -> list[tuple[str, str]]:
        """(resource, line) of a bandwidth by cache."""
        return [(MB, schemata_line(MB, values))] if values else []


def read_units(host: HostState, vendor: str) -> Units | None:
    """None while resctrl is not mounted. Raises ResctrlError for what cannot be understood."""
    resctrl = host.root.resctrl_path
    root = view.text(host, resctrl, "schemata")
    if root is None:
        return None
    caches: tuple[str, ...] = ()
    cbm: str | None = None
    for names in (CACHE, CODE_AND_DATA):
        cbm = view.text(host, resctrl, "info", names[0], "cbm_mask")
        if cbm is not None:
            caches = names
            break
    if cbm is None and view.text(host, resctrl, "info", MB, "bandwidth_gran") is None and not cache_ids(root, MB):
        return None
    values = cache_values(root, MB)
    highest = max(values.values(), default=0)
    scale = _scale(host, vendor, highest)
    whole = {Scale.PERCENT: 100, Scale.MEGABYTES: highest, Scale.EIGHTHS: max(highest, AMD_NO_LIMIT)}[scale]
    counts = [n for name in (*caches, MB) if (n := _number(host, "info", name, "num_closids")) is not None]
    return Units(
        caches=caches,
        ways=ways(cbm) if cbm is not None else 0,
        cache_ids=tuple(cache_ids(root, caches[0])) if caches else (),
        mb_ids=tuple(sorted(values)),
        scale=scale,
        whole=whole,
        step=_number(host, "info", MB, "bandwidth_gran") or INTEL_STEP,
        least=_number(host, "info", MB, "min_bandwidth") or 1,
        groups=min(counts, default=0),
    )


def present_units(host: HostState, vendor: str, known: Units | None) -> Units | None:
    """What was found out before, as long as resctrl stays mounted; else as :func:`read_units`."""
    if known is not None and os.path.exists(host.root.resctrl_path("schemata")):
        return known
    if known is not None:
        host.files.forget_dir(host.root.resctrl_path())  # files that are open would keep it from being mounted again
    return read_units(host, vendor)


def _scale(host: HostState, vendor: str, highest: int) -> Scale:
    if vendor == AMD:
        return Scale.EIGHTHS
    mounts = (view.text(host, host.root.proc_path, "mounts") or "").splitlines()
    options = {option for line in mounts if len(words := line.split()) > 3 and words[2] == "resctrl" for option in words[3].split(",")}
    # a percentage is never above 100
    return Scale.MEGABYTES if "mba_MBps" in options or highest > 100 else Scale.PERCENT


def _number(host: HostState, *parts: str) -> int | None:
    text = (view.text(host, host.root.resctrl_path, *parts) or "").strip()
    return int(text) if text.isdecimal() and 0 < int(text) < 2**31 else None
