"""Batch workloads: one burns CPU, the other holds and walks memory. Both print the work done as JSON lines."""

from __future__ import annotations

import json
import mmap
import time
from typing import TextIO

from roles.sandbox.workload.work import spin

UNIT = 10_000
REPORT_SECONDS = 0.5
PAGE = 4096


def burn_cpu(out: TextIO, *, seconds: float | None = None) -> int:
    """Work without pause and report units (10,000 iterations each) twice a second; ends after `seconds`, or never."""
    units, seed = 0, 1
    end = None if seconds is None else time.monotonic() + seconds
    following = time.monotonic() + REPORT_SECONDS
    while True:
        seed = spin(UNIT, seed)
        units += 1
        now = time.monotonic()
        if now >= following:
            _say(out, units)
            following = now + REPORT_SECONDS
        if end is not None and now >= end:
            _say(out, units)
            return units


def burn_memory(out: TextIO, megabytes: int, *, pause: float = 0.05, seconds: float | None = None) -> int:
    """Fill so many MiB, then keep touching every page, `pause` seconds between rounds; units are rounds over 64 MiB."""
    size = megabytes * 1024 * 1024
    chunk = min(size, 64 * 1024 * 1024)
    units, following = 0, time.monotonic() + REPORT_SECONDS
    end = None if seconds is None else time.monotonic() + seconds
    with mmap.mmap(-1, size) as memory:
        while True:
            for begin in range(0, size, chunk):
                for offset in range(begin, min(begin + chunk, size), PAGE):
                    memory[offset] = units & 0xFF
                units += 1
                now = time.monotonic()
                if now >= following:
                    _say(out, units)
                    following = now + REPORT_SECONDS
                if end is not None and now >= end:
                    _say(out, units)
                    return units
                time.sleep(pause)


def _say(out: TextIO, units: int) -> None:
    out.write(json.dumps({"event": "work", "time": time.time(), "units": units}) + "\n")
    out.flush()
