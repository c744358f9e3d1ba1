"""A fake Docker engine on a unix socket, written on raw streams so that tests decide every byte, and the real proxy before it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from tests.roles.runtime_proxy.support import Handlers, HookServer
from tests.support import patience


@dataclass
class FakeDocker:
    """Answers what dockershim asks; remembers each request as (method, target, headers, body)."""

    driver: str = "systemd"
    containers: list[dict[str, Any]] = field(default_factory=list)
    inspected: dict[str, dict[str, Any]] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a caller of /events left

    def of(self, pattern: str) -> list[tuple[str, str, dict[str, str], bytes]]:
        return [r for r in self.requests if re.fullmatch(pattern, r[1].partition("?")[0])]

    def bodies(self, pattern: str) -> list[Any]:
        return [json.loads(r[3]) for r in self.of(pattern)]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                raw = await reader.readuntil(b"\r\n\r\n")
                first, *lines = raw.decode().split("\r\n")[:-2]
                method, target, _ = first.split(" ")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
                body = await self._body(reader, headers)
                self.requests.append((method, target, headers, body))
                if not await self._answer(method, target, headers, reader, writer):
                    break
        writer.close()

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", "0")))
        found = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            found += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return found

    async def _answer(self, method: str, target: str, headers: dict[str, str], reader: Any, writer: Any) -> bool:
        path = re.sub(r"^/v\d+\.\d+", "", target.partition("?")[0])
        for pattern, (status, text) in self.errors.items():
            if re.fullmatch(pattern, path):
                return self._send(writer, status, {"message": text})
        if path == "/info":
            return self._send(writer, 200, {"CgroupDriver": self.driver})
        if path == "/containers/json":
            return self._send(writer, 200, self.containers)
        if path == "/containers/create":
            return self._send(writer, 201, {"Id": self.ids.pop(0) if self.ids else "dk-x", "Warnings": []})
        if match := re.fullmatch(r"/containers/([^/]+)/json", path):
            found = self.inspected.get(match[1])
            return self._send(writer, 200 if found else 404, found or {"message": "No such container"})
        if path.endswith("/events"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\none\r\n")
            await reader.read(1)
            self.gone.set()
            return False
        if path.endswith("/download"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n")
            for n in range(200):
                writer.write(b"1000\r\n" + bytes([n]) * 4096 + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\nSum: 1\r\n\r\n")
            return True
        if path.startswith("/exec/") or path.endswith("/attach"):
            return await self._hijack(headers, reader, writer)
        if method == "HEAD":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
            return True
        if path.endswith(("/start", "/stop")):
            writer.write(b"HTTP/1.1 204 No Content\r\nApi-Version: 1.41\r\n\r\n")
            return True
        return self._send(writer, 200, {"path": path})

    async def _hijack(self, headers: dict[str, str], reader: Any, writer: Any) -> bool:
        """Echo what comes in capitals until the caller's end is told, then say goodbye and end."""
        if "upgrade" in headers:
            writer.write(
                b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
            )
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n")
        writer.write(b"prompt>")
        while data := await reader.read(65536):
            writer.write(data.upper())
        writer.write(b"bye")
        await writer.drain()
        return False

    def _send(self, writer: Any, status: int, document: Any) -> bool:
        body = json.dumps(document).encode()
        writer.write(f"HTTP/1.1 {status} Some\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return True


@dataclass
class DockerStack:
    directory: Path
    engine: FakeDocker
    app: Any

    async def call(self, method: str, target: str, body: Any = None, headers: str = "") -> tuple[int, Any]:
        """One request on a connection of its own: status and the JSON of the answer."""
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        reader, writer = await asyncio.open_unix_connection(self.directory / "proxy.sock")
        length = f"Content-Length: {len(raw)}\r\n" if raw and "chunked" not in headers else ""
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n{headers}{length}\r\n".encode() + raw)
        answer = await asyncio.wait_for(reader.read(), patience.seconds(10))
        writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        try:
            return int(head.split()[1]), json.loads(content) if content else None
        except ValueError:
            return int(head.split()[1]), content

    @contextlib.asynccontextmanager
    async def hooks(self, server: HookServer, policy: str = "Ignore") -> AsyncIterator[HookServer]:
        """A hook server that registered for every type it has an answer to, and for PostStop."""
        path = self.directory / "h.sock"
        listener = grpc.aio.server()
        listener.add_generic_rpc_handlers((Handlers(server.handler),))
        listener.add_insecure_port(f"unix:{path}")
        await listener.start()
        types = [name.removesuffix("Hook") for name in server.answers]
        document = {"remote-endpoint": str(path), "failure-policy": policy, "runtime-hooks": types}
        (self.directory / "hooks.d" / "h.json").write_text(json.dumps(document))
        self.app.registrations.refresh()
        try:
            yield server
        finally:
            await listener.stop(0)


@contextlib.asynccontextmanager
async def docker_proxied(engine: FakeDocker | None = None, **options: Any) -> AsyncIterator[DockerStack]:
    """The proxy's App in Docker mode before a fake engine."""
    from koord.process.life import Life
    from roles.runtime_proxy.app import App
    from roles.runtime_proxy.options import DOCKER, Options

    engine = engine or FakeDocker()
    with tempfile.TemporaryDirectory(prefix="kd-") as name:
        directory = Path(name)
        (directory / "hooks.d").mkdir()
        server = await asyncio.start_unix_server(engine.connected, directory / "docker.sock")
        settings = Options(
            endpoint=directory / "proxy.sock",
            engine=directory / "docker.sock",
            hook_directory=directory / "hooks.d",
            mode=DOCKER,
            **options,
        )
        app, life = App(settings), Life()
        task = asyncio.create_task(app.run(life))
        await asyncio.wait_for(app.listening.wait(), patience.seconds(10))
        yield DockerStack(directory, engine, app)
        life.stopping.set()
        await asyncio.wait_for(task, patience.seconds(10))
        server.close()


def sandbox(uid: str = "u1", **host: Any) -> tuple[str, dict[str, Any]]:
    """Target and body that create a pod's sandbox."""
    labels = {"app": "web", "annotation.a": "1", "io.kubernetes.docker.type": "podsandbox"}
    document = {"Image": "pause", "Labels": labels, "HostConfig": host, "NetworkingConfig": {"x": 1}, "FutureField": [1, {"y": None}]}
    return f"/v1.40/containers/create?name=k8s_POD_web-0_shop_{uid}_0", document


def container(sandbox_id: str = "sb1", name: str = "k8s_main_web-0_shop_u1_2", **host: Any) -> tuple[str, dict[str, Any]]:
    """Target and body that create a container."""
    labels = {"annotation.c": "1", "io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": sandbox_id}
    document = {"Image": "app", "Labels": labels, "Env": ["A=1", "B=2=3", "BARE", "Z=9"], "HostConfig": {"Privileged": False, **host}}
    return f"/containers/create?name={name}", document
