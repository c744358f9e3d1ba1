"""Calling hook servers: kept connections, a deadline of our own, and a breaker for servers that hang (RP-HOOK-01, RP-REG-03)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from koord import seams
from koord.process.unixsocket import target
from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.breaker import Breaker
from roles.runtime_proxy.hooktypes import HOOK_METHODS, POD_HOOKS
from roles.runtime_proxy.registration import HookServer

MAX_MESSAGE = 64 << 20  # bytes: kubelet and runtimes stop at 16 MiB; it is theirs to say so, in their own words
MAX_METADATA = 4 << 20  # bytes of headers or trailers of one call
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # Error texts and typed details travel as metadata. gRPC's own limit is 8 KiB, and above it drops calls at random.
    ("grpc.max_metadata_size", MAX_METADATA),
    ("grpc.absolute_max_metadata_size", MAX_METADATA),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # not a pause, but the time that a new connection has until the other side speaks: on a busy node that takes seconds
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # kubelet repeats calls itself, and knows which may be repeated
)


class HookError(Exception):
    """A hook server could not be asked or answered with an error."""


def decode_answer(hook_type: str, raw: bytes) -> Any:
    """A hook server's answer as a message. Raises HookError."""
    answer: Any = hook.PodSandboxHookResponse() if hook_type in POD_HOOKS else hook.ContainerResourceHookResponse()
    try:
        answer.ParseFromString(raw)
    except DecodeError as error:
        raise HookError(f"the answer to {hook_type} cannot be decoded: {error}") from None
    return answer


class HookClient:
    """Connections to hook servers, one per endpoint."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout  # seconds for one hook call
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._breakers: dict[str, Breaker] = {}
        self._closing: set[asyncio.Task[None]] = set()  # connections to servers that withdrew

    async def call(self, server: HookServer, hook_type: str, request: Any, deadline: float | None) -> Any:
        """Ask one server. `deadline` is the part of the caller's time that it may take, in seconds. Raises HookError."""
        began = seams.monotonic()
        breaker = self._breakers.get(server.endpoint)
        if breaker is None:
            breaker = self._breakers[server.endpoint] = Breaker(self._timeout)
        # A server whose failure ends the call must be asked; what is told it afterwards changes nothing.
        admitted = breaker.admit(began)
        if admitted is None and not (server.fails and hook_type.startswith("Pre")):
            raise HookError(f"{server.source} at {server.endpoint} is too slow; it is asked again later")
        timeout = self._timeout if deadline is None else min(self._timeout, deadline)
        ended = False
        try:
            ask: Any = self._channel(server.endpoint).unary_unary(HOOK_METHODS[hook_type])
            raw = await ask(request.SerializeToString(), timeout=timeout)
            ended = True
        except grpc.aio.AioRpcError as error:
            ended = True
            raise HookError(f"{error.code().name}: {error.details()}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the caller gave up
            raise HookError(f"{server.source} at {server.endpoint}: the connection was closed") from None
        finally:
            now = seams.monotonic()
            if admitted is not None and ended:
                breaker.note(admitted, now - began, timeout, now)
            elif admitted is not None:  # the caller gave up
                breaker.abandon(admitted)
        return decode_answer(hook_type, raw)

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(target(endpoint), options=CHANNEL_OPTIONS)
        return channel

    def connect(self, endpoints: set[str]) -> None:
        """Begin to connect to servers that registered: the first pod should not pay for it, nor for a server that wakes up only then."""
        for endpoint in endpoints - set(self._channels):
            self._channel(endpoint).get_state(try_to_connect=True)

    async def keep_only(self, endpoints: set[str]) -> None:
        """Close connections to servers that withdrew, once calls under way have their answers."""
        for endpoint in set(self._channels) - endpoints:
            self._breakers.pop(endpoint, None)
            task = asyncio.get_running_loop().create_task(self._channels.pop(endpoint).close(self._timeout))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        await self.keep_only(set())
        await asyncio.gather(*self._closing)
