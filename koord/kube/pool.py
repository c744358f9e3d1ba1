"""Connections to one API server: kept alive, by any of its addresses, directly or through a proxy."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import aiohappyeyeballs

from koord.kube.connection import Body, Connection, Lost, NotSent
from koord.kube.http1 import Response
from koord.kube.leadership import Fence
from koord.kube.proxies import address_of, literal
from koord.kube.ratelimit import Priority

IDLE = 60.0  # seconds after which an unused connection is not trusted any more (servers close theirs after 90 or more)
NEXT_ADDRESS = 0.25  # seconds until the next address of a server is tried beside one that has not answered (RFC 8305)

_ERRNO = re.compile(r"\[Errno (\d+)\]")


def told(error: Exception) -> str:
    """Why there is no connection, in words without numbers of errors: `connection refused`, `no route to host`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, (ssl.SSLError, socket.gaierror)):
        # of several addresses that were tried the text lists each one's error
        numbers = [error.errno] if error.errno else [int(number) for number in _ERRNO.findall(text)]
        text = ", ".join(dict.fromkeys(_lowered(os.strerror(number)) for number in numbers)) or text
    elif isinstance(error, socket.gaierror):
        text = _lowered(error.strerror or text)
    return text or type(error).__name__


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


class Pool:
    """Connections to one server. Of each class of requests, at most `limit` are under way; who comes later waits for one of its class.

    Streams are not counted. `host` and `prefix` are what the head of a request needs: through a proxy the server of plain HTTP is part of
    the path.
    """

    def __init__(
        self, server: str, *, limit: int, connect_timeout: float, server_name: str | None = None, proxy: str | None = None
    ) -> None:
        parts = urlsplit(server)
        self.host = parts.netloc.rpartition("@")[2]
        self.prefix = parts.path.rstrip("/")
        self.headers = ""
        self._server = address_of(parts)
        self._proxy = urlsplit(proxy) if proxy else None
        if self._proxy is not None and parts.scheme == "http":
            self.prefix = f"http://{self.host}{self.prefix}"
            self.headers = _authorization(self._proxy)
        self._server_name = server_name
        self._connect_timeout = connect_timeout
        self._last_good: Any = None
        self._places = {priority: asyncio.Semaphore(limit) for priority in Priority}
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
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
        async with self._places[priority]:
            connection = await self._free(context)
            try:
                async with asyncio.timeout(timeout):
                    return await connection.send(data, fence)
            except TimeoutError:
                self._forget_idle()
                raise Lost(f"no answer within {round(timeout, 1):g} s") from None
            finally:
                self._give_back(connection)

    @asynccontextmanager
    async def stream(self, data: bytes, context: ssl.SSLContext | None, timeout: float) -> AsyncIterator[Body]:
        """Send a request and read its answer, which begins within `timeout` seconds, as it comes. Raises NotSent or Lost."""
        connection, body = await self._begin(data, context, timeout)
        try:
            yield body
        finally:
            connection.release()
            self._give_back(connection)

    async def _begin(self, data: bytes, context: ssl.SSLContext | None, timeout: float) -> tuple[Connection, Body]:
        while True:
            connection = await self._free(context)
            used = connection.idle_since > 0.0
            try:
                async with asyncio.timeout(timeout):
                    return connection, await connection.stream(data)
            except TimeoutError:
                self._drop(connection)
                self._forget_idle()
                raise Lost(f"no answer within {round(timeout, 1):g} s") from None
            except Lost:
                self._drop(connection)
                if not used:  # else the server closed it while it waited, and a new one is tried
                    raise
            except BaseException:
                self._drop(connection)
                raise

    async def _free(self, context: ssl.SSLContext | None) -> Connection:
        """The connection used last (the others may grow old and go), else a new one."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.context is context and now - connection.idle_since < IDLE:
                return connection
            self._drop(connection)
        return await self._connect(context)

    def _give_back(self, connection: Connection) -> None:
        if connection.reusable and not self._closed:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()

    def _forget_idle(self) -> None:
        """A connection has carried nothing: those that wait beside it may be as dead."""
        while self._idle:
            self._drop(self._idle.pop())

    # -- connecting --

    async def _connect(self, context: ssl.SSLContext | None) -> Connection:
        if self._closed:
            raise NotSent("the client is closed")
        loop = asyncio.get_running_loop()
        connection = Connection(loop, context)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._reach(loop, connection, self._server if self._proxy is None else address_of(self._proxy))
                if self._proxy is not None:
                    await self._through(connection, self._proxy, tunnel=context is not None)
                if context is not None:
                    await connection.start_tls(context, self._server_name or self._server[0])
        except TimeoutError:
            connection.close()
            raise NotSent(f"cannot connect within {self._connect_timeout:g} s") from None
        except (OSError, ssl.SSLError, Lost, RuntimeError) as error:  # uvloop raises RuntimeError for some sockets
            connection.close()
            raise NotSent(told(error)) from error
        except BaseException:
            connection.close()
            raise
        self._all.add(connection)
        return connection

    async def _reach(self, loop: asyncio.AbstractEventLoop, connection: Connection, address: tuple[str, int]) -> None:
        """Connect to any of the addresses that the name has, the one that answered last first."""
        found = [] if literal(address[0]) else list(dict.fromkeys(await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)))
        if len(found) <= 1:
            await loop.create_connection(lambda: connection, *address)
            return
        found.sort(key=lambda one: one[4] != self._last_good)  # stable: the resolver's order otherwise
        sock = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS, interleave=1, loop=loop)
        transport, _ = await loop.create_connection(lambda: connection, sock=sock)
        peer = transport.get_extra_info("peername") or ()  # None where the other side has reset it already
        self._last_good = next((one[4] for one in found if one[4][:2] == peer[:2]), None)

    async def _through(self, connection: Connection, proxy: SplitResult, *, tunnel: bool) -> None:
        """Make a connection to a proxy one to the server. Raises OSError, ssl.SSLError or Lost."""
        if proxy.scheme == "https":
            await connection.start_tls(ssl.create_default_context(), proxy.hostname or "")
        if not tunnel:
            return
        host = f"[{self._server[0]}]" if ":" in self._server[0] else self._server[0]
        target = f"{host}:{self._server[1]}"
        answer = await connection.send(
            f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{_authorization(proxy)}\r\n".encode("latin-1"), tunnel=True
        )
        if answer.status != 200:
            raise ConnectionRefusedError(f"proxy {proxy.hostname}:{proxy.port}: status {answer.status}")

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        self._idle.clear()
        connections = [*self._all]
        self._all.clear()
        await asyncio.gather(*(connection.abort() for connection in connections))


def _authorization(proxy: SplitResult) -> str:
    """The header by which a proxy knows us, if its URL names a user."""
    if not proxy.username:
        return ""
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
