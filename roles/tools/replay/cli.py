"""`koord replay`: the decisions of a log made again, by the configuration of then or another (BEY-REPLAY-01)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import orjson

from koord.process.errors import ConfigurationError
from koord.process.flags import GoCommand, bool_option
from roles.tools.replay import deschedulers, managers, render
from roles.tools.replay.asked import Asked
from roles.tools.replay.files import ROLES, files_of, roles_of
from roles.tools.replay.found import Found
from roles.tools.replay.running import Run
from roles.tools.replay.versions import other_version

DIFFERS = 2

_EXAMPLES = """
\b
Examples:
  koord replay /var/log/koord                     are all decisions the same again?
  koord replay /var/log/koord --with new.yaml     which would be others with this configuration, and by which plugin
  koord replay /var/log/koord --with new.yaml --diff    each of them
  koord replay /var/log/koord --with slo.yaml     what nodes would have offered with this slo-controller-config
  koord replay /var/log/koord --with ./koord-1.2.0      with another version of koord
"""


@click.command("replay", cls=GoCommand, epilog=_EXAMPLES)
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--with",
    "other",
    default="",
    metavar="FILE|VERSION",
    help="KubeSchedulerConfiguration, DeschedulerConfiguration or the ConfigMap slo-controller-config, or a koord of another version: "
    "its executable, or VERSION where koord-VERSION is on the PATH.",
)
@click.option("--role", type=click.Choice(ROLES), default=None, help="Whose decisions; default: of everybody who left a log there.")
@bool_option("--diff", default=False, help="Show every decision that is another one.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "decisions"]),
    default="table",
    show_default=True,
    help="Output format; decisions: one line of JSON for each.",
)
def command(log: Path, other: str, role: str | None, diff: bool, output: str) -> None:
    """Make the decisions of a decision log again, each on the state that it was made on.

    LOG is the directory of --decision-log of the scheduler, the manager or the descheduler, or one of its replay.jsonl files. Ends with 0
    if all decisions are as they were, and with 2 if not.
    """
    asked = Asked.of(other)
    roles = [role] if role is not None else roles_of(log)
    if asked.role and role is None:
        roles = [asked.role]
    if asked.role and asked.role not in roles:
        raise ConfigurationError(f"--with {other} is a configuration of the {asked.role}, not of the {role}")
    with _quiet("roles"), _quiet("koord.manager"):
        found = [_run(each, files_of(log, each), asked, output) for each in roles]
    if output == "json":
        told = [render.as_json(each) for each in found]
        click.echo(orjson.dumps(told[0] if len(told) == 1 else {"roles": told}, option=orjson.OPT_INDENT_2).decode())
    elif output == "table":
        click.echo(render.tables(found, every=diff))
    sys.exit(0 if all(each.same == each.decisions for each in found) else DIFFERS)


def _run(role: str, files: list[Path], asked: Asked, output: str) -> Found:
    if asked.program is not None:
        return other_version(asked.program, files, role)
    each = (lambda line: click.echo(orjson.dumps(line))) if output == "decisions" else None
    if role == "manager":
        return managers.run(files, asked.slo, each)
    if role == "descheduler":
        return deschedulers.run(files, asked.descheduler, each)
    return (Run(asked.scheduler, lambda turn: each(render.line(turn))) if each is not None else Run(asked.scheduler)).run(files)


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
