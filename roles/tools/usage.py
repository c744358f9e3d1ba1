"""Recorded usage out of CSV files: timestamp, workload, container, replica, cpu, memory, and if known cpu_request and cpu_limit."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TextIO

from koord.api.quantity import QuantityError, parse_value
from koord.process.errors import ConfigurationError

COLUMNS = ("timestamp", "workload", "container", "replica", "cpu", "memory")
_OPTIONAL = ("cpu_request", "cpu_limit")


class Line(NamedTuple):
    """One sample: seconds since the epoch, cores, bytes. Requests and limits are 0 where they are not told."""

    workload: str
    container: str
    replica: str
    time: float
    cpu: float
    memory: float
    cpu_request: float
    cpu_limit: float


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding="utf-8", newline="") as text:
            yield text


def read(path: Path) -> Iterator[Line]:
    """The samples of a file, which may be packed by gzip. Raises ConfigurationError naming the line and the column that is wrong."""
    try:
        with _open(path) as file:
            rows = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise ConfigurationError(f"{path}: no column {', '.join(missing)}; wanted: {', '.join(COLUMNS)}")
            for row in rows:
                where = f"{path}:{rows.line_num}"
                yield Line(
                    row["workload"],
                    row["container"],
                    row["replica"],
                    _time(row["timestamp"], where),
                    _amount(row["cpu"], where, "cpu"),
                    _amount(row["memory"], where, "memory"),
                    *(_amount(row[column], where, column) if row.get(column) else 0.0 for column in _OPTIONAL),
                )
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _time(text: str, where: str) -> float:
    for read in (float, lambda told: datetime.fromisoformat(told).timestamp()):
        try:
            seconds = read(text)
        except (TypeError, ValueError):
            continue
        if math.isfinite(seconds):
            return seconds
    raise ConfigurationError(f"{where}: timestamp: {text!r} is neither seconds nor RFC 3339")


def _amount(text: str, where: str, column: str) -> float:
    try:
        value = float(text) if column != "memory" or not (text or "")[-1:].isalpha() else float(parse_value(text))
    except (TypeError, ValueError, QuantityError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"{where}: {column}: {text!r} is no amount of at least 0")
    return value
