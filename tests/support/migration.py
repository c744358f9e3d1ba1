"""A cluster in which pods migrate: the embedded API server, the migration controller in one or several lives, and somebody who plays
scheduler, kubelet and workload controller."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from koord.api import kinds
from koord.apiserver.testing import RunningServer, running_server
from koord.config.gates import DESCHEDULER, FeatureGates
from koord.decisions.recorder import Recorder
from koord.decisions.ring import RingSink
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.events import EventRecorder
from koord.kube.informers import InformerFactory
from roles.descheduler.cluster import ClusterState
from roles.descheduler.framework.evicting import EvictOptions, EvictResult, Foresees, Setup
from roles.descheduler.metrics import Metrics
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.migration.plugin import MigrationController
from roles.descheduler.workloads import Workloads
from tests.support import patience

NS = "default"
LIMIT = 30.0  # seconds that a condition may take on a busy machine
Obj = dict[str, Any]
FREE: Obj = {
    "evictQPS": "1000",
    "evictBurst": 1000,
    "objectLimiters": {"workload": {"duration": "0s"}},
    "arbitrationArgs": {"interval": "10ms"},
}


def arguments(**fields: Any) -> MigrationControllerArgs:
    """Arguments as a configuration would give them; no pace and no object limiters unless given."""
    return MigrationControllerArgs.model_validate(FREE | fields)


class Life:
    """One life of the descheduler's process: caches, plugin, controller."""

    def __init__(
        self, client: Client, args: MigrationControllerArgs, gates: str, clock: Callable[[], float], successors: Foresees | None = None
    ) -> None:
        self.client = client
        self.informers = InformerFactory(client)
        self.recorder = Recorder("descheduler", [RingSink(per_subject=1000)])
        self.events = EventRecorder(client, "test-profile")
        cluster = ClusterState(self.informers)
        self.metrics = Metrics()
        features = FeatureGates(DESCHEDULER)
        if gates:
            features.set_from_flag(gates)
        self.setup = Setup(
            profile="test-profile",
            dry_run=False,
            client=client,
            informers=self.informers,
            cluster=cluster,
            workloads=Workloads(client, self.informers, cluster),
            recorder=self.recorder,
            events=self.events,
            metrics=self.metrics,
            gates=features,
            clock=clock,
            successors=successors,
        )
        self.plugin = MigrationController(args, self.setup)
        self.migrations = self.setup.shared["MigrationController"]
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fill the caches and run the controller."""
        self.informers.start()
        (controller,) = self.plugin.controllers()
        self._task = asyncio.ensure_future(controller.run(None))
        await self.plugin.prepare(())

    async def kill(self) -> None:
        """End as a killed process does: whatever runs stops where it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.events.stop()
        await self.informers.stop()

    @property
    def died(self) -> bool:
        return self._task is not None and self._task.done()

    async def leads(self) -> bool:
        """Whether it has begun to work: it has read what earlier lives did."""
        return bool(self.migrations.writing.held())

    async def evict(self, pod: str, **options: Any) -> EvictResult:
        """What a plugin of the profile would ask for."""
        found = self.setup.cluster.pod(NS, pod)
        assert found is not None
        return await self.plugin.evict(found, EvictOptions(**({"plugin": "LowNodeLoad", "reason": "node is overutilized"} | options)))

    def refusal(self, pod: str) -> str:
        """What the filter says about a pod."""
        found = self.setup.cluster.pod(NS, pod)
        assert found is not None
        return self.plugin.filter(found)


