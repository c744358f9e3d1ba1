"""What the steps do to the cluster and see of it: create, delete, wait, place, reasons. The one part that talks to the API server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from koord.api.kinds import CLUSTERNETWORKTOPOLOGIES, ELASTICQUOTAS, NAMESPACES, NODES, PODGROUPS, PODS, PRIORITYCLASSES, Kind
from koord.decisions.record import Record, Term
from koord.kube.client import Client
from koord.kube.errors import NotFound
from roles.sandbox import objects
from roles.sandbox.bootstrap import ensure
from roles.sandbox.builders import APP_LABEL
from roles.sandbox.compose import Sandbox
from roles.sandbox.nodes.fleet import node_name
from roles.sandbox.polling import POLL, until
from roles.sandbox.training import jobs, setup
from roles.sandbox.view.frame import SimulatedNode

Obj = dict[str, Any]

STEP_SECONDS = 15.0


class StepError(Exception):
    """Something that a step waits for did not happen; the text says what."""


@dataclass(slots=True)
class Outcome:
    """What one step has shown."""

    name: str
    title: str
    happened: bool = False
    lines: list[str] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)
    """Pod to node, as it was when the step ended."""
    evicted: list[str] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    """Why something waited: gang or pod to what the decision records say."""

    def data(self) -> Obj:
        return asdict(self)


class Stage:
    """The training namespace of a running sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.client: Client = sandbox.client
        self._quotas: list[str] = []
        self._gangs: list[str] = []

    async def prepare(self) -> None:
        """The network, the namespace and the priorities. Raises ApiError or StepError."""
        for index in range(setup.NODE_COUNT):
            await self.client.patch(NODES, node_name(index), {"metadata": {"labels": setup.labels(index)}})
        await ensure(self.client, NAMESPACES, objects.namespace(jobs.NAMESPACE))
        for name, value in jobs.PRIORITIES:
            await ensure(self.client, PRIORITYCLASSES, objects.priority_class(name, value))
        await ensure(self.client, CLUSTERNETWORKTOPOLOGIES, setup.topology())
        await self._tree()

    async def _tree(self) -> None:
        """Until the scheduler has written what the network looks like, with every rack in it. Raises StepError."""
        racks = {setup.labels(index)[setup.RACK_LABEL] for index in range(setup.NODE_COUNT)}
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            status = (await self.client.get(CLUSTERNETWORKTOPOLOGIES, "default")).get("status") or {}
            found = {entry["topologyInfo"]["topologyName"].rpartition("/")[2] for entry in status.get("detailStatus") or []}
            if racks <= found:
                return
            if time.monotonic() > deadline:
                raise StepError(f"the tree of the network lacks {', '.join(sorted(racks - found))}")
            await asyncio.sleep(POLL)

    async def submit(self, pods: Iterable[Obj], gang: Obj | None = None) -> None:
        """Create a job: its gang first, if it has one."""
        if gang is not None:
            await self._create(PODGROUPS, gang)
            self._gangs.append(gang["metadata"]["name"])
        for pod in pods:
            await self._create(PODS, pod)

    async def lend(self, quota: Obj) -> None:
        """Create a quota."""
        await self._create(ELASTICQUOTAS, quota)
        self._quotas.append(quota["metadata"]["name"])

    async def _create(self, kind: Kind, obj: Obj) -> None:
        await self.client.create(kind, obj, jobs.NAMESPACE)

    async def withdraw(self, job: str) -> None:
        """Delete a job's pods and its gang, and wait until they are gone."""
        for pod in self.pods(job):
            await self._delete(PODS, pod["metadata"]["name"])
        if job in self._gangs:
            await self._delete(PODGROUPS, job)
            self._gangs.remove(job)
        await self.see(lambda: not self.pods(job), f"the pods of {job} to go")

    async def clear(self) -> None:
        """Delete every job and quota, and wait until nothing is left."""
        for job in sorted({pod["metadata"]["labels"][APP_LABEL] for pod in self.pods()} | set(self._gangs)):
            await self.withdraw(job)
        for name in self._quotas:
            await self._delete(ELASTICQUOTAS, name)
        self._quotas.clear()

    async def _delete(self, kind: Kind, name: str) -> None:
        with suppress(NotFound):
            await self.client.delete(kind, name, jobs.NAMESPACE)

    async def see(self, condition: Callable[[], bool], what: str, seconds: float = STEP_SECONDS) -> None:
        """Wait for something. Raises StepError when it does not happen."""
        if not await until(condition, seconds):
            raise StepError(f"waited {seconds:.0f} s in vain for {what}")

    # --- what is there ------------------------------------------------------------------------------------------------

    def pods(self, job: str = "") -> list[Obj]:
        """The pods of a job, or of all, by name; those that are terminating too."""
        found = [
            pod
            for pod in self.sandbox.pods.list()
            if pod["metadata"].get("namespace") == jobs.NAMESPACE
            and (not job or (pod["metadata"].get("labels") or {}).get(APP_LABEL) == job)
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def placed(self, job: str = "") -> dict[str, str]:
        """Pod to node of those that have one and stay."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.pods(job)
            if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        }

    def racks(self, job: str) -> Counter[str]:
        """How many of a job's pods each rack has, by the labels of the nodes."""
        return Counter(self.rack_of(node) for node in self.placed(job).values())

    def rack_of(self, node: str) -> str:
        found = self.sandbox.nodes.get(node) or {}
        return str((found.get("metadata", {}).get("labels") or {}).get(setup.RACK_LABEL, ""))

    def rows(self, nodes: Iterable[SimulatedNode]) -> tuple[SimulatedNode, ...]:
        """The view's rows with the rack of each node and how many workers of which job it has."""
        running: dict[str, Counter[str]] = {}
        for pod in self.pods():
            node = pod["spec"].get("nodeName")
            if node:
                leaving = " (leaving)" if pod["metadata"].get("deletionTimestamp") else ""
                running.setdefault(node, Counter())[pod["metadata"]["labels"][APP_LABEL] + leaving] += 1
        return tuple(
            replace(
                node,
                place=self.rack_of(node.name),
                jobs=", ".join(f"{count} {job}" for job, count in sorted(running.get(node.name, Counter()).items())),
            )
            for node in nodes
        )

    def records(self, kind: str, name: str) -> list[Record]:
        """The scheduler's decision records about one object, oldest first."""
        return self.sandbox.recorders["scheduler"].ring.find(kind, jobs.NAMESPACE, name)

    def reasons(self, kind: str, name: str) -> list[str]:
        """What the newest record about an object says, with its terms; empty when there is none."""
        found = self.records(kind, name)
        if not found:
            return []
        newest = found[-1]
        return [str(newest), *(_told(term) for term in newest.terms)]

    def refused(self, kind: str, name: str) -> bool:
        """Whether the newest record about an object is a refusal."""
        found = self.records(kind, name)
        return bool(found) and found[-1].verdict == "Unschedulable"


def _told(term: Term) -> str:
    """A term of a record in words."""
    unit = f" {term.unit}" if term.unit else ""
    note = f" ({term.note})" if term.note else ""
    return f"{term.name}: {term.value}{unit}{note}"
