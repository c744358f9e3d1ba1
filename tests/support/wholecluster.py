"""A cluster in which pods really move: the embedded API server, the scheduler role, the descheduler role, and a small workload controller
and kubelet. Objects in; jobs, reservations, evictions, events and records out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

from koord.api import kinds
from koord.api.objects import Reservation
from koord.api.times import format_time
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.decisions.ring import RingSink
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.descheduler.app import App, Options
from roles.descheduler.config import parse_configuration
from roles.descheduler.placement import SchedulerFlags
from roles.scheduler.app import App as Scheduler
from roles.scheduler.options import Options as SchedulerOptions
from tests.support import patience
from tests.support.migration import NS, Cluster, cluster

Obj = dict[str, Any]
SCHEDULER = "koord-scheduler"


def _enabled(*names: str, alone: bool = False) -> Obj:
    found: Obj = {"enabled": [{"name": name} for name in names]}
    return {**found, "disabled": [{"name": "*"}]} if alone else found


PROFILE: Obj = {  # what the shipped profile says about Reservation
    "schedulerName": SCHEDULER,
    "plugins": {
        "preFilter": _enabled("Reservation"),
        "filter": _enabled("Reservation"),
        "postFilter": _enabled("Reservation", "DefaultPreemption", alone=True),
        "preScore": _enabled("Reservation"),
        "score": {"enabled": [{"name": "Reservation", "weight": 5000}]},
        "reserve": _enabled("Reservation"),
        "preBind": _enabled("Reservation", "DefaultPreBind"),
        "bind": _enabled("Reservation", "DefaultBinder", alone=True),
    },
}


@contextlib.asynccontextmanager
async def scheduling(client: Client, profile: Obj = PROFILE) -> AsyncIterator[InformerFactory]:
    """The scheduler role on a server, and what it sees."""
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [profile],
    }
    informers, recorder, life = InformerFactory(client), Recorder("scheduler", [RingSink(per_subject=1000)]), Life()
    ops = OpsServer("127.0.0.1", 0, recorder=recorder, role="scheduler")
    options = SchedulerOptions(KubeSchedulerConfiguration.model_validate(content))
    app = Scheduler(options, client=client, informers=informers, recorder=recorder, ops=ops)
    running = asyncio.ensure_future(app.run(life))
    try:
        yield informers
    finally:
        life.stop()
        await asyncio.wait_for(running, patience.seconds(5))
        await life.finish()
        await informers.stop()
        await ops.stop()


@contextlib.asynccontextmanager
async def descheduling(client: Client, text: str, scheduler: SchedulerFlags | None = None) -> AsyncIterator[tuple[App, Recorder]]:
    """The descheduler role on a server, as `koord descheduler` wires it."""
    # a job that waits on a busy machine may leave more records than the ring of a process keeps for it
    informers, recorder, life = InformerFactory(client), Recorder("descheduler", [RingSink(per_subject=1000)]), Life()
    options = Options(parse_configuration(text, "test"), "test", scheduler=scheduler)
    app = App(options, client=client, informers=informers, recorder=recorder)
    running = asyncio.ensure_future(app.run(life))
    try:
        yield app, recorder
    finally:
        life.stop()
        await asyncio.wait_for(running, patience.seconds(5))
        await life.finish()
        await informers.stop()


class Workers:
    """Workload controller and kubelet of one ReplicaSet: pods come again, unbound, and what is bound becomes ready.

    `replicas` may be changed at any time; `spec` is what new pods ask for beside CPU. `left` are the names of pods that have gone, `born`
    those that came for them. `stable`: the pods keep their names, as those of a StatefulSet do.
    """

    stable = False

    def __init__(
        self,
        world: Cluster,
        owner: str,
        replicas: int,
        *,
        controller: str = "web",
        cpu: str = "100m",
        spec: Obj | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        self.world, self.owner, self.replicas, self.controller, self.cpu = world, owner, replicas, controller, cpu
        self.spec, self.labels = spec or {}, labels or {}
        self.born: list[str] = []
        self.left: set[str] = set()
        self._seen: set[str] = set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(errors.ApiError):
                await self.turn()
            await asyncio.sleep(0.02)

    async def turn(self) -> None:
        client = self.world.client
        pods = [pod for pod in (await client.list(kinds.PODS, NS)).items if self._mine(pod)]
        present = {pod["metadata"]["name"] for pod in pods}
        self.left |= self._seen - present
        self._seen |= present
        for pod in pods:
            conditions = [each for each in pod["status"].get("conditions", []) if (each["type"], each["status"]) != ("Ready", "False")]
            if pod["spec"].get("nodeName") and not any(each["type"] == "Ready" for each in conditions):
                body = {"status": {"phase": "Running", "conditions": [*conditions, {"type": "Ready", "status": "True"}]}}
                await client.patch(kinds.PODS, pod["metadata"]["name"], body, NS, subresource="status")
        if self.stable:
            for name in sorted(self._seen - present):
                await self._create(name)
            return
        for _ in range(self.replicas - sum(1 for pod in pods if not pod["metadata"].get("deletionTimestamp"))):
            await self._create(f"{self.controller}-new-{len(self.born)}")

    def _mine(self, pod: Obj) -> bool:
        return any(owner["uid"] == self.owner for owner in pod["metadata"].get("ownerReferences") or ())

    async def _create(self, name: str) -> None:
        self.born.append(name)
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.controller, "uid": self.owner, "controller": True}
        meta = {"name": name, "labels": {"app": self.controller} | self.labels, "ownerReferences": [reference]}
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": self.cpu}}}
        spec = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 0, "containers": [container], **self.spec}
        await self.world.client.create(kinds.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, NS)


class Whole:
    """A cluster with all its parts."""

    def __init__(self, world: Cluster, seen: InformerFactory) -> None:
        self.world = world
        self._reservations = seen.informer(kinds.RESERVATIONS, Reservation)
        self.client = world.client

    async def shut(self, reservation: str) -> None:
        """Let nobody come into a place, as soon as the scheduler knows."""
        await self.client.patch(kinds.RESERVATIONS, reservation, {"spec": {"unschedulable": True}})

        async def known() -> bool:
            found = self._reservations.get(reservation)
            return found is not None and found.spec.unschedulable

        await self.world.until(known)

    async def report(self, node: str, system: str, pods: dict[str, str] | None = None, *, age: float = 0.0) -> None:
        """A NodeMetric, as koordlet writes it: cpu of the system and of pods by name."""
        used = [
            {"namespace": NS, "name": name, "podUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}} for name, cpu in (pods or {}).items()
        ]
        usage = {
            "updateTime": format_time(time.time() - age),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": system}}, "systemUsage": {"resources": {"cpu": system, "memory": "1Gi"}}},
            "podsMetric": used,
        }
        await self.world.put(kinds.NODEMETRICS, node, {"status": usage})

    async def workload(
        self,
        pods: dict[str, str],
        *,
        replicas: int | None = None,
        cpu: str = "100m",
        spec: Obj | None = None,
        labels: dict[str, str] | None = None,
    ) -> Workers:
        """A ReplicaSet with these pods (name -> node), and its controller; the controller is not at work yet."""
        count = len(pods) if replicas is None else replicas
        owner = await self.world.replicaset(replicas=count)
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
        for name, node in pods.items():
            meta = {"labels": {"app": "web"} | (labels or {})}
            await self.world.pod(name, node, owner, spec={"containers": [container], **(spec or {})}, metadata=meta)
        return Workers(self.world, owner, count, cpu=cpu, spec=spec, labels=labels)

    async def jobs(self) -> list[Obj]:
        return [*(await self.client.list(kinds.PODMIGRATIONJOBS)).items]

    async def until_ended(self, count: int) -> list[Obj]:
        """Wait until so many jobs are there and have ended."""
        seen: list[Obj] = []

        async def look() -> bool:
            nonlocal seen
            seen = await self.jobs()
            ended = [job for job in seen if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed")]
            return len(ended) >= count and len(ended) == len(seen)

        try:
            await self.world.until(look)
        except TimeoutError:
            raise AssertionError([(job["metadata"]["name"], job.get("status")) for job in seen]) from None
        return seen

    async def nodes_of(self, names: Iterable[str]) -> Counter[str]:
        """How many of these pods are on each node."""
        return Counter([pod["spec"].get("nodeName", "") for name in names if (pod := await self.world.get(kinds.PODS, name)) is not None])

    async def held(self) -> list[str]:
        """Reservations that hold a place which nobody uses."""
        found = (await self.client.list(kinds.RESERVATIONS)).items
        return [each["metadata"]["name"] for each in found if (each.get("status") or {}).get("phase") != "Succeeded"]


@contextlib.asynccontextmanager
async def whole(profile: Obj = PROFILE) -> AsyncIterator[Whole]:
    """Three nodes and the scheduler."""
    async with cluster() as world, scheduling(world.client, profile) as seen:
        yield Whole(world, seen)


@contextlib.asynccontextmanager
async def at_work(workers: Workers) -> AsyncIterator[Workers]:
    """Let a workload controller work."""
    task = asyncio.ensure_future(workers.run())
    try:
        yield workers
    finally:
        task.cancel()
        await asyncio.wait({task})
