"""Pressure stall information of a modelled kernel (pure): for what share of the time somebody waited, and everybody.

The share is a rate that holds until it is told anew; totals and averages follow from it. Averages are exponential, over 10, 60 and 300
seconds, as those of the kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

RESOURCES = ("cpu", "memory", "io")
_SPANS = (10.0, 60.0, 300.0)


@dataclass(slots=True)
class Line:
    """One line of a pressure file. `share` of the time, from 0 to 1; `total` in µs; averages in percent."""

    share: float = 0.0
    total: float = 0.0
    averages: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def go_on(self, seconds: float) -> None:
        """So much time passes."""
        if not self.share and not self.averages[2]:
            return
        self.total += self.share * seconds * 1e6
        for at, span in enumerate(_SPANS):
            self.averages[at] += (100 * self.share - self.averages[at]) * (1 - math.exp(-seconds / span))

    def show(self, name: str) -> str:
        """As in the file."""
        one, two, three = self.averages
        return f"{name} avg10={one:.2f} avg60={two:.2f} avg300={three:.2f} total={int(self.total)}"


@dataclass(slots=True)
class Pressure:
    """The pressure of one group, or of the machine: a line `some` and a line `full` for each resource."""

    at: float = 0.0  # until when it is told, in seconds
    lines: dict[str, tuple[Line, Line]] = field(default_factory=lambda: {name: (Line(), Line()) for name in RESOURCES})

    def now(self, resource: str, some: float, full: float) -> None:
        """From now on somebody waits for this share of the time, and everybody for that one."""
        lines = self.lines[resource]
        lines[0].share, lines[1].share = min(max(some, full, 0.0), 1.0), min(max(full, 0.0), 1.0)

    def go_on(self, now: float) -> None:
        """Time passes until now."""
        seconds, self.at = now - self.at, now
        if seconds <= 0:
            return
        for some, full in self.lines.values():
            some.go_on(seconds)
            full.go_on(seconds)

    def show(self, resource: str) -> str:
        """The content of a file, without the newline at its end."""
        some, full = self.lines[resource]
        return f"{some.show('some')}\n{full.show('full')}"


def together(waits: list[float]) -> tuple[float, float]:
    """(some, full) of tasks that wait for these shares of the time, each on its own account."""
    none, every = 1.0, 1.0
    for wait in waits:
        none *= 1 - wait
        every *= wait
    return (1 - none, every) if waits else (0.0, 0.0)
