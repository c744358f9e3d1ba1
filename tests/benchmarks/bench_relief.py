"""Two days of a thousand nodes under the installed profile of LowNodeLoad, with the deciding halves alone: the descheduler's rounds decide
who leaves and where it may go, the installed scheduler's cycle decides where it goes, and what pods use is modelled: a base, a day's
curve, surges, noise. Time goes in steps of five minutes, of which each has a round. A row a mix: pods moved for each hot node that was
relieved, and the fewest that could have done."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from koord.api import kinds
from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.api.times import format_time
from koord.process import tuning
from roles.descheduler import registry
from roles.descheduler.framework.evicting import EvictOptions, EvictResult, NoController
from roles.descheduler.framework.limits import Limits
from roles.descheduler.framework.round import Profile, Rounds
from roles.descheduler.snapshot import NodeView, PodView, pod_view
from tests.benchmarks.bench_descheduler import Acting
from tests.benchmarks.table import Row, script

INSTALLED = Path(__file__).resolve().parents[2] / "configs" / "install" / "30-config.yaml"
STEP = 300.0  # seconds
CORES, MEMORY = 16_000, 64 << 30
SYSTEM = 800  # milli-CPU
A_NODE, A_WORKLOAD = 2, 0.1  # pods of a node, and share of a workload's pods (one at least), that migrate at once
MOVES_A_NODE = 2.0
SURGES, SURGE = 1.0, 4 * 3600.0  # a day, and for how many seconds


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods of a mix: how many a node, what they request and use (milli-CPU), and by how much a day changes that."""

    pods: int
    requests: int
    uses: int
    day: float = 0.2
    prod: bool = True
    held: float = 0.0  # share of the workloads whose budget allows nothing
    hot: float = 0.0  # share of the workloads that have surges


MIXES: dict[str, list[Kind]] = {
    "services": [Kind(12, 700, 500, hot=0.12)],
    "many small pods": [Kind(48, 180, 130, hot=0.1)],
    "budgets": [Kind(12, 700, 500, held=0.3, hot=0.12)],
    "batch beside services": [Kind(6, 900, 520, hot=0.1), Kind(10, 350, 280, day=0.5, prod=False)],
    "large and small": [Kind(2, 2500, 1500, hot=0.1), Kind(16, 250, 150, hot=0.1)],
}


@dataclass(slots=True)
class Living:
    """A pod with what it uses."""

    view: PodView
    base: float
    day: float
    phase: float
    workload: int
    held: bool
    node: int = 0
    moved: list[float] = field(default_factory=list)


def document(name: str) -> dict[str, Any]:
    """A part of the installed configuration."""
    found = next(each for each in yaml.safe_load_all(INSTALLED.read_text()) if each["metadata"]["name"] == name)
    made: dict[str, Any] = yaml.safe_load(found["data"][name])
    return made


