"""Docker mode against odd callers: other spellings of a target, heads that never end, two readings of one message, callers that leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.runtime_proxy.docker import http1, proxy
from roles.runtime_proxy.docker.http1 import ProtocolError
from roles.runtime_proxy.docker.target import clean, route
from tests.roles.runtime_proxy.support import until
from tests.roles.runtime_proxy.support_docker import FakeDocker, container, docker_proxied, sandbox
from tests.roles.runtime_proxy.test_docker import answers
from tests.support import patience

CREATE = "/v1.40/containers/create?name=k8s_POD_web-0_shop_u1_0"


async def send(stack: Any, data: bytes, *, end: bool = False) -> bytes:
    """Bytes on a connection of their own, and all that comes back."""
    reader, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
    writer.write(data)
    if end:
        writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), patience.seconds(15))
    writer.close()
    return answer


@pytest.mark.feature("RP-DKR-02")
@pytest.mark.parametrize(
    "spelling",
    [
        CREATE,
        CREATE.replace("create", "cre%61te"),
        CREATE.replace("/create", "%2Fcreate"),
        CREATE.replace("/create", "%2fcreate/"),
        "http://docker" + CREATE,
        "HTTP://user@docker:80" + CREATE,
        "/" + CREATE,
        CREATE.replace("/containers", "//containers"),
        CREATE.replace("/containers", "/./containers"),
        CREATE.replace("/containers", "/images/../containers"),
        CREATE.replace("/containers", "/%2e%2E/v1.40/containers"),
        CREATE.replace("/v1.40", ""),
        CREATE.replace("/v1.40", "/v1.40.0"),
        CREATE.replace("name=", "n%61me="),
    ],
)
def test_a_create_is_hooked_however_its_target_is_written(spelling: str) -> None:
    async def scenario() -> None:
        async with docker_proxied(FakeDocker(ids=["sb1"])) as stack, stack.hooks(answers(PreRunPodSandbox=None), "Fail") as hooks:
            body = json.dumps(sandbox()[1]).encode()
            head = f"POST {spelling} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            assert b"hook server err" in await send(stack, head.encode() + body)
            assert len(hooks.asked) == 1
            assert not [target for _, target, *_ in stack.engine.requests if "create" in target or "cre%61te" in target]

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
def test_a_container_is_hooked_by_its_id_the_begin_of_it_and_its_name() -> None:
    async def scenario() -> None:
        engine = FakeDocker(ids=["sb1", "ct1-long-id"])
        async with docker_proxied(engine) as stack, stack.hooks(answers()) as hooks:
            await stack.call("POST", *sandbox())
            await stack.call("POST", *container())
            for name in ("ct1-long-id", "ct1", "k8s_main_web-0_shop_u1_2"):
                engine.inspected[name] = {"Id": "ct1-long-id"}
                before = len(hooks.asked)
                assert (await stack.call("POST", f"/containers/{name}/start"))[0] == 204
                await until(lambda before=before: len(hooks.asked) == before + 2)

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
@pytest.mark.parametrize(
    "target", ["containers/create", "/containers/cre%6", "/containers/%zz", "/containers/\x7f", "docker:443", "%2Fcontainers/create"]
)
def test_what_cannot_be_brought_to_one_form_is_refused(target: str) -> None:
    with pytest.raises(ProtocolError):
        clean(target)

    async def scenario() -> None:
        async with docker_proxied() as stack:
            before = len(stack.engine.requests)
            assert (await send(stack, f"POST {target} HTTP/1.1\r\nHost: d\r\n\r\n".encode())).startswith(b"HTTP/1.1 400 ")
            assert len(stack.engine.requests) == before

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
@given(st.lists(st.sampled_from(("containers", "create", "c1", "stop", "..", ".", "", "%2e", "%2F", "v1.40", "a%25b")), max_size=7))
def test_property_a_clean_path_is_clean(parts: list[str]) -> None:
    found = clean("/" + "/".join(parts))
    assert "//" not in found
    assert not {".", ".."} & set(found.split("/"))
    assert clean(found.replace("%", "%25")) == found
    route("/" + "/".join(parts))


@pytest.mark.feature("RP-DKR-01")
def test_half_heads_fill_the_proxy_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_HEAD", 0.3)

    async def scenario() -> None:
        async with docker_proxied(concurrency=20) as stack:
            held = [await asyncio.open_unix_connection(stack.directory / "proxy.sock") for _ in range(20)]
            for _, writer in held:
                writer.write(b"GET /x HTTP/1.1\r\nA:")
            await until(lambda: len(stack.app.backend._proxy._tasks) == 20)
            assert b" 503 " in await send(stack, b"GET /version HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n")
            for reader, writer in held:
                assert (await asyncio.wait_for(reader.read(), patience.seconds(10))).startswith(b"HTTP/1.1 408 ")
                writer.close()
            assert (await stack.call("GET", "/version"))[0] == 200

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
def test_a_connection_that_is_kept_and_silent_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    head = patience.seconds(0.1)
    monkeypatch.setattr(proxy, "_HEAD", head)

    async def scenario() -> None:
        async with docker_proxied() as stack:
            reader, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            for _ in range(2):
                await asyncio.sleep(1.5 * head)
                writer.write(b"GET /version HTTP/1.1\r\nHost: d\r\n\r\n")
                assert b" 200 " in await reader.readuntil(b"}")
            writer.close()

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /x HTTP/1.1\nHost: d\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: d\nX: y\r\n\r\n",
        b"GET /x HTTP/1.1\nHost: d\n\n",
        b"GET /x HTTP/1.1\r\nHost: d\rX: y\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: d\0\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost : d\r\n\r\n",
        b"GET /x HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET /x HTTP/1.2\r\nHost: d\r\n\r\n",
        b"GET /x y HTTP/1.1\r\nHost: d\r\n\r\n",
        b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_head_that_two_readers_could_read_differently_is_refused(request_bytes: bytes) -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack:
            assert (await send(stack, request_bytes)).startswith(b"HTTP/1.1 400 ")
            assert not stack.engine.of("/x")

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.parametrize(
    "body", [b"5\nhello\r\n0\r\n\r\n", b"5\r\nhelloX\r\n0\r\n\r\n", b" 5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n\n", b"5\rx\r\nhello"]
)
def test_a_chunked_body_that_two_readers_could_read_differently_is_refused(body: bytes) -> None:
    async def read(copy: bool) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(body)
        reader.feed_eof()
        source = http1.Source(reader)
        if copy:
            await http1.copy_body(source, Nowhere(), http1.CHUNKED)  # type: ignore[arg-type]
        else:
            await http1.read_body(source, http1.CHUNKED, 1000)

    for copy in (True, False):
        with pytest.raises(ProtocolError):
            asyncio.run(read(copy))


class Nowhere:
    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.feature("RP-DKR-02")
def test_a_caller_that_leaves_a_call_with_hooks_is_seen_by_the_engine() -> None:
    class Slow(FakeDocker):
        left = False

        async def _answer(self, method: str, target: str, headers: dict[str, str], reader: Any, writer: Any) -> bool:
            if target.endswith("/stop"):
                self.left = await reader.read(1) == b""
                return False
            return await super()._answer(method, target, headers, reader, writer)

    async def scenario() -> None:
        engine = Slow(ids=["sb1"])
        async with docker_proxied(engine) as stack, stack.hooks(answers()) as hooks:
            await stack.call("POST", *sandbox())
            _, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            writer.write(b"POST /containers/sb1/stop HTTP/1.1\r\nHost: d\r\n\r\n")
            await until(lambda: engine.of(".*/stop"))
            writer.close()
            await until(lambda: engine.left)
            await until(lambda: hooks.asked[-1][0] == "PostStopPodSandboxHook")

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.parametrize(
    "sent",
    [
        b"POST /containers/x/wait HTTP/1.1\r\nHost: d\r\n\r\n",  # its answer does not begin before the container ends
        b"POST /images/load HTTP/1.1\r\nHost: d\r\nContent-Length: 1000000\r\n\r\nabc",
        b"POST /build HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
def test_a_caller_that_leaves_before_there_is_an_answer_is_seen_by_the_engine(sent: bytes) -> None:
    """An engine that does not see it waits for the rest of a body for ever, and so would the proxy, with both connections."""

    async def scenario() -> None:
        came, left = asyncio.Event(), asyncio.Event()

        async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            came.set()
            while await reader.read(1 << 16):
                pass
            left.set()
            writer.close()

        async with docker_proxied() as stack:
            path = stack.directory / "docker.sock"
            path.unlink()
            server = await asyncio.start_unix_server(engine, path)
            _, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            writer.write(sent)
            await asyncio.wait_for(came.wait(), patience.seconds(5))
            writer.close()
            await asyncio.wait_for(left.wait(), patience.seconds(5))
            await until(lambda: not stack.app.backend._proxy.exchanges and not stack.app.backend._proxy._tasks)
            server.close()

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
def test_an_answer_of_no_length_passes_while_the_request_is_still_sent() -> None:
    async def scenario() -> None:
        async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nbegun,")
            writer.write(await reader.readexactly(10))
            writer.close()

        async with docker_proxied() as stack:
            path = stack.directory / "docker.sock"
            path.unlink()
            server = await asyncio.start_unix_server(engine, path)
            reader, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            writer.write(b"POST /build HTTP/1.1\r\nHost: d\r\nContent-Length: 10\r\n\r\n01234")
            await asyncio.wait_for(reader.readuntil(b"begun,"), patience.seconds(5))
            writer.write(b"56789")
            assert await asyncio.wait_for(reader.read(), patience.seconds(5)) == b"0123456789"
            writer.close()
            server.close()

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.feature("RP-CLI-01")
def test_calls_under_way_end_before_the_process_does() -> None:
    class Slow(FakeDocker):
        async def _answer(self, method: str, target: str, headers: dict[str, str], reader: Any, writer: Any) -> bool:
            if "/images/create" in target or target.endswith("/start"):
                await asyncio.sleep(0.7)
            return await super()._answer(method, target, headers, reader, writer)

    async def scenario() -> None:
        engine = Slow()
        async with docker_proxied(engine) as stack:
            calls = [asyncio.ensure_future(stack.call("POST", target)) for target in ("/images/create?fromImage=x", "/containers/c/start")]
            _, events = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            events.write(b"GET /events HTTP/1.1\r\nHost: d\r\n\r\n")  # goes on for days: not waited for
            await until(lambda: len(engine.of(".*(images/create|start|events)")) == 3)
        assert [(await call)[0] < 300 for call in calls] == [True, True]
        events.close()

    asyncio.run(scenario())
