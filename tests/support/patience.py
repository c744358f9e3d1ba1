"""A slow machine costs time and not the run: how slow this one is now, and what follows from it for limits of time."""

from __future__ import annotations

import math
import os
import time

VARIABLE = "KOORD_TEST_SLOWNESS"
LEAST, MOST = 3, 10  # a machine that is idle now may not be so in a minute, and a limit that is not reached costs nothing


def measured(cpu_seconds: float = 0.2) -> int:
    """How many times longer work takes here than on an idle machine: from a short spin, and from the load."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < cpu_seconds:
        pass
    spun = (time.monotonic() - began) / (time.process_time() - used)
    queued = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return min(max(math.ceil(spun - 0.3), math.ceil(queued - 0.5), LEAST), MOST)


def slowness() -> int:
    """The factor of this run: measured once, the same in every worker."""
    text = os.environ.get(VARIABLE, "")
    if not text.isdigit() or int(text) < 1:
        text = os.environ[VARIABLE] = str(measured())
    return int(text)


def seconds(limit: float) -> float:
    """A limit of time as it is to be on this machine. What is waited for is a condition; the limit only ends what never comes."""
    return limit * slowness()


def lease() -> tuple[float, float]:
    """Duration and renew deadline of a lease that a test's process does not lose because the machine is busy (seconds)."""
    return seconds(0.5), seconds(0.35)


def tries(count: int) -> range:
    """So many looks at what is waited for, on an idle machine."""
    return range(count * slowness())
