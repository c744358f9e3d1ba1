"""A CRI engine behind the proxy: what App needs of it (RP-CRI-01, RP-STO-02)."""

from __future__ import annotations

import logging
import socket

import grpc.aio
from google.protobuf.message import DecodeError

from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy import recovery
from roles.runtime_proxy.concurrency import each
from roles.runtime_proxy.engine import EngineClient
from roles.runtime_proxy.interceptor import Interceptor
from roles.runtime_proxy.splice.server import Observe, SpliceServer
from roles.runtime_proxy.stages import Stages
from roles.runtime_proxy.store import copy_pod_resources

log = logging.getLogger(__name__)


class CRIBackend:
    """Frames in, frames out. Raises one of `errors` where the engine is asked."""

    errors: tuple[type[Exception], ...] = (grpc.aio.AioRpcError, DecodeError)

    def __init__(self, engine: str, stages: Stages, observe: Observe, limit: int) -> None:
        self.interceptor = Interceptor(stages)
        self.store = self.interceptor.store
        self._engine = EngineClient(engine)
        self._server = SpliceServer(engine, self.interceptor, self._engine.sandbox_status, observe, limit)

    async def greet(self) -> str:
        """Ask for the version; one line about the engine."""
        version = cri.VersionResponse.FromString(await self._engine.ask("Version", cri.VersionRequest(), timeout=5))
        return f"{version.runtime_name} {version.runtime_version}, CRI {version.runtime_api_version}"

    async def rebuild(self) -> None:
        """Compare the store with what the engine lists, and learn about what is new."""
        store, ask = self.store, self._engine.ask
        known = store.known() | store.stopped()
        pods = cri.ListPodSandboxResponse.FromString(await ask("ListPodSandbox", cri.ListPodSandboxRequest(), timeout=30))
        containers = cri.ListContainersResponse.FromString(await ask("ListContainers", cri.ListContainersRequest(), timeout=30))
        added, orphans = store.rebuild(pods, containers, known)
        if orphans:
            log.warning("%d containers belong to sandboxes that the engine does not list, e.g. %s", len(orphans), orphans[0])
        # Pods first: a container takes its cgroup parent from its pod.
        await each([i for i in added if i in store.pods], self._complete_pod)
        await each([i for i in added if i in store.containers], self._complete_container)

    async def _complete_pod(self, sandbox_id: str) -> None:
        record = self.store.pods.get(sandbox_id)
        response = await self._engine.sandbox_status(sandbox_id)
        if response is not None and record is not None:
            recovery.complete_pod(record, response)

    async def _complete_container(self, container_id: str) -> None:
        # In its turn: an update between the engine's answer and the writing of it would be forgotten. And the same record as
        # before: one that a call has put in its place meanwhile knows more than the engine tells.
        async with self.interceptor.locks.of(container_id):
            record = self.store.containers.get(container_id)
            response = await self._engine.container_status(container_id)
            if record is None or record is not self.store.containers.get(container_id):
                return
            if (pod := self.store.pods.get(self.store.sandbox_of(container_id))) is not None:
                record.pod_cgroup_parent = pod.cgroup_parent
                copy_pod_resources(pod, record)
            if response is not None:
                recovery.complete_container(record, response)

    async def listen(self, listener: socket.socket) -> None:
        await self._server.listen(listener)

    async def drain(self, seconds: float) -> None:
        """Let calls that are under way end, while others are served."""
        await self._server.drain(seconds)

    async def close(self, seconds: float) -> None:
        """Take no more callers, and end what is left after so many seconds."""
        await self._server.close(seconds)
        await self._engine.close()
