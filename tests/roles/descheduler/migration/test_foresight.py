"""Right before a pod leaves, the scheduler is asked with its whole profile whether the next pod would come into the place (DS-MC-03)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api import kinds, names
from koord.api.objects import Pod, Reservation
from roles.descheduler.placement import SchedulerFlags, Simulations
from tests.roles.descheduler.migration.test_whole import configuration
from tests.support.migration import NS, Cluster, cluster, condition
from tests.support.wholecluster import PROFILE, Whole, at_work, descheduling, whole

pytestmark = pytest.mark.feature("DS-MC-03")
FREE = {"maxMigratingPerNode": 0, "maxMigratingPerWorkload": "90%", "maxUnavailablePerWorkload": "90%", "skipCheckExpectedReplicas": True}
NO_ROUNDS = "1h"


def play(scenario: Callable[[Whole], Awaitable[None]]) -> None:
    async def run() -> None:
        async with whole() as plan:
            await scenario(plan)

    asyncio.run(run())


async def held_back(plan: Whole) -> dict[str, Any]:
    """Two pods of a budget that allows nothing yet; the job of one of them has its place on another node. The job."""
    seen = {"observedGeneration": 1, "expectedPods": 2, "desiredHealthy": 2, "currentHealthy": 2, "disruptionsAllowed": 0}
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
    await plan.world.put(kinds.PODDISRUPTIONBUDGETS, "hold", {"spec": spec, "status": seen})
    await plan.world.job("j", "p0")
    return await plan.world.until_job("j", condition="Eviction=False/FailedEvict")


@pytest.mark.parametrize("whole_profile", [False, True], ids=["kube-scheduler", "the cluster's own"])
def test_a_place_that_the_scheduler_would_not_use_by_now_is_given_back(whole_profile: bool, tmp_path: Path) -> None:
    """While the pod waits for its budget another one comes to the node, which its successor must not be beside."""
    flags = None
    if whole_profile:
        path = tmp_path / "scheduler.yaml"
        head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        path.write_text(yaml.safe_dump({**head, "profiles": [PROFILE]}))
        flags = SchedulerFlags(str(path))

    async def scenario(plan: Whole) -> None:
        apart = [{"labelSelector": {"matchLabels": {"loud": "yes"}}, "topologyKey": "kubernetes.io/hostname"}]
        rule = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}}
        for name in ("n1", "n2", "n3"):
            await plan.client.patch(kinds.NODES, name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
        workers = await plan.workload({"p0": "n1", "p1": "n1"}, spec=rule)
        text = configuration(migration=FREE, deschedulingInterval=NO_ROUNDS)
        async with at_work(workers), descheduling(plan.client, text, flags) as (app, _):
            first = (await held_back(plan))["status"]["nodeName"]
            await plan.world.pod("noise", first, metadata={"labels": {"loud": "yes"}})

            async def heard() -> bool:
                return app._cluster.pods.get(f"{NS}/noise") is not None

            await plan.world.until(heard)  # pods and budgets come by watches of their own

            async def given_back() -> bool:
                job = await plan.world.get(kinds.PODMIGRATIONJOBS, "j")
                return first in (job or {})["metadata"].get("annotations", {}).get("descheduler.koordinator.sh/avoid", "")

            await plan.world.until(given_back)  # an attempt that was under way may have asked before
            await plan.client.delete(kinds.PODDISRUPTIONBUDGETS, "hold", NS)
            (job,) = await plan.until_ended(1)
            other = ({"n2", "n3"} - {first}).pop()
            assert (job["status"]["phase"], job["status"]["nodeName"]) == ("Succeeded", other)
            assert first in job["metadata"]["annotations"]["descheduler.koordinator.sh/avoid"]
            assert await plan.nodes_of(workers.born) == {other: 1}

    play(scenario)


def test_that_the_scheduler_has_no_configuration_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """koord is installed without its scheduler: the descheduler goes on with kube-scheduler's plugins."""

    async def scenario() -> None:
        path = tmp_path / "koord-scheduler-config"
        async with cluster() as world:
            life = await world.live()
            simulations = Simulations(life.informers, life.setup.cluster, world.client, SchedulerFlags(str(path)))
            life.informers.start()

            def told() -> int:
                return sum(str(path) in record.getMessage() for record in caplog.records)

            for _ in range(3):
                assert (await simulations.make(0.0)).knows("koord-scheduler")
            assert told() == 1
            head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
            path.write_text(yaml.safe_dump({**head, "profiles": [PROFILE]}))
            for _ in range(2):
                await simulations.make(0.0)
            path.unlink()
            await simulations.make(0.0)
            assert told() == 2, "it has gone again"
            await simulations.make(0.0)
            without = [record.getMessage() for record in caplog.records if "what-ifs do without" in record.getMessage()]
            assert len(set(without)) == len(without)

    asyncio.run(scenario())


