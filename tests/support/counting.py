"""How much work something is, in calls: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Calls:
    """Functions that were called, those of C included."""

    number: int = 0


@contextmanager
def counting() -> Iterator[Calls]:
    """Count the calls of this thread within the block."""
    calls = Calls()

    def count(frame: FrameType, event: str, argument: object) -> None:
        calls.number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
