"""Virtual time, processes that die without a farewell, and connections that misbehave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord import seams
from roles.sandbox.world.loop import Stuck, VirtualLoop, run
from roles.sandbox.world.network import Network, Rules, Verdict
from roles.sandbox.world.process import EPOCH, Clock, Process


def make(loop: VirtualLoop, name: str, address: str = "10.0.0.9") -> Process:
    return Process(loop, name, 1, Clock(loop), "seed", address)


def test_time_passes_without_waiting() -> None:
    loop = VirtualLoop()

    async def main() -> list[float]:
        seen = []
        for seconds in (3600.0, 0.25, 86_400.0):
            await asyncio.sleep(seconds)
            seen.append(loop.time())
        return seen

    assert run(loop, main()) == [3600.0, 3600.25, 90_000.25]


def test_callbacks_of_one_moment_keep_their_order() -> None:
    loop = VirtualLoop()
    seen: list[int] = []

    async def main() -> None:
        for number in range(50):
            loop.call_later(1.0, seen.append, number)
        await asyncio.sleep(2)

    run(loop, main())
    assert seen == list(range(50))


def test_timers_that_were_cancelled_do_not_pile_up_and_the_others_keep_their_order() -> None:
    loop = VirtualLoop()
    seen: list[int] = []

    async def main() -> None:
        for number in range(3000):
            loop.call_later(60.0, seen.append, -number).cancel()
            if number % 100 == 0:
                loop.call_later(5.0 - number % 300 / 100, seen.append, number)
        assert len(loop._timers) < 500
        await asyncio.sleep(100)

    run(loop, main())
    assert seen == [*range(200, 3000, 300), *range(100, 3000, 300), *range(0, 3000, 300)]


def test_a_world_where_everybody_waits_says_so() -> None:
    loop = VirtualLoop()
    with pytest.raises(Stuck):
        run(loop, asyncio.Event().wait())


def test_a_process_has_its_own_clock_and_randomness() -> None:
    loop = VirtualLoop()
    seen: dict[str, Any] = {}

    async def live() -> None:
        await seams.sleep(10)
        name = seams.hostname()
        seen[name] = (seams.now(), seams.monotonic(), seams.uid())

    async def main() -> None:
        early, late = make(loop, "early"), make(loop, "late")
        late.surroundings._clock.offset = 3600.0
        early.start(live)
        late.start(live)
        await asyncio.sleep(20)

    run(loop, main())
    assert seen["early"][0] == EPOCH + 10
    assert seen["late"][0] == EPOCH + 3610
    assert seen["early"][1] == seen["late"][1]
    assert seen["early"][2] != seen["late"][2]


def test_a_killed_process_runs_nothing_again_not_even_a_finally() -> None:
    loop = VirtualLoop()
    seen: list[str] = []

    async def live() -> None:
        try:
            while True:
                await seams.sleep(1)
                seen.append("alive")
        finally:
            seen.append("farewell")

    async def main() -> None:
        process = make(loop, "p")
        process.start(live)
        await asyncio.sleep(3.5)
        process.kill()
        await asyncio.sleep(100)
        assert seen == ["alive"] * 3

    run(loop, main())


def test_a_frozen_process_goes_on_where_it_was() -> None:
    loop = VirtualLoop()
    seen: list[float] = []

    async def live() -> None:
        for _ in range(3):
            await seams.sleep(1)
            seen.append(loop.time())

    async def main() -> None:
        process = make(loop, "p")
        process.start(live)
        await asyncio.sleep(1.5)
        process.freeze()
        await asyncio.sleep(10)
        process.thaw()
        await asyncio.sleep(10)

    run(loop, main())
    assert seen == [1.0, 11.5, 12.5]


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.got = b""
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class OneVerdict(Rules):
    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def request(self, client: str, head: bytes) -> Verdict:
        return self.verdict


@pytest.mark.parametrize(
    ("verdict", "reached", "answered", "reset"),
    [
        (Verdict(), True, True, False),
        (Verdict(lose_request=True), False, False, True),
        (Verdict(lose_answer=True), True, False, True),
        (Verdict(reset=True), False, False, True),
        (Verdict(stall=True), False, False, False),
        (Verdict(delay=5.0), True, True, False),
        (Verdict(answer=b"NO"), False, True, False),
    ],
)
def test_what_becomes_of_a_request(verdict: Verdict, reached: bool, answered: bool, reset: bool) -> None:
    loop = VirtualLoop()
    network = Network(loop, OneVerdict(verdict))
    arrived: list[bytes] = []

    class Server(Echo):
        def data_received(self, data: bytes) -> None:
            arrived.append(data)
            super().data_received(data)

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Server, "10.0.0.1", 80)
        await asyncio.Event().wait()

    async def ask(client: Client) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: client, "10.0.0.1", 80)
        transport.write(b"hello")
        await asyncio.Event().wait()

    async def main() -> None:
        client = Client()
        make(loop, "server", "10.0.0.1").start(serve)
        await asyncio.sleep(1)
        make(loop, "client").start(lambda: ask(client))
        await asyncio.sleep(60)
        assert bool(arrived) is reached
        assert bool(client.got) is answered
        assert bool(client.lost) is reset

    run(loop, main())
    assert network.listeners


def test_connections_of_a_killed_process_are_reset() -> None:
    loop = VirtualLoop()
    Network(loop)

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Echo, "10.0.0.1", 80)
        await asyncio.Event().wait()

    async def main() -> None:
        server = make(loop, "server", "10.0.0.1")
        server.start(serve)
        await asyncio.sleep(1)
        client = Client()
        await loop.create_connection(lambda: client, "10.0.0.1", 80)
        server.kill()
        await asyncio.sleep(1)
        assert isinstance(client.lost[0], ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Client, "10.0.0.1", 80)

    run(loop, main())
