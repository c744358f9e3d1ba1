"""Leader election on the embedded API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from koord.api.kinds import EVENTS, LEASES, NAMESPACES
from koord.api.times import parse_time
from koord.apiserver.testing import running_server
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.events import EventRecorder
from koord.kube.leases import LeaderElector, Leadership, Timing
from tests.support import patience

QUICK = Timing(lease_duration=1.5, renew_deadline=0.6, retry_period=0.1)
LONG = Timing(lease_duration=6000.0, renew_deadline=4000.0, retry_period=0.1)  # what comes within a test comes of something else


@asynccontextmanager
async def serving() -> AsyncIterator[Client]:
    async with running_server() as server, server.client() as client:
        yield client


def elector(client: Client, name: str, **options: Any) -> LeaderElector:
    return LeaderElector(client, "default", "koord-test", name, timing=options.pop("timing", QUICK), **options)


async def hold(leadership: Leadership) -> None:
    await leadership.lost.wait()


async def until(check: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(patience.seconds(seconds)):
        while not check():
            await asyncio.sleep(0.01)


async def end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


def test_one_leads_and_a_release_hands_over_at_once() -> None:
    async def main() -> None:
        async with serving() as client:
            events = EventRecorder(client, "test")
            leaders: list[str] = []
            first = elector(client, "a", events=events, timing=LONG)
            second = elector(client, "b", on_new_leader=leaders.append, timing=LONG)
            one = asyncio.create_task(first.run(hold))
            await until(lambda: first.leadership.held)
            two = asyncio.create_task(second.run(hold))
            await until(lambda: second.leader == "a")
            assert not second.leadership.held
            healthy, said = first.healthy()
            assert (healthy, said.split(", ")[0]) == (True, "leading")
            assert second.healthy()[1] == "not leading; the leader is a"
            spec = (await client.get(LEASES, "koord-test", "default"))["spec"]
            assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("a", 0, 6000)
            await end(one)
            await until(lambda: second.leadership.held)  # released: no waiting for the lease to expire
            assert leaders == ["a", "b"]
            assert (await client.get(LEASES, "koord-test", "default"))["spec"]["leaseTransitions"] == 1
            await end(two)
            await events.stop()
            notes = [item["note"] for item in (await client.list(EVENTS)).items]
            assert notes == ["a became leader"]

    asyncio.run(main())


def test_a_dead_leader_is_replaced_after_its_lease() -> None:
    async def main() -> None:
        async with serving() as client:
            first, second = elector(client, "a", release_on_cancel=False), elector(client, "b")
            one = asyncio.create_task(first.run(hold))
            await until(lambda: first.leadership.held)
            two = asyncio.create_task(second.run(hold))
            await until(lambda: second.leader == "a")
            await end(one)
            renewed = parse_time((await client.get(LEASES, "koord-test", "default"))["spec"]["renewTime"])
            await until(lambda: second.leadership.held)
            acquired = parse_time((await client.get(LEASES, "koord-test", "default"))["spec"]["acquireTime"])
            assert acquired - renewed >= QUICK.lease_duration
            await end(two)

    asyncio.run(main())


def test_a_lease_that_vanishes_is_taken_when_it_would_have_run_out() -> None:
    """Deleted, or lost with the server's data: who held it believes in it until its next renewal."""

    async def main() -> None:
        async with serving() as client:
            leading: set[str] = set()
            slow = Timing(lease_duration=2.5, renew_deadline=2.0, retry_period=1.5)
            first, second = elector(client, "a", timing=slow), elector(client, "b")

            def watch(name: str) -> Any:
                async def lead(leadership: Leadership) -> None:
                    leading.add(name)
                    await leadership.lost.wait()
                    leading.discard(name)

                return lead

            one = asyncio.create_task(first.run(watch("a")))
            await until(lambda: first.leadership.held)
            two = asyncio.create_task(second.run(watch("b")))
            await until(lambda: second.leader == "a")
            await client.delete(LEASES, "koord-test", "default")
            while not second.leadership.held:
                await asyncio.sleep(0.005)
            assert not first.leadership.held
            assert leading <= {"b"}
            await end(one)
            await end(two)

    asyncio.run(main())


