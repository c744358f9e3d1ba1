"""The files of replay logs: which there are, and their lines (BEY-REPLAY-01)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from koord.decisions.replayfile import read_lines
from koord.process.errors import ConfigurationError

T = TypeVar("T")
_NAME = re.compile(r"([^/.]*)\.replay\.jsonl(\.\d+(\.gz)?)?")
ROLES = ("scheduler", "manager", "descheduler")


def roles_of(log: Path) -> list[str]:
    """The roles that left a replay log in a folder, or the one whose file it is. Raises ConfigurationError."""
    if log.is_file():
        named = _NAME.fullmatch(log.name)
        return [named[1] if named is not None and named[1] in ROLES else "scheduler"]
    there = {named[1] for path in log.iterdir() if (named := _NAME.fullmatch(path.name))} if log.is_dir() else set()
    return [role for role in ROLES if role in there] or ["scheduler"]


def files_of(log: Path, role: str = "scheduler") -> list[Path]:
    """The files of a role's replay log, the oldest first; a folder may hold files of other things, too. Raises ConfigurationError."""

    def age(path: Path) -> int:
        return -int(path.name.partition(".jsonl")[2].removesuffix(".gz").lstrip(".") or 0)

    if log.is_file():
        return [log]
    if not log.is_dir():
        raise ConfigurationError(f"{log}: no such file or folder")
    found = [path for path in log.iterdir() if (named := _NAME.fullmatch(path.name)) and named[1] == role]
    if not found:
        raise ConfigurationError(f"{log}: no {role}.replay.jsonl in this folder: the {role} writes it with --decision-log")
    return sorted(found, key=age)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Makes a ConfigurationError of what is wrong with a file."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise ConfigurationError(f"{file}: {error.strerror if isinstance(error, OSError) else error}") from error
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def taken(files: list[Path], role: str, take: Callable[[Any], T]) -> Iterator[tuple[Path, T]]:
    """What `take` makes of each line of a role's log, with its file. Raises ConfigurationError for what it cannot take."""
    for file in files:
        with readable(file):
            for number, line in read_lines(file):
                try:
                    item = take(line)
                except (LookupError, TypeError, ValueError, StopIteration) as error:
                    raise ConfigurationError(f"{file}, line {number}: {error!s:.200}: not a line of a {role}'s replay log") from error
                yield file, item
