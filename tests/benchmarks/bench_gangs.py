"""Jobs on the scheduler in process, through informer events and a stub API server: gangs, network topology, job preemption."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.kinds import CLUSTERNETWORKTOPOLOGIES, NODES, PODGROUPS, PODS, SCHEDULING_PODGROUPS, Kind
from koord.api.names import ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC, LABEL_POD_GROUP
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.kube.store import Informer
from koord.process import tuning
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler import testing
from roles.scheduler.app import App
from roles.scheduler.options import Options
from roles.scheduler.plugins.coscheduling.podgroups import ENDED
from tests.benchmarks.scheduling import Informers, StubClient
from tests.benchmarks.table import Row, script

Obj = dict[str, Any]
_POINTS = ("preEnqueue", "preFilter", "preScore", "score", "reserve", "permit", "postBind")
encode = msgspec.json.Encoder().encode


def profile(**args: Any) -> Obj:
    plugins: Obj = {point: {"enabled": [{"name": "Coscheduling"}]} for point in _POINTS}
    plugins["postFilter"] = {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]}
    return {
        "schedulerName": testing.SCHEDULER,
        "pluginConfig": [{"name": "Coscheduling", "args": args}],
        "plugins": plugins,
    }


class JobInformers(Informers):
    """As `Informers`; the view of pods that have ended stays empty."""

    def informer(self, kind: Kind, projection: type[Any], *, field_selector: str = "", **more: Any) -> Informer[Any]:
        if field_selector == ENDED:
            return Informer(kind.plural, projection, more.get("transform"), type_meta=(kind.api_version, kind.kind))
        return super().informer(kind, projection, **more)


class Jobs:
    """A scheduler with nodes, to which gangs are handed."""

    def __init__(self, **args: Any) -> None:
        self.informers = JobInformers()
        self.bodies: dict[str, str] = {}
        self.client = JobClient(self.informers, self.bodies)
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "profiles": [profile(**args)],
        }  # fmt: skip
        recorder = Recorder("scheduler")
        options = Options(KubeSchedulerConfiguration.model_validate(content), network_topology=True)
        self.app = App(options, client=self.client, informers=self.informers, recorder=recorder,
                       ops=OpsServer("127.0.0.1", 0, recorder=recorder))  # fmt: skip

    def put(self, kind: Kind, key: str, body: Obj | bytes) -> None:
        self.informers.put(kind, key, body if isinstance(body, bytes) else encode(body))

    def nodes(self, count: int, cpu: str, labels: Callable[[int], dict[str, str]] = lambda number: {}) -> None:
        for number in range(count):
            self.put(NODES, f"n{number}", encode(testing.node(f"n{number}", cpu=cpu, memory="256Gi", labels=labels(number))))

    def gang(self, name: str, members: int, annotations: Obj | None = None, **spec: Any) -> list[tuple[str, bytes]]:
        group = {"metadata": {"name": name, "namespace": "default", "annotations": annotations or {}}, "spec": {"minMember": members}}
        self.put(PODGROUPS, f"default/{name}", group)
        return [self.pod(f"{name}-{number}", labels={LABEL_POD_GROUP: name}, **spec) for number in range(members)]

    def pod(self, name: str, *, node: str = "", **spec: Any) -> tuple[str, bytes]:
        pod = testing.pod(name, uid=f"u-{name}", memory="512Mi", **spec)
        body = {"metadata": msgspec.to_builtins(pod.metadata), "spec": {**msgspec.to_builtins(pod.spec), "nodeName": node}, "status": {}}
        text = encode(body)
        self.bodies[f"default/{name}"] = text.decode()
        return f"default/{name}", text

    async def until_bound(self, count: int, seconds: float = 120.0) -> None:
        ends = time.perf_counter() + seconds
        while self.client.bound < count:
            if time.perf_counter() > ends:
                raise TimeoutError(f"{self.client.bound} of {count} pods are bound")
            await asyncio.sleep(0.002)


class JobClient(StubClient):
    """Deletes by telling the informer a moment later, as a watch would."""

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, **_: Any) -> Obj:
        asyncio.get_running_loop().call_soon(self.informers.stores[kind].forget, f"{namespace}/{name}")
        return {}


def measure(jobs: Jobs, prepare: Callable[[], None], hand_over: Callable[[], list[tuple[str, bytes]]]) -> tuple[float, float]:
    """Seconds from the first member's event to the last binding, and CPU seconds."""

    async def run() -> tuple[float, float]:
        life = Life()
        running = asyncio.get_running_loop().create_task(jobs.app.run(life))
        await asyncio.sleep(0.05)
        prepare()
        pods = hand_over()
        await asyncio.sleep(0.2)
        gc.collect()
        gc.freeze()
        started, cpu = time.perf_counter(), time.process_time()
        for key, body in pods:
            jobs.put(PODS, key, body)
        await jobs.until_bound(len(pods))
        result = time.perf_counter() - started, time.process_time() - cpu
        life.stop()
        await asyncio.wait_for(running, 10)
        await life.finish()
        return result

    return _run(run())


