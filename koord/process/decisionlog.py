"""The decision log: every record of a role in files that outlive it (`--decision-log`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from koord.decisions.sinks import FileSink, LineFile
from koord.process.errors import ConfigurationError
from koord.process.life import Life, Phase

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=LineFile)

DEFAULT_SIZE = 256  # MiB
_SIZE = "koord.decision_log_size"


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """Where the records of a role go. No directory: they stay in memory."""

    directory: str = ""
    mebibytes: int = DEFAULT_SIZE

    def sinks(self, role: str, life: Life, *, share: float = 1.0) -> list[FileSink]:
        """The sink to give to the role's recorder, if any; what waits is written when the process ends. `share` is the part of the size
        that its records may take. Raises ConfigurationError."""
        made = self.file(FileSink, role, life, share=share)
        return [] if made is None else [made]

    def file(self, make: Callable[..., L], name: str, life: Life, *, share: float) -> L | None:
        """Another rotated file beside the records, None without a directory. Raises ConfigurationError."""
        if not self.directory:
            return None
        try:
            os.makedirs(self.directory, mode=0o750, exist_ok=True)
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable")
        except OSError as error:
            raise ConfigurationError(f"--decision-log {self.directory}: {error.strerror}") from error
        size = int(self.mebibytes * 2**20 * share)
        file = make(os.path.join(self.directory, f"{name}.jsonl"), max_bytes=size // 4, total_bytes=size, keep=99, compress=True)
        life.on_stop(file.finish, "decision log", phase=Phase.EVENTS)
        return file


def decision_log_options(function: F) -> F:
    """`--decision-log` and `--decision-log-size`; the function gets `decision_log: DecisionLog`."""

    def keep(ctx: click.Context, param: click.Parameter, value: int) -> int:
        ctx.meta[_SIZE] = value
        return value

    def join(ctx: click.Context, param: click.Parameter, value: str) -> DecisionLog:
        return DecisionLog(value, ctx.meta[_SIZE])

    function = click.option(
        "--decision-log-size",
        type=click.IntRange(min=4),
        default=DEFAULT_SIZE,
        show_default=True,
        metavar="MIB",
        is_eager=True,
        expose_value=False,
        callback=keep,
        help="Mebibytes that the decision log may hold; the oldest records go first.",
    )(function)
    return click.option(
        "--decision-log",
        default="",
        metavar="DIR",
        callback=join,
        help="Append every decision record to files here; `koord why pod NAME --decision-log DIR` reads them, also after a crash.",
    )(function)
