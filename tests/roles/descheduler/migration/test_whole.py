"""Migrations in a cluster with the real scheduler: objects in; jobs, reservations, evictions, events and records out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import yaml

from koord.api import kinds, names
from tests.roles.descheduler.migration.test_at_once import place
from tests.support.migration import FREE, NS, condition
from tests.support.wholecluster import Whole, at_work, descheduling, whole

Scenario = Callable[[Whole], Awaitable[None]]
LOAD = {
    "lowThresholds": {"cpu": 30},
    "highThresholds": {"cpu": 60},
    "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1, "timeout": "1m"},
}


def play(scenario: Scenario) -> None:
    async def run() -> None:
        async with whole() as plan:
            await scenario(plan)

    asyncio.run(run())


def configuration(*, migration: dict[str, Any] | None = None, load: dict[str, Any] | None = None, **top: Any) -> str:
    """LowNodeLoad and MigrationController, in a hurry."""
    profile = {
        "name": "balance",
        "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        "pluginConfig": [
            {"name": "LowNodeLoad", "args": LOAD | (load or {})},
            {"name": "MigrationController", "args": FREE | {"defaultJobTTL": "2m"} | (migration or {})},
        ],
    }
    head = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "leaderElection": {"leaderElect": False}}
    return yaml.safe_dump(head | {"deschedulingInterval": "0s", "profiles": [profile]} | top)


async def hot(plan: Whole) -> dict[str, str]:
    """n1 is hot by six pods that all use the same, n2 has room, n3 has not been heard of."""
    pods = {f"p{number}": "n1" if number < 6 else "n2" for number in range(8)}
    await plan.report("n1", "5", {name: "300m" for name, node in pods.items() if node == "n1"})
    await plan.report("n2", "1")
    return pods


@pytest.mark.feature("DS-FW-03")
@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-MC-01")
@pytest.mark.feature("DS-ARB-03")
@pytest.mark.parametrize("limits", [{}, {"maxMigratingPerWorkload": 4, "maxMigratingPerNode": 3, "maxUnavailablePerWorkload": "50%"}])
def test_a_dry_run_lists_who_leaves_and_where_to_and_a_real_run_does_just_that(limits: dict[str, Any]) -> None:
    async def scenario(plan: Whole) -> None:
        await plan.client.delete(kinds.NODES, "n3")
        pods = await hot(plan)
        workers = await plan.workload(pods)
        listed: dict[str, str] = {}
        async with descheduling(plan.client, configuration(migration=limits, dryRun=True)) as (app, recorder):

            async def done() -> bool:
                return bool(app.metrics.registry.get_sample_value("koord_descheduler_rounds_total", {"result": "done"}))

            await plan.world.until(done)
            for record in recorder.ring.find(kind="Pod"):
                if record.verdict == "WouldEvict":
                    listed[record.subject.name] = record.message
        assert not await plan.jobs()
        assert len(listed) == limits.get("maxMigratingPerNode", 2)
        assert all("the scheduler would put it on n2" in message for message in listed.values()), listed
        async with at_work(workers), descheduling(plan.client, configuration(migration=limits)):
            jobs = await plan.until_ended(len(listed))
            assert {job["spec"]["podRef"]["name"] for job in jobs} == set(listed)
            assert {job["status"]["nodeName"] for job in jobs} == {"n2"}
            for job in jobs:
                assert job["metadata"]["annotations"][names.ANNOTATION_EVICT_TRIGGER] == "LowNodeLoad"
                assert job["metadata"]["annotations"][names.ANNOTATION_EVICT_REASON] in listed[job["spec"]["podRef"]["name"]]
            assert await plan.nodes_of(workers.born) == {"n2": len(listed)}

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-07")
@pytest.mark.feature("DS-OBS-01")
@pytest.mark.feature("DS-ARB-01")
def test_what_a_migration_leaves_to_be_read() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(8)})
        life = await world.live()
        async with at_work(workers):
            await world.job("j", "p3", ttl="90s")
            job = await world.until_job("j", phase="Succeeded", status="Complete")
        made = await world.get(kinds.RESERVATIONS, job["metadata"]["uid"]) or {}
        assert made["spec"]["ttl"] == "90s"
        assert made["spec"]["owners"][0]["controller"]["uid"] == workers.owner
        assert made["status"]["nodeName"] == job["status"]["nodeName"] != "n1"
        assert job["metadata"]["annotations"][names.ANNOTATION_PASSED_ARBITRATION] == "true"
        wanted = ("ReservationCreated", "ReservationScheduled", "Eviction", "ReservationBound", "BoundPodReady", "PodBoundReservation")
        assert {kind: condition(job, kind)["status"] for kind in wanted} == dict.fromkeys(wanted, "True")
        new = await world.get(kinds.PODS, job["status"]["podRef"]["name"]) or {}
        assert new["spec"]["nodeName"] == job["status"]["nodeName"]
        assert names.ANNOTATION_RESERVATION_ALLOCATED in new["metadata"]["annotations"]
        told = {event["reason"] for event in await world.events("PodMigrationJob", "j")}
        assert {"ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete", "PodBoundReservation", "Complete"} <= told
        assert "Descheduled" in {event["reason"] for event in await world.events("Pod", "p3")}
        labels = {"result": "success", "strategy": "", "namespace": NS, "node": "n1"}
        assert life.metrics.registry.get_sample_value("descheduler_pods_evicted", labels) == 1.0

        def told_so_far() -> list[str]:
            records = sorted(life.recorder.ring.find(kind="PodMigrationJob", name="j"), key=lambda record: record.time)
            return [record.verdict for record in records]

        async def all_told() -> bool:
            return {"Passed", "Complete"} <= set(told_so_far())

        await world.until(all_told)  # a watch may be ahead of the answer to the write that it shows
        verdicts = [verdict for verdict in told_so_far() if verdict != "Waiting"]  # it may be looked at before it passes
        assert verdicts[0] == "Passed", verdicts
        assert verdicts.index("Reserving") < verdicts.index("Evicted") < verdicts.index("Complete")

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-06")
def test_the_node_that_was_promised_vanishes_before_the_pod_has_left() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(4)})
        seen = {"observedGeneration": 1, "expectedPods": 4, "desiredHealthy": 4, "currentHealthy": 4, "disruptionsAllowed": 0}
        budget = {"spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "web"}}}, "status": seen}
        await world.put(kinds.PODDISRUPTIONBUDGETS, "hold", budget)
        await world.live()
        async with at_work(workers):
            await world.job("j", "p0")
            lost = (await world.until_job("j", condition="Eviction=False/FailedEvict"))["status"]["nodeName"]
            await plan.client.delete(kinds.NODES, lost)
            other = ({"n2", "n3"} - {lost}).pop()
            await world.until_job("j", condition="ReservationScheduled=True/", nodeName=other)
            assert await world.get(kinds.PODS, "p0") is not None
            await plan.client.delete(kinds.PODDISRUPTIONBUDGETS, "hold", NS)
            await world.until_job("j", phase="Succeeded", nodeName=other)
            assert await plan.nodes_of(workers.born) == {other: 1}

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-06")
def test_the_node_that_was_promised_vanishes_after_the_pod_has_left() -> None:
    """The job says so and holds nothing; the scheduler finds another node for the successor."""

    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(4)})
        await world.live()
        await world.job("j", "p0")
        job = await world.until_job("j", condition="Eviction=True/EvictComplete")
        await plan.client.delete(kinds.NODES, job["status"]["nodeName"])
        job = await world.until_job("j", phase="Failed", reason="ReservationExpired")
        await world.until_gone(kinds.RESERVATIONS, place(job))
        async with at_work(workers):

            async def placed() -> bool:
                return bool(workers.born) and "" not in await plan.nodes_of(workers.born)

            await world.until(placed)
        assert job["status"]["nodeName"] not in await plan.nodes_of(workers.born)

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-06")
def test_no_place_is_found_until_the_time_is_up() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(4)}, cpu="2")
        for node in ("n2", "n3"):
            await world.pod(
                f"full-{node}", node, spec={"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "9"}}}]}
            )
        await world.live()
        async with at_work(workers):
            await world.job("j", "p0", ttl="5m")
            job = await world.until_job("j", condition="ReservationScheduled=False/Unschedulable")
            assert "Insufficient cpu" in condition(job, "ReservationScheduled")["message"]
            world.shift = 301.0
            await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"metadata": {"labels": {"look": "again"}}})
            job = await world.until_job("j", phase="Failed", reason="Timeout")
            await world.until_gone(kinds.RESERVATIONS, place(job))
        assert await world.get(kinds.PODS, "p0") is not None

    play(scenario)


@pytest.mark.feature("DS-MC-04")
@pytest.mark.feature("DS-MC-08")
def test_a_pod_that_leaves_at_once_comes_again_where_the_scheduler_wants_it() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(4)})
        await world.live(evictionPolicy="Delete")
        async with at_work(workers):
            await world.job("j", "p0", mode="EvictDirectly")
            job = await world.until_job("j", phase="Succeeded", status="Complete")
            assert "reservationOptions" not in job["spec"]

            async def again() -> bool:
                return sum((await plan.nodes_of(workers.born)).values()) == 1 and "" not in await plan.nodes_of(workers.born)

            await world.until(again)

    play(scenario)


@pytest.mark.feature("DS-MC-09")
def test_an_object_limiter_spaces_the_migrations_of_a_workload() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(8)})
        life = await world.live(objectLimiters={"workload": {"duration": "10m", "maxMigrating": 1}}, maxMigratingPerWorkload=4)
        async with at_work(workers):
            await world.job("first", "p0")
            await world.until_job("first", phase="Succeeded")
            await world.job("second", "p1", ttl="1h")
            await world.until_job("second", phase="Running")

            async def limited() -> bool:
                return any(record.verdict == "Limited" for record in life.recorder.ring.find(kind="PodMigrationJob", name="second"))

            await world.until(limited)
            assert await world.get(kinds.PODS, "p1") is not None
            assert not await plan.held()
            world.shift = 601.0
            await world.client.patch(kinds.PODMIGRATIONJOBS, "second", {"metadata": {"labels": {"look": "again"}}})
            await world.until_job("second", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-ARB-01")
@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("DS-ARB-03")
@pytest.mark.feature("DS-ARB-04")
@pytest.mark.feature("DS-FLT-01")
@pytest.mark.feature("DS-WL-01")
@pytest.mark.parametrize("gates", [[], ["MaxMigratingPerWorkload", "MaxUnavailablePerWorkload", "ExpectedReplicas", "BarePods"]])
def test_who_moves_first_who_waits_and_who_never_may(gates: list[str]) -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(4)})
        for name in ("p0", "p1"):
            await world.client.patch(
                kinds.PODS, name, {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": f"{ord(name[1])}"}}}, NS
            )
        await world.pod("bare", "n1")
        life = await world.live(maxMigratingPerWorkload=1, skipEvictionGates=gates, maxMigratingPerNode=0)
        for name in ("p1", "p0", "bare"):
            await world.job(f"j-{name}", name, mode="EvictDirectly" if name == "bare" else "ReservationFirst")
        if gates:  # everybody may begin at once, though nobody comes yet
            for name in ("p0", "p1"):
                await world.until_job(f"j-{name}", condition="Eviction=True/EvictComplete")
            await world.until_job("j-bare", phase="Succeeded")
            return
        job = await world.until_job("j-bare", phase="Failed", reason="ForbiddenMigratePod")
        assert "does not meet the requirements" in job["status"]["message"]

        async def one_left() -> str:
            gone = [name for name in ("p0", "p1") if await world.get(kinds.PODS, name) is None]
            assert len(gone) < 2
            return gone[0] if gone else ""

        first = await world.until(one_left)
        second = "p1" if first == "p0" else "p0"

        async def told() -> bool:
            found = life.recorder.ring.find(kind="PodMigrationJob", name=f"j-{second}")
            return any(record.verdict == "Waiting" and record.numbers.get("gate") == "MaxMigratingPerWorkload" for record in found)

        await world.until(told)
        async with at_work(workers):
            await world.until_job(f"j-{first}", phase="Succeeded")
            await world.until_job(f"j-{second}", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-MC-02")
@pytest.mark.feature("DS-MC-05")
def test_a_waiting_pod_gets_its_own_place_and_the_table_of_jobs_says_so() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(4)}, replicas=4)
        await world.live()
        big = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "30"}}}
        await world.pod("big", "", workers.owner, spec={"containers": [big]})
        await world.job("j", "big")
        await world.until_job("j", condition="ReservationScheduled=False/Unschedulable")
        await world.node("n4")
        room = {"cpu": "40", "memory": "40Gi", "pods": "110"}
        await world.client.patch(kinds.NODES, "n4", {"status": {"capacity": room, "allocatable": room}}, subresource="status")
        job = await world.until_job("j", phase="Succeeded", condition="PodScheduled=True/")
        assert await plan.nodes_of(["big"]) == {"n4": 1}
        assert condition(job, "Eviction") == {}

        async def nothing_held() -> bool:
            return not await plan.held()

        await world.until(nothing_held)

    play(scenario)


@pytest.mark.feature("DS-FW-03")
@pytest.mark.feature("DS-CFG-01")
def test_a_plugin_that_is_observed_lists_what_it_would_do_and_does_nothing() -> None:
    """By `observe` of a profile, which every plugin has; the limits of migrations count in the list, and hold nothing afterwards."""

    async def scenario(plan: Whole) -> None:
        await plan.client.delete(kinds.NODES, "n3")
        pods = await hot(plan)
        workers = await plan.workload(pods)
        text = configuration(deschedulingInterval="200ms").replace("- name: balance", "- name: balance\n  observe: [LowNodeLoad]")
        async with at_work(workers), descheduling(plan.client, text) as (app, recorder):

            async def twice() -> bool:
                return (app.metrics.registry.get_sample_value("koord_descheduler_rounds_total", {"result": "done"}) or 0) >= 2

            await plan.world.until(twice)
            found = [record for record in recorder.ring.find(kind="Pod") if record.verdict == "WouldEvict"]
            assert len({record.subject.name for record in found}) == 2  # maxMigratingPerNode
            assert all("dry run by observe of profile balance" in record.message for record in found)
            assert all("the scheduler would put it on n2" in record.message for record in found)
            assert not await plan.jobs()
            assert not workers.born

    play(scenario)


@pytest.mark.feature("DS-CP-01")
@pytest.mark.feature("DS-CP-02")
@pytest.mark.parametrize("mode", ["BestEffort", "DrainNode"])
def test_a_pod_that_leaves_an_expensive_node_goes_to_a_cheaper_one_only(mode: str) -> None:
    async def scenario(plan: Whole) -> None:
        for node, cost in (("n1", "hi"), ("n2", "hi"), ("n3", "lo")):
            await plan.client.patch(kinds.NODES, node, {"metadata": {"labels": {"cost": cost}}})
        await plan.world.pod("other", "n3", spec={"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "7"}}}]})
        workers = await plan.workload({f"p{number}": "n1" for number in range(2)}, replicas=8)  # the scheduler would have them on n2
        levels = [{"name": cost, "nodeSelector": {"matchLabels": {"cost": cost}}} for cost in ("hi", "lo")]
        profile = {
            "name": "cheaper",
            "plugins": {"balance": {"enabled": [{"name": "CustomPriority"}]}},
            "pluginConfig": [
                {"name": "CustomPriority", "args": {"evictionOrder": levels, "mode": mode}},
                {"name": "MigrationController", "args": FREE | {"skipEvictionGates": ["MaxUnavailablePerWorkload"]}},
            ],
        }
        async with at_work(workers), descheduling(plan.client, configuration(profiles=[profile])):
            jobs = await plan.until_ended(2)
        assert {(job["status"]["phase"], job["status"]["nodeName"]) for job in jobs} == {("Succeeded", "n3")}

    play(scenario)


@pytest.mark.feature("DS-K8S-10")
def test_a_pod_of_a_node_that_is_to_be_emptied_does_not_go_to_another_such_node() -> None:
    async def scenario(plan: Whole) -> None:
        await plan.world.pod("other", "n3", spec={"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "5"}}}]})
        workers = await plan.workload({"p0": "n1"}, replicas=8)  # the scheduler would have them on n2, which is empty
        profile = {
            "name": "fuller",
            "plugins": {"balance": {"enabled": [{"name": "HighNodeUtilization"}]}},
            "pluginConfig": [
                {"name": "HighNodeUtilization", "args": {"thresholds": {"cpu": 20}}},
                {"name": "MigrationController", "args": FREE | {"skipEvictionGates": ["MaxUnavailablePerWorkload"]}},
            ],
        }
        async with at_work(workers), descheduling(plan.client, configuration(profiles=[profile])):
            jobs = await plan.until_ended(1)
        assert {(job["status"]["phase"], job["status"]["nodeName"]) for job in jobs} == {("Succeeded", "n3")}

    play(scenario)
