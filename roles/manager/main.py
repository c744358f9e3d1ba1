"""From parsed flags to a running manager: options, client, servers, App."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

from koord.api.times import parse_duration
from koord.config.gates import FeatureGates
from koord.decisions.recorder import Recorder
from koord.kube import config as kubeconfig
from koord.kube.informers import InformerFactory
from koord.process import metrics, tuning
from koord.process.flags import taken
from koord.process.http import OpsServer
from koord.process.life import Life
from koord.process.serving import Serving, gate_for, tls_source
from roles.manager.app import App
from roles.manager.clients import Clients
from roles.manager.journal import ManagerFile
from roles.manager.noderesource.plan import PLUGIN_NAMES
from roles.manager.options import CONTROLLERS, Options, check_list, webhook_options
from roles.manager.options import checked as checked_options
from roles.manager.recommender.policy import Policy, checked
from roles.manager.webhooks.callers import Callers

log = logging.getLogger("koord.manager")


def options_of(flags: dict[str, Any], gates: FeatureGates) -> Options:
    """Options of parsed flags and the environment. Raises ConfigError or ConfigurationError."""
    _check_sync_period(flags["sync_period"])
    Callers(flags["webhook_client_ca_file"], flags["webhook_client_allowed_names"])
    check_list("--controllers", flags["controllers"], CONTROLLERS)
    check_list("--noderesource-plugins", flags["noderesource_plugins"], PLUGIN_NAMES)
    policy = checked(Policy(**taken(Policy, flags)))
    return checked_options(Options(**taken(Options, flags), gates=gates, recommender=policy, webhook=webhook_options()))


def _check_sync_period(text: str) -> None:
    """Nothing is listed anew by the clock here, but a text that is no duration is worth a word (upstream ignores it, too)."""
    try:
        parse_duration(text or "0")
    except ValueError as error:
        log.warning("--sync-period: %s; it is ignored", error)


async def serve(life: Life, flags: dict[str, Any], gates: FeatureGates) -> None:
    """Run the manager until it is asked to end. Raises ConfigError or ConfigurationError."""
    options = options_of(flags, gates)
    decision_log = flags["decision_log"]
    recorder = Recorder("manager", decision_log.sinks("manager", life, share=0.5))
    replay_log = decision_log.file(ManagerFile, "manager.replay", life, share=0.5)
    registry = metrics.registry("manager")
    metrics.watch_recorder(registry, recorder)
    config = kubeconfig.load(flags["kubeconfig"], context=flags["context"], master=flags["master"])
    observer = metrics.client_observer(registry, config.server)
    clients = Clients.of(config, options, observer)
    life.on_stop(clients.close, "clients")  # first registered, closed last: releasing the lease and flushing events need them
    stack = AsyncExitStack()
    life.on_stop(stack.aclose, "reviews of callers")
    informers = InformerFactory(clients.watches)
    life.on_stop(informers.stop, "informers")
    listening = Serving(
        cert_file=flags["tls_cert_file"],
        key_file=flags["tls_private_key_file"],
        allowed_paths=flags["authorization_always_allow_paths"],
    )
    servers = _servers(flags, registry, recorder=recorder, tls=tls_source(listening), gate=gate_for(stack, listening, config))
    ops = servers[0]
    metrics.watch_caches(registry, informers)
    ops.health.register("shutdown", probe=life.ready)
    ops.health.register("watches", probe=informers.fresh)
    app = App(options, client=clients, informers=informers, recorder=recorder, ops=ops, replay_log=replay_log)
    for server in servers:
        life.on_stop(server.stop, "ops")
        await server.start()
    tuning.keep_memory()
    await app.run(life)


def _servers(flags: dict[str, Any], registry: Any, **common: Any) -> list[OpsServer]:
    """Health first, then metrics and profiling where they have an address of their own."""
    health = OpsServer.at(flags["health_probe_addr"], registry=registry, role="manager", **common)
    shared = {"health": health.health, "registry": registry, "role": "manager", **common}
    servers = [health] if not flags["health_probe_addr"].disabled else []
    if not flags["metrics_addr"].disabled:
        server = OpsServer.at(flags["metrics_addr"], **shared)
        for path in ("/all-metrics", "/internal-metrics", "/external-metrics"):
            server.expose(path, registry)
        servers.append(server)
    if flags["enable_pprof"] and not flags["pprof_addr"].disabled:
        server = OpsServer.at(flags["pprof_addr"], **shared)
        server.enable_profiling()
        servers.append(server)
    return servers or [health]
