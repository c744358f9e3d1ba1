"""A small scripted API server whose faults are the test's to choose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest
import uvloop
from aiohttp import web

from koord.kube.client import Client
from koord.kube.config import ClientConfig
from tests.support import patience


@pytest.fixture(autouse=True)
def production_loop() -> Iterator[None]:
    """`asyncio.run` on uvloop, as every role runs."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(None)


Json = dict[str, Any]
Answer = web.StreamResponse | Exception | None


def pod(name: str, version: int, namespace: str = "default", **extra: Any) -> Json:
    """A pod as the server stores it."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": str(version), "uid": f"uid-{name}", **extra.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, **extra}


def status(code: int, reason: str = "", message: str = "", **headers: str) -> web.Response:
    """A Status answer."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


class FaultServer:
    """Pods, by list and watch. `script(request)` may answer any request first; watches are fed through `send`."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.version = 100
        self.oldest = 0  # watches from before this version are answered 410
        self.history: list[tuple[int, bytes]] = []
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.script: Callable[[web.Request], Awaitable[Answer] | Answer] | None = None
        self.page_expires = False
        self.watchers: set[asyncio.Queue[bytes | None]] = set()
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    # -- content --

    def put(self, name: str, **extra: Any) -> Json:
        """Create or change a pod and tell the watches."""
        self.version += 1
        known = name in self.objects
        obj = self.objects[name] = pod(name, self.version, **extra)
        self._publish("MODIFIED" if known else "ADDED", obj)
        return obj

    def remove(self, name: str) -> None:
        """Delete a pod and tell the watches."""
        self.version += 1
        obj = self.objects.pop(name)
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self._publish("DELETED", obj)

    def _publish(self, kind: str, obj: Json) -> None:
        line = orjson.dumps({"type": kind, "object": obj}) + b"\n"
        self.history.append((self.version, line))
        self.send(line)

    def send(self, data: bytes | None) -> None:
        """Raw bytes to every watch; None closes the streams."""
        for queue in self.watchers:
            queue.put_nowait(data)

    def compact(self) -> None:
        """Forget the history: watches from earlier versions are gone."""
        self.oldest = self.version
        self.history.clear()

    # -- HTTP --

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "28"})
        self.requests.append(request)
        self.bodies.append(await request.read())
        if self.script is not None:
            answer = self.script(request)
            if isinstance(answer, Awaitable):
                answer = await answer
            if isinstance(answer, Exception):
                assert request.transport is not None
                request.transport.abort()
                raise answer
            if answer is not None:
                return answer
        if request.method != "GET":
            return web.json_response({"kind": "Pod", "metadata": {"name": "x"}})
        return await self._watch(request) if "watch" in request.query else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        objects = [self.objects[name] for name in sorted(self.objects)]
        wanted = [part.partition("=")[2] for part in request.query.get("fieldSelector", "").split(",") if part.startswith("metadata.name=")]
        objects = [obj for obj in objects if not wanted or obj["metadata"]["name"] in wanted]
        start, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", "0"))
        if start and self.page_expires:
            self.page_expires = False
            return status(410, "Expired", "the continue parameter is too old")
        metadata: Json = {"resourceVersion": str(self.version)}
        if limit and start + limit < len(objects):
            metadata["continue"] = str(start + limit)
            objects = objects[start : start + limit]
        else:
            objects = objects[start:]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": objects})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion", "0"))
        if since < self.oldest:
            return status(410, "Expired", "too old resource version")
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, line in self.history:
            if version > since:
                queue.put_nowait(line)
        self.watchers.add(queue)
        end = asyncio.get_running_loop().call_later(float(request.query.get("timeoutSeconds", "3600")), queue.put_nowait, None)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
            while (data := await queue.get()) is not None:
                await response.write(data)
        finally:
            end.cancel()
            self.watchers.discard(queue)
        return response

    async def start(self) -> None:
        """Listen, on the same port as before if it was stopped."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Go away, all connections with it."""
        if self._runner is not None:
            self.send(None)
            await self._runner.cleanup()
            self._runner = None


@asynccontextmanager
async def _serving() -> AsyncIterator[tuple[FaultServer, Client]]:
    server = FaultServer()
    await server.start()
    try:
        async with Client(ClientConfig(server=server.url), role="test") as client:
            yield server, client
    finally:  # a loop of uvloop that has a server left does not end
        await server.stop()


@pytest.fixture
def fault_server() -> Callable[[], Any]:
    """`async with fault_server() as (server, client)`."""
    return _serving


async def eventually(check: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until something holds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience.seconds(seconds)):
            while not check():
                await asyncio.sleep(0.005)
    assert check()


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Awaitable[None]]:
    """`await eventually(lambda: ...)`."""
    return eventually


class Pipe:
    """A TCP proxy. While `stalled`, connections stay open and carry nothing; `only_open` leaves new ones alone."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._stalled: set[int] = set()
        self._count = 0
        self.stalled = False
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Pipe:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stall_open(self) -> None:
        """From now on the connections that are open carry nothing; new ones work."""
        self._stalled |= set(range(self._count + 1))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        number = self._count
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink, number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, number: int) -> None:
        try:
            while data := await source.read(65536):
                while self.stalled or number in self._stalled:
                    await asyncio.sleep(0.01)
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@pytest.fixture(name="pipe")
def pipe_fixture() -> type[Pipe]:
    """`async with pipe(url) as between`: a TCP proxy that can stall."""
    return Pipe
