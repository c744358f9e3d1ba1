"""Masks and bandwidth values of resctrl groups from percentages (KA-RDT-01, KA-RDT-02). Pure."""

from __future__ import annotations

from collections.abc import Mapping

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
    for line in schemata.splitlines():
        name, _, domains = line.strip().partition(":")
        if name.strip() == resource:
            return sorted(int(key) for part in domains.split(";") if (key := part.partition("=")[0].strip()).isdecimal())
    return []


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
