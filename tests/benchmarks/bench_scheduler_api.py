"""The scheduler as it runs: its own process on an API server of its own process, pods waiting when it starts.

usage: bench_scheduler_api.py [--quick] [--all] [--only WORD] [--rounds N] [--profile FILE]
                              [--kubeconfig FILE | --kube-apiserver PROGRAM] [--kube-scheduler PROGRAM] [--upstream PROGRAM]

By default like pods, spreading and required anti-affinity; `--all` adds the other kinds of pods, and the shipped profile (configs/install)
with 1, 20 and 256 shapes of pods. `--only` takes the kinds whose names hold a word. `--kubeconfig` measures on a cluster that is there (it
must be empty; nodes and pods are made in it and removed again) instead of the embedded API server; with `--kube-apiserver` that is a real
one with an etcd of its own.

Others do the same pods on the same nodes of the same API server in turns with koord, `--rounds` times each: a kube-scheduler the kinds
for kube-scheduler's plugins, upstream's koord-scheduler (`--upstream`, or KOORD_UPSTREAM_SCHEDULER) those for the shipped profile. All get
the same file. `--profile` is a KubeSchedulerConfiguration, or a ConfigMap that holds one, whose first profile is taken in place of the
shipped one, which upstream's does not understand: upstream's own is config/manager/scheduler-config.yaml of its module.

A rate is pods by the seconds between the first and the last binding, as the API server shows them. CPU a pod is that of the process
from its start to the last binding, less that of a start on the same nodes without pods. The API server shares the machine, so compare
within one run. References: kube-scheduler 1.36 on a real API server on two cores, 1,000 nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import orjson
import yaml

from koord.api.kinds import NAMESPACES, NODES, PODS
from koord.kube.client import Client
from koord.kube.config import load
from koord.kube.errors import AlreadyExists
from tests.benchmarks.install_crds import main as install_crds
from tests.benchmarks.schedulers import Contender, Run, idle, run
from tests.benchmarks.table import Row, script
from tests.support.processes import KOORD, process
from tests.support.real_apiserver import real_api_server

ROOT = Path(__file__).resolve().parents[2]
IN_FLIGHT = 32
KOORDS, THEIRS, UPSTREAM = "koord", "kube-scheduler", "upstream's koord-scheduler"
TIMES = {THEIRS: 3.0, UPSTREAM: 5.0}  # how many times the rate of another one to build for
SHARE = 70.0  # per cent of the rate of one shape that 256 are to have
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


class Load(NamedTuple):
    """A kind of pods: what their spec holds, the rate to build for (pods/s), how many nodes and pods, in how many shapes, and whether it
    is the shipped profile that places them."""

    what: str
    spec: dict[str, Any]
    goal: float | None = None
    nodes: int = 1000
    pods: int = 3000
    shapes: int = 1
    shipped: bool = False


def _term(key: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "bench"}}}


def _affinity(kind: str, how: str, terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {f"{how}DuringSchedulingIgnoredDuringExecution": terms}}}


_TWO_ZONES = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z0", "z1"]}]}

LOADS = (
    Load("like pods", {}, 1.5 * 463),
    Load(
        "zone spread", {"topologySpreadConstraints": [{**_term(ZONE), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}, 2 * 340,
    ),
    Load("required host anti-affinity", _affinity("podAntiAffinity", "required", [_term(HOST)]), 4 * 160, pods=1000),
)  # fmt: skip
MORE = (
    Load("like pods on 5000 nodes", {}, 1.5 * 395, nodes=5000),
    Load("preferred zone affinity", _affinity("podAffinity", "preferred", [{"weight": 1, "podAffinityTerm": _term(ZONE)}])),
    Load("node affinity", _affinity("nodeAffinity", "required", {"nodeSelectorTerms": [_TWO_ZONES]})),
    Load("20 shapes", {}, shapes=20),
    Load("shipped profile, 20 shapes", {}, shapes=20, shipped=True),
    Load("shipped profile, 1 shape", {}, shipped=True),
    Load("shipped profile, 256 shapes", {}, shapes=256, shipped=True),
)  # fmt: skip


def node(number: int) -> dict[str, Any]:
    name = f"bench-{number}"
    amounts = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {HOST: name, ZONE: f"z{number % 3}"}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def pod(number: int, spec: dict[str, Any], shapes: int) -> bytes:
    shape = number % shapes
    resources = {"requests": {"cpu": f"{100 + shape}m", "memory": "128Mi"}}
    container = {"name": "c", "image": "registry.example.com/app:1.0", "resources": resources}
    meta = {"name": f"bench-{number}", "labels": {"app": "bench", "shape": str(shape)}}
    return orjson.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}})


async def _all(calls: Iterator[Any]) -> None:
    """Await all, 32 at a time."""

    async def worker() -> None:
        for call in calls:
            await call

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def fill(kubeconfig: Path, nodes: int) -> None:
    async with Client(load(str(kubeconfig))) as client:
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})

        async def make(number: int) -> None:
            body = node(number)
            await client.create(NODES, body)
            if not (await client.get(NODES, body["metadata"]["name"])).get("status", {}).get("allocatable"):
                await client.patch(NODES, body["metadata"]["name"], {"status": body["status"]}, subresource="status")

        await _all(make(number) for number in range(nodes))


async def make_pods(kubeconfig: Path, load_: Load, pods: int) -> None:
    async with Client(load(str(kubeconfig))) as client:
        await _all(client.create(PODS, pod(number, load_.spec, load_.shapes), "default") for number in range(pods))


async def clear(kubeconfig: Path, nodes: int) -> None:
    """Removes all pods that were made, and so many nodes."""
    names = [pod["metadata"]["name"] for pod in await all_pods(kubeconfig)]
    async with Client(load(str(kubeconfig))) as client:
        await _all(client.delete(PODS, name, "default", grace_period_seconds=0) for name in names if name.startswith("bench-"))
        await _all(client.delete(NODES, f"bench-{number}") for number in range(nodes))


async def all_pods(kubeconfig: Path) -> list[dict[str, Any]]:
    async with Client(load(str(kubeconfig))) as client:
        return (await client.list(PODS, "default")).items


def profile() -> dict[str, Any]:
    """The profile that is installed, or the one of `--profile`, for pods that name no scheduler."""
    path = Path(_option("--profile") or ROOT / "configs/install/30-config.yaml")
    documents = [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]
    texts = (text for found in documents for text in (found.get("data") or {}).values())
    configurations = itertools.chain(documents, (yaml.safe_load(text) for text in texts if "KubeSchedulerConfiguration" in text))
    first = next(found for found in configurations if found.get("kind") == "KubeSchedulerConfiguration")["profiles"][0]
    return {**first, "schedulerName": "default-scheduler"}


def contenders() -> list[Contender]:
    """Who is measured: koord, and those that the command line names."""
    found = [Contender(KOORDS, KOORD)]
    if program := _option("--kube-scheduler"):
        found.append(Contender(THEIRS, program, koordinator=False))
    if program := _option("--upstream") or os.environ.get("KOORD_UPSTREAM_SCHEDULER"):
        found.append(Contender(UPSTREAM, program))
    return found


def runs_with(contender: Contender, load_: Load) -> bool:
    """kube-scheduler's plugins are kube-scheduler's task, the shipped profile is upstream's, and both are koord's."""
    return contender.name == KOORDS or contender.koordinator == load_.shipped


Runs = defaultdict[tuple[str, str], list[Run]]  #: by kind of pods and name of the scheduler


def measure(
    kubeconfig: Path, loads: Iterable[Load], nodes: int, pods: int | None, server: int | None, directory: Path, rounds: int = 1
) -> list[Row]:
    """All kinds of pods by all schedulers on one API server, in turns. `pods` replaces the number of each kind."""
    loads = list(loads)
    if any(load_.shipped for load_ in loads) and not _option("--kubeconfig"):
        asyncio.run(install_crds(str(kubeconfig)))
    asyncio.run(fill(kubeconfig, nodes))
    starts: dict[tuple[str, bool], float] = {}
    runs: Runs = defaultdict(list)
    pairs = [(load_, contender) for load_ in loads for contender in contenders() if runs_with(contender, load_)]
    for load_, contender in pairs * rounds:
        asyncio.run(clear(kubeconfig, nodes=0))
        chosen = profile() if load_.shipped else None
        kind = (contender.name, load_.shipped)
        if kind not in starts:
            starts[kind] = idle(contender, kubeconfig, chosen, directory)
        count = pods or load_.pods
        asyncio.run(make_pods(kubeconfig, load_, count))
        done = run(contender, kubeconfig, chosen, directory, count, server, starts[kind])
        runs[load_.what, contender.name].append(done)
        told = f"{done.bound} of {count} pods were bound, {done.rate:.0f} pods/s, {done.cpu:.2f} ms of CPU a pod"
        print(f"{contender.name}, {load_.what}: {told}", file=sys.stderr, flush=True)
    each = [row for load_, contender in pairs for row in _rows(load_, contender.name, nodes, pods or load_.pods, runs)]
    return each + _shapes(loads, runs)


def _rate(runs: list[Run]) -> float:
    return fmean(run.rate for run in runs)


def _cpu(runs: list[Run]) -> float:
    return fmean(run.cpu for run in runs)


def _rows(load_: Load, name: str, nodes: int, pods: int, all_runs: Runs) -> list[Row]:
    """The means of a scheduler's runs of one kind of pods; of another one than koord also how koord compares."""
    runs = all_runs[load_.what, name]
    what = f"API server, {nodes} nodes x {pods} pods, {load_.what}"
    note = f"RSS {fmean(run.memory for run in runs):.0f} MiB; machine at load {fmean(run.load for run in runs):.0f}"
    there = [run.server for run in runs if run.server is not None]
    if there:
        note += f"; API server {fmean(there):.2f} ms a pod"
    each = ""
    if len(runs) > 1:
        note += "; runs " + ", ".join(f"{run.rate:.0f}" for run in runs)
        each = "runs " + ", ".join(f"{run.cpu:.2f}" for run in runs)
    if name == KOORDS:
        return [
            Row(what, _rate(runs), "pods/s", load_.goal, better="higher", note=note),
            Row(f"{what}: CPU a pod", _cpu(runs), "ms", 1.0, note=each),
        ]
    ours = all_runs[load_.what, KOORDS]
    return [
        Row(f"{name} on the {what}", _rate(runs), "pods/s", note=note),
        Row(f"{name} on the {what}: CPU a pod", _cpu(runs), "ms", note=each),
        Row(f"{what}: koord's rate over that of {name}", _rate(ours) / _rate(runs), "times", TIMES[name], better="higher"),
        Row(f"{what}: CPU a pod of {name} over koord's", _cpu(runs) / _cpu(ours), "times", better="higher"),
    ]


