"""`koord replay`: the decisions of a log made again, by the configuration of then or another (BEY-REPLAY-01)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import orjson

from koord.config.errors import ConfigError
from koord.config.scheduler import load
from koord.process.errors import ConfigurationError
from koord.process.flags import GoCommand, bool_option
from roles.tools.replay import render
from roles.tools.replay.running import Found, Run, files_of
from roles.tools.replay.versions import executable_of, other_version

DIFFERS = 2

_EXAMPLES = """
\b
Examples:
  koord replay /var/log/koord                     are all decisions the same again?
  koord replay /var/log/koord --with new.yaml     which would be others with this configuration, and by which plugin
  koord replay /var/log/koord --with new.yaml --diff    each of them
  koord replay /var/log/koord --with ./koord-1.2.0      with another version of koord
"""


@click.command("replay", cls=GoCommand, epilog=_EXAMPLES)
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--with",
    "other",
    default="",
    metavar="FILE|VERSION",
    help="KubeSchedulerConfiguration, or a koord of another version: its executable, or VERSION where koord-VERSION is on the PATH.",
)
@bool_option("--diff", default=False, help="Show every decision that is another one.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "decisions"]),
    default="table",
    show_default=True,
    help="Output format; decisions: one line of JSON for each.",
)
def command(log: Path, other: str, diff: bool, output: str) -> None:
    """Make the scheduler's decisions of a decision log again, each on the picture that it was made on.

    LOG is the directory of `koord scheduler --decision-log`, or one of its scheduler.replay.jsonl files. Ends with 0 if all decisions are
    as they were, and with 2 if not.
    """
    with _quiet("roles.scheduler"):
        found = _run(files_of(log), other, output)
    if output == "json":
        click.echo(orjson.dumps(render.as_json(found), option=orjson.OPT_INDENT_2).decode())
    elif output == "table":
        click.echo(render.table(found, every=diff))
    sys.exit(0 if found.same == found.decisions else DIFFERS)


def _run(files: list[Path], other: str, output: str) -> Found:
    program = executable_of(other) if other else None
    if program is not None:
        return other_version(program, files)
    try:
        config = load(other) if other else None
    except ConfigError as error:
        raise ConfigurationError(str(error)) from error
    each = (lambda turn: click.echo(orjson.dumps(render.line(turn)))) if output == "decisions" else None
    return (Run(config, each) if each is not None else Run(config)).run(files)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """What is decided again is not logged again."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
