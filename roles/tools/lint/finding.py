"""What `koord lint` says: one mistake, with its place, and how it is shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from koord.config.positions import Position


class Level(StrEnum):
    """An error ends with status 1; a warning is worth a look."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake. `subject` is the object (`Pod shop/web`), `path` the field as a user would write it."""

    source: str
    position: Position
    level: Level
    message: str
    path: str = ""
    subject: str = ""

    @property
    def line(self) -> str:
        """As compilers write it, so that editors find the place."""
        where = f"{self.path}: " if self.path else ""
        about = f" ({self.subject})" if self.subject else ""
        return f"{self.source}:{self.position}: {self.level}: {where}{self.message}{about}"

    def wire(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "file": self.source,
            "line": self.position.line,
            "column": self.position.column,
            "level": str(self.level),
            "path": self.path,
            "message": self.message,
            "object": self.subject,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found, in the order of files and lines; how much was looked at, and what was not."""

    findings: tuple[Finding, ...]
    checked: int
    skipped: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return any(finding.level is Level.ERROR for finding in self.findings)

    def lines(self) -> list[str]:
        """For a terminal."""
        errors = sum(finding.level is Level.ERROR for finding in self.findings)
        warnings = len(self.findings) - errors
        told = f"{self.checked} checked, {errors} {_plural('error', errors)}, {warnings} {_plural('warning', warnings)}"
        skipped = f"; not looked at: {', '.join(self.skipped)}" if self.skipped else ""
        return [*(finding.line for finding in self.findings), told + skipped]

    def wire(self) -> dict[str, Any]:
        """For programs."""
        return {"findings": [finding.wire() for finding in self.findings], "checked": self.checked, "skipped": list(self.skipped)}


def report(findings: Iterable[Finding], checked: int, skipped: Sequence[str], sources: Sequence[str]) -> Report:
    """Findings once each, in order."""
    rank = {name: number for number, name in enumerate(sources)}
    ordered = sorted(dict.fromkeys(findings), key=lambda one: (rank.get(one.source, len(rank)), one.position, one.path, one.message))
    return Report(tuple(ordered), checked, tuple(dict.fromkeys(skipped)))


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"
