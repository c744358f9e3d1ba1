"""HTTP/1.1 answers however they are cut, and the connections that carry them."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube import errors, pool
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.connection import Lost, NotSent
from koord.kube.http1 import AnswerParser, ProtocolError
from koord.kube.pool import Pool

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

bodies = st.binary(max_size=60)
cuts = st.lists(st.integers(1, 7), max_size=200)


def feed(data: bytes, sizes: list[int], *, end: bool = False) -> AnswerParser:
    parser = AnswerParser()
    at = 0
    for size in sizes:
        if at < len(data):
            parser.feed(data[at : at + size])
            at += size
    if at < len(data):
        parser.feed(data[at:])
    if end:
        parser.end()
    return parser


@given(bodies, cuts, st.booleans())
def test_length(body: bytes, sizes: list[int], early: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-A:  b \r\n\r\n" % len(body)
    data = (b"HTTP/1.1 100 Continue\r\n\r\n" if early else b"") + head + body
    parser = feed(data, sizes)
    assert parser.done
    assert parser.keep_alive
    response = parser.response()
    assert (response.status, response.headers["x-a"], response.body) == (200, "b", body)


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=6), cuts, st.booleans())
def test_chunks(parts: list[bytes], sizes: list[int], trailer: bool) -> None:
    body = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n" + (b"X-T: 1\r\n" if trailer else b"") + b"\r\n"
    parser = feed(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n" + body, sizes)
    assert parser.done
    assert parser.keep_alive
    assert parser.response().body == b"".join(parts)


@given(bodies, cuts)
def test_until_the_end_and_unfinished(body: bytes, sizes: list[int]) -> None:
    parser = feed(b"HTTP/1.1 500 Oops\r\n\r\n" + body, sizes, end=True)
    assert parser.response().body == body
    assert not parser.keep_alive
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body
    assert not feed(whole, sizes, end=True).done


def test_what_ends_a_connection() -> None:
    assert not feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", []).keep_alive
    assert not feed(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", []).keep_alive
    assert not feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore", []).keep_alive
    assert feed(b"HTTP/1.1 204 No Content\r\n\r\n", []).keep_alive


def test_compressed() -> None:
    body = gzip.compress(b"hello")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert feed(head + body, []).response().body == b"hello"
    with pytest.raises(ProtocolError, match="cannot be decompressed"):
        feed(head + b"x" * len(body), []).response()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\n".encode("latin-1"),
        b"x" * 70_000,
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        AnswerParser().feed(data)


@given(st.binary(max_size=200), cuts)
def test_garbage_never_does_anything_else(data: bytes, sizes: list[int]) -> None:
    with suppress(ProtocolError):
        feed(b"HTTP/1.1 200 OK\r\n" + data, sizes, end=True)
    with suppress(ProtocolError):
        feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data, sizes, end=True)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def serving(serve: Serve, *, limit: int = 10) -> AsyncIterator[Pool]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    made = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", limit=limit, connect_timeout=1.0)
    try:
        yield made
    finally:
        await made.close()
        server.close()
        await server.wait_closed()


async def request(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def test_connections_are_used_again_and_limited() -> None:
    made: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(1)
        while True:
            await request(reader)
            await asyncio.sleep(0.005)
            writer.write(OK)

    async def main() -> None:
        async with serving(serve, limit=3) as connections:
            answers = await asyncio.gather(*(connections.request(ASK, None, 5.0) for _ in range(30)))
            assert {answer.body for answer in answers} == {b"ok"}
            assert len(made) == 3
            await connections.request(ASK, None, 5.0)
            assert len(made) == 3

    asyncio.run(main())


def test_a_connection_closed_while_idle_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(1)
        await request(reader)
        writer.write(OK)
        await writer.drain()

    async def main() -> None:
        async with serving(serve) as connections:
            for _ in range(3):
                assert (await connections.request(ASK, None, 5.0)).status == 200
                await asyncio.sleep(0.02)
            assert len(made) == 3

    asyncio.run(main())


def test_old_connections_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.01)
    made: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(1)
        while True:
            await request(reader)
            writer.write(OK)

    async def main() -> None:
        async with serving(serve) as connections:
            await connections.request(ASK, None, 5.0)
            await asyncio.sleep(0.05)
            await connections.request(ASK, None, 5.0)
            assert len(made) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "in the middle of its answer"),
        (b"garbage\r\n\r\n", "not an HTTP/1.1 answer"),
    ],
)
def test_lost_answers(answer: bytes, says: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(answer)

    async def main() -> None:
        async with serving(serve) as connections:
            with pytest.raises(Lost, match=says):
                await connections.request(ASK, None, 5.0)

    asyncio.run(main())


async def whole(connections: Pool, context: ssl.SSLContext) -> None:
    await connections.request(ASK, context, 5.0)


async def streamed(connections: Pool, context: ssl.SSLContext) -> None:
    async with connections.stream(ASK, context, 5.0):
        pass


@pytest.mark.parametrize("ask", [whole, streamed])
def test_a_server_that_closes_before_the_handshake_was_asked_nothing(ask: Callable[[Pool, ssl.SSLContext], Awaitable[None]]) -> None:
    """As a balancer without a server behind it. uvloop takes the connection for an encrypted one, and nothing would ever come."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return  # which closes

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def closed(*given: Any, **named: Any) -> Any:
            made = await connect(*given, **named)
            while not made[0].is_closing():
                await asyncio.sleep(0)
            return made

        loop.create_connection = closed  # type: ignore[method-assign]
        async with serving(serve) as connections:
            with pytest.raises(NotSent, match="closed the connection"):
                await ask(connections, ssl.create_default_context())

    asyncio.run(main())


def test_time_limits_and_cancelling_free_the_place() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await reader.read()

    async def main() -> None:
        async with serving(serve, limit=1) as connections:
            with pytest.raises(Lost, match=r"no answer within 0\.1 s"):
                await connections.request(ASK, None, 0.1)
            task = asyncio.create_task(connections.request(ASK, None, 5.0))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(Lost):
                await connections.request(ASK, None, 0.05)

    asyncio.run(main())


def test_closing_fails_what_is_in_flight() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await reader.read()

    async def main() -> None:
        async with serving(serve) as connections:
            task = asyncio.create_task(connections.request(ASK, None, 5.0))
            await asyncio.sleep(0.02)
            await connections.close()
            with pytest.raises(Lost):
                await task
            with pytest.raises(NotSent, match="the client is closed"):
                await connections.request(ASK, None, 5.0)

    asyncio.run(main())


def test_paths_and_tokens_cannot_smuggle() -> None:
    async def main() -> None:
        async with Client(ClientConfig("http://127.0.0.1:1")) as client:
            for path in ("api", "/a b", "/a\r\nX: y", "/ü"):
                with pytest.raises(ValueError, match="is no request path"):
                    await client.raw("GET", path)
        from koord.kube.credentials import StaticHeader

        async with Client(ClientConfig("http://127.0.0.1:1", credentials=StaticHeader("Bearer a\r\nX: y"))) as client:
            with pytest.raises(errors.Unreachable, match="no header can carry"):
                await client.raw("GET", "/a")

    asyncio.run(main())


def test_a_server_below_a_path() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def main() -> None:
        async with serving(serve) as connections:
            async with Client(ClientConfig(f"http://{connections.host}/k8s/c-1")) as client:
                assert await client.raw("GET", "/version") == (200, b"{}")
            assert seen[0].startswith(b"GET /k8s/c-1/version HTTP/1.1\r\nHost: 127.0.0.1:")

    asyncio.run(main())
