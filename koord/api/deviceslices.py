"""Devices of Device objects under the names that they have in ResourceSlices: publishing and counting must agree on them (SCH-DRA-20)."""

from __future__ import annotations

import re

DRIVER = "koordinator.sh"
"""The driver under which a node's Device object is published."""

_TYPE = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")


def device_name(kind: str, minor: int) -> str:
    """The name of a device in a slice, "" for a type or a minor of which none can be made."""
    return f"{kind}-{minor}" if _TYPE.fullmatch(kind) and 0 <= minor < 1 << 31 else ""


def place_of(name: str) -> tuple[str, int] | None:
    """Type and minor of a device by its name in a slice."""
    kind, _, minor = name.rpartition("-")
    return (kind, int(minor)) if kind and minor.isascii() and minor.isdigit() and device_name(kind, int(minor)) == name else None
