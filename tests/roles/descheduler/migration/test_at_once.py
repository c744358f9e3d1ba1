"""Several pods of one workload move at once, with the real scheduler: whoever comes into whose place, every job ends and nobody is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api import kinds
from koord.kube.client import Client
from roles.descheduler.migration import machine
from tests.roles.descheduler.migration.test_killed import Mortal
from tests.support import patience
from tests.support.migration import NS, cluster
from tests.support.wholecluster import Whole, Workers, at_work, whole

ALL_AT_ONCE = {"maxMigratingPerWorkload": "50%", "maxMigratingPerNode": 0, "maxUnavailablePerWorkload": "50%"}


async def check(plan: Whole, pods: dict[str, str], moved: list[str], born: list[str]) -> None:
    jobs = await plan.until_ended(len(moved))
    assert {job["spec"]["podRef"]["name"]: job["status"]["phase"] for job in jobs} == dict.fromkeys(moved, "Succeeded")
    came = [job["status"]["podRef"]["name"] for job in jobs]
    assert sorted(came) == sorted(born)  # each successor stands for one pod that left

    async def nothing_held() -> bool:
        return not await plan.held()

    await plan.world.until(nothing_held)
    left = {item["metadata"]["name"] for item in (await plan.client.list(kinds.PODS, NS)).items}
    assert left == (set(pods) - set(moved)) | set(born)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-ARB-03")
@pytest.mark.parametrize("seed", range(3))
def test_half_of_a_workload_moves_at_once(seed: int) -> None:
    async def scenario() -> None:
        async with whole() as plan:
            await plan.client.delete(kinds.NODES, "n3")
            pods = {f"p{number}": "n1" for number in range(8)}
            workers = await plan.workload(pods)
            await plan.world.live(**ALL_AT_ONCE, maxConcurrentReconciles=1 + 2 * seed)
            moved = [f"p{(number + seed) % 8}" for number in range(4)]
            async with at_work(workers):
                for name in moved:
                    await plan.world.job(f"j-{name}", name)
                await check(plan, pods, moved, [f"web-new-{number}" for number in range(4)])
            assert await plan.nodes_of(workers.born) == {"n2": 4}

    asyncio.run(scenario())


class Exchange(Mortal):
    """A client that dies at one of the writes by which two jobs exchange their places."""

    async def _call(self, method: str, path: str, obj: Any = None, **options: Any) -> dict[str, Any]:
        body = obj if isinstance(obj, dict) else {}
        exchanging = self.armed and ("reservationOptions" in (body.get("spec") or {}) or "ownerReferences" in (body.get("metadata") or {}))
        if not exchanging and not self.dead.is_set():
            return await Client._call(self, method, path, obj, **options)
        return await super()._call(method, path, obj, **options)

    armed = False


async def stuck(plan: Whole, **more: Any) -> tuple[Workers, str, str]:
    """The pod of one job has left, the other one's is held by a disruption budget; both have a place. Their reservations."""
    world = plan.world
    workers = await plan.workload({f"p{number}": "n1" for number in range(6)})
    await world.client.patch(kinds.PODS, "p1", {"metadata": {"labels": {"held": "yes"}}}, NS)
    seen = {"observedGeneration": 1, "expectedPods": 1, "desiredHealthy": 1, "currentHealthy": 1, "disruptionsAllowed": 0}
    budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"held": "yes"}}}, "status": seen}
    await world.put(kinds.PODDISRUPTIONBUDGETS, "hold", budget)
    await world.live(**ALL_AT_ONCE, **more)
    for name in ("p0", "p1"):
        await world.job(f"j-{name}", name)
    first = await world.until_job("j-p0", condition="Eviction=True/EvictComplete")
    second = await world.until_job("j-p1", condition="Eviction=False/FailedEvict")
    return workers, place(first), place(second)


def place(job: dict[str, Any]) -> str:
    return str(job["spec"]["reservationOptions"]["reservationRef"]["name"])


async def crossed(plan: Whole, own: str, other: str) -> None:
    """The successor of the pod that left has come into the other job's place; its own is open again."""

    async def used() -> bool:
        found = await plan.world.get(kinds.RESERVATIONS, other) or {}
        return bool((found.get("status") or {}).get("currentOwners"))

    await plan.world.until(used)
    await plan.client.patch(kinds.RESERVATIONS, own, {"spec": {"unschedulable": False}})


