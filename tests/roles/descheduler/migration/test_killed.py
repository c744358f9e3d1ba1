"""A process that is killed at any write, before or after the API server has it: the next one ends where this one would have.

No pod is evicted twice and no reservation is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from koord.api import kinds
from koord.kube import errors
from koord.kube.client import Client
from tests.support import patience
from tests.support.migration import NS, Cluster, Life, cluster, condition


class Mortal(Client):
    """A client that stands still for ever at its n-th write (events do not count), before or after the server has it.

    What runs there can then only be killed. Counts evictions.
    """

    evictions: list[str]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fatal, self.after, self.writes, self.dead = -1, False, 0, asyncio.Event()
        self.evictions = []

    async def _call(self, method: str, path: str, obj: Any = None, **options: Any) -> dict[str, Any]:
        if "/events" in path:
            return await super()._call(method, path, obj, **options)
        if self.dead.is_set():
            await asyncio.Event().wait()
        if method == "GET":
            return await super()._call(method, path, obj, **options)
        number, self.writes = self.writes, self.writes + 1
        if number == self.fatal and not self.after:
            self.dead.set()
            await asyncio.Event().wait()
        if path.endswith("/eviction"):
            self.evictions.append(path)
        try:
            answer = await super()._call(method, path, obj, **options)
        except errors.ApiError:
            if number == self.fatal:  # the server does not have it, by a conflict for instance: the next one is it
                self.fatal += 1
            raise
        if number == self.fatal:
            self.dead.set()
            await asyncio.Event().wait()
        return answer


class Unlucky(Mortal):
    """A client one of whose writes meets an error, before or after the server has it."""

    error: errors.ApiError

    async def _call(self, method: str, path: str, obj: Any = None, **options: Any) -> dict[str, Any]:
        if method == "GET" or "/events" in path:
            return await Client._call(self, method, path, obj, **options)
        number, self.writes = self.writes, self.writes + 1
        if number == self.fatal and not self.after:
            raise self.error
        if path.endswith("/eviction"):
            self.evictions.append(path)
        answer = await Client._call(self, method, path, obj, **options)
        if number == self.fatal:
            raise self.error
        return answer


class Plot:
    """What happens around one job: somebody plays scheduler, workload controller and kubelet."""

    def __init__(self, world: Cluster, kind: str, number: int, owner: str) -> None:
        self.world, self.kind, self.owner = world, kind, owner
        self.job, self.pod, self.new = f"j{number}", f"p{number}", f"q{number}"
        self.evictions: list[str] = []

    async def begin(self) -> None:
        pending = self.kind == "pending"
        await self.world.pod(self.pod, "" if pending else "n1", self.owner)
        mode = "EvictDirectly" if self.kind == "directly" else "ReservationFirst"
        await self.world.job(self.job, self.pod, mode=mode)

    async def nudge(self) -> None:
        """Do what the rest of a cluster would do now."""
        world = self.world
        for reservation in (await world.client.list(kinds.RESERVATIONS)).items:
            name, status = reservation["metadata"]["name"], reservation.get("status") or {}
            if not status.get("nodeName"):
                await world.reserve(name, nodeName="n1" if self.kind == "same node" else "n2")
            elif self.kind == "pending":
                if not condition(await world.get(kinds.PODMIGRATIONJOBS, self.job) or {}, "PodScheduled"):
                    continue
                body = {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}
                await world.client.patch(kinds.PODS, self.pod, body, NS, subresource="status")
            elif self.kind == "moves" and await world.get(kinds.PODS, self.pod) is None and status.get("phase") == "Available":
                new = await world.get(kinds.PODS, self.new) or await world.pod(self.new, "n2", self.owner)
                owner = {"namespace": NS, "name": self.new, "uid": new["metadata"]["uid"]}
                await world.reserve(name, phase="Succeeded", currentOwners=[owner])

    async def until_ended(self) -> dict[str, Any]:
        """The end of the job, and what is left of everything."""
        async with asyncio.timeout(patience.seconds(30)):
            while True:
                job = await self.world.get(kinds.PODMIGRATIONJOBS, self.job)
                assert job is not None
                if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                    break
                with contextlib.suppress(errors.ApiError):  # changed meanwhile
                    await self.nudge()
                await asyncio.sleep(0.005)
        return job

    async def reservations(self) -> list[str]:
        return [
            item["metadata"]["name"]
            for item in (await self.world.client.list(kinds.RESERVATIONS)).items
            if (item.get("status") or {}).get("phase") != "Succeeded"
        ]

    async def clear(self) -> None:
        for kind in (kinds.PODMIGRATIONJOBS, kinds.RESERVATIONS, kinds.PODS):
            for name in await self.world.names(kind):
                with contextlib.suppress(errors.NotFound):
                    await self.world.client.delete(kind, name, NS if kind.namespaced else None)


async def life(world: Cluster, fatal: int = -1, *, after: bool = False) -> tuple[Life, Mortal]:
    client = Mortal(world.client.config)
    client.fatal, client.after = fatal, after
    return await world.live(client=client), client


def told(job: dict[str, Any], plot: Plot) -> dict[str, Any]:
    """What must not depend on deaths."""
    status = job["status"]
    conditions = {each["type"]: (each["status"], each.get("reason", "")) for each in status["conditions"]}
    new = (status.get("podRef") or {}).get("name", "").replace(plot.new, "new")
    return {"phase": status["phase"], "status": status.get("status"), "reason": status.get("reason"), "new": new, **conditions}


async def released(plot: Plot, kind: str) -> None:
    """Wait until nothing is held any more (a reservation that was used up or that waits for its pod's arrival is no loss)."""
    if kind == "pending":
        return
    async with asyncio.timeout(patience.seconds(20)):
        while await plot.reservations():
            await asyncio.sleep(0.01)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-04")
@pytest.mark.feature("DS-MC-05")
@pytest.mark.parametrize("kind", ["moves", "directly", "pending", "same node"])
def test_killed_at_any_write_the_job_ends_the_same(kind: str) -> None:
    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset(replicas=20)
            number = itertools.count()
            plot = Plot(world, kind, next(number), owner)
            living, client = await life(world)
            await plot.begin()
            wanted = told(await plot.until_ended(), plot)
            await released(plot, kind)
            await living.kill()
            await client.close()
            writes = client.writes
            assert writes >= 5
            assert len(client.evictions) == (1 if kind in ("moves", "directly") else 0)
            await plot.clear()
            for fatal in range(writes):
                for after in (False, True):
                    plot = Plot(world, kind, next(number), owner)
                    first, mortal = await life(world, fatal, after=after)
                    await plot.begin()
                    ending = asyncio.ensure_future(plot.until_ended())
                    async with asyncio.timeout(patience.seconds(30)):  # a write that is a repetition is not made in each life
                        while not mortal.dead.is_set() and not (ending.done() and not await plot.reservations()):
                            await asyncio.sleep(0.005)
                    await first.kill()
                    second, heir = await life(world)
                    where = f"{kind}, killed {'after' if after else 'before'} write {fatal} of {writes}"
                    assert told(await ending, plot) == wanted, where
                    await released(plot, kind)
                    evicted = mortal.evictions + heir.evictions
                    assert len(evicted) == (1 if kind in ("moves", "directly") else 0), (where, evicted)
                    await second.kill()
                    await mortal.close()
                    await heir.close()
                    world.lives.clear()
                    await plot.clear()

    asyncio.run(scenario())


ERRORS = (
    (errors.Conflict(409, "Conflict", "changed meanwhile"), False),
    (errors.TooManyRequests(429, "TooManyRequests", "slow down"), False),
    (errors.Unreachable("the line is dead"), False),
    (errors.Unreachable("the line is dead"), True),
    (errors.ServerError(503, "ServiceUnavailable", "no leader"), True),
)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-08")
@pytest.mark.parametrize(("error", "after"), ERRORS, ids=["409", "429", "not sent", "no answer", "503"])
def test_an_error_of_any_write_changes_nothing_about_the_end(error: errors.ApiError, after: bool) -> None:
    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset(replicas=20)
            wanted: dict[str, Any] = {}
            for fatal in range(-1, 12):  # -1: without an error
                plot = Plot(world, "moves", fatal + 1, owner)
                async with Unlucky(world.client.config) as client:
                    client.fatal, client.after, client.error = fatal, after, error
                    living = await world.live(client=client)
                    await plot.begin()
                    found = told(await plot.until_ended(), plot)
                    wanted = wanted or found
                    assert found == wanted, fatal
                    assert len(client.evictions) == 1, fatal
                    await released(plot, "moves")
                    await living.kill()
                world.lives.clear()
                await plot.clear()

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-06")
def test_a_job_whose_time_runs_out_while_nobody_lives_leaves_no_reservation() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset(replicas=20)
            plot = Plot(world, "moves", 0, owner)
            first, mortal = await life(world, 3, after=True)  # passed, uid, Running, and then the reservation itself
            await plot.begin()
            async with asyncio.timeout(patience.seconds(30)):
                await mortal.dead.wait()
            await first.kill()
            job = await world.get(kinds.PODMIGRATIONJOBS, plot.job)
            assert job is not None
            assert "reservationOptions" not in job["spec"]
            assert len(await world.names(kinds.RESERVATIONS)) == 1
            world.shift = 610.0
            _, heir = await life(world)
            await world.until_job(plot.job, phase="Failed", reason="Timeout")
            await released(plot, "moves")
            await mortal.close()
            await world.close()
            await heir.close()

    asyncio.run(scenario())
