"""The ways to a server: several addresses, proxies, streams; one client for requests and watches."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import PODS
from koord.kube import connection, errors
from koord.kube.client import Client
from koord.kube.config import ClientConfig, Pem
from koord.process import certificates
from tests.support import patience

LIST = b'{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[]}'


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@asynccontextmanager
async def listening(serve: Any, host: str = "127.0.0.1", port: int = 0, **options: Any) -> AsyncIterator[int]:
    async def safely(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(safely, host, port, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def lists(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = await head_of(reader)
        writer.write(answer(b'{"type":"BOOKMARK","object":{}}\n' if b"watch=true" in head else LIST))


@asynccontextmanager
async def hole(address: str, port: int) -> AsyncIterator[None]:
    """An address that swallows what comes: a listener whose backlog is full."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex((address, port))
    await asyncio.sleep(0.2)
    try:
        yield
    finally:
        for sock in (listener, *fillers):
            sock.close()


def test_a_dead_address_of_several_is_passed_by_for_requests_and_watches() -> None:
    async def main() -> None:
        asked: list[tuple[str, ...]] = []
        async with listening(lists) as port, hole("127.0.0.2", port):

            async def addresses(host: str, at: int, **_: Any) -> list[Any]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

            loop = asyncio.get_running_loop()
            loop.getaddrinfo = addresses  # type: ignore[method-assign]
            connect = loop.sock_connect

            async def recorded(sock: socket.socket, address: Any) -> None:
                asked.append(address)
                await connect(sock, address)

            loop.sock_connect = recorded  # type: ignore[method-assign]
            async with Client(ClientConfig(f"http://api.example:{port}")) as client, asyncio.timeout(patience.seconds(10)):
                await client.list(PODS)
                assert asked == [("127.0.0.2", port), ("127.0.0.1", port)]
                asked.clear()
                watches = [[line async for line in client.watch(PODS, resource_version="1")] for _ in range(1)]
                await asyncio.gather(*(client.list(PODS) for _ in range(3)))
                assert watches == [[b'{"type":"BOOKMARK","object":{}}']]
                assert set(asked) == {("127.0.0.1", port)}  # the one that answered goes first

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("fails", ["create_connection", "sock_connect"])
def test_whatever_fails_at_one_of_several_addresses_is_an_ordinary_failure(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """The other side has reset the connection before it is asked for its name; uvloop refuses a socket."""
    monkeypatch.setattr("koord.kube.transport.ATTEMPTS", 1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return  # which closes

    async def main() -> None:
        async with listening(serve) as port:

            async def addresses(host: str, at: int, **_: Any) -> list[Any]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.1", "127.0.0.2")]

            loop = asyncio.get_running_loop()
            loop.getaddrinfo = addresses  # type: ignore[method-assign]
            connect = loop.create_connection

            async def reset(*given: Any, **named: Any) -> Any:
                _, protocol = await connect(*given, **named)
                return types.SimpleNamespace(get_extra_info={"peername": None}.get), protocol

            async def refused(*_: Any) -> None:
                raise RuntimeError("the descriptor is in use")

            setattr(loop, fails, {"create_connection": reset, "sock_connect": refused}[fails])
            async with Client(ClientConfig(f"http://api.example:{port}")) as client:
                with pytest.raises(errors.Unreachable):
                    await client.list(PODS)

    asyncio.run(main())


def test_one_living_address_of_a_name_is_enough() -> None:
    """As every role runs, with the machine's own names: localhost is ::1 and 127.0.0.1 where the machine has both."""

    async def main() -> None:
        async with listening(lists) as port, Client(ClientConfig(f"http://localhost:{port}")) as client:
            assert (await client.list(PODS)).resource_version == "5"

    asyncio.run(main())


class Proxy:
    """An HTTP proxy for CONNECT; `heads` is what it was asked."""

    def __init__(self, refusal: bytes = b"") -> None:
        self.heads: list[bytes] = []
        self._refusal = refusal

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        self.heads.append(head)
        if self._refusal:
            writer.write(self._refusal)
            return
        target = head.split()[1].decode()
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\nConnection: close\r\n\r\n")
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()


def test_requests_and_watches_pass_a_proxy_by_a_tunnel(tmp_path: Path) -> None:
    made = certificates.ensure(tmp_path / "certs", "127.0.0.1")

    async def main() -> None:
        proxy = Proxy()
        async with listening(lists, ssl=made.context()) as port, listening(proxy.serve) as at:
            config = ClientConfig(f"https://127.0.0.1:{port}", ca=Pem(made.ca), proxy=f"http://me:s%40fe@127.0.0.1:{at}")
            async with Client(config) as client:
                await client.list(PODS)
                assert [line async for line in client.watch(PODS, resource_version="1")]
        assert len(proxy.heads) == 1  # one tunnel carried both
        assert proxy.heads[0].startswith(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n".encode())
        assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:s@fe") in proxy.heads[0]

    asyncio.run(main())


def test_a_proxy_that_is_reached_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificates.ensure(tmp_path / "certs", "127.0.0.1")
    (tmp_path / "ca.pem").write_bytes(made.ca)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))

    async def main() -> None:
        proxy = Proxy()
        async with listening(lists, ssl=made.context()) as port, listening(proxy.serve, ssl=made.context()) as at:
            config = ClientConfig(f"https://127.0.0.1:{port}", ca=Pem(made.ca), proxy=f"https://127.0.0.1:{at}")
            async with Client(config) as client:
                assert (await client.list(PODS)).resource_version == "5"
        assert len(proxy.heads) == 1

    asyncio.run(main())


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord.kube.transport.ATTEMPTS", 1)

    async def main() -> None:
        proxy = Proxy(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        async with listening(proxy.serve) as at:
            async with Client(ClientConfig("https://10.0.0.1:6443", proxy=f"http://127.0.0.1:{at}")) as client:
                with pytest.raises(errors.Unreachable, match=f"proxy 127.0.0.1:{at}: status 407"):
                    await client.list(PODS)

    asyncio.run(main())


def test_a_consumer_that_is_slow_slows_the_server_and_loses_nothing(tmp_path: Path) -> None:
    made = certificates.ensure(tmp_path / "certs", "127.0.0.1")
    lines, line = 20000, b"x" * 1000 + b"\n"
    sent = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(lines):
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))
            await writer.drain()
            sent[0] += 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def main() -> None:
        async with listening(serve, ssl=made.context()) as port:
            async with Client(ClientConfig(f"https://127.0.0.1:{port}", ca=Pem(made.ca))) as client:
                got = 0
                async for batch in client.watch_batches(PODS):
                    if not got:
                        before = -1
                        while before != sent[0]:  # until the server gets no further
                            before = sent[0]
                            await asyncio.sleep(0.3)
                        assert before < lines
                    got += len(batch)
                assert got == lines

    assert lines * len(line) / 2 > connection.AHEAD
    asyncio.run(main())


