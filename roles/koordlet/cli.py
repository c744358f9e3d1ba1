"""`koord koordlet`: the command line of the node agent. Flags only; the wiring is in :mod:`roles.koordlet.app`."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from koord import seams
from koord.config.errors import ConfigError
from koord.config.gates import KOORDLET, FeatureGates
from koord.process.decisionlog import DecisionLog, decision_log_options
from koord.process.flags import FlagError, bool_option, common_options, flags_of, go_command
from roles.koordlet.options import SECTIONS, OptionError, Options, check, host_root

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig
    from koord.process.life import Life

#: Decision records in memory for each kind of subject: those of a full node's files and pods. Memory of a node is its pods'.
RECORDS = 1000

#: When what is there is there to stay, and how often freed memory is returned to the machine (seconds).
_SETTLED, _GIVE_BACK = 15.0, 60.0


@go_command("koordlet", sections=SECTIONS)
@flags_of(Options)
@bool_option("--validate-config", help="Check the flags and what they load, and exit.")
@decision_log_options
@common_options
def command(
    kubeconfig: str | None,
    context: str | None,
    master: str | None,
    validate_config: bool,
    logging: Any,
    decision_log: DecisionLog,
    **values: Any,
) -> None:
    """Run the node agent: observe this node, isolate and suppress best-effort pods, report.

    NODE_NAME names the node; agent_mode=hostMode takes the machine's own directories instead of a DaemonSet's mounts.
    """
    options = Options(**values)
    options.node_name = options.node_name or os.environ.get("NODE_NAME", "")
    try:
        FeatureGates(KOORDLET).set_from_flag(options.feature_gates)
        check(options)
    except (OptionError, ConfigError) as error:
        raise FlagError(str(error), click.get_current_context()) from None
    if validate_config:
        from roles.koordlet import extensions

        extensions.load(filter(None, options.plugin_path.split(",")), options.qos_extension_plugins)
        click.echo("the flags: valid")
        return
    from koord.process import life

    if options.restore:
        from roles.koordlet.app import restore

        sys.exit(restore(options))
    if options.guard:
        from roles.koordlet import guard

        sys.exit(life.run(lambda running: guard.run(running, options, host_root(options)), name="koord koordlet --guard"))
    from koord.kube.config import load

    def main(running: Life) -> Any:
        return _run(running, options, load(kubeconfig, context=context, master=master), decision_log)

    sys.exit(life.run(main, name="koord koordlet"))


async def _give_back(life: Life) -> None:
    """What pods that are gone took, the machine gets back: once a minute, as their last traces are swept out."""
    from koord.process import tuning

    await seams.sleep(_SETTLED)
    tuning.freeze()  # modules and their tables: looking through them for cycles takes longer than a tick may
    while not life.stopping.is_set():
        await seams.sleep(_GIVE_BACK)
        tuning.collect()
        tuning.give_back()


async def _run(life: Life, options: Options, config: ClientConfig, decision_log: DecisionLog) -> None:
    """Build what a process of its own needs, then live."""
    from koord.decisions.recorder import Recorder
    from koord.decisions.ring import RingSink
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory
    from koord.process import metrics, tuning
    from koord.process.http import OpsServer
    from koord.process.serving import Serving, gate_for, tls_source
    from roles.koordlet.app import App, parse_address

    tuning.collect_often()
    life.spawn(_give_back(life), "memory")
    recorder = Recorder("koordlet", [RingSink(total=RECORDS), *decision_log.sinks("koordlet", life)])
    serving = Serving(
        cert_file=options.tls_cert_file,
        key_file=options.tls_private_key_file,
        allowed_paths=tuple(filter(None, (path.strip() for path in options.authorization_always_allow_paths.split(",")))),
    )
    async with AsyncExitStack() as stack:
        guarded = {"tls": tls_source(serving), "gate": gate_for(stack, serving, config)}
        ops = OpsServer.at(parse_address("addr", options.addr), recorder=recorder, role="koordlet", **guarded)
        client = await stack.enter_async_context(Client(config, qps=options.kube_api_qps, burst=options.kube_api_burst, role="koordlet"))
        informers = InformerFactory(client)
        metrics.watch_caches(ops.registry, informers)
        ops.health.register("watches", probe=informers.fresh)
        app = App(options, client=client, informers=informers, recorder=recorder, ops=ops)
        try:
            await app.run(life)
        finally:
            await informers.stop()
