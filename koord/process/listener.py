"""Who may hold a connection: the accept loop of the HTTP ports, with deadlines and a bound on how many there are.

A connection that has not sent the head of a request in time is closed, and where too many are open the one that has waited longest
without sending one gives way to the newcomer. So a health probe is answered however many connections say nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord import seams
from koord.process.connection import Connection
from koord.process.requests import Handler, Request, Response

log = logging.getLogger("koord.process")

_BACKLOG = 128
_AT_ONCE = 16  # connections taken in one turn of the loop
_TLS_HANDSHAKE = b"\x16"  # the first byte of a TLS connection; no HTTP request begins with it
MAX_BODY = 64 * 1024  # bytes; nothing that is asked of an operations port is larger
_REST = 0.2  # seconds without accepting when the process is out of file descriptors

TlsSource = Callable[[], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one port puts up with. Times in seconds.

    `head`: until the first request's head is whole, TLS included; `body`: until its body is; `answer`: from the head to the last byte
    that the client has taken; `idle`: between two requests. `connections` may be open at once, and `spare` more, which are answered
    health checks only.
    """

    connections: int = 64
    spare: int = 8
    head: float = 10.0
    body: float = 10.0
    answer: float = 60.0
    idle: float = 10.0


class _Slot:
    """A slot of the listener: first a bare socket, then a connection."""

    def __init__(self, listener: Listener, sock: socket.socket | None, *, spare: bool) -> None:
        self.sock: socket.socket | None = sock
        self.connection: Connection | None = None
        self.task: asyncio.Task[None] | None = None
        self.spare = spare
        self._listener = listener
        self._timer = asyncio.get_running_loop().call_later(listener.limits.head, self.drop)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, to its last byte. Neither a request on its way nor an idle connection is."""
        return self.connection is not None and self.connection.answering

    def requested(self) -> None:
        """The head of a request is there: from now on the answer is waited for."""
        self._wait(self._listener.limits.answer)

    def rested(self, seconds: float | None = None) -> None:
        """The answer is gone: the next head must be there in the idle time, or within `seconds`."""
        self._wait(self._listener.limits.idle if seconds is None else seconds)

    def _wait(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.drop)

    def attended(self, task: asyncio.Task[None]) -> None:
        """It speaks HTTP now, or its socket is closed."""
        self.task = None
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def drop(self) -> None:
        """Close without further words."""
        self.release()
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.abort()

    def release(self) -> None:
        """Free the slot. Harmless when done twice."""
        self._timer.cancel()
        self._listener.open.pop(self, None)


class Listener:
    """Has `handler` answer what is asked on one address. Belongs to one event loop.

    Without `tls` HTTP is spoken, with it HTTPS; `plain` together with `tls` serves both on the one port, told apart by the first byte.
    Requests in flight have `closing` seconds when it stops. A body of more than `max_body` bytes is refused.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        tls: TlsSource | None = None,
        plain: bool = True,
        limits: Limits | None = None,
        closing: float = 1.0,
        max_body: int = MAX_BODY,
    ) -> None:
        self.limits = limits or Limits()
        self._handler = handler
        self._max_body = max_body
        self._serving = False
        self._closing = closing
        self.open: dict[_Slot, None] = {}
        self.port = 0
        self._tls = tls
        self._plain = plain or tls is None
        self._where = ("", 0)
        self._server: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._resting: list[asyncio.TimerHandle] = []

    async def listen(self, address: str, port: int) -> bool:
        """Take the address ("" for all); True when only this machine reaches it. Raises OSError, OverflowError."""
        if not _has_sockets():
            self._where = (address, port)
            return address.startswith("127.")
        self._sockets = await _listening(address, port)
        self.port = self._sockets[0].getsockname()[1]
        return all(_is_loopback(sock) for sock in self._sockets)

    async def serve(self) -> None:
        """Accept connections from now on."""
        self._serving = True
        if not _has_sockets():
            loop, context = asyncio.get_running_loop(), self._tls() if self._tls is not None else None
            self._server = await loop.create_server(lambda: self._connection(self._slot()), *self._where, ssl=context)
            self.port = self._server.sockets[0].getsockname()[1]
        for sock in self._sockets:
            self._watch(sock)

    def use_tls(self, source: TlsSource | None, *, plain: bool) -> None:
        """Choose anew between HTTP, HTTPS and both; before `serve`."""
        self._tls, self._plain = source, plain or source is None

    async def stop(self) -> None:
        """Stop listening, and wait for requests in flight."""
        if self._server is not None:
            self._server.close()
        for timer in self._resting:
            timer.cancel()
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
        self._resting, self._sockets = [], []
        self._serving = False
        arriving, answering = [], []
        for slot in list(self.open):
            task = slot.connection.finish() if slot.connection is not None else None
            if task is not None:
                answering.append(task)
                continue
            if slot.task is not None:
                arriving.append(slot.task)
            slot.drop()
        await asyncio.gather(*arriving, return_exceptions=True)  # their sockets are closed then
        if answering:
            await asyncio.wait(answering, timeout=self._closing)
        for slot in list(self.open):
            slot.drop()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    def _watch(self, sock: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        """Take those that wait. No task and no await: a connection taken from the kernel always has its slot, also when all stops."""
        for _ in range(_AT_ONCE):
            try:
                near, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("port %d: a connection cannot be accepted: %s", self.port, error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(sock.fileno())
                self._resting = [timer for timer in self._resting if timer.when() > loop.time()]
                self._resting.append(loop.call_later(_REST, self._watch, sock))
                return
            near.setblocking(False)
            self._admit(near)

    def _slot(self, sock: socket.socket | None = None) -> _Slot:
        """A slot for one more; an idle connection gives way to it."""
        if len(self.open) >= self.limits.connections:
            idle = next((slot for slot in self.open if not slot.busy), None)
            if idle is not None:
                idle.drop()
        slot = _Slot(self, sock, spare=len(self.open) >= self.limits.connections)
        self.open[slot] = None
        return slot

    def _connection(self, slot: _Slot) -> Connection:
        slot.connection = Connection(slot, self._handler, body=self.limits.body, max_body=self._max_body)
        return slot.connection

    def _admit(self, near: socket.socket) -> None:
        slot = self._slot(near)
        if len(self.open) > self.limits.connections + self.limits.spare:
            slot.release()
            near.close()
            return
        slot.task = asyncio.create_task(self._attend(slot, near))
        slot.task.add_done_callback(slot.attended)

    async def _attend(self, slot: _Slot, sock: socket.socket) -> None:
        """From the bare socket to HTTP or HTTPS."""
        loop = asyncio.get_running_loop()
        try:
            tls = self._tls
            if tls is not None and self._plain and await _peek(sock) != _TLS_HANDSHAKE:
                tls = None
            more: dict[str, Any] = {}
            if tls is not None:
                more = {"ssl": await seams.to_thread(tls), "ssl_handshake_timeout": self.limits.head}
            if not self._serving:  # it has stopped meanwhile
                slot.release()
                return
            slot.sock = None  # the transport's from now on
            try:
                await loop.connect_accepted_socket(lambda: self._connection(slot), sock, **more)
            except BaseException:
                sock.close()
                raise
        except OSError as error:  # ssl.SSLError too
            log.debug("port %d: %s", self.port, error)
            slot.release()
        except Exception as error:
            log.warning("port %d: a connection cannot be served: %s", self.port, error)
            slot.release()


def _has_sockets() -> bool:
    """Whether the running loop accepts on sockets. One whose network is made up does not, and makes servers in its own way."""
    return type(asyncio.get_running_loop()).sock_accept is not asyncio.AbstractEventLoop.sock_accept


async def whole_body(request: Request, handler: Handler) -> Response:
    """Middleware: the body of a request is there before its handler runs, or the answer is 408."""
    await request.read()
    return await handler(request)


async def _listening(address: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all that the address stands for; with port 0 all on the same free one."""
    loop = asyncio.get_running_loop()
    every = address in ("", "::", "0.0.0.0")  # as in Go, whose flags and defaults these are: both of the latter mean IPv4 and IPv6
    found = await loop.getaddrinfo(None if every else address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, where in dict.fromkeys(found):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this kernel does not have
            failure = error
            continue
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setblocking(False)
            sock.bind((where[0], sockets[0].getsockname()[1] if sockets and not port else port, *where[2:]))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            if len(found) > 1 and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                failure = error
                continue
            for other in sockets:
                other.close()
            raise
        sockets.append(sock)
    if not sockets:
        raise failure or OSError(errno.EADDRNOTAVAIL, f"{address} has no address")
    return sockets


def _is_loopback(sock: socket.socket) -> bool:
    import ipaddress

    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


async def _peek(sock: socket.socket) -> bytes:
    """The first byte that comes, left where it is. Raises OSError."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            readable = asyncio.Event()
            loop.add_reader(sock.fileno(), readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(sock.fileno())
