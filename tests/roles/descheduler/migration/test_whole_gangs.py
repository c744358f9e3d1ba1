"""Gangs that have nobody to spare move as one where that is configured: all members get a place first, then all leave, or none does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api import kinds, names
from koord.api.objects import PodMigrationJob, convert
from koord.kube import errors
from roles.descheduler.migration.arbitration import Outcome, Waiting, arbitrate
from roles.descheduler.migration.limits import Migrating, Migration, Refusal
from roles.descheduler.migration.machine import decide
from roles.descheduler.migration.step import Unit, View
from roles.descheduler.placement import SchedulerFlags
from roles.descheduler.workloads import Workload, Workloads
from tests.roles.descheduler.migration.test_whole import configuration
from tests.support.migration import NS, Cluster, Life, cluster, condition
from tests.support.wholecluster import Whole, Workers, at_work, descheduling, whole

Obj = dict[str, Any]
INSTALLED = Path(__file__).resolve().parents[4] / "configs" / "install" / "30-config.yaml"
FREE = {"maxMigratingPerNode": 1, "objectLimiters": {"workload": {"duration": "5m"}}, "migrateWholeGangs": True}
IN_GANG = {names.LABEL_POD_GROUP: "train"}


def installed() -> Obj:
    """The scheduler's profile as it is installed."""
    found = (each for each in yaml.safe_load_all(INSTALLED.read_text()) if each["metadata"]["name"] == "koord-scheduler-config")
    profile: Obj = yaml.safe_load(next(found)["data"]["koord-scheduler-config"])["profiles"][0]
    return profile


def play(scenario: Callable[[Whole], Awaitable[None]]) -> None:
    async def run() -> None:
        async with whole(installed()) as plan:
            await scenario(plan)

    asyncio.run(run())


async def gang(plan: Whole, members: dict[str, str], *, cpu: str = "100m", minimum: int | None = None, **spec: Any) -> Workers:
    await plan.world.put(kinds.PODGROUPS, "train", {"spec": {"minMember": minimum or len(members)}})
    return await plan.workload(members, cpu=cpu, labels=IN_GANG, spec=spec)


def scheduler(folder: Path) -> SchedulerFlags:
    path = folder / "scheduler.yaml"
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    path.write_text(yaml.safe_dump({**head, "profiles": [installed()]}))
    return SchedulerFlags(str(path))


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("SCH-GANG-01")
def test_a_gang_at_its_minimum_leaves_a_hot_node_as_a_whole(tmp_path: Path) -> None:
    """Nobody leaves before everybody has a place; limits of a node and of a workload count the gang once."""

    async def scenario(plan: Whole) -> None:
        workers = await gang(plan, {"m0": "n1", "m1": "n1", "m2": "n3"})
        await plan.report("n1", "7", {"m0": "300m", "m1": "300m"})
        await plan.report("n2", "1")
        await plan.report("n3", "4", {"m2": "300m"})
        text = configuration(migration=FREE, deschedulingInterval="300ms")
        async with at_work(workers), descheduling(plan.client, text, scheduler(tmp_path)) as (_, recorder):
            jobs = await plan.until_ended(3)
        assert [(job["status"]["phase"], job["status"]["nodeName"]) for job in jobs] == [("Succeeded", "n2")] * 3
        assert len({job["metadata"]["annotations"][names.ANNOTATION_MIGRATION_GANG] for job in jobs}) == 1
        assert await plan.nodes_of(workers.born) == {"n2": 3}
        steps = [record for job in jobs for record in recorder.ring.find(kind="PodMigrationJob", name=job["metadata"]["name"])]
        placed = [record.time for record in steps if record.verdict == "ReservationScheduled"]
        asked = [record.time for record in steps if record.verdict == "Evicted"]
        assert (len(placed), len(asked)) == (3, 3)
        assert max(placed) <= min(asked)

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("SCH-GANG-01")
def test_a_gang_of_which_one_finds_no_place_stays_and_holds_nothing() -> None:
    async def scenario(plan: Whole) -> None:
        workers = await gang(plan, {"m0": "n1", "m1": "n1", "m2": "n1"}, cpu="3")
        idle = await plan.world.replicaset("idle", 1)
        for node in ("n2", "n3"):  # room for one each
            held = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "6"}}}]
            await plan.world.pod(f"idle-{node}", node, idle, controller="idle", spec={"containers": held})
        await plan.report("n1", "7", {"m0": "300m", "m1": "300m", "m2": "300m"})
        await plan.report("n2", "1", {"idle-n2": "100m"})
        await plan.report("n3", "1", {"idle-n3": "100m"})
        text = configuration(migration=FREE | {"defaultJobTTL": "3s"}, deschedulingInterval="300ms")
        async with at_work(workers), descheduling(plan.client, text):
            jobs = await plan.until_ended(3)

            async def released() -> bool:
                return not await plan.held()

            await plan.world.until(released)
        assert {job["status"]["phase"] for job in jobs} == {"Failed"}
        assert not any(condition(job, "Eviction") for job in jobs)
        assert not workers.born

    play(scenario)


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("SCH-GANG-01")
def test_a_gang_moves_as_one_only_if_all_may_leave_and_it_is_asked_for() -> None:
    async def scenario(world: Cluster) -> None:
        await world.put(kinds.PODGROUPS, "train", {"spec": {"minMember": 3}})
        owner = await world.replicaset(replicas=3)
        for name in ("m0", "m1", "m2"):
            await world.pod(name, "n1", owner, metadata={"labels": {"app": "web"} | IN_GANG})
        life = await world.live()
        assert "migrateWholeGangs" in life.refusal("m0")
        assert "would have 2 of the 3 members" in life.refusal("m0")
        await life.kill()
        life = await world.live(**FREE)
        assert life.refusal("m0") == ""
        seen = {"observedGeneration": 1, "expectedPods": 3, "desiredHealthy": 1, "currentHealthy": 3, "disruptionsAllowed": 2}
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        await world.put(kinds.PODDISRUPTIONBUDGETS, "two", {"spec": spec, "status": seen})

        async def held() -> bool:
            return "budget two" in life.refusal("m0")

        await world.until(held)
        await world.client.delete(kinds.PODDISRUPTIONBUDGETS, "two", NS)

        async def free() -> bool:
            return life.refusal("m0") == ""

        await world.until(free)
        never = {"metadata": {"annotations": {names.ANNOTATION_EVICTION_COST: str(2**31 - 1)}}}
        await world.client.patch(kinds.PODS, "m2", never, NS)

        async def known() -> bool:
            return life.refusal("m2") != ""

        await world.until(known)
        refused = await life.evict("m0")
        assert not refused.accepted
        assert "m2" in refused.message
        assert await world.names(kinds.PODMIGRATIONJOBS) == []

    async def run() -> None:
        async with cluster() as world:
            await scenario(world)

    asyncio.run(run())


