"""The six hooked calls (RP-CRI-02, RP-CRI-03): ask the hook server, merge, forward, remember.

A request that no hook changed goes on byte for byte. Whatever goes wrong on the hook's side, the call goes on as the server's
failure policy says; what the engine answers is never changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy import merge, recovery, store
from roles.runtime_proxy.concurrency import KeyedLocks
from roles.runtime_proxy.deadline import Deadline, share
from roles.runtime_proxy.logfilter import RepeatFilter
from roles.runtime_proxy.stages import Stages

log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())

_RECOVERY = 0.25  # part of what is left of the caller's time that asking for a sandbox which is not known may take


@dataclass(slots=True)
class Engine:
    """The way to the engine for one call: `forward` sends bytes for the call at hand, `sandbox_status` asks for a sandbox."""

    forward: Callable[[bytes], Awaitable[bytes]]
    sandbox_status: Callable[[str], Awaitable[cri.PodSandboxStatusResponse | None]]


class Interceptor:
    """Holds the store and decides, call by call, whom to ask and what to send on.

    A handler raises DecodeError for a request that is no valid message, always before the engine was asked.
    """

    def __init__(self, stages: Stages) -> None:
        self.store = store.Store()
        self._stages = stages
        self.locks = KeyedLocks()  # changes of one object, by its id
        self.handlers: dict[str, Callable[[bytes, Engine, Deadline | None], Awaitable[bytes]]] = {
            "RunPodSandbox": self._run_pod,
            "StopPodSandbox": self._stop_pod,
            "UpdatePodSandboxResources": self._resize_pod,
            "CreateContainer": self._create,
            "StartContainer": self._start,
            "UpdateContainerResources": self._update,
            "StopContainer": self._stop,
            "RemovePodSandbox": self._remove_pod,
            "RemoveContainer": self._remove,
        }

    # -- pods -----------------------------------------------------------------------------------------------------------

    async def _run_pod(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        request = cri.RunPodSandboxRequest.FromString(raw)
        record = store.requested_pod(request)
        answer = await self._stages.pre("PreRunPodSandbox", record, record.labels, deadline)
        if answer is not None:
            merge.merge_pod(request, answer)
            merge.apply_pod_answer(record, answer)
            raw = _bytes_of(request, raw)
        response = await engine.forward(raw)
        if sandbox_id := _made(cri.RunPodSandboxResponse, "pod_sandbox_id", response):
            self.store.pods[sandbox_id] = record
        return response

    async def _stop_pod(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        sandbox_id = cri.StopPodSandboxRequest.FromString(raw).pod_sandbox_id
        record = self.store.pods.get(sandbox_id)
        try:
            response = await engine.forward(raw)
        finally:
            if record is not None:
                self._stages.post("PostStopPodSandbox", record, record.labels, sandbox_id)
        # Only now: kubelet retries a failed stop, and its retry deserves the hook as well.
        self.store.stop_pod(sandbox_id)
        return response

    async def _remove_pod(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        sandbox_id = cri.RemovePodSandboxRequest.FromString(raw).pod_sandbox_id
        response = await engine.forward(raw)
        self.store.remove_pod(sandbox_id)
        return response

    async def _resize_pod(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        """No hook, but hooks of the pod's containers are told the new resources."""
        request = cri.UpdatePodSandboxResourcesRequest.FromString(raw)
        async with self.locks.of(request.pod_sandbox_id):
            response = await engine.forward(raw)
            self.store.resize_pod(request)
        return response

    # -- containers -----------------------------------------------------------------------------------------------------

    async def _create(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        request = cri.CreateContainerRequest.FromString(raw)
        pod = self.store.pods.get(request.pod_sandbox_id)
        if pod is None:
            pod = await self._recover_pod(request.pod_sandbox_id, engine, deadline)
        if pod is None:
            log.warning("CreateContainer for sandbox %s, which is not known: forwarded without hooks", request.pod_sandbox_id)
            return await engine.forward(raw)
        record = store.requested_container(request, pod)
        answer = await self._stages.pre("PreCreateContainer", record, pod.labels, deadline)
        if answer is not None:
            merge.merge_container(request, answer)
            merge.apply_answer(record, answer)
            raw = _bytes_of(request, raw)
        response = await engine.forward(raw)
        if container_id := _made(cri.CreateContainerResponse, "container_id", response):
            store.copy_pod_resources(pod, record)  # the pod may have been resized meanwhile
            self.store.add_container(container_id, request.pod_sandbox_id, record)
        return response

    async def _recover_pod(self, sandbox_id: str, engine: Engine, deadline: Deadline | None) -> Any:
        try:
            async with asyncio.timeout(share(deadline, _RECOVERY)):
                response = await engine.sandbox_status(sandbox_id)
        except TimeoutError:
            return None
        if response is None or not response.status.metadata.uid:
            return None
        status = response.status
        record = store.pod_record(status.metadata, status.runtime_handler, status.labels, status.annotations)
        recovery.complete_pod(record, response)
        return self.store.pods.setdefault(sandbox_id, record)

    async def _start(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        container_id = cri.StartContainerRequest.FromString(raw).container_id
        record = self.store.containers.get(container_id)
        if record is None:
            return await engine.forward(raw)
        sandbox_id = self.store.sandbox_of(container_id)
        if self._stages.asks("PreStartContainer", record.pod_labels):
            async with self.locks.of(container_id):
                answer = await self._stages.pre("PreStartContainer", record, record.pod_labels, deadline)
                if answer is not None:
                    merge.apply_answer(record, answer)
        try:
            return await engine.forward(raw)
        finally:
            self._stages.post("PostStartContainer", record, record.pod_labels, sandbox_id)

    async def _update(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        request = cri.UpdateContainerResourcesRequest.FromString(raw)
        if request.container_id not in self.store.containers:
            return await engine.forward(raw)
        # From reading the record to writing it no other update of the container may come in between: the engine and the next hook
        # would be told values from before that update.
        async with self.locks.of(request.container_id):
            return await self._update_in_turn(raw, request, engine, deadline)

    async def _update_in_turn(
        self, raw: bytes, request: cri.UpdateContainerResourcesRequest, engine: Engine, deadline: Deadline | None
    ) -> bytes:
        record = self.store.containers.get(request.container_id)
        if record is None:
            return await engine.forward(raw)
        # The record is changed only when the engine took the request: an update that failed must not colour the next one.
        proposed = type(record)()
        proposed.CopyFrom(record)
        if proposed.HasField("container_resources"):
            merge.update_stored(proposed.container_resources, request.linux)
        else:
            merge.copy_resources(request.linux, proposed.container_resources)
        merge.overlay(proposed.container_annotations, request.annotations)
        answer = await self._stages.pre("PreUpdateContainerResources", proposed, record.pod_labels, deadline)
        if answer is not None:
            merge.apply_answer(proposed, answer)
            merge.update_request(request, proposed)
            raw = _bytes_of(request, raw)
        response = await engine.forward(raw)
        if request.container_id in self.store.containers:
            store.copy_pod_resources(record, proposed)  # those of the pod may have changed meanwhile
            record.CopyFrom(proposed)
        return response

    async def _stop(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        container_id = cri.StopContainerRequest.FromString(raw).container_id
        record, sandbox_id = self.store.containers.get(container_id), self.store.sandbox_of(container_id)
        try:
            response = await engine.forward(raw)
        finally:
            if record is not None:
                self._stages.post("PostStopContainer", record, record.pod_labels, sandbox_id)
        self.store.stop_container(container_id)
        return response

    async def _remove(self, raw: bytes, engine: Engine, deadline: Deadline | None) -> bytes:
        container_id = cri.RemoveContainerRequest.FromString(raw).container_id
        response = await engine.forward(raw)
        self.store.remove_container(container_id)
        return response


def _bytes_of(request: Any, raw: bytes) -> bytes:
    """A request after a merge. One that the hook left as it was keeps its bytes: another order of maps is a change, too."""
    return raw if request == type(request).FromString(raw) else bytes(request.SerializeToString())


def _made(message: Any, field: str, response: bytes) -> str:
    """The id in an engine's answer; empty, and said, when it cannot be read: the answer goes to the caller all the same."""
    try:
        return str(getattr(message.FromString(response), field))
    except DecodeError as error:
        log.warning("the engine's %s cannot be decoded (%s); the object is not known to hooks", message.DESCRIPTOR.name, error)
        return ""