def on(pod: Pod, node: str) -> Pod:
    """The pod on a node, "" for none."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


class Cluster:
    """Nodes, pods, and what they use now."""

    def __init__(self, count: int, mix: list[Kind], seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = 1.8e9
        self.nodes = [self._node(number) for number in range(count)]
        self.pods: dict[str, Living] = {}
        self.on: list[list[Living]] = [[] for _ in self.nodes]
        self.surges: dict[int, float] = {}  # workloads that have surges, and until when the last one lasts
        workload = 0
        for number, kind in enumerate(mix):
            for _ in range(kind.pods * count // 10):
                workload += 1
                if self.draw.random() < kind.hot:
                    self.surges[workload] = 0.0
                phase, held = self.draw.random() * 0.25, self.draw.random() < kind.held
                for replica in range(10):
                    living = self._pod(number, kind, workload, replica)
                    living.base, living.phase, living.held = kind.uses * self.draw.uniform(0.85, 1.15), phase, held
                    self._start(living)

    @staticmethod
    def _node(number: int) -> Node:
        name = f"n{number:04}"
        amounts = {"cpu": f"{CORES}m", "memory": str(MEMORY), "pods": "110"}
        meta = {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}}
        return convert({"metadata": meta, "status": {"allocatable": amounts, "capacity": amounts}}, Node)

    @staticmethod
    def _pod(number: int, kind: Kind, workload: int, replica: int) -> Living:
        requests = {"cpu": f"{kind.requests}m", "memory": "512Mi"}
        labels = {"koordinator.sh/qosClass": "LS" if kind.prod else "BE", "app": f"w{workload}"}
        meta = {"name": f"w{workload}-{replica}", "namespace": "d", "uid": f"{number}-{workload}-{replica}", "labels": labels}
        spec = {
            "containers": [{"name": "c", "resources": {"requests": requests}}],
            "schedulerName": "koord-scheduler", "priority": 9500 if kind.prod else 5500,
        }  # fmt: skip
        pod = convert({"metadata": meta, "spec": spec, "status": {"phase": "Running", "qosClass": "Burstable"}}, Pod)
        return Living(pod_view(pod, None), 0.0, kind.day, 0.0, workload, False)

    def _start(self, living: Living) -> None:
        """Anywhere: what a cluster looks like after years of pods that came and went."""
        at = self.draw.randrange(len(self.nodes))
        self.pods[living.view.pod.metadata.uid] = living
        self.put(living, at)

    def put(self, living: Living, at: int) -> None:
        """The pod runs there from now on."""
        living.view.pod = on(living.view.pod, self.nodes[at].metadata.name)
        living.node = at
        self.on[at].append(living)

    def move(self, living: Living, at: int) -> None:
        """The pod leaves its node for another."""
        self.on[living.node].remove(living)
        living.moved.append(self.now)
        self.put(living, at)

    def step(self) -> None:
        """Time goes on: a report of every node."""
        self.now += STEP
        noise = self.draw.gauss
        for workload, until in self.surges.items():
            if until < self.now and self.draw.random() < SURGES * STEP / 86_400.0:
                self.surges[workload] = self.now + self.draw.uniform(0.5, 1.5) * SURGE
        for living in self.pods.values():
            wave = 1.0 + living.day * math.sin(2 * math.pi * (self.now / 86_400.0 + living.phase))
            wave *= 3.0 if self.surges.get(living.workload, 0.0) > self.now else 1.0
            living.view.usage = {"cpu": max(int(living.base * wave * noise(1.0, 0.05)), 1), "memory": 300 << 20}
        for pods in self.on:
            wanted = sum(each.view.usage["cpu"] for each in pods if each.view.usage)
            if wanted > CORES - SYSTEM:  # nobody gets more than there is
                for each in pods:
                    each.view.usage = {**(each.view.usage or {}), "cpu": (each.view.usage or {})["cpu"] * (CORES - SYSTEM) // wanted}

    def views(self) -> Iterator[NodeView]:
        """The snapshot of a round."""
        allocatable = {"cpu": CORES, "memory": MEMORY, "pods": 110}
        for node, pods in zip(self.nodes, self.on, strict=True):
            views = [each.view for each in pods]
            for each in views:
                each.here, each.leaving, each.accepted = True, False, False
            usage = {"cpu": SYSTEM + sum((each.usage or {})["cpu"] for each in views), "memory": (2 << 30) + len(views) * (300 << 20)}
            prod = {"cpu": sum((each.usage or {})["cpu"] for each in views if each.is_prod), "memory": 0, "pods": 0}
            requested = {name: sum(each.requests.get(name, 0) for each in views) for name in ("cpu", "memory")}
            view = NodeView(node, allocatable, views, {**usage, "pods": len(views)}, prod, requested=requested, capacity=allocatable)
            view.everyone = [each.pod for each in views]
            yield view

    def metric(self, at: int) -> NodeMetric:
        """A node's report as the scheduler reads it."""
        used = SYSTEM + sum((each.view.usage or {})["cpu"] for each in self.on[at])
        whole = {"nodeUsage": {"resources": {"cpu": f"{used}m", "memory": str((2 << 30) + len(self.on[at]) * (300 << 20))}}}
        status = {"updateTime": format_time(self.now), "nodeMetric": whole}
        return convert({"metadata": {"name": self.nodes[at].metadata.name}, "status": status}, NodeMetric)


class Moving(NoController):
    """An evictor that keeps to the limits of migrations; the installed scheduler places each pod among the nodes that may take it."""

    name = "Moving"

    def __init__(self, cluster: Cluster, scheduler: Any) -> None:
        self.cluster, self.scheduler = cluster, scheduler
        self.nodes: Counter[int] = Counter()
        self.workloads: Counter[int] = Counter()
        self.rows = {node.metadata.name: number for number, node in enumerate(cluster.nodes)}
        self.moves: list[tuple[Living, int]] = []

    def begin(self) -> None:
        """A new round: the migrations of the last one have ended."""
        self.nodes.clear()
        self.workloads.clear()
        self.moves.clear()

    def filter(self, pod: Pod) -> str:
        living = self.cluster.pods[pod.metadata.uid]
        if living.held:
            return "its disruption budget allows nothing"
        if self.nodes[living.node] >= A_NODE:
            return "pods of its node migrate already"
        return "pods of its workload migrate already" if self.workloads[living.workload] >= max(int(10 * A_WORKLOAD), 1) else ""

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        living, relief = self.cluster.pods[pod.metadata.uid], options.relief
        assert relief is not None
        found = self._place(living, [self.rows[name] for name in relief.nodes])
        if found is None:
            return EvictResult(False, "the scheduler finds no place")
        self.nodes[living.node] += 1
        self.workloads[living.workload] += 1
        self.moves.append((living, found))
        return EvictResult(True)

    def _place(self, living: Living, targets: list[int]) -> int | None:
        from roles.scheduler.whatif import Snapshot

        cluster, coming = self.cluster, {at: [each for each, to in self.moves if to == at] for at in targets}
        pods = [each.view.pod for at in targets for each in (*cluster.on[at], *coming[at])]
        objects = {kinds.NODEMETRICS.kind: [cluster.metric(at) for at in targets]}
        simulation = self.scheduler.simulate(Snapshot([cluster.nodes[at] for at in targets], pods, (), objects), now=cluster.now)
        (found,) = simulation.place([on(living.view.pod, "")])
        return self.rows[found.node] if found.placed else None


