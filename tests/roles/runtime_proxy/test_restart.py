"""The end of a proxy and the begin of the next one: calls under way, the listening socket, and whose path it is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from roles.runtime_proxy import sockets
from tests.roles.runtime_proxy.support import RUNTIME, Engine, Handlers, proxied, until
from tests.support.processes import KOORD

IMAGES = "/runtime.v1.ImageService/"
LOCAL = (("grpc.use_local_subchannel_pool", 1),)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kp-") as name:  # short: a socket's path is limited to 107 bytes
        yield Path(name)


class Puller(Engine):
    """Takes `seconds` for each PullImage, or the proxy's time; counts how they ended."""

    seconds = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.pulls: list[str] = []

    def handler(self, path: str) -> Any:
        async def pull(raw: bytes, context: Any) -> bytes:
            self.pulls.append("begun")
            try:
                await asyncio.sleep(self.seconds)
            except asyncio.CancelledError:
                self.pulls.append("cancelled")
                raise
            self.pulls.append("done")
            return b"image"

        async def events(raw: bytes, context: Any) -> AsyncIterator[bytes]:
            yield b"event"
            await asyncio.sleep(600)

        if path.endswith("PullImage"):
            return grpc.unary_unary_rpc_method_handler(pull)
        if path.endswith("GetContainerEvents"):
            return grpc.unary_stream_rpc_method_handler(events)
        return super().handler(path)


@contextlib.asynccontextmanager
async def engine_at(path: Path, engine: Engine, *options: tuple[str, int]) -> AsyncIterator[Engine]:
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Handlers(engine.handler),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield engine
    finally:
        await server.stop(0)


def start(directory: Path, *flags: str, listening: socket.socket | None = None) -> subprocess.Popen[bytes]:
    """The proxy, with a socket handed over as systemd does it."""
    words = [
        KOORD,
        "runtime-proxy",
        f"--koord-runtimeproxy-endpoint={directory}/p.sock",
        f"--remote-runtime-service-endpoint={directory}/e.sock",
        f"--runtime-hooks-config-path={directory}/hooks.d",
        *flags,
    ]
    with open(directory / "log", "ab") as log:
        if listening is None:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        number = listening.fileno()
        code = f"import os, sys; os.dup2({number}, 3)\n"
        code += "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); os.execv(sys.argv[1], sys.argv[1:])"
        handed = [sys.executable, "-c", code, *words]
        return subprocess.Popen(handed, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(number,))


async def ended(child: subprocess.Popen[bytes], limit: float = 20) -> int:
    return await asyncio.to_thread(child.wait, limit)


