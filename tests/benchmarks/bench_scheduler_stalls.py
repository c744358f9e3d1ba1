"""How long the scheduler keeps its event loop at most, in process with 5,000 nodes: what comes all at once, plans, dumps.

CPU time of the thread in one callback of the loop: what other processes take away does not count. `--only=WORD` runs the rows whose name
has the word, `--where` tells which callbacks they were.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import contextlib
import gc
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from koord.api.kinds import (
    CLUSTERNETWORKTOPOLOGIES,
    ELASTICQUOTAS,
    NODEMETRICS,
    NODES,
    PODGROUPS,
    PODS,
    RESERVATIONS,
)
from koord.api.names import ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC, LABEL_POD_GROUP
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.process import tuning
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler import testing
from roles.scheduler.app import App
from roles.scheduler.options import Options
from tests.benchmarks.bench_gangs import JobClient, JobInformers
from tests.benchmarks.bench_scheduler_busy import shipped
from tests.benchmarks.scheduling import encode, metric
from tests.benchmarks.table import Row, script

Obj = dict[str, Any]
GOAL = 50.0  # ms
LONG = 0.02  # seconds of a turn after which `--where` looks what it does


class Turn(NamedTuple):
    seconds: float
    what: str


class Probe:
    """CPU seconds of each callback of the running loop."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.began = 0.0
        self.seen: Counter[str] = Counter()  # where turns were that had lasted long

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        run = asyncio.events.Handle._run

        def measured(handle: Any) -> None:
            began = self.began = time.thread_time()
            run(handle)
            seconds = time.thread_time() - began
            if seconds > 0.005:
                owner = getattr(handle._callback, "__self__", None)
                self.turns.append(Turn(seconds, owner.get_name() if isinstance(owner, asyncio.Task) else repr(handle._callback)))

        def look(number: int, frame: Any) -> None:
            if time.thread_time() - self.began > LONG:
                lines = []
                while frame is not None and len(lines) < 9:
                    lines.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                    frame = frame.f_back
                self.seen[" < ".join(lines)] += 1

        asyncio.events.Handle._run = measured  # type: ignore[method-assign]
        self.began = time.thread_time()
        before = signal.signal(signal.SIGPROF, look)
        if "--where" in sys.argv:
            signal.setitimer(signal.ITIMER_PROF, 0.004, 0.004)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            asyncio.events.Handle._run = run  # type: ignore[method-assign]

    def worst(self) -> list[Turn]:
        return sorted(self.turns, reverse=True)


class Client(JobClient):
    """Shows what is written to Reservations, as a watch would."""

    def __init__(self, informers: JobInformers, bodies: dict[str, str]) -> None:
        super().__init__(informers, bodies)
        self.reservations: dict[str, Obj] = {}

    def within(self, seconds: float) -> Client:
        return self

    def ranked(self, priority: Any) -> Client:
        return self

    async def patch(self, kind: Any, name: str, body: Obj, *_: Any, **__: Any) -> Obj:
        found = self.reservations.get(name) if kind == RESERVATIONS else None
        if found is None:
            return {"metadata": {}}
        changed = self.reservations[name] = {key: {**found.get(key, {}), **body.get(key, {})} for key in ("metadata", "spec", "status")}
        asyncio.get_running_loop().call_soon(self.informers.put, RESERVATIONS, name, encode(changed))
        return changed

    async def get(self, kind: Any, name: str, *_: Any, **__: Any) -> Obj:
        return self.reservations.get(name, {"metadata": {}})