def fewest(cluster: Cluster, at: int, high: int) -> int:
    """How many pods would have to leave, the largest that may first."""
    over = SYSTEM + sum((each.view.usage or {})["cpu"] for each in cluster.on[at]) - high
    for count, used in enumerate(sorted(((each.view.usage or {})["cpu"] for each in cluster.on[at] if not each.held), reverse=True), 1):
        over -= used
        if over <= 0:
            return count
    return 0  # it cannot be relieved


async def lived(mix: list[Kind], nodes: int, days: float, seed: int) -> dict[str, float]:
    """What came of it."""
    from roles.scheduler.whatif import configured

    profile = document("koord-descheduler-config")["profiles"][0]
    args = next(each["args"] for each in profile["pluginConfig"] if each["name"] == "LowNodeLoad")
    args = {name: value for name, value in args.items() if name not in ("apiVersion", "kind")}
    row = registry.PLUGIN_TYPES["LowNodeLoad"]
    plugin = row.make(row.args.model_validate(args), STEP)
    high = CORES * args["highThresholds"]["cpu"] // 100
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump({**document("koord-scheduler-config"), "leaderElection": {"leaderElect": False}}))
        file.flush()
        scheduler = configured(file.name)
    cluster = Cluster(nodes, mix, seed)
    evictor = Moving(cluster, scheduler)
    only = Profile("bench", None, evictor, [evictor], {"deschedule": [], "balance": [plugin]})
    rounds = Rounds([only], selector=None, limits=Limits(), dry_run=False)
    run: Counter[int] = Counter()
    ever: set[int] = set()
    relieved = needed = alone = 0
    abnormal: set[int] = set()
    left: set[int] = set()  # nodes that pods have left since they became abnormal
    total = back = 0
    last = 0.0
    for number in range(int(days * 86_400 / STEP)):
        cluster.step()
        evictor.begin()
        views = list(cluster.views())
        for at, view in enumerate(views):
            is_hot = (view.usage or {})["cpu"] > high
            run[at] = run[at] + 1 if is_hot else 0
            if run[at] == plugin._pools[0].anomaly.consecutive_abnormalities + 1 and at not in abnormal:
                abnormal.add(at)
                ever.add(at)
            elif not is_hot and at in abnormal:
                abnormal.discard(at)
                relieved, alone = relieved + (at in left), alone + (at not in left)
                left.discard(at)
        await rounds.run(views, cluster.now, Acting())
        for living, to in evictor.moves:
            back += bool(living.moved) and cluster.now - living.moved[-1] < 6 * 3600
            if living.node not in left:
                left.add(living.node)
                needed += fewest(cluster, living.node, high)
            cluster.move(living, to)
            total, last = total + 1, number * STEP / 3600
    return {
        "pods": len(cluster.pods), "moved": total, "ever": len(ever), "relieved": relieved, "now": len(abnormal), "needed": needed,
        "back": back, "last": last, "alone": alone,
    }  # fmt: skip


def rows(quick: bool) -> list[Row]:
    nodes, days = (40, 0.25) if quick else (1000, 2.0)
    tuning.relax_collector()
    made = []
    for name, mix in MIXES.items():
        began = time.process_time()
        found = asyncio.run(lived(mix, nodes, days, 1))
        what = f"descheduler: moves for each hot node relieved, {name}, {nodes} nodes, {found['pods']} pods, {days:g} days"
        note = (
            f"{found['ever']} nodes were hot for more than five rounds; {found['relieved']} times one was relieved by moves, "
            f"{found['alone']} times it cooled down alone, {found['now']} are hot; {found['moved']} moves, "
            f"{found['needed']} would have done, {found['back']} were of a pod that had been moved within 6 h; "
            f"the last one after {found['last']:.0f} h; {time.process_time() - began:.0f} s CPU"
        )
        made.append(Row(what, found["moved"] / max(found["relieved"], 1), "moves", MOVES_A_NODE, note=note))
        print(made[-1], file=sys.stderr, flush=True)
    return made


if __name__ == "__main__":
    script(rows)