def test_a_pod_whose_successor_would_find_no_place_stays() -> None:
    """A job names a place that is there already; by its own rules the next pod would not come into it."""

    async def scenario(plan: Whole) -> None:
        for name in ("n1", "n2", "n3"):
            await plan.client.patch(kinds.NODES, name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
        rule = {"nodeSelector": {"disk": "ssd"}}
        await plan.client.patch(kinds.NODES, "n1", {"metadata": {"labels": {"disk": "ssd"}}})
        workers = await plan.workload({"p0": "n1", "p1": "n1"}, spec=rule)
        pod = await plan.world.get(kinds.PODS, "p0")
        assert pod is not None
        owners = [{"controller": {**pod["metadata"]["ownerReferences"][0], "namespace": NS}}]
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
        template = {"metadata": {"labels": {"app": "web"}}, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
        keep = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}}}  # fmt: skip
        template["spec"]["affinity"] = keep
        await plan.world.put(kinds.RESERVATIONS, "mine", {"spec": {"owners": owners, "template": template, "ttl": "1h"}})

        async def lies() -> bool:
            found = await plan.world.get(kinds.RESERVATIONS, "mine")
            return bool(found and (found.get("status") or {}).get("nodeName"))

        await plan.world.until(lies)
        await plan.client.patch(kinds.NODES, "n2", {"metadata": {"labels": {"disk": "hdd"}}})
        async with at_work(workers), descheduling(plan.client, configuration(migration=FREE, deschedulingInterval=NO_ROUNDS)):
            await plan.world.job("j", "p0", reservationOptions={"reservationRef": {"name": "mine"}})
            job = await plan.world.until_job("j", phase="Failed")
            assert job["status"]["reason"] == "Unschedulable"
            assert not condition(job, "Eviction")
            assert not workers.born

    play(scenario)


class Slow:
    """The scheduler says yes, and while it is asked something happens."""

    def __init__(self, happens: Callable[[], Awaitable[None]]) -> None:
        self.happens = happens
        self.asked = 0

    async def refuse(self, pods: Sequence[Pod], held: Sequence[Reservation]) -> str:
        assert len(pods) == len(held)
        self.asked += 1
        if self.asked == 1:
            await self.happens()
        return ""


async def meanwhile(world: Cluster, what: str, reservation: str) -> None:
    """What may become of a place."""
    if what == "taken":
        await world.reserve(reservation, phase="Succeeded", currentOwners=[{"namespace": NS, "name": "extra", "uid": "extra"}])
    else:
        await world.client.patch(kinds.NODES, "n2", {"spec": {"unschedulable": True}})


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("taken", {"phase": "Failed", "reason": "ForbiddenMigratePod"}),
        ("cordoned", {"condition": "ReservationScheduled=False/Unschedulable"}),
    ],
)
def test_a_pod_stays_that_lost_its_place_while_the_scheduler_was_asked(what: str, wanted: dict[str, str]) -> None:
    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset()
            await world.pod("p", owner=owner)

            async def happens() -> None:
                await meanwhile(world, what, job["spec"]["reservationOptions"]["reservationRef"]["name"])

            slow = Slow(happens)
            await world.live(successors=slow)
            await world.job("j")
            job = await world.until_job("j", condition="ReservationCreated=True/")
            await world.reserve(job["spec"]["reservationOptions"]["reservationRef"]["name"])
            found = await world.until_job("j", **wanted)
            assert not condition(found, "Eviction")
            assert slow.asked
            assert await world.get(kinds.PODS, "p") is not None

    asyncio.run(scenario())


@pytest.mark.feature("SCH-GANG-01")
@pytest.mark.parametrize("what", ["taken", "cordoned"])
def test_a_gang_stays_if_another_member_lost_its_place_while_the_scheduler_was_asked(what: str) -> None:
    async def scenario() -> None:
        async with cluster() as world:
            await world.put(kinds.PODGROUPS, "train", {"spec": {"minMember": 2}})
            owner = await world.replicaset()
            for name in ("m0", "m1"):
                await world.pod(name, "n1", owner, metadata={"labels": {"app": "web", names.LABEL_POD_GROUP: "train"}})
            places: dict[str, str] = {}

            async def happens() -> None:
                await meanwhile(world, what, places[max(places)])  # the first by name is to leave first

            slow = Slow(happens)
            life = await world.live(successors=slow, migrateWholeGangs=True)
            assert (await life.evict("m0")).accepted
            jobs = await world.names(kinds.PODMIGRATIONJOBS)
            for name in jobs:
                job = await world.until_job(name, condition="ReservationCreated=True/")
                places[name] = job["spec"]["reservationOptions"]["reservationRef"]["name"]
            for name, node in zip(sorted(places), ("n3", "n2"), strict=True):
                await world.reserve(places[name], nodeName=node)
            if what == "taken":
                for name in jobs:
                    await world.until_job(name, phase="Failed")
            else:
                await world.until_job(max(places), condition="ReservationScheduled=False/Unschedulable")
            assert slow.asked
            for name in jobs:
                assert not condition(await world.get(kinds.PODMIGRATIONJOBS, name) or {}, "Eviction")
            assert await world.names(kinds.PODS) == ["m0", "m1"]

    asyncio.run(scenario())
