"""Log lines as klog writes them, as text or as JSON, and klog's flags."""

from __future__ import annotations

import datetime
import functools
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import click
import orjson

F = TypeVar("F", bound=Callable[..., Any])

TRACE = 5
_LETTERS = {logging.DEBUG: "I", TRACE: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
_SEVERITIES = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "fatal": logging.CRITICAL}
_SEVERITIES |= {"0": logging.INFO, "1": logging.WARNING, "2": logging.ERROR, "3": logging.CRITICAL}


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
        if not equals or not pattern or not number.isdigit():
            raise ValueError(f"{part!r} must be pattern=number, as in reflector=6")
        result.append((pattern, int(number)))
    return tuple(result)


def _without_effect() -> list[Callable[[Any], Any]]:
    """klog's other flags: command lines of existing manifests carry them."""
    from koord.process.flags import bool_option

    switches = {
        "one-output": "a line is written once whatever its severity",
        "add-dir-header": "lines name the file alone",
        "skip-log-headers": "log files have no header",
        "legacy-stderr-threshold-behavior": "--stderrthreshold counts when logging to a file",
    }
    options = [
        bool_option(f"--{name}", hidden=True, expose_value=False, help=f"Accepted; no effect: {why}.") for name, why in switches.items()
    ]
    trace = "Accepted; no effect: errors that need a trace have one."
    return [*options, click.option("--log-backtrace-at", default="", hidden=True, expose_value=False, help=trace)]


def logging_options(function: F) -> F:
    """klog's flags on a command; they are in force when the function runs and come as `logging: LogOptions`."""
    from koord.process.flags import bool_option

    @functools.wraps(function)
    def with_logging(**values: Any) -> Any:
        try:
            patterns = parse_vmodule(values.pop("vmodule"))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--vmodule") from error
        options = LogOptions(
            format=values.pop("log_format"),
            verbosity=values.pop("v"),
            vmodule=patterns,
            to_stderr=values.pop("logtostderr"),
            also_to_stderr=values.pop("alsologtostderr"),
            stderr_threshold=_SEVERITIES[values.pop("stderrthreshold").lower()],
            file=values.pop("log_file"),
            directory=values.pop("log_dir"),
            file_max_mib=values.pop("log_file_max_size"),
            skip_headers=values.pop("skip_headers"),
        )
        context = click.get_current_context(silent=True)
        name = (context.info_name or "koord") if context else "koord"
        setup(options=options, role=name)
        return function(logging=options, **values)

    decorated: Any = with_logging
    for option in (
        *_without_effect(),
        click.option(
            "--log-file-max-size", type=click.IntRange(0), default=1800, show_default=True, help="MiB after which it is rotated; 0: never."
        ),
        click.option("--log-dir", default="", metavar="DIR", help="Directory of the log file, with --logtostderr=false."),
        click.option("--log-file", default="", metavar="FILE", help="Log file, with --logtostderr=false."),
        click.option(
            "--stderrthreshold",
            type=click.Choice(sorted(_SEVERITIES), case_sensitive=False),
            default="error",
            show_default=True,
            help="With a log file: what goes to stderr as well.",
        ),
        bool_option("--skip-headers", help="Lines without time and place."),
        bool_option("--alsologtostderr", help="With a log file: everything goes to stderr as well."),
        bool_option("--logtostderr", default=True, help="Log to stderr rather than to a file."),
        click.option("--vmodule", default="", metavar="PATTERN=N,...", help="Verbosity of single modules."),
        click.option("-v", "--v", type=click.IntRange(0), default=0, show_default=True, help="Verbosity: 4 debugging, 6 everything."),
        click.option(
            "--log-format",
            "--logging-format",
            "log_format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="How log lines look.",
        ),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result