class Cluster:
    """The API server with helpers to write objects, to wait, and to start lives."""

    def __init__(self, server: RunningServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.lives: list[Life] = []
        self.shift = 0.0  # seconds that the clock of later looks is ahead
        self._clients: list[Client] = []

    def now(self) -> float:
        return time.time() + self.shift

    async def live(self, *, gates: str = "", client: Client | None = None, successors: Foresees | None = None, **fields: Any) -> Life:
        """A new life with these arguments of MigrationController; `successors` stands for the scheduler, asked before a pod leaves."""
        if client is None:
            client = self.server.client()
            self._clients.append(client)
        life = Life(client, arguments(**fields), gates, self.now, successors)
        self.lives.append(life)
        await life.start()
        return life

    async def close(self) -> None:
        for life in self.lives:
            await life.kill()
        for client in self._clients:
            await client.close()

    # ---------------------------------------------------------------- objects

    async def put(self, kind: kinds.Kind, name: str, body: Obj, namespace: str | None = None) -> Obj:
        """Create an object; its status goes through the subresource."""
        status = body.pop("status", None)
        meta = {"name": name, **body.pop("metadata", {})}
        namespace = (namespace or NS) if kind.namespaced else None
        made = await self.client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **body}, namespace)
        if status is not None:
            made = await self.client.patch(kind, name, {"status": status}, namespace, subresource="status")
        return made

    async def node(self, name: str) -> None:
        capacity = {"cpu": "10", "memory": "40Gi", "pods": "110"}
        conditions = [{"type": "Ready", "status": "True"}]
        await self.put(kinds.NODES, name, {"status": {"capacity": capacity, "allocatable": capacity, "conditions": conditions}})
        with contextlib.suppress(errors.ApiError):
            await self.client.patch(kinds.NODES, name, {"spec": {"taints": None}})

    async def replicaset(self, name: str = "web", replicas: int = 8, **more: Any) -> str:
        """A ReplicaSet; its uid."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        made = await self.put(kinds.REPLICASETS, name, {"spec": spec, **more})
        return str(made["metadata"]["uid"])

    async def pod(self, name: str, node: str = "n1", owner: str = "", *, controller: str = "web", ready: bool = True, **more: Any) -> Obj:
        """A running pod on a node (pending without one) of a ReplicaSet by its uid."""
        meta: Obj = {"labels": {"app": controller}, **more.pop("metadata", {})}
        if owner:
            meta["ownerReferences"] = [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": controller, "uid": owner, "controller": True}
            ]
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
        spec: Obj = {
            "schedulerName": "koord-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **more.pop("spec", {}),
        }
        if node:
            spec["nodeName"] = node
        conditions = [{"type": "PodScheduled", "status": "True" if node else "False", "message": "" if node else "full"}]
        if node:
            conditions.append({"type": "Ready", "status": "True" if ready else "False"})
        return await self.put(
            kinds.PODS,
            name,
            {"metadata": meta, "spec": spec, "status": {"phase": "Running" if node else "Pending", "conditions": conditions}},
        )

    async def job(self, name: str = "j", pod: str = "p", *, annotations: dict[str, str] | None = None, **spec: Any) -> Obj:
        """A PodMigrationJob as a person would write it."""
        body = {"podRef": {"namespace": NS, "name": pod}, "ttl": "10m", **spec}
        return await self.put(kinds.PODMIGRATIONJOBS, name, {"metadata": {"annotations": annotations or {}}, "spec": body})

    async def get(self, kind: kinds.Kind, name: str) -> Obj | None:
        try:
            return await self.client.get(kind, name, NS if kind.namespaced else None)
        except errors.NotFound:
            return None

    async def names(self, kind: kinds.Kind) -> list[str]:
        return [item["metadata"]["name"] for item in (await self.client.list(kind, NS if kind.namespaced else None)).items]

    async def reserve(self, name: str, **status: Any) -> None:
        """Play the scheduler: the reservation lies on a node, or whatever else is given."""
        given = {"phase": "Available", "nodeName": "n2", "conditions": [{"type": "Scheduled", "status": "True", "reason": "Scheduled"}]}
        await self.client.patch(kinds.RESERVATIONS, name, {"status": given | status}, subresource="status")

    # ---------------------------------------------------------------- waiting

    async def until(self, what: Callable[[], Awaitable[Any]]) -> Any:
        """Wait until a question has an answer, and return it."""
        async with asyncio.timeout(patience.seconds(LIMIT)):
            while not (answer := await what()):
                await asyncio.sleep(0.01)
            return answer

    async def until_job(self, name: str, **wanted: str) -> Obj:
        """Wait until members of a job's status have these values (`condition` = "Type=Status/Reason")."""
        seen: Obj = {}

        async def look() -> Obj | None:
            nonlocal seen
            seen = (await self.get(kinds.PODMIGRATIONJOBS, name)) or {}
            return seen if seen and all(_has(seen.get("status") or {}, key, value) for key, value in wanted.items()) else None

        try:
            found: Obj = await self.until(look)
        except TimeoutError:
            raise AssertionError(f"wanted {wanted}, found {seen.get('status')}") from None
        return found

    async def until_gone(self, kind: kinds.Kind, name: str) -> None:
        async def look() -> bool:
            return await self.get(kind, name) is None

        await self.until(look)

    async def events(self, kind: str, name: str) -> list[Obj]:
        """Kubernetes events about an object."""
        for life in self.lives:
            await life.events.flush()
        found = (await self.client.list(kinds.EVENTS)).items
        return [event for event in found if (event["regarding"]["kind"], event["regarding"]["name"]) == (kind, name)]


def condition(job: Obj, kind: str) -> Obj:
    """A condition of a job, {} if it has none of that type."""
    return next((each for each in (job.get("status") or {}).get("conditions") or [] if each["type"] == kind), {})


def _has(status: Obj, key: str, value: str) -> bool:
    if key != "condition":
        return bool(status.get(key, "") == value)
    kind, _, rest = value.partition("=")
    found = condition({"status": status}, kind)
    state, _, reason = rest.partition("/")
    return bool(found) and found["status"] == state and found.get("reason", "") == reason


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """Three nodes and nothing else."""
    async with running_server(crds=True) as server, server.client() as client:
        made = Cluster(server, client)
        for name in ("n1", "n2", "n3"):
            await made.node(name)
        try:
            yield made
        finally:
            await made.close()
