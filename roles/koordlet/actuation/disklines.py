"""Files that hold a line a disk, ``<major:minor> …``: what stands there, what a line means, how it is taken away. Pure.

A write names one disk and the kernel keeps the others. Keys are compared as numbers, because the kernel spells 95 as 95.00 and
adds fields of its own.
"""

from __future__ import annotations

import re

PREFIXES = ("blkio.", "io.")
#: cgroup v2 has one file for all four limits.
IO_MAX = "io.max"
WEIGHT = "blkio.cost.weight"
COST_QOS = "blkio.cost.qos"
COST_MODEL = "blkio.cost.model"
_DISK = re.compile(r"\d+:\d+\Z")
#: io.max without any limit.
_UNLIMITED = "rbps=max wbps=max riops=max wiops=max"


def by_disk(text: str) -> dict[str, str]:
    """What a file says of each disk; totals and defaults are left out."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        disk, _, rest = line.strip().partition(" ")
        if _DISK.match(disk):
            out[disk] = rest.strip()
    return out


def _same_value(have: str, want: str) -> bool:
    if have == want:
        return True
    try:
        return float(have) == float(want)
    except ValueError:
        return False


def _keys(rest: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in rest.split())


def says(resource: str, current: str, line: str) -> bool:
    """Whether a file already means what ``line`` (in the file's own spelling) says of its disk."""
    disk, _, rest = line.strip().partition(" ")
    have, rest = by_disk(current).get(disk), rest.strip()
    if "=" not in rest:
        # 0 takes a limit away: without a line there is none
        return rest == "0" if have is None else _same_value(have, rest)
    wanted = _keys(rest)
    if have is None:
        return all(value == "max" for value in wanted.values()) or wanted == {"enable": "0"}
    present = _keys(have)
    return all(key in present and _same_value(present[key], value) for key, value in wanted.items())


def without(resource: str, disk: str) -> str:
    """The line that makes a file say nothing of a disk again."""
    if resource == IO_MAX:
        return f"{disk} {_UNLIMITED}"
    if resource == WEIGHT:
        return f"{disk} default"
    if resource == COST_QOS:
        return f"{disk} enable=0"
    return f"{disk} ctrl=auto" if resource == COST_MODEL else f"{disk} 0"
