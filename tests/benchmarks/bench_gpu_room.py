"""How long large jobs wait for GPUs on a busy cluster whose pods come and go, with FragmentationAware making room and without.

Pods like those of the openb trace arrive at random, stay for a while, and are placed by the scheduler's own cycle with the installed
profile; who fits nowhere waits and is tried again when a pod leaves. Every minute FragmentationAware has its turn; its moves take no time.
With `--data` nodes, pods and lifetimes are drawn from those of a folder in the form of the trace, else they are generated.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import orjson

from koord.api import names
from koord.api.objects import Node, Pod
from koord.api.times import format_time
from koord.process import tuning
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import Evict, Rehearse
from roles.descheduler.framework.handle import Handle
from roles.descheduler.plugins.gpuroom import GPURoomArgs, Rooms
from roles.descheduler.snapshot import node_view
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.interfaces import PodObserver
from tests.benchmarks import openb

LARGE = 4
"""Cards from which a job is large."""
ROUND = 60.0
"""Seconds between rounds of the descheduler."""
LONGEST = 86_400.0
"""Seconds; who stays longer is cut off."""
MEDIAN, SPREAD = 6.29, 1.72  # of the logarithm of the trace's lifetimes in seconds


class Job(NamedTuple):
    """A pod that comes at a time and stays for so long once it runs, in seconds."""

    at: float
    stays: float
    ask: openb.Ask
    number: int


class Result(NamedTuple):
    """Waits in seconds of large jobs and of the others, and how many pods came and moved."""

    large: list[float]
    small: list[float]
    pods: int
    moved: int
    unplaced: int


def jobs(asks: Sequence[openb.Ask], lifetimes: Sequence[float], capacity: int, count: int, load: float, seed: int) -> list[Job]:
    """So many pods, at a rate at which `load` of the cards (thousandths: `capacity`) is asked for on average."""
    rng = random.Random(seed)
    drawn = [(rng.choice(asks), min(LONGEST, rng.choice(lifetimes))) for _ in range(count)]
    work = sum(ask.gpu * stays for ask, stays in drawn)
    at, found = 0.0, []
    for number, (ask, stays) in enumerate(drawn):
        at += rng.expovariate(count * capacity * load / work)
        found.append(Job(at, stays, ask, number))
    return found


@dataclass
class Cluster:
    """The cluster and its queue on a clock of its own."""

    machines: Sequence[openb.Machine]
    rooms: Rooms | None
    seed: int
    waiting: dict[str, tuple[Job, PodInfo]] = field(default_factory=dict)
    running: dict[str, tuple[Job, PodInfo]] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    objects: dict[str, Pod] = field(default_factory=dict)
    waits: dict[int, float] = field(default_factory=dict)
    moved: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.world = openb.cluster(self.machines, openb.profile("installed"), self.seed)
        self.devices: Any = self.world.framework.plugins["DeviceShare"]
        self.watching = [plugin for plugin in self.world.framework.plugins.values() if isinstance(plugin, PodObserver)]
        self.nodes: list[Node] = [openb.node_of(machine) for machine in self.machines]

    def comes(self, job: Job) -> None:
        """A pod arrives."""
        pod = openb.pod_of(job.ask, job.number)
        info = self.world.parser.parse(pod)
        for plugin in self.watching:
            plugin.pod_seen(info)
        self.objects[info.uid] = pod
        self.waiting[info.uid] = job, info
        self.attempt(info.uid)

    def attempt(self, uid: str) -> bool:
        """Try to place a pod; it stays from then on for as long as it does."""
        job, info = self.waiting[uid]
        if not self.world.schedule(info).scheduled:
            return False
        del self.waiting[uid]
        self.running[uid] = job, info
        self.waits[job.number] = self.now - job.at
        heapq.heappush(self.ends, (self.now + job.stays, uid))
        return True

    def leaves(self, uid: str) -> None:
        """A pod is done, and those who wait are tried."""
        self.world.cluster.remove_pod(uid)
        for plugin in self.watching:
            plugin.pod_gone(uid)
        del self.running[uid], self.objects[uid]
        for waits in list(self.waiting):
            self.attempt(waits)

    # ---------------------------------------------------------------- the descheduler

    def placed(self, uid: str) -> Pod:
        """A pod as the descheduler sees it."""
        slot, pod = self.world.cluster.slot_of_pod(uid), self.objects[uid]
        holding = self.devices.columns.taken(uid)
        annotations = {}
        if holding is not None:
            found = [
                {"minor": share.minor, "resources": {name: str(value) for name, value in share.amounts}} for share in holding.allocation
            ]
            annotations[names.ANNOTATION_DEVICE_ALLOCATED] = orjson.dumps({"gpu": found}).decode()
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
        spec = msgspec.structs.replace(pod.spec, node_name=self.world.cluster.name_of(slot))
        return msgspec.structs.replace(pod, metadata=meta, spec=spec)

    def turn(self) -> None:
        """One round of the descheduler."""
        if self.rooms is None or not any(job.ask.cards >= LARGE for job, _ in self.waiting.values()):
            return
        where: dict[str, list[Pod]] = {node.metadata.name: [] for node in self.nodes}
        for uid in self.running:
            pod = self.placed(uid)
            where[pod.spec.node_name].append(pod)
        views = [node_view(node, where[node.metadata.name], None, now=self.now) for node in self.nodes]
        pods = [self._waits(uid, job) for uid, (job, _) in self.waiting.items() if job.ask.cards >= LARGE]
        handle = Handle("bench", "FragmentationAware", self.now, (), waiting=pods, clock=lambda: 0.0)
        turn = self.rooms.turn(views, Columns(views), handle, lambda pod: "", dry_run=False)
        effect = next(turn, None)
        while effect is not None:
            answer = True
            if isinstance(effect, Rehearse):
                answer = self.moves(effect.pod.metadata.uid, [pod.metadata.uid for pod in effect.leaving])
            elif isinstance(effect, Evict):
                self.moved += 1  # it has moved when the scheduler agreed
            try:
                effect = turn.send(answer)
            except StopIteration:
                return

    def _waits(self, uid: str, job: Job) -> Pod:
        pod = self.objects[uid]
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, creation_timestamp=format_time(job.at)))

    def moves(self, waits: str, leaving: Sequence[str]) -> bool:
        """Take pods off, place the one that waits, and them after it on other nodes; as it was where one of them fits nowhere."""
        cluster, before = self.world.cluster, {}
        for uid in leaving:
            before[uid] = cluster.slot_of_pod(uid), self.devices.columns.taken(uid)
            cluster.remove_pod(uid)
        done = [waits] if self.world.schedule(self.waiting[waits][1]).scheduled else []
        for uid in leaving if done else ():
            if not self.world.schedule(self.running[uid][1]).scheduled:
                break
            done.append(uid)
        if len(done) == 1 + len(leaving):
            job, info = self.waiting.pop(waits)
            self.running[waits] = job, info
            self.waits[job.number] = self.now - job.at
            heapq.heappush(self.ends, (self.now + job.stays, waits))
            return True
        for uid in done:
            cluster.remove_pod(uid)
        for uid, (slot, holding) in before.items():
            cluster.place(self.running[uid][1], slot)
            self.devices.columns.take(slot, uid, holding)
        return False


def run(machines: Sequence[openb.Machine], coming: Sequence[Job], *, room: GPURoomArgs | None, seed: int = 1) -> Result:
    """Live through all of it; pods that wait when the last has come are waited for."""
    found = Cluster(machines, Rooms(room) if room is not None else None, seed)
    due = ROUND
    rest = list(reversed(coming))
    while rest or (found.waiting and found.ends):
        arrival = rest[-1].at if rest else float("inf")
        departure = found.ends[0][0] if found.ends else float("inf")
        found.now = min(arrival, departure, due)
        if found.now == due:
            due += ROUND
            found.turn()
        elif departure <= arrival:
            found.leaves(heapq.heappop(found.ends)[1])
        else:
            found.comes(rest.pop())
    large = [found.waits[job.number] for job in coming if job.number in found.waits and job.ask.cards >= LARGE]
    small = [found.waits[job.number] for job in coming if job.number in found.waits and job.ask.cards < LARGE]
    return Result(large, small, len(coming), found.moved, len(coming) - len(found.waits))


def lifetimes(path: Path) -> list[float]:
    """Seconds that the pods of a list stayed."""
    rows = [row for row in openb._rows(path) if row.get("deletion_time") and row.get("creation_time")]
    return [float(row["deletion_time"]) - float(row["creation_time"]) for row in rows if row["deletion_time"] > row["creation_time"]]


def generated(seed: int) -> list[float]:
    """Lifetimes with the trace's quantiles."""
    rng = random.Random(seed)
    return [rng.lognormvariate(MEDIAN, SPREAD) for _ in range(2000)]


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the trace.")
@click.option("--workload", default="default", show_default=True, help="List of pods of that folder.")
@click.option("--nodes", default=60, show_default=True, type=click.IntRange(2))
@click.option("--pods", default=6000, show_default=True, type=click.IntRange(1))
@click.option("--load", default=0.95, show_default=True, help="Share of the cards that is asked for on average.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
def main(data: Path | None, workload: str, nodes: int, pods: int, load: float, seeds: int) -> None:
    """Waits of jobs of four cards and more, in minutes."""
    tuning.keep_memory()
    tuning.relax_collector()
    click.echo("| seed | pods | large | mean wait | with room made | pods moved | others' mean wait | with room made |")
    click.echo("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed in range(1, seeds + 1):
        if data is not None:
            machines = random.Random(seed).sample([each for each in openb.read_nodes(data) if each.gpu], nodes)
            asks, stays = openb.workloads(data)[workload], lifetimes(data / "openb_pod_list_default.csv.gz")
        else:
            machines, asks = openb.made(nodes, seed)
            stays = generated(seed)
        coming = jobs(asks, stays, 1000 * sum(machine.gpu for machine in machines), pods, load, seed)
        without = run(machines, coming, room=None, seed=seed)
        made = run(machines, coming, room=GPURoomArgs(), seed=seed)
        waits = [statistics.fmean(each or [0.0]) / 60 for each in (without.large, made.large, without.small, made.small)]
        moved = f"{made.moved} ({100 * made.moved / pods:.2f} %)"
        click.echo(
            f"| {seed} | {pods} | {len(without.large)} | {waits[0]:.1f} | {waits[1]:.1f} | {moved} | {waits[2]:.2f} | {waits[3]:.2f} |"
        )


if __name__ == "__main__":
    main()
