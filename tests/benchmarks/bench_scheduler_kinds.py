"""The scheduler with pods that ask for more: node affinity, preferred affinity, quotas, preemption; and beside gated and hopeless pods.

`--all` has the full sizes of preemption and churn.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np

from koord.api.kinds import NODES, PODS
from koord.api.objects import ElasticQuota, Pod
from koord.process import tuning
from roles.scheduler import testing
from tests.benchmarks.scheduling import PROFILE, Informers, body_of, decision_row, encode, run_app, world
from tests.benchmarks.table import Row, script

QUOTA = "quota.scheduling.koordinator.sh/"
ZONE = "topology.kubernetes.io/zone"


def affinities(nodes: int, pods: int) -> list[Row]:
    found = world(nodes)
    one_of = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z0", "z1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [one_of]}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference": one_of}]}
    near = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "a"}}}
    close = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": near}]}
    kinds: dict[str, dict[str, Any]] = {
        "required node affinity": {"nodeAffinity": required},
        "preferred node affinity": {"nodeAffinity": preferred},
        "preferred zone affinity": {"podAffinity": close},
        "preferred zone anti-affinity": {"podAntiAffinity": close},
    }
    return [
        decision_row(
            f"decision, {nodes} nodes, pods of one shape with {what}, mean",
            found,
            [testing.pod(cpu="100m", memory="64Mi", labels={"app": "a"}, affinity=affinity) for _ in range(pods)],
            500.0,
        )
        for what, affinity in kinds.items()
    ]


def quotas(nodes: int, pods: int, leaves: int = 300) -> list[Row]:
    """Three levels: ten, a hundred, and so many leaves; pods of all leaves in turn."""
    points: dict[str, Any] = {point: {"enabled": [{"name": "ElasticQuota"}]} for point in ("preFilter", "reserve")}
    for point, entry in PROFILE["plugins"].items():
        points.setdefault(point, {"enabled": []})["enabled"] = [*points.get(point, {}).get("enabled", []), *entry["enabled"]]
    found = world(nodes, {**PROFILE, "plugins": points})

    def quota(name: str, parent: str, share: int, *, is_parent: bool) -> None:
        labels = {f"{QUOTA}is-parent": str(is_parent).lower(), **({f"{QUOTA}parent": parent} if parent else {})}
        amounts = {"cpu": str(32 * nodes // share), "memory": f"{256 * nodes // share}Gi"}
        content = {
            "metadata": {"name": name, "namespace": "quotas", "uid": name, "labels": labels},
            "spec": {"min": amounts, "max": amounts},
        }
        found.feed("ElasticQuota", msgspec.convert(content, ElasticQuota))

    for number in range(10):
        quota(f"a{number}", "", 10, is_parent=True)
    for number in range(100):
        quota(f"b{number}", f"a{number % 10}", 100, is_parent=True)
    for number in range(leaves):
        quota(f"c{number}", f"b{number % 100}", leaves, is_parent=False)
    wanted = [testing.pod(cpu="100m", memory="64Mi", labels={f"{QUOTA}name": f"c{number % leaves}"}) for number in range(pods)]
    infos = [found.parser.parse(pod) for pod in wanted]
    for plugin in found.framework.plugins.values():
        if hasattr(plugin, "pod_seen"):
            for info in infos:
                plugin.pod_seen(info)
    seconds, began = [], time.process_time()
    for info in infos:
        started = time.perf_counter()
        decision = found.cycle.decide(info)
        found.cluster.place(info, decision.slot)
        found.framework.run_reserve(decision.ctx, decision.slot)
        seconds.append(time.perf_counter() - started)
    cpu = (time.process_time() - began) / pods
    what = f"decision and reserve, {nodes} nodes, pods of {leaves} quotas on 3 levels, mean"
    note = f"p50 {statistics.median(seconds) * 1e6:.0f} µs, CPU {cpu * 1e6:.0f} µs, each quota its own shape"
    return [Row(what, statistics.fmean(seconds) * 1e6, "µs", 1000.0, note=note)]


def preemption(nodes: int, each: int, pods: int) -> list[Row]:
    """Every node is full of pods of low priority, of differing importance; victims are taken away as they are named."""
    found = world(nodes)
    size = f"{32_000 // each}m"
    for number in range(nodes):
        found.add_pods(
            *(
                testing.pod(cpu=size, memory="1Gi", node=f"n{number}", priority=index, labels={"app": f"a{number % 50}"},
                    status={"startTime": f"2026-01-01T00:00:{number % 60:02}Z"})
                for index in range(each)
            )
        )  # fmt: skip
    seconds, cpu, victims = [], [], 0
    for _ in range(pods):
        info = found.parser.parse(testing.pod(cpu=size, memory="1Gi", priority=1000))
        started, began = time.perf_counter(), time.process_time()
        decision = found.cycle.decide(info)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - began)
        assert decision.victims, decision.message()
        for victim in decision.victims:
            found.cluster.remove_pod(victim.uid)
            victims += 1
        again = found.cycle.decide(info)
        found.cluster.place(info, again.slot)
    what = f"preemption, {nodes} nodes x {each} victims, whom to remove, CPU, p50"
    note = f"{nodes // 10} candidates; p99 {np.percentile(cpu, 99) * 1e3:.1f} ms, wall p50 {statistics.median(seconds) * 1e3:.1f} ms"
    return [Row(what, statistics.median(cpu) * 1e3, "ms", 20.0, note=f"{note}, {victims} removed")]


def beside(nodes: int, others: int, pods: int) -> list[Row]:
    """How much others that wait cost: gated pods, and pods that fit nowhere while nodes come and go."""

    def ordinary() -> list[Pod]:
        return [testing.pod(f"p{n}", uid=f"u{n}", cpu="500m", memory="512Mi") for n in range(pods)]

    def waiting(**spec: Any) -> Callable[[Informers], None]:
        def put(informers: Informers) -> None:
            for number in range(others):
                pod = testing.pod(f"w{number}", uid=f"w{number}", **spec)
                informers.put(PODS, f"default/w{number}", body_of(pod).encode())

        return put

    async def churn(informers: Informers) -> None:
        for number in itertools.count():
            name = f"extra-{number % 10}"
            informers.put(NODES, name, encode(testing.node(name, cpu="1", labels={"turn": str(number)})))
            await asyncio.sleep(0.02)

    alone = pods / run_app(nodes, ordinary()).seconds
    kinds: list[tuple[str, dict[str, Any], Callable[[Informers], Awaitable[None]] | None]] = [
        ("gated pods", {"schedulingGates": [{"name": "wait"}]}, None),
        ("pods that fit nowhere, a node changing every 20 ms", {"cpu": "64"}, churn),
    ]
    found = []
    for what, spec, other in kinds:
        rate = pods / run_app(nodes, ordinary(), before=waiting(**spec), beside=other).seconds
        note = f"{100 * rate / alone:.0f} % of the rate without them"
        found.append(Row(f"throughput in process, {nodes} nodes, beside {others} {what}", rate, "pods/s", 2000.0, "higher", note))
    return found


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    whole = "--all" in sys.argv
    nodes, pods = (1000, 300) if quick else (5000, 1000)
    return [
        *affinities(nodes, pods),
        *quotas(nodes, pods),
        *preemption(nodes, 4, 200 if whole else 20),
        *beside(nodes, 10_000 if whole else 1000, 10_000 if whole else 5 * pods // 2),
    ]


if __name__ == "__main__":
    script(rows)
