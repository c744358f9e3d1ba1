"""Who may hold a connection: deadlines, how many there may be, and health that is answered in any case."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import socket
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.process import certificates
from koord.process.http import OpsServer
from koord.process.listener import Limits
from koord.process.requests import Request, Response
from tests.support import patience

pytestmark = pytest.mark.feature("BEY-SEC-01")
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "


@contextlib.asynccontextmanager
async def served(limits: Limits, **options: object) -> AsyncIterator[OpsServer]:
    server = OpsServer("127.0.0.1", 0, role="koordlet", limits=limits, **options)  # type: ignore[arg-type]
    release = asyncio.Event()

    async def slow(request: Request) -> Response:
        await release.wait()
        return Response(text="done")

    async def echo(request: Request) -> Response:
        return Response(text=str(len(await request.read())))

    server.route("GET", "/slow", slow)
    server.route("PUT", "/echo", echo)
    await server.start()
    try:
        yield server
    finally:
        release.set()
        await server.stop()


async def connect(server: OpsServer, text: bytes = b"") -> Pair:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text)
    await writer.drain()
    return reader, writer


async def ended(pair: Pair) -> bytes:
    """What came until the other side closed."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := await pair[0].read(4096):
            data += chunk
    pair[1].close()
    return data


async def health(server: OpsServer) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/healthz", ssl=False) as answer:
        return answer.status


@pytest.mark.parametrize("tls", [False, True])
def test_half_a_request_and_no_request_at_all_are_ended(tls: bool, tmp_path: Path) -> None:
    async def main() -> None:
        context = certificates.ensure(tmp_path, "127.0.0.1").context() if tls else None
        async with served(Limits(head=0.3), ssl_context=context) as server:
            pairs = [await connect(server, text) for text in (HALF, b"", b"G", b"\x16\x03\x01\x02")]
            answers = await asyncio.wait_for(asyncio.gather(*(ended(pair) for pair in pairs)), patience.seconds(10))
            assert all(b"200" not in answer for answer in answers)
            assert await health(server) == 200

    asyncio.run(main())


def test_a_kept_connection_does_not_wait_for_ever_either() -> None:
    async def main() -> None:
        async with served(Limits(head=30, idle=0.3)) as server:
            pair = await connect(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + HALF)
            assert b"200 OK" in await asyncio.wait_for(ended(pair), patience.seconds(10))

    asyncio.run(main())


def test_a_body_that_does_not_come_is_answered_and_ended() -> None:
    async def main() -> None:
        async with served(Limits(head=30, body=0.2)) as server:
            pair = await connect(server, b"PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
            assert b"408" in (await pair[0].readline())
            pair[1].close()
            whole = await connect(server, b"PUT /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")
            assert (await ended(whole)).endswith(b"3")

    asyncio.run(main())


def test_an_answer_that_nobody_takes_is_given_up() -> None:
    async def main() -> None:
        server = OpsServer("127.0.0.1", 0, limits=Limits(answer=0.3))

        async def large(request: Request) -> Response:
            return Response(body=bytes(64 << 20))

        server.route("GET", "/large", large)
        await server.start()
        listener = server._listener
        assert listener is not None
        _, writer = await connect(server, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(patience.seconds(10)):
            while not listener.open:
                await asyncio.sleep(0.01)
            while listener.open:
                await asyncio.sleep(0.01)
        writer.close()
        await server.stop()

    asyncio.run(main())


def test_ten_thousand_half_open_requests_cost_no_more_than_the_bound() -> None:
    """As shipped: 64 connections and 8 for health, whoever else is there; memory does not grow with them."""

    async def main() -> None:
        async with served(Limits()) as server:
            assert server._listener is not None
            loop = asyncio.get_running_loop()
            await health(server)
            gc.collect()
            before = resident()
            sockets: list[socket.socket] = []
            at_once = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200  # all of them, where this process may hold so many
            for number in range(10_000):
                one = socket.socket()
                one.setblocking(False)
                with contextlib.suppress(OSError):
                    await loop.sock_connect(one, ("127.0.0.1", server.port))
                    await loop.sock_sendall(one, HALF)
                sockets.append(one)
                if len(sockets) > at_once:
                    sockets.pop(0).close()
                assert len(server._listener.open) <= 72
                if number % 2500 == 0:
                    assert await health(server) == 200
            assert await health(server) == 200
            assert resident() - before < 32
            for one in sockets:
                one.close()

    asyncio.run(main())


def resident() -> float:
    """Memory of this process now, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_health_keeps_its_place_whoever_says_nothing() -> None:
    async def main() -> None:
        async with served(Limits(connections=8, spare=2, head=60, idle=60)) as server:
            pairs = [await connect(server, text) for _ in range(20) for text in (HALF, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")]
            assert await health(server) == 200
            assert server._listener is not None
            assert len(server._listener.open) <= 8
            for _, writer in pairs:
                writer.close()

    asyncio.run(main())


def test_beyond_the_bound_only_health_is_answered_and_then_nobody() -> None:
    async def main() -> None:
        async with served(Limits(connections=3, spare=1, head=60, idle=60)) as server:
            listener = server._listener
            assert listener is not None
            busy = [await connect(server, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(3)]
            async with asyncio.timeout(patience.seconds(10)):
                while sum(held.busy for held in listener.open) < 3:
                    await asyncio.sleep(0.01)
            assert b"only health" in await ended(await connect(server, b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
            assert await health(server) == 200
            for _, writer in busy:
                writer.close()

    asyncio.run(main())


def _families() -> set[socket.AddressFamily]:
    """Whatever this machine can listen on."""
    found = set()
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family) as sock:
            sock.bind((host, 0))
            found.add(family)
    return found


@pytest.mark.parametrize("address", ["", "::", "0.0.0.0"])
def test_the_port_of_all_interfaces_is_the_same_one_everywhere(address: str) -> None:
    """As net.Listen in Go: 0.0.0.0, upstream's default, serves the API server of a cluster that only has IPv6 too."""

    async def main() -> None:
        server = OpsServer(address, 0)
        await server.start()
        assert server._listener is not None
        ports = {sock.getsockname()[1] for sock in server._listener._sockets}
        assert ports == {server.port}
        assert {sock.family for sock in server._listener._sockets} == _families()
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if any(sock.family == family for sock in server._listener._sockets):
                _, writer = await asyncio.open_connection(host, server.port)
                writer.close()
        await server.stop()

    asyncio.run(main())


def test_without_ipv6_all_interfaces_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def of_ipv4(family: int = -1, *more: Any, **named: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *more, **named)

    async def main() -> None:
        server = OpsServer("0.0.0.0", 0)
        with monkeypatch.context() as patch:
            patch.setattr("koord.process.listener.socket.socket", of_ipv4)
            await server.start()
        assert server._listener is not None
        assert [sock.family for sock in server._listener._sockets] == [socket.AF_INET]
        assert await health(server) == 200
        await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(5))
def test_who_comes_while_the_server_stops_is_closed_as_well(turns: int) -> None:
    async def main() -> None:
        async with served(Limits()) as server:
            assert await health(server) == 200
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as late:
                for _ in range(turns):  # into each moment between the kernel's queue and HTTP
                    await asyncio.sleep(0)
                await server.stop()
                with contextlib.suppress(ConnectionResetError):
                    assert late.recv(1) == b""
        gc.collect()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert [str(one.message) for one in said] == []