async def orphans(world: Cluster, second: str) -> Life:
    """A gang of two at its minimum, and what moves it; the second one's controller is this one, the first one's ReplicaSet web."""
    await world.put(kinds.PODGROUPS, "train", {"spec": {"minMember": 2}})
    own = await world.replicaset(replicas=8)
    for name, owner in (("m0", own), ("m1", second or own)):
        await world.pod(name, "n1", owner, metadata={"labels": {"app": "web"} | IN_GANG})
    return await world.live(**FREE)


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("SCH-GANG-01")
@pytest.mark.parametrize(("second", "said"), [("before", "no controller would replace the pod"), ("", "")])
def test_a_gang_stays_if_nobody_would_replace_a_member(second: str, said: str) -> None:
    async def scenario() -> None:
        async with cluster() as world:
            life = await orphans(world, second)
            assert said in life.refusal("m1")
            assert bool(life.refusal("m1")) is bool(said)
            found = await life.evict("m0")
            assert found.accepted is not bool(said)
            assert said in found.message

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("SCH-GANG-01")
def test_no_member_of_a_gang_leaves_if_one_would_not_be_replaced_since_the_jobs_were_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workload of the second was made anew; the watch of ReplicaSets does not say so yet."""

    async def scenario() -> None:
        async with cluster() as world:
            known = Workload("ReplicaSet", NS, "web", "before", 8, frozenset({"before"}))
            monkeypatch.setattr(Workloads, "of", lambda _self, _pod: known)
            life = await orphans(world, "before")
            assert (await life.evict("m0")).accepted
            jobs = await world.names(kinds.PODMIGRATIONJOBS)
            assert len(jobs) == 2
            for name in jobs:
                made = await world.until_job(name, condition="ReservationCreated=True/")
                reservation = str(
                    (await world.get(kinds.PODMIGRATIONJOBS, name) or made)["spec"]["reservationOptions"]["reservationRef"]["name"]
                )
                await world.reserve(reservation)
            for name in jobs:
                ended = await world.until_job(name, phase="Failed")
                assert "has another uid than the pod's owner" in ended["status"]["message"]
                assert not condition(ended, "Eviction")
            assert await world.names(kinds.PODS) == ["m0", "m1"]

    asyncio.run(scenario())


async def placed(world: Cluster, life: Life) -> dict[str, str]:
    """The gang is to move, and all its members have places: these, by their jobs in the order of names."""
    assert (await life.evict("m0")).accepted
    places = {}
    for name in sorted(await world.names(kinds.PODMIGRATIONJOBS)):
        made = await world.until_job(name, condition="ReservationCreated=True/")
        places[name] = str(made["spec"]["reservationOptions"]["reservationRef"]["name"])
    for reservation in places.values():
        await world.reserve(reservation)
    return places


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-04")
@pytest.mark.feature("SCH-GANG-01")
def test_no_other_member_of_a_gang_leaves_before_the_eviction_of_the_first_is_accepted() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            life = await orphans(world, "")
            asked: list[str] = []
            answered = asyncio.Event()
            evict = life.client.evict

            async def refuse_once(namespace: str, pod: str, **more: Any) -> None:
                if "dryRun" not in (more.get("options") or {}):
                    asked.append(pod)
                    if len(asked) == 1:
                        await answered.wait()
                        raise errors.TooManyRequests(429, "TooManyRequests", "no disruption is allowed")
                await evict(namespace, pod, **more)

            life.client.evict = refuse_once  # type: ignore[method-assign,assignment]
            first, second = await placed(world, life)
            await world.until_job(first, condition="Eviction=Unknown/Evicting")
            await world.until_job(second, condition="ReservationScheduled=True/")
            await life.migrations.reconciler.reconcile(second)
            assert len(asked) <= 1
            assert not condition(await world.get(kinds.PODMIGRATIONJOBS, second) or {}, "Eviction")
            answered.set()
            for pod in ("m0", "m1"):
                await world.until_gone(kinds.PODS, pod)
            assert len(asked) == 3
            assert asked[0] == asked[1]

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("SCH-GANG-01")
def test_a_gang_stays_if_the_job_of_the_first_ends_without_an_answer_to_its_eviction() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            life = await orphans(world, "")

            async def silent(_namespace: str, _pod: str, **more: Any) -> None:
                if "dryRun" not in (more.get("options") or {}):
                    raise errors.Unreachable("the line is dead")

            life.client.evict = silent  # type: ignore[method-assign,assignment]
            places = await placed(world, life)
            first, second = places
            await world.until_job(first, condition="Eviction=Unknown/Evicting")
            await world.reserve(places[first], phase="Succeeded", currentOwners=[{"namespace": NS, "name": "extra", "uid": "extra"}])
            await world.until_job(first, phase="Failed")
            ended = await world.until_job(second, phase="Failed")
            assert "moves as one or not at all" in ended["status"]["message"]
            assert not condition(ended, "Eviction")

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-09")
@pytest.mark.feature("SCH-GANG-01")
def test_after_a_restart_object_limiters_count_a_gang_once() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            life = await orphans(world, "")
            for name in await placed(world, life):
                await world.until_job(name, condition="Eviction=True/EvictComplete")
            await life.kill()
            own = await world.get(kinds.REPLICASETS, "web")
            assert own is not None
            await world.pod("alone", "n3", own["metadata"]["uid"])
            limiters = {"workload": {"duration": "1h", "maxMigrating": 1, "burst": 2}}
            life = await world.live(maxMigratingPerWorkload=6, maxUnavailablePerWorkload=6, objectLimiters=limiters)
            await world.until(life.leads)
            assert (await life.evict("alone")).accepted

    asyncio.run(scenario())


def job(name: str, phase: str = "Running") -> PodMigrationJob:
    body = {
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"podRef": {"namespace": NS, "name": name, "uid": name}, "mode": "EvictDirectly"},
        "status": {"phase": phase},
    }
    return convert(body, PodMigrationJob)


@pytest.mark.feature("DS-ARB-01")
def test_arbitration_lets_a_gang_begin_together_or_not_at_all() -> None:
    pod = object()

    def ruled(full: set[str], missing: int = 0) -> dict[str, Outcome]:
        queue = [Waiting(job(name, ""), pod, "u", 3, missing) for name in ("a", "b", "c")]  # type: ignore[arg-type]
        queue.insert(1, Waiting(job("alone", ""), pod))  # type: ignore[arg-type]
        found = arbitrate(
            queue, Migrating(), forbidden=lambda _: None,
            reached=lambda each: Refusal("MaxMigratingPerNode", "full", 1, 1) if each.job.metadata.name in full else None,
            enter=lambda each: Migration(each.job.metadata.name, NS, each.job.metadata.name, each.job.metadata.uid),
        )  # fmt: skip
        return {each.waiting.job.metadata.name: each.outcome for each in found}

    assert ruled(set()) == dict.fromkeys(("a", "b", "c", "alone"), Outcome.PASS)
    assert ruled({"b"}) == {**dict.fromkeys(("a", "b", "c"), Outcome.WAIT), "alone": Outcome.PASS}
    assert ruled(set(), missing=1) == {**dict.fromkeys(("a", "b", "c"), Outcome.WAIT), "alone": Outcome.PASS}


@pytest.mark.feature("DS-MC-03")
@pytest.mark.parametrize(
    ("unit", "verdict"),
    [
        (Unit("d/g", 3, placed=2, begun=False, first=True), "Waiting"),
        (Unit("d/g", 3, placed=3, begun=False, first=False), "Waiting"),
        (Unit("d/g", 3, placed=3, begun=False, first=True), "Evicting"),
        (Unit("d/g", 3, placed=1, begun=True, first=False), "Evicting"),  # who has begun goes on
        (Unit("d/g", 3, placed=2, begun=False, first=True, lost="another one failed"), "Failed"),
    ],
)
def test_a_member_leaves_after_all_have_a_place_and_stays_when_one_fails(unit: Unit, verdict: str) -> None:
    from koord.api.objects import Pod

    pod = convert({"metadata": {"name": "a", "namespace": NS, "uid": "a"}, "spec": {"nodeName": "n1", "containers": []}}, Pod)
    assert decide(View(job=job("a"), now=1.8e9, pod=pod, unit=unit)).verdict == verdict