def test_clocks_of_others_do_not_matter() -> None:
    async def main() -> None:
        async with serving() as client:
            first = elector(client, "a", timing=LONG, wall_clock=lambda: time.time() - 3600)
            second = elector(client, "b", timing=LONG, wall_clock=lambda: time.time() + 3600)
            one = asyncio.create_task(first.run(hold))
            await until(lambda: first.leadership.held)
            two = asyncio.create_task(second.run(hold))
            await until(lambda: second.leader == "a")
            await asyncio.sleep(0.5)  # some more tries
            assert first.leadership.held
            assert not second.leadership.held
            await end(one)
            await end(two)

    asyncio.run(main())


def test_a_frozen_leader_does_not_act() -> None:
    """The event loop stands still past the deadline: the first thing it does afterwards must not be a write."""

    async def main() -> None:
        async with serving() as client:
            writes: list[float] = []

            async def work(leadership: Leadership) -> None:
                while True:
                    if leadership.held:
                        writes.append(time.monotonic())
                    await asyncio.sleep(0)

            one = asyncio.create_task(elector(client, "a").run(work))
            await until(lambda: bool(writes))
            time.sleep(0.8)  # longer than the renew deadline; nothing of this process runs
            thawed = time.monotonic()
            assert await one is False
            assert max(writes) < thawed

    asyncio.run(main())


def test_a_server_that_hangs_costs_the_lease_in_time(pipe: Any) -> None:
    async def main() -> None:
        async with serving() as client, pipe(client.config.server) as between, Client(ClientConfig(between.url)) as far:
            first = elector(far, "a")
            task = asyncio.create_task(first.run(hold))
            await until(lambda: first.leadership.held)
            between.stalled = True
            began = asked = time.monotonic()
            while first.leadership.held:
                assert asked - began < QUICK.renew_deadline
                await asyncio.sleep(0.01)
                asked = time.monotonic()
            assert await asyncio.wait_for(task, patience.seconds(3)) is False

    asyncio.run(main())


def test_a_lease_taken_by_force_is_noticed() -> None:
    async def main() -> None:
        async with serving() as client:
            first = elector(client, "a")
            task = asyncio.create_task(first.run(hold))
            await until(lambda: first.leadership.held)
            await client.patch(LEASES, "koord-test", {"spec": {"holderIdentity": "thief"}}, "default")
            assert await asyncio.wait_for(task, patience.seconds(3)) is False
            assert (await client.get(LEASES, "koord-test", "default"))["spec"]["holderIdentity"] == "thief"

    asyncio.run(main())


def test_work_that_ends_or_fails_ends_the_run() -> None:
    async def main() -> None:
        async with serving() as client:
            stopped: list[bool] = []

            async def brief(leadership: Leadership) -> None:
                assert leadership.held
                assert 0 < leadership.remaining <= 0.6

            async def fail(leadership: Leadership) -> None:
                raise RuntimeError("boom")

            assert await elector(client, "a").run(brief, lambda: stopped.append(True)) is True
            with pytest.raises(RuntimeError, match="boom"):
                await elector(client, "b").run(fail)
            assert stopped == [True]
            assert "holderIdentity" not in (await client.get(LEASES, "koord-test", "default"))["spec"]

    asyncio.run(main())


def test_a_namespace_that_does_not_exist_is_told_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as client:
            one = LeaderElector(client, "nowhere", "koord-test", "a", timing=QUICK)
            task = asyncio.create_task(one.run(hold))
            await until(lambda: any("nowhere" in record.message and "not found" in record.message for record in caplog.records))
            assert not one.leadership.held
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nowhere"}})
            await until(lambda: one.leadership.held)
            await end(task)

    asyncio.run(main())


def test_waits_for_a_server_that_fails(fault_server: Any) -> None:
    async def main() -> None:
        failing = [500, 403]

        def script(request: web.Request) -> web.Response:
            if failing:
                return web.json_response({"kind": "Status", "code": failing[-1]}, status=failing.pop())
            if request.method == "GET":
                return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
            return web.json_response({"kind": "Lease", "metadata": {"name": "koord-test"}, "spec": {"holderIdentity": "a"}})

        async with fault_server() as (server, client):
            server.script = script
            first = elector(client, "a")
            task = asyncio.create_task(first.run(hold))
            await until(lambda: first.leadership.held)
            assert not failing
            await end(task)

    asyncio.run(main())


@pytest.mark.parametrize("timing", [(0, 10, 2), (15, 15, 2), (15, 10, 9), (15, -1, 2)])
def test_timing_is_checked(timing: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="leader election: "):
        Timing(*timing)
