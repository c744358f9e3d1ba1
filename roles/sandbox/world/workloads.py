"""The users of a world: what they run, and the controllers that keep it running."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.kinds import PODDISRUPTIONBUDGETS, PODS, REPLICASETS
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists, ApiError
from koord.kube.informers import InformerFactory
from roles.sandbox.builders import SCHEDULER, obj, replica
from roles.sandbox.nodes.fleet import CURVE_ANNOTATION, RUN_SECONDS_ANNOTATION, USAGE_PERCENT_ANNOTATION, node_name
from roles.sandbox.world.configuration import POOL, QUOTAS
from roles.sandbox.world.programs import connection
from roles.sandbox.world.spec import NAMESPACE, Workload

if TYPE_CHECKING:
    from koord.kube.store import Informer
    from roles.sandbox.world.environment import Environment

Obj = dict[str, Any]
FINISHED = ("Succeeded", "Failed")
SORTS = ("service", "service", "service", "hot", "batch", "batch", "gang", "big", "gpu", "gpu", "quota", "quota", "cores")
CROWD = 8  # pods of a workload that fills three nodes


def pod_template(work: Workload) -> Obj:
    """Labels, annotations and spec of its pods."""
    labels = {"app": work.name} | ({"koordinator.sh/qosClass": work.qos} if work.qos else {})
    annotations = {CURVE_ANNOTATION: work.curve, USAGE_PERCENT_ANNOTATION: str(work.usage)}
    if work.run_seconds:
        annotations[RUN_SECONDS_ANNOTATION] = str(work.run_seconds)
    if work.gang:
        annotations |= {"gang.scheduling.koordinator.sh/name": work.name, "gang.scheduling.koordinator.sh/min-available": str(work.gang)}
    if work.quota:
        labels["quota.scheduling.koordinator.sh/name"] = work.quota
    cpu, memory = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory") if work.batch else ("cpu", "memory")
    amounts = {cpu: str(work.cpu) if work.batch else f"{work.cpu}m", memory: f"{work.memory}Mi"}
    if work.gpu:
        amounts |= {"koordinator.sh/gpu-core": str(work.gpu), "koordinator.sh/gpu-memory-ratio": str(work.gpu)}
    resources: Obj = {"requests": amounts, "limits": amounts | (limits_of(work, work.limit) if work.limit != 100 else {})}
    spec: Obj = {
        "schedulerName": SCHEDULER,
        "priorityClassName": work.priority,
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "main", "image": "app", "resources": resources}],
    }
    if work.claim:
        spec["resourceClaims"] = [{"name": f"cards-{work.claim}", "resourceClaimTemplateName": f"cards-{work.claim}"}]
        resources["claims"] = [{"name": f"cards-{work.claim}"}]
    affinity: Obj = {}
    if work.prefers:
        expressions = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [work.prefers]}]
        liked = {"weight": 100, "preference": {"matchExpressions": expressions}}
        affinity["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [liked]}
    if work.pool:
        terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": POOL, "operator": "In", "values": [work.pool]}]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if work.shuns:
        loud = {"matchExpressions": [{"key": work.shuns, "operator": "Exists"}]}
        apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": loud}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    if affinity:
        spec["affinity"] = affinity
    if work.spread:
        even: Obj = {"maxSkew": work.spread, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
        spec["topologySpreadConstraints"] = [{**even, "labelSelector": {"matchLabels": {"app": work.name}}}]
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def limits_of(work: Workload, percent: int) -> dict[str, str]:
    """The limits of its containers, as a part of what they request."""
    return {"cpu": f"{work.cpu * percent // 100}m", "memory": f"{work.memory * percent // 100}Mi"}


class Controllers:
    """What a controller manager does for ReplicaSets: pods that left are replaced, and the status says what is there and which generation
    was seen. Deciding from its own list, as the real one."""

    def __init__(self, world: Environment) -> None:
        self.world = world
        self._made = 0
        self._touched: set[str] = set()  # names of ReplicaSets that something has happened to
        self._expected: dict[str, dict[str, float]] = {}  # pods that were made and are not seen yet: since when

    async def main(self) -> None:
        """Live for ever."""
        async with Client(connection("controllers"), role="controllers") as client:
            informers = InformerFactory(client)
            sets = informers.informer(REPLICASETS)
            pods = informers.informer(PODS)
            pods.index("owner", lambda pod: [o["uid"] for o in pod["metadata"].get("ownerReferences") or []])
            informers.start()
            await informers.wait_synced()
            sets.add_handler(self._changed, lambda _, owner: self._changed(owner))
            pods.add_handler(self._pod, lambda _, pod: self._pod(pod), self._pod)
            while True:
                touched, self._touched = sorted(self._touched), set()
                for name in touched:
                    owner = sets.get(f"{NAMESPACE}/{name}")
                    if owner is not None and not owner["metadata"].get("deletionTimestamp"):
                        await self._keep(client, owner, pods)
                await seams.sleep(1.0)

    def _changed(self, owner: Obj) -> None:
        self._touched.add(owner["metadata"]["name"])

    def _pod(self, pod: Obj) -> None:
        self._touched.update(owner["name"] for owner in pod["metadata"].get("ownerReferences") or ())

    async def _keep(self, client: Client, owner: Obj, pods: Informer[Obj]) -> None:
        """Make what a ReplicaSet lacks. It is looked at again while a pod failed to be made or is not seen yet."""
        name = owner["metadata"]["name"]
        mine = pods.by_index("owner", owner["metadata"]["uid"])
        gone = [pod["metadata"].get("deletionTimestamp") or _phase(pod) == "Failed" for pod in mine]
        there = sum(1 for pod, left in zip(mine, gone, strict=True) if _phase(pod) == "Succeeded" or not left)
        expected = self._expected.pop(name, {})
        now = seams.monotonic()
        expected = {made: at for made, at in expected.items() if now - at < 5 and pods.get(f"{NAMESPACE}/{made}") is None}
        failed = False
        for _ in range(owner["spec"]["replicas"] - there - len(expected)):
            made = await self._create(client, owner)
            if made:
                expected[made] = seams.monotonic()
            failed = failed or not made
        if expected:
            self._expected[name] = expected
        told = await self._tell(client, owner, mine)
        if expected or failed or not told:
            self._touched.add(name)

    async def _tell(self, client: Client, owner: Obj, mine: list[Obj]) -> bool:
        """Write the status where it says something else. False: it could not be written."""
        active = [pod for pod in mine if not pod["metadata"].get("deletionTimestamp") and _phase(pod) not in FINISHED]
        ready = sum(1 for pod in active if _ready(pod))
        seen = {"replicas": len(active), "fullyLabeledReplicas": len(active), "readyReplicas": ready, "availableReplicas": ready}
        wanted = {**seen, "observedGeneration": owner["metadata"].get("generation", 1)}
        held = owner.get("status") or {}
        if all(held.get(name, 0) == value for name, value in wanted.items()):
            return True
        try:
            await client.patch(REPLICASETS, owner["metadata"]["name"], {"status": wanted}, NAMESPACE, subresource="status")
        except ApiError as error:
            return error.status == 404
        return True

    async def _create(self, client: Client, owner: Obj) -> str:
        self._made += 1
        name = f"{owner['metadata']['name']}-{self._made:04d}"
        try:
            await client.create(PODS, replica(owner, name), NAMESPACE)
        except AlreadyExists:
            return name
        except ApiError:
            return ""
        return name


def _ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _phase(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


class Users:
    """Create and delete workloads at their time."""

    def __init__(self, world: Environment, workloads: list[Workload]) -> None:
        self.world = world
        self.workloads = workloads
        self._begun: float | None = None

    async def main(self) -> None:
        """Live until everything is done. A second life, after all was lost, does everything again that should be there by then."""
        steps = sorted(
            [(work.at, 0, work.name, work) for work in self.workloads]
            + [(work.until, 1, work.name, work) for work in self.workloads if work.until]
            + [(at, number + 2, work.name, work) for work in self.workloads for number, (at, _) in enumerate(work.resizes)],
            key=lambda step: step[:3],
        )
        async with Client(connection("users"), role="users") as client:
            if self._begun is None:
                self._begun = seams.monotonic()
            begun = self._begun
            for at, kind, _, work in steps:
                if not kind and work.until and seams.monotonic() - begun > work.until:
                    continue
                await seams.sleep(max(0.0, at - (seams.monotonic() - begun)))
                if kind < 2:
                    await self._patiently(self._delete if kind else self._create, client, work)
                else:
                    await self._patiently(partial(self._resize, work.resizes[kind - 2][1]), client, work)

    async def _patiently(self, step: Callable[[Client, Workload], Awaitable[None]], client: Client, work: Workload) -> None:
        while True:
            try:
                return await step(client, work)
            except AlreadyExists:
                return None
            except ApiError as error:
                if error.status in (404, 422):
                    return None
                await seams.sleep(1.0)

    async def _create(self, client: Client, work: Workload) -> None:
        labels = {"app": work.name}
        spec = {"replicas": work.replicas, "selector": {"matchLabels": labels}, "template": pod_template(work)}
        await client.create(REPLICASETS, obj(REPLICASETS, work.name, NAMESPACE, spec=spec), NAMESPACE)
        if work.min_available:
            budget = {"minAvailable": work.min_available, "selector": {"matchLabels": labels}}
            await client.create(PODDISRUPTIONBUDGETS, obj(PODDISRUPTIONBUDGETS, work.name, NAMESPACE, spec=budget), NAMESPACE)

    async def _resize(self, percent: int, client: Client, work: Workload) -> None:
        """Other limits for the pods that are there, in place."""
        sized = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits_of(work, percent)}}]}}
        found = await client.list(PODS, NAMESPACE, label_selector=f"app={work.name}")
        for pod in found.items:
            await client.patch(PODS, pod["metadata"]["name"], sized, NAMESPACE, type="strategic", subresource="resize")

    async def _delete(self, client: Client, work: Workload) -> None:
        await client.delete(REPLICASETS, work.name, NAMESPACE, propagation="Background")


def draw(rng: random.Random, pods: int, minutes: float, sorts: tuple[str, ...] = ()) -> list[Workload]:
    """Workloads of about so many pods, for so many minutes, of every sort or of these."""
    made: list[Workload] = []
    left = pods
    if pods >= CROWD and ("crowd" in sorts or (not sorts and rng.random() < 0.4)):  # so full that what comes later has to make room
        made.append(Workload("crowd-0", CROWD, rng.choice((1500, 2000)), 256, priority="koord-mid", usage=20))
        left -= CROWD
    sorts = tuple(sort for sort in sorts if sort != "crowd")
    while left > 0:
        sort = rng.choice(sorts or SORTS)
        at = round(rng.uniform(0, minutes * 30), 1)
        until = round(at + rng.uniform(30, minutes * 60), 1) if rng.random() < 0.3 else 0.0
        work = _draw_one(rng, sort, f"{sort}-{len(made) + 1}", left)
        made.append(replace(work, at=at, until=until))
        left -= work.replicas
    return made


def pinned(rng: random.Random, minutes: float, static: bool = False) -> list[Workload]:
    """Pods with CPUs for themselves: the nodes of agents can tell them apart. Where the kubelet gives out CPUs itself (`static`) it does
    so for pods of no class, beside which there are none of the scheduler's: two who give out the same CPUs cannot both be right."""
    made = []
    for index in range(rng.randint(0, 2)):
        work = Workload(f"pinned-{index + 1}", 1, rng.choice((1000, 2000)), 256, qos=rng.choice(("LSE", "LSR")), usage=rng.randint(20, 90))
        if static:
            work = replace(work, qos="", prefers=node_name(0))
        until = round(rng.uniform(40, minutes * 60), 1) if rng.random() < 0.5 else 0.0
        made.append(replace(work, at=round(rng.uniform(0, minutes * 20), 1), until=until))
    return made


