"""The proxy's own questions to a CRI engine, over one kept connection: its version, what it runs, one object in full."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError

from koord.process.unixsocket import target
from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy.hookclient import CHANNEL_OPTIONS
from roles.runtime_proxy.hooktypes import RUNTIME_SERVICE
from roles.runtime_proxy.logfilter import RepeatFilter

log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())

Answer = TypeVar("Answer", cri.PodSandboxStatusResponse, cri.ContainerStatusResponse)

_STATUS = 2.0  # seconds for the engine's word on one object


class EngineClient:
    """Asks RuntimeService."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(target(endpoint), options=CHANNEL_OPTIONS)
        self._methods: dict[str, Any] = {}

    async def ask(self, method: str, request: Any, timeout: float) -> bytes:
        """One call, of at most `timeout` seconds. Raises grpc.aio.AioRpcError."""
        send = self._methods.get(method)
        if send is None:
            send = self._methods[method] = self._channel.unary_unary(RUNTIME_SERVICE + method)
        response: bytes = await send(request.SerializeToString(), timeout=timeout)
        return response

    async def sandbox_status(self, sandbox_id: str) -> cri.PodSandboxStatusResponse | None:
        """The engine's word on a sandbox, in full; None when it does not know it or cannot say."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return await self._status("PodSandboxStatus", request, cri.PodSandboxStatusResponse)

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse | None:
        """The engine's word on a container, in full; None when it does not know it or cannot say."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        return await self._status("ContainerStatus", request, cri.ContainerStatusResponse)

    async def _status(self, method: str, request: Any, answer: type[Answer]) -> Answer | None:
        try:
            response = answer.FromString(await self.ask(method, request, timeout=_STATUS))
        except (grpc.aio.AioRpcError, DecodeError) as error:
            text = f"{error.code().name} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            log.warning("%s of %s: %s", method, getattr(request, request.DESCRIPTOR.fields[0].name), text)
            return None
        return response if response.HasField("status") else None

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()
