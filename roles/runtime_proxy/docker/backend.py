"""The Docker engine behind the proxy: what App needs of it (RP-DKR-01, RP-DKR-03)."""

from __future__ import annotations

import asyncio
import logging
import socket

from roles.runtime_proxy.docker.engine import DockerEngine, EngineError
from roles.runtime_proxy.docker.interceptor import DockerInterceptor
from roles.runtime_proxy.docker.messages import SANDBOX, TYPE_LABEL, field
from roles.runtime_proxy.docker.proxy import DockerProxy, Observe
from roles.runtime_proxy.each import each
from roles.runtime_proxy.logfilter import RepeatFilter
from roles.runtime_proxy.stages import Stages
from roles.runtime_proxy.store import Store

log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())


class DockerBackend:
    """HTTP in, HTTP out. Raises EngineError where the engine is asked."""

    errors: tuple[type[Exception], ...] = (EngineError,)

    def __init__(self, engine: str, stages: Stages, observe: Observe, limit: int) -> None:
        self._engine = DockerEngine(engine)
        self.interceptor = DockerInterceptor(stages, self._engine.inspect)
        self._proxy = DockerProxy(engine, self.interceptor, observe, limit)
        self._server: asyncio.Server | None = None

    @property
    def store(self) -> Store:
        return self.interceptor.store

    async def greet(self) -> str:
        """Learn the cgroup driver; one line about the engine."""
        self.interceptor.driver = await self._engine.cgroup_driver()
        return f"Docker, cgroup driver {self.interceptor.driver}"

    async def rebuild(self) -> None:
        """Compare the store with the engine: sandboxes first, then their containers."""
        store, known = self.store, self.store.known()
        listed = {str(entry["Id"]): field(entry.get("Labels"), TYPE_LABEL) for entry in await self._engine.containers()}
        for gone in known - set(listed):
            store.remove_container(gone)
            store.remove_pod(gone)
        for sandboxes in (True, False):
            new = [i for i, kind in listed.items() if kind and (kind == SANDBOX) is sandboxes and i not in store.known()]
            await each(new, self._learn_pod if sandboxes else self._learn_container)

    async def _learn_pod(self, sandbox: str) -> None:
        if (document := await self._engine.inspect(sandbox)) is not None and sandbox not in self.store.pods:
            self.interceptor.learn_pod(sandbox, document)

    async def _learn_container(self, container: str) -> None:
        document = await self._engine.inspect(container)
        if document is None or container in self.store.containers:
            return
        if not self.interceptor.learn_container(container, document):
            log.warning("container %s belongs to no known sandbox; it is forwarded without hooks", container)

    async def listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._proxy.connected, sock=listener, backlog=1024)

    async def drain(self, seconds: float) -> None:
        await self._proxy.drain(seconds)

    async def close(self, seconds: float) -> None:
        if self._server is not None:
            self._server.close()
        await self._proxy.drain(seconds)
        await self._proxy.close()
