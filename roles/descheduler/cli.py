"""`koord descheduler`: the command line (DS-CFG-02). Flags only; the wiring is in :mod:`roles.descheduler.app`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koord.process.flags import FlagError, bool_option, common_options, duration_option, gates_option, go_command

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from koord.kube.config import ClientConfig
    from koord.process.http import OpsServer
    from koord.process.life import Life
    from roles.descheduler.build import Options

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
@click.option("--config", metavar="FILE", help="DeschedulerConfiguration descheduler/v1alpha2; without it the defaults hold.")
@click.option("--write-config-to", metavar="FILE", help="Write the completed configuration and exit.")
@bool_option("--validate-config", help="Check the configuration and exit.")
@click.option("--address", default="0.0.0.0", show_default=True, help="IP address of health and metrics; without --config only.")
@click.option("--port", type=click.IntRange(0, 65535), default=10251, show_default=True, help="Their port, 0: none; without --config only.")
@click.option(
    "--secure-port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: plain HTTP only, at healthzBindAddress."
)
@gates_option()
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
    config: str | None,
    write_config_to: str | None,
    validate_config: bool,
    secure_port: int,
    kubeconfig: str | None,
    context: str | None,
    master: str | None,
    logging: Any,
    **flags: Any,
) -> None:
    """Move pods where they are better off: away from overloaded nodes, by safe migration, saying why each one leaves."""
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


def _check(path: str | None, flags: dict[str, Any], write_to: str | None) -> int:
    """Check a configuration, and write it completed if asked to. The exit status."""
    from koord.config.errors import ConfigError

    try:
        options = read(path, flags)
        if write_to:
            Path(write_to).write_text(completed(options), encoding="utf-8")
    except (ConfigError, OSError) as error:
        click.echo(f"koord descheduler: error: {error}", err=True)
        return 1
    if not write_to:
        click.echo(f"{options.source}: valid")
    return 0


def read(path: str | None, flags: dict[str, Any]) -> Options:
    """The options that a file (None: the defaults) and explicitly set flags make. Raises InvalidConfig, ConfigError.

    The file wins, but for the leader-election flags; --address and --port count only without a file (DS-CFG-02)."""
    from koord.config.gates import DESCHEDULER, FeatureGates
    from roles.descheduler.build import Options
    from roles.descheduler.config import LeaderElection, parse_configuration

    source = path or "the default configuration"
    config = parse_configuration(_text(path), source)
    if path is None and flags.keys() & {"address", "port"}:
        port = flags.get("port", 10251)
        address = f"{flags.get('address', '0.0.0.0')}:{port}" if port else ""
        config.healthz_bind_address = config.metrics_bind_address = address
    election = {_LEASE_FLAGS[name]: value for name, value in flags.items() if name in _LEASE_FLAGS}
    if election:
        config.leader_election = LeaderElection(**(config.leader_election.model_dump() | election))
    gates = FeatureGates(DESCHEDULER)
    gates.set_from_flag(flags.get("feature_gates") or "")
    return Options(config, source, gates.all())


def _text(path: str | None) -> str:
    from koord.config.errors import ConfigError, InvalidConfig

    if path is None:
        return "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(path, [ConfigError("", f"cannot be read: {error}")]) from None


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
    from koord.process import metrics
    from roles.descheduler.app import App

    recorder = Recorder("descheduler", [LogSink()])
    servers = _servers(options, recorder)
    metrics.watch_recorder(servers[0].registry, recorder)
    connection = options.config.client_connection
    async with Client(config, qps=connection.qps or 50.0, burst=connection.burst or 100, role="descheduler") as client:
        informers = InformerFactory(client)
        app = App(options, client=client, informers=informers, recorder=recorder, ops=servers[0], clock=time.time)
        for server in servers:
            if server is not servers[0]:
                app.install(server)
            if options.config.healthz_bind_address:
                await server.start()
                life.on_stop(server.stop, "HTTP server")
        try:
            await app.run(life)
        finally:
            await informers.stop()


def _servers(options: Options, recorder: Recorder) -> list[OpsServer]:
    """One HTTP port for health and metrics, or one for each when their addresses differ."""
    from koord.process.flags import parse_host_port
    from koord.process.http import OpsServer

    health, metrics = options.config.healthz_bind_address, options.config.metrics_bind_address
    if not health:
        return [OpsServer(recorder=recorder, role="descheduler")]
    first = OpsServer.at(parse_host_port(health), recorder=recorder, role="descheduler")
    if metrics == health:
        return [first]
    second = OpsServer.at(parse_host_port(metrics), health=first.health, registry=first.registry, recorder=recorder, role="descheduler")
    return [first, second]
