"""One connection to an API server: a request and its answer, whole or as it comes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import cast

from koord.kube.http1 import AnswerParser, ProtocolError, Response
from koord.kube.leadership import Fence

PIECE = 16384  # bytes of a fenced request that are written at once
AHEAD = 2**20  # bytes of a stream that are read ahead of who consumes it


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


class Body:
    """An answer that is read as it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended = False
        self._connection = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: Lost | None = None
        self._loop = loop
        self._news: asyncio.Future[None] | None = None  # somebody waits for more
        self._since = 0.0  # when that began
        self._timer: asyncio.TimerHandle | None = None

    async def iter_any(self, silence: float | None = None) -> AsyncGenerator[bytes, None]:
        """What has come, again and again, until the answer ends. Raises Lost, also after so many seconds of `silence`."""
        if silence is not None:
            self._timer = self._loop.call_later(silence, self._listen, silence)
        try:
            while True:
                if self._chunks:
                    data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
                    self._chunks.clear()
                    self._size = 0
                    self._connection.resume()
                    yield data
                elif self._error is not None:
                    raise self._error
                elif self.ended:
                    return
                else:
                    self._news, self._since = self._loop.create_future(), self._loop.time()
                    try:
                        await self._news
                    finally:
                        self._news = None
        finally:
            self.close()

    def close(self) -> None:
        """Nobody reads on."""
        if self._timer is not None:
            self._timer.cancel()

    def _listen(self, silence: float) -> None:
        """One timer a stream, not one a chunk: when it is due, it looks since when somebody waits."""
        left = silence if self._news is None else self._since + silence - self._loop.time()
        if left > 0.0:
            self._timer = self._loop.call_later(left, self._listen, silence)
        else:
            self.end(Lost(f"silence for {silence:g} s"))

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def read(self, seconds: float) -> bytes:
        """All of it. Raises Lost."""
        try:
            async with asyncio.timeout(seconds):
                return b"".join([data async for data in self.iter_any()])
        except TimeoutError:
            raise Lost(f"no answer within {round(seconds, 1):g} s") from None

    # -- fed by the connection --

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers
        if not self.begun.done():
            self.begun.set_result(None)

    def feed(self, chunks: list[bytes]) -> bool:
        """More of it; True if that is enough for now."""
        self._chunks += chunks
        self._size += sum(map(len, chunks))
        self._tell()
        return self._size > AHEAD

    def end(self, error: Lost | None = None) -> None:
        if error is None:
            self.ended = True
        elif not self.begun.done():
            self.begun.set_exception(error)
        else:
            self._error = error
        self._tell()


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.idle_since = 0.0
        self.open = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: AnswerParser | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._body: Body | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        self._room: asyncio.Future[None] | None = None
        self._paused = False

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        idle = self._answer is None and self._body is None
        return self.open and idle and self._transport is not None and not self._transport.is_closing()

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Encrypt from now on. Raises OSError or ssl.SSLError."""
        assert self._transport is not None
        # uvloop says of a connection that is closing that it is encrypted now; whoever asked by it would wait in vain
        made = await self._loop.start_tls(self._transport, self, context, server_hostname=server_name) if self.reusable else None
        if made is None or made.is_closing() or not self.open:
            raise ConnectionResetError("the server closed the connection")
        made.set_write_buffer_limits(high=1, low=0)
        self._transport = made

    async def send(self, data: bytes, fence: Fence | None = None, *, tunnel: bool = False) -> Response:
        """Send a request and wait for its answer. Cancelling closes the connection. Raises Barred or Lost.

        `tunnel`: the request is a CONNECT.
        """
        assert self._transport is not None
        if fence is not None and not fence.held:
            raise Barred  # and the connection is as good as before
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer = answer
        self._parser = AnswerParser(tunnel=tunnel)
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

    async def stream(self, data: bytes) -> Body:
        """Send a request and return its answer when that begins. Cancelling closes the connection. Raises Lost."""
        assert self._transport is not None
        body = self._body = Body(self._loop, self)
        self._parser = AnswerParser()
        self._transport.write(data)
        try:
            await body.begun
        except BaseException:
            self.close()
            raise
        return body

    def release(self) -> None:
        """The answer that came as a stream is not read any more; if it has not ended, nobody could use the connection again."""
        body, self._body = self._body, None
        if body is not None:
            body.close()
        if body is not None and not body.ended:
            self.open = False
            if self._transport is not None:
                self._transport.abort()  # at once: the farewell of TLS would outlive the client and its loop

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

    def close(self) -> None:
        """Close: in order if nothing is under way, else at once."""
        self.open = False
        if self._transport is None:
            return
        if self._answer is None and self._body is None:
            self._transport.close()
        else:
            self._transport.abort()

    async def abort(self) -> None:
        """Close at once and wait until it is closed."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()
            await asyncio.wait([self._gone], timeout=1.0)

    def resume(self) -> None:
        """Read on: what was read ahead is consumed."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        self.open = True
        # Whatever the kernel does not take at once pauses us: a fenced write asks again before it goes on.
        self._transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            keep_watch(sock)

    def pause_writing(self) -> None:
        """The kernel took less than it was given."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """All that was written is on its way."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        try:
            if parser is None:
                self.close()  # nobody asked
            elif self._body is not None:
                self._receive_stream(parser, self._body, data)
            elif self._answer is None or self._answer.done():
                self.close()
            else:
                self._receive_whole(parser, self._answer, data)
        except ProtocolError as error:
            self._fail(Lost(str(error)))
            self.close()

    def _receive_whole(self, parser: AnswerParser, answer: asyncio.Future[Response], data: bytes) -> None:
        parser.feed(data)
        if not parser.done:
            return
        response = parser.response()
        self._parser = None
        if not parser.keep_alive:
            self.close()
        answer.set_result(response)

    def _receive_stream(self, parser: AnswerParser, body: Body, data: bytes) -> None:
        try:
            parser.feed(data)
        finally:  # what came before the bytes that make no sense still counts
            if parser.begun and not body.begun.done():
                body.begin(parser.status, parser.headers)
            full = body.feed(parser.drain())
        if full and not parser.done and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if parser.done:
            self._parser = None
            body.end()
            if not parser.keep_alive:
                self.close()

    def _fail(self, error: Lost) -> None:
        if self._body is not None:
            self._body.end(error)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self.resume_writing()
        if not self._gone.done():
            self._gone.set_result(None)
        parser = self._parser
        if parser is None:
            return
        self._parser = None
        if error is None and parser.end():
            try:
                if self._body is not None:
                    self._body.begin(parser.status, parser.headers)
                    self._body.feed(parser.drain())
                    self._body.end()
                elif self._answer is not None and not self._answer.done():
                    self._answer.set_result(parser.response())
            except ProtocolError as broken:
                self._fail(Lost(str(broken)))
            return
        detail = str(error) if error else "the server closed the connection"
        self._fail(Lost(f"{detail} in the middle of its answer" if parser.started else detail))
