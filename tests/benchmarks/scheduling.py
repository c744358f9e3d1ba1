"""What the benchmarks of the scheduler share: a cluster as columns, pods decided one after another, and the whole scheduler in process
through informer events and a stub API server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from koord.api.kinds import NODEMETRICS, NODES, PODS, Kind
from koord.api.objects import NodeMetric, Pod
from koord.api.times import format_time
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.kube.store import Informer
from koord.process.decisionlog import DecisionLog
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler import testing
from roles.scheduler.app import App
from roles.scheduler.journal.journal import FileJournal, JournalFile
from roles.scheduler.observing.observer import RUNNING_ONLY
from roles.scheduler.options import Options
from tests.benchmarks.table import Row

encode = msgspec.json.Encoder().encode

PROFILE: dict[str, Any] = {
    "schedulerName": testing.SCHEDULER,
    "plugins": {
        "filter": {"enabled": [{"name": "LoadAwareScheduling"}]},
        "score": {"enabled": [{"name": "LoadAwareScheduling", "weight": 1}]},
        "reserve": {"enabled": [{"name": "LoadAwareScheduling"}]},
    },
}


def metric(name: str, number: int, now: float) -> dict[str, Any]:
    usage = {"cpu": f"{500 + number % 3000}m", "memory": f"{4 + number % 40}Gi"}
    return {
        "metadata": {"name": name}, "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": {"updateTime": format_time(now), "nodeMetric": {"nodeUsage": {"resources": usage}}},
    }  # fmt: skip


def world(nodes: int, profile: dict[str, Any] = PROFILE) -> testing.World:
    found = testing.World(profile, now=time.time())
    found.cluster.reserve(nodes)
    for number in range(nodes):
        taints = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}] if number % 10 == 0 else []
        found.add_nodes(
            testing.node(f"n{number}", labels={"topology.kubernetes.io/zone": f"z{number % 3}"}, taints=taints, cpu="32", memory="256Gi")
        )
        found.feed("NodeMetric", msgspec.convert(metric(f"n{number}", number, found.state.now), NodeMetric))
    return found


def decide(found: testing.World, pods: list[Pod]) -> tuple[list[float], float]:
    """Seconds of each decision with its placement, and CPU seconds on the average (what other processes take away does not count)."""
    infos = [found.parser.parse(pod) for pod in pods]
    seconds = []
    began = time.process_time()
    for info in infos:
        started = time.perf_counter()
        decision = found.cycle.decide(info)
        found.cluster.place(info, decision.slot)
        seconds.append(time.perf_counter() - started)
    return seconds, (time.process_time() - began) / len(infos)


def decision_row(what: str, found: testing.World, pods: list[Pod], goal: float | None = None) -> Row:
    """A row with the mean of a decision, its median and its CPU time."""
    seconds, cpu = decide(found, pods)
    note = f"p50 {statistics.median(seconds) * 1e6:.0f} µs, CPU {cpu * 1e6:.0f} µs"
    return Row(what, statistics.fmean(seconds) * 1e6, "µs", goal, note=note)


class Informers:
    """An informer factory without an API server: objects are put into real informers as bytes."""

    def __init__(self) -> None:
        self.stores: dict[Kind, Informer[Any]] = {}  # those of all objects, and of pods that run
        self._narrow: dict[tuple[Kind, str], Informer[Any]] = {}  # those of some objects, of which there are none

    def informer(
        self, kind: Kind, projection: type[Any], *, transform: Any = None, field_selector: str = "", **_: Any
    ) -> Informer[Any]:  # fmt: skip
        fresh: Informer[Any] = Informer(kind.plural, projection, transform, type_meta=(kind.api_version, kind.kind))
        if field_selector in ("", RUNNING_ONLY):
            return self.stores.setdefault(kind, fresh)
        return self._narrow.setdefault((kind, field_selector), fresh)

    def put(self, kind: Kind, key: str, body: bytes) -> None:
        self.stores[kind].receive(key, "1", msgspec.Raw(body))

    def start(self) -> None:
        """Nothing to start."""

    async def wait_synced(self) -> None:
        """Synced from the beginning."""


class StubClient:
    """Binds by showing the bound pod to the informer a moment later, as a watch would."""

    def __init__(self, informers: Informers, bodies: dict[str, str]) -> None:
        self.informers, self.bodies, self.bound = informers, bodies, 0

    async def bind(self, namespace: str, pod: str, node: str, uid: str | None = None) -> None:
        await asyncio.sleep(0)
        self.bound += 1
        key = f"{namespace}/{pod}"
        body = self.bodies[key].replace('"nodeName":""', f'"nodeName":"{node}"')
        asyncio.get_running_loop().call_soon(self.informers.put, PODS, key, body.encode())

    async def create(self, kind: Kind, obj: Any, namespace: str | None = None) -> dict[str, Any]:
        return obj if isinstance(obj, dict) else {}

    async def patch(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def within(self, _: float) -> StubClient:
        return self

    def ranked(self, _: object) -> StubClient:
        return self


def body_of(pod: Pod) -> str:
    """A pod as the watch shows it, with a place for its node."""
    spec = {**msgspec.to_builtins(pod.spec), "nodeName": ""}
    return encode({"metadata": msgspec.to_builtins(pod.metadata), "spec": spec, "status": msgspec.to_builtins(pod.status)}).decode()


class Ran(NamedTuple):
    """What a run took: seconds and CPU seconds, and the App as it was in the end."""

    seconds: float
    cpu: float
    app: App


@contextlib.asynccontextmanager
async def running(
    nodes: int, client: StubClient, profile: dict[str, Any] = PROFILE, before: Callable[[Informers], None] | None = None, *,
    log: Path | None = None, journal: bool = False, seed: int | None = None,
) -> AsyncIterator[App]:  # fmt: skip
    """The whole scheduler in this process, with nodes and their reports; `before` puts in more objects that are there already.

    `log` is the folder of a decision log, with what a replay needs if `journal` says so. `seed` decides ties.
    """
    informers = client.informers
    config = KubeSchedulerConfiguration.model_validate(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "profiles": [profile],
        }
    )  # fmt: skip
    life, logged = Life(), DecisionLog(str(log) if log is not None else "")
    recorder = Recorder("scheduler", logged.sinks("scheduler", life, share=0.5))
    file = logged.file(JournalFile, "scheduler.replay", life, share=0.5) if journal else None
    app = App(
        Options(config, seed=seed), client=client, informers=informers, recorder=recorder, ops=OpsServer("127.0.0.1", 0, recorder=recorder),
        journal=FileJournal(file) if file is not None else None,
    )  # fmt: skip
    task = asyncio.get_running_loop().create_task(app.run(life))
    await asyncio.sleep(0.05)
    for number in range(nodes):
        informers.put(NODES, f"n{number}", encode(testing.node(f"n{number}", cpu="32", memory="256Gi")))
        informers.put(NODEMETRICS, f"n{number}", encode(metric(f"n{number}", number, time.time())))
    if before is not None:
        before(informers)
        await asyncio.sleep(0.5)
    gc.collect()
    gc.freeze()
    try:
        yield app
    finally:
        life.stop()
        await asyncio.wait_for(task, 10)
        await life.finish()


def run_app(
    nodes: int,
    pods: Iterable[Pod],
    *,
    profile: dict[str, Any] = PROFILE,
    before: Callable[[Informers], None] | None = None,
    beside: Callable[[Informers], Awaitable[None]] | None = None,
    log: Path | None = None,
    journal: bool = True,
    seed: int | None = None,
    bound: int | None = None,
    stub: type[StubClient] = StubClient,
) -> Ran:
    """Bind all pods; `before` puts objects in that are there already, `beside` runs until all are bound. `log` is the folder of a decision
    log, with what a replay needs unless `journal` says no. `seed` decides ties; `bound` pods are waited for, by default all; `stub` is the
    API server."""
    informers = Informers()
    bodies = {f"{pod.metadata.namespace}/{pod.metadata.name}": body_of(pod) for pod in pods}
    client = stub(informers, bodies)

    async def run() -> Ran:
        async with running(nodes, client, profile, before, log=log, journal=journal, seed=seed) as app:
            other = asyncio.get_running_loop().create_task(beside(informers)) if beside is not None else None
            started, cpu = time.perf_counter(), time.process_time()
            for key, body in bodies.items():
                informers.put(PODS, key, body.encode())
            while client.bound < (len(bodies) if bound is None else bound):
                await asyncio.sleep(0.005)
            if bound is not None:
                await asyncio.sleep(0.05)  # nobody else is to be bound
            result = Ran(time.perf_counter() - started, time.process_time() - cpu, app)
            if other is not None:
                other.cancel()
            return result

    found: Ran = uvloop.run(run())
    return found
