"""How long a stream may say nothing: counted while somebody waits for it, from one chunk to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.kube.connection import Body, Lost
from roles.sandbox.world.loop import VirtualLoop, run


class _Connection:
    def resume(self) -> None:
        return


def _live(main: Callable[[Body], Awaitable[Any]]) -> float:
    """Seconds that it took."""
    loop = VirtualLoop()

    async def live() -> None:
        await main(Body(loop, _Connection()))  # type: ignore[arg-type]

    run(loop, live())
    return loop.time()


def test_a_stream_that_says_nothing_is_lost() -> None:
    async def main(body: Body) -> None:
        loop = asyncio.get_running_loop()
        for at in (6.0, 14.0, 23.0):
            loop.call_at(at, body.feed, [b"x"])
        body.begin(200, {})
        content, heard = body.iter_any(10.0), []
        for _ in range(3):
            await anext(content)
            heard.append(loop.time())
        assert heard == [6.0, 14.0, 23.0]
        with pytest.raises(Lost, match="silence for 10 s"):
            await anext(content)

    assert _live(main) == 33.0


def test_time_that_the_reader_takes_is_no_silence() -> None:
    async def main(body: Body) -> None:
        loop = asyncio.get_running_loop()
        body.begin(200, {})
        loop.call_at(1.0, body.feed, [b"x"])
        loop.call_at(109.0, body.feed, [b"y"])
        loop.call_at(110.0, body.end)
        heard = []
        async for data in body.iter_any(10.0):
            heard.append(data)
            if data == b"x":
                await asyncio.sleep(100.0)
        assert heard == [b"x", b"y"]

    assert _live(main) == 110.0