def hungry(rng: random.Random, minutes: float) -> list[Workload]:
    """Batch pods that fill a node's memory; some may not be disturbed."""
    budget = rng.choice((0, 2))
    work = Workload("hungry", 2, 1000, 2048, qos="BE", priority="koord-batch", usage=95, batch=True, min_available=budget)
    return [replace(work, at=round(rng.uniform(0, minutes * 10), 1))] if rng.random() < 0.5 else []


def flexible(rng: random.Random, minutes: float) -> list[Workload]:
    """Services that may use more than they request, and whose pods are resized in place now and then."""
    made = []
    for index in range(rng.randint(0, 2)):
        times = sorted(round(rng.uniform(15, minutes * 60), 1) for _ in range(rng.randint(1, 3)))
        resizes = tuple((at, rng.choice((110, 150, 250, 300))) for at in times)
        cpu, usage, curve = rng.choice((300, 500, 1000)), rng.randint(60, 180), rng.choice(("steady", "bursty"))
        work = Workload(f"flexible-{index + 1}", rng.randint(1, 2), cpu, 256, usage=usage, curve=curve, limit=200)
        made.append(replace(work, resizes=resizes, prefers=node_name(0)))
    return made


def claiming(rng: random.Random, minutes: float) -> list[Workload]:
    """Pods that have whole cards by claims, beside those that ask for a part of one."""
    made = []
    for index in range(rng.randint(1, 2)):
        work = Workload(f"claiming-{index + 1}", rng.randint(1, 4), 250, 128, claim=rng.choice((1, 1, 2)), usage=10)
        until = round(rng.uniform(30, minutes * 60), 1) if rng.random() < 0.5 else 0.0
        made.append(replace(work, at=round(rng.uniform(0, minutes * 30), 1), until=until))
    return made


