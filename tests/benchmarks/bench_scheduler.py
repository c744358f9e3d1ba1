"""The scheduler: one decision over 5,000 nodes, pods of one shape, throughput in process through informer events and a stub API server."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from typing import Any

import msgspec
import numpy as np

from koord.api.kinds import NODEMETRICS, NODES, PODS, Kind
from koord.api.objects import NodeMetric, Pod
from koord.api.times import format_time
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.kube.store import Informer
from koord.process import tuning
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler import testing
from roles.scheduler.app import App, Options
from tests.benchmarks.table import Row, current_rss_mib, script
from tests.roles.scheduler.reservation import worlds

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


def world(nodes: int) -> testing.World:
    found = testing.World(PROFILE, now=time.time())
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


def decisions(nodes: int, pods: int) -> list[Row]:
    found = world(nodes)
    decide(found, [testing.pod(cpu=f"{3000 + n}m", memory="1Gi") for n in range(50)])
    different, cpu = decide(found, [testing.pod(cpu=f"{100 + n}m", memory=f"{100 + n}Mi") for n in range(pods)])
    same, cpu_same = decide(found, [testing.pod(cpu="500m", memory="512Mi") for _ in range(2 * pods)])
    p50, p99 = statistics.median(different) * 1e3, float(np.percentile(different, 99)) * 1e3
    what, same_note = f"decision, {nodes} nodes, pods", f"p50 {statistics.median(same) * 1e6:.0f} µs, CPU {cpu_same * 1e6:.0f} µs"
    return [
        Row(f"{what} all different, p50", p50, "ms", 0.5, note=f"CPU {cpu * 1e3:.3f} ms"),
        Row(f"{what} all different, p99", p99, "ms", 2.0),
        Row(f"{what} of one shape, mean", statistics.fmean(same) * 1e6, "µs", 50.0, note=same_note),
    ]


def constrained(nodes: int, pods: int) -> list[Row]:
    """Pods of one shape whose every placement changes what other nodes are worth."""
    found = world(nodes)
    app = {"app": "a"}
    select = {"labelSelector": {"matchLabels": app}}
    zone = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **select}
    term = {"topologyKey": "kubernetes.io/hostname", **select}
    kinds = {
        "hard zone spread": {"topologySpreadConstraints": [zone]},
        "host anti-affinity": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}},
    }
    result = []
    for what, spec in kinds.items():
        seconds, cpu = decide(found, [testing.pod(cpu="100m", memory="64Mi", labels=app, **spec) for _ in range(pods)])
        note = f"p50 {statistics.median(seconds) * 1e6:.0f} µs, CPU {cpu * 1e6:.0f} µs"
        result.append(
            Row(f"decision, {nodes} nodes, pods of one shape with {what}, mean", statistics.fmean(seconds) * 1e6, "µs", 500.0, note=note)
        )
    return result


def reserved(nodes: int, count: int, pods: int) -> list[Row]:
    """Pods beside reservations that are not theirs, and pods of one shape that may use every one of them."""
    found = worlds.World()
    found.cluster.reserve(nodes)
    found.add_nodes(*(testing.node(f"n{number}", cpu="32", memory="256Gi") for number in range(nodes)))
    for number in range(count):
        found.hold(f"r{number}", f"n{number * nodes // count}", cpu="4", memory="8Gi", once=number % 2 == 0)
    result = []
    for who, labels in (("of others", {"app": "stranger"}), ("of their owner", worlds.OWNER)):
        infos = [found.parser.parse(testing.pod(cpu="500m", memory="512Mi", labels=labels)) for _ in range(pods)]
        seconds, used = [], 0
        began = time.process_time()
        for info in infos:
            started = time.perf_counter()
            decision = found.cycle.decide(info)
            found.cluster.place(info, decision.slot)
            found.framework.run_reserve(decision.ctx, decision.slot)
            seconds.append(time.perf_counter() - started)
            used += decision.ctx.reservation is not None
        cpu = (time.process_time() - began) / pods
        note = f"{1 / statistics.fmean(seconds):.0f} pods/s, p50 {statistics.median(seconds) * 1e6:.0f} µs, CPU {cpu * 1e6:.0f} µs, "
        note += f"first pod {seconds[0] * 1e3:.0f} ms, {used} in a reservation"
        what = f"reservations ({count:,}) at {nodes:,} nodes, decision and reserve, pods {who}, mean"
        result.append(Row(what, statistics.fmean(seconds) * 1e6, "µs", 500.0, note=note))
    return result


class Informers:
    """An informer factory without an API server: objects are put into real informers as bytes."""

    def __init__(self) -> None:
        self.stores: dict[Kind, Informer[Any]] = {}

    def informer(self, kind: Kind, projection: type[Any], *, transform: Any = None, **_: Any) -> Informer[Any]:
        return self.stores.setdefault(kind, Informer(kind.plural, projection, transform, type_meta=(kind.api_version, kind.kind)))

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


def throughput(nodes: int, pods: int) -> list[Row]:
    informers = Informers()
    bodies = {}
    encode = msgspec.json.Encoder().encode
    for number in range(pods):
        pod = testing.pod(f"p{number}", uid=f"u{number}", cpu="500m", memory="512Mi")
        text = encode(
            {"metadata": msgspec.to_builtins(pod.metadata), "spec": {**msgspec.to_builtins(pod.spec), "nodeName": ""}, "status": {}}
        ).decode()
        bodies[f"default/p{number}"] = text
    client = StubClient(informers, bodies)
    config = KubeSchedulerConfiguration.model_validate(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "profiles": [PROFILE],
        }
    )

    async def run() -> tuple[float, float]:
        recorder = Recorder("scheduler")
        app = App(Options(config), client=client, informers=informers, recorder=recorder, ops=OpsServer("127.0.0.1", 0, recorder=recorder))
        life = Life()
        running = asyncio.get_running_loop().create_task(app.run(life))
        await asyncio.sleep(0.05)
        for number in range(nodes):
            informers.put(NODES, f"n{number}", encode(testing.node(f"n{number}", cpu="32", memory="256Gi")))
            informers.put(NODEMETRICS, f"n{number}", encode(metric(f"n{number}", number, time.time())))
        gc.collect()
        gc.freeze()
        started, cpu = time.perf_counter(), time.process_time()
        for key, body in bodies.items():
            informers.put(PODS, key, body.encode())
        while client.bound < pods:
            await asyncio.sleep(0.005)
        result = time.perf_counter() - started, time.process_time() - cpu
        life.stop()
        await asyncio.wait_for(running, 10)
        await life.finish()
        return result

    try:
        import uvloop

        seconds, cpu = uvloop.run(run())
    except ImportError:
        seconds, cpu = asyncio.run(run())
    what, note = f"throughput in process, {nodes} nodes x {pods} pods", f"RSS {current_rss_mib():.0f} MiB"
    return [
        Row(what, pods / seconds, "pods/s", 2000.0, better="higher", note=note),
        Row("CPU a pod, with informer event, bind and event", cpu / pods * 1e3, "ms", 1.0, note="API server stubbed"),
    ]  # fmt: skip


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    nodes, pods = (1000, 500) if quick else (5000, 2000)
    return [
        *decisions(nodes, pods),
        *constrained(nodes, pods // 4),
        *reserved(nodes, nodes // 5, pods),
        *throughput(nodes, pods if quick else 10_000),
    ]


if __name__ == "__main__":
    script(rows)
