"""`koord descheduler`: the command line (DS-CFG-02). Flags only; the wiring is in :mod:`roles.descheduler.app`."""

from __future__ import annotations

import sys
from collections.abc import Container
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koord.process.componentflags import LEASE, https_options, leader_election_options
from koord.process.decisionlog import DecisionLog, decision_log_options
from koord.process.flags import IPAddress, always_allow_option, bool_option, common_options, gates_option, go_command
from koord.process.inert import COMPONENT_BASE, inert_given, inert_options

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from koord.kube.config import ClientConfig
    from koord.process.http import OpsServer
    from koord.process.life import Life
    from koord.process.serving import Gate, Serving
    from roles.descheduler.build import Options
    from roles.descheduler.placement import SchedulerFlags

_SECTIONS = {
    "config": "Configuration",
    "address": "Ports",
    "feature-gates": "Configuration",
    "leader-elect": "Leader election",
    "scheduler-config": "The scheduler that is asked what would happen",
}


@go_command("descheduler", sections=_SECTIONS)
@click.option("--config", metavar="FILE", help="DeschedulerConfiguration descheduler/v1alpha2; without it the defaults hold.")
@click.option("--write-config-to", metavar="FILE", help="Write the completed configuration and exit.")
@bool_option("--validate-config", help="Check the configuration and exit.")
@click.option(
    "--address", type=IPAddress, default="0.0.0.0", show_default=True, help="IP address of health and metrics; without --config only."
)
@click.option("--port", type=click.IntRange(0, 65535), default=10251, show_default=True, help="Their port, 0: none; without --config only.")
@https_options(10258)
@always_allow_option
@gates_option()
@bool_option("--dry-run", help="Decide, record and count, and evict nothing, whatever the configuration says.")
@leader_election_options("koord-descheduler", "koordinator-system", "Only the holder of the Lease runs rounds.")
@click.option("--scheduler-config", metavar="FILE", default="", help="The scheduler's --config: dry runs ask it where pods would go.")
@click.option("--scheduler-feature-gates", metavar="A=true,…", default="", help="The scheduler's --feature-gates.")
@click.option("--scheduler-plugin-path", metavar="PATH", multiple=True, help="The scheduler's --plugin-path; may be repeated.")
@inert_options(COMPONENT_BASE)
@decision_log_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    config: str | None,
    write_config_to: str | None,
    validate_config: bool,
    kubeconfig: str | None,
    context: str | None,
    master: str | None,
    logging: Any,
    **flags: Any,
) -> None:
    """Move pods where they are better off: away from overloaded nodes, by safe migration, saying why each one leaves."""
    from koord.process import life

    given = {name: value for name, value in flags.items() if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}

    if validate_config or write_config_to:
        sys.exit(_check(config, given, write_config_to))

    async def main(running: Life) -> None:
        from koord.kube.config import load

        _warn(given)
        options = read(config, given)
        file = options.config.client_connection.kubeconfig or kubeconfig
        await _run(running, options, load(file, context=context, master=master), _serving(flags), flags["decision_log"])

    sys.exit(life.run(main, name="koord descheduler"))


def _warn(given: dict[str, Any]) -> None:
    """Say which given flags change nothing, and why."""
    import logging

    for line in inert_given(COMPONENT_BASE, given):
        logging.getLogger(__name__).warning("%s", line)


def _check(path: str | None, flags: dict[str, Any], write_to: str | None) -> int:
    """Check a configuration, and write it completed if asked to. The exit status."""
    from koord.config.errors import ConfigError
    from koord.config.model import write_private

    try:
        options = read(path, flags)
        if write_to:
            write_private(write_to, completed(options))
    except (ConfigError, OSError) as error:
        click.echo(f"koord descheduler: error: {error}", err=True)
        return 1
    if not write_to:
        click.echo(f"{options.source}: valid")
    return 0


def read(path: str | None, flags: dict[str, Any]) -> Options:
    """The options that a file (None: the defaults) and explicitly set flags make. Raises InvalidConfig, ConfigError.

    The file wins, but for --dry-run and the leader-election flags; --address and --port count only without a file (DS-CFG-02)."""
    from koord.config.errors import InvalidConfig
    from koord.config.gates import DESCHEDULER, FeatureGates
    from koord.config.loader import located, overlaid
    from roles.descheduler.build import Options
    from roles.descheduler.config import parse_configuration

    source = path or "the default configuration"
    text = _text(path)
    try:
        config = parse_configuration(text, source)
    except InvalidConfig as error:
        raise located(error, text) from None
    if path is None and flags.keys() & {"address", "port"}:
        port = flags.get("port", 10251)
        address = f"{flags.get('address', '0.0.0.0')}:{port}" if port else ""
        config.healthz_bind_address = config.metrics_bind_address = address
    if flags.get("dry_run"):
        config.dry_run = True
    config.leader_election = overlaid(config.leader_election, flags, LEASE)
    gates = FeatureGates(DESCHEDULER)
    gates.set_from_flag(flags.get("feature_gates") or "")
    try:
        return Options(config, source, gates.all(), _scheduler(flags))
    except InvalidConfig as error:
        raise located(error, text) from None


