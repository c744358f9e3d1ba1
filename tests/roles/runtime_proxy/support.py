"""A fake engine and fake hook servers on unix sockets, and the real proxy between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from tests.support import patience

RUNTIME = "/runtime.v1.RuntimeService/"
HOOKS = "/runtime.v1alpha1.RuntimeHookService/"


class Handlers(grpc.GenericRpcHandler):
    def __init__(self, handler: Callable[[str], Any]) -> None:
        self._handler = handler

    def service(self, details: Any) -> Any:
        return self._handler(details.method)


async def until(condition: Callable[[], Any], what: str = "the condition", limit: float = 10.0) -> None:
    """Wait for a condition: post hooks run after the caller has its answer."""
    async with asyncio.timeout(patience.seconds(limit)):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Engine:
    """Answers RuntimeService: ids from the request, scripted errors, events as a stream; keeps the raw bytes of each call."""

    calls: list[tuple[str, bytes]] = field(default_factory=list)
    errors: dict[str, tuple[grpc.StatusCode, str]] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    waits: dict[str, asyncio.Event] = field(default_factory=dict)
    """Methods that answer once these are set."""

    def of(self, method: str) -> list[bytes]:
        return [raw for name, raw in self.calls if name == method]

    def handler(self, path: str) -> Any:
        service, _, method = path.rpartition("/")
        if method == "Unknown":
            return None
        if method in ("GetContainerEvents", "StreamContainers"):
            return grpc.unary_stream_rpc_method_handler(self._stream(method))
        if method == "Chat":
            return grpc.stream_stream_rpc_method_handler(self._chat)
        return grpc.unary_unary_rpc_method_handler(self._unary(method if service.endswith("v1.RuntimeService") else path))

    def _unary(self, method: str) -> Any:
        async def handle(raw: bytes, context: Any) -> bytes:
            self.calls.append((method, raw))
            self.metadata[method] = dict(context.invocation_metadata())
            if method in self.waits:
                await self.waits[method].wait()
            if error := self.errors.get(method):
                context.set_trailing_metadata((("why", "scripted"),))
                await context.abort(*error)
            if method in self.answers:
                return self.answers[method]
            if method == "Version":
                return cri.VersionResponse(version="0.1.0", runtime_name="fake", runtime_api_version="v1").SerializeToString()
            if method == "RunPodSandbox":
                uid = cri.RunPodSandboxRequest.FromString(raw).config.metadata.uid
                return cri.RunPodSandboxResponse(pod_sandbox_id="sb-" + uid).SerializeToString()
            if method == "CreateContainer":
                name = cri.CreateContainerRequest.FromString(raw).config.metadata.name
                return cri.CreateContainerResponse(container_id="ct-" + name).SerializeToString()
            return b""

        return handle

    def _stream(self, method: str) -> Any:
        async def handle(raw: bytes, context: Any) -> Any:
            self.calls.append((method, raw))
            for event in self.events:
                yield event

        return handle

    async def _chat(self, requests: Any, context: Any) -> Any:
        async for message in requests:
            yield b"echo:" + message


@dataclass
class HookServer:
    """A scripted hook server: hook method -> answer message or exception text; remembers what it was asked."""

    answers: dict[str, Any] = field(default_factory=dict)
    delay: float = 0.0
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def handler(self, path: str) -> Any:
        method = path.removeprefix(HOOKS)
        request_type = hook.PodSandboxHookRequest if "PodSandbox" in method else hook.ContainerResourceHookRequest

        async def handle(raw: bytes, context: Any) -> bytes:
            self.asked.append((method, request_type.FromString(raw)))
            await asyncio.sleep(self.delay)
            answer = self.answers.get(method)
            if answer is None:
                await context.abort(grpc.StatusCode.INTERNAL, "scripted failure")
            return answer if isinstance(answer, bytes) else answer.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)


@dataclass
class Stack:
    """What a test drives: the proxy's socket, the engine behind it, and the directory of hook registrations."""

    directory: Path
    engine: Engine
    app: Any
    channel: grpc.aio.Channel
    server: Any = None

    async def start_engine(self) -> None:
        """Serve the engine's socket, again after `server.stop`."""
        self.server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)))
        self.server.add_generic_rpc_handlers((Handlers(self.engine.handler),))
        self.server.add_insecure_port(f"unix:{self.directory}/engine.sock")
        await self.server.start()

    async def call(self, method: str, message: Any, service: str = RUNTIME, timeout: float = 10, metadata: Any = None) -> bytes:
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        return await self.channel.unary_unary(service + method)(raw, timeout=timeout, metadata=metadata)

    def register(self, name: str, **keys: Any) -> None:
        target = self.directory / "hooks.d" / name
        temporary = target.with_suffix(".tmp")
        temporary.write_text(json.dumps({key.replace("_", "-"): value for key, value in keys.items()}))
        temporary.replace(target)
        self.app.registrations.refresh()

    @contextlib.asynccontextmanager
    async def hook_server(self, name: str, server: HookServer, hooks: list[str], policy: str = "Ignore") -> AsyncIterator[HookServer]:
        path = self.directory / f"{name}.sock"
        listener = grpc.aio.server()
        listener.add_generic_rpc_handlers((Handlers(server.handler),))
        listener.add_insecure_port(f"unix:{path}")
        await listener.start()
        self.register(f"{name}.json", remote_endpoint=str(path), failure_policy=policy, runtime_hooks=hooks)
        try:
            yield server
        finally:
            await listener.stop(0)


