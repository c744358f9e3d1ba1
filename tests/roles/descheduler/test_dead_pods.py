"""Pods that have ended, and pods without an owner, through the default evictor: they leave at once and hold no place."""

from __future__ import annotations

import asyncio

import pytest

from koord.api import kinds
from roles.descheduler.framework.evicting import EvictOptions
from tests.roles.descheduler.support import OWNER, Obj, configuration, descheduling, eventually, node, pod, replicaset
from tests.support.migration import NS, cluster, condition

FREE = {"evictQPS": "1000", "evictBurst": 1000, "arbitrationArgs": {"interval": "10ms"}}


def defaults(plugin: str, args: Obj, migration: Obj | None = None) -> str:
    """One Deschedule plugin with MigrationController as it is by default, but for its pace."""
    text = configuration(
        {"deschedule": [plugin]}, {plugin: args, "MigrationController": FREE | (migration or {})}, deschedulingInterval="200ms"
    )
    return text.replace("name: DefaultEvictor", "name: MigrationController")


@pytest.mark.feature("DS-K8S-02")
@pytest.mark.feature("DS-MC-01")
def test_failed_pods_leave_a_full_cluster_at_once_however_many_they_are() -> None:
    """The successors exist; nothing is free, nobody waits for a limit of running pods, no reservation is made."""
    alive = [pod(f"a{number}", "n1" if number < 2 else "n2", cpu="5") for number in range(4)]
    failed = [pod(f"dead{number}", "n1", cpu="5", status={"phase": "Failed", "reason": "Evicted", "conditions": []}) for number in range(5)]
    objects = [node("n1"), node("n2"), {**replicaset(replicas=4)}, *alive, *failed]

    async def scenario() -> None:
        async with descheduling(objects, defaults("RemoveFailedPods", {"minPodLifetimeSeconds": 0})) as running:

            async def gone() -> bool:
                return await running.pods() == {"a0", "a1", "a2", "a3"}

            await eventually(gone)
            assert not (await running.client.list(kinds.RESERVATIONS)).items
            jobs = (await running.client.list(kinds.PODMIGRATIONJOBS)).items
            assert {job["spec"]["mode"] for job in jobs} == {"EvictDirectly"}

    asyncio.run(scenario())


@pytest.mark.feature("DS-FLT-01")
@pytest.mark.feature("DS-MC-01")
def test_bare_pods_leave_without_a_place_that_nobody_could_use() -> None:
    bare = pod("bare", "n1", owned=False)
    objects = [node("n1"), node("n2"), bare, pod("owned", "n1", meta={"ownerReferences": [OWNER], "annotations": {"keep": "x"}})]
    text = defaults("PodLifeTime", {"states": ["Running"], "labelSelector": {"matchLabels": {"bare": "yes"}}}, {"evictAllBarePods": True})
    bare["metadata"]["labels"] = {"bare": "yes"}

    async def scenario() -> None:
        async with descheduling(objects, text) as running:

            async def gone() -> bool:
                return await running.pods() == {"owned"}

            await eventually(gone)
            assert not (await running.client.list(kinds.RESERVATIONS)).items

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-04")
def test_a_persons_job_for_a_pod_that_nobody_replaces_makes_no_reservation() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            await world.pod("bare", metadata={"annotations": {"descheduler.alpha.kubernetes.io/evict": ""}})
            await world.live()
            await world.job("j", "bare", mode="ReservationFirst")
            job = await world.until_job("j", phase="Succeeded", status="Complete")
            assert job["spec"]["mode"] == "EvictDirectly"
            assert not await world.names(kinds.RESERVATIONS)

    asyncio.run(scenario())


@pytest.mark.feature("DS-ARB-03")
def test_dead_pods_count_in_no_limit_of_running_pods() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset(replicas=4)
            for name in ("a", "b", "c", "d"):
                await world.pod(name, owner=owner)
            hold = {"finalizers": ["test/hold"]}
            for name in ("x", "y", "z"):
                await world.pod(name, owner=owner, metadata=hold)
                await world.client.patch(kinds.PODS, name, {"status": {"phase": "Failed"}}, NS, subresource="status")
            life = await world.live(maxMigratingPerNode=1, maxMigratingPerWorkload=1, maxUnavailablePerWorkload=3, maxMigratingGlobally=1)

            async def seen() -> bool:
                return all((found := life.setup.cluster.pod(NS, name)) is not None and found.status.phase == "Failed" for name in "xyz")

            await world.until(seen)
            for name in ("x", "y", "z"):
                found = life.setup.cluster.pod(NS, name)
                assert found is not None
                assert (await life.plugin.evict(found, EvictOptions("RemoveFailedPods", "dead"))).accepted
            assert not life.refusal("a")  # neither the dead nor their jobs keep a running pod from moving

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-09")
def test_after_a_restart_object_limiters_count_no_pods_that_had_ended() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset()
            for name in ("a", "b"):
                await world.pod(name, owner=owner)
            await world.client.patch(kinds.PODS, "a", {"status": {"phase": "Failed"}}, NS, subresource="status")
            limiters = {"workload": {"duration": "1h"}, "namespace": {"duration": "1h", "maxMigrating": 1}}
            life = await world.live(objectLimiters=limiters)
            assert (await life.evict("a", plugin="RemoveFailedPods", reason="dead")).accepted
            (job,) = await world.names(kinds.PODMIGRATIONJOBS)
            ended = await world.until_job(job, phase="Succeeded", status="Complete")
            assert condition(ended, "Arbitration")["reason"] == "PodEnded"
            await life.kill()
            life = await world.live(objectLimiters=limiters)
            await world.until(life.leads)
            assert (await life.evict("b")).accepted

    asyncio.run(scenario())
