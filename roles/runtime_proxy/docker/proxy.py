"""Connections of the Docker mode: one to the engine for each of the caller's, hijacked streams included (RP-DKR-01)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from koord import seams
from roles.runtime_proxy.docker.http1 import (
    CHUNK,
    UNTIL_CLOSE,
    Head,
    ProtocolError,
    Source,
    TooLarge,
    copy_body,
    read_body,
    request_framing,
    response_framing,
)
from roles.runtime_proxy.docker.interceptor import DockerInterceptor, Reply, refusal
from roles.runtime_proxy.docker.target import Route, route
from roles.runtime_proxy.logfilter import RepeatFilter
from roles.runtime_proxy.sockets import peer_uid, trusted

log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())

_MAX_BODY = 16 << 20  # bytes of a request or answer that has to be read as a whole
_LINGER = 1.0  # seconds
_HEAD = 10.0  # seconds from the first byte of a head to its last
_BODY = 60.0  # seconds for the body of a request with hooks
Observe = Callable[[str, str, float], None]


class EngineUnreachable(Exception):
    """No connection to the engine, or it ended before it answered."""


class DockerProxy:
    """Serves callers until closed. `limit` is how many connections may be open at once, hijacked ones included."""

    def __init__(self, engine: str, interceptor: DockerInterceptor, observe: Observe, limit: int) -> None:
        self._engine = engine
        self._interceptor = interceptor
        self._observe = observe
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self.exchanges = 0  # requests whose answer is not complete

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The callback of asyncio's server."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Connection(self, reader, writer)
        try:
            if not trusted(uid := peer_uid(writer.get_extra_info("socket"))):
                log.warning("a connection of user %s is refused: only root and the proxy's own user may", uid)
            elif len(self._tasks) > self._limit:
                log.warning("a connection is refused: %d are open", self._limit)
                await connection.refuse(refusal(f"koord runtime-proxy: more than {self._limit} connections", 503))
            else:
                await connection.serve()
        except (OSError, ProtocolError) as error:
            log.info("a connection ended: %s", error)
        except asyncio.CancelledError:
            log.debug("a connection is ended by shutdown")
        finally:
            self._tasks.discard(task)
            connection.close()

    async def drain(self, seconds: float) -> None:
        """Let exchanges that are under way come to their end, for so many seconds. Hijacked streams are not waited for."""
        end = seams.monotonic() + seconds
        while self.exchanges and seams.monotonic() < end:
            await seams.sleep(0.02)

    async def close(self) -> None:
        """End every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Connection:
    def __init__(self, proxy: DockerProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._caller = Source(reader)
        self._to_caller = writer
        self._waited_for = False
        self._engine: Source | None = None
        self._to_engine: asyncio.StreamWriter | None = None

    def close(self) -> None:
        for writer in (self._to_caller, self._to_engine):
            if writer is not None:
                writer.close()

    async def serve(self) -> None:
        """One exchange after another until a side ends. Raises OSError, ProtocolError."""
        while await self._caller.begun():
            try:
                async with asyncio.timeout(_HEAD):
                    head = await self._caller.head()
                if head is None:
                    return
                framing, to = request_framing(head), route(head.start[1])
            except ProtocolError as error:
                await self.refuse(refusal(str(error), 400))
                return
            except TimeoutError:
                self.answer(refusal(f"the request's head was not complete within {_HEAD:g} s", 408))
                return
            started = seams.monotonic()
            self._wait_for(to is not None or head.start[0] not in ("GET", "HEAD"))  # a GET changes nothing, and may go on for days
            try:
                going_on = await (self._pass(head, framing) if to is None else self._intercept(head, framing, to))
            except EngineUnreachable as error:
                status = 499 if self._caller.ended else 502  # the engine ended because the caller did
                self._proxy._observe(to.call if to else "other", str(status), seams.monotonic() - started)
                if status == 502:
                    await self.refuse(refusal(str(error), 502))
                return
            finally:
                self._wait_for(False)
            await self._to_caller.drain()
            if not going_on or head.closes:
                return

    def _wait_for(self, yes: bool) -> None:
        """Whether the process, when it ends, waits for what this connection does."""
        self._proxy.exchanges += yes - self._waited_for
        self._waited_for = yes

    async def refuse(self, reply: Reply) -> None:
        """Answer and end. What the caller still sends is read away first: closing before would throw the answer away."""
        self.answer(reply)
        self._to_caller.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while await self._caller.some():
                    pass

    def answer(self, reply: Reply) -> None:
        """An answer of our own."""
        phrase = HTTPStatus(reply.status).phrase
        self._to_caller.write(
            f"HTTP/1.1 {reply.status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(reply.body)}\r\n\r\n".encode()
            + reply.body
        )

    async def _connect(self) -> tuple[Source, asyncio.StreamWriter]:
        if self._engine is None or self._to_engine is None or self._engine.ended or self._to_engine.is_closing():
            if self._to_engine is not None:
                self._to_engine.close()
            try:
                reader, self._to_engine = await asyncio.open_unix_connection(self._proxy._engine)
            except OSError as error:
                raise EngineUnreachable(
                    f"the Docker engine at {self._proxy._engine} cannot be reached: {error.strerror or error}"
                ) from None
            self._engine = Source(reader)
        return self._engine, self._to_engine

    # -- calls without hooks ----------------------------------------------------------------------------------------------------

    async def _pass(self, head: Head, framing: int) -> bool:
        """Carry one exchange byte for byte. False when the connection ends with it."""
        engine, to_engine = await self._connect()
        to_engine.write(head.raw)
        upward = asyncio.create_task(copy_body(self._caller, to_engine, framing))
        watch = asyncio.create_task(self._watch(upward, to_engine))
        started = seams.monotonic()
        try:
            while True:
                answer = await self._answer_head(engine)
                self._to_caller.write(answer.raw)
                if answer.status >= 200 or answer.status == 101:
                    break
            self._proxy._observe("other", str(answer.status), seams.monotonic() - started)
            body = response_framing(answer, head.start[0])
            if answer.status == 101 or body == UNTIL_CLOSE:
                await _ended(watch)
                self._wait_for(False)
                await self._splice(engine, to_engine, upward)
                return False
            await copy_body(engine, self._to_caller, body)
            return upward.done() and upward.exception() is None and not answer.closes
        finally:
            await _ended(watch)
            await _ended(upward)

    async def _watch(self, upward: asyncio.Task[None], to_engine: asyncio.StreamWriter) -> None:
        """Have the engine see a caller that ends its side, within a body or behind it, as it would without a proxy.

        Some answers begin, or go on, after days; and an engine that waits for the rest of a body waits for ever.
        """
        await asyncio.wait({upward})
        try:
            if upward.exception() is None and await self._caller.fill():
                return  # the next request, early
        except OSError as error:
            log.debug("a caller is gone: %s", error)
        to_engine.write_eof()

    @staticmethod
    async def _answer_head(engine: Source) -> Head:
        head = await engine.head()
        if head is None:
            raise EngineUnreachable("the Docker engine ended the connection before it answered")
        return head

    async def _splice(self, engine: Source, to_engine: asyncio.StreamWriter, upward: asyncio.Task[None]) -> None:
        """A hijacked stream: bytes both ways, each side's end told to the other, until both ended. The request's body goes first."""

        async def up() -> None:
            await upward
            await _pump(self._caller, to_engine)

        ways = [asyncio.create_task(up()), asyncio.create_task(_pump(engine, self._to_caller))]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                await _ended(way)

    # -- calls with hooks -------------------------------------------------------------------------------------------------------

    async def _intercept(self, head: Head, framing: int, to: Route) -> bool:
        """Read the whole request, let the interceptor decide, answer. False when the connection ends with it."""
        if head.says("expect", "100-continue"):
            self._to_caller.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(_BODY):
                body = await read_body(self._caller, framing, _MAX_BODY)
        except TooLarge as error:
            await self.refuse(refusal(str(error), 413))
            return False
        except TimeoutError:
            self.answer(refusal(f"the request's body was not complete within {_BODY:g} s", 408))
            return False
        started = seams.monotonic()

        async def forward(changed: bytes) -> Reply:
            engine, to_engine = await self._connect()
            to_engine.write(head.reframed(len(changed), without=("expect",)) + changed)
            while (answer := await self._answer_head(engine)).status < 200:
                pass
            return Reply(answer.status, await read_body(engine, response_framing(answer, head.start[0]), _MAX_BODY), answer)

        reply = await self._while_there(self._proxy._interceptor.handle(to, body, forward))
        if reply is None:
            self._proxy._observe(to.call, "499", seams.monotonic() - started)
            return False
        self._proxy._observe(to.call, str(reply.status), seams.monotonic() - started)
        if reply.head is None:
            self.answer(reply)
            return True
        length = None if reply.status in (204, 304) else len(reply.body)
        self._to_caller.write(reply.head.reframed(length) + reply.body)
        return not reply.head.closes

    async def _while_there(self, work: Coroutine[Any, Any, Reply]) -> Reply | None:
        """Do it as long as the caller is there; one that leaves is seen by the engine, as it would be without a proxy. None then."""
        task = asyncio.create_task(work)
        watch = asyncio.create_task(self._caller.fill())  # a next request that comes early is kept
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and (watch.exception() is not None or not watch.result()):
                log.info("a caller left during a call with hooks")
                return None
            return await task
        finally:
            for other in (task, watch):
                await _ended(other)


async def _pump(source: Source, sink: asyncio.StreamWriter) -> None:
    while data := await source.some(CHUNK):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        with contextlib.suppress(OSError):
            sink.write_eof()


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel and wait, so that nobody else reads from its source."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a copy ended: %s", error)
