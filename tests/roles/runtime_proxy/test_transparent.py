"""Calls without hooks: every kind of call passes byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import string

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.protocols import cri_pb2 as cri
from tests.roles.runtime_proxy.support import Engine, create, proxied, run_pod
from tests.support import patience

UNKNOWN_FIELD = bytes.fromhex("b83e07")  # field 999, varint 7


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.feature("RP-CRI-04")
def test_unary_requests_and_answers_keep_their_bytes() -> None:
    async def scenario() -> None:
        engine = Engine(answers={"ContainerStats": b"\x0a\x03abc" + UNKNOWN_FIELD})
        async with proxied(engine) as stack:
            for method, message in (
                ("RunPodSandbox", run_pod()),
                ("CreateContainer", create(cpu_shares=700)),
                ("ContainerStats", b"\x0a\x01x"),
            ):
                raw = message if isinstance(message, bytes) else message.SerializeToString() + UNKNOWN_FIELD
                answer = await stack.call(method, raw)
                assert engine.of(method) == [raw]
                if method in engine.answers:
                    assert answer == engine.answers[method]

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_streams_of_every_kind_pass_frame_by_frame() -> None:
    async def scenario() -> None:
        engine = Engine(events=[b"one", b"", b"three" + UNKNOWN_FIELD])
        async with proxied(engine) as stack:
            stream = stack.channel.unary_stream("/runtime.v1.RuntimeService/GetContainerEvents")(b"request")
            assert [message async for message in stream] == engine.events
            chat = stack.channel.stream_stream("/some.future.Service/Chat")()
            for text in (b"a", b"b"):  # each answer arrives before the next question is asked
                await chat.write(text)
                assert await chat.read() == b"echo:" + text
            await chat.done_writing()
            assert await chat.read() is grpc.aio.EOF

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_errors_details_and_metadata_pass_both_ways() -> None:
    async def scenario() -> None:
        engine = Engine(errors={"StartContainer": (grpc.StatusCode.NOT_FOUND, "no such container")})
        async with proxied(engine) as stack:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stack.call("StartContainer", cri.StartContainerRequest(container_id="x"), metadata=(("traceparent", "00-1-2-01"),))
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such container")
            assert dict(caught.value.trailing_metadata())["why"] == "scripted"
            assert engine.metadata["StartContainer"]["traceparent"] == "00-1-2-01"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stack.call("Unknown", b"")
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-05")
def test_the_older_cri_version_is_forwarded_without_hooks() -> None:
    async def scenario() -> None:
        async with proxied() as stack:
            assert await stack.call("Version", b"\x0a\x01x", service="/runtime.v1alpha2.RuntimeService/") == b""
            assert stack.engine.of("/runtime.v1alpha2.RuntimeService/Version") == [b"\x0a\x01x"]

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_methods_that_the_engine_does_not_have_are_always_unimplemented() -> None:
    """Kubelet falls back to older calls on this code. A request that is written apart from the call's begin may meet the refusal,

    and grpc.aio then says INTERNAL; so this must never happen to a caller that says all at once.
    """

    async def scenario() -> None:
        async with proxied() as stack:
            for service in ("/runtime.v1.RuntimeService/", "/some.Other/") * 10:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stack.call("Unknown", b"", service=service)
                assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_the_limit_of_a_messages_size_is_not_the_proxys() -> None:
    async def scenario() -> None:
        big = b"\x0a" + bytes([0x80, 0x80, 0xC0, 0x0A]) + b"x" * (21 << 20)  # kubelet's own limit is 16 MiB
        async with proxied(Engine(answers={"ListContainers": b"", "ListImages": big})) as stack:
            options = (("grpc.max_receive_message_length", -1),)
            async with grpc.aio.insecure_channel(f"unix:{stack.directory}/proxy.sock", options=options) as channel:
                assert await channel.unary_unary("/runtime.v1.RuntimeService/ListImages")(b"") == big

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
def test_the_socket_is_private_and_gone_afterwards() -> None:
    async def scenario() -> None:
        async with proxied() as stack:
            path = stack.directory / "proxy.sock"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not path.exists()

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_cancelling_a_stream_reaches_the_engine() -> None:
    class Endless(Engine):
        cancelled = False

        def _stream(self, method: str):
            async def handle(raw: bytes, context: object):
                try:
                    while True:
                        yield b"tick"
                        await asyncio.sleep(0.05)
                finally:
                    self.cancelled = True

            return handle

    async def scenario() -> None:
        engine = Endless()
        async with proxied(engine) as stack:
            stream = stack.channel.unary_stream("/runtime.v1.RuntimeService/GetContainerEvents")(b"")
            assert await stream.read() == b"tick"
            stream.cancel()
            async with asyncio.timeout(patience.seconds(5)):
                while not engine.cancelled:
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())


PREFIXES = ("te", "content-type", "user-agent", "grpc-", "grpc-status", "x")
HOP = {"te", "content-type", "user-agent", "grpc-status", "grpc-message", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"}


@st.composite
def metadata(draw: st.DrawFn) -> tuple[tuple[str, str | bytes], ...]:
    found: dict[str, str | bytes] = {}
    for _ in range(draw(st.integers(1, 6))):
        key = draw(st.sampled_from(PREFIXES)) + draw(st.text("abcz09-_.", min_size=1, max_size=8))
        if key.startswith("grpc-") and not key.startswith(("grpc-status-details", "grpc-trace")):
            key = "grpc-status-details"  # gRPC's own clients keep the rest of this prefix to themselves
        if key not in HOP:
            binary = draw(st.booleans())
            value = draw(st.binary(max_size=12)) if binary else draw(st.text(string.ascii_letters + "0-=;", min_size=1, max_size=12))
            found[key.removesuffix("-bin") + ("-bin" if binary else "")] = value
    return tuple(found.items())


@pytest.mark.feature("RP-CRI-01")
def test_property_metadata_of_every_name_passes_in_both_directions() -> None:
    """What a direct connection delivers arrives through the proxy: request headers, answer headers, trailers; unary and streaming."""

    class Chatty(Engine):
        seen: dict[str, object] = {}
        sends: tuple = ()

        def handler(self, path: str):
            async def unary(raw: bytes, context) -> bytes:
                self.seen = dict(context.invocation_metadata())
                await context.send_initial_metadata(self.sends)
                context.set_trailing_metadata(self.sends)
                if path.endswith("Refused"):
                    await context.abort(grpc.StatusCode.NOT_FOUND, "gone")
                return b"x"

            async def stream(requests, context) -> None:
                await context.write(await unary(b"", context))

            if "Stream" in path:
                return grpc.stream_stream_rpc_method_handler(stream)
            return grpc.unary_unary_rpc_method_handler(unary) if path.rpartition("/")[2] in ("Status", "Refused") else super().handler(path)

    async def one(channel: grpc.aio.Channel, engine: Chatty, path: str, sent: tuple) -> list:
        call = channel.stream_stream(path)(metadata=sent) if "Stream" in path else channel.unary_unary(path)(b"", metadata=sent)
        with contextlib.suppress(grpc.aio.AioRpcError):
            if "Stream" in path:
                await call.done_writing()
                assert [message async for message in call] == [b"x"]
            else:
                await call
        keys = [dict(await call.initial_metadata()), dict(await call.trailing_metadata()), engine.seen]
        return [{key: value for key, value in found.items() if key not in HOP} for found in keys]

    async def scenario(cases: list) -> None:
        engine = Chatty()
        async with (
            proxied(engine) as stack,
            grpc.aio.insecure_channel(f"unix:{stack.directory}/engine.sock") as direct,
        ):
            for sent, engine.sends in cases:
                for path in ("/runtime.v1.RuntimeService/Status", "/runtime.v1.RuntimeService/Refused", "/a.Service/Stream"):
                    assert await one(stack.channel, engine, path, sent) == await one(direct, engine, path, sent)

    @given(st.lists(st.tuples(metadata(), metadata()), min_size=1, max_size=10))
    @settings(max_examples=5, deadline=None)
    def check(cases: list) -> None:
        asyncio.run(scenario(cases))

    check()


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.parametrize("size", [9_000, 13_000, 200_000, 1 << 20])
def test_an_error_of_any_length_arrives_whole_each_time(size: int) -> None:
    async def scenario() -> None:
        text = "x" * size
        engine = Engine(errors=dict.fromkeys(("StartContainer", "Status"), (grpc.StatusCode.UNKNOWN, text)))
        limits = (("grpc.max_metadata_size", 4 << 20), ("grpc.absolute_max_metadata_size", 4 << 20))
        async with (
            proxied(engine) as stack,
            grpc.aio.insecure_channel(f"unix:{stack.directory}/proxy.sock", options=limits) as channel,
        ):
            for n in range(12):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/runtime.v1.RuntimeService/" + ("StartContainer", "Status")[n % 2])(b"\x0a\x01c")
                assert (caught.value.code(), len(caught.value.details())) == (grpc.StatusCode.UNKNOWN, size)

    asyncio.run(scenario())