def _run(main: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def gangs(nodes: int, count: int, members: int, goal: float | None = None) -> Row:
    jobs = Jobs()
    seconds, cpu = measure(
        jobs,
        lambda: jobs.nodes(nodes, "32"),
        lambda: [pod for number in range(count) for pod in jobs.gang(f"g{number}", members, cpu="2")],
    )
    total = count * members
    note = f"{total / seconds:.0f} pods/s, CPU {cpu / total * 1e3:.2f} ms a pod"
    return Row(f"gangs, {count}x{members} on {nodes} nodes, all bound", seconds, "s", goal, note=note)


def in_network(nodes: int, count: int, members: int, cpu: str) -> Row:
    """Gangs that each must gather below one of ten spines; 20 nodes a rack; pods of so many CPUs, of which a node has 32."""
    jobs = Jobs(awareNetworkTopology=True)
    layers = [
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "RackLayer"},
        {"topologyLayer": "RackLayer", "parentTopologyLayer": "SpineLayer", "labelKey": ["rack"]},
        {"topologyLayer": "SpineLayer", "labelKey": ["spine"]},
    ]
    gather = {"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]}

    def prepare() -> None:
        jobs.nodes(nodes, "32", lambda number: {"rack": f"r{number // 20}", "spine": f"s{number * 10 // nodes}"})
        jobs.put(CLUSTERNETWORKTOPOLOGIES, "default", {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": layers}})

    notes = {ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC: encode(gather).decode()}
    seconds, spent = measure(
        jobs, prepare, lambda: [pod for number in range(count) for pod in jobs.gang(f"g{number}", members, notes, cpu=cpu)]
    )
    total = count * members
    note = f"{total / seconds:.0f} pods/s, CPU {spent / total * 1e3:.2f} ms a pod"
    return Row(f"gangs, {count}x{members} in a network of 3 layers, {nodes} nodes, all bound", seconds, "s", None, note=note)


def in_racks(nodes: int, racks: int, count: int, members: int, goal: float | None = None) -> Row:
    """PodGroups of scheduling.k8s.io that each share a rack: every rack is a placement that is scored."""
    jobs = Jobs()

    def group(name: str) -> list[tuple[str, bytes]]:
        spec = {"schedulingPolicy": {"gang": {"minCount": members}}, "schedulingConstraints": {"topology": [{"key": "rack"}]}}
        jobs.put(SCHEDULING_PODGROUPS, f"default/{name}", {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec})
        return [jobs.pod(f"{name}-{number}", cpu="2", schedulingGroup={"podGroupName": name}) for number in range(members)]

    seconds, spent = measure(
        jobs,
        lambda: jobs.nodes(nodes, "32", lambda number: {"rack": f"r{number % racks}"}),
        lambda: [pod for number in range(count) for pod in group(f"g{number}")],
    )
    total = count * members
    note = f"{seconds:.2f} s, CPU {spent / total * 1e3:.2f} ms a pod"
    what = f"PodGroups, {count}x{members}, each in one of {racks} racks, {nodes} nodes, all placements scored"
    return Row(what, total / seconds, "pods/s", goal, "higher", note)


def preemption(nodes: int, members: int) -> list[Row]:
    """A gang on a full cluster, of which it needs two pods a node to go."""
    jobs = Jobs(enablePreemption=True)

    def prepare() -> None:
        jobs.nodes(nodes, "32")
        for number in range(4 * nodes):
            key, body = jobs.pod(f"low-{number}", node=f"n{number // 4}", cpu="8", priority=number % 3)
            jobs.put(PODS, key, body)

    seconds, spent = measure(jobs, prepare, lambda: jobs.gang("job", members, cpu="16", priority=1000))
    what = f"job preemption, a gang of {members} on a full cluster of {nodes} nodes"
    longest = jobs.app.scheduler.loop()["longestTurnSeconds"]
    return [
        Row(f"{what}, all bound", seconds, "s", None, note=f"CPU {spent:.2f} s"),
        Row(f"{what}, longest turn of the loop", longest * 1e3, "ms", 20.0),
    ]


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()  # as the role does
    scale = 10 if quick else 1
    nodes = 5000 // scale
    return [
        gangs(nodes, 1, 5000 // scale, 3.0),
        gangs(nodes, 100 // scale, 50),
        gangs(nodes, 1000 // scale, 3),
        in_network(nodes, 1, 5000 // scale, "2"),
        in_network(nodes, 100 // scale, 50, "8"),
        in_network(nodes, 10, 1000 // scale, "8"),
        in_racks(nodes, 50 // scale, 1000 // scale, 4, 1500.0),
        *preemption(nodes, 512 // scale),
        *preemption(3000 // scale, 2500 // scale),
    ]


if __name__ == "__main__":
    script(rows)
