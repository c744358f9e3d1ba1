"""What `koord doctor` says: a line a thing that was looked at, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """`warn`: koord works, something is missing or worth a look; `fail`: it does not work, or not as it should."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `remedy` says what to do, "" for what is well."""

    area: str
    level: Level
    message: str
    remedy: str = ""

    def wire(self) -> dict[str, str]:
        """As JSON shows it."""
        return {"area": self.area, "level": str(self.level), "message": self.message, "remedy": self.remedy}


def ok(area: str, message: str) -> Finding:
    """A thing that is well."""
    return Finding(area, Level.OK, message)


def warn(area: str, message: str, remedy: str) -> Finding:
    """A thing worth a look."""
    return Finding(area, Level.WARN, message, remedy)


def fail(area: str, message: str, remedy: str) -> Finding:
    """A thing that must be put right."""
    return Finding(area, Level.FAIL, message, remedy)


def lines(findings: Sequence[Finding]) -> list[str]:
    """For a terminal: the level, the area, the message, and below it what to do."""
    shown = []
    for one in findings:
        shown.append(f"{one.level:<4}  {one.area}: {one.message}")
        if one.remedy:
            shown.append(f"      do: {one.remedy}")
    counts = {level: sum(one.level is level for one in findings) for level in Level}
    return [*shown, ", ".join(f"{number} {level}" for level, number in counts.items())]


def wire(findings: Sequence[Finding]) -> dict[str, Any]:
    """For programs."""
    return {"findings": [one.wire() for one in findings], "failed": failed(findings)}


def failed(findings: Iterable[Finding]) -> bool:
    """Whether anything must be put right: the exit status."""
    return any(one.level is Level.FAIL for one in findings)


def listed(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
