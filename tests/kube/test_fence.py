"""Nothing of a write leaves a process that does not lead any more: at the first try, at every retry, however the bytes go out."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from koord import seams
from koord.api.kinds import CONFIGMAPS, PODS
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.config import ClientConfig, Pem
from koord.kube.leadership import WRITE_AGE, Identity, Leadership, own_identity
from koord.process import certificates


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Front(ThreadingHTTPServer):
    """Answers leases as an API server does and every other write 429 at first. `seen` lists (time, method, path)."""

    daemon_threads = True

    def __init__(self) -> None:
        front = self
        self.seen: list[tuple[float, str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                front.seen.append((time.monotonic(), self.command, self.path))
                lease = "/leases" in self.path
                status, content = (200, body or b"{}") if lease else (429, b'{"kind":"Status","code":429}')
                if lease and self.command == "GET":
                    status, content = 404, b'{"kind":"Status","code":404,"reason":"NotFound"}'
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if status == 429:
                    self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A process of the test that was killed is no news."""

    def writes(self, since: float = 0.0) -> list[str]:
        """Method and last part of the path of each write but the lease's."""
        return [
            f"{method} {path.partition('?')[0].rpartition('/')[2]}"
            for at, method, path in self.seen
            if at > since and "/leases" not in path and method != "GET"
        ]


@pytest.fixture
def front() -> Iterator[Front]:
    server = Front()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


LEADER = """
import asyncio, sys
from koord.api.kinds import PODS
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.leases import LeaderElector, Leadership, Timing

async def main(url, name):
    base = Client(ClientConfig(url))
    leadership = Leadership(3.0)
    async def write(client):
        await asyncio.gather(
            client.create(PODS, {"metadata": {"name": name}}, "posts-" + name),
            client.patch(PODS, name, {}, "default"),
            client.delete(PODS, name, "default"),
            return_exceptions=True,
        )
    async def lead(leadership):
        print("leads", flush=True)
        await write(base.fenced(leadership))
        await asyncio.sleep(600)
    if name == "open":
        print("leads", flush=True)
        while True:
            await write(base)
    await LeaderElector(base, "default", name, timing=Timing(4.0, 3.0, 1.0), leadership=leadership).run(lead)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_process_that_was_stopped_past_its_lease_repeats_no_write(front: Front) -> None:
    """Beside it runs one that needs no lease and writes all the time: so the test would see them."""
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(LEADER), front.url, kind], stdout=subprocess.PIPE, text=True)
        for kind in ("fenced", "open")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "leads\n"
        expected = {"POST pods", "PATCH fenced", "DELETE fenced", "PATCH open", "DELETE open"}
        while not expected <= set(front.writes()):
            time.sleep(0.01)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(4.5)  # longer than the lease
        thawed = time.monotonic()
        for process in processes:
            process.send_signal(signal.SIGCONT)
        while not {"PATCH open", "DELETE open"} <= set(front.writes(thawed)):
            time.sleep(0.01)
        time.sleep(1.0)
        paths = [path for at, method, path in front.seen if at > thawed and method in ("POST", "PATCH", "DELETE") and "/leases" not in path]
        assert [path for path in paths if "fenced" in path] == []
        assert any("posts-open" in path for path in paths)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def led(clock: Clock, seconds: float = 10.0) -> Leadership:
    leadership = Leadership(seconds, clock)
    leadership.extend(clock.now)
    return leadership


def test_reads_pass_and_writes_do_not(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            clock = Clock()
            leadership = led(clock)
            leader = client.fenced(leadership)
            await leader.create(PODS, {"metadata": {"name": "x"}}, "default")
            clock.now += 10.0
            for write in (
                leader.create(PODS, {"metadata": {"name": "x"}}, "default"),
                leader.replace(PODS, {"metadata": {"name": "x"}}, "default"),
                leader.patch(PODS, "x", {}, "default"),
                leader.delete(PODS, "x", "default"),
                leader.bind("default", "x", "n1"),
                leader.evict("default", "x"),
                leader.raw("POST", "/api/v1/namespaces/default/pods", {}),
            ):
                with pytest.raises(errors.NotLeading, match="the lease is not held"):
                    await write
            assert (await leader.list(PODS)).items == []
            await client.delete(PODS, "x", "default")  # the client that it was made of has no fence
            assert [request.method for request in server.requests] == ["POST", "GET", "DELETE"]

    asyncio.run(main())


def test_no_retry_is_waited_for_that_would_come_too_late(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            from tests.kube.conftest import status

            server.script = lambda request: status(429, "TooManyRequests", "later", **{"Retry-After": "20"})
            clock = Clock()
            with pytest.raises(errors.TooManyRequests) as caught:
                await client.fenced(led(clock)).create(PODS, {"metadata": {"name": "x"}}, "default")
            assert caught.value.retry_after == 20.0
            assert len(server.requests) == 1

    asyncio.run(main())


def test_the_lease_runs_out_while_the_request_waits_for_its_turn(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client), Client(client.config, qps=10, burst=1) as paced:
            clock = Clock()
            leader = paced.fenced(led(clock))
            await paced.raw("GET", "/api/v1/pods")
            waiting = asyncio.create_task(leader.create(PODS, {"metadata": {"name": "x"}}, "default"))
            await asyncio.sleep(0)
            clock.now += 10.0
            with pytest.raises(errors.NotLeading):
                await waiting
            assert [request.method for request in server.requests] == ["GET"]

    asyncio.run(main())


def test_what_was_decided_long_ago_is_not_sent(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            from tests.kube.conftest import status

            clock = Clock()
            monkeypatch.setattr(seams, "boot_time", clock)
            leader = client.fenced(led(clock, 1000.0))
            later = leader.within(5.0)
            await later.create(PODS, {"metadata": {"name": "x"}}, "default")
            clock.now += 5.0
            for write in (later.create(PODS, {"metadata": {"name": "y"}}, "default"), later.delete(PODS, "x", "default")):
                with pytest.raises(errors.Unreachable, match="not sent"):
                    await write
            assert await later.get(PODS, "x", "default")  # what is read is as it is now
            assert [request.method for request in server.requests] == ["POST", "GET"]

            def busy(request: Any) -> Any:
                clock.now += WRITE_AGE / 2
                return status(503, "ServiceUnavailable", "later")

            server.requests.clear()
            server.script = busy
            with pytest.raises(errors.ApiError):
                await leader.patch(PODS, "x", {}, "default")  # the client's own tries are no exception
            assert len(server.requests) == 2
            clock.now += 1000.0
            with pytest.raises(errors.NotLeading):
                await leader.within(5.0).delete(PODS, "x", "default")

    asyncio.run(main())


class Brief:
    """A fence that is held for one try."""

    def __init__(self) -> None:
        self._tries = 0
        self.remaining = 100.0

    @property
    def held(self) -> bool:
        self._tries += 1
        return self._tries <= 2  # before the write, and in its step


def test_a_write_whose_answer_was_lost_is_not_called_unsent_when_the_lease_is_lost_too(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.script = lambda request: ConnectionError("cut")
            with pytest.raises(errors.Unreachable):
                await client.fenced(Brief()).patch(PODS, "x", {}, "default")
            assert len(server.requests) == 1

    asyncio.run(main())


@contextmanager
def slow_server(context: ssl.SSLContext | None) -> Iterator[tuple[str, threading.Event, threading.Event, list[bytes]]]:
    """A server on a thread that reads a request's first bytes, tells, and reads the rest only when it is let."""
    listener = socket.create_server(("127.0.0.1", 0))
    first, go, got = threading.Event(), threading.Event(), [b"", b""]

    def serve() -> None:
        raw, _ = listener.accept()
        raw.settimeout(20)
        peer = context.wrap_socket(raw, server_side=True) if context else raw
        with peer:
            while b"warm" not in got[0]:
                got[0] += peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            got[1] = peer.recv(100)
            first.set()
            go.wait(20)
            while data := peer.recv(65536):
                got[1] += data

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{listener.getsockname()[1]}", first, go, got
    finally:
        go.set()
        thread.join(20)
        listener.close()