def _draw_one(rng: random.Random, sort: str, name: str, most: int) -> Workload:
    replicas = min(most, rng.randint(1, 6))
    curve = rng.choice(("steady", "diurnal", "bursty"))
    if sort == "service":
        budget = max(0, replicas - 1) if rng.random() < 0.4 else 0
        cpu, memory = rng.choice((250, 500, 1000, 2000)), rng.choice((128, 512, 1024))
        priority = rng.choice(("koord-prod", "koord-prod", "koord-mid"))
        return Workload(name, replicas, cpu, memory, priority=priority, usage=rng.randint(10, 80), curve=curve, min_available=budget)
    if sort == "batch":
        seconds, cpu = rng.choice((0, 20, 60)), rng.choice((500, 1000, 2000))
        usage = rng.randint(50, 100)
        return Workload(name, replicas, cpu, 256, qos="BE", priority="koord-batch", usage=usage, batch=True, run_seconds=seconds)
    if sort == "gang":
        replicas = min(most, rng.randint(2, 5))
        return Workload(name, replicas, rng.choice((500, 1000, 2000)), 256, priority=rng.choice(("koord-prod", "koord-mid")), gang=replicas)
    if sort == "gpu":
        return Workload(name, replicas, 250, 128, gpu=rng.choice((30, 50, 60, 100)), priority=rng.choice(("koord-prod", "koord-mid")))
    if sort == "quota":
        return Workload(name, replicas, rng.choice((500, 1000, 2000)), 256, quota=rng.choice(tuple(QUOTAS)))
    if sort == "hot":  # uses far more than it asks for, so that its nodes have to be relieved
        replicas, prefers = min(most, rng.randint(3, 5)), node_name(rng.randrange(2))
        least = max(0, replicas - 1) if rng.random() < 0.3 else 0
        return Workload(name, replicas, 300, 256, usage=rng.randint(300, 500), min_available=least, prefers=prefers)
    if sort == "cores":  # CPUs for themselves, more pods than nodes
        return Workload(name, min(most, rng.randint(2, 5)), rng.choice((1000, 2000)), 256, qos="LSR")
    return Workload(name, 1, rng.choice((3000, 4000)), 2048, usage=rng.randint(20, 60))
