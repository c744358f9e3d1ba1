"""The splice between a real gRPC client and a real gRPC server: bytes, big messages, compression, slow readers, ends in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from tests.roles.runtime_proxy.support import RUNTIME, Engine, HookServer, create, proxied, run_pod, until

IMAGES = "/runtime.v1.ImageService/"
WIDE = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


class Recorder:
    """A socket before another one. Keeps what passed, by connection, in each direction."""

    def __init__(self) -> None:
        self.up: list[bytearray] = []
        self.down: list[bytearray] = []
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def at(self, path: Path, target: Path) -> AsyncIterator[Recorder]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_unix_connection(target)
            kept = bytearray(), bytearray()
            self.up.append(kept[0])
            self.down.append(kept[1])
            ways = [self._copy(reader, back, kept[0]), self._copy(there, writer, kept[1])]
            self._tasks += [asyncio.create_task(way) for way in ways]

        server = await asyncio.start_unix_server(connected, path)
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
        try:
            while data := await reader.read(65536):
                kept += data
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


class Talker(Engine):
    """Methods of every kind: the request's text says what to do."""

    def handler(self, path: str) -> Any:
        method = path.rpartition("/")[2]

        async def unary(raw: bytes, context: Any) -> bytes:
            if method == "Slow":
                await asyncio.sleep(5)
            if method == "Refuse":
                context.set_trailing_metadata((("details-bin", bytes(range(256))),))
                await context.abort(grpc.StatusCode(grpc.StatusCode.NOT_FOUND), raw.decode("latin-1"))
            return raw * 3

        async def many(raw: bytes, context: Any) -> AsyncIterator[bytes]:
            for n in range(10):
                yield raw + bytes([n])

        async def chat(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for message in requests:
                yield message[::-1]

        if method == "None":
            return None
        if method == "Many":
            return grpc.unary_stream_rpc_method_handler(many)
        if method == "Chat":
            return grpc.stream_stream_rpc_method_handler(chat)
        if method in ("Slow", "Refuse", "Status", "Echo"):
            return grpc.unary_unary_rpc_method_handler(unary)
        return super().handler(path)


ROUND = 200
#: Calls in all; a hundred thousand take a quarter of an hour.
CALLS = int(os.environ.get("KOORD_SPLICE_CALLS", "600"))


def lengths(kept: list[bytearray]) -> list[int]:
    return [len(part) for part in kept]


async def random_call(channel: grpc.aio.Channel, rng: random.Random, kinds: Counter[str]) -> None:
    """A call of any sort: unary, streams that are broken off, errors, deadlines that pass, services that do not exist."""
    kind = rng.choice(("Status", "Echo", "Refuse", "Many", "Chat", "None", "Slow"))
    service = rng.choice((RUNTIME, IMAGES, "/a.Future/"))
    size = 900 if kind == "Refuse" else rng.choices((0, 10, 3000, 200_000), (30, 40, 25, 5))[0]
    raw = rng.randbytes(size)
    metadata = tuple((f"k{rng.randrange(5)}", "v" * rng.randrange(60)) for _ in range(rng.randrange(4)))
    try:
        if kind == "Many":
            async for _ in channel.unary_stream(service + kind)(raw, metadata=metadata):
                if rng.random() < 0.03:
                    break
        elif kind == "Chat":
            call = channel.stream_stream(service + kind)(metadata=metadata)
            for _ in range(rng.randrange(4)):
                await call.write(raw)
                await call.read()
            await call.done_writing()
        else:
            timeout = 0.05 if kind == "Slow" else rng.choice((None, 5, 20.5))
            await channel.unary_unary(service + kind)(raw, metadata=metadata, timeout=timeout)
        kinds[f"{kind} OK"] += 1
    except grpc.aio.AioRpcError as error:
        kinds[f"{kind} {error.code().name}"] += 1


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.timeout(120 + CALLS // 20)
def test_every_byte_between_client_and_engine_is_the_other_ones() -> None:
    """Rounds of random calls, twenty at once, each round on a connection of its own; KOORD_SPLICE_CALLS says how many in all."""

    async def scenario() -> None:
        kinds: Counter[str] = Counter()
        passed = 0
        before, behind = Recorder(), Recorder()
        async with proxied(Talker(), before_engine=behind.at) as stack:
            own = len(behind.up)  # the proxy's own questions
            async with before.at(stack.directory / "before.sock", stack.directory / "proxy.sock"):
                for number in range(max(CALLS // ROUND, 1)):
                    rng = random.Random(number)
                    channel = grpc.aio.insecure_channel(f"unix:{stack.directory}/before.sock", options=WIDE)
                    for _ in range(ROUND // 20):
                        await asyncio.gather(*(random_call(channel, rng, kinds) for _ in range(20)))
                    await channel.close()
                    await until(lambda: not any(c.streams for c in stack.app.backend._server._connections), limit=60)
                    await until(
                        lambda: lengths(before.up) == lengths(behind.up[own:]) and lengths(before.down) == lengths(behind.down[own:]),
                        limit=60,
                    )
                    assert len(before.up) == len(behind.up) - own == 1
                    assert len(before.up[0]) > 20_000
                    assert before.up == behind.up[own:], f"round {number}"
                    assert before.down == behind.down[own:], f"round {number}"
                    passed += len(before.up[0]) + len(before.down[0])
                    for kept in (before.up, before.down):
                        kept.clear()
                    del behind.up[own:], behind.down[own:]
        assert kinds.total() == max(CALLS // ROUND, 1) * ROUND
        expected = ("Status OK", "Echo OK", "Many OK", "Chat OK", "Refuse NOT_FOUND", "None UNIMPLEMENTED", "Slow DEADLINE_EXCEEDED")
        assert set(expected) <= set(kinds), kinds
        print(f"{kinds.total()} calls, {passed >> 20} MiB: {dict(sorted(kinds.items()))}")

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("size", [10, 70_000, 3_000_000])
def test_requests_with_hooks_of_any_size_and_compression(size: int, compression: Any) -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse(container_annotations={"n": "1"})
        server = HookServer(answers={"PreCreateContainerHook": answer})
        async with proxied() as stack, stack.hook_server("h", server, ["PreCreateContainer"]):
            await stack.call("RunPodSandbox", run_pod())
            async with grpc.aio.insecure_channel(f"unix:{stack.directory}/proxy.sock", options=WIDE, compression=compression) as channel:
                requests = []
                for n in range(4):
                    request = create(name=f"c{n}")
                    request.config.envs.add(key="BIG", value=random.Random(n).randbytes(size // 2).hex().encode())
                    requests.append(request)
                send = channel.unary_unary(RUNTIME + "CreateContainer")
                await asyncio.gather(*(send(request.SerializeToString(), timeout=60) for request in requests))
                sent = [cri.CreateContainerRequest.FromString(raw) for raw in stack.engine.of("CreateContainer")]
                for request in requests:
                    request.config.annotations["n"] = "1"
                assert sorted(s.SerializeToString(deterministic=True) for s in sent) == sorted(
                    r.SerializeToString(deterministic=True) for r in requests
                )
                assert set(stack.app.store.containers) == {"ct-c0", "ct-c1", "ct-c2", "ct-c3"}

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
def test_a_request_with_hooks_that_is_too_long_is_refused() -> None:
    async def scenario() -> None:
        async with proxied() as stack, grpc.aio.insecure_channel(f"unix:{stack.directory}/proxy.sock", options=WIDE) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(RUNTIME + "CreateContainer")(bytes(17 << 20), timeout=20)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "at most 16777216" in caught.value.details()
            assert await channel.unary_unary(RUNTIME + "Version")(b"")

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
def test_no_spelling_of_a_method_leads_past_its_hook() -> None:
    """Some engines' servers take a path without its first slash, too."""

    async def scenario() -> None:
        async with proxied() as stack, stack.hook_server("h", HookServer(), ["PreRunPodSandbox"], "Fail"):
            for path in (RUNTIME + "RunPodSandbox", RUNTIME[1:] + "RunPodSandbox", "/" + RUNTIME + "RunPodSandbox"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stack.channel.unary_unary(path)(run_pod().SerializeToString(), timeout=10)
                assert "hook server err" in caught.value.details()
            assert not stack.engine.of("RunPodSandbox")

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_a_slow_reader_holds_back_its_own_stream_only() -> None:
    class Wide(Engine):
        written = 0

        def _stream(self, method: str) -> Any:
            async def handle(raw: bytes, context: Any) -> AsyncIterator[bytes]:
                for _ in range(2000):
                    self.written += 1
                    yield bytes(100_000)

            return handle

    async def scenario() -> None:
        engine = Wide()
        async with proxied(engine) as stack:
            stream = stack.channel.unary_stream(RUNTIME + "GetContainerEvents")(b"")
            assert len(await stream.read()) == 100_000
            for _ in range(50):
                await stack.call("Version", b"", timeout=5)
            assert engine.written < 300  # windows and sockets hold 30 MB at most; the rest was not even made
            stream.cancel()

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_an_engine_that_dies_ends_its_calls_and_is_found_again() -> None:
    async def scenario() -> None:
        async with proxied(Talker()) as stack:
            slow = asyncio.ensure_future(stack.channel.unary_unary("/a.Future/Slow")(b"", timeout=20))
            await until(lambda: any(c.streams for c in stack.app.backend._server._connections))
            await stack.server.stop(0)
            with pytest.raises(grpc.aio.AioRpcError):
                await slow
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stack.call("Status", b"", timeout=5)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            await stack.start_engine()
            await stack.channel.unary_unary(RUNTIME + "Status")(b"", wait_for_ready=True, timeout=30)

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_metrics_tell_how_calls_ended() -> None:
    async def scenario() -> None:
        async with proxied(Talker()) as stack:
            await stack.call("Status", b"")
            for method, timeout in (("Refuse", 5), ("None", 5), ("Slow", 0.1)):
                with pytest.raises(grpc.aio.AioRpcError):
                    await stack.call(method, b"x", timeout=timeout)
            stream = stack.channel.unary_stream(RUNTIME + "StreamContainers")(b"")
            stream.cancel()

            def counted(method: str, code: str) -> float | None:
                return stack.app.metrics.registry.get_sample_value("koord_runtime_proxy_requests_total", {"method": method, "code": code})

            await until(lambda: counted("other", "DEADLINE_EXCEEDED") == 1)
            assert (counted("Status", "OK"), counted("other", "NOT_FOUND"), counted("other", "UNIMPLEMENTED")) == (1, 1, 1)

    asyncio.run(scenario())
