"""Carrying every gRPC call of any service to the engine and back (RP-CRI-01, RP-CRI-04, RP-CRI-05).

Messages stay bytes. Known unary methods take gRPC's unary path; everything else, known streams and methods that do not exist
yet, is carried frame by frame. On the wire all four kinds of call are the same; a caller who sends one message and ends has its
message sent on in one step, because grpc.aio loses the engine's status when a separate write meets a call that was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy.deadline import Deadline
from roles.runtime_proxy.hookclient import CHANNEL_OPTIONS
from roles.runtime_proxy.hooktypes import RUNTIME_SERVICE, STREAM_METHODS, UNARY_METHODS
from roles.runtime_proxy.interceptor import Engine, Interceptor
from roles.runtime_proxy.sparing import Sparing
from roles.runtime_proxy.stages import HookRefusal

log = logging.getLogger(__name__)
log.addFilter(Sparing())

# What belongs to one hop, by exact name. All else, `grpc-status-details-bin` too, is a caller's or the engine's own.
_HOP = frozenset(
    {"grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "grpc-status", "grpc-message", "content-type", "te", "user-agent"}
)
_OPENING = 0.05  # seconds within which the end of a caller's only message is there; all of it comes at once
_NO_DEADLINE = 1e8  # seconds; grpc reports a missing deadline as a huge one
Observe = Callable[[str, str, float], None]


def forwarded_metadata(metadata: Any) -> list[tuple[str, str | bytes]]:
    """What is passed on: all but the headers that each hop writes itself."""
    return [(key, value) for key, value in metadata or () if key not in _HOP and not key.startswith(":")]


def remaining(context: Any) -> float | None:
    """Seconds left of the caller's deadline, None when it has none."""
    seconds = context.time_remaining()
    return None if seconds is None or seconds > _NO_DEADLINE else max(seconds, 0.001)


