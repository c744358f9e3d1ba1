"""Decisions about CPU-bound pods: 5,000 nodes of 2 sockets, 4 NUMA nodes and 64 threads, without and with a NUMA policy on the nodes."""

from __future__ import annotations

import statistics
import time

import numpy as np

from koord.api import names
from koord.process import tuning
from roles.scheduler import testing
from tests.benchmarks.table import Row, script
from tests.support.numa import NumaWorld, bound_pod, nrt

SHAPE = {"sockets": 2, "nodes": 2, "cores": 8}


def world(nodes: int, policy: str) -> NumaWorld:
    """Nodes of which no two have the same amount of memory, as real ones have not."""
    found = NumaWorld()
    found.cluster.reserve(nodes)
    labels = {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: policy} if policy else {}
    for number in range(nodes):
        found.add_nodes(testing.node(f"n{number}", labels=labels, cpu="64", memory=f"{256 * 1024 * 1024 + number}Ki"))
        found.feed("NodeResourceTopology", nrt(f"n{number}", memory=f"{64 * 1024 * 1024 + number}Ki", **SHAPE))
    return found


def decide(found: NumaWorld, count: int, start: int, *, different: bool) -> tuple[list[float], list[float]]:
    """Seconds of each decision with its allocation, on the clock and of CPU (what other processes take away does not count)."""
    seconds, cpu = [], []
    for number in range(start, start + count):
        memory = f"{1024 + number}Mi" if different else "1Gi"
        info = found.parser.parse(bound_pod(cpu="4", memory=memory))
        began, used = time.perf_counter(), time.process_time()
        decision = found.cycle.decide(info)
        found.cluster.place(info, decision.slot)
        assert found.framework.run_reserve(decision.ctx, decision.slot).ok
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return seconds, cpu


def row(what: str, measured: tuple[list[float], list[float]], unit: str, build_for: float) -> Row:
    """The median, with the 99th percentile beside it."""
    factor = {"ms": 1e3, "µs": 1e6}[unit]
    wall, cpu = ([value * factor for value in values] for values in measured)
    note = f"p99 {np.percentile(wall, 99):.2f} {unit}, CPU p50 {np.median(cpu):.2f}, p99 {np.percentile(cpu, 99):.2f} {unit}"
    return Row(f"{what}, p50", statistics.median(wall), unit, build_for, note=note)


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    nodes, pods = (1000, 40) if quick else (5000, 200)
    result = []
    for policy, build_for in (("", 1.0), (names.NUMA_POLICY_SINGLE_NUMA_NODE, 5.0)):
        found = world(nodes, policy)
        decide(found, 20, 0, different=True)
        what = f"CPU-bound pods, {nodes} nodes with {policy or 'no'} NUMA policy"
        result.append(row(f"{what}, all different", decide(found, pods, 100, different=True), "ms", build_for))
        result.append(row(f"{what}, of one shape", decide(found, 2 * pods, 0, different=False), "µs", 500.0))
    return result


if __name__ == "__main__":
    script(rows)
