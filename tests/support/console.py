"""Sessions in the documentation: commands after `$ `, each with what it printed, run again and compared.

Amounts and ages differ from run to run, so a word that holds digits stands for any such word of the same shape; `…` alone on a line
stands for any lines. Everything else has to be printed as it stands on the page, in its order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.docs import fences

REST = "…"
_AMOUNT = re.compile(r"-?\d[\d.,]*(?:[smhd]\d+)*(?:m|k|Ki|Mi|Gi|Ti|s|h|d|%)?")


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a page and what the page says that it prints."""

    page: str
    command: str
    lines: tuple[str, ...]


def sessions(page: Path) -> Iterator[Shown]:
    """The commands of the `console` blocks of a page."""
    for language, body in fences(page.read_text(encoding="utf-8")):
        if language != "console":
            continue
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, _, text = part.partition("\n")
            yield Shown(page.name, command, tuple(text.rstrip("\n").split("\n")) if text.strip() else ())


def pattern(line: str) -> re.Pattern[str]:
    """What a line may look like in another run."""
    words = [_AMOUNT.sub("\0", word) for word in line.split()]
    shape = r"\s+".join(re.escape(word).replace("\0", f"(?:{_AMOUNT.pattern})") for word in words)
    return re.compile(rf"\s*{shape}\s*")


def difference(shown: tuple[str, ...], printed: list[str]) -> str:
    """The first line of the page that was not printed where it should stand; "" when all were."""
    position, anywhere = 0, False
    for line in shown:
        if line.strip() == REST:
            anywhere = True
            continue
        wanted = pattern(line)
        found = next((at for at in range(position, len(printed)) if wanted.fullmatch(printed[at])), None)
        if found is None or (found != position and not anywhere):
            return line
        position, anywhere = found + 1, False
    return "" if anywhere or position == len(printed) else f"(the page ends before {printed[position]!r})"
