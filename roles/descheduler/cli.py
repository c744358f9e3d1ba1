"""`koord descheduler`: the command line (DS-CFG-02). Flags only; the wiring is in :mod:`roles.descheduler.app`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koord.process.flags import FlagError, bool_option, common_options, duration_option, go_command

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig
    from koord.process.life import Life
    from roles.descheduler.app import Options

_LEASE_FLAGS = {
    "leader_elect": "leader_elect",
    "leader_elect_lease_duration": "lease_duration",
    "leader_elect_renew_deadline": "renew_deadline",
    "leader_elect_retry_period": "retry_period",
    "leader_elect_resource_lock": "resource_lock",
    "leader_elect_resource_name": "resource_name",
    "leader_elect_resource_namespace": "resource_namespace",
}


@go_command("descheduler")
@click.option("--config", metavar="FILE", required=True, help="DeschedulerConfiguration descheduler/v1alpha2.")
@click.option("--write-config-to", metavar="FILE", help="Write the completed configuration and exit.")
@bool_option("--validate-config", help="Check the configuration and exit.")
@click.option(
    "--secure-port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: plain HTTP only, at healthzBindAddress."
)
@bool_option("--leader-elect", default=True, help="Only the holder of the Lease runs rounds.")
@duration_option("--leader-elect-lease-duration", default="15s", help="How long a lease lives.")
@duration_option("--leader-elect-renew-deadline", default="10s", help="How long the holder tries to renew it.")
@duration_option("--leader-elect-retry-period", default="2s", help="Pause between tries.")
@click.option("--leader-elect-resource-lock", default="leases", show_default=True, help="Kind of lock.")
@click.option("--leader-elect-resource-name", default="koord-descheduler", show_default=True, help="Name of the Lease.")
@click.option("--leader-elect-resource-namespace", default="koordinator-system", show_default=True, help="Namespace of the Lease.")
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    config: str,
    write_config_to: str | None,
    validate_config: bool,
    secure_port: int,
    kubeconfig: str | None,
    context: str | None,
    master: str | None,
    logging: Any,
    **flags: Any,
) -> None:
    """List, round by round, which pods should leave overloaded nodes, why, and where they would fit."""
    from koord.process import life

    if secure_port:
        raise FlagError("--secure-port: HTTPS is not served; accepted: 0", ctx)
    given = {name: value for name, value in flags.items() if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}

    if validate_config or write_config_to:
        sys.exit(_check(config, given, write_config_to))

    async def main(running: Life) -> None:
        from koord.kube.config import load

        options = read(config, given)
        file = options.config.client_connection.kubeconfig or kubeconfig
        await _run(running, options, load(file, context=context, master=master))

    sys.exit(life.run(main, name="koord descheduler"))


def _check(path: str, flags: dict[str, Any], write_to: str | None) -> int:
    """Check a configuration, and write it completed if asked to. The exit status."""
    from koord.config.errors import ConfigError

    try:
        options = read(path, flags)
    except ConfigError as error:
        click.echo(f"koord descheduler: error: {error}", err=True)
        return 1
    if write_to:
        Path(write_to).write_text(completed(options), encoding="utf-8")
    else:
        click.echo(f"{path}: valid")
    return 0


def read(path: str, flags: dict[str, Any]) -> Options:
    """The options that a file and explicitly set leader-election flags make. Raises InvalidConfig."""
    from koord.config.errors import ConfigError, InvalidConfig
    from roles.descheduler.app import Options
    from roles.descheduler.config import LeaderElection, parse

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(path, [ConfigError("", f"cannot be read: {error}")]) from None
    config, profiles = parse(text, path)
    if flags:
        election = config.leader_election.model_dump() | {_LEASE_FLAGS[name]: value for name, value in flags.items()}
        config.leader_election = LeaderElection(**election)
    return Options(config, profiles, path)


def completed(options: Options) -> str:
    """The configuration with every default, as YAML."""
    import yaml

    from koord.config.model import wire

    return yaml.safe_dump(wire(options.config), sort_keys=False)


async def _run(life: Life, options: Options, config: ClientConfig) -> None:
    """Build what a process of its own needs, then live."""
    from koord.decisions.recorder import Recorder
    from koord.decisions.sinks import LogSink
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory
    from koord.process.flags import parse_host_port
    from koord.process.http import OpsServer
    from roles.descheduler.app import App

    recorder = Recorder("descheduler", [LogSink()])
    settings = options.config
    servers = [OpsServer.at(parse_host_port(settings.healthz_bind_address), recorder=recorder, role="descheduler")]
    if settings.metrics_bind_address != settings.healthz_bind_address:
        first = servers[0]
        address = parse_host_port(settings.metrics_bind_address)
        servers.append(OpsServer.at(address, health=first.health, registry=first.registry, recorder=recorder, role="descheduler"))
    connection = settings.client_connection
    async with Client(config, qps=connection.qps or 50.0, burst=connection.burst or 100) as client:
        informers = InformerFactory(client)
        app = App(options, client=client, informers=informers, recorder=recorder, ops=servers[0], clock=time.time)
        for server in servers:
            await server.start()
            life.on_stop(server.stop, "HTTP server")
        try:
            await app.run(life)
        finally:
            await informers.stop()
