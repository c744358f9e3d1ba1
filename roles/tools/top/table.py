"""How rows look: on a terminal, as plain text, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roles.tools.top.rows import Row, Use

HEADINGS = (
    "NODE", "CPU", "USED", "PROD", "MID", "BATCH", "SYSTEM", "BATCH ASKED/OFFERED", "BE MAY", "MEMORY", "USED", "BATCH ASKED/OFFERED",
    "AGE", "MARKS",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """One line: CPU in cores, memory in GiB; shares of the node in percent."""
    cpu = row.capacity.cpu
    return (
        row.name,
        cores(cpu),
        _share(row.used.cpu, cpu, row.age),
        _share(row.prod.cpu, cpu, row.age),
        _share(row.mid.cpu, cpu, row.age),
        _share(row.batch.cpu, cpu, row.age),
        _share(row.system.cpu, cpu, row.age),
        _asked(cores(row.batch_requested.cpu), cores(row.batch_allocatable.cpu)),
        "-" if row.allowance is None else cores(row.allowance),
        gib(row.capacity.memory),
        _share(row.used.memory, row.capacity.memory, row.age),
        _asked(gib(row.batch_requested.memory), gib(row.batch_allocatable.memory)),
        age(row.age),
        ", ".join(row.marks) or "-",
    )


def cores(milli: int) -> str:
    """Milli-cores as cores, one digit."""
    return f"{milli / 1000:.1f}".removesuffix(".0")


def gib(amount: int) -> str:
    """Bytes as GiB."""
    return f"{amount / 2**30:.1f}".removesuffix(".0") + "Gi"


def _share(used: int, of: int, seen: float | None) -> str:
    return f"{used * 100 / of:.0f}%" if of and seen is not None else "-"


def _asked(asked: str, offered: str) -> str:
    return "-" if offered.removesuffix("Gi") == "0" and asked.removesuffix("Gi") == "0" else f"{asked}/{offered}"


def age(seconds: float | None) -> str:
    """A time span, short."""
    if seconds is None:
        return "-"
    return f"{seconds:.0f}s" if seconds < 120 else f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def plain(rows: Sequence[Row]) -> list[str]:
    """Lines aligned by blanks."""
    grid = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in grid) for column in range(len(HEADINGS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in grid]


def rich(rows: Sequence[Row], note: str) -> Any:
    """A table for a terminal: hot nodes red, squeezed and stale ones yellow."""
    from rich.table import Table

    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", caption=note, caption_justify="left")
    for number, heading in enumerate(HEADINGS):
        drawn.add_column(heading, justify="left" if number in (0, len(HEADINGS) - 1) else "right", no_wrap=number == 0)
    for row in rows:
        marks = " ".join(row.marks)
        drawn.add_row(*cells(row), style="red" if "hot" in marks else "yellow" if row.marks else "")
    return drawn


def wire(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For programs: milli-cores, bytes, seconds."""
    return [
        {
            "name": row.name,
            **{name: _amount(getattr(row, name)) for name in _AMOUNTS},
            "bestEffortMilliCPU": row.best_effort,
            "allowanceMilliCPU": row.allowance,
            "ageSeconds": None if row.age is None else round(row.age, 1),
            "marks": list(row.marks),
        }
        for row in rows
    ]


_AMOUNTS = ("capacity", "used", "prod", "mid", "batch", "system", "batch_allocatable", "batch_requested")


def _amount(use: Use) -> dict[str, int]:
    return {"milliCPU": use.cpu, "memoryBytes": use.memory}