def _shapes(loads: list[Load], runs: Runs) -> list[Row]:
    """What many shapes leave of the rate of one, where both were measured."""
    one, many = ([load_.what for load_ in loads if load_.shipped and load_.shapes == shapes] for shapes in (1, 256))
    what = "API server, shipped profile: rate of 256 shapes"
    return [
        Row(f"{what}, {name}", _rate(runs[many[0], name]) / _rate(done) * 100, "% of that of one", SHARE, better="higher")
        for (kind, name), done in runs.items()
        if many and kind in one
    ]


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[tuple[Path, int | None]]:
    """The kubeconfig of the cluster to measure on, and the process that serves it if it is ours."""
    if given := _option("--kubeconfig"):
        yield Path(given), None
        return
    if real := _option("--kube-apiserver"):
        with real_api_server(directory, real) as api:
            yield api.kubeconfig, api.pid
        return
    kubeconfig = directory / "kubeconfig"
    with process("apiserver", "--port", "0", "--no-tls", "--print-kubeconfig", str(kubeconfig)) as server:
        while not kubeconfig.exists() and server.poll() is None:
            time.sleep(0.01)
        yield kubeconfig, server.pid


def _option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def rows(quick: bool) -> list[Row]:
    only = _option("--only")
    wanted = [load_ for load_ in LOADS + (MORE if "--all" in sys.argv or only else ()) if not only or only in load_.what]
    found: list[Row] = []
    for nodes, loads in itertools.groupby(sorted(wanted, key=lambda load_: load_.nodes), key=lambda load_: 300 if quick else load_.nodes):
        with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as (kubeconfig, server):
            found += measure(kubeconfig, list(loads), nodes, 300 if quick else None, server, Path(name), int(_option("--rounds") or 1))
            if _option("--kubeconfig"):
                asyncio.run(clear(kubeconfig, nodes))
    return found


if __name__ == "__main__":
    script(rows)