def _scheduler(flags: dict[str, Any]) -> SchedulerFlags | None:
    """How the cluster's scheduler is started. Raises UsageError for what it could not be started with."""
    from koord.process.errors import UsageError
    from roles.descheduler.placement import SchedulerFlags

    path = flags.get("scheduler_config")
    if not path:
        for name in ("scheduler_feature_gates", "scheduler_plugin_path"):
            if flags.get(name):
                raise UsageError(f"--{name.replace('_', '-')} is given without --scheduler-config")
        return None
    return SchedulerFlags(path, flags.get("scheduler_feature_gates") or "", tuple(flags.get("scheduler_plugin_path") or ()))


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

    return yaml.safe_dump(wire(options.config, secrets=True), sort_keys=False)


class _Logged(Container[str]):
    """Verdicts that get a log line: all but those that every node has in every round, which /debug/decisions tells."""

    def __contains__(self, verdict: object) -> bool:
        return verdict not in ("Classified", "Skipped")


def _serving(flags: dict[str, Any]) -> Serving:
    """The HTTPS flags; port 0 is no HTTPS."""
    from koord.process.serving import Serving

    return Serving(
        address=flags["bind_address"],
        port=flags["secure_port"],
        cert_dir=flags["cert_dir"],
        cert_file=flags["tls_cert_file"],
        key_file=flags["tls_private_key_file"],
        min_version=flags["tls_min_version"],
        cipher_suites=flags["tls_cipher_suites"],
        allowed_paths=flags["authorization_always_allow_paths"],
    )


async def _run(life: Life, options: Options, config: ClientConfig, serving: Serving, decision_log: DecisionLog) -> None:
    """Build what a process of its own needs, then live."""
    from koord.decisions.recorder import Recorder
    from koord.decisions.sinks import LogSink
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory
    from koord.process import metrics
    from koord.process.serving import gate_for
    from roles.descheduler.app import App
    from roles.descheduler.journal import DeschedulerFile

    recorder = Recorder("descheduler", [LogSink(verdicts=_Logged()), *decision_log.sinks("descheduler", life, share=0.5)])
    replay_log = decision_log.file(DeschedulerFile, "descheduler.replay", life, share=0.5)
    connection = options.config.client_connection
    limits: dict[str, Any] = {"qps": connection.qps or 50.0, "burst": connection.burst or 100}
    async with AsyncExitStack() as stack:
        servers = _servers(options, recorder, serving, gate_for(stack, serving, config))
        metrics.watch_recorder(servers[0].registry, recorder)
        servers[0].health.register("shutdown", probe=life.ready)
        observer = metrics.client_observer(servers[0].registry, config.server)
        client = await stack.enter_async_context(Client(config, role="descheduler", observer=observer, **limits))
        informers = InformerFactory(client)
        metrics.watch_caches(servers[0].registry, informers)
        servers[0].health.register("watches", probe=informers.fresh)
        app = App(options, client=client, informers=informers, recorder=recorder, ops=servers[0], replay_log=replay_log)
        for server in servers:
            if server is not servers[0]:
                app.install(server)
            elif not options.config.healthz_bind_address:
                continue  # --port=0: its checks and metrics are served by the secure port alone
            await server.start()
            life.on_stop(server.stop, "HTTP server")
        try:
            await app.run(life)
        finally:
            await informers.stop()


def _servers(options: Options, recorder: Recorder, serving: Serving, gate: Gate) -> list[OpsServer]:
    """The HTTP port for health and metrics, one for metrics when its address differs, and the HTTPS port; all share one state."""
    from koord.process.flags import parse_host_port
    from koord.process.http import OpsServer
    from koord.process.serving import tls_source

    health, metrics = options.config.healthz_bind_address, options.config.metrics_bind_address
    guarded: dict[str, Any] = {"recorder": recorder, "role": "descheduler", "tls": tls_source(serving), "gate": gate}
    first = OpsServer.at(parse_host_port(health or "127.0.0.1:0"), **guarded)
    shared: dict[str, Any] = {"health": first.health, "registry": first.registry}
    servers = [first]
    if metrics != health:
        servers.append(OpsServer.at(parse_host_port(metrics), **shared, **guarded))
    if serving.port:
        servers.append(OpsServer(serving.address, serving.port, ssl_context=guarded["tls"], **shared, **guarded))
    return servers
