"""Keep-alive connections for small requests: a seventh of the CPU that a general HTTP client needs for a bind."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import cast
from urllib.parse import urlsplit

from koord.kube.http1 import AnswerParser, ProtocolError, Response
from koord.kube.leadership import Fence
from koord.kube.ratelimit import Priority

PIECE = 16384  # bytes of a fenced request that are written at once
IDLE = 60.0  # seconds after which an unused connection is not trusted any more (servers close theirs after 90 or more)


class NotSent(Exception):
    """The request did not reach the server."""


class Barred(Exception):
    """The request was not sent: its fence is not held."""


class Lost(Exception):
    """The request may have reached the server; its answer did not reach us."""


def keep_watch(sock: socket.socket) -> None:
    """Make a socket notice a dead peer within about half a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.idle_since = 0.0
        self.open = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: AnswerParser | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        self._room: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self.open and self._answer is None and self._transport is not None and not self._transport.is_closing()

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Encrypt from now on. Raises OSError or ssl.SSLError."""
        assert self._transport is not None
        made = await self._loop.start_tls(self._transport, self, context, server_hostname=server_name)
        if made is None:
            raise ConnectionResetError("the server closed the connection")
        made.set_write_buffer_limits(high=1, low=0)
        self._transport = made

    async def send(self, data: bytes, fence: Fence | None = None) -> Response:
        """Send a request and wait for its answer. Cancelling closes the connection. Raises Barred or Lost."""
        assert self._transport is not None
        if fence is not None and not fence.held:
            raise Barred  # and the connection is as good as before
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer = answer
        self._parser = AnswerParser()
        try:
            if fence is None:
                self._transport.write(data)
            else:
                await self._write_fenced(data, fence)
            return await answer
        except (asyncio.CancelledError, Barred):
            self.close()
            raise
        finally:
            self._answer = None

    async def _write_fenced(self, data: bytes, fence: Fence) -> None:
        """Write in pieces that the kernel takes whole, so that none is left for later, when nobody asks any more."""
        assert self._transport is not None
        for at in range(0, len(data), PIECE):
            if self._room is not None:
                await self._room
            if not self.open:
                return  # the answer says why
            if not fence.held:
                raise Barred  # the server never acts on a request that is cut off
            self._transport.write(data[at : at + PIECE])

    def pause_writing(self) -> None:
        """The kernel took less than it was given."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """All that was written is on its way."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def close(self) -> None:
        """Close: in order if nothing is under way, else at once."""
        self.open = False
        if self._transport is None:
            return
        if self._answer is None:
            self._transport.close()
        else:
            self._transport.abort()

    async def abort(self) -> None:
        """Close at once and wait until it is closed."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()
            await asyncio.wait([self._gone], timeout=1.0)

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        self.open = True
        # Whatever the kernel does not take at once pauses us: a fenced write asks again before it goes on.
        self._transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            keep_watch(sock)

    def data_received(self, data: bytes) -> None:
        parser, answer = self._parser, self._answer
        if parser is None or answer is None or answer.done():
            self.close()  # nobody asked
            return
        try:
            parser.feed(data)
            if not parser.done:
                return
            response = parser.response()
        except ProtocolError as error:
            answer.set_exception(Lost(str(error)))
            self.close()
            return
        self._parser = None
        if not parser.keep_alive:
            self.close()
        answer.set_result(response)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self.resume_writing()
        if not self._gone.done():
            self._gone.set_result(None)
        parser, answer = self._parser, self._answer
        if answer is None or answer.done():
            return
        if error is None and parser is not None and parser.end():
            try:
                answer.set_result(parser.response())
            except ProtocolError as broken:
                answer.set_exception(Lost(str(broken)))
            return
        detail = str(error) if error else "the server closed the connection"
        answer.set_exception(Lost(detail if parser is None or not parser.started else f"{detail} in the middle of its answer"))


class Pool:
    """Connections to one server. Of each class of requests, at most `limit` are under way; who comes later waits for one of its class."""

    def __init__(self, server: str, *, limit: int, connect_timeout: float, server_name: str | None = None) -> None:
        parts = urlsplit(server)
        self.host = parts.netloc.rpartition("@")[2]
        self.prefix = parts.path.rstrip("/")
        self._address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._server_name = server_name
        self._connect_timeout = connect_timeout
        self._places = {priority: asyncio.Semaphore(limit) for priority in Priority}
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        self._closed = False

    async def request(
        self,
        data: bytes,
        context: ssl.SSLContext | None,
        timeout: float,
        *,
        fence: Fence | None = None,
        priority: Priority = Priority.STATUS,
    ) -> Response:
        """Send the bytes of a request on a free connection. Raises NotSent, Barred or Lost."""
        loop = asyncio.get_running_loop()
        async with self._places[priority]:
            connection = self._take(context, loop.time())
            if connection is None:
                connection = await self._connect(loop, context)
            try:
                async with asyncio.timeout(timeout):
                    response = await connection.send(data, fence)
            except TimeoutError:
                raise Lost(f"no answer within {timeout:g} s") from None
            finally:
                if connection.reusable and not self._closed:
                    connection.idle_since = loop.time()
                    self._idle.append(connection)
                else:
                    self._all.discard(connection)
                    connection.close()
            return response

    def _take(self, context: ssl.SSLContext | None, now: float) -> _Connection | None:
        """The connection used last: the others may grow old and go."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.context is context and now - connection.idle_since < IDLE:
                return connection
            self._all.discard(connection)
            connection.close()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext | None) -> _Connection:
        if self._closed:
            raise NotSent("the client is closed")
        connection = _Connection(loop, context)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await loop.create_connection(lambda: connection, *self._address)
                if context is not None:
                    await connection.start_tls(context, self._server_name or self._address[0])
        except TimeoutError:
            connection.close()
            raise NotSent(f"cannot connect within {self._connect_timeout:g} s") from None
        except (OSError, ssl.SSLError) as error:
            connection.close()
            raise NotSent(str(error) or type(error).__name__) from error
        self._all.add(connection)
        return connection

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        self._idle.clear()
        connections = [*self._all]
        self._all.clear()
        await asyncio.gather(*(connection.abort() for connection in connections))
