"""An explanation on the screen: rich tables on a terminal, aligned plain text elsewhere, or JSON."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec
import orjson

from koord.decisions.record import encode_many
from roles.tools.explain import Explanation, Table
from roles.tools.facts import Gathered

_GAP = "   "
_FOLDED = 24
"""Characters that a folded column has at least: narrower than that, nobody reads it."""


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
    records = orjson.loads(encode_many(found.records))
    for record in records:  # a record leaves out what is empty, and a program that reads `value` means 0
        record.update({"numbers": record.get("numbers", {}), "terms": [{"value": 0, **term} for term in record.get("terms", ())]})
    document = {
        "subject": explanation.subject,
        "summary": explanation.summary,
        "reason": explanation.reason,
        "records": records,
        "object": live.obj if live else None,
        "events": live.events if live else [],
        "asked": found.asked,
        "answered": found.answered,
        "problems": found.problems,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


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


def _aligned(table: Table, width: int | None = None) -> list[str]:
    """A table as lines of at most `width` characters (None: as long as they are). Where they would be longer, the last column, which has
    the sentences, is folded; or stands below each row; or, where not even the others have room, every cell has a line."""
    rows = [tuple(heading.upper() for heading in table.headings), *table.rows]
    widths = [max(cells(row[column]) for row in rows) for column in range(len(table.headings))]
    if width is None or sum(widths) + len(_GAP) * (len(widths) - 1) <= width:
        return [_row(row, widths) for row in rows]
    before = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    if width - before >= _FOLDED:
        return [line for row in rows for line in _folded(row, widths, width - before, before)]
    if before - len(_GAP) <= width:
        below = [[_row(row[:-1], widths), *_wrapped(row[-1], width, "  ")] for row in rows[1:]]
        return [_row(rows[0][:-1], widths), *(line for lines in below for line in lines)]
    return [line for row in rows[1:] for line in _listed(rows[0], row, width)]


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(cell + " " * (size - cells(cell)) for cell, size in zip(row, widths, strict=False)).rstrip()


def _folded(row: tuple[str, ...], widths: Sequence[int], room: int, before: int) -> list[str]:
    first, *rest = _wrapped(row[-1], room) or [""]
    return [_row((*row[:-1], first), widths), *(" " * before + line for line in rest)]


def _listed(headings: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """A row as a list: its first cell, and below it the others with their headings."""
    lines = _wrapped(row[0], width)
    for heading, cell in zip(headings[1:], row[1:], strict=True):
        lines += _wrapped(f"{heading.lower()}: {cell}", width, "  ") if cell else []
    return lines


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Text in lines of at most `width` columns, broken between words; the next lines stand further in where the first one does."""
    own = text[: len(text) - len(text.lstrip())]
    lines = [indent + own]
    hanging = indent + own + "  " * bool(own or indent)
    for word in text.split():
        while lines[-1].strip() and cells(lines[-1]) + 1 + cells(word) > width:
            lines.append(hanging)
        start = lines[-1] + " " if lines[-1].strip() else lines[-1]
        while cells(start) + cells(word) > width and len(word) > 1:  # longer than a line
            fits = next((n for n in range(len(word), 1, -1) if cells(start) + cells(word[:n]) <= width), 1)
            lines[-1], word = start + word[:fits], word[fits:]
            lines.append(hanging)
            start = hanging
        lines[-1] = start + word
    return [line for line in lines if line.strip()]


def cells(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters take two, marks on others none."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 0 if unicodedata.combining(one) else 1 for one in text)


def _rich(explanation: Explanation, found: Gathered, stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream)
    width = console.width

    def put(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    put("\n".join(_wrapped(explanation.summary, width)), "bold")
    for section in explanation.sections:
        put("\n" + "\n".join(_wrapped(section.title, width)), "bold cyan")
        for line in section.lines:
            put("\n".join(_wrapped(f"  {line}", width)))
        for table in section.tables:
            heading, *rows = _aligned(table, width - 2)
            put(f"\n  {heading}", "dim" if heading.isupper() else "")
            for row in rows:
                put(f"  {row}")
    for problem in found.problems:
        put("\n" + "\n".join(_wrapped(f"No answer from: {problem}", width)), "yellow")