@pytest.mark.parametrize(
    ("end", "says"),
    [(b"", "in the middle of its answer"), (b"zz\r\n", "a chunk's size is")],
)
def test_a_stream_that_breaks_off_is_an_error(end: bytes, says: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n" + end)

    async def main() -> None:
        async with listening(serve) as port, Client(ClientConfig(f"http://127.0.0.1:{port}")) as client:
            lines = client.watch(PODS)
            assert await anext(lines) == b"{}"
            with pytest.raises(errors.Unreachable, match=says):
                await anext(lines)

    asyncio.run(main())


def test_a_stream_that_has_ended_leaves_its_connection_and_one_that_was_closed_meanwhile_is_no_failure() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await lists(reader, writer)

    async def main() -> None:
        async with listening(serve) as port, Client(ClientConfig(f"http://127.0.0.1:{port}")) as client:
            for _ in range(3):
                assert [line async for line in client.watch(PODS)]
            assert len(connections) == 1
            connections[0].transport.abort()
            assert [line async for line in client.watch(PODS)]
            assert len(connections) == 2

    asyncio.run(main())


def test_the_way_to_an_api_server_needs_no_general_http_client() -> None:
    import subprocess
    import sys

    code = "import sys; import koord.kube.informers, koord.kube.leases, koord.kube.events; print('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_tls_is_checked_by_the_name_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord.kube.transport.ATTEMPTS", 1)
    made = certificates.ensure(tmp_path / "certs", "127.0.0.1")

    async def main() -> None:
        async with listening(lists, ssl=made.context()) as port:
            config = ClientConfig(f"https://127.0.0.1:{port}", ca=Pem(made.ca), tls_server_name="other.example")
            async with Client(config) as client:
                with pytest.raises(errors.Unreachable, match="certificate verify failed"):
                    await client.list(PODS)
                with pytest.raises(errors.Unreachable, match="certificate verify failed"):
                    [line async for line in client.watch(PODS)]

    assert isinstance(made.context(), ssl.SSLContext)
    asyncio.run(main())