@pytest.fixture(params=["plain", "tls"])
def secured(request: Any, tmp_path: Path) -> tuple[ssl.SSLContext | None, Pem | None]:
    """The server's context and the client's authority."""
    if request.param == "plain":
        return None, None
    made = certificates.ensure(tmp_path / "certs", "127.0.0.1")
    return made.context(), Pem(made.ca)


def test_bytes_leave_in_the_step_that_asked(secured: tuple[ssl.SSLContext | None, Pem | None]) -> None:
    """The loop stands still right after the write: what it wrote is with the server all the same, and not left for later."""

    async def main(url: str, arrived: threading.Event) -> None:
        async with Client(ClientConfig(url, ca=secured[1])) as client:
            await client.raw("GET", "/warm")  # a connection that waits
            leader = client.fenced(led(Clock()))
            writing = asyncio.create_task(leader.create(CONFIGMAPS, {"metadata": {"name": "x"}}, "default"))
            stood = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(lambda: stood.set_result(arrived.wait(10)))
            assert await stood
            writing.cancel()
            await asyncio.wait([writing])

    with slow_server(secured[0]) as (url, arrived, _, _):
        asyncio.run(main(url, arrived))


def test_a_long_write_is_cut_off_when_the_lease_ends_on_its_way(secured: tuple[ssl.SSLContext | None, Pem | None]) -> None:
    async def main(url: str, arrived: threading.Event, go: threading.Event) -> None:
        async with Client(ClientConfig(url, ca=secured[1])) as client:
            await client.raw("GET", "/warm")
            clock = Clock()
            leader = client.fenced(led(clock))
            writing = asyncio.create_task(leader.raw("POST", "/big", b"x" * LONG))
            await asyncio.to_thread(arrived.wait, 10)
            clock.now += 10.0
            go.set()
            with pytest.raises(errors.NotLeading):
                await writing

    with slow_server(secured[0]) as (url, arrived, go, got):
        asyncio.run(main(url, arrived, go))
    assert 0 < len(got[1]) < LONG


LONG = 64 * 2**20  # more than the kernel takes in


def test_events_are_told_after_an_orderly_end_and_not_after_a_loss() -> None:
    clock = Clock()
    leadership = Leadership(10.0, clock)
    reports = leadership.reports
    assert reports.held
    leadership.extend(clock.now)
    assert reports.held
    assert reports.remaining == 10.0
    leadership.end(released=True)
    assert not leadership.held
    assert reports.held
    for lost in (led(clock), led(clock)):
        clock.now += 10.0
        assert not lost.reports.held
        lost.end(released=True)  # too late to be orderly
        assert not lost.reports.held


def test_who_succeeds_whom() -> None:
    """A holder is dead for certain only if it was a container of the very pod we are in."""
    own = own_identity("koord-0", "uid-1")
    assert own.name.startswith("koord-0_uid-1_")
    assert own.succeeds("koord-0_uid-1_cafe")
    assert not own.succeeds(own.name)
    assert not own.succeeds("koord-0_uid-2_cafe")  # a pod of the same name on another node
    assert not own.succeeds("koord-0")
    assert not own.succeeds("koord-01_uid-1_cafe")
    bare = own_identity("", "")
    assert not bare.succeeds(bare.name.split("_")[0] + "_another")
    assert not Identity("a").succeeds("a1")
