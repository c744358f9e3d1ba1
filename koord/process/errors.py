"""Errors that end a process in an orderly way."""

from __future__ import annotations

import traceback

from koord.config.errors import ConfigError


class ConfigurationError(Exception):
    """The process cannot run as it was told to: a flag, a file, an address, an environment variable.

    The text is one line: what, where, and what is accepted. Ends the process with status 1 and that line.
    """


class UsageError(ConfigurationError):
    """The command line says something that cannot be meant. Ends the process with status 2 before anything is connected to."""


class FatalError(Exception):
    """The process must end with status 1 although it was configured well: a lost lease, a supervised task that crashed."""


def is_usage(error: BaseException) -> bool:
    """Whether the command line itself is wrong, and not a file or a cluster that it names."""
    return isinstance(error, UsageError) or (isinstance(error, ConfigError) and error.path.startswith("--"))


def told(error: BaseException, file: str = "") -> str:
    """An exception of somebody else's code in one line: file, line, type and text. `file` is preferred to what it has called."""
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename:
        where, line, text = error.filename, error.lineno or 0, error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        last = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1] if frames else None)
        where, line = (last.filename, last.lineno or 0) if last is not None else (file, 0)
    place = f"{where}:{line}: " if where and line else ""
    return f"{place}{type(error).__name__}: {' '.join(text.split())}"
