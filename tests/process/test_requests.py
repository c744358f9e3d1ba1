"""Requests as they come from clients: read in one way however they are cut, or refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.process.http import OpsServer
from koord.process.listener import Limits
from koord.process.requests import MAX_HEAD, Refused, Request, RequestParser, Response, encode
from tests.support import patience
from tests.support.examples import examples

pytestmark = pytest.mark.feature("BEY-SEC-01")
HOST = b"Host: x\r\n"


def read(data: bytes, sizes: list[int] | None = None, max_body: int = 1000) -> RequestParser:
    parser = RequestParser(max_body)
    at = 0
    for size in sizes or []:
        if at < len(data) and not parser.done:
            parser.feed(data[at : at + size])
            at += size
    if at < len(data) and not parser.done:
        parser.feed(data[at:])
        at = len(data)
    parser.rest += data[at:] if parser.done else b""
    return parser


bodies = st.binary(max_size=60)
cuts = st.lists(st.integers(1, 7), max_size=200)


@given(bodies, cuts, st.booleans(), st.lists(st.binary(min_size=1, max_size=9), max_size=4))
def test_a_request_is_the_same_however_it_is_cut(body: bytes, sizes: list[int], chunked: bool, parts: list[bytes]) -> None:
    head = b"PUT /a%20b/c?x=1&x=2&y=&e=%26 HTTP/1.1\r\nhost: here:80\r\nX-A:  one \r\nx-a: two\r\n"
    if chunked:
        body = b"".join(parts)
        coded = b"".join(b"%x;e=1\r\n%s\r\n" % (len(part), part) for part in parts)
        data = head + b"Transfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\nT: 1\r\n\r\n"
    else:
        data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    parser = read(data + b"GET /next", sizes)
    request = parser.request
    assert parser.done
    assert parser.keep_alive
    assert request is not None
    assert (request.method, request.path, request.host, request.headers["X-a"]) == ("PUT", "/a b/c", "here:80", "one, two")
    assert (request.query, request.query_all("x")) == ({"x": "1", "y": "", "e": "&"}, ["1", "2"])
    assert bytes(parser.body) == body
    assert parser.rest == b"GET /next"[-len(parser.rest) :]


REFUSED = {
    "two lengths": (400, HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n"),
    "the same length twice": (400, HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n"),
    "two lengths in one": (400, HOST + b"Content-Length: 3, 3\r\n\r\n"),
    "a length with a sign": (400, HOST + b"Content-Length: +3\r\n\r\n"),
    "a negative length": (400, HOST + b"Content-Length: -3\r\n\r\n"),
    "a length in hexadecimal": (400, HOST + b"Content-Length: 0x3\r\n\r\n"),
    "a length and a coding": (400, HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "another coding": (400, HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    "a coding with a tab": (400, HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n"),
    "two codings": (400, HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n"),
    "a blank before the colon": (400, HOST + b"Content-Length : 3\r\n\r\n"),
    "a folded header": (400, HOST + b"X-A: 1\r\n Content-Length: 3\r\n\r\n"),
    "a line that ends in LF": (400, HOST + b"X-A: 1\nContent-Length: 3\r\n\r\n"),
    "a line with a CR": (400, HOST + b"X-A: 1\rContent-Length: 3\r\n\r\n"),
    "a NUL": (400, HOST + b"X-A: \x00\r\n\r\n"),
    "no colon": (400, HOST + b"nothing\r\n\r\n"),
    "no name": (400, HOST + b": nothing\r\n\r\n"),
    "no host": (400, b"X-A: 1\r\n\r\n"),
    "two hosts": (400, HOST + HOST + b"\r\n"),
    "a chunk without a size": (400, HOST + b"Transfer-Encoding: chunked\r\n\r\n;\r\n"),
    "a chunk with a sign": (400, HOST + b"Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n"),
    "a chunk longer than it says": (400, HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n"),
    "a large body": (413, HOST + b"Content-Length: 1001\r\n\r\n"),
    "large chunks": (413, HOST + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n"),
    "many chunks": (413, HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"3\r\nabc\r\n" * 334),
    "an expectation": (417, HOST + b"Expect: wonders\r\n\r\n"),
    "long headers": (431, HOST + b"X-A: " + b"a" * MAX_HEAD + b"\r\n\r\n"),
    "headers without an end": (431, HOST + b"X-A: 1\r\n" * (MAX_HEAD // 8)),
    "many headers": (431, HOST + b"".join(b"X-%d: 1\r\n" % n for n in range(101)) + b"\r\n"),
}
LINES = {
    b"GET / HTTP/2.0": 505, b"GET / HTTP/1.2": 505, b"GET /": 400, b"GET  / HTTP/1.1": 400, b"GET /\x0b HTTP/1.1": 400,
    b"G(T / HTTP/1.1": 400,
    b"GET x HTTP/1.1": 400, b"GET / http/1.1": 400, b"CONNECT x:1 HTTP/1.1": 400, b"GET * HTTP/1.1": 400, b"GET / HTTP/1.1 x": 400,
    b"GET /" + b"a" * 8192 + b" HTTP/1.1": 414, b"\x16\x03\x01": 400,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("cut", [[], [1] * 400])
def test_what_could_be_read_in_two_ways_is_not_read(name: str, cut: list[int]) -> None:
    status, rest = REFUSED[name]
    with pytest.raises(Refused) as refused:
        read(b"PUT / HTTP/1.1\r\n" + rest, cut)
    assert refused.value.status == status


@pytest.mark.parametrize("line", LINES)
def test_lines_that_are_no_requests(line: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read(line + b"\r\n" + HOST + b"\r\n")
    assert refused.value.status == LINES[line]


def test_what_ends_a_connection_and_what_does_not() -> None:
    assert read(b"\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n").keep_alive
    assert not read(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: x, Close\r\n\r\n").keep_alive
    assert not read(b"GET / HTTP/1.0\r\n\r\n").keep_alive
    assert read(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive
    proxied = read(b"GET http://elsewhere/a?b=1 HTTP/1.1\r\n" + HOST + b"\r\n").request
    assert proxied is not None
    assert (proxied.path, proxied.query) == ("/a", {"b": "1"})
    with pytest.raises(Refused):
        read(b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")


@examples(99)
@given(st.binary(max_size=200), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"PUT / HTTP/1.1\r\n" + HOST]), cuts)
def test_no_bytes_raise_anything_else(data: bytes, begin: bytes, sizes: list[int]) -> None:
    with contextlib.suppress(Refused):
        read(begin + data, sizes)


def test_an_answer_cannot_carry_another() -> None:
    with pytest.raises(ValueError, match="cannot go out"):
        encode(Response(headers={"Location": "/\r\nX: 1"}), 0.0, keep_alive=True)
    assert encode(Response(status=204), 0.0, keep_alive=False).endswith(b"\r\nConnection: close\r\n\r\n")
    assert b"Content-Length: 2\r\n" in encode(Response(text="ok"), 0.0, keep_alive=True, head=True)


# -- over sockets --


@contextlib.asynccontextmanager
async def served(limits: Limits | None = None) -> AsyncIterator[OpsServer]:
    server = OpsServer("127.0.0.1", 0, limits=limits)

    async def echo(request: Request) -> Response:
        return Response(text=f"{request.match_info.get('name', '')}:{await request.text()}")

    server.route("PUT", "/echo", echo)
    server.route("*", "/any/{name}", echo)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def talk(server: OpsServer, *pieces: bytes) -> bytes:
    """What is answered to these bytes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    data = await asyncio.wait_for(reader.read(), patience.seconds(10))
    writer.close()
    await writer.wait_closed()
    return data


