"""One connection of a role's HTTP port: requests are read one after the other, and each is answered before the next is looked at."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from koord import seams
from koord.process.requests import Handler, Refused, Request, RequestParser, Response, encode

log = logging.getLogger("koord.process")

_FAREWELL = 2.0  # seconds in which a client that still sends may read why nobody listens any more
_SMALL = 65536  # bytes of an answer that need not be watched: any socket takes them
_DISCARD = 1 << 20  # bytes that are thrown away meanwhile


class Slot(Protocol):
    """What the listener knows of a connection."""

    spare: bool

    def requested(self) -> None:
        """The head of a request is there: from now on the answer is waited for."""

    def rested(self, seconds: float | None = None) -> None:
        """The answer is gone: the next head must be there in the idle time, or within `seconds`."""

    def release(self) -> None:
        """The connection is closed."""


class Connection(asyncio.Protocol):
    """Reads requests, has `handler` answer them, and keeps the connection for the next one. `body`: seconds for a request's body."""

    def __init__(self, slot: Slot, handler: Handler, *, body: float, max_body: int) -> None:
        self.transport: asyncio.Transport | None = None
        self._slot = slot
        self._handler = handler
        self._body_seconds = body
        self._max_body = max_body
        self._parser = RequestParser(max_body)
        self._task: asyncio.Task[None] | None = None
        self._arrived: asyncio.Future[None] | None = None  # a handler waits for the body
        self._refused: Refused | None = None  # what is wrong with it; the handler hears of it when it asks
        self._room: asyncio.Future[None] | None = None  # the client has not taken all yet
        self._closing = False
        self._early = b""  # came although reading was paused
        self._discarded = 0

    @property
    def answering(self) -> bool:
        """Whether a handler runs or its answer is being written."""
        return self._task is not None

    def finish(self) -> asyncio.Task[None] | None:
        """Close as soon as the request in flight is answered; returns what is to be waited for."""
        self._closing = True
        return self._task

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """HTTP can begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        self.transport.set_write_buffer_limits(high=1, low=0)  # an answer is gone when the kernel has all of it

    def connection_lost(self, exc: BaseException | None) -> None:
        """The slot is free again."""
        self._slot.release()
        self.transport = None
        self.resume_writing()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_exception(ConnectionResetError("the client has gone"))
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client takes its time."""
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """All is with the kernel."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def eof_received(self) -> bool:
        """Who has asked may stop sending and still be answered."""
        self._closing = True
        return self.answering and self._arrived is None and self._is_plain()

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._discarded:
            self._discard(len(data))
        elif self.answering and self._arrived is None:
            self._early += data
        else:
            self._feed(data)

    # -- requests --

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        try:
            parser.feed(data)
        except Refused as error:
            if not parser.begun:
                self._write(Response(status=error.status, text=f"{error}\n"), keep_alive=False)
                self._part()
                return
            self._refused = error
        if self._arrived is None:
            if parser.begun:
                self._begin(parser)
        elif (parser.done or self._refused is not None) and not self._arrived.done():
            self._arrived.set_result(None)

    def _begin(self, parser: RequestParser) -> None:
        assert self.transport is not None
        assert parser.request is not None
        request = parser.request
        request.transport, request.spare = self.transport, self._slot.spare
        request.secure = not self._is_plain()
        request.reader = self._read_body
        self._slot.requested()
        self.transport.pause_reading()
        self._task = asyncio.create_task(self._answer(request))

    async def _read_body(self) -> bytes:
        """The body of the request in flight, which the client sends now at the latest. Raises Refused."""
        parser, transport = self._parser, self.transport
        if not parser.done and self._refused is None:
            if transport is None:
                raise ConnectionResetError("the client has gone")
            if parser.expects:
                transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._arrived = asyncio.get_running_loop().create_future()
            transport.resume_reading()
            self._feed(self._take_early())
            try:
                async with asyncio.timeout(self._body_seconds):
                    await self._arrived
            except TimeoutError:
                raise Refused(408, "the body of the request did not come in time") from None
            finally:
                self._arrived = None
                if self.transport is not None:
                    self.transport.pause_reading()
        if self._refused is not None:
            raise self._refused
        return bytes(parser.body)

    async def _answer(self, request: Request) -> None:
        parser = self._parser
        head = request.method == "HEAD"
        try:
            try:
                response = await self._handler(request)
            except Refused as error:
                response = Response(status=error.status, text=f"{error}\n")
            # a body that nobody read stands where the next request would begin
            keep_alive = parser.keep_alive and parser.done and not self._closing
            keep_alive = keep_alive and response.headers.get("Connection", "").lower() != "close"
            self._write(response, keep_alive=keep_alive, head=head)
            await self._written()
        except ConnectionResetError:
            return
        except Exception:
            log.exception("%s %s: no answer can be given", request.method, request.raw_path)
            if self.transport is not None:
                self.transport.abort()
            return
        finally:
            self._task = None
        if keep_alive and not self._closing:
            self._next(parser)
        else:
            self._part()

    def _write(self, response: Response, *, keep_alive: bool, head: bool = False) -> None:
        if self.transport is not None:
            self.transport.write(encode(response, seams.now(), keep_alive=keep_alive, head=head))

    async def _written(self) -> None:
        """Wait until the kernel has all of the answer."""
        if self._room is None and self.transport is not None and self.transport.get_write_buffer_size() > _SMALL:
            await seams.sleep(0)  # a loop that writes at the end of its turn says then whether it could
        if self._room is not None:
            await self._room

    def _next(self, former: RequestParser) -> None:
        """The connection waits for another request, which may be there already."""
        if self.transport is None:
            return
        self._parser = RequestParser(self._max_body)
        self._slot.rested()
        self.transport.resume_reading()
        if rest := former.rest + self._take_early():
            self._feed(rest)

    def _take_early(self) -> bytes:
        early, self._early = self._early, b""
        return early

    def _part(self) -> None:
        """Close. A client that is still sending would find its connection reset before it has read why, so it has a moment."""
        transport = self.transport
        if transport is None:
            return
        if self._parser.done or self._closing:
            transport.close()
            return
        self._discarded = 1
        self._slot.rested(_FAREWELL)
        if transport.can_write_eof():  # TLS cannot; its client closes when it has the answer
            transport.write_eof()
        transport.resume_reading()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > _DISCARD and self.transport is not None:
            self.transport.abort()

    def _is_plain(self) -> bool:
        return self.transport is None or self.transport.get_extra_info("sslcontext") is None
