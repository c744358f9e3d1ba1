"""What single faults do, and what counts as a catch."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from koord.kube.pool import Pool
from roles.sandbox.world import faults, runner
from roles.sandbox.world.faults import Fault, FaultRules, Fuse
from roles.sandbox.world.history import Entry, History
from roles.sandbox.world.hunting import Catch
from roles.sandbox.world.invariants.durability import AcknowledgedIsKept
from roles.sandbox.world.invariants.registry import INVARIANTS
from roles.sandbox.world.loop import VirtualLoop, run
from roles.sandbox.world.mutants.planting import Mutant
from roles.sandbox.world.mutants.registry import MUTANTS
from roles.sandbox.world.network import Network
from roles.sandbox.world.process import Clock, Process
from roles.sandbox.world.runner import Result
from roles.sandbox.world.spec import Spec

WRITE = b"POST /api/v1/pods HTTP/1.1\r\n\r\n"


def make(loop: VirtualLoop, name: str, address: str = "10.0.0.9") -> Process:
    return Process(loop, name, 1, Clock(loop), "seed", address)


def world() -> tuple[VirtualLoop, Network, FaultRules]:
    loop = VirtualLoop()
    rules = FaultRules(loop, History(loop.time), random.Random(1))
    return loop, Network(loop, rules), rules


class Sink(asyncio.Protocol):
    """Keeps what comes, with the time."""

    def __init__(self) -> None:
        self.got: list[tuple[float, bytes]] = []

    def data_received(self, data: bytes) -> None:
        self.got.append((asyncio.get_running_loop().time(), data))


def serve(made: list[Sink]) -> Any:
    async def main() -> None:
        def protocol() -> Sink:
            made.append(Sink())
            return made[-1]

        await asyncio.get_running_loop().create_server(protocol, "10.0.0.1", 80)
        await asyncio.Event().wait()

    return main


def test_a_slow_reader_gets_everything_late_and_in_order() -> None:
    loop, _, _ = world()
    made: list[Sink] = []

    async def main() -> None:
        server = make(loop, "server", "10.0.0.1")
        server.start(serve(made))
        await asyncio.sleep(1)
        server.pace = 100.0
        transport, _ = await loop.create_connection(Sink, "10.0.0.1", 80)
        transport.write(b"a" * 150)
        transport.write(b"b" * 50)
        await asyncio.sleep(0.9)
        assert sum(len(data) for _, data in made[0].got) == 50
        await asyncio.sleep(5)
        assert b"".join(data for _, data in made[0].got) == b"a" * 150 + b"b" * 50
        server.pace = 0.0
        transport.write(b"c")
        await asyncio.sleep(0.01)
        assert made[0].got[-1][1] == b"c"

    run(loop, main())


@pytest.mark.parametrize(("after", "arrives"), [(False, 1), (True, 2)])
def test_a_process_dies_right_before_or_right_after_its_second_write(after: bool, arrives: int) -> None:
    loop, _, rules = world()
    made: list[Sink] = []
    client = make(loop, "client")

    async def write() -> None:
        transport, _ = await loop.create_connection(Sink, "10.0.0.1", 80)
        for _ in range(4):
            transport.write(b"GET /x HTTP/1.1\r\n\r\n")
            transport.write(WRITE)
            await asyncio.sleep(0.1)

    async def main() -> None:
        make(loop, "server", "10.0.0.1").start(serve(made))
        await asyncio.sleep(1)
        rules.fuses.append(Fuse("client", 2, after, lambda: client.kill(0.01)))
        client.start(write)
        await asyncio.sleep(5)

    run(loop, main())
    assert client.dead
    assert b"".join(data for _, data in made[0].got).count(b"POST") == arrives


def test_a_process_dies_in_place_of_its_tenth_callback() -> None:
    loop, _, _ = world()
    seen: list[int] = []

    async def live() -> None:
        while True:
            seen.append(len(seen))
            await asyncio.sleep(1)

    async def main() -> None:
        process = make(loop, "p")
        process.start(live)
        await asyncio.sleep(0.5)
        process.arm(10, process.kill)
        await asyncio.sleep(60)
        assert process.dead

    run(loop, main())
    assert 1 < len(seen) <= 10


def test_a_request_reaches_the_second_address_when_the_first_is_dead() -> None:
    loop, network, rules = world()
    made: list[Sink] = []
    network.names["api.world"] = ("10.0.0.1", "10.0.0.2")
    network.services[("10.0.0.2", 80)] = lambda: ("10.0.0.1", 80)
    rules.dead = frozenset({"10.0.0.1"})
    peers: list[Any] = []

    async def connect() -> None:
        pool = Pool("http://api.world:80", limit=10, connect_timeout=5.0)
        for _ in range(2):
            connection = await pool._connect(None)
            peers.append((connection._transport.get_extra_info("peername"), loop.time()))  # type: ignore[union-attr]
        await pool.close()

    async def main() -> None:
        make(loop, "server", "10.0.0.1").start(serve(made))
        await asyncio.sleep(1)
        make(loop, "client").start(connect)
        await asyncio.sleep(30)

    run(loop, main())
    (first, at), (second, again) = peers
    assert first == second == ("10.0.0.2", 80)
    assert at - 1 < 2
    assert again - at < 0.1  # the address that answered is asked first from then on


def test_every_kind_can_be_drawn_and_told() -> None:
    rng = random.Random(3)
    for kind in faults.DRAWN:
        drawn = faults.draw(rng, 60.0, 3, ["scheduler-a"], (kind,))
        assert [fault.kind for fault in drawn] == [kind] * 3
        assert all(kind in str(fault) for fault in drawn)


def test_a_server_that_lost_a_write_is_betrayed() -> None:
    history = History(lambda: 1.0)
    rule = AcknowledgedIsKept(history)
    assert list(rule.see(Entry(0, 1.0, "world", "", "", "lost", "default/p", text="pod at version 7, found nothing")))
    assert not list(rule.see(Entry(0, 1.0, "world", "", "", "fault", "kill", text=str(Fault(1.0, "kill")))))


def result(*rules: str) -> Result:
    return Result(1, "", 0, 0.0, tuple((0.0, rule, "") for rule in rules), (), 0.0)


def test_a_crash_betrays_only_a_defect_that_is_one() -> None:
    quiet, crash = Catch(Mutant("m", "", lambda: None)), Catch(Mutant("m", "", lambda: None, crash=True))
    for catch in (quiet, crash):
        catch.see(result("NobodyCrashes"))
    assert (quiet.first, crash.first) == (None, 1)
    quiet.see(result("DeviceOnce", "NobodyCrashes"))
    assert quiet.first == 1
    assert set(quiet.alone) == {"DeviceOnce"}


def test_rules_and_mutants_have_names_and_say_what_they_are() -> None:
    assert len({kind.__name__ for kind in INVARIANTS}) == len(INVARIANTS) >= 34
    assert all(kind.__doc__ for kind in INVARIANTS)
    assert len(MUTANTS) >= 40
    assert all(mutant.text and set(mutant.world.get("kinds", ())) <= set(faults.KINDS) for mutant in MUTANTS.values())


def test_a_count_goes_on_in_the_next_life_and_swallows_no_write() -> None:
    plan = (Fault(4.0, "kill-before-write", "scheduler-a", 1.0, count=8), Fault(4.05, "kill", "scheduler-a", 1.0))
    spec = Spec(nodes=2, pods=4, minutes=0.5, plan=plan, calm=5.0, hostile=0, koordlets=0, schedulers=1, managers=1, deschedulers=0)
    result = runner.run(spec, story=True)
    assert sum("started scheduler-a" in line for line in result.story) == 3
