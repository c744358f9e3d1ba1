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


class _Work:
    """Counts units of work and reports them twice a second."""

    def __init__(self, out: TextIO, seconds: float | None) -> None:
        self.units = 0
        self._out = out
        self._end = None if seconds is None else time.monotonic() + seconds
        self._following = time.monotonic() + REPORT_SECONDS

    def done(self) -> bool:
        """One unit more; whether the time is over."""
        self.units += 1
        now = time.monotonic()
        if now >= self._following:
            self._say()
            self._following = now + REPORT_SECONDS
        over = self._end is not None and now >= self._end
        if over:
            self._say()
        return over

    def _say(self) -> None:
        self._out.write(json.dumps({"event": "work", "time": time.time(), "units": self.units}) + "\n")
        self._out.flush()


def burn_cpu(out: TextIO, *, seconds: float | None = None) -> int:
    """Work without pause and report units (10,000 iterations each) twice a second; ends after `seconds`, or never."""
    work, seed = _Work(out, seconds), 1
    while True:
        seed = spin(UNIT, seed)
        if work.done():
            return work.units


def burn_memory(out: TextIO, megabytes: int, *, pause: float = 0.05, seconds: float | None = None) -> int:
    """Fill so many MiB, then keep touching every page, `pause` seconds between rounds; units are rounds over 64 MiB."""
    size = megabytes * 1024 * 1024
    chunk = min(size, 64 * 1024 * 1024)
    work = _Work(out, seconds)
    with mmap.mmap(-1, size) as memory:
        while True:
            for begin in range(0, size, chunk):
                for offset in range(begin, min(begin + chunk, size), PAGE):
                    memory[offset] = work.units & 0xFF
                if work.done():
                    return work.units
                time.sleep(pause)
