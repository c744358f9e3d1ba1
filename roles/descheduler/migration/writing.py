"""The writes of the migration controller: only while this process leads, and only on the version that was decided on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachetools import TTLCache

from koord import seams
from koord.api import kinds
from koord.api.kinds import Kind
from koord.api.objects import Node, NodeMetric, Pod, PodMigrationJob, PodMigrationJobStatus, Reservation, convert
from koord.kube import errors
from koord.kube.client import Client
from roles.descheduler.migration import status
from roles.descheduler.migration.jobs import Jobs

MANAGER = "koord-descheduler"
GONE = 60.0  # seconds for which an object that was deleted is not deleted again


class NotLeading(Exception):
    """This process does not lead (any more): nothing is written."""


class Writing:
    """Reads and writes of the API server, typed. `held` says whether this process leads."""

    def __init__(self, client: Client, jobs: Jobs, held: Callable[[], bool]) -> None:
        self.client = client
        self._jobs = jobs
        self.held = held
        self._gone: TTLCache[str, None] = TTLCache(10_000, GONE, timer=seams.monotonic)  # uids of objects that were deleted

    def check(self) -> None:
        """Raises NotLeading unless this process leads."""
        if not self.held():
            raise NotLeading

    # ---------------------------------------------------------------- jobs

    async def status(self, job: PodMigrationJob, changed: PodMigrationJobStatus, *, told: bool = False) -> PodMigrationJob:
        """Write a status on this very version of the job. Raises Conflict if there is a newer one. `told`: its worker writes it itself."""
        written = await self._patch(job, {"status": status.wire(changed)}, subresource="status")
        if told:
            self._jobs.told(written)
        return written

    async def job(self, job: PodMigrationJob, body: dict[str, Any]) -> PodMigrationJob:
        """Merge-patch a job on this very version. Raises Conflict if there is a newer one."""
        return await self._patch(job, body)

    async def _patch(self, job: PodMigrationJob, body: dict[str, Any], *, subresource: str | None = None) -> PodMigrationJob:
        self.check()
        meta = job.metadata
        version = {"resourceVersion": meta.resource_version, "uid": meta.uid}
        body["metadata"] = {**body.get("metadata", {}), **version}
        answer = await self.client.patch(kinds.PODMIGRATIONJOBS, meta.name, body, subresource=subresource, field_manager=MANAGER)
        return self._jobs.note(answer)

    async def reread(self, name: str) -> PodMigrationJob | None:
        """The job as it is now; None if it is gone."""
        try:
            return self._jobs.note(await self.client.get(kinds.PODMIGRATIONJOBS, name))
        except errors.NotFound:
            self._jobs.forget(name)
            return None

    async def create_job(self, body: dict[str, Any]) -> PodMigrationJob:
        """Make a job. The round that asks for it has made sure that this process leads."""
        return self._jobs.note(await self.client.create(kinds.PODMIGRATIONJOBS, body))

    # ---------------------------------------------------------------- others

    async def pod(self, key: str) -> Pod | None:
        """A pod ("namespace/name") as it is now."""
        plain = await self.plain_pod(key)
        return None if plain is None else convert(plain, Pod)

    async def plain_pod(self, key: str) -> dict[str, Any] | None:
        """The same as plain JSON."""
        namespace, _, name = key.partition("/")
        return await self._get(kinds.PODS, name, namespace) if name else None

    async def reservation(self, name: str) -> Reservation | None:
        """A reservation as it is now."""
        plain = await self._get(kinds.RESERVATIONS, name)
        return None if plain is None else convert(plain, Reservation)

    async def node(self, name: str) -> Node | None:
        """A node as it is now."""
        plain = await self._get(kinds.NODES, name)
        return None if plain is None else convert(plain, Node)

    async def report(self, name: str) -> NodeMetric | None:
        """What a node has reported of its load by now."""
        plain = await self._get(kinds.NODEMETRICS, name)
        return None if plain is None else convert(plain, NodeMetric)

    async def _get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        try:
            return await self.client.get(kind, name, namespace)
        except errors.NotFound:
            return None

    async def delete(self, kind: Kind, name: str, uid: str) -> None:
        """Delete an object unless another one has its name by now; one that is gone is fine. Once: caches show it a while longer."""
        self.check()
        if uid in self._gone:
            return
        if uid:
            self._gone[uid] = None
        try:
            await self.client.delete(kind, name, preconditions={"uid": uid} if uid else None)
        except (errors.NotFound, errors.Conflict):
            return  # gone, or another object by now
        except BaseException:
            self._gone.pop(uid, None)
            raise