class Lab:
    """The scheduler with its shipped profile on a stubbed API server."""

    def __init__(self, profile: Obj | None = None, **config: Any) -> None:
        self.informers = JobInformers()
        self.bodies: dict[str, str] = {}
        self.client = Client(self.informers, self.bodies)
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "profiles": [profile or shipped()], **config,
        }  # fmt: skip
        recorder = Recorder("scheduler")
        self.ops = OpsServer("127.0.0.1", 0, recorder=recorder)
        options = Options(KubeSchedulerConfiguration.model_validate(content), network_topology=True)
        self.app = App(options, client=self.client, informers=self.informers, recorder=recorder, ops=self.ops)
        self.probe = Probe()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        life = Life()
        task = asyncio.get_running_loop().create_task(self.app.run(life), name="app")
        await asyncio.sleep(0.05)
        try:
            yield
        finally:
            life.stop()
            await asyncio.wait_for(task, 30)
            await life.finish()

    async def put(self, kind: Any, objects: list[tuple[str, Obj | bytes]]) -> None:
        """As a reflector does: a few at a time."""
        for number, (key, body) in enumerate(objects):
            self.informers.put(kind, key, body if isinstance(body, bytes) else encode(body))
            if number % 16 == 15:
                await asyncio.sleep(0)

    async def nodes(self, count: int, labels: Callable[[int], dict[str, str]] = lambda number: {}, cpu: str = "32") -> None:
        made = [
            testing.node(f"n{n}", cpu=cpu, memory="256Gi", labels={"topology.kubernetes.io/zone": f"z{n % 3}", **labels(n)})
            for n in range(count)
        ]
        await self.put(NODES, [(node.metadata.name, encode(node)) for node in made])
        await self.put(NODEMETRICS, [(f"n{n}", metric(f"n{n}", n, time.time())) for n in range(count)])

    def pod(self, name: str, *, node: str = "", **spec: Any) -> tuple[str, bytes]:
        pod = testing.pod(name, uid=f"u-{name}", **{"memory": "64Mi", **spec})
        body = {"metadata": msgspec.to_builtins(pod.metadata), "spec": {**msgspec.to_builtins(pod.spec), "nodeName": node}, "status": {}}
        text = encode(body)
        self.bodies[f"{pod.metadata.namespace}/{name}"] = text.decode()
        return f"{pod.metadata.namespace}/{name}", text

    async def settled(self, test: Callable[[], bool], seconds: float = 300.0) -> None:
        ends = time.monotonic() + seconds
        while not test():
            if time.monotonic() > ends:
                raise TimeoutError("it did not come to that")
            await asyncio.sleep(0.02)


Scene = Callable[[Lab], AsyncIterator[None]]


def measured(what: str, lab: Lab, scene: Scene) -> Row:
    """`scene` prepares, yields, and does what is measured."""

    async def run() -> None:
        async with lab.running():
            steps = scene(lab)
            await anext(steps)
            gc.collect()
            gc.freeze()
            with lab.probe.watching():
                await anext(steps, None)
                await asyncio.sleep(0.3)

    asyncio.run(run())
    worst = lab.probe.worst()
    if "--where" in sys.argv:
        for turn in worst[:8]:
            print(f"  {turn.seconds * 1e3:7.1f} ms  {turn.what}", flush=True)
        for lines, count in lab.probe.seen.most_common(12):
            print(f"  {count:5} times in {lines}", flush=True)
    total = sum(turn.seconds for turn in worst)
    note = f"{sum(turn.seconds > 0.05 for turn in worst)} beyond 50 ms; {len(worst)} beyond 5 ms, {total:.1f} s in these"
    return Row(f"longest turn of the loop: {what}", worst[0].seconds * 1e3 if worst else 0.0, "ms", GOAL, note=note)


# ---------------------------------------------------------------- scenes


