"""What ScarceResourceAvoidance brings: GPU nodes beside nodes without devices, pods with and without GPUs, and where the latter go while
nodes without devices have room: `python -m tests.benchmarks.bench_scarce`."""

from __future__ import annotations

import random
from typing import Any

import click

from koord.process import tuning
from tests.benchmarks import openb

PLAIN = 32000, 128 << 10  # milli-CPU and MiB of a node without devices


def profile(*, avoids: bool) -> dict[str, Any]:
    """The installed profile, or the same without ScarceResourceAvoidance's score."""
    content = openb.profile("installed")
    if not avoids:
        score = content["plugins"]["score"]
        score["enabled"] = [each for each in score["enabled"] if each["name"] != "ScarceResourceAvoidance"]
    return content


def place(machines: list[openb.Machine], asks: list[openb.Ask], *, avoids: bool, seed: int) -> tuple[int, int, int, float]:
    """Pods without GPUs that came while a node without had room, how many of them are on nodes with GPUs, how many pods of all found no
    node, and percent of the cards that are allocated."""
    found = openb.cluster(machines, profile(avoids=avoids), seed)
    with_gpus = {machine.name for machine in machines if machine.gpu}
    plain_slots = [found.cluster.slot_of(machine.name) for machine in machines if not machine.gpu]
    plugin: Any = found.framework.plugins["DeviceShare"]
    plain = astray = failed = given = 0
    for number, ask in enumerate(asks):
        pod = found.parser.parse(openb.pod_of(ask, number))
        plugin.pod_seen(pod)
        decision = found.decide(pod)
        room = any(decision.scheduled and decision.ctx.feasible[slot] for slot in plain_slots)
        decision = found.schedule(pod)
        failed += not decision.scheduled
        given += ask.gpu if decision.scheduled else 0
        if not ask.cards and decision.scheduled and room:
            plain += 1
            astray += decision.node in with_gpus
    return plain, astray, failed, 100 * given / (1000 * sum(machine.gpu for machine in machines))


@click.command()
@click.option("--nodes", default=100, show_default=True, type=click.IntRange(2), help="Nodes with GPUs; half as many without.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
def main(nodes: int, seeds: int) -> None:
    """Where pods without GPUs go, and what is left for those with."""
    tuning.keep_memory()
    tuning.relax_collector()
    click.echo(
        "| seed | ScarceResourceAvoidance | pods without GPUs, room beside | on nodes with GPUs | pods without a node | GPUs allocated |"
    )
    click.echo("| --- | --- | ---: | ---: | ---: | ---: |")
    for seed in range(1, seeds + 1):
        machines, asks = openb.made(nodes, seed)
        machines += [openb.Machine(f"plain-{number:04}", *PLAIN, 0, "") for number in range(nodes // 2)]
        random.Random(seed).shuffle(asks)
        for avoids in (False, True):
            plain, astray, failed, share = place(machines, asks, avoids=avoids, seed=seed)
            click.echo(f"| {seed} | {'on' if avoids else 'off'} | {plain} | {astray} | {failed} | {share:.2f} % |")


if __name__ == "__main__":
    main()
