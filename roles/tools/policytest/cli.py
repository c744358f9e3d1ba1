"""`koord test`: policies as cases in files, run by koord's own code without a cluster (BEY-POL-01)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import orjson

from koord import seams
from koord.process.errors import ConfigurationError
from koord.process.flags import FlagError, GoCommand, bool_option
from roles.tools.folders import meant
from roles.tools.policytest import cases, report
from roles.tools.policytest.running import Result, Runner

FAILED = 1
_LOOK = 0.5  # seconds between two looks at the files that are watched


@click.command("test", cls=GoCommand)
@click.argument("files", nargs=-1)
@bool_option("--schema", default=False, help="Print the JSON schema of such files, for editors, and end.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write the results to this file as JUnit XML, too.")
@bool_option("--watch", default=False, help="Run again whenever one of the files changes.")
def command(files: tuple[str, ...], schema: bool, junit: Path | None, watch: bool) -> None:
    """Run cases: given a cluster, when this happens, then that must come of it.

    FILES are YAML; of folders the files that end with _test.yaml. Ends with 1 if an expectation was not met.
    """
    if schema:
        click.echo(orjson.dumps(cases.schema(), option=orjson.OPT_INDENT_2).decode())
        return
    if not files:
        raise FlagError("give files or folders with cases", click.get_current_context())
    if not watch:
        results = _run(files)
        if junit is not None:
            _write(junit, report.junit(results))
        sys.exit(FAILED if any(result.failures for result in results) else 0)
    if junit is not None:
        raise FlagError("--watch and --junit exclude each other", click.get_current_context())
    seen: object = None
    while True:
        now = _state(files)
        if now != seen:
            seen = now
            click.clear()
            try:
                _run(files)
            except ConfigurationError as error:
                click.echo(str(error))
        asyncio.run(seams.sleep(_LOOK))


def _run(files: tuple[str, ...]) -> list[Result]:
    runner, results = Runner(), []
    for path in cases.find(files):
        for result in runner.run(cases.load(path)):
            results.append(result)
            for line in report.lines(result):
                click.echo(line)
    click.echo(report.summary(results))
    return results


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


def _state(files: tuple[str, ...]) -> object:
    """What changes when one of the files, or one beside it, does."""
    folders = {path if path.is_dir() else path.parent for path in map(Path, files)}
    found = (each for folder in folders for each in folder.rglob("*") if each.suffix in (".yaml", ".yml", ".json"))
    return sorted((str(each), _changed(each)) for each in found if meant(each))


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # gone meanwhile, or a link that leads nowhere
        return 0