@contextlib.asynccontextmanager
async def proxied(engine: Engine | None = None, before_engine: Any = None, **options: Any) -> AsyncIterator[Stack]:
    """The proxy's App between a client channel and a fake engine. `before_engine(path, engine's path)` may serve a socket between."""
    from koord.process.life import Life
    from roles.runtime_proxy.app import App
    from roles.runtime_proxy.options import Options

    async with contextlib.AsyncExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="kp-")))
        (directory / "hooks.d").mkdir()
        target = directory / "engine.sock"
        if before_engine is not None:
            target = directory / "between.sock"
            await exits.enter_async_context(before_engine(target, directory / "engine.sock"))
        settings = Options(endpoint=directory / "proxy.sock", engine=target, hook_directory=directory / "hooks.d", **options)
        app = App(settings, registry=CollectorRegistry())
        stack = Stack(directory, engine or Engine(), app, grpc.aio.insecure_channel(f"unix:{directory}/proxy.sock"))
        await stack.start_engine()
        life = Life()
        task = asyncio.create_task(app.run(life))
        await asyncio.wait_for(app.listening.wait(), patience.seconds(10))
        async with stack.channel:
            yield stack
        life.stopping.set()
        await asyncio.wait_for(task, patience.seconds(10))
        await stack.server.stop(0)


def run_pod(uid: str = "u-1", **labels: str) -> cri.RunPodSandboxRequest:
    request = cri.RunPodSandboxRequest(runtime_handler="runc")
    request.config.metadata.name, request.config.metadata.uid, request.config.metadata.namespace = "web-0", uid, "shop"
    for key, value in labels.items():
        request.config.labels[key] = value
    request.config.annotations["a"] = "1"
    request.config.linux.cgroup_parent = f"/kubepods/burstable/pod{uid}"
    return request


def create(name: str = "main", sandbox: str = "sb-u-1", **resources: Any) -> cri.CreateContainerRequest:
    request = cri.CreateContainerRequest(pod_sandbox_id=sandbox)
    request.config.metadata.name, request.config.metadata.attempt = name, 1
    request.config.annotations["c"] = "1"
    request.config.envs.extend(
        [cri.KeyValue(key="A", value=b"1"), cri.KeyValue(key="B", value=b"\xff\x00"), cri.KeyValue(key="A", value=b"2")]
    )
    for key, value in resources.items():
        setattr(request.config.linux.resources, key, value)
    request.sandbox_config.linux.cgroup_parent = "/kubepods/burstable/podu-1"
    return request
