"""`koord top`: who uses what on which node, now (BEY-TOP-01)."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from koord.process import commands
from koord.process.errors import ConfigurationError
from koord.process.flags import GoCommand, duration_option
from roles.tools.place import cluster_options

if TYPE_CHECKING:
    from koord.kube.client import Client
    from roles.tools.top.rows import Row


@click.command("top", cls=GoCommand)
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option("-l", "--selector", default="", help="Label selector of the nodes.")
@click.option(
    "--sort", type=click.Choice(["name", "cpu", "memory", "batch"]), default="cpu", show_default=True, help="Highest share first."
)
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Nodes to show, 0: all; the sum is of all.")
@click.option("--watch", is_flag=True, help="Look again and again.")
@duration_option("--interval", default="10s", positive=True, help="Pause between looks.")
@cluster_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "wide", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Output format; wide: all columns, however narrow the terminal.",
)
def command(
    nodes: tuple[str, ...],
    selector: str,
    sort: str,
    limit: int,
    watch: bool,
    interval: float,
    kubeconfig: str | None,
    context: str | None,
    output: str,
) -> None:
    """Show every node's use by tier, what it offers to batch pods and what is asked of that, and which nodes are hot, squeezed or silent.

    Usage is what the nodes reported last. `BE LIMIT` is the CPU that koordlet leaves to best-effort pods.
    """
    import os

    from roles.tools.gather import find_server

    config = find_server(kubeconfig, context, os.environ)
    look = Look(frozenset(nodes), selector, sort, limit)
    try:
        commands.run(_run(config, look, output, interval if watch else None))
    except KeyboardInterrupt:
        sys.exit(130)


@dataclass(frozen=True, slots=True)
class Look:
    """What to look at, and how much of it to show."""

    nodes: frozenset[str]
    selector: str
    sort: str
    limit: int

    async def rows(self, client: Client, now: float) -> tuple[list[Row], int]:
        """(the sum and the nodes to show, how many are not shown). Raises ConfigurationError for a node that does not exist."""
        from roles.tools.top.gather import gather
        from roles.tools.top.rows import ordered, total

        found = await gather(client, self.nodes, self.selector, now)
        missing = sorted(self.nodes - {one.name for one in found})
        if missing:
            raise ConfigurationError(f"no such node: {', '.join(missing)}")
        shown = ordered(found, self.sort)
        cut = shown[: self.limit] if self.limit else shown
        return [total(found), *cut], len(shown) - len(cut)


async def _run(config: Any, look: Look, output: str, interval: float | None) -> None:
    from koord.kube.client import PATIENCE, Client
    from koord.kube.errors import ApiError

    async with Client(config, role="top", patience=PATIENCE) as client:
        if interval is not None and output not in ("json", "yaml") and _draws():
            await _live(client, look, interval, wide=output == "wide")
            return
        while True:
            try:
                rows, hidden = await look.rows(client, time.time())
                _print(rows, hidden, output)
            except ApiError as error:
                if interval is None:
                    raise ConfigurationError(f"cannot query the API server: {error}") from None
                click.echo(f"cannot query the API server: {error}", err=True)
            if interval is None:
                return
            await asyncio.sleep(interval)
            if output not in ("json", "yaml"):
                click.echo()


def _draws() -> bool:
    """Whether there is a screen that can be drawn over; not on TERM=dumb."""
    if not sys.stdout.isatty():
        return False
    from rich.console import Console

    return not Console().is_dumb_terminal


def _print(rows: list[Row], hidden: int, output: str) -> None:
    import orjson

    from roles.tools.top import table

    if output in ("json", "yaml"):
        document = {"total": table.wire(rows[:1])[0], "nodes": table.wire(rows[1:])}
        if output == "json":
            click.echo(orjson.dumps(document))
            return
        import yaml

        click.echo("---\n" + yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
        return
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        drawn = table.rich(rows, _note(hidden), None if output == "wide" else console.width)
        console.print(drawn, soft_wrap=True)
        return
    for line in table.plain(rows):
        click.echo(line)
    if hidden:
        click.echo(_note(hidden))


def _note(hidden: int) -> str:
    return f"{hidden} more nodes: --limit=0 shows all" if hidden else ""


async def _live(client: Client, look: Look, interval: float, *, wide: bool) -> None:
    """A table that is drawn over itself. A look that fails leaves the last one standing, with the reason below."""
    from rich.live import Live

    from koord.kube.errors import ApiError
    from roles.tools.top import table

    rows: list[Row] = []
    failed, hidden = "", 0
    with Live(auto_refresh=False, screen=True) as live:
        while True:
            try:
                rows, hidden = await look.rows(client, time.time())
                failed = ""
            except ApiError as error:
                failed = f"cannot be queried: {error}"
            size = live.console.size
            shown = rows[: table.room(rows, size.height - 1, size.width if wide else None)]
            # The note stands last, and must not be what is cut off.
            note = failed or (f"{hidden + len(rows) - len(shown)} more nodes" if len(shown) < len(rows) else _note(hidden))
            live.update(table.rich(shown, f"{time.strftime('%H:%M:%S')}  {note}", None if wide else size.width), refresh=True)
            await asyncio.sleep(interval)
