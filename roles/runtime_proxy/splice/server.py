"""Callers' connections: accepted, bounded, drained."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from koord import seams
from roles.runtime_proxy.hooktypes import RUNTIME_SERVICE, STREAM_METHODS, UNARY_METHODS
from roles.runtime_proxy.interceptor import Interceptor
from roles.runtime_proxy.logfilter import RepeatFilter
from roles.runtime_proxy.sockets import peer_uid, trusted
from roles.runtime_proxy.splice.connection import Connection
from roles.runtime_proxy.splice.held import Handler, SandboxStatus
from roles.runtime_proxy.splice.memory import MemoryBudget

log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())

_MEMORY = 48 << 20  # bytes of requests that are held for hooks, all together
_WAITING = 64 << 20  # bytes of those that came before there was memory for the whole of them
_LONG = 1.0  # seconds from which on a call is a long one
_FAREWELL = 1.0  # seconds that a caller has to see that it should connect anew
Observe = Callable[[str, str, float], None]

_LABELS: dict[bytes, tuple[str, bool | None]] = {
    path.encode(): (path.rpartition("/")[2], path in UNARY_METHODS) for path in UNARY_METHODS | STREAM_METHODS
}
_OTHER = ("other", None)  # names outside CRI come from the caller and must not become labels


class SpliceServer:
    """Serves callers until closed. `limit` is how many calls may be under way at once, long streams included."""

    def __init__(self, engine: str, interceptor: Interceptor, sandbox_status: SandboxStatus, observe: Observe, limit: int) -> None:
        self.memory = MemoryBudget(_MEMORY, _WAITING)
        self.sandbox_status = sandbox_status
        self._engine = engine
        self._observe = observe
        self._limit = limit
        self._active = 0
        self._handlers: dict[bytes, Handler] = {(RUNTIME_SERVICE + name).encode(): found for name, found in interceptor.handlers.items()}
        self._connections: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Accept callers of a socket that is bound and listening, and of none before it."""
        if self._server is not None:
            self._server.close()
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=listener, backlog=1024)

    def _accept(self) -> asyncio.Protocol:
        return Connection(self).caller

    def accepted(self, connection: Connection, transport: Any) -> None:
        """A caller connected."""
        if not trusted(uid := peer_uid(transport.get_extra_info("socket"))):
            log.warning("a connection of user %s is refused: only root and the proxy's own user may", uid)
            transport.abort()
            return
        self._connections.add(connection)
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: Connection) -> None:
        try:
            await connection.connect(self._engine)
        except OSError as error:
            # The caller sees what it would see at the engine's own socket: no connection, and tries again.
            log.warning("the engine at %s cannot be reached: %s", self._engine, error.strerror or error)
            connection.close("UNAVAILABLE")

    # -- what connections ask -----------------------------------------------------------------------------------------------------

    def begun(self, path: bytes) -> tuple[str, bool | None, Handler | None, bool]:
        """A call begins."""
        label, unary = _LABELS.get(path, _OTHER)
        self._active += 1
        # Some servers take a path without its first slash, too: no spelling may lead past a hook.
        return label, unary, self._handlers.get(b"/" + path.lstrip(b"/")), self._active <= self._limit

    def ended(self, label: str, code: str, seconds: float) -> None:
        """A call has ended."""
        self._active -= 1
        self._observe(label, code, seconds)

    def lost(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)

    # -- the end ------------------------------------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Let calls with one answer that are under way come to their end, for so many seconds; others are served meanwhile.

        Long ones that begin meanwhile, too: once nobody new is served, whoever calls waits for the last that is under way.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        waited = {stream for connection in self._connections for stream in connection.busy()}
        if waited:
            log.info("%d calls are under way; they have %.0f s to end", len(waited), seconds)

        def ended() -> bool:
            busy = {stream for connection in self._connections for stream in connection.busy()}
            return waited.isdisjoint(busy) and not any(stream.started < loop.time() - _LONG for stream in busy)

        await self._until(ended, end)

    async def close(self, seconds: float) -> None:
        """Take no more callers, let calls with one answer end, then end what is left with a status."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.farewell()
        await self._until(lambda: all(c.probed.is_set() for c in self._connections), min(end, loop.time() + _FAREWELL))
        await self._until(lambda: not any(c.busy() for c in self._connections), end)
        for connection in list(self._connections):
            connection.finish()
        for task in list(self._connecting):
            task.cancel()

    @staticmethod
    async def _until(condition: Callable[[], bool], end: float) -> None:
        while not condition() and asyncio.get_running_loop().time() < end:
            await seams.sleep(0.02)