async def release_p1(plan: Whole) -> None:
    await plan.client.delete(kinds.PODDISRUPTIONBUDGETS, "hold", NS)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.parametrize("death", [None, (0, False), (0, True), (1, False), (1, True), (2, False), (2, True)])
def test_a_pod_that_came_into_another_jobs_place_counts_and_places_are_exchanged(death: tuple[int, bool] | None) -> None:
    """Killed before or after any write of the exchange, too: the place that is left over becomes the other job's."""

    async def scenario() -> None:
        async with whole() as plan, Exchange(plan.client.config) as client:
            world = plan.world
            workers, own, other = await stuck(plan, client=client)
            if death is not None:
                client.armed, (client.fatal, client.after) = True, death
            await plan.shut(own)
            async with at_work(workers):
                crossing = asyncio.ensure_future(crossed(plan, own, other))
                if death is not None:
                    async with asyncio.timeout(patience.seconds(20)):
                        await client.dead.wait()
                    await world.lives.pop().kill()
                    await world.live(**ALL_AT_ONCE)
                await crossing
                job = await world.until_job("j-p0", phase="Succeeded")
                assert place(job) == other
                assert job["status"]["podRef"]["name"] == "web-new-0"

                async def left() -> bool:
                    return place(await world.get(kinds.PODMIGRATIONJOBS, "j-p1") or {}) == own

                await world.until(left)
                assert await world.get(kinds.PODS, "p1") is not None  # held still
                (owner,) = (await world.get(kinds.RESERVATIONS, own) or {})["metadata"]["ownerReferences"]
                assert owner["name"] == "j-p1"
                await release_p1(plan)
                await check(plan, {f"p{number}": "n1" for number in range(6)}, ["p0", "p1"], ["web-new-0", "web-new-1"])
                second = await world.get(kinds.PODMIGRATIONJOBS, "j-p1") or {}
                new = await world.get(kinds.PODS, "web-new-1") or {}
                assert second["status"]["nodeName"] == new["spec"]["nodeName"]

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-03")
def test_a_place_that_a_new_replica_takes_is_lost_and_the_pod_stays() -> None:
    """The workload grows while one job's pod is held: the job says so and ends, its pod was never asked; the next job succeeds."""

    async def scenario() -> None:
        async with whole() as plan:
            world = plan.world
            workers, _, _ = await stuck(plan)
            async with at_work(workers):
                await world.until_job("j-p0", phase="Succeeded")

                async def free() -> str:
                    name = place(await world.get(kinds.PODMIGRATIONJOBS, "j-p1") or {})
                    found = await world.get(kinds.RESERVATIONS, name) or {}
                    return "" if (found.get("status") or {}).get("currentOwners") else name

                held = await world.until(free)  # perhaps after an exchange
                workers.replicas += 1
                job = await world.until_job("j-p1", phase="Failed", reason="ForbiddenMigratePod")
                assert f'Reservation "{held}" is already bound by another Pod' in job["status"]["message"]
                assert await world.get(kinds.PODS, "p1") is not None

                async def nothing_held() -> bool:
                    return not await plan.held()

                await world.until(nothing_held)
                await release_p1(plan)
                await world.job("again", "p1")
                await world.until_job("again", phase="Succeeded")
                assert len((await plan.client.list(kinds.PODS, NS)).items) == 7

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-03")
def test_a_new_replica_beside_the_successor_does_not_confuse_who_stands_for_whom() -> None:
    """Two pods come at once, one of them for the pod that left; one takes the other job's place, the other goes where there is room."""

    async def scenario() -> None:
        async with whole() as plan:
            world = plan.world
            workers, own, other = await stuck(plan)
            await plan.shut(own)
            workers.replicas += 1
            async with at_work(workers):
                await crossed(plan, own, other)
                job = await world.until_job("j-p0", phase="Succeeded")
                assert place(job) == other
                await release_p1(plan)
                await world.until_job("j-p1", phase="Succeeded")

                async def settled() -> bool:
                    pods = (await plan.client.list(kinds.PODS, NS)).items
                    return len(pods) == 7 and all(pod["spec"].get("nodeName") for pod in pods) and not await plan.held()

                await world.until(settled)

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-03")
def test_pods_that_keep_their_names_move_at_once() -> None:
    """As those of a StatefulSet: the successor has the name of the pod that left, and may come into any of the places."""

    async def scenario() -> None:
        async with whole() as plan:
            pods = {f"web-{number}": "n1" for number in range(6)}
            workers = await plan.workload(pods)
            workers.stable = True
            await workers.turn()
            before = {item["metadata"]["name"]: item["metadata"]["uid"] for item in (await plan.client.list(kinds.PODS, NS)).items}
            await plan.world.live(**ALL_AT_ONCE)
            async with at_work(workers):
                for number in range(3):
                    await plan.world.job(f"j-{number}", f"web-{number}")
                jobs = await plan.until_ended(3)
            assert {job["status"]["phase"] for job in jobs} == {"Succeeded"}
            assert sorted(workers.born) == ["web-0", "web-1", "web-2"]
            came = {job["status"]["podRef"]["name"]: job["status"]["podRef"]["uid"] for job in jobs}
            after = {item["metadata"]["name"]: item for item in (await plan.client.list(kinds.PODS, NS)).items}
            assert set(after) == set(before)
            assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == before | came
            assert all(after[name]["spec"]["nodeName"] != "n1" for name in came)

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-03")
def test_a_successor_that_went_elsewhere_ends_the_job_and_its_place_is_given_back() -> None:
    """Nobody will come into the place when the workload is complete again; until that is sure, and for a moment more, it is kept."""

    async def scenario() -> None:
        async with whole() as plan:
            world = plan.world
            workers = await plan.workload({f"p{number}": "n1" for number in range(4)})
            seen = {"status": {"replicas": 4, "observedGeneration": 1}}
            await world.client.patch(kinds.REPLICASETS, "web", seen, NS, subresource="status")
            life = await world.live()
            await world.job("j", "p0", ttl="1h")
            job = await world.until_job("j", condition="Eviction=True/EvictComplete")
            await plan.shut(place(job))
            async with at_work(workers):

                async def settled() -> bool:
                    return "" not in await plan.nodes_of(workers.born) and bool(workers.born)

                await world.until(settled)
                await world.until_job("j", phase="Running", condition="PodBoundReservation=False/WaitForPodBindReservation")
                assert await plan.held() == [place(job)]
                world.shift = machine.PATIENCE + 1
                await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"metadata": {"labels": {"look": "again"}}})
                job = await world.until_job("j", phase="Succeeded", status="Complete")
            new = await world.get(kinds.PODS, "web-new-0") or {}
            assert job["status"]["podRef"]["uid"] == new["metadata"]["uid"]
            assert f'on node "{new["spec"]["nodeName"]}" and not into Reservation "{place(job)}"' in job["status"]["message"]
            await world.until_gone(kinds.RESERVATIONS, place(job))
            assert not life.died

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-03")
def test_a_pod_that_its_workload_wants_no_more_is_not_waited_for() -> None:
    """The workload was scaled down to nothing while its pod was leaving."""

    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset(replicas=4)
            for number in range(4):
                await world.pod(f"p{number}", "n1", owner)
            seen = {"status": {"replicas": 4, "observedGeneration": 1}}
            await world.client.patch(kinds.REPLICASETS, "web", seen, NS, subresource="status")
            life = await world.live()
            await world.job("j", "p0", ttl="1h")
            job = await world.until_job("j", condition="ReservationCreated=True/")
            await world.reserve(place(job))
            await world.until_job("j", condition="PodBoundReservation=False/WaitForPodBindReservation")
            await world.client.patch(kinds.REPLICASETS, "web", {"spec": {"replicas": 0}}, NS)
            for number in range(1, 4):
                await world.client.delete(kinds.PODS, f"p{number}", NS)
            world.shift = machine.PATIENCE + 1
            await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"metadata": {"labels": {"look": "again"}}})
            job = await world.until_job("j", phase="Succeeded", status="Complete")
            assert "has all pods that it wants" in job["status"]["message"]
            await world.until_gone(kinds.RESERVATIONS, place(job))
            assert not life.died

    asyncio.run(scenario())
