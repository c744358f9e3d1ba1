"""`koord ui`: the page of a cluster, on this machine (BEY-TOP-01)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koord.process import commands
from koord.process.errors import ConfigurationError
from koord.process.flags import GoCommand
from roles.tools.place import cluster_options, system_option

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig
    from roles.tools.cost.prices import Prices
    from roles.tools.reach import Endpoint


@click.command("ui", cls=GoCommand)
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port on 127.0.0.1; 0 takes a free one.")
@click.option("--open/--no-open", "browser", default=False, help="Open the page in a browser.")
@cluster_options
@click.option(
    "--endpoint", "endpoints", multiple=True, metavar="URL", help="A role's HTTP port; repeatable. Default: found in the cluster."
)
@system_option()
@click.option("--prices", metavar="FILE", help="Show what the cluster costs in an hour, too (docs/cost.md).")
@click.option(
    "--decision-log",
    "log",
    type=click.Path(path_type=Path),
    help="The roles' logs: the page can make their decisions again (docs/replay.md).",
)
@click.option("--policies", type=click.Path(path_type=Path), help="Cases that the page can run (docs/policy-tests.md).")
def command(
    port: int,
    browser: bool,
    kubeconfig: str | None,
    context: str | None,
    endpoints: tuple[str, ...],
    koord_namespace: str,
    prices: str | None,
    log: Path | None,
    policies: Path | None,
) -> None:
    """Serve a page for a browser: nodes by tier and pressure, pending pods, decisions with their why, quotas, an hour's history.

    The page reads with your own rights and changes nothing. It is served on 127.0.0.1 only, to whoever opens the address that is printed.
    """
    import os

    from roles.tools import gather

    server = gather.find_server(kubeconfig, context, os.environ)
    found = gather.find_endpoints(endpoints, os.environ, server)
    from roles.tools.cost.prices import load as load_prices

    given = load_prices(prices) if prices else None
    try:
        commands.run(_serve(server, found, port, (given, log, policies), system=koord_namespace, browser=browser))
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(
    server: ClientConfig,
    endpoints: list[Endpoint],
    port: int,
    studied: tuple[Prices | None, Path | None, Path | None],
    *,
    system: str,
    browser: bool,
) -> None:
    from koord.api.kinds import NODES
    from koord.kube.client import PATIENCE, Client
    from koord.kube.errors import Unauthorized, Unreachable, from_response
    from roles.tools.ui.server import UiServer
    from roles.tools.ui.studies import Studies
    from roles.tools.ui.watching import Watching

    async with Client(server, role="ui", patience=PATIENCE) as client:
        try:
            status, body = await client.raw("GET", f"{NODES.path()}?limit=1")
            if status == 401:  # nothing of the page could be read; what is forbidden, the page lists
                raise from_response(status, body)
        except (Unreachable, Unauthorized) as error:
            raise ConfigurationError(f"cannot query the API server: {error}") from None
        watching = Watching(client, endpoints, system)
        page = UiServer(watching, port, studies=Studies(watching, *studied))
        await page.start()
        click.echo(f"koord ui of {client.config.server}: {page.url}  (Ctrl-C ends it)")
        if browser:
            click.launch(page.url)
        try:
            await watching.run()
        finally:
            await page.stop()
