"""How rows look: on a terminal, as plain text, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from roles.tools.top.rows import Row, Use

HEADINGS = (
    "NODE", "CPU", "USED", "PROD", "MID", "BATCH", "SYSTEM", "BATCH CPU", "BE LIMIT", "MEMORY", "MEM USED", "BATCH MEM", "AGE", "MARKS",
)  # fmt: skip
_GAP = "  "
_FIRST_TO_GO = (6, 4, 11, 12, 3, 9, 1, 8, 5, 7, 13, 10)
"""Columns by rank, the least important first: what remains at the end is the node and its use of CPU."""


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
    """Lines aligned by blanks, with all columns."""
    grid = _grid(rows)
    return [_line(line, _widths(grid), range(len(HEADINGS))) for line in grid]


def fitting(rows: Sequence[Row], width: int) -> tuple[int, ...]:
    """The columns that `width` characters have room for, from left to right: the least important go first, node and use stay."""
    widths = _widths(_grid(rows))
    shown = set(range(len(HEADINGS)))
    for column in _FIRST_TO_GO:
        if sum(widths[one] for one in shown) + len(_GAP) * (len(shown) - 1) <= width:
            break
        shown.discard(column)
    return tuple(sorted(shown))


def room(rows: Sequence[Row], lines: int, folded: int | None = None) -> int:
    """How many of the rows, the sum among them, stand below the headings on a screen of so many lines; `folded`: its width, where lines
    are not made to fit."""
    longest = max(map(len, plain(rows)), default=0)
    each = 1 if folded is None else max(-(-longest // folded), 1)
    return max(lines // each - 1, 1)


def rich(rows: Sequence[Row], note: str, width: int | None = None) -> Any:
    """A table for a terminal of `width` characters (None: all columns): hot nodes red, squeezed and stale ones yellow.

    No cell is cut: columns without room are left out and named below. The sum's marks are counts of nodes, so it has no colour.
    """
    from rich.text import Text

    shown = range(len(HEADINGS)) if width is None else fitting(rows, width)
    grid = _grid(rows)
    widths = _widths(grid)
    drawn = Text(overflow="fold")
    for number, line in enumerate(grid):
        marks = " ".join(rows[number - 1].marks) if number > 1 else ""
        style = "dim" if number == 0 else "red" if "hot" in marks else "yellow" if marks else ""
        drawn.append(_line(line, widths, shown) + "\n", style=style)
    missing = len(HEADINGS) - len(shown)
    hint = f"{missing} {'column' if missing == 1 else 'columns'} more: -o wide" if missing else ""
    drawn.append("  ".join(part for part in (note, hint) if part), style="dim")
    drawn.rstrip()
    return drawn


def _grid(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [HEADINGS, *(cells(row) for row in rows)]


def _widths(grid: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*grid, strict=True)]


def _line(line: Sequence[str], widths: Sequence[int], shown: Iterable[int]) -> str:
    return _GAP.join(line[column].ljust(widths[column]) for column in shown).rstrip()


def wire(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For programs: milli-cores, bytes, seconds."""
    return [
        {
            "name": row.name,
            **{key: _amount(getattr(row, name)) for key, name in _AMOUNTS.items()},
            "bestEffortMilliCPU": row.best_effort,
            "allowanceMilliCPU": row.allowance,
            "ageSeconds": None if row.age is None else round(row.age, 1),
            "marks": list(row.marks),
        }
        for row in rows
    ]


_AMOUNTS = {
    **{name: name for name in ("capacity", "used", "prod", "mid", "batch", "system")},
    "batchAllocatable": "batch_allocatable",
    "batchRequested": "batch_requested",
}


def _amount(use: Use) -> dict[str, int]:
    return {"milliCPU": use.cpu, "memoryBytes": use.memory}