class Forwarder(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method by asking the engine over one kept connection for calls and one for streams."""

    def __init__(self, endpoint: str, interceptor: Interceptor, observe: Observe) -> None:
        self._calls = grpc.aio.insecure_channel(f"unix:{endpoint}", options=CHANNEL_OPTIONS)
        # Long streams (events, metrics) get a connection of their own, so that flow control of one never holds up calls.
        self._streams = grpc.aio.insecure_channel(f"unix:{endpoint}", options=(*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)))
        self._interceptor = interceptor
        self._observe = observe
        self._unary: dict[str, Any] = {}
        self._handlers: dict[str, Any] = {}

    def service(self, handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None:
            if path in UNARY_METHODS:
                handler = self._handlers[path] = grpc.unary_unary_rpc_method_handler(self._unary_handler(path))
            else:  # not kept: names outside CRI come from the caller and must not grow a table
                handler = grpc.stream_stream_rpc_method_handler(self._stream_handler(path))
        return handler

    def _unary_handler(self, path: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        method = path.rpartition("/")[2]
        hooked = self._interceptor.handlers.get(method) if path.startswith(RUNTIME_SERVICE) else None
        send = self._unary[path] = self._calls.unary_unary(path)
        clock = asyncio.get_running_loop().time

        async def handle(request: bytes, context: Any) -> bytes:
            started = clock()
            metadata = forwarded_metadata(context.invocation_metadata())

            async def forward(raw: bytes) -> bytes:
                call = send(raw, metadata=metadata, timeout=remaining(context))
                response: bytes = await call
                if initial := forwarded_metadata(await call.initial_metadata()):
                    await context.send_initial_metadata(initial)
                if trailing := forwarded_metadata(await call.trailing_metadata()):
                    context.set_trailing_metadata(trailing)
                return response

            async def hooks_and_engine() -> bytes:
                if hooked is None:
                    return await forward(request)
                try:
                    return await hooked(request, Engine(forward, self.sandbox_status), Deadline(remaining(context)))
                except DecodeError as error:
                    # No valid message: the engine, which was not asked yet, says so in its own words.
                    log.warning("%s: the request cannot be decoded (%s); forwarded as it came", method, error)
                    return await forward(request)

            try:
                response = await hooks_and_engine()
            except grpc.aio.AioRpcError as error:
                self._observe(method, error.code().name, clock() - started)
                context.set_trailing_metadata(forwarded_metadata(error.trailing_metadata()))
                await context.abort(error.code(), error.details() or "")
                raise
            except HookRefusal as error:
                self._observe(method, "UNKNOWN", clock() - started)
                await context.abort(grpc.StatusCode.UNKNOWN, str(error))
                raise
            self._observe(method, "OK", clock() - started)
            return response

        return handle

    def _stream_handler(self, path: str) -> Callable[[Any, Any], Any]:
        method = path.rpartition("/")[2] if path in STREAM_METHODS else "other"

        async def handle(requests: Any, context: Any) -> None:
            started = asyncio.get_running_loop().time()
            messages: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=2)
            tasks = [asyncio.create_task(_receive(requests, messages))]
            code, call = grpc.StatusCode.CANCELLED, None
            try:
                opening = await _opening(messages)
                keys = {"metadata": forwarded_metadata(context.invocation_metadata()), "timeout": remaining(context)}
                if len(opening) == 2 and opening[1] is None:
                    call = self._streams.unary_stream(path)(opening[0], **keys)
                else:
                    call = self._streams.stream_stream(path)(**keys)
                    tasks.append(asyncio.create_task(_send(opening, messages, call)))
                if initial := forwarded_metadata(await call.initial_metadata()):
                    await context.send_initial_metadata(initial)
                while (message := await call.read()) is not grpc.aio.EOF:
                    await context.write(message)
                code = await call.code()
                context.set_trailing_metadata(forwarded_metadata(await call.trailing_metadata()))
                if code != grpc.StatusCode.OK:
                    await context.abort(code, await call.details() or "")
            except grpc.aio.AioRpcError as error:
                code = error.code()
                context.set_trailing_metadata(forwarded_metadata(error.trailing_metadata()))
                await context.abort(code, error.details() or "")
            finally:
                for task in tasks:
                    task.cancel()
                if call is not None:
                    call.cancel()
                self._observe(method, code.name, asyncio.get_running_loop().time() - started)

        return handle

    async def ask(self, method: str, request: Any, timeout: float) -> bytes:
        """A call of our own to the engine's RuntimeService. Raises grpc.aio.AioRpcError."""
        path = RUNTIME_SERVICE + method
        send = self._unary.setdefault(path, self._calls.unary_unary(path))
        response: bytes = await send(request.SerializeToString(), timeout=timeout)
        return response

    async def sandbox_status(self, sandbox_id: str) -> cri.PodSandboxStatusResponse | None:
        """The engine's word on a sandbox, in full; None when it does not know it or cannot say."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        response: cri.PodSandboxStatusResponse | None = await self._status("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        return response if response is not None and response.HasField("status") else None

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse | None:
        """The engine's word on a container, in full; None when it does not know it or cannot say."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        response: cri.ContainerStatusResponse | None = await self._status("ContainerStatus", request, cri.ContainerStatusResponse)
        return response if response is not None and response.HasField("status") else None

    async def _status(self, method: str, request: Any, answer: Any) -> Any:
        try:
            return answer.FromString(await self.ask(method, request, timeout=2.0))
        except (grpc.aio.AioRpcError, DecodeError) as error:
            text = f"{error.code().name} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            log.warning("%s of %s: %s", method, getattr(request, request.DESCRIPTOR.fields[0].name), text)
            return None

    async def close(self) -> None:
        await self._calls.close()
        await self._streams.close()


async def _receive(requests: Any, messages: asyncio.Queue[bytes | None]) -> None:
    """Take the caller's messages as they come; None is the end of its side."""
    async for message in requests:
        await messages.put(message)
    await messages.put(None)


async def _opening(messages: asyncio.Queue[bytes | None]) -> list[bytes | None]:
    """What a caller says at once, two entries at most: a message and None if that is all it has to say."""
    opening: list[bytes | None] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_OPENING):
            while len(opening) < 2 and None not in opening:
                opening.append(await messages.get())
    return opening


async def _send(opening: list[bytes | None], messages: asyncio.Queue[bytes | None], call: Any) -> None:
    """Carry the caller's messages up until it half-closes; an engine that ended the call early ends this quietly."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in opening:
            if message is not None:
                await call.write(message)
        while None not in opening:
            if (message := await messages.get()) is None:
                break
            await call.write(message)
        await call.done_writing()
