"""`koord apiserver`: the embedded API server alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from koord.apiserver.config import AUTHORIZATION_MODES
from koord.process.flags import FlagError, duration_option

_HELP = """Serve the embedded Kubernetes API server alone, for development, tests and demonstrations.

It keeps everything in memory and nothing beyond its end. With --data-dir every write that was answered survives, kill -9 included.
By default it listens on 127.0.0.1 with TLS and a random bearer token: take both from the kubeconfig that --print-kubeconfig writes.
"""


@click.command(name="apiserver", help=_HELP)
@click.option("--port", type=click.IntRange(0, 65535), default=6443, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--bind-address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Keep the state, certificates, tokens and keys here.")
@click.option("--print-kubeconfig", type=click.Path(path_type=Path), help="Write a kubeconfig to this file; - is stdout.")
@click.option(
    "--crds", type=click.Path(path_type=Path, exists=True), help="Install the CustomResourceDefinitions of this file or directory."
)
@click.option("--tls/--no-tls", default=True, show_default=True, help="Serve HTTPS with a certificate of its own making.")
@click.option("--tls-cert-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Serve with this certificate.")
@click.option("--tls-private-key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Its key.")
@click.option("--token", default=None, help="Bearer token of the administrator; random by default. With --no-tls kubectl sends no token.")
@click.option("--anonymous", is_flag=True, help="Let everybody in without a token. Refused on addresses other than the loopback.")
@click.option(
    "--authorization-mode",
    type=click.Choice(AUTHORIZATION_MODES),
    default="AlwaysAllow",
    show_default=True,
    help="RBAC: what Roles and bindings say; users are service accounts, by tokens from their token sub-resource.",
)
@click.option("--enable-admission-plugins", default="", help="Plugins to turn on, with commas; TaintNodesByCondition is off by default.")
@click.option("--disable-admission-plugins", default="", help="Plugins to turn off, with commas.")
@click.option(
    "--enable-controllers", default="", help="Built-in controllers to turn on, with commas; disruption (budget status) is off by default."
)
@click.option(
    "--disable-controllers",
    default="",
    help="Built-in controllers to turn off, with commas: namespace, garbagecollector, event-ttl, resourcequota, clusterrole-aggregation.",
)
@duration_option("--event-ttl", default="1h", help="How long events live.")
@click.option(
    "--unresolvable-webhooks",
    type=click.Choice(["ignore", "fail"]),
    default="ignore",
    show_default=True,
    help="Webhooks that name a Service nobody maps (--webhook-service): skip them, or obey their failurePolicy.",
)
@click.option("--webhook-service", multiple=True, metavar="NAMESPACE/NAME=HOST:PORT", help="Where a Service named by webhooks really is.")
def command(**flags: Any) -> None:
    from koord.apiserver.main import read, serve

    try:
        start = read(flags)
    except (ValueError, OSError) as err:
        raise FlagError(str(err), click.get_current_context()) from None
    sys.exit(serve(start))
