"""The process kubelet: this machine as a node. Registers it, keeps it alive, and gives each pod bound to it a worker."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from koord.api.kinds import LEASES, NODES, PODS
from koord.api.times import format_micro_time
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from koord.kube.informers import InformerFactory
from roles.sandbox.process_kubelet import layout, limits, node, podspec
from roles.sandbox.process_kubelet.cgroups import RunGroups
from roles.sandbox.process_kubelet.server import KubeletServer
from roles.sandbox.process_kubelet.worker import Host, PodWorker

log = logging.getLogger(__name__)

RETRY_SECONDS = (0.1, 0.3, 1.0, 3.0)


class ProcessKubelet:
    """Runs the pods bound to `name` as host processes in the groups of one run."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        groups: RunGroups,
        *,
        name: str = "local",
        log_dir: Path,
        address: str = "127.0.0.1",
        port: int = 0,
        labels: dict[str, str] | None = None,
    ) -> None:
        self.client = client
        self.groups = groups
        self.name = name
        self.labels = labels or {}
        self.machine = node.Machine.read()
        self.pods = informers.informer(PODS)
        self.server = KubeletServer(self.pod_objects, self.log_path, address=address, port=port)
        self.workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self._host = Host(groups, log_dir, address, self.machine.memory, time.time, self._publish, self._finalize)

    # --- start and end ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the cgroups, serve, register the Node and follow the pods. Raises LayoutError, OSError or ApiError."""
        self.groups.create_top()
        whole = self.machine.cpus * 1000
        # Our top group stands where a kubelet's kubepods would: it must weigh as much against the rest of the machine.
        self.groups.set_shares("", limits.shares_of(whole))
        self.groups.create(layout.KUBEPODS, limits.CgroupLimits(limits.shares_of(whole), -1, self.machine.memory))
        for qos in ("Burstable", "BestEffort"):
            self.groups.create(layout.qos_dir(qos), limits.CgroupLimits(limits.MIN_SHARES, -1, -1))
        await self.server.start()
        await self._register()
        self.pods.add_handler(on_add=self._seen, on_update=lambda old, new: self._seen(new), on_delete=self._deleted)

    async def stop(self) -> list[Path]:
        """End every pod's processes, remove all groups and stop serving. Returns directories that could not be removed."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.server.stop()
        return self.groups.remove_all()

    async def heartbeat(self) -> None:
        """Renew the node's conditions and its Lease, for ever."""
        while True:
            await asyncio.sleep(node.HEARTBEAT_SECONDS)
            try:
                current = await self.client.get(NODES, self.name)
                fresh = node.conditions(time.time(), current.get("status", {}).get("conditions") or [])
                await self.client.patch(NODES, self.name, {"status": {"conditions": fresh}}, subresource="status")
                await self._renew_lease(current["metadata"]["uid"])
            except ApiError as error:
                log.warning("heartbeat of node %s: %s", self.name, error)

    async def _register(self) -> None:
        wanted = node.node_object(self.name, self.machine, address=self.server.address, port=self.server.port, now=time.time())
        wanted["metadata"]["labels"] |= self.labels
        status = wanted["status"]
        try:
            current = await self.client.create(NODES, wanted)
        except AlreadyExists:
            current = await self.client.get(NODES, self.name)
            await self.client.patch(NODES, self.name, {"metadata": {"labels": wanted["metadata"]["labels"]}})
        await self.client.patch(NODES, self.name, {"status": status}, subresource="status")
        await self._renew_lease(current["metadata"]["uid"])

    async def _renew_lease(self, uid: str) -> None:
        now = format_micro_time(time.time())
        try:
            await self.client.patch(LEASES, self.name, {"spec": {"renewTime": now}}, node.LEASE_NAMESPACE)
        except NotFound:
            await self.client.create(LEASES, node.lease_object(self.name, uid, now), node.LEASE_NAMESPACE)

    # --- pods -----------------------------------------------------------------------------------------------------------

    def _seen(self, pod: dict[str, Any]) -> None:
        if pod.get("spec", {}).get("nodeName") != self.name or self._stopping:
            return
        uid = pod["metadata"]["uid"]
        worker = self.workers.get(uid)
        if worker is not None:
            worker.update(pod)
            return
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp"):
            return
        worker = self.workers[uid] = PodWorker(pod, self._host)
        self._tasks[uid] = asyncio.create_task(self._work(worker), name=f"worker {worker.name}")
        self._balance()

    def _deleted(self, pod: dict[str, Any]) -> None:
        worker = self.workers.get(pod["metadata"]["uid"])
        if worker is not None:
            worker.gone()

    async def _work(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        except (OSError, ApiError) as error:
            log.error("pod %s: %s", worker.name, error)
        finally:
            self.workers.pop(worker.uid, None)
            self._tasks.pop(worker.uid, None)
            if not self._stopping:
                self._balance()

    def _balance(self) -> None:
        """Burstable's weight is the sum of its pods' CPU requests, as the kubelet keeps it."""
        total = sum(podspec.pod_requests(w.pod["spec"]).get("cpu", 0) for w in self.workers.values() if w.qos == "Burstable")
        try:
            self.groups.set_shares(layout.qos_dir("Burstable"), limits.shares_of(total))
        except OSError as error:
            log.warning("weight of the Burstable level: %s", error)

    def pod_objects(self) -> list[dict[str, Any]]:
        """The pods of this node with the status this kubelet sees now, as `/pods` serves them."""
        return [
            {"kind": "Pod", "apiVersion": "v1", **w.pod, "status": {**(w.pod.get("status") or {}), **w.status()}}
            for w in self.workers.values()
        ]

    def log_path(self, namespace: str, pod: str, container: str) -> Path | None:
        """Where the output of a container goes; None for pods and containers that this kubelet does not run."""
        for worker in self.workers.values():
            if worker.name == f"{namespace}/{pod}" and container in {c.name for c in (*worker.init, *worker.regular)}:
                return worker.log_path(container)
        return None

    # --- writes ---------------------------------------------------------------------------------------------------------

    async def _publish(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        for pause in (*RETRY_SECONDS, None):
            try:
                await self.client.patch(PODS, metadata["name"], body, metadata["namespace"], type="strategic", subresource="status")
                return
            except NotFound:
                return
            except ApiError as error:
                if pause is None:
                    log.error("status of pod %s/%s is not written: %s", metadata["namespace"], metadata["name"], error)
                    return
                await asyncio.sleep(pause)

    async def _finalize(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        for pause in (*RETRY_SECONDS, None):
            try:
                await self.client.delete(
                    PODS, metadata["name"], metadata["namespace"], grace_period_seconds=0, preconditions={"uid": metadata["uid"]}
                )
                return
            except NotFound:
                return
            except ApiError as error:
                if pause is None or error.status == 409:
                    log.error("pod %s/%s is not finalised: %s", metadata["namespace"], metadata["name"], error)
                    return
                await asyncio.sleep(pause)