@pytest.mark.feature("RP-CLI-01")
@pytest.mark.feature("RP-OPS-01")
def test_a_restart_under_load_fails_no_call(directory: Path) -> None:
    """As `systemctl restart` does it, three times: the socket stays, kubelet's calls wait in it, a pull goes on to its end."""

    async def scenario() -> None:
        failures: list[str] = []
        calls = 0
        stop = asyncio.Event()

        async def load(number: int) -> None:
            nonlocal calls
            async with grpc.aio.insecure_channel(f"unix:{directory}/p.sock", options=LOCAL) as channel:
                while not stop.is_set():
                    try:
                        method = ("Version", "Status", "RunPodSandbox")[number % 3]
                        await channel.unary_unary(RUNTIME + method)(b"", timeout=30)
                        calls += 1
                    except grpc.aio.AioRpcError as error:
                        failures.append(f"{error.code().name}: {error.details()}")
                    await asyncio.sleep(0.005)

        async def watch() -> None:
            async with grpc.aio.insecure_channel(f"unix:{directory}/p.sock", options=LOCAL) as channel:
                while not stop.is_set():
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        async for event in channel.unary_stream(RUNTIME + "GetContainerEvents")(b""):
                            assert event == b"event"
                            opened.append(None)

        opened: list[None] = []
        puller = Puller()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(directory / "p.sock"))
            listening.listen(1024)
            async with engine_at(directory / "e.sock", puller):
                child = start(directory, listening=listening)
                tasks = [asyncio.create_task(load(n)) for n in range(6)] + [asyncio.create_task(watch())]
                try:
                    async with grpc.aio.insecure_channel(f"unix:{directory}/p.sock", options=LOCAL) as channel:
                        for round in range(3):
                            before = calls
                            await until(lambda before=before, round=round: calls > before + 60 and len(opened) > round, limit=30)
                            pull = asyncio.ensure_future(channel.unary_unary(IMAGES + "PullImage")(b"", timeout=30))
                            await until(lambda round=round: puller.pulls.count("begun") == round + 1)
                            child.send_signal(signal.SIGTERM)
                            assert await ended(child) == 0
                            assert await pull == b"image"
                            child = start(directory, listening=listening)
                        before = calls
                        await until(lambda: calls > before + 60 and len(opened) > 3, limit=30)
                finally:
                    stop.set()
                    for task in tasks[:-1]:
                        await task
                    tasks[-1].cancel()
                    child.terminate()
                    await ended(child)
        assert failures == []
        assert puller.pulls == ["begun", "done"] * 3
        assert (directory / "p.sock").exists()  # it is the service manager's

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
def test_streams_end_with_a_status_and_late_calls_with_unavailable(directory: Path) -> None:
    async def scenario() -> None:
        puller = Puller()
        puller.seconds = 600
        async with (
            engine_at(directory / "e.sock", puller),
            grpc.aio.insecure_channel(f"unix:{directory}/p.sock", options=LOCAL) as channel,
        ):
            child = start(directory, "--drain-timeout=1s")
            stream = channel.unary_stream(RUNTIME + "GetContainerEvents")(b"", wait_for_ready=True)
            assert await stream.read() == b"event"
            pull = asyncio.ensure_future(channel.unary_unary(IMAGES + "PullImage")(b"", timeout=60))
            await until(lambda: puller.pulls)
            child.send_signal(signal.SIGTERM)
            for call in (pull, stream.read()):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert (caught.value.code(), "connect again" in caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, True)
            assert await ended(child) == 0
            await until(lambda: puller.pulls == ["begun", "cancelled"])

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
def test_others_are_served_while_a_call_comes_to_its_end(directory: Path) -> None:
    """Short ones, and a long one that begins meanwhile."""

    async def scenario() -> None:
        puller = Puller()
        puller.seconds = 2.5
        async with engine_at(directory / "e.sock", puller), grpc.aio.insecure_channel(f"unix:{directory}/p.sock") as channel:
            child = start(directory)
            await channel.unary_unary(RUNTIME + "Version")(b"", wait_for_ready=True, timeout=20)
            pulls = [asyncio.ensure_future(channel.unary_unary(IMAGES + "PullImage")(b"", timeout=60))]
            await until(lambda: len(puller.pulls) == 1)
            child.send_signal(signal.SIGTERM)
            async with grpc.aio.insecure_channel(f"unix:{directory}/p.sock", options=LOCAL) as other:
                for _ in range(5):
                    await other.unary_unary(RUNTIME + "Version")(b"", timeout=10)
                    await asyncio.sleep(0.1)
                pulls.append(asyncio.ensure_future(other.unary_unary(IMAGES + "PullImage")(b"", timeout=60)))
                assert await asyncio.gather(*pulls) == [b"image", b"image"]
            assert await ended(child) == 0

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
def test_of_two_proxies_the_second_ends_and_the_first_keeps_its_socket(directory: Path) -> None:
    """Both begin while the engine is away, so that nobody listens yet."""

    async def scenario() -> None:
        first = start(directory)
        await until((directory / ".p.sock.lock").exists)
        second = start(directory)
        assert await ended(second) == 1
        assert "another runtime proxy" in (directory / "log").read_text()
        async with engine_at(directory / "e.sock", Engine()), grpc.aio.insecure_channel(f"unix:{directory}/p.sock") as channel:
            await channel.unary_unary(RUNTIME + "Version")(b"", wait_for_ready=True, timeout=20)
            assert await ended(start(directory)) == 1
            assert (directory / "p.sock").exists()
            first.terminate()
            assert await ended(first) == 0
            assert not (directory / "p.sock").exists()

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
def test_a_path_that_leads_to_another_socket_is_left_alone() -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as other:
            async with proxied() as stack:
                path = stack.directory / "proxy.sock"
                path.unlink()
                other.bind(str(path))
                kept = stack.directory / "kept.sock"
                os.link(path, kept)
                inode = kept.stat().st_ino
                found: list[int] = []
                end = stack.app.backend.close

                async def close(seconds: float) -> None:
                    found.append(path.stat().st_ino)  # the listener was taken away before
                    await end(seconds)

                stack.app.backend.close = close
            assert found == [inode]

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
@pytest.mark.parametrize("how", ["removed", "a dead socket"])
def test_a_socket_that_was_taken_away_is_made_again_and_calls_under_way_go_on(how: str) -> None:
    async def scenario() -> None:
        puller = Puller()
        puller.seconds = 600
        with socket.socket(socket.AF_UNIX) as other:
            async with proxied(puller, drain=0.0) as stack:
                path = stack.directory / "proxy.sock"
                stream = stack.channel.unary_stream(RUNTIME + "GetContainerEvents")(b"")
                assert await stream.read() == b"event"
                before = path.stat().st_ino
                path.rename(stack.directory / "aside.sock")
                if how != "removed":
                    other.bind(str(path))
                    before = path.stat().st_ino
                await until(lambda: path.is_socket() and path.stat().st_ino != before)
                assert path.stat().st_mode & 0o777 == 0o600
                async with grpc.aio.insecure_channel(f"unix:{path}", options=LOCAL) as channel:
                    await channel.unary_unary(RUNTIME + "Version")(b"", wait_for_ready=True, timeout=20)
                assert not stream.done()
        assert not path.exists()

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
def test_a_socket_is_made_again_once_there_are_descriptors_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scarce = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
    make = sockets.Own.open

    def opened(own: sockets.Own) -> socket.socket:
        if scarce:
            raise scarce.pop()
        return make(own)

    async def scenario() -> None:
        monkeypatch.setattr("roles.runtime_proxy.app._LOOK", 0.05)
        async with proxied() as stack:
            monkeypatch.setattr(sockets.Own, "open", opened)
            path = stack.directory / "proxy.sock"
            path.unlink()
            await until(path.is_socket)
            assert not scarce

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
def test_a_socket_that_others_listen_on_by_now_is_theirs(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with proxied() as stack:
            path = stack.directory / "proxy.sock"
            path.unlink()
            server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
            inode = path.stat().st_ino
            await until(lambda: "another process is listening" in caplog.text)
            assert path.stat().st_ino == inode
            server.close()

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"LISTEN_PID": "{pid}", "LISTEN_FDS": "2"}, "2 sockets were handed over"),
        ({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, ""),
        ({"LISTEN_PID": "{pid}", "LISTEN_FDS": "x"}, ""),
    ],
)
def test_what_the_service_manager_says_is_checked(directory: Path, environ: dict[str, str], said: str) -> None:
    told = {key: value.format(pid=os.getpid()) for key, value in environ.items()}
    if said:
        with pytest.raises(sockets.SocketError, match=said):
            sockets.listener(directory / "p.sock", told)
    else:  # it was meant for another process
        found = sockets.listener(directory / "p.sock", told)
        assert isinstance(found, sockets.Own)
        found.close()
    assert not told


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.parametrize(("method", "limit"), [("ListImages", 64), ("CreateContainer", 128)])
def test_memory_is_bounded_in_bytes(directory: Path, method: str, limit: int) -> None:
    """Thirty lists of 12 MiB at once, and thirty requests with hooks of 1.5 MiB; `limit` in MiB."""

    def memory(child: subprocess.Popen[bytes], which: str) -> int:
        text = Path(f"/proc/{child.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(which))

    async def scenario() -> None:
        big = b"\x0a\x80\x80\x80\x06" + bytes(12 << 20)
        request = b"" if method == "ListImages" else b"\xba\x3e\x80\x80\x60" + bytes(3 << 19)  # field 999
        options = (*LOCAL, ("grpc.max_receive_message_length", -1))
        async with (
            engine_at(
                directory / "e.sock", Engine(answers={IMAGES + "ListImages": big}), ("grpc.max_receive_message_length", -1)
            ) as engine,
            grpc.aio.insecure_channel(f"unix:{directory}/p.sock", options=options) as channel,
        ):
            child = start(directory)
            try:
                await channel.unary_unary(RUNTIME + "Version")(b"", wait_for_ready=True, timeout=30)
                before = memory(child, "VmRSS")
                assert before < 48 << 10, "45 MiB at rest; some for what this machine's libraries differ"
                send = channel.unary_unary((IMAGES if method == "ListImages" else RUNTIME) + method)
                answers = await asyncio.gather(*(send(request, timeout=100) for _ in range(30)))
                assert all(answer == big for answer in answers) if method == "ListImages" else engine.of(method) == [request] * 30
                assert memory(child, "VmHWM") - before < limit << 10  # KiB
            finally:
                child.terminate()
                await ended(child)

    asyncio.run(scenario())
