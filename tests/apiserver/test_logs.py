"""pods/log: the output of containers whose file the server was told."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.api.kinds import PODS
from koord.apiserver.config import ServerConfig
from koord.apiserver.testing import running_server
from koord.kube.client import Client

pytestmark = pytest.mark.feature("BEY-SBX-01")


class Case:
    """A server, a pod in it, and the log of its container."""

    def __init__(self, client: Client, session: aiohttp.ClientSession, url: str, path: Path) -> None:
        self.client, self.session, self.path = client, session, path
        self.url = f"{url}/api/v1/namespaces/default/pods/{{}}/log"

    async def pod(self, *containers: str, name: str = "web") -> None:
        spec = {"containers": [{"name": container, "image": "i"} for container in containers]}
        await self.client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    async def read(self, name: str = "web", **query: str) -> tuple[int, str]:
        async with self.session.get(self.url.format(name), params=query) as answer:
            if answer.status == 200:
                return 200, await answer.text()
            return answer.status, (await answer.json())["message"]


@asynccontextmanager
async def case(tmp_path: Path, *, known: bool = True) -> AsyncIterator[Case]:
    path = tmp_path / "main.log"

    def find(namespace: str, pod: str, container: str) -> Path | None:
        return path if (namespace, pod, container) == ("default", "web", "main") else None

    async with running_server(config=ServerConfig(pod_log=find if known else None)) as server, server.client() as client:
        async with aiohttp.ClientSession() as session:
            yield Case(client, session, server.url, path)


def run(tmp_path: Path, body: Callable[[Case], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with case(tmp_path, **options) as made:
            await body(made)

    asyncio.run(main())


def test_what_was_written_so_far(tmp_path: Path) -> None:
    async def body(c: Case) -> None:
        await c.pod("main")
        status, text = await c.read()
        assert (status, "no log" in text) == (400, True), "it has not started"
        c.path.write_text("one\ntwo\nthree\n")
        assert await c.read() == (200, "one\ntwo\nthree\n")
        assert await c.read(container="main", tailLines="2", follow="false", timestamps="false") == (200, "two\nthree\n")
        assert await c.read(tailLines="0") == (200, "")
        assert await c.read(tailLines="2", limitBytes="5") == (200, "two\nt")

    run(tmp_path, body)


def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    async def body(c: Case) -> None:
        await c.pod("main")
        await c.pod("main", "side", name="two")
        c.path.write_text("x")
        assert await c.read("none") == (404, 'pods "none" not found')
        assert await c.read("two") == (400, "a container name must be specified for pod two, choose one of: [main side]")
        assert await c.read(container="other") == (400, "container other is not valid for pod web")
        assert await c.read(tailLines="-1") == (400, "tailLines: Invalid value: '-1': a whole number from 0 is wanted")
        said = "previous: not supported by the embedded API server: container, follow, limitBytes, tailLines are"
        assert await c.read(previous="true") == (400, said)

    run(tmp_path, body)


def test_without_a_kubelet_there_are_none(tmp_path: Path) -> None:
    async def body(c: Case) -> None:
        await c.pod("main")
        assert (await c.read())[0] == 501

    run(tmp_path, body, known=False)


def test_following_until_the_pod_ends(tmp_path: Path) -> None:
    async def body(c: Case) -> None:
        await c.pod("main")
        c.path.write_text("one\n")
        async with c.session.get(c.url.format("web"), params={"follow": "true", "limitBytes": "1000"}) as answer:
            assert await answer.content.readline() == b"one\n"
            with c.path.open("a") as log:
                log.write("two\n")
            assert await answer.content.readline() == b"two\n"
            await c.client.patch(PODS, "web", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
            assert await answer.content.read() == b""

    run(tmp_path, body)


def test_following_stops_at_the_limit_and_with_the_pod(tmp_path: Path) -> None:
    async def body(c: Case) -> None:
        await c.pod("main")
        c.path.write_text("one\ntwo\n")
        assert await c.read(follow="true", limitBytes="5") == (200, "one\nt")
        async with c.session.get(c.url.format("web"), params={"follow": "true"}) as answer:
            assert await answer.content.readline() == b"one\n"
            await c.client.delete(PODS, "web", "default", grace_period_seconds=0)
            assert await answer.content.read() == b"two\n"

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("content", "lines", "shown"),
    [
        ("", "3", ""),
        ("\n", "1", "\n"),
        ("a", "1", "a"),
        ("a\nb", "1", "b"),
        ("a\nb\n", "1", "b\n"),
        ("a\n\n\n", "2", "\n\n"),
        ("a\nb\n", "2", "a\nb\n"),
        ("a\nb\n", "9", "a\nb\n"),
        ("x\r\ny\rz\n", "1", "y\rz\n"),
        ("a\n" + "b" * (3 << 20) + "\nc\n", "2", "b" * (3 << 20) + "\nc\n"),
        ("a\n" * (1 << 20), "600000", "a\n" * 600_000),
    ],
)
def test_the_last_lines(tmp_path: Path, content: str, lines: str, shown: str) -> None:
    async def body(c: Case) -> None:
        await c.pod("main")
        c.path.write_bytes(content.encode())
        status, text = await c.read(tailLines=lines)
        assert (status, text == shown) == (200, True)

    run(tmp_path, body)


@pytest.mark.parametrize("query", [{"tailLines": "1"}, {"limitBytes": "5"}, {"tailLines": "1", "follow": "true", "limitBytes": "5"}, {}])
def test_no_more_than_a_piece_of_a_long_log_is_in_memory(tmp_path: Path, query: dict[str, str]) -> None:
    async def body(c: Case) -> None:
        await c.pod("main")
        with c.path.open("wb") as log:
            log.truncate(100 << 20)
            log.seek(0, os.SEEK_END)
            log.write(b"\nlast\n")
        tracemalloc.start()
        try:
            async with c.session.get(c.url.format("web"), params=query) as answer:
                assert answer.status == 200
                size = 0
                async for piece in answer.content.iter_any():
                    size += len(piece)
            assert size == (5 if query else (100 << 20) + 6)
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()

    run(tmp_path, body)
