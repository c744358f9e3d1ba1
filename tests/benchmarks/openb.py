"""Workloads in the form of the openb GPU trace: read from a folder, or made with the same marginals, and run through the scheduler's cycle.

All pods of a list and then pods drawn from it until the GPUs asked for reach 1.3 times the capacity, shuffled by a seed, placed one by one;
none leaves, and what fits nowhere is dropped.
"""

from __future__ import annotations

import csv
import gzip
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from koord.api import names
from koord.api.objects import Device, Node, NodeMetric, Pod
from koord.api.times import format_time
from roles.scheduler import testing
from roles.scheduler.framework.interfaces import PodObserver

INSTALLED = Path(__file__).parents[2] / "configs/install/30-config.yaml"
LOAD = 1.3
"""How much is asked for in the end, times the capacity."""
FIRST_SEED = 42
_NOW = 1_700_000_000.0
_MIB = 1 << 20
_CARD_MEMORY = {"P100": 16, "T4": 16, "V100M16": 16, "V100M32": 32, "A10": 24}  # GiB; 80 for others
_PODS = "openb_pod_list_"


class Machine(NamedTuple):
    """A node: milli-CPU, MiB, cards and their model."""

    name: str
    cpu: int
    memory: int
    gpu: int
    model: str


class Ask(NamedTuple):
    """A pod: milli-CPU, MiB, cards, thousandths of each card, and the models allowed (none for any)."""

    cpu: int
    memory: int
    cards: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def gpu(self) -> int:
        """Thousandths of a card in all."""
        return self.cards * self.milli


class Outcome(NamedTuple):
    """Percent of all GPU capacity that is allocated at 100 % and 130 % of demand; seconds and CPU seconds of the run, and the median of a
    decision in seconds."""

    at100: float
    at130: float
    seconds: float
    cpu: float
    p50: float


# ---------------------------------------------------------------- reading and making


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return list(csv.DictReader(lines))


