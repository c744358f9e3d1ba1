"""Unix sockets as gRPC and users name them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest

from koord.process.unixsocket import path_of, target


@pytest.mark.parametrize("name", ["a b%20c", "what?x", "n#1", "ü", "a:b;c", os.fsdecode(b"\xff")])
@pytest.mark.parametrize("before", ["", "/", "//"])
def test_grpc_listens_and_calls_at_the_very_path(name: str, before: str, tmp_path: Path) -> None:
    async def main() -> None:
        server = grpc.aio.server()
        server.add_insecure_port(target(f"{before}{tmp_path}/{name}"))
        assert os.listdir(tmp_path) == [name]
        await server.start()
        async with grpc.aio.insecure_channel(target(f"{before}{tmp_path}/{name}")) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as found:
                await channel.unary_unary("/a/b")(b"", timeout=10)
        assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED, "the server answered"
        await server.stop(None)

    asyncio.run(main())


def test_users_may_name_the_scheme() -> None:
    assert [path_of(text) for text in ("/run/a%20b", "unix:/run/a%20b", "unix:///run/a%20b")] == ["/run/a%20b"] * 3
    assert path_of("run/a") == path_of("unix:run/a") == "run/a"
