"""Log lines as klog writes them, as text or as JSON, and klog's flags."""

from __future__ import annotations

import datetime
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import orjson

F = TypeVar("F", bound=Callable[..., Any])

TRACE = 5
_LETTERS = {logging.DEBUG: "I", TRACE: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
SEVERITIES = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "fatal": logging.CRITICAL}
SEVERITIES |= {"0": logging.INFO, "1": logging.WARNING, "2": logging.ERROR, "3": logging.CRITICAL}


def level_of(verbosity: int) -> int:
    """The logging level of a klog verbosity: 0-3 what operators need, 4-5 debugging, 6 and more everything."""
    return logging.INFO if verbosity < 4 else logging.DEBUG if verbosity < 6 else TRACE


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class TextFormatter(logging.Formatter):
    """`I0102 15:04:05.678901   12345 file.py:67] message key="value"`; later lines of a message are indented."""

    def __init__(self, *, header: bool = True) -> None:
        super().__init__()
        self._header = header

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        text = record.getMessage()
        extras = "".join(f' {key}="{value}"' for key, value in _extras(record).items())
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            text = f"{text}\n{record.exc_text}"
        body = text.replace("\n", "\n    ") + extras
        if not self._header:
            return body
        now = time.localtime(record.created)
        stamp = time.strftime("%m%d %H:%M:%S", now)
        micros = int(record.created % 1 * 1e6)
        letter = _LETTERS.get(record.levelno, "I")
        return f"{letter}{stamp}.{micros:06d} {record.process or 0:7d} {record.filename}:{record.lineno}] {body}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, caller, msg, logger, the extras, and err with the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as JSON."""
        stamp = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "ts": stamp.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "caller": f"{record.filename}:{record.lineno}",
            "logger": record.name,
            "msg": record.getMessage(),
        }
        for key, value in _extras(record).items():
            line.setdefault(key, value)
        if record.exc_info:
            line["err"] = str(record.exc_info[1])
            line["stacktrace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What the logging flags say."""

    format: str = "text"
    verbosity: int = 0
    vmodule: tuple[tuple[str, int], ...] = ()
    to_stderr: bool = True
    also_to_stderr: bool = False
    stderr_threshold: int = logging.ERROR
    file: str = ""
    directory: str = ""
    file_max_mib: int = 1800
    skip_headers: bool = False


class _Verbosity(logging.Filter):
    """`--vmodule`: other verbosities for modules whose name (or the last part of it) matches a pattern."""

    def __init__(self) -> None:
        super().__init__()
        self.level = logging.INFO
        self.patterns: tuple[tuple[str, int], ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        if self.patterns:
            short = record.module
            for pattern, verbosity in self.patterns:
                if fnmatchcase(short, pattern) or fnmatchcase(record.name, pattern):
                    return record.levelno >= level_of(verbosity)
        return record.levelno >= self.level


_verbosity = _Verbosity()
_handlers: list[logging.Handler] = []


def setup(format: str = "text", verbosity: int = 0, *, options: LogOptions | None = None, role: str = "koord") -> None:
    """Direct all logging of the process. Calling it again replaces what it did before. Raises ConfigurationError."""
    from koord.process.errors import ConfigurationError

    options = options or LogOptions(format=format, verbosity=verbosity)
    formatter = JsonFormatter() if options.format == "json" else TextFormatter(header=not options.skip_headers)
    handlers: list[logging.Handler] = []
    path = options.file or (os.path.join(options.directory, f"{role}.log") if options.directory else "")
    if not options.to_stderr and path:
        try:
            handlers.append(logging.handlers.RotatingFileHandler(path, maxBytes=options.file_max_mib * 2**20, backupCount=3, delay=False))
        except OSError as error:
            raise ConfigurationError(f"log file {path}: {error.strerror}") from error
    if options.to_stderr or options.also_to_stderr or not handlers or options.stderr_threshold:
        stream = logging.StreamHandler(sys.stderr)
        if handlers and not options.also_to_stderr:
            stream.setLevel(options.stderr_threshold)
        handlers.append(stream)
    root = logging.getLogger()
    for old in _handlers:
        root.removeHandler(old)
        old.close()
    _handlers[:] = handlers
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(_verbosity)
        root.addHandler(handler)
    logging.addLevelName(TRACE, "TRACE")
    logging.raiseExceptions = False  # a closed stderr must not end a node agent
    logging.captureWarnings(True)
    set_verbosity(options.verbosity, options.vmodule)
    for chatty in ("asyncio", "aiohttp.access", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def set_verbosity(verbosity: int, vmodule: tuple[tuple[str, int], ...] | None = None) -> None:
    """Change the verbosity of a running process (also `PUT /debug/flags/v`)."""
    _verbosity.level = level_of(verbosity)
    if vmodule is not None:
        _verbosity.patterns = vmodule
    lowest = min((_verbosity.level, *(level_of(number) for _, number in _verbosity.patterns)))
    logging.getLogger().setLevel(lowest)


def parse_vmodule(text: str) -> tuple[tuple[str, int], ...]:
    """`pattern=N,...` of `--vmodule`. Raises ValueError."""
    result = []
    for part in filter(None, text.split(",")):
        pattern, equals, number = part.partition("=")
        if not equals or not pattern or not (number.isascii() and number.isdigit() and len(number) < 9):
            raise ValueError(f"{part!r} must be pattern=number, as in reflector=6")
        result.append((pattern, int(number)))
    return tuple(result)