def read_nodes(folder: Path) -> list[Machine]:
    """The nodes of a folder. Raises SystemExit where there is no list of nodes."""
    found = sorted(folder.glob("openb_node_list_*.csv*"))
    if not found:
        raise SystemExit(f"{folder}: no openb_node_list_*.csv.gz")
    return [Machine(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"]) for r in _rows(found[0])]


def read_pods(path: Path) -> list[Ask]:
    """The pods of a list; a part of several cards counts as whole cards."""
    asks = []
    for row in _rows(path):
        cards = int(row["num_gpu"])
        milli = int(row["gpu_milli"] or 1000) if cards == 1 else 1000 if cards else 0
        models = tuple(dict.fromkeys(filter(None, (row.get("gpu_spec") or "").split("|"))))
        asks.append(Ask(int(row["cpu_milli"]), int(row["memory_mib"]), cards, milli, models))
    return asks


def workloads(folder: Path) -> dict[str, list[Ask]]:
    """The lists of pods of a folder by workload. Raises SystemExit where there is none."""
    found = {path.name.removeprefix(_PODS).split(".")[0]: read_pods(path) for path in sorted(folder.glob(f"{_PODS}*.csv*"))}
    if not found:
        raise SystemExit(f"{folder}: no {_PODS}*.csv.gz")
    return found


def published(folder: Path) -> dict[str, tuple[float, float]]:
    """What is published of FGD by workload; nothing where the folder has no published.csv."""
    path = folder / "published.csv"
    rows = _rows(path) if path.exists() else []
    wanted = ("gpu_allocated_percent_at_100", "gpu_allocated_percent_at_130")
    return {row["workload"]: (float(row[wanted[0]]), float(row[wanted[1]])) for row in rows if row["policy"] == "FGD"}


_KINDS = (  # of the trace's nodes: how many in a hundred, milli-CPU, GiB, cards, model
    (45, 96000, 384, 8, "G2"), (32, 104000, 512, 2, "T4"), (12, 32000, 128, 2, "P100"), (5, 48000, 192, 4, "V100M16"),
    (3, 96000, 768, 8, "V100M32"), (3, 128000, 768, 8, "G3"),
)  # fmt: skip
_ASKS = (  # of its pods: how many in a hundred, milli-CPU, GiB, cards, thousandths
    (25, 11400, 47, 1, 1000), (12, 15700, 57, 1, 1000), (6, 3152, 6, 1, 1000), (5, 9810, 40, 1, 1000), (13, 3152, 6, 1, 810),
    (9, 11908, 46, 1, 470), (4, 4000, 24, 1, 320), (3, 11908, 46, 1, 650), (2, 4000, 30, 1, 230), (2, 6000, 12, 1, 460),
    (2, 4000, 15, 1, 160), (1, 24200, 91, 2, 1000), (1, 32200, 129, 4, 1000), (1, 88000, 320, 8, 1000),
    (7, 12500, 56, 0, 0), (4, 32000, 48, 0, 0), (3, 8000, 30, 0, 0),
)  # fmt: skip


def made(nodes: int, seed: int = 0) -> tuple[list[Machine], list[Ask]]:
    """A cluster and a workload of about its capacity, with marginals like the trace's."""
    rng = random.Random(seed)
    kinds = rng.choices(_KINDS, [kind[0] for kind in _KINDS], k=nodes)
    machines = [Machine(f"node-{n:04}", cpu, memory << 10, gpu, model) for n, (_, cpu, memory, gpu, model) in enumerate(kinds)]
    asks, left = [], sum(machine.gpu for machine in machines) * 1000
    while left > 0:
        _, cpu, memory, cards, milli = rng.choices(_ASKS, [ask[0] for ask in _ASKS])[0]
        asks.append(Ask(cpu, memory << 10, cards, milli))
        left -= asks[-1].gpu
    return machines, asks


def arrivals(asks: Sequence[Ask], capacity: int, seed: int) -> list[Ask]:
    """The pods in the order in which they come."""
    if not any(ask.gpu for ask in asks):
        raise SystemExit("a list of pods that ask for no GPUs")
    rng = random.Random(seed)
    result = list(asks)
    wanted = LOAD * capacity - sum(ask.gpu for ask in result)
    while wanted > 0:
        result.append(rng.choice(asks))
        wanted -= result[-1].gpu
    rng.shuffle(result)
    return result


# ---------------------------------------------------------------- as objects


def profile(kind: str) -> dict[str, Any]:
    """The profile that is installed, or ("packing") the same with nothing but DeviceShare's score."""
    for document in yaml.safe_load_all(INSTALLED.read_text()):
        if document["metadata"]["name"] == "koord-scheduler-config":
            content: dict[str, Any] = yaml.safe_load(document["data"]["koord-scheduler-config"])["profiles"][0]
            if kind == "packing":
                content["plugins"]["score"] = {"disabled": [{"name": "*"}], "enabled": [{"name": "DeviceShare", "weight": 1}]}
            return content
    raise SystemExit(f"{INSTALLED}: no koord-scheduler-config")


def node_of(machine: Machine) -> Node:
    """The node, as it is when koord manages its devices."""
    gpus: dict[str, Any] = {}
    if machine.gpu:
        share = str(100 * machine.gpu)
        gpus = {names.RESOURCE_GPU_CORE: share, names.RESOURCE_GPU_MEMORY_RATIO: share, names.RESOURCE_NVIDIA_GPU: str(machine.gpu)}
    amounts = {"cpu": f"{machine.cpu}m", "memory": str(machine.memory * _MIB), "pods": "500", **gpus}
    labels = {"kubernetes.io/hostname": machine.name, names.LABEL_GPU_MODEL: machine.model}
    return msgspec.convert({"metadata": {"name": machine.name, "labels": labels}, "status": {"allocatable": amounts}}, Node)


def device_of(machine: Machine) -> Device:
    """Its Device object."""
    memory = str(_CARD_MEMORY.get(machine.model, 80) << 30)
    amounts = {names.RESOURCE_GPU_CORE: "100", names.RESOURCE_GPU_MEMORY_RATIO: "100", names.RESOURCE_GPU_MEMORY: memory}
    cards = [{"type": "gpu", "id": f"GPU-{n}", "minor": n, "health": True, "resources": amounts} for n in range(machine.gpu)]
    return msgspec.convert({"metadata": {"name": machine.name}, "spec": {"devices": cards}}, Device)


def pod_of(ask: Ask, number: int) -> Pod:
    """The pod, as a user would write it. Cards are shared by whole percents: what is finer is rounded up."""
    requests: dict[str, str] = {}
    if ask.cards and ask.milli >= 1000:
        requests[names.RESOURCE_NVIDIA_GPU] = str(ask.cards)
    elif ask.cards:
        requests[names.RESOURCE_GPU_CORE] = requests[names.RESOURCE_GPU_MEMORY_RATIO] = str(-(-ask.milli // 10))
    more: dict[str, Any] = {"preemptionPolicy": "Never"}  # none of the trace leaves for another
    if ask.models:
        term = {"matchExpressions": [{"key": names.LABEL_GPU_MODEL, "operator": "In", "values": list(ask.models)}]}
        more["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    return testing.pod(f"p{number}", uid=f"p{number}", cpu=f"{ask.cpu}m", memory=str(ask.memory * _MIB), requests=requests, **more)


def cluster(machines: Iterable[Machine], content: dict[str, Any], seed: int = 1) -> testing.World:
    """The machines, idle, under a profile."""
    found = testing.World(content, seed=seed, now=_NOW)
    machines = list(machines)
    found.cluster.reserve(len(machines))
    report = {"metricCollectPolicy": {"reportIntervalSeconds": 60}}
    for machine in machines:
        found.add_nodes(node_of(machine))
        if machine.gpu:
            found.feed("Device", device_of(machine))
        status = {"updateTime": format_time(_NOW), "nodeMetric": {"nodeUsage": {"resources": {"cpu": "0", "memory": "0"}}}}
        found.feed("NodeMetric", msgspec.convert({"metadata": {"name": machine.name}, "spec": report, "status": status}, NodeMetric))
    return found


def run(machines: Sequence[Machine], asks: Sequence[Ask], content: dict[str, Any], seed: int) -> Outcome:
    """Place all that comes, one by one."""
    found = cluster(machines, content, seed)
    watching = [plugin for plugin in found.framework.plugins.values() if isinstance(plugin, PodObserver)]
    capacity = 1000 * sum(machine.gpu for machine in machines)
    coming = arrivals(asks, capacity, seed)
    asked = given = 0
    at100 = 0
    took = []
    began, cpu = time.perf_counter(), time.process_time()
    for number, ask in enumerate(coming):
        pod = found.parser.parse(pod_of(ask, number))
        for plugin in watching:
            plugin.pod_seen(pod)
        started = time.perf_counter()
        decision = found.schedule(pod)
        took.append(time.perf_counter() - started)
        if decision.scheduled:
            given += ask.gpu
        else:
            for plugin in watching:
                plugin.pod_gone(pod.uid)
        asked += ask.gpu
        if asked <= capacity:
            at100 = given
        if asked >= LOAD * capacity:
            break
    seconds = time.perf_counter() - began
    return Outcome(100 * at100 / capacity, 100 * given / capacity, seconds, time.process_time() - cpu, statistics.median(took))
