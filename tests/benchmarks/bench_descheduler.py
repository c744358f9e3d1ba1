"""One LowNodeLoad pass of the descheduler over many nodes: seconds and memory (API server stubbed; evictions are made without waiting)."""

from __future__ import annotations

import asyncio
import time

from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.api.times import format_time
from roles.descheduler import registry
from roles.descheduler.framework.evicting import Evicting, EvictOptions, EvictResult, NoController
from roles.descheduler.framework.limits import Limits
from roles.descheduler.framework.round import Outcome, Profile, Rounds
from roles.descheduler.picture import Pictures
from tests.benchmarks.table import Row, current_rss_mib, script

PODS_A_NODE = 50
HOT_EVERY = 10  # one node in ten is hot
ARGS = {
    "lowThresholds": {"cpu": 30},
    "highThresholds": {"cpu": 60},
    "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1, "timeout": "1m"},
}


class Accepting(NoController):
    """A door that lets every pod leave at once."""

    name = "Accepting"

    def filter(self, pod: Pod) -> str:
        return ""

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        return EvictResult(True)


class Acting:
    """Nothing is written."""

    def may_write(self) -> bool:
        return True

    async def evict(self, door: Evicting, pod: Pod, options: EvictOptions) -> EvictResult:
        return await door.evict(pod, options)

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        return EvictResult(True)

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        return EvictResult(True)

    async def where(self, pod: Pod) -> str:
        return ""


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


async def a_pass(machines: list[tuple[Node, list[Pod], NodeMetric]], pictures: Pictures, now: float) -> tuple[float, float, Outcome]:
    """Seconds to make the picture, seconds of the round, and what it did."""
    began = time.perf_counter()
    pictures.begin()
    views = [pictures.node(*entry, now=now) for entry in machines]
    seen = time.perf_counter()
    row = registry.PLUGIN_TYPES["LowNodeLoad"]
    door = Accepting()
    profile = Profile("bench", None, door, [door], {"deschedule": [], "balance": [row.make(row.args.model_validate(ARGS), 0.0)]})
    outcome = await Rounds([profile], selector=None, limits=Limits(), dry_run=False).run(views, now, Acting())
    return seen - began, time.perf_counter() - seen, outcome


async def measure(quick: bool) -> list[Row]:
    count = 500 if quick else 5000
    before, now = current_rss_mib(), time.time()
    machines = [machine(number, now) for number in range(count)]
    held = current_rss_mib() - before
    pictures = Pictures()
    await a_pass(machines, pictures, now)
    looking, deciding, outcome = await a_pass(machines, pictures, now)
    what = f"{count} nodes × {PODS_A_NODE} pods, {count // HOT_EVERY} hot"
    return [
        Row(f"descheduler: one LowNodeLoad pass, {what}", looking + deciding, "s",
            note=f"{looking:.2f} s to see, {deciding:.2f} s for {outcome.evicted} evictions with targets and records"),
        Row(f"descheduler: memory of a pass, {what}", current_rss_mib() - before - held, "MiB", note=f"beside {held:.0f} MiB of objects"),
    ]  # fmt: skip


def rows(quick: bool) -> list[Row]:
    return asyncio.run(measure(quick))


if __name__ == "__main__":
    script(rows)
