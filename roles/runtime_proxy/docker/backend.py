"""The Docker engine behind the proxy: our own questions to it, and what App needs of it (RP-DKR-01, RP-DKR-03)."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any
from urllib.parse import quote

import orjson

from roles.runtime_proxy.concurrency import each
from roles.runtime_proxy.docker.http1 import ProtocolError, Source, read_body, response_framing
from roles.runtime_proxy.docker.interceptor import DockerInterceptor, EngineError
from roles.runtime_proxy.docker.messages import SANDBOX, TYPE_LABEL, field
from roles.runtime_proxy.docker.proxy import DockerProxy, Observe
from roles.runtime_proxy.logfilter import RepeatFilter
from roles.runtime_proxy.stages import Stages

_MAX_ANSWER = 64 << 20
_TIMEOUT = 10.0  # seconds


class DockerEngine:
    """Questions over a connection each. Paths carry no API version: every engine serves those with its own newest."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def cgroup_driver(self) -> str:
        """`systemd` or `cgroupfs`. Raises EngineError."""
        document = await self._get("/info")
        driver = document.get("CgroupDriver") if isinstance(document, dict) else None
        if not isinstance(driver, str):
            raise EngineError(f"{self.path}: /info tells no CgroupDriver")
        return driver

    async def containers(self) -> list[dict[str, Any]]:
        """All containers, stopped ones too, as the list tells them. Raises EngineError."""
        document = await self._get("/containers/json?all=true")
        return [entry for entry in document if isinstance(entry, dict) and entry.get("Id")] if isinstance(document, list) else []

    async def inspect(self, container: str) -> Any:
        """A container in full, or None when there is none. Raises EngineError when the engine cannot say."""
        document = await self._get(f"/containers/{quote(container, safe='')}/json")
        return document if isinstance(document, dict) and document.get("Id") else None

    async def _get(self, target: str) -> Any:
        """One GET. None for 404. Raises EngineError."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                reader, writer = await asyncio.open_unix_connection(self.path)
                try:
                    writer.write(f"GET {target} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n".encode())
                    source = Source(reader)
                    head = await source.head()
                    if head is None:
                        raise EngineError(f"{self.path}: no answer to {target}")
                    body = await read_body(source, response_framing(head, "GET"), _MAX_ANSWER)
                finally:
                    writer.close()
            if head.status == 404:
                return None
            if head.status != 200:
                raise EngineError(f"{self.path}: {target} answers {head.status}: {body[:200].decode(errors='replace')}")
            return orjson.loads(body)
        except TimeoutError:
            raise EngineError(f"{self.path}: no answer to {target} within {_TIMEOUT:g} s") from None
        except (OSError, ProtocolError, orjson.JSONDecodeError) as error:
            raise EngineError(f"{self.path}: {target}: {error}") from None


log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())


class DockerBackend:
    """HTTP in, HTTP out. Raises EngineError where the engine is asked."""

    errors: tuple[type[Exception], ...] = (EngineError,)

    def __init__(self, engine: str, stages: Stages, observe: Observe, limit: int) -> None:
        self._engine = DockerEngine(engine)
        self.interceptor = DockerInterceptor(stages, self._engine.inspect)
        self.store = self.interceptor.store
        self._proxy = DockerProxy(engine, self.interceptor, observe, limit)
        self._server: asyncio.Server | None = None

    async def greet(self) -> str:
        """Learn the cgroup driver; one line about the engine."""
        self.interceptor.driver = await self._engine.cgroup_driver()
        return f"Docker, cgroup driver {self.interceptor.driver}"

    async def rebuild(self) -> None:
        """Compare the store with the engine: sandboxes first, then their containers."""
        store = self.store
        known = store.known() | store.stopped()
        listed = {str(entry["Id"]): field(entry.get("Labels"), TYPE_LABEL) for entry in await self._engine.containers()}
        for gone in known - set(listed):
            store.remove_container(gone)
            store.remove_pod(gone)
        store.forget_stopped(known - set(listed))
        for sandboxes in (True, False):
            there = store.known() | store.stopped()
            new = [i for i, kind in listed.items() if kind and (kind == SANDBOX) is sandboxes and i not in there]
            await each(new, self._learn_pod if sandboxes else self._learn_container)

    async def _learn_pod(self, sandbox: str) -> None:
        if (document := await self.interceptor.look_at(sandbox)) is not None and sandbox not in self.store.pods:
            self.interceptor.learn_pod(sandbox, document)

    async def _learn_container(self, container: str) -> None:
        document = await self.interceptor.look_at(container)
        if document is None or container in self.store.containers:
            return
        if not self.interceptor.learn_container(container, document):
            log.warning("container %s belongs to no known sandbox; it is forwarded without hooks", container)

    async def listen(self, listener: socket.socket) -> None:
        """Accept callers of a socket that is bound and listening, and of none before it."""
        if self._server is not None:
            self._server.close()
        self._server = await asyncio.start_unix_server(self._proxy.connected, sock=listener, backlog=1024)

    async def drain(self, seconds: float) -> None:
        """Let calls that are under way end, while others are served."""
        await self._proxy.drain(seconds)

    async def close(self, seconds: float) -> None:
        """Take no more callers, and end what is left after so many seconds."""
        if self._server is not None:
            self._server.close()
        await self._proxy.drain(seconds)
        await self._proxy.close()
