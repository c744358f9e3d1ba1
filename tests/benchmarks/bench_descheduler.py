"""One LowNodeLoad pass of the descheduler over many nodes, and a turn of each other plugin: seconds, and for how long at most a turn keeps
the event loop (API server stubbed; evictions are made without waiting)."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.api.times import format_time
from koord.process import tuning
from roles.descheduler import registry
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import Outcome
from roles.descheduler.framework.evicting import Evicting, EvictOptions, EvictResult, NoController
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.limits import Limits
from roles.descheduler.framework.round import Profile, Rounds
from roles.descheduler.snapshot import Snapshots
from tests.benchmarks.table import Row, current_rss_mib, script

PODS_A_NODE = 50
HOT_EVERY = 10  # one node in ten is hot
ARGS = {
    "lowThresholds": {"cpu": 30},
    "highThresholds": {"cpu": 60},
    "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1, "timeout": "1m"},
}


class Accepting(NoController):
    """An evictor that lets every pod leave at once."""

    name = "Accepting"

    def filter(self, pod: Pod) -> str:
        return ""

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        return EvictResult(True)


class Acting:
    """Nothing is written."""

    def may_write(self) -> bool:
        return True

    async def evict(self, evictor: Evicting, pod: Pod, options: EvictOptions) -> EvictResult:
        return await evictor.evict(pod, options)

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        return EvictResult(True)

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        return EvictResult(True)

    async def where(self, pod: Pod) -> str:
        return ""

    def waited(self, seconds: float) -> None:
        pass

    async def rehearse(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        return False


def machine(number: int, now: float) -> tuple[Node, list[Pod], NodeMetric]:
    """A node with its pods and its metric; a hot one uses eight cores of ten."""
    name, used = f"n{number:05}", "150m" if number % HOT_EVERY == 0 else "20m"
    status = {"allocatable": {"cpu": "10", "memory": "64Gi", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}
    requests = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    pods = [
        {
            "metadata": {"name": f"p{index}", "namespace": name, "uid": f"{name}-{index}", "labels": {"koordinator.sh/qosClass": "LS"}},
            "spec": {"nodeName": name, "priority": 9500, "containers": [{"name": "c", "image": "i", "resources": requests}]},
            "status": {"phase": "Running"},
        }
        for index in range(PODS_A_NODE)
    ]
    entries = [
        {"namespace": name, "name": f"p{index}", "podUsage": {"resources": {"cpu": used, "memory": "200Mi"}}}
        for index in range(PODS_A_NODE)
    ]
    system = {"systemUsage": {"resources": {"cpu": "500m", "memory": "1Gi"}}}
    metric = {"metadata": {"name": name}, "status": {"updateTime": format_time(now), "nodeMetric": system, "podsMetric": entries}}
    node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": status}
    return convert(node, Node), [convert(pod, Pod) for pod in pods], convert(metric, NodeMetric)


async def a_pass(machines: list[tuple[Node, list[Pod], NodeMetric]], snapshots: Snapshots, now: float) -> tuple[float, float, Outcome]:
    """Seconds to make the snapshot, seconds of the round, and what it did."""
    began = time.perf_counter()
    snapshots.begin()
    views = [snapshots.node(*entry, now=now) for entry in machines]
    seen = time.perf_counter()
    row = registry.PLUGIN_TYPES["LowNodeLoad"]
    evictor = Accepting()
    profile = Profile("bench", None, evictor, [evictor], {"deschedule": [], "balance": [row.make(row.args.model_validate(ARGS), 0.0)]})
    outcome = await Rounds([profile], selector=None, limits=Limits(), dry_run=False).run(views, now, Acting())
    return seen - began, time.perf_counter() - seen, outcome


PLUGIN_ARGS: dict[str, dict[str, Any]] = {
    "LowNodeLoad": ARGS,
    "PodLifeTime": {"maxPodLifeTimeSeconds": 1},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 1},
    "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
    "LowNodeUtilization": {"thresholds": {"cpu": 1}, "targetThresholds": {"cpu": 2}},
    "HighNodeUtilization": {"thresholds": {"cpu": 1}},
    "CustomPriority": {"evictionOrder": [{"name": f"z{each}", "nodeSelector": {"matchLabels": {"zone": f"z{each}"}}} for each in (0, 1)]},
}
REPLICAS = 10  # pods of a workload, which spread over zones and exclude one another on a host


def spread_out(count: int, pods_a_node: int, now: float) -> list[tuple[Node, list[Pod], NodeMetric]]:
    """Nodes in three zones, and workloads with the usual rules about where their pods may be."""
    names = [f"n{number:05}" for number in range(count)]
    on: dict[str, list[Pod]] = {name: [] for name in names}
    draw = random.Random(1)
    for workload in range(count * pods_a_node // REPLICAS):
        match = {"labelSelector": {"matchLabels": {"app": f"a{workload}"}}}
        apart = [match | {"topologyKey": "kubernetes.io/hostname"}]
        spec = {
            "containers": [{"name": "c", "image": f"i{workload}", "resources": {"requests": {"cpu": "100m"}}}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
            "topologySpreadConstraints": [match | {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        }
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"r{workload}", "uid": f"r{workload}", "controller": True}
        for replica in range(REPLICAS):
            where = names[draw.randrange(count)]
            meta = {"name": f"p{workload}-{replica}", "namespace": "d", "uid": f"{workload}-{replica}", "ownerReferences": [owner]}
            meta |= {"labels": {"app": f"a{workload}", "team": f"t{workload % 7}"}, "creationTimestamp": "2026-01-01T00:00:00Z"}
            status = {"phase": "Running", "qosClass": "Burstable"}
            on[where].append(convert({"metadata": meta, "spec": {"nodeName": where, **spec}, "status": status}, Pod))
    made = []
    for number, name in enumerate(names):
        node, _, metric = machine(number, now)
        labels = {"kubernetes.io/hostname": name, "zone": f"z{number % 3}"}
        made.append((msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)), on[name], metric))
    return made


def a_turn(name: str, machines: list[tuple[Node, list[Pod], NodeMetric]], now: float, *, stalls: bool) -> float:
    """CPU seconds of a plugin's turn in which whatever it asks for is granted; or (`stalls`) the longest of the times between two things
    that it asks for, for which nothing else in the process has its turn. Both in one run would measure the clock."""
    snapshots = Snapshots()
    views = [snapshots.node(*entry, now=now) for entry in machines]
    row = registry.PLUGIN_TYPES[name]
    plugin = row.make(row.args.model_validate(PLUGIN_ARGS.get(name, {})), 60.0)
    turn = plugin.turn(views, Handle("bench", name, now, [Accepting()]))
    gc.collect()
    gc.freeze()  # as the role does after its first lists
    began = last = time.thread_time()
    longest, answer = 0.0, None
    while True:
        try:
            turn.send(answer)
        except StopIteration:
            break
        finally:
            if stalls:
                longest, last = max(longest, time.thread_time() - last), time.thread_time()
        answer = True
    return longest if stalls else time.thread_time() - began


def node_fit(machines: list[tuple[Node, list[Pod], NodeMetric]], now: float) -> tuple[float, float]:
    """CPU seconds to look at all nodes once for nodeFit, and for each pod when all of them are asked about then."""
    snapshots = Snapshots()
    views = [snapshots.node(*entry, now=now) for entry in machines]
    gc.collect()
    gc.freeze()
    began = time.thread_time()
    columns = Columns(views)
    for _ in columns.learn():
        pass
    seen, asked = time.thread_time(), [view for node in views for view in node.pods]
    for view in asked:
        columns.fits_elsewhere(view)
    return seen - began, (time.thread_time() - seen) / len(asked)


def turns(quick: bool) -> list[Row]:
    """A row for each plugin."""
    count, pods, now = (500, 10, time.time()) if quick else (10_000, 20, time.time())
    tuning.relax_collector()  # as the role does
    machines = spread_out(count, pods, now)
    found = []
    for name in registry.PLUGIN_TYPES:
        with tuning.collecting_in_small_steps():  # as in the role's rounds
            seconds, longest = (a_turn(name, machines, now, stalls=stalls) for stalls in (False, True))
        what = f"descheduler: a turn of {name}, {count} nodes × {pods} pods"
        found.append(Row(what, seconds, "s CPU", build_for=1.5, note=f"the loop is kept for {longest * 1000:.0f} ms at most"))
    look, ask = node_fit(machines, now)
    what = f"descheduler: nodeFit, {count} nodes × {pods} pods, every node looked at"
    found.append(Row(what, look, "s CPU", build_for=1.5, note=f"then {ask * 1e6:.0f} µs for each pod"))
    gc.unfreeze()
    return found


async def measure(quick: bool) -> list[Row]:
    count = 500 if quick else 5000
    before, now = current_rss_mib(), time.time()
    machines = [machine(number, now) for number in range(count)]
    held = current_rss_mib() - before
    snapshots = Snapshots()
    await a_pass(machines, snapshots, now)
    looking, deciding, outcome = await a_pass(machines, snapshots, now)
    what = f"{count} nodes × {PODS_A_NODE} pods, {count // HOT_EVERY} hot"
    return [
        Row(f"descheduler: one LowNodeLoad pass, {what}", looking + deciding, "s",
            note=f"{looking:.2f} s to see, {deciding:.2f} s for {outcome.evicted} evictions with targets and records"),
        Row(f"descheduler: memory of a pass, {what}", current_rss_mib() - before - held, "MiB", note=f"beside {held:.0f} MiB of objects"),
    ]  # fmt: skip


def rows(quick: bool) -> list[Row]:
    return [*asyncio.run(measure(quick)), *turns(quick)]


if __name__ == "__main__":
    script(rows)
