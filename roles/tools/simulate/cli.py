"""`koord simulate`: what a change would do to a cluster, asked of koord's own code; nothing is written anywhere (BEY-SIM-01)."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click
import orjson

from koord import seams
from koord.api.kinds import Kind
from koord.api.times import format_time
from koord.kube import errors
from koord.kube.client import PATIENCE, Client
from koord.kube.config import load
from koord.process import commands, tuning
from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import GoCommand
from koord.process.numbers import Finite
from roles.tools.simulate import changes, render
from roles.tools.simulate.answer import Hour, Simulator
from roles.tools.simulate.changes import Changes
from roles.tools.simulate.cluster import Cluster, live, read, taken_at
from roles.tools.simulate.setup import descheduler_of, scheduler_of

DOES_NOT_FIT = 2


@click.command("simulate", cls=GoCommand)
@click.option("-s", "--snapshot", "paths", multiple=True, metavar="PATH", help="File or folder with the objects; may be repeated.")
@click.option("--kubeconfig", default=None, help="Read a live cluster instead (lists only, with your rights).")
@click.option("--context", default=None, help="Context of the kubeconfig.")
@click.option("-f", "--add", multiple=True, metavar="PATH", help="Objects to add or change: pods, workloads, quotas, profiles, nodes, ...")
@click.option("--drain", multiple=True, metavar="NODE", help="Drain a node; may be repeated.")
@click.option("--more", multiple=True, metavar="NUMBER=NODE", help="So many new nodes of a node's shape.")
@click.option("--fewer", multiple=True, metavar="NUMBER=NODE", help="So many nodes of a node's shape go, the emptiest first.")
@click.option("--usage", type=Finite(0, 100), default=1.0, show_default=True, help="Factor of what is measured.")
@click.option(
    "--curve", default="", metavar="FACTOR,...", help="The same asked with each factor of what is measured: an hour of a day each, say."
)
@click.option("--config", default="", metavar="FILE", help="KubeSchedulerConfiguration; default: the installed one.")
@click.option("--feature-gates", default="", metavar="NAME=BOOL,...", help="The scheduler's feature gates.")
@click.option("--agent-feature-gates", default="", metavar="NAME=BOOL,...", help="koordlet's feature gates; its evictions are off without.")
@click.option("--plugin-path", multiple=True, metavar="PATH", help="The scheduler's --plugin-path.")
@click.option("--config-namespace", default="koordinator-system", show_default=True, help="Namespace of slo-controller-config.")
@click.option("--hot", type=click.IntRange(1, 100), default=65, show_default=True, help="Percent of its CPU at which a node is hot.")
@click.option("--rounds", type=click.IntRange(0, 1000), default=0, show_default=True, help="Rounds of the descheduler that follow.")
@click.option(
    "--descheduler-config", default="", metavar="FILE", help="DeschedulerConfiguration of these rounds; default: the installed one."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Ties between nodes are drawn with it.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "html"]), default="text", show_default=True, help="Output format.")
def command(paths: tuple[str, ...], kubeconfig: str | None, context: str | None, config_namespace: str, output: str, **flags: Any) -> None:
    """Ask what would happen: to new pods, to those of a drained node, with other nodes, quotas, profiles or usage.

    The snapshot is a folder of manifests, the output of `kubectl get -o yaml`, or a live cluster. Ends with 0 if everything fits and
    with 2 if not.
    """
    if bool(paths) == (kubeconfig is not None or context is not None):
        raise UsageError("give either --snapshot, or --kubeconfig or --context for a live cluster")
    # before anything is asked: a mistake here costs no list
    more, fewer = (changes.counts(flags[name], f"--{name}") for name in ("more", "fewer"))
    wanted = Changes(tuple(read(flags["add"])), flags["drain"], more, fewer, flags["usage"])
    factors = changes.factors(flags["curve"])
    descheduler = descheduler_of(flags["descheduler_config"]) if flags["rounds"] else None
    scheduler = scheduler_of(flags["config"], flags["feature_gates"], flags["plugin_path"])
    cluster = Cluster()
    with tuning.collecting_seldom():
        for obj in read(paths):
            cluster.put(obj)
        if not paths:
            cluster = commands.run(_live(kubeconfig, context, [feed.kind for feed in scheduler.kinds().values()], config_namespace))
        now = taken_at(cluster, seams.now()) if paths else seams.now()
        changed = changes.apply(cluster, wanted, format_time(now))
        simulator = Simulator(scheduler, now=now, seed=flags["seed"], hot=flags["hot"], agent_gates=flags["agent_feature_gates"])
        simulator.rounds = (descheduler, flags["rounds"]) if descheduler is not None else None
        answer = simulator.ask(cluster, changed)
        simulator.rounds = None  # hours of a day are other days' work
        for factor in factors:
            hour = changes.apply(cluster, replace(wanted, usage=wanted.usage * factor), format_time(now))
            answer.hours.append(Hour.of(factor, simulator.ask(cluster, hour, helping=False)))
    if output == "json":
        click.echo(orjson.dumps(answer.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(render.page(answer) if output == "html" else render.text(answer))
    sys.exit(0 if answer.fits else DOES_NOT_FIT)


async def _live(kubeconfig: str | None, context: str | None, kinds: list[Kind], namespace: str) -> Cluster:
    try:
        async with Client(load(kubeconfig, context=context), role="simulate", patience=PATIENCE) as client:
            return await live(client, kinds, namespace)
    except errors.ApiError as error:
        raise ConfigurationError(f"the cluster cannot be read: {error}") from error