def gang(members: int, nodes: int, network: bool = False, **spec: Any) -> Scene:
    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes, lambda n: {"rack": f"r{n // 20}", "spine": f"s{n * 10 // nodes}"})
        notes: Obj = {}
        if network:
            layers = [
                {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "RackLayer"},
                {"topologyLayer": "RackLayer", "parentTopologyLayer": "SpineLayer", "labelKey": ["rack"]},
                {"topologyLayer": "SpineLayer", "labelKey": ["spine"]},
            ]
            await lab.put(
                CLUSTERNETWORKTOPOLOGIES, [("default", {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": layers}})]
            )
            gather = {"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]}
            notes = {ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC: encode(gather).decode()}
        group = {"metadata": {"name": "g", "namespace": "default", "annotations": notes}, "spec": {"minMember": members}}
        await lab.put(PODGROUPS, [("default/g", group)])
        pods = [lab.pod(f"g-{n}", labels={LABEL_POD_GROUP: "g"}, cpu="2", **spec) for n in range(members)]
        yield
        await lab.put(PODS, pods)
        await lab.settled(lambda: lab.client.bound >= members)
        yield

    return scene


def preempting(members: int, nodes: int) -> Scene:
    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes)
        await lab.put(
            PODS, [lab.pod(f"low-{n}", node=f"n{n // 4}", cpu="8", priority=n % 3, labels={"app": f"a{n % 50}"}) for n in range(4 * nodes)]
        )
        await lab.put(PODGROUPS, [("default/g", {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": members}})])
        pods = [lab.pod(f"g-{n}", labels={LABEL_POD_GROUP: "g"}, cpu="16", priority=9500) for n in range(members)]
        yield
        await lab.put(PODS, pods)
        await lab.settled(lambda: lab.client.bound >= members)
        yield

    return scene


def crowd(pods: int, nodes: int) -> Scene:
    """Pods that fit nowhere, and a node that they fit on appears; later all of them are gone at once."""

    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes, cpu="1")
        waiting = [lab.pod(f"p{n}", cpu=f"{2000 + n % 20}m", labels={"app": f"a{n % 200}"}) for n in range(pods)]
        await lab.put(PODS, waiting)
        await lab.settled(lambda: lab.app.queue.counts()["unschedulable"] >= pods)
        yield
        await lab.put(NODES, [("big", encode(testing.node("big", cpu="4", memory="256Gi")))])
        await lab.settled(lambda: lab.client.bound >= 1)
        await lab.settled(lambda: not lab.app.queue.counts()["active"])
        yield

    return scene


def start(pods: int, nodes: int) -> Scene:
    """All pods are there when the scheduler begins to lead."""

    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes)
        lab.app.scheduler.placements.leading = False
        waiting = [lab.pod(f"p{n}", cpu=f"{100 + n % 300}m", labels={"app": f"a{n % 200}", "pod": f"p{n}"}) for n in range(pods)]
        await lab.put(PODS, waiting)
        yield
        lab.app.scheduler.placements.leading = True
        lab.app.scheduler.wake()
        await lab.settled(lambda: lab.client.bound >= pods)
        yield

    return scene


def reservations(count: int, nodes: int) -> Scene:
    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes)
        found = []
        for n in range(count):
            template = {
                "metadata": {"labels": {"app": f"a{n}"}},
                "spec": {
                    "containers": [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
                    "schedulerName": testing.SCHEDULER,
                },
            }
            spec = {"template": template, "owners": [{"labelSelector": {"matchLabels": {"app": f"a{n}"}}}], "ttl": "1h"}
            found.append(
                (
                    f"r{n}",
                    {
                        "metadata": {"name": f"r{n}", "uid": f"r-{n}", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
                        "spec": spec,
                        "status": {},
                    },
                )
            )
        owners = [lab.pod(f"p{n}", cpu="1", labels={"app": f"a{n}"}) for n in range(count)]
        lab.client.reservations = dict(found)
        yield
        await lab.put(RESERVATIONS, found)
        await lab.settled(lambda: not sum(lab.app.queue.counts().values()) and not lab.app.binder.backlog)
        await lab.put(PODS, owners)
        await lab.settled(lambda: lab.client.bound >= count)
        yield

    return scene


def quotas(count: int, nodes: int, pods: int = 10_000) -> Scene:
    """All quotas of a tree are edited, with pods in them and others that wait for room in them."""

    def quota(n: int, share: int) -> tuple[str, Obj]:
        prefix = "quota.scheduling.koordinator.sh/"
        parent = "koordinator-root-quota" if n < 10 else f"q{n % 10}"
        labels = {prefix + "is-parent": str(n < 10).lower(), prefix + "parent": parent}
        size = 1000 if n < 10 else share
        spec = {"min": {"cpu": f"{size}"}, "max": {"cpu": f"{size}"}}
        return f"default/q{n}", {"metadata": {"name": f"q{n}", "namespace": "default", "labels": labels, "uid": f"q{n}"}, "spec": spec}

    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes)
        await lab.put(ELASTICQUOTAS, [quota(n, 8) for n in range(count)])
        name = "quota.scheduling.koordinator.sh/name"
        await lab.put(PODS, [lab.pod(f"p{n}", cpu="1", labels={name: f"q{10 + n % (count - 10)}"}) for n in range(pods)])
        await lab.settled(lambda: not lab.app.queue.counts()["active"] and not lab.app.binder.backlog)
        yield
        await lab.put(ELASTICQUOTAS, [quota(n, 12) for n in range(count)])
        await asyncio.sleep(3)
        await lab.settled(lambda: not lab.app.queue.counts()["active"] and not lab.app.binder.backlog)
        yield

    return scene


def relabelled(nodes: int, shapes: int = 500) -> Scene:
    """A label of every node changes while pods of many shapes wait for a label."""

    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes)
        waiting = [lab.pod(f"p{n}", cpu=f"{100 + n % shapes}m", nodeSelector={"pool": f"x{n % 7}"}) for n in range(4 * shapes)]
        spread = {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        }
        placed = [lab.pod(f"s{n}", cpu="100m", labels={"app": f"a{n % 100}"}, topologySpreadConstraints=[spread]) for n in range(1000)]
        await lab.put(PODS, [*waiting, *placed])
        await lab.settled(lambda: lab.app.queue.counts()["unschedulable"] >= len(waiting) and lab.client.bound >= 1000)
        yield
        await lab.nodes(nodes, lambda n: {"pool": f"x{n % 5}"})
        await asyncio.sleep(2)
        await lab.settled(lambda: not lab.app.queue.counts()["active"] and not lab.app.binder.backlog)
        yield

    return scene


def selectors(groups: int, nodes: int) -> Scene:
    """Pods with label sets that are all different run; others come with selectors that have no equality."""

    async def scene(lab: Lab) -> AsyncIterator[None]:
        await lab.nodes(nodes)
        await lab.put(
            PODS,
            [
                lab.pod(
                    f"r{n}",
                    node=f"n{n % nodes}",
                    cpu="10m",
                    memory="1Mi",
                    labels={"app": f"a{n % 500}", "statefulset.kubernetes.io/pod-name": f"r{n}", "n": f"{n}"},
                )
                for n in range(groups)
            ],
        )
        zone, host = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
        pods = []
        for n, expression in enumerate(
            [
                {"key": "app", "operator": "NotIn", "values": ["x"]},
                {"key": "app", "operator": "Exists"},
                {"key": "y", "operator": "DoesNotExist"},
                {"key": "app", "operator": "In", "values": [f"a{k}" for k in range(500)]},
            ]
        ):
            selector = {"matchExpressions": [expression]}
            spread = {"maxSkew": 9, "topologyKey": zone, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
            pods.append(lab.pod(f"spread{n}", cpu="10m", topologySpreadConstraints=[spread]))
            for kind in ("podAffinity", "podAntiAffinity"):
                term = {"topologyKey": host, "labelSelector": selector, "namespaceSelector": {}}
                affinity = {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term}]}}
                pods.append(lab.pod(f"{kind.lower()}{n}", cpu="10m", affinity=affinity))
        yield
        await lab.put(PODS, pods)
        await lab.settled(lambda: lab.client.bound >= len(pods))
        yield

    return scene


SCENES: dict[str, tuple[Callable[[int], Scene], Obj]] = {
    "gang 2500": (lambda k: gang(2500 // k, 5000 // k), {}),
    "gang 2500 in a network": (lambda k: gang(450 // k, 5000 // k, network=True), {"Coscheduling": {"awareNetworkTopology": True}}),
    "preempting gang 1000": (lambda k: preempting(1000 // k, 5000 // k), {"Coscheduling": {"enablePreemption": True}}),
    "crowd of 20000 returns": (lambda k: crowd(20_000 // k, 5000 // k), {}),
    "leader start, 30000 pods wait": (lambda k: start(30_000 // k, 5000 // k), {}),
    "reservations 5000": (lambda k: reservations(5000 // k, 5000 // k), {}),
    "quotas 500 edited": (lambda k: quotas(500, 5000 // k, 10_000 // k), {}),
    "labels of all nodes": (lambda k: relabelled(5000 // k), {}),
    "selectors without equality, 60000 label sets": (lambda k: selectors(60_000 // k, 5000 // k), {}),
}


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    only = next((arg.removeprefix("--only=") for arg in sys.argv if arg.startswith("--only=")), "")
    scale = 10 if quick else 1
    found = []
    for name, (scene, args) in SCENES.items():
        if only in name:
            found.append(measured(name, Lab(shipped(**args)), scene(scale)))
            if "--where" in sys.argv:
                print(found[-1], flush=True)
    return found


if __name__ == "__main__":
    script(rows)
