"""The limit of memory and swap together, which cgroup v1 never lets be below the limit of memory (KA-EXE-01). Pure but for reading.

A runtime that sets a memory limit sets this one too. So it goes up before the memory limit and down after it, by as much: what a group may
swap stays what it was.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import WriteError
from roles.koordlet.actuation.values import INFINITE, number

LIMIT = "memory.limit_in_bytes"
MEMSW = "memory.memsw.limit_in_bytes"


@dataclass(frozen=True, slots=True)
class SwapLimit:
    """What to write to ``path`` along with the memory limit of the same group; ``first``: before it."""

    path: str
    current: str
    text: str
    first: bool


def swap_limit(limit_path: str, limit_text: str) -> SwapLimit | None:
    """What a new memory limit asks of the limit beside it; None where there is none or it need not change."""
    directory, name = os.path.split(limit_path)
    if name != LIMIT:
        return None
    path = os.path.join(directory, MEMSW)
    try:
        current, now = kernel.read(path), number(kernel.read(limit_path))
        together, wanted = number(current), number(limit_text)
    except (WriteError, ValueError):
        return None  # without swap accounting there is no such file
    if together == INFINITE or wanted == now:
        return None
    text = "-1" if wanted == INFINITE else str(int(wanted + max(together - now, 0)))
    return SwapLimit(path, current, text, first=wanted > now)
