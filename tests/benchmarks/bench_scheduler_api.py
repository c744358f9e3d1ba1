"""The scheduler as it runs: its own process on an API server of its own process, pods waiting when it starts.

usage: bench_scheduler_api.py [--quick] [--all] [--only WORD] [--kubeconfig FILE | --kube-apiserver PROGRAM [--kube-scheduler PROGRAM]]

By default like pods, spreading and required anti-affinity; `--all` adds the other kinds of pods, and the shipped profile (configs/install)
with 1, 20 and 256 shapes of pods, which a kube-scheduler has not. `--only` takes the kinds whose names hold a word. `--kubeconfig` measures
on a cluster that is there (it must be empty; nodes and pods are made in it and removed again) instead of the embedded API server; with
`--kube-apiserver` that is a real one with an etcd of its own, and with `--kube-scheduler` the same is done by that one for comparison.

A rate is pods bound between the first look at the scheduler and the last binding, by the scheduler's own metrics. The API server
shares the machine, so compare within one run. References: kube-scheduler 1.36 on a real API server on two cores, 1,000 nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import yaml

from koord.api.kinds import NAMESPACES, NODES, PODS
from koord.kube.client import Client
from koord.kube.config import load
from koord.kube.errors import AlreadyExists
from tests.benchmarks.install_crds import main as install_crds
from tests.benchmarks.table import Row, cpu_seconds, current_rss_mib, script
from tests.support.processes import KOORD, free_port, process
from tests.support.real_apiserver import get, real_api_server

ROOT = Path(__file__).resolve().parents[2]
IN_FLIGHT = 32
LIMIT = 120.0  # seconds after which a kind of pods that is not bound is given up
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


async def fill(kubeconfig: Path, load_: Load, nodes: int, pods: int) -> None:
    async with Client(load(str(kubeconfig))) as client:
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})

        async def make(number: int) -> None:
            body = node(number)
            await client.create(NODES, body)
            if not (await client.get(NODES, body["metadata"]["name"])).get("status", {}).get("allocatable"):
                await client.patch(NODES, body["metadata"]["name"], {"status": body["status"]}, subresource="status")

        await _all(make(number) for number in range(nodes))
        await _all(client.create(PODS, pod(number, load_.spec, load_.shapes), "default") for number in range(pods))


async def clear(kubeconfig: Path, nodes: int, pods: int) -> None:
    async with Client(load(str(kubeconfig))) as client:
        await _all(client.delete(PODS, f"bench-{number}", "default", grace_period_seconds=0) for number in range(pods))
        await _all(client.delete(NODES, f"bench-{number}") for number in range(nodes))


async def all_pods(kubeconfig: Path) -> list[dict[str, Any]]:
    async with Client(load(str(kubeconfig))) as client:
        return (await client.list(PODS, "default")).items


def bound(url: str) -> float:
    """How many pods the scheduler says that it has bound."""
    lines = (line for line in get(url)[1].decode().splitlines() if line.startswith("scheduler_pod_scheduling_attempts_count"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def shipped() -> dict[str, Any]:
    """The profile that is installed, for pods that name no scheduler."""
    documents = yaml.safe_load_all((ROOT / "configs/install/30-config.yaml").read_text())
    texts = (text for found in documents for text in (found.get("data") or {}).values())
    profile = next(yaml.safe_load(text) for text in texts if "KubeSchedulerConfiguration" in text)["profiles"][0]
    return {"profiles": [{**profile, "schedulerName": "default-scheduler"}]}


def koord_scheduler(config: Path, kubeconfig: Path, port: int) -> tuple[list[str], str]:
    """Command and base URL."""
    flags = [f"--config={config}", f"--kubeconfig={kubeconfig}", "--address=127.0.0.1", f"--port={port}", "--secure-port=0"]
    return [KOORD, "scheduler", *flags], f"http://127.0.0.1:{port}"


def kube_scheduler(program: str, config: Path, port: int) -> tuple[list[str], str]:
    """Command and base URL of the other one, which has its kubeconfig in the file."""
    flags = [f"--config={config}", f"--secure-port={port}", "--bind-address=127.0.0.1", f"--cert-dir={config.parent}"]
    return [program, *flags, "--authorization-always-allow-paths=/healthz,/metrics"], f"https://127.0.0.1:{port}"


def measure(kubeconfig: Path, load_: Load, nodes: int, pods: int, server: int | None, directory: Path, other: str | None) -> list[Row]:
    """Both schedulers get the same file. `other` is a kube-scheduler to measure instead of koord's."""
    if load_.shipped and not _option("--kubeconfig"):
        asyncio.run(install_crds(str(kubeconfig)))
    asyncio.run(fill(kubeconfig, load_, nodes, pods))
    config = directory / "scheduler.yaml"
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 10000, "burst": 10000}, **(shipped() if load_.shipped else {}),
    }  # fmt: skip
    config.write_text(yaml.safe_dump(content))
    port = free_port()
    command, base = kube_scheduler(other, config, port) if other else koord_scheduler(config, kubeconfig, port)
    url = f"{base}/metrics"
    with process(*command[1:], program=command[0]) as scheduler:
        while get(f"{base}/healthz")[0] != 200:
            if scheduler.poll() is not None:
                raise RuntimeError(f"{command} ended with {scheduler.returncode}")
            time.sleep(0.01)
        began, already = time.monotonic(), bound(url)
        cpu, server_cpu = cpu_seconds(scheduler.pid), cpu_seconds(server) if server else 0.0
        done = already
        ended = began
        while done < pods and time.monotonic() - began < LIMIT:
            time.sleep(0.5)  # each look costs the scheduler a few milliseconds, which count as its own
            done, ended = bound(url), time.monotonic()
        each = (cpu_seconds(scheduler.pid) - cpu) / max(1.0, done - already) * 1e3
        there = (cpu_seconds(server) - server_cpu) / max(1.0, done - already) * 1e3 if server else 0.0
        memory = current_rss_mib(scheduler.pid)
    if done < pods:
        print(f"{load_.what}: only {done:g} of {pods} pods were bound", file=sys.stderr)
    load_of_all = os.getloadavg()[0]
    note = f"RSS {memory:.0f} MiB; machine at load {load_of_all:.0f}" + (f"; API server {there:.2f} ms a pod" if server else "")
    what = f"{'kube-scheduler on the ' if other else ''}API server, {nodes} nodes x {pods} pods, {load_.what}"
    return [
        Row(what, (done - already) / max(ended - began, 1e-9), "pods/s", None if other else load_.goal, better="higher", note=note),
        Row(f"{what}: CPU a pod", each, "ms", None if other else 1.0),
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
    found: list[Row] = []
    only, other = _option("--only"), _option("--kube-scheduler")
    for load_ in LOADS + (MORE if "--all" in sys.argv or only else ()):
        if only and only not in load_.what:
            continue
        nodes, pods = (300, 300) if quick else (load_.nodes, load_.pods)
        for scheduler in (None, other) if other and not load_.shipped else (None,):
            with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as (kubeconfig, server):
                found += measure(kubeconfig, load_, nodes, pods, server, Path(name), scheduler)
                if _option("--kubeconfig"):
                    asyncio.run(clear(kubeconfig, nodes, pods))
    return found


if __name__ == "__main__":
    script(rows)
