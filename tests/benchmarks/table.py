"""Rows of the benchmark table and how they are printed."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `build_for` is the number to build for, in the same unit; `better` says which side of it is good."""

    what: str
    measured: float
    unit: str
    build_for: float | None = None
    better: str = "lower"
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over the number to build for; for rates the other way round, so that below 1 is always good."""
        if not self.build_for or not self.measured:
            return None
        return self.measured / self.build_for if self.better == "lower" else self.build_for / self.measured


def render(rows: Iterable[Row]) -> str:
    """The table in Markdown. A ratio below 1 is better than what we build for."""
    lines = ["| what | measured | build for | ratio | note |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        goal = "" if row.build_for is None else f"{'≤' if row.better == 'lower' else '≥'} {row.build_for:g} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.what} | {row.measured:.4g} {row.unit} | {goal} | {ratio} | {row.note} |")
    return "\n".join(lines)


def own_rss_mib() -> float:
    """Peak resident memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def current_rss_mib(pid: int | str = "self") -> float:
    """Resident memory of a process now, MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int | str = "self") -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def emit(rows: list[Row]) -> None:
    """What a bench script ends with: the table for a reader, or JSON when `run.py` collects it."""
    if target := os.environ.get("KOORD_BENCH_JSON"):
        Path(target).write_text(json.dumps([asdict(row) for row in rows]))
    print(render(rows))


def script(rows: Callable[[bool], list[Row]]) -> None:
    """Main of a bench script: `--quick` asks for smaller sizes."""
    emit(rows("--quick" in sys.argv))