def test_requests_one_after_the_other_on_one_connection() -> None:
    async def main() -> None:
        async with served() as server:
            put = b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\n"
            last = b"GET /any/%2Fa HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
            data = await talk(server, put + b"one" + put + b"t", b"wo" + b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n" + last)
            answers = data.split(b"HTTP/1.1 200 OK\r\n")[1:]
            assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [b":one", b":two", b"", b"/a:"]
            assert b"Connection: close" in answers[3]
            assert all(b"Connection: keep-alive" in answer for answer in answers[:3])

    asyncio.run(main())


def test_answers_to_what_is_not_served() -> None:
    async def main() -> None:
        async with served() as server:

            async def ask(line: bytes) -> tuple[bytes, bytes]:
                data = await talk(server, line + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
                return data.split(b" ")[1], data

            assert (await ask(b"GET /nothing"))[0] == b"404"
            assert (await ask(b"GET /any/"))[0] == b"404"
            status, data = await ask(b"DELETE /metrics")
            assert (status, b"Allow: GET, HEAD\r\n" in data) == (b"405", True)
            assert (await ask(b"OPTIONS *"))[0] == b"404"
            assert (await ask(b"GET /%6detrics"))[0] == b"200"

    asyncio.run(main())


@pytest.mark.parametrize("name", ["a length and a coding", "long headers", "a large body", "a folded header"])
def test_a_refusal_is_read_by_a_client_that_still_sends_and_nothing_behind_it_is_a_request(name: str) -> None:
    async def main() -> None:
        async with served() as server:
            status, rest = REFUSED[name]
            if status == 413:
                rest = rest.replace(b"1001", b"70000")
            data = await talk(server, b"PUT /echo HTTP/1.1\r\n" + rest, b"a" * 100_000 + b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n")
            assert data.startswith(b"HTTP/1.1 %d " % status)
            assert data.count(b"HTTP/1.1 ") == 1
            assert b"Connection: close\r\n" in data

    asyncio.run(main())


def test_a_body_is_sent_when_it_is_wanted() -> None:
    """`Expect: 100-continue`: who asks for what is not there need not send it."""

    async def main() -> None:
        async with served() as server:
            head = HOST + b"Content-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"PUT /echo HTTP/1.1\r\n" + head)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await reader.read()).endswith(b":abc")
            writer.close()

    asyncio.run(main())


def test_a_body_in_tiny_chunks_takes_no_more_memory_than_it_has() -> None:
    parser = RequestParser(1 << 20)
    parser.feed(b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(1000):
        parser.feed(b"1\r\na\r\n" * 100)
        assert parser.drain() == []
    parser.feed(b"0\r\n\r\n")
    assert parser.body == b"a" * 100_000
