"""`koord scheduler`: the command line (SCH-FW-02). Flags only; the wiring is in `roles.scheduler.app`."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koord import seams
from koord.process.componentflags import LEASE, leader_election_options
from koord.process.decisionlog import decision_log_options
from koord.process.flags import IPAddress, bool_option, common_options, flags_of, gates_option, go_command, taken
from koord.process.inert import inert_given, inert_options
from roles.scheduler import flags as groups
from roles.scheduler.options import Barrier, Debug, Options, Thresholds

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig
    from koord.process.life import Life
    from koord.process.serving import Gate, Serving

_SECTIONS = {
    "config": "Configuration",
    "address": "Ports",
    "leader-elect": "Leader election",
    "pod-max-in-unschedulable-pods-duration": "Scheduling",
    "scheduler-monitor-period": "Diagnosis",
    "sync-barrier-pod-namespace": "Start",
    "enable-workload-auditor": "Auditor of workloads",
    "kube-api-qps": "API server",
    "profiling": "Other",
    "feature-gates": "Configuration",
}


@go_command("scheduler", sections=_SECTIONS)
@click.option("--config", metavar="FILE", default="", help="KubeSchedulerConfiguration kubescheduler.config.k8s.io/v1.")
@click.option("--write-config-to", metavar="FILE", help="Write the completed configuration and exit.")
@bool_option("--validate-config", help="Check the configuration, plugins and their arguments included, and exit.")
@click.option("--plugin-path", metavar="PATH", multiple=True, help="Python file or folder with plugins of your own; may be repeated.")
@click.option("--address", type=IPAddress, default="0.0.0.0", show_default=True, help="IP address of the plain HTTP listener.")
@click.option("--port", type=click.IntRange(0, 65535), default=10251, show_default=True, help="Its port; 0 disables it.")
@groups.serving_options
@leader_election_options("kube-scheduler", "kube-system", "Only the holder of the Lease schedules.")
@flags_of(Options)
@flags_of(Debug)
@flags_of(Barrier)
@flags_of(Thresholds)
@groups.client_options
@inert_options(groups.INERT)
@gates_option(help="Feature gates, as A=true,B=false.")
@decision_log_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    config: str,
    write_config_to: str | None,
    validate_config: bool,
    kubeconfig: str | None,
    context: str | None,
    master: str | None,
    logging: Any,
    **flags: Any,
) -> None:
    """Schedule pods: load-aware, with kube-scheduler's plugins, as columns over all nodes at once."""
    from koord.process import life

    gates_of(flags.get("feature_gates") or "")
    given = {name: value for name, value in flags.items() if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    if validate_config or write_config_to:
        sys.exit(_check(config, flags, given, write_config_to))

    async def main(running: Life) -> None:
        from koord.kube.config import load

        _warn(given, bool(config))
        options = read(config, flags, given)
        check(options)
        file = kubeconfig or options.config.client_connection.kubeconfig or None
        target = load(file, context=context, master=master)
        await _run(running, options, target, flags, reviewers(flags, target))

    sys.exit(life.run(main, name="koord scheduler"))


def _warn(given: dict[str, Any], has_config: bool) -> None:
    """Say which given flags change nothing, and why."""
    import logging

    log = logging.getLogger(__name__)
    for line in inert_given(groups.INERT, given):
        log.warning("%s", line)
    for name in ("kube_api_qps", "kube_api_burst", "profiling") if has_config else ():
        if name in given:
            log.warning("--%s has no effect beside --config: write it there", name.replace("_", "-"))


def read(path: str, flags: dict[str, Any], given: dict[str, Any]) -> Options:
    """The options of the file, overlaid by the flags that were given. Raises InvalidConfig."""
    from koord.config.loader import overlaid
    from koord.config.scheduler import KubeSchedulerConfiguration, load
    from koord.process.errors import UsageError

    config = load(path) if path else KubeSchedulerConfiguration()
    if not path:
        config.enable_profiling = flags["profiling"]
        for flag, field in (("kube_api_qps", "qps"), ("kube_api_burst", "burst")):
            if flag in given:
                setattr(config.client_connection, field, given[flag])
    config.leader_election = overlaid(config.leader_election, given, LEASE)
    try:
        labels = groups.metric_labels(flags["workload_auditor_metric_labels"])
    except ValueError as error:
        raise UsageError(f"--workload-auditor-metric-labels: {error}") from None
    return Options(
        config,
        source=path or "config",
        plugin_paths=tuple(flags.get("plugin_path") or ()),
        gates=gates_of(flags.get("feature_gates") or ""),
        debug=Debug(**taken(Debug, flags)),
        barrier=Barrier(**taken(Barrier, flags)),
        audit=Thresholds(**{**taken(Thresholds, flags), "labels": labels}),
        **taken(Options, flags),
    )


def gates_of(text: str) -> dict[str, bool]:
    """The feature gates as `--feature-gates` sets them. Raises ConfigError."""
    from koord.config.gates import SCHEDULER, FeatureGates

    gates = FeatureGates(SCHEDULER)
    gates.set_from_flag(text)
    return gates.all()


def reviewers(flags: dict[str, Any], target: ClientConfig) -> tuple[ClientConfig, ClientConfig]:
    """Who reviews tokens, and who access: the API server that is scheduled for, unless a kubeconfig names another.

    Raises KubeConfigError.
    """
    from koord.kube.config import load

    tokens, access = (flags[f"{name}_kubeconfig"] for name in ("authentication", "authorization"))
    return load(tokens) if tokens else target, load(access) if access else target


def serving(flags: dict[str, Any]) -> Serving:
    """The HTTPS flags."""
    from koord.process.serving import Serving

    return Serving(
        address=flags["bind_address"],
        port=flags["secure_port"],
        cert_dir=flags["cert_dir"],
        cert_file=flags["tls_cert_file"],
        key_file=flags["tls_private_key_file"],
        min_version=flags["tls_min_version"],
        cipher_suites=flags["tls_cipher_suites"],
        client_ca_file=flags["client_ca_file"],
        skip_lookup=flags["authentication_skip_lookup"],
        tolerate_lookup_failure=flags["authentication_tolerate_lookup_failure"],
        token_ttl=flags["authentication_token_webhook_cache_ttl"],
        allowed_paths=flags["authorization_always_allow_paths"],
        allowed_ttl=flags["authorization_webhook_cache_authorized_ttl"],
        denied_ttl=flags["authorization_webhook_cache_unauthorized_ttl"],
    )


def check(options: Options) -> None:
    """Build what decides and throw it away, so that mistakes in the file come to light before anything else is tried.

    Raises ConfigurationError or InvalidConfig.
    """
    from koord.config.errors import InvalidConfig
    from koord.config.loader import located
    from koord.process.errors import ConfigurationError
    from roles.scheduler.checking import mistakes
    from roles.scheduler.engine import registry
    from roles.scheduler.framework.registry import PluginError

    try:
        found = mistakes(options.config, registry(options.plugin_paths), options.source)
    except PluginError as error:
        raise ConfigurationError(str(error)) from error
    if found:
        text = Path(options.source).read_text(encoding="utf-8") if Path(options.source).is_file() else ""
        raise located(InvalidConfig(options.source, found), text)


def _check(path: str, flags: dict[str, Any], given: dict[str, Any], write_to: str | None) -> int:
    """Check a configuration, and write it completed if asked to. The exit status."""
    import yaml

    from koord.config.errors import ConfigError
    from koord.config.model import wire, write_private
    from koord.process.errors import ConfigurationError

    try:
        options = read(path, flags, given)
        check(options)
        if write_to:
            write_private(write_to, yaml.safe_dump(wire(options.config, secrets=True), sort_keys=False))
    except (ConfigError, ConfigurationError, OSError) as error:
        print(f"koord scheduler: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"{options.source}: valid ({len(options.config.profiles)} profile(s))")
    return 0


async def _run(
    life: Life, options: Options, target: ClientConfig, flags: dict[str, Any], reviewing: tuple[ClientConfig, ClientConfig]
) -> None:
    from koord.decisions.recorder import Recorder
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory
    from koord.process import metrics, tuning
    from koord.process.http import OpsServer
    from koord.process.serving import gate_for, tls_source
    from roles.scheduler.app import App
    from roles.scheduler.journal.journal import FileJournal, JournalFile

    tuning.keep_memory()
    decision_log = flags["decision_log"]
    recorder = Recorder("scheduler", decision_log.sinks("scheduler", life, share=0.5))
    file = decision_log.file(JournalFile, "scheduler.replay", life, share=0.5)
    listening = serving(flags)
    # A limit counts only where it is written: the API server's own fairness protects it better than a limit nobody chose.
    connection = options.config.client_connection
    qps = connection.qps if "qps" in connection.model_fields_set else None
    burst = connection.burst if "burst" in connection.model_fields_set else None
    async with AsyncExitStack() as stack:
        gate = gate_for(stack, listening, *reviewing)
        ops = OpsServer(
            flags["address"], flags["port"], recorder=recorder, role="scheduler", tls=tls_source(listening), gate=gate
        )  # fmt: skip
        metrics.watch_recorder(ops.registry, recorder)
        ops.health.register("shutdown", probe=life.ready)
        if options.config.enable_profiling:
            ops.enable_profiling()
        observer = metrics.client_observer(ops.registry, target.server)
        client = await stack.enter_async_context(Client(target, qps=qps, burst=burst, role="scheduler", observer=observer))
        informers = InformerFactory(client)
        stack.push_async_callback(informers.stop)  # before the client is closed: watches that break would be tried again
        metrics.watch_caches(ops.registry, informers)
        ops.health.register("watches", probe=informers.fresh)
        journal = FileJournal(file) if file is not None else None
        app = App(options, client=client, informers=informers, recorder=recorder, ops=ops, journal=journal)
        if flags["secure_port"]:
            secure = await _secure(life, app, listening, client, gate)
            life.on_stop(secure.stop, "https")
        if flags["port"]:
            await ops.start()
            life.on_stop(ops.stop, "http")
        await app.run(life)


async def _secure(life: Life, app: Any, options: Serving, client: Any, gate: Gate) -> Any:
    """The HTTPS listener, started. Raises ConfigurationError."""
    from koord.process.http import OpsServer
    from koord.process.serving import client_authority, follow_authority, tls_source

    source = tls_source(options, await client_authority(client, options))
    await seams.to_thread(source)
    life.spawn(follow_authority(client, options, source), "client authority")
    plain = app.ops
    server = OpsServer(
        options.address, options.port, health=plain.health, registry=plain.registry, recorder=plain.recorder, role="scheduler",
        ssl_context=source, middlewares=(gate.middleware(),),
    )  # fmt: skip
    if app.options.config.enable_profiling:
        server.enable_profiling()
    app.install(server)
    await server.start()
    return server
