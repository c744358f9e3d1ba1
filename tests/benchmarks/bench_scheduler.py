"""The scheduler: one decision over 5,000 nodes, pods of one shape, throughput in process through informer events and a stub API server."""

from __future__ import annotations

import statistics
import time

import numpy as np

from koord.process import tuning
from roles.scheduler import testing
from tests.benchmarks.scheduling import decide, decision_row, run_app, world
from tests.benchmarks.table import Row, current_rss_mib, script
from tests.roles.scheduler.reservation import worlds


def decisions(nodes: int, pods: int) -> list[Row]:
    found = world(nodes)
    decide(found, [testing.pod(cpu=f"{3000 + n}m", memory="1Gi") for n in range(50)])
    different, cpu = decide(found, [testing.pod(cpu=f"{100 + n}m", memory=f"{100 + n}Mi") for n in range(pods)])
    same, cpu_same = decide(found, [testing.pod(cpu="500m", memory="512Mi") for _ in range(2 * pods)])
    p50, p99 = statistics.median(different) * 1e3, float(np.percentile(different, 99)) * 1e3
    what, same_note = f"decision, {nodes} nodes, pods", f"p50 {statistics.median(same) * 1e6:.0f} µs, CPU {cpu_same * 1e6:.0f} µs"
    return [
        Row(f"{what} all different, p50", p50, "ms", 0.5, note=f"CPU {cpu * 1e3:.3f} ms"),
        Row(f"{what} all different, p99", p99, "ms", 2.0),
        Row(f"{what} of one shape, mean", statistics.fmean(same) * 1e6, "µs", 50.0, note=same_note),
    ]


def constrained(nodes: int, pods: int) -> list[Row]:
    """Pods of one shape whose every placement changes what other nodes are worth."""
    found = world(nodes)
    app = {"app": "a"}
    select = {"labelSelector": {"matchLabels": app}}
    zone = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **select}
    term = {"topologyKey": "kubernetes.io/hostname", **select}
    kinds = {
        "hard zone spread": {"topologySpreadConstraints": [zone]},
        "host anti-affinity": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}},
    }
    result = []
    for what, spec in kinds.items():
        wanted = [testing.pod(cpu="100m", memory="64Mi", labels=app, **spec) for _ in range(pods)]
        result.append(decision_row(f"decision, {nodes} nodes, pods of one shape with {what}, mean", found, wanted, 500.0))
    return result


def reserved(nodes: int, count: int, pods: int) -> list[Row]:
    """Pods beside reservations that are not theirs, and pods of one shape that may use every one of them."""
    found = worlds.World()
    found.cluster.reserve(nodes)
    found.add_nodes(*(testing.node(f"n{number}", cpu="32", memory="256Gi") for number in range(nodes)))
    for number in range(count):
        found.hold(f"r{number}", f"n{number * nodes // count}", cpu="4", memory="8Gi", once=number % 2 == 0)
    result = []
    for who, labels in (("of others", {"app": "stranger"}), ("of their owner", worlds.OWNER)):
        infos = [found.parser.parse(testing.pod(cpu="500m", memory="512Mi", labels=labels)) for _ in range(pods)]
        seconds, used = [], 0
        began = time.process_time()
        for info in infos:
            started = time.perf_counter()
            decision = found.cycle.decide(info)
            found.cluster.place(info, decision.slot)
            found.framework.run_reserve(decision.ctx, decision.slot)
            seconds.append(time.perf_counter() - started)
            used += decision.ctx.reservation is not None
        cpu = (time.process_time() - began) / pods
        note = f"{1 / statistics.fmean(seconds):.0f} pods/s, p50 {statistics.median(seconds) * 1e6:.0f} µs, CPU {cpu * 1e6:.0f} µs, "
        note += f"first pod {seconds[0] * 1e3:.0f} ms, {used} in a reservation"
        what = f"reservations ({count:,}) at {nodes:,} nodes, decision and reserve, pods {who}, mean"
        result.append(Row(what, statistics.fmean(seconds) * 1e6, "µs", 500.0, note=note))
    return result


def throughput(nodes: int, pods: int) -> list[Row]:
    ran = run_app(nodes, (testing.pod(f"p{number}", uid=f"u{number}", cpu="500m", memory="512Mi") for number in range(pods)))
    what, note = f"throughput in process, {nodes} nodes x {pods} pods", f"RSS {current_rss_mib():.0f} MiB"
    return [
        Row(what, pods / ran.seconds, "pods/s", 2000.0, better="higher", note=note),
        Row("CPU a pod, with informer event, bind and event", ran.cpu / pods * 1e3, "ms", 1.0, note="API server stubbed"),
    ]  # fmt: skip


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    nodes, pods = (1000, 500) if quick else (5000, 2000)
    return [
        *decisions(nodes, pods),
        *constrained(nodes, pods // 4),
        *reserved(nodes, nodes // 5, pods),
        *throughput(nodes, pods if quick else 10_000),
    ]


if __name__ == "__main__":
    script(rows)
