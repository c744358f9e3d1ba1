"""Decisions about GPU pods: 5,000 nodes with eight GPUs and four NICs each, part of them in use."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import msgspec
import numpy as np

from koord.api.objects import Device, Pod
from koord.process import tuning
from roles.scheduler import testing
from tests.benchmarks.table import Row, script
from tests.support.devices import (
    CORE,
    JOINT,
    MEMORY,
    MODEL,
    PARTITION,
    RATIO,
    RDMA,
    SHARED,
    bare,
    card,
    device,
    entry,
    gpus,
    holder,
    pod,
    world,
)

SAME_PCIE = json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})
HALF = {"gpu_core": 50, "gpu_memory_ratio": 50, "gpu_memory": "40Gi"}


def machines(nodes: int) -> testing.World:
    """A third of the nodes is empty, a third has some whole cards in use, a third some halves; every fifth is an H100 board."""
    found = world()
    found.cluster.reserve(nodes)
    nics = [card("rdma", n, numa=n // 2, pcie=f"p{n}") for n in range(4)]
    for number in range(nodes):
        name = f"n{number}"
        found.add_nodes(bare(name, {MODEL: "H100"} if number % 5 == 0 else {}))
        found.feed("Device", msgspec.convert(device(name, [*gpus(8), *nics]), Device))
        if number % 3:
            share = HALF if number % 3 == 2 else {}
            held = [entry(minor, **share) for minor in range(number % 7)]
            found.add_pods(holder(f"x{number}", name, {"gpu": held}, uid=f"x{number}"))
    return found


def decide(found: testing.World, pods: list[Pod]) -> tuple[list[float], str]:
    """CPU seconds of each decision with its placement and reservation (what others take does not count there), with a note."""
    infos = [found.parser.parse(item) for item in pods]
    seconds = []
    began = time.perf_counter()
    for info in infos:
        started = time.process_time()
        decision = found.cycle.decide(info)
        if decision.scheduled:
            found.cluster.place(info, decision.slot)
            found.framework.run_reserve(decision.ctx, decision.slot)
        seconds.append(time.process_time() - started)
    clock = (time.perf_counter() - began) / len(infos)
    return seconds, f"{statistics.fmean(seconds) * 1e3:.2f} ms on the average, {clock * 1e3:.2f} ms by the clock"


def different(number: int) -> Pod:
    """Pods of which no two are alike in what they ask for or how."""
    cpu = f"{100 + number}m"
    kinds: list[dict[str, Any]] = [
        {"requests": {CORE: 100, RATIO: 100}},
        {"requests": {CORE: 200, RATIO: 200}},
        {"requests": {CORE: 20 + number % 50, RATIO: 20 + number % 40}},
        {"requests": {MEMORY: f"{1 + number % 60}Gi"}},
        {"requests": {SHARED: 2, CORE: 40, RATIO: 2 * (10 + number % 20)}},
        {"requests": {CORE: 200, RATIO: 200}, "annotations": {PARTITION: "{}"}},
        {"requests": {CORE: 200, RATIO: 200, RDMA: 1}, "annotations": {JOINT: SAME_PCIE}},
    ]
    kind = kinds[number % len(kinds)]
    return pod(kind["requests"], cpu=cpu, annotations=kind.get("annotations", {}))


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    nodes, pods = (1000, 100) if quick else (5000, 700)
    found = machines(nodes)
    decide(found, [different(number) for number in range(14)])
    mixed, mixed_cpu = decide(found, [different(1000 + number) for number in range(pods)])
    alike, alike_cpu = decide(found, [pod({CORE: 30, RATIO: 30}, cpu="1") for _ in range(2 * pods)])
    whole, whole_cpu = decide(found, [pod({CORE: 200, RATIO: 200}, cpu="1") for _ in range(pods)])
    what = f"GPU pods, {nodes} nodes of 8 GPUs, CPU,"
    return [
        Row(f"{what} all different, p50", statistics.median(mixed) * 1e3, "ms", 0.8, note=mixed_cpu),
        Row(f"{what} all different, p99", float(np.percentile(mixed, 99)) * 1e3, "ms", 5.0),
        Row(f"{what} of one shape, p50", statistics.median(alike) * 1e6, "µs", 200.0, note=alike_cpu),
        Row(f"{what} pairs of one shape, p50", statistics.median(whole) * 1e6, "µs", 200.0, note=whole_cpu),
    ]


if __name__ == "__main__":
    script(rows)
