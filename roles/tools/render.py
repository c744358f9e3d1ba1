"""An explanation on the screen: rich tables on a terminal, aligned plain text elsewhere, or JSON."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import msgspec
import orjson

from koord.decisions.record import encode_many
from roles.tools.explain import Explanation, Table
from roles.tools.facts import Gathered


def show(explanation: Explanation, found: Gathered, output: str, stream: TextIO | None = None) -> None:
    """Print in the format `output` ("text", "json" or "yaml")."""
    stream = stream or sys.stdout
    if output == "yaml":
        import yaml

        stream.write("---\n" + yaml.safe_dump(orjson.loads(as_json(explanation, found)), sort_keys=False, allow_unicode=True))
        return
    if output == "json":
        stream.write(as_json(explanation, found) + "\n")
    elif stream.isatty():
        _rich(explanation, found, stream)
    else:
        stream.write(as_text(explanation, found))


def as_json(explanation: Explanation, found: Gathered) -> str:
    """Subject, summary, records, the live object and problems."""
    live = found.live
    document = {
        "subject": explanation.subject,
        "summary": explanation.summary,
        "reason": explanation.reason,
        "records": msgspec.Raw(encode_many(found.records)),
        "object": live.obj if live else None,
        "events": live.events if live else [],
        "asked": found.asked,
        "answered": found.answered,
        "problems": found.problems,
    }
    return orjson.dumps(orjson.loads(msgspec.json.encode(document)), option=orjson.OPT_INDENT_2).decode()


def document(explanation: Explanation) -> dict[str, Any]:
    """Subject, summary and sections as plain data."""
    made: dict[str, Any] = msgspec.to_builtins(explanation)
    return made


def as_text(explanation: Explanation, found: Gathered) -> str:
    """Plain text, tables aligned by blanks."""
    lines = [explanation.summary]
    for section in explanation.sections:
        lines += ["", section.title, *(f"  {line}" for line in section.lines)]
        for table in section.tables:
            lines += ["", *(f"  {line}" for line in _aligned(table))]
    if found.problems:
        lines += ["", "No answer from:", *(f"  {problem}" for problem in found.problems)]
    return "\n".join(lines) + "\n"


def _aligned(table: Table) -> list[str]:
    rows = [tuple(heading.upper() for heading in table.headings), *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headings))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rich(explanation: Explanation, found: Gathered, stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=stream)
    console.print(Text(explanation.summary, style="bold"))
    for section in explanation.sections:
        console.print()
        console.print(Text(section.title, style="bold cyan"))
        for line in section.lines:
            console.print(Text(f"  {line}"))
        for table in section.tables:
            drawn = RichTable(box=None, pad_edge=True, padding=(0, 2, 0, 1), header_style="dim")
            for number, heading in enumerate(table.headings):
                drawn.add_column(heading, overflow="fold", no_wrap=number == 0)
            for row in table.rows:
                drawn.add_row(*(Text(cell) for cell in row))
            console.print(drawn)
    for problem in found.problems:
        console.print(Text(f"No answer from: {problem}", style="yellow"))
