"""A CRI engine behind the proxy: what App needs of it (RP-CRI-01, RP-STO-02)."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy import recovery
from roles.runtime_proxy.each import each
from roles.runtime_proxy.forward import Forwarder, Observe
from roles.runtime_proxy.hookclient import CHANNEL_OPTIONS
from roles.runtime_proxy.interceptor import Interceptor
from roles.runtime_proxy.stages import Stages
from roles.runtime_proxy.store import Store

log = logging.getLogger(__name__)

_GRACE = 2.0  # seconds for calls in flight when the process ends


class CRIBackend:
    """gRPC in, gRPC out. Raises one of `errors` where the engine is asked."""

    errors: tuple[type[Exception], ...] = (grpc.aio.AioRpcError, DecodeError)

    def __init__(self, engine: str, stages: Stages, observe: Observe, limit: int) -> None:
        self.interceptor = Interceptor(stages)
        self._forwarder = Forwarder(engine, self.interceptor, observe)
        # Outside of an event loop's thread grpc.aio has no server; App makes the backend where it runs.
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS, maximum_concurrent_rpcs=limit)

    @property
    def store(self) -> Store:
        return self.interceptor.store

    async def greet(self) -> str:
        """Ask for the version; one line about the engine."""
        version = cri.VersionResponse.FromString(await self._forwarder.ask("Version", cri.VersionRequest(), timeout=5))
        return f"{version.runtime_name} {version.runtime_version}, CRI {version.runtime_api_version}"

    async def rebuild(self) -> None:
        """Compare the store with what the engine lists, and learn about what is new."""
        store, ask = self.store, self._forwarder.ask
        known = store.known()
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
        response = await self._forwarder.sandbox_status(sandbox_id)
        if response is not None and record is not None:
            recovery.complete_pod(record, response)

    async def _complete_container(self, container_id: str) -> None:
        # In its turn: an update between the engine's answer and the writing of it would be forgotten. And the same record as
        # before: one that a call has put in its place meanwhile knows more than the engine tells.
        async with self.interceptor.lanes.of(container_id):
            record = self.store.containers.get(container_id)
            response = await self._forwarder.container_status(container_id)
            if record is None or record is not self.store.containers.get(container_id):
                return
            if (pod := self.store.pods.get(self.store.sandbox_of(container_id))) is not None:
                record.pod_cgroup_parent = pod.cgroup_parent
            if response is not None:
                recovery.complete_container(record, response)

    async def listen(self, path: Path) -> None:
        self._server.add_generic_rpc_handlers((self._forwarder,))
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop(_GRACE)
        await self._forwarder.close()
