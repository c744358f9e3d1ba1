"""What a controller manager would do for ReplicaSets: a pod that left is replaced by a new one that waits for the scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from koord.api.kinds import PODS, REPLICASETS
from koord.kube.errors import ApiError
from roles.sandbox.builders import replica
from roles.sandbox.hotspot import cluster
from roles.sandbox.nodes import fleet

if TYPE_CHECKING:
    from koord.kube.client import Client
    from koord.kube.informers import Informer

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2


class Replicas:
    """Owns the ReplicaSets of the scenario and keeps their number of pods. It knows what it made, so a slow cache makes no pod twice."""

    def __init__(self, client: Client, pods: Informer[dict[str, Any]]) -> None:
        self._client = client
        self._pods = pods
        self._sets: dict[str, tuple[dict[str, Any], int]] = {}
        self._made: Counter[str] = Counter()
        self._alive: dict[str, set[str]] = {}
        self._seen: set[str] = set()

    async def deploy(self, count: int) -> None:
        """Create the ReplicaSets of `count` nodes and their pods, each on its node. Raises ApiError."""
        placed = cluster.places(count)
        for workload, replicas in Counter(workload for workload, _ in placed).items():
            made = await self._client.create(REPLICASETS, cluster.replicaset(workload, replicas), cluster.NAMESPACE)
            status = {"replicas": replicas, "readyReplicas": replicas, "observedGeneration": made["metadata"].get("generation", 1)}
            await self._client.patch(REPLICASETS, workload.name, {"status": status}, cluster.NAMESPACE, subresource="status")
            self._sets[workload.name] = (made, replicas)
            self._alive[workload.name] = set()
        for workload, node in placed:
            await self._create(workload.name, fleet.node_name(node))

    async def run(self) -> None:
        """Keep the numbers for ever."""
        while True:
            for name in self._sets:
                try:
                    await self._keep(name)
                except ApiError as error:
                    log.warning("ReplicaSet %s: %s", name, error)
            await asyncio.sleep(TICK_SECONDS)

    async def _keep(self, name: str) -> None:
        """Forget pods that have gone or are going, and create what is missing."""
        alive = self._alive[name]
        for pod in sorted(alive):
            found = self._pods.get(f"{cluster.NAMESPACE}/{pod}")
            if found is not None:
                self._seen.add(pod)
            gone = found is None and pod in self._seen
            if gone or (found is not None and found["metadata"].get("deletionTimestamp")):
                alive.discard(pod)
        while len(alive) < self._sets[name][1]:
            await self._create(name, None)

    async def _create(self, name: str, node: str | None) -> None:
        owner, _ = self._sets[name]
        pod = f"{name}-{self._made[name]:03d}"
        self._made[name] += 1
        body = replica(owner, pod)
        if node:
            body["spec"] = {**body["spec"], "nodeName": node}
        await self._client.create(PODS, body, cluster.NAMESPACE)
        self._alive[name].add(pod)
