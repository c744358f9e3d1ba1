"""`koord lint`: configurations and objects checked without a cluster, each mistake with its line (BEY-LINT-01)."""

from __future__ import annotations

import click

from koord.process import commands
from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import GoCommand


@click.command("lint", cls=GoCommand)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--plugin-path", "plugin_paths", multiple=True, metavar="PATH", help="The scheduler's --plugin-path: plugins that configurations name."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
def command(files: tuple[str, ...], plugin_paths: tuple[str, ...], output: str) -> None:
    """Check component configs, slo-controller-config, custom resources, and pods with koord's labels and annotations.

    FILE is YAML or JSON with one or many documents, a folder, or `-` for standard input. What the files hold is taken together: quotas are
    checked against their parents, pods against the profiles that match them. Ends with status 1 when there is an error.
    """
    import orjson

    from roles.tools.lint.run import lint
    from roles.tools.lint.sources import read

    if not files:
        raise UsageError("name files or folders, or - for standard input")
    plugins = None
    if plugin_paths:
        from roles.scheduler.engine import registry
        from roles.scheduler.framework.registry import PluginError

        try:
            plugins = registry(plugin_paths)
        except PluginError as error:
            raise ConfigurationError(f"--plugin-path: {error}") from error
    sources, skipped = read(files)
    report = commands.run(lint(sources, skipped, plugins))
    if output == "json":
        click.echo(orjson.dumps(report.wire(), option=orjson.OPT_INDENT_2))
    else:
        for line in report.lines():
            click.echo(line)
    raise SystemExit(1 if report.failed else 0)
