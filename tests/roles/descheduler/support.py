"""A cluster of API objects, and the descheduler on it: objects in, evictions, annotations and records out."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import yaml

from koord.api import kinds
from koord.api.times import format_time
from koord.apiserver.testing import running_server
from koord.decisions.record import Record
from koord.decisions.recorder import Recorder
from koord.decisions.ring import RingSink
from koord.kube.informers import InformerFactory
from koord.process.life import Life
from roles.descheduler.app import App, Options
from roles.descheduler.config import parse_configuration
from roles.descheduler.framework.effects import Evict, Pause
from roles.descheduler.framework.handle import Handle
from roles.descheduler.snapshot import NodeView
from tests.support import patience
from tests.support.wholecluster import scheduling

Obj = dict[str, Any]
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1", "controller": True}


def node(
    name: str,
    *,
    cpu: str = "10",
    memory: str = "20Gi",
    pods: str = "110",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ready: str = "True",
    **spec: Any,
) -> Obj:
    capacity = {"cpu": cpu, "memory": memory, "pods": pods}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}, "annotations": annotations or {}},
        "spec": spec,
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(
    name: str,
    where: str,
    *,
    cpu: str = "1",
    memory: str = "",
    namespace: str = "default",
    owned: bool = True,
    meta: Obj | None = None,
    status: Obj | None = None,
    image: str = "i",
    **spec: Any,
) -> Obj:
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **({"ownerReferences": [OWNER]} if owned else {}), **(meta or {})},
        "spec": {
            "nodeName": where,
            "schedulerName": "koord-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": image, "resources": {"requests": requests}}],
            **spec,
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **(status or {})},
    }


def replicaset(name: str = "r", *, replicas: int = 40, namespace: str = "default") -> Obj:
    """The workload that pods belong to; it is put by itself wherever there are pods of it."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"kind": "ReplicaSet", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def metric(name: str, system: str, pods: dict[str, str] | None = None, *, age: float = 0, namespace: str = "default") -> Obj:
    """A NodeMetric: cpu of the system and of pods by name; each pod also uses 1Gi of memory."""
    usage = [
        {"namespace": namespace, "name": pod_name, "podUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}}
        for pod_name, cpu in (pods or {}).items()
    ]
    return {
        "kind": "NodeMetric",
        "metadata": {"name": name},
        "status": {
            "updateTime": format_time(time.time() - age),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": "1"}}, "systemUsage": {"resources": {"cpu": system, "memory": "1Gi"}}},
            "podsMetric": usage,
        },
    }


async def put(client: Any, *objects: Obj) -> None:
    """Create objects with their status, and the ReplicaSet of pods that have one."""
    for given in objects:
        obj = copy.deepcopy(given)
        if OWNER in (obj["metadata"].get("ownerReferences") or ()):
            obj["metadata"]["ownerReferences"] = [{**OWNER, "uid": await _replicaset(client, obj["metadata"].get("namespace", "default"))}]
        native = kinds.SCHEDULING_PODGROUPS
        kind = native if obj.get("apiVersion") == native.api_version else kinds.BY_KIND[obj["kind"]]
        status = obj.pop("status", None)
        namespace = obj["metadata"].get("namespace")
        await client.create(kind, {"apiVersion": kind.api_version, **obj}, namespace)
        if status is not None:
            await client.patch(kind, obj["metadata"]["name"], {"status": status}, namespace, subresource="status")


async def _replicaset(client: Any, namespace: str) -> str:
    """The uid of the ReplicaSet of a namespace, made if it is not there."""
    found = [each for each in (await client.list(kinds.REPLICASETS, namespace)).items if each["metadata"]["name"] == OWNER["name"]]
    if not found:
        found = [await client.create(kinds.REPLICASETS, {"apiVersion": "apps/v1", **replicaset(namespace=namespace)}, namespace)]
    return str(found[0]["metadata"]["uid"])


def configuration(
    plugins: dict[str, list[str]], args: dict[str, Obj] | None = None, *, profiles: list[Obj] | None = None, **top: Any
) -> str:
    """A configuration of one profile whose pods are evicted at once, without election; `args` by plugin."""
    sets: Obj = {point: {"enabled": [{"name": name} for name in names]} for point, names in plugins.items()}
    for point in ("evict", "filter"):
        sets.setdefault(point, {"enabled": [{"name": "DefaultEvictor"}]})
        sets[point].setdefault("disabled", [{"name": "*"}])
    profile = {"name": "test", "plugins": sets, "pluginConfig": [{"name": name, "args": value} for name, value in (args or {}).items()]}
    document = {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": profiles or [profile],
        **top,
    }
    return yaml.safe_dump(document)


def effects(plugin: Any, nodes: list[NodeView], *, done: bool = True, now: float = 0.0) -> list[Any]:
    """What a plugin asks for in its turn on these nodes, its pauses left out. All of it is done, and pods that are to leave are taken from
    their nodes; or (`done` False) nothing is."""
    turn = plugin.turn(nodes, Handle("test", plugin.name, now=now, filters=[]))
    found: list[Any] = []
    with contextlib.suppress(StopIteration):
        effect = next(turn)
        while True:
            if not isinstance(effect, Pause):
                found.append(effect)
            if done and isinstance(effect, Evict):
                for node in nodes:
                    node.take(effect.pod.metadata.uid)
            effect = turn.send(done)
    return found


class Running:
    """A descheduler under test on a server of its own."""

    def __init__(self, client: Any, app: App, recorder: Recorder, life: Life) -> None:
        self.client, self.app, self.recorder, self.life = client, app, recorder, life

    def rounds(self) -> float:
        sample = self.app.metrics.registry.get_sample_value
        counted = [sample("koord_descheduler_rounds_total", {"result": result}) for result in ("done", "skipped", "failed")]
        return sum(value or 0.0 for value in counted)

    async def wait_rounds(self, count: float) -> None:
        await eventually(lambda: self.rounds() >= count)

    def records(self, *verdicts: str) -> list[Record]:
        found = [record for kind in ("Pod", "Node", "Profile") for record in self.recorder.ring.find(kind=kind)]
        return [record for record in found if not verdicts or record.verdict in verdicts]

    def subjects(self, *verdicts: str) -> list[str]:
        """Names, in the order of the records."""
        return [record.subject.name for record in sorted(self.records(*verdicts), key=lambda record: record.time)]

    async def pods(self) -> set[str]:
        """Names of the pods that are left."""
        return {item["metadata"]["name"] for item in (await self.client.list(kinds.PODS)).items}


async def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until the condition (a plain or an async function) is true; its value."""
    async with asyncio.timeout(patience.seconds(seconds)):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)


@asynccontextmanager
async def descheduling(objects: Iterable[Obj], text: str, gates: dict[str, bool] | None = None) -> AsyncIterator[Running]:
    """A server with the objects, the scheduler at work on it, and the descheduler started."""
    async with running_server(crds=True) as server, server.client() as client, scheduling(client):
        namespaces = sorted({obj["metadata"].get("namespace", "default") for obj in objects} - {"default"})
        await put(client, *({"kind": "Namespace", "metadata": {"name": name}} for name in namespaces), *objects)
        informers = InformerFactory(client)
        recorder = Recorder("descheduler", [RingSink(per_subject=1000)])
        app = App(Options(parse_configuration(text, "test"), "test", gates), client=client, informers=informers, recorder=recorder)
        life = Life()
        task = asyncio.ensure_future(app.run(life))
        try:
            yield Running(client, app, recorder, life)
        finally:
            life.stopping.set()
            try:
                await asyncio.wait_for(task, patience.seconds(10))
            finally:
                await informers.stop()


def after_rounds(objects: Iterable[Obj], text: str, rounds: float = 1, at_most: int | None = None) -> Outcome:
    """Run so many rounds, as many as it takes until no more than `at_most` pods are left, and as many again; what is left and what was
    recorded."""

    async def scenario() -> Outcome:
        async with descheduling(objects, text) as running:
            await running.wait_rounds(rounds)
            if at_most is not None:

                async def few() -> bool:
                    return len(await running.pods()) <= at_most

                await eventually(few)
                await running.wait_rounds(running.rounds() + rounds)
            return Outcome(await running.pods(), running)

    return asyncio.run(scenario())


class Outcome:
    """The end of a scenario."""

    def __init__(self, pods: set[str], running: Running) -> None:
        self.pods = pods
        self.records = running.records
        self.subjects = running.subjects
        self.metrics = running.app.metrics.registry
