"""`koord scheduler`: the command line (SCH-FW-02). Flags only; the wiring is in `roles.scheduler.app`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from koord.process.flags import FlagError, bool_option, common_options, duration_option, gates_option, go_command

if TYPE_CHECKING:
    from koord.process.life import Life
    from roles.scheduler.app import Options

_LEASE = {
    "leader_elect": "leader_elect",
    "leader_elect_lease_duration": "lease_duration",
    "leader_elect_renew_deadline": "renew_deadline",
    "leader_elect_retry_period": "retry_period",
    "leader_elect_resource_lock": "resource_lock",
    "leader_elect_resource_name": "resource_name",
    "leader_elect_resource_namespace": "resource_namespace",
}


@go_command("scheduler")
@click.option("--config", metavar="FILE", default="", help="KubeSchedulerConfiguration kubescheduler.config.k8s.io/v1.")
@click.option("--write-config-to", metavar="FILE", help="Write the completed configuration and exit.")
@bool_option("--validate-config", help="Check the configuration, plugins and their arguments included, and exit.")
@click.option("--plugin-path", metavar="PATH", multiple=True, help="Python file or folder with plugins of your own; may be repeated.")
@click.option("--address", default="0.0.0.0", show_default=True, help="IP address of the plain HTTP listener.")
@click.option("--port", type=click.IntRange(0, 65535), default=10251, show_default=True, help="Its port; 0 disables it.")
@click.option("--secure-port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: plain HTTP only.")
@bool_option("--leader-elect", default=True, help="Only the holder of the Lease schedules.")
@duration_option("--leader-elect-lease-duration", default="15s", help="How long a lease lives.")
@duration_option("--leader-elect-renew-deadline", default="10s", help="How long the holder tries to renew it.")
@duration_option("--leader-elect-retry-period", default="2s", help="Pause between tries.")
@click.option("--leader-elect-resource-lock", default="leases", show_default=True, help="Kind of lock.")
@click.option("--leader-elect-resource-name", default="kube-scheduler", show_default=True, help="Name of the Lease.")
@click.option("--leader-elect-resource-namespace", default="kube-system", show_default=True, help="Namespace of the Lease.")
@duration_option("--pod-max-in-unschedulable-pods-duration", default="5m", help="After this a pod is tried again without an event.")
@click.option("--binders", type=click.IntRange(1, 1000), default=64, show_default=True, help="Bindings at a time.")
@click.option("--debug-scores", "-s", type=click.IntRange(0), default=0, help="Log the scores of the top N nodes of each decision.")
@gates_option(help="Feature gates, as A=true,B=false.")
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    config: str,
    write_config_to: str | None,
    validate_config: bool,
    address: str,
    port: int,
    secure_port: int,
    kubeconfig: str | None,
    context: str | None,
    master: str | None,
    logging: Any,
    **flags: Any,
) -> None:
    """Schedule pods: load-aware, with kube-scheduler's plugins, as columns over all nodes at once."""
    import ipaddress

    from koord.process import life

    if secure_port:
        raise FlagError("--secure-port: HTTPS is not served; accepted: 0", ctx)
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise FlagError(f"--address: {address!r} is no IP address", ctx) from None
    given = {name: value for name, value in flags.items() if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    if validate_config or write_config_to:
        sys.exit(_check(config, flags, given, write_config_to))

    async def main(running: Life) -> None:
        from koord.kube.config import load

        options = read(config, flags, given)
        check(options)
        file = kubeconfig or options.config.client_connection.kubeconfig or None
        await _run(running, options, load(file, context=context, master=master), address, port)

    sys.exit(life.run(main, name="koord scheduler"))


def read(path: str, flags: dict[str, Any], given: dict[str, Any]) -> Options:
    """The options of the file, overlaid by the flags that were given. Raises InvalidConfig."""
    from koord.config.gates import SCHEDULER, FeatureGates
    from koord.config.scheduler import KubeSchedulerConfiguration, LeaderElection, load
    from roles.scheduler.app import Options

    config = load(path) if path else KubeSchedulerConfiguration()
    lease = {field: given[flag] for flag, field in _LEASE.items() if flag in given}
    if lease:
        config.leader_election = LeaderElection.model_validate({**config.leader_election.model_dump(), **lease})
    gates = FeatureGates(SCHEDULER)
    gates.set_from_flag(flags.get("feature_gates") or "")
    return Options(
        config=config,
        source=path or "config",
        plugin_paths=tuple(flags.get("plugin_path") or ()),
        gates={name: gates.enabled(name) for name in SCHEDULER},
        max_unschedulable=flags["pod_max_in_unschedulable_pods_duration"],
        binders=flags["binders"],
        debug_scores=flags["debug_scores"],
    )


def check(options: Options) -> None:
    """Build what decides and throw it away, so that mistakes in the file come to light before anything else is tried.

    Raises ConfigurationError or InvalidConfig.
    """
    from koord.process.errors import ConfigurationError
    from roles.scheduler.engine import Engine, registry
    from roles.scheduler.framework.registry import PluginError

    try:
        Engine(options.config, registry(options.plugin_paths), source=options.source)
    except PluginError as error:
        raise ConfigurationError(f"{options.source}: {error}") from error


def _check(path: str, flags: dict[str, Any], given: dict[str, Any], write_to: str | None) -> int:
    """Check a configuration, and write it completed if asked to. The exit status."""
    import yaml

    from koord.config.errors import ConfigError
    from koord.config.model import wire
    from koord.process.errors import ConfigurationError

    try:
        options = read(path, flags, given)
        check(options)
        if write_to:
            with open(write_to, "w", encoding="utf-8") as file:
                yaml.safe_dump(wire(options.config), file, sort_keys=False)
    except (ConfigError, ConfigurationError, OSError) as error:
        print(f"koord scheduler: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"{options.source}: valid ({len(options.config.profiles)} profile(s))")
    return 0


async def _run(life: Life, options: Options, target: Any, address: str, port: int) -> None:
    from koord.decisions.recorder import Recorder
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory
    from koord.process import metrics, tuning
    from koord.process.http import OpsServer
    from roles.scheduler.app import App

    tuning.keep_memory()
    recorder = Recorder("scheduler")
    ops = OpsServer(address, port, recorder=recorder, role="scheduler")
    metrics.watch_recorder(ops.registry, recorder)
    if options.config.enable_profiling:
        ops.enable_profiling()
    # A limit counts only where it is written: the API server's own fairness protects it better than a limit nobody chose.
    connection = options.config.client_connection
    qps = connection.qps if "qps" in connection.model_fields_set else None
    burst = connection.burst if "burst" in connection.model_fields_set else None
    async with Client(target, qps=qps, burst=burst, role="scheduler") as client:
        informers = InformerFactory(client)
        app = App(options, client=client, informers=informers, recorder=recorder, ops=ops)
        if port:
            await ops.start()
            life.on_stop(ops.stop, "http")
        life.on_stop(informers.stop, "informers")
        await app.run(life)
