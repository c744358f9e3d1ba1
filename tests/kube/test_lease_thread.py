"""The lease has a thread, a connection and a pace of its own; a role that is dead does not keep it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord import seams
from koord.api.kinds import LEASES
from koord.kube import leases
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.leadership import Identity
from koord.kube.leases import LeaderElector, Leadership, Timing
from tests.support import patience
from tests.support.processes import free_port, process, until_healthy

BRIEF = Timing(lease_duration=1.5, renew_deadline=1.2, retry_period=0.2)


@pytest.fixture
def server_url(tmp_path: Path) -> Iterator[ClientConfig]:
    """An API server in a process of its own: a loop of the test that stands still does not stop it."""
    port, kubeconfig = free_port(), tmp_path / "kubeconfig"
    with process("apiserver", f"--port={port}", "--no-tls", "--anonymous", f"--print-kubeconfig={kubeconfig}") as child:
        until_healthy(f"http://127.0.0.1:{port}/readyz", child)
        yield ClientConfig(f"http://127.0.0.1:{port}")


def elector(client: Client, name: str | Identity, timing: Timing = BRIEF) -> LeaderElector:
    return LeaderElector(client, "default", "koord-test", name, timing=timing)


def stand_still(until: float) -> None:
    """Pure computation that never yields."""
    while time.monotonic() < until:
        sum(range(1000))


def test_a_loop_that_stands_still_does_not_lose_its_lease(server_url: ClientConfig) -> None:
    duration, deadline = patience.lease()

    async def main() -> None:
        async with Client(server_url) as client:
            held: list[bool] = []

            async def work(leadership: Leadership) -> None:
                stand_still(time.monotonic() + 2 * duration)
                held.append(leadership.held)

            assert await elector(client, "a", Timing(duration, deadline, BRIEF.retry_period)).run(work) is True
            assert held == [True]
            assert "holderIdentity" not in (await client.get(LEASES, "koord-test", "default"))["spec"]

    asyncio.run(main())


def test_a_role_that_is_dead_does_not_keep_its_lease(server_url: ClientConfig, caplog: pytest.LogCaptureFixture) -> None:
    duration, deadline = patience.lease()  # its thread has to renew beside one that computes without end
    brief = Timing(duration, deadline, BRIEF.retry_period)

    async def main() -> None:
        async with Client(server_url) as client:
            took: list[float] = []

            async def next_leader() -> None:
                async with Client(server_url) as other:

                    async def lead(leadership: Leadership) -> None:
                        took.append(time.monotonic())

                    await elector(other, "b", brief).run(lead)

            thread = threading.Thread(target=lambda: asyncio.run(next_leader()))

            async def work(leadership: Leadership) -> None:
                thread.start()
                began = time.monotonic()
                while not took and time.monotonic() < began + patience.seconds(30):  # never yields again
                    sum(range(1000))
                assert took[0] - began > leases.STALLED * duration
                assert not leadership.held

            assert await elector(client, "a", brief).run(work) is False
            thread.join()

    asyncio.run(main())
    assert "no sign of life of the role" in caplog.text


def test_a_pod_that_restarts_takes_its_own_lease_at_once(server_url: ClientConfig) -> None:
    long = Timing(lease_duration=60.0, renew_deadline=40.0, retry_period=2.0)
    prefix = "koord-0_uid-1_"

    async def main() -> None:
        async with Client(server_url) as client:

            async def dead(leadership: Leadership) -> None:
                raise RuntimeError("killed")

            first = elector(client, Identity(prefix + "1", prefix), long)
            first.release_on_cancel = False
            with pytest.raises(RuntimeError, match="killed"):
                await first.run(dead)
            assert (await client.get(LEASES, "koord-test", "default"))["spec"]["holderIdentity"] == prefix + "1"

            async def lead(leadership: Leadership) -> str:
                return "led"

            other = asyncio.create_task(elector(client, Identity("koord-1_uid-2_1", "koord-1_uid-2_"), long).run(lead))
            again = elector(client, Identity(prefix + "2", prefix), long)
            assert await asyncio.wait_for(again.run(lead), patience.seconds(10)) is True
            await asyncio.wait_for(other, patience.seconds(10))

    asyncio.run(main())


def test_the_next_leader_leads_soon_after_a_release(server_url: ClientConfig) -> None:
    """It is told of the release: it neither waits for the lease to expire nor for its next look."""

    async def main() -> None:
        async with Client(server_url) as client:
            leading = asyncio.Event()

            async def lead(leadership: Leadership) -> None:
                leading.set()
                await leadership.lost.wait()

            times = Timing(lease_duration=6000.0, renew_deadline=4000.0, retry_period=2000.0)
            first, second = elector(client, "a", times), elector(client, "b", times)
            one = asyncio.create_task(first.run(lead))
            await leading.wait()
            leading.clear()
            two = asyncio.create_task(second.run(lead))
            await asyncio.sleep(0.2)  # the standby has seen the holder
            one.cancel()
            await asyncio.wait([one])
            await asyncio.wait_for(leading.wait(), patience.seconds(10))
            two.cancel()
            await asyncio.wait([two])

    asyncio.run(main())


def test_the_lease_does_not_wait_behind_the_work(server_url: ClientConfig) -> None:
    """Neither a queue at a low rate nor requests that hang keep a renewal waiting: it shares nothing with them."""

    async def main() -> None:
        async with Client(server_url, qps=1, burst=1) as client:

            async def work(leadership: Leadership) -> None:
                reads = [asyncio.create_task(client.raw("GET", "/api/v1/nodes?limit=1")) for _ in range(200)]
                renewed = {leadership.renewed_at}
                while len(renewed) < 10:
                    assert leadership.held
                    renewed.add(leadership.renewed_at)
                    await asyncio.sleep(0.05)
                for read in reads:
                    read.cancel()

            assert await elector(client, "a").run(work) is True

    asyncio.run(main())


def test_who_is_cancelled_twice_ends_in_order() -> None:
    """The election and the end of the process both release the lease; the second must not cut off what the first began."""

    async def main() -> None:
        begun, ended = asyncio.Event(), []

        async def work(apart: seams.Apart[None]) -> None:
            apart.post(begun.set)
            try:
                await asyncio.Event().wait()
            finally:
                apart.post(apart.cancel)
                await asyncio.sleep(0.05)
                ended.append(True)

        apart = seams.Apart(work, "work")
        await begun.wait()
        apart.cancel()
        await asyncio.wait({apart.done})
        assert ended == [True]

    asyncio.run(main())
