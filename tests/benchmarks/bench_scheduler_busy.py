"""The scheduler with its shipped profile on a busy day, in process: pods that arrive by the thousand, in one shape or in many, and pods
that every node refuses while nothing changes. Rates are per second of CPU: what other processes take away does not count. `--all` has
the 150,000 pods that a cluster of this size may hold.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import uvloop

from koord.api.kinds import NODEMETRICS, PODS
from koord.api.objects import Pod
from koord.process import tuning
from roles.sandbox.profile import plugin_config, plugins
from roles.scheduler import testing
from tests.benchmarks.scheduling import Informers, StubClient, body_of, encode, metric, run_app, running
from tests.benchmarks.table import Row, current_rss_mib, own_rss_mib, script

REPORTS = 60.0  # seconds between two reports of a node


def shipped(**arguments: dict[str, Any]) -> dict[str, Any]:
    """The shipped profile, with further arguments by plugin."""
    config = {name: {**args, **arguments.get(name, {})} for name, args in plugin_config().items()}
    listed = [{"name": name, "args": args} for name, args in config.items()]
    return {"schedulerName": testing.SCHEDULER, "plugins": plugins(), "pluginConfig": listed}


def arriving(count: int, shapes: int = 1) -> list[Pod]:
    return [testing.pod(f"p{n}", uid=f"u{n}", cpu=f"{100 + n % shapes}m", memory="64Mi") for n in range(count)]


def throughput(nodes: int, pods: int) -> list[Row]:
    arrived = arriving(pods)
    before = current_rss_mib()
    ran = run_app(nodes, arrived, profile=shipped())
    what = f"throughput in process, shipped profile, {nodes:,} nodes, {pods:,} pods arriving"
    note = f"{ran.cpu:.1f} s of CPU, {ran.seconds:.1f} s by the clock"
    memory = f"{own_rss_mib():.0f} MiB in all, with the stub of an API server and its objects"
    return [
        Row(what, pods / ran.cpu, "pods/s of CPU", 5000.0, "higher", note),
        Row(f"memory of that run, {pods:,} pods", own_rss_mib() - before, "MiB", note=memory),
    ]


def shapes(nodes: int, pods: int, live: int = 256) -> list[Row]:
    one = pods / run_app(nodes, arriving(pods), profile=shipped()).cpu
    many = pods / run_app(nodes, arriving(pods, live), profile=shipped()).cpu
    what = f"throughput in process, shipped profile, {nodes:,} nodes, {live} shapes, of the rate with one"
    return [Row(what, 100 * many / one, "%", 70.0, "higher", f"{many:.0f} and {one:.0f} pods/s of CPU")]


def refused(nodes: int, pods: int, seconds: float) -> list[Row]:
    """Hot nodes that report once a minute without anything changing, with and without pods that none of them takes."""

    async def used(count: int) -> float:
        informers = Informers()
        waiting = {f"default/p{n}": body_of(testing.pod(f"p{n}", uid=f"u{n}", labels={"app": f"a{n % 10}"})) for n in range(count)}

        def before(informers: Informers) -> None:
            for number in range(nodes):
                informers.put(NODEMETRICS, f"n{number}", hot(number))
            for key, body in waiting.items():
                informers.put(PODS, key, body.encode())

        async with running(nodes, StubClient(informers, waiting), shipped(LoadAwareScheduling={"usageThresholds": {"cpu": 65}}), before):
            await asyncio.sleep(5)  # all were tried
            began, started = time.process_time(), time.monotonic()
            for number in range(int(seconds * nodes / REPORTS)):
                informers.put(NODEMETRICS, f"n{number % nodes}", hot(number % nodes))
                await asyncio.sleep(max(0.0, started + number * REPORTS / nodes - time.monotonic()))
            return (time.process_time() - began) / seconds

    alone, beside = uvloop.run(used(0)), uvloop.run(used(pods))
    what = f"idle, {pods} pods refused by load on {nodes:,} nodes, CPU beyond that of nodes that report"
    return [Row(what, 100 * (beside - alone), "% of a core", 1.0, note=f"{100 * beside:.2f} and {100 * alone:.2f} %, {seconds:.0f} s")]


def hot(number: int) -> bytes:
    report = metric(f"n{number}", number, time.time())
    report["status"]["nodeMetric"]["nodeUsage"]["resources"]["cpu"] = f"{25_000 + number % 7}m"
    return encode(report)


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    if quick:
        return [*throughput(500, 5000), *shapes(500, 3000), *refused(200, 100, 5.0)]
    pods = 150_000 if "--all" in sys.argv else 30_000
    return [*throughput(2000, pods), *shapes(2000, 20_000), *refused(1000, 500, 30.0)]


if __name__ == "__main__":
    script(rows)
