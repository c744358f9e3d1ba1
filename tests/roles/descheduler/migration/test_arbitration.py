"""Whose turn it is, who may never move, who has to wait; the same after a restart."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from koord.api import kinds, names, objects
from koord.api.times import parse_time
from roles.descheduler.migration.arbitration import Waiting, ordered
from tests.support.migration import NS, Cluster, Life, cluster, condition

PASSED = {names.ANNOTATION_PASSED_ARBITRATION: "true"}
FORCE = {"annotations": {names.ANNOTATION_DESCHEDULER_EVICT: "true"}}


def play(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster() as world:
            await scenario(world)

    asyncio.run(run())


def waiting(name: str, created: str, *, pod: dict[str, Any] | None = None, job_of: str = "") -> Waiting:
    meta: dict[str, Any] = {
        "name": name,
        "namespace": NS,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **((pod or {}).get("metadata") or {}),
    }
    if job_of:
        meta["ownerReferences"] = [{"kind": "Job", "name": job_of, "uid": job_of, "controller": True}]
    job = {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"podRef": {"namespace": NS, "name": name}}}
    its = None if pod is None else objects.convert({"metadata": meta, "spec": pod.get("spec", {})}, objects.Pod)
    return Waiting(objects.convert(job, objects.PodMigrationJob), its)


@pytest.mark.feature("DS-ARB-01")
def test_the_order_of_turns() -> None:
    free = {"metadata": {"labels": {"koordinator.sh/priority-class": "koord-free"}}}
    prod = {"metadata": {"labels": {"koordinator.sh/priority-class": "koord-prod"}}, "spec": {"priority": 9100}}
    cheap = {"metadata": {"labels": {"koordinator.sh/priority-class": "koord-prod"}}, "spec": {"priority": 9000}}
    queue = [
        waiting("prod-old", "2026-01-01T00:00:00Z", pod=prod),
        waiting("prod-new", "2026-01-01T00:00:09Z", pod=prod),
        waiting("cheap", "2026-01-01T00:00:00Z", pod=cheap),
        waiting("free", "2026-01-01T00:00:00Z", pod=free),
        waiting("gone", "2026-01-01T00:00:00Z"),
        waiting("batch-a1", "2026-01-01T00:00:05Z", pod=free, job_of="a"),
        waiting("batch-a2", "2026-01-01T00:00:05Z", pod=prod, job_of="a"),
        waiting("batch-b1", "2026-01-01T00:00:04Z", pod=free, job_of="b"),
    ]
    wanted = ["gone", "batch-a1", "batch-a2", "batch-b1", "free", "cheap", "prod-new", "prod-old"]
    for seed in range(5):
        random.Random(seed).shuffle(queue)
        assert [each.job.metadata.name for each in ordered(queue, Counter())] == wanted
    names_ = [each.job.metadata.name for each in ordered(queue, Counter({"b": 2, "a": 1}))]
    assert names_ == ["batch-b1", "batch-a1", "batch-a2", "gone", "free", "cheap", "prod-new", "prod-old"]


@pytest.mark.feature("DS-ARB-01")
def test_a_pod_that_loses_less_work_has_its_turn_first() -> None:
    now = parse_time("2026-01-02T00:00:00Z")
    queue = []
    for name, saved in (("long", "2026-01-01T00:00:00Z"), ("short", "2026-01-01T23:58:00Z")):
        made = waiting(name, "2026-01-01T00:00:00Z", pod={"metadata": {"annotations": {names.ANNOTATION_LAST_CHECKPOINT: saved}}})
        assert made.pod is not None
        status = objects.convert({"startTime": "2025-12-31T00:00:00Z"}, type(made.pod.status))
        queue.append(Waiting(made.job, msgspec.structs.replace(made.pod, status=status)))
    assert [each.job.metadata.name for each in ordered(queue, Counter(), now)] == ["short", "long"]


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.parametrize(
    ("meta", "spec", "why"),
    [
        ({"annotations": {names.ANNOTATION_EVICTION_COST: "2147483647"}}, {}, "eviction cost"),
        ({"annotations": {names.ANNOTATION_CONFIG_SOURCE: "file"}}, {}, "static pod"),
        ({}, {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}, "local storage"),
    ],
)
def test_a_pod_that_may_never_move_ends_the_job(meta: dict[str, Any], spec: dict[str, Any], why: str) -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", owner=owner, metadata=meta, spec=spec)
        await world.pod("forced", owner=owner, metadata={"annotations": {**meta.get("annotations", {}), **FORCE["annotations"]}}, spec=spec)
        await world.live()
        await world.job()
        job = await world.until_job("j", phase="Failed", reason="ForbiddenMigratePod")
        assert 'Pod "default/p" is forbidden to migrate because it does not meet the requirements' in job["status"]["message"]
        assert why in job["status"]["message"]
        assert names.ANNOTATION_PASSED_ARBITRATION not in job["metadata"].get("annotations", {})
        await world.job("k", "forced", mode="EvictDirectly")
        await world.until_job("k", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("DS-WL-01")
def test_bare_pods_and_pods_whose_workload_is_gone_or_too_small() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("bare")
        await world.pod("orphan", owner="no-such-uid")
        await world.pod("only", owner=await world.replicaset("single", 1), controller="single")
        await world.live()
        for name in ("bare", "orphan", "only"):
            await world.job(name, name, mode="EvictDirectly")
        for name in ("bare", "orphan", "only"):
            await world.until_job(name, phase="Failed", reason="ForbiddenMigratePod")
        job = await world.get(kinds.PODMIGRATIONJOBS, "orphan")
        assert job is not None
        assert job["status"]["message"].endswith("does not exist: no controller would replace the pod")

    play(scenario)


@pytest.mark.feature("DS-WL-01")
def test_replicasets_of_one_deployment_share_its_limits() -> None:
    async def scenario(world: Cluster) -> None:
        labels = {"app": "web"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"replicas": 20, "selector": {"matchLabels": labels}, "template": template}
        deployment = await world.put(kinds.DEPLOYMENTS, "web", {"spec": spec})
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": deployment["metadata"]["uid"], "controller": True}
        for name in ("old", "new"):
            uid = await world.replicaset(name, 1, metadata={"ownerReferences": [owner]})  # 1: the Deployment's 20 count
            await world.pod(f"p-{name}", owner=uid, controller=name)
        await world.live(maxMigratingPerWorkload=1)
        await world.job("a", "p-old")
        await world.until_job("a", condition="ReservationCreated=True/")
        await world.job("b", "p-new")
        await waits(world, "b", "MaxMigratingPerWorkload")
        await world.client.delete(kinds.PODMIGRATIONJOBS, "a")
        await world.until_job("b", condition="ReservationCreated=True/")

    play(scenario)


async def waits(world: Cluster, job: str, gate: str) -> None:
    """Wait until the newest life has said that a job waits for this limit; nothing may have happened to the job."""

    async def told() -> bool:
        records = world.lives[-1].recorder.ring.find(kind="PodMigrationJob", name=job)
        return any(record.verdict == "Waiting" and record.numbers.get("gate") == gate for record in records)

    await world.until(told)
    found = await world.get(kinds.PODMIGRATIONJOBS, job)
    assert found is not None
    assert names.ANNOTATION_PASSED_ARBITRATION not in found["metadata"].get("annotations", {})
    assert not (found.get("status") or {}).get("phase")


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("DS-ARB-03")
@pytest.mark.parametrize(
    ("fields", "gate"),
    [
        ({"maxMigratingGlobally": 1}, "MaxMigratingGlobally"),
        ({"maxMigratingPerNode": 1}, "MaxMigratingPerNode"),
        ({"maxMigratingPerNamespace": 1}, "MaxMigratingPerNamespace"),
        ({"maxMigratingPerWorkload": 1}, "MaxMigratingPerWorkload"),
        ({"maxUnavailablePerWorkload": 1, "maxMigratingPerWorkload": 3}, "MaxUnavailablePerWorkload"),
    ],
)
def test_a_limit_that_is_reached_is_waited_for_also_by_the_next_life(fields: dict[str, Any], gate: str) -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        first = await world.live(**fields)
        await world.job("a", "p")
        await world.until_job("a", condition="ReservationCreated=True/")
        await world.job("b", "q")
        await waits(world, "b", gate)
        assert "migrate already" in first.refusal("q") or "unavailable" in first.refusal("q") or "not ended" in first.refusal("q")
        await first.kill()
        await world.live(**fields)  # the job of the former life still counts, and goes on
        await waits(world, "b", gate)
        job = await world.get(kinds.PODMIGRATIONJOBS, "a")
        assert job is not None
        await world.reserve(job["metadata"]["uid"])
        await world.until_job("a", condition="Eviction=True/EvictComplete")
        new = await world.pod("n", "n2", owner)
        used = [{"namespace": NS, "name": "n", "uid": new["metadata"]["uid"]}]
        await world.reserve(job["metadata"]["uid"], phase="Succeeded", currentOwners=used)
        await world.until_job("a", phase="Succeeded")
        await world.until_job("b", condition="ReservationCreated=True/")

    play(scenario)


@pytest.mark.feature("DS-ARB-03")
def test_a_paused_job_that_has_not_begun_counts_toward_no_limit() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        await world.job("later", "p", paused=True)
        life = await world.live(maxMigratingGlobally=1, maxMigratingPerNode=1, maxMigratingPerNamespace=1, maxUnavailablePerWorkload=1)
        assert "not ended" in life.refusal("p")
        assert life.refusal("q") == ""
        await world.client.patch(kinds.PODMIGRATIONJOBS, "later", {"spec": {"paused": False}})
        await world.until_job("later", condition="ReservationCreated=True/")
        assert "migrate already" in life.refusal("q")
        await world.client.patch(kinds.PODMIGRATIONJOBS, "later", {"spec": {"paused": True}})
        await world.until(lambda: paused(life))
        assert "migrate already" in life.refusal("q")

    async def paused(life: Life) -> bool:
        job = life.migrations.jobs.get("later")
        return job is not None and job.spec.paused

    play(scenario)


@pytest.mark.feature("DS-ARB-03")
def test_a_paused_job_that_has_not_begun_uses_no_disruption_budget_up() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset(replicas=20)
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        match = {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}
        await world.put(kinds.PODDISRUPTIONBUDGETS, "hold", {"spec": match, "status": {"disruptionsAllowed": 1}})
        await world.job("later", "p", paused=True)
        life = await world.live(maxUnavailablePerWorkload=10, maxMigratingPerWorkload=10)
        assert life.refusal("q") == ""
        await world.client.patch(kinds.PODMIGRATIONJOBS, "later", {"spec": {"paused": False}})
        await world.until_job("later", condition="ReservationCreated=True/")
        assert "disruption budget hold" in life.refusal("q")

    play(scenario)


@pytest.mark.feature("DS-ARB-03")
def test_a_paused_job_that_has_not_begun_takes_no_member_from_its_gang() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        gang = {names.ANNOTATION_GANG_NAME: "g", names.ANNOTATION_GANG_MIN_AVAILABLE: "2"}
        for name in ("p", "q", "r"):
            await world.pod(name, owner=owner, metadata={"annotations": gang})
        await world.job("later", "p", paused=True)
        life = await world.live()
        assert life.refusal("q") == ""
        await world.client.patch(kinds.PODMIGRATIONJOBS, "later", {"spec": {"paused": False}})
        await world.until_job("later", condition="ReservationCreated=True/")
        assert "would have 1 of the 2 members" in life.refusal("q")

    play(scenario)


@pytest.mark.feature("DS-ARB-03")
def test_a_pod_that_its_workload_has_let_go_is_missed_there() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset(replicas=4, status={"observedGeneration": 1})
        for name in ("p", "q", "r", "s"):
            await world.pod(name, owner=owner)
        life = await world.live(maxUnavailablePerWorkload=1)
        assert life.refusal("p") == ""

        async def alone() -> bool:
            found = life.setup.cluster.pod(NS, "s")
            return found is not None and not found.metadata.owner_references

        await world.client.patch(kinds.PODS, "s", {"metadata": {"labels": {"app": "debug"}, "ownerReferences": None}}, NS)
        await world.until(alone)
        assert "1 pods of ReplicaSet web (4 replicas) are unavailable" in life.refusal("p")

    play(scenario)


@pytest.mark.feature("DS-ARB-03")
@pytest.mark.parametrize(
    ("completions", "succeeded", "why"),
    [
        (10, 0, ""),
        (10, 2, ""),
        (None, 2, ""),
        (20, 2, "2 pods of Job train (10 replicas) are unavailable or migrate, 2 may"),
        (10, 9, "Job train has 1 replicas"),
    ],
    ids=["at the start", "at the end", "no completions", "others are to come", "the last one"],
)
def test_a_batch_job_wants_what_is_left_of_its_completions(completions: int | None, succeeded: int, why: str) -> None:
    async def scenario(world: Cluster) -> None:
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
        spec = {"parallelism": 10, "template": template} | ({} if completions is None else {"completions": completions})
        made = await world.put(kinds.JOBS, "train", {"spec": spec, "status": {"active": 10 - succeeded, "succeeded": succeeded}})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": made["metadata"]["uid"], "controller": True}
        for number in range(10):
            await world.pod(f"p{number}", controller="train", metadata={"ownerReferences": [owner]})
        ended = {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}]}
        for number in range(succeeded):
            await world.client.patch(kinds.PODS, f"p{number}", {"status": ended}, NS, subresource="status")
        life = await world.live()
        assert life.refusal("p9").startswith(why) if why else life.refusal("p9") == ""

    play(scenario)


@pytest.mark.feature("DS-ARB-01")
def test_only_jobs_that_wait_are_arbitrated_after_a_restart() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE)
        await world.pod("q", metadata=FORCE)
        done = {"phase": "Failed", "status": "Eviction", "reason": "MissingPod", "message": "long ago"}
        body = {"spec": {"podRef": {"namespace": NS, "name": "p"}}, "status": done}
        await world.put(kinds.PODMIGRATIONJOBS, "ended", body)
        foreign = {names.ANNOTATION_JOB_CREATED_BY: "a-dead-instance"}
        await world.job("begun", "p", mode="EvictDirectly", annotations=PASSED | foreign)  # let through, then its instance died
        await world.job("paused", "q", mode="EvictDirectly", paused=True)
        await world.live()
        await world.until_job("begun", phase="Succeeded")
        ended = await world.get(kinds.PODMIGRATIONJOBS, "ended")
        assert ended is not None
        assert ended["status"] == done
        assert "annotations" not in ended["metadata"]
        paused = await world.get(kinds.PODMIGRATIONJOBS, "paused")
        assert paused is not None
        assert not (paused.get("status") or {}).get("phase")
        await world.client.patch(kinds.PODMIGRATIONJOBS, "paused", {"spec": {"paused": False}})
        await world.until_job("paused", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-ARB-01")
def test_a_job_that_is_deleted_while_it_waits_is_forgotten() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        life = await world.live(maxMigratingGlobally=1)
        await world.job("a", "p")
        await world.until_job("a", condition="ReservationCreated=True/")
        await world.job("b", "q")
        await waits(world, "b", "MaxMigratingGlobally")
        await world.client.delete(kinds.PODMIGRATIONJOBS, "b")
        sample = life.metrics.registry.get_sample_value

        async def forgotten() -> bool:
            return sample("koord_descheduler_arbitration_waiting") == 0.0

        await world.until(forgotten)
        assert sample("koord_descheduler_arbitration_refusals_total", {"gate": "MaxMigratingGlobally"})

    play(scenario)


@pytest.mark.feature("DS-MC-01")
def test_what_a_plugin_evicts_becomes_a_job() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        await world.pod("other-scheduler", owner=owner, spec={"schedulerName": "default-scheduler"})
        life = await world.live(defaultJobTTL="8m", defaultDeleteOptions={"gracePeriodSeconds": 3}, maxMigratingPerWorkload=1)
        assert (await life.evict("p")).accepted
        (name,) = await world.names(kinds.PODMIGRATIONJOBS)
        job = await world.until_job(name, condition="ReservationCreated=True/")
        pod = await world.get(kinds.PODS, "p")
        assert pod is not None
        assert job["spec"]["podRef"] == {"namespace": NS, "name": "p", "uid": pod["metadata"]["uid"]}
        assert (job["spec"]["mode"], job["spec"]["ttl"]) == ("ReservationFirst", "8m0s")
        assert job["spec"]["deleteOptions"] == {"gracePeriodSeconds": 3}
        annotations = job["metadata"]["annotations"]
        assert annotations[names.ANNOTATION_EVICT_REASON] == "node is overutilized"
        assert annotations[names.ANNOTATION_EVICT_TRIGGER] == "LowNodeLoad"
        assert annotations[names.ANNOTATION_JOB_CREATED_BY]
        leaving = {name for name in ("p", "q") if (found := life.setup.cluster.pod(NS, name)) is not None and life.plugin.leaving(found)}
        assert leaving == {"p"}
        assert "not ended yet" in (await life.evict("p")).message
        assert "migrate already, 1 may" in (await life.evict("q")).message
        assert "makes no reservations" in (await life.evict("other-scheduler")).message
        assert len(await world.names(kinds.PODMIGRATIONJOBS)) == 1

    play(scenario)


@pytest.mark.feature("DS-MC-01")
def test_a_dry_run_of_the_controller_makes_no_job() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        life = await world.live(dryRun=True)
        assert (await life.evict("p")).accepted
        assert not await world.names(kinds.PODMIGRATIONJOBS)

    play(scenario)


@pytest.mark.feature("DS-MC-09")
def test_the_object_limiter_holds_running_jobs_back_also_after_a_restart() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q", "r"):
            await world.pod(name, owner=owner)
        limiter = {"objectLimiters": {"workload": {"duration": "5m", "maxMigrating": 1}}}
        first = await world.live(**limiter)
        await world.job("a", "p", mode="EvictDirectly")
        await world.until_job("a", phase="Succeeded")
        assert "has had its evictions" in (await first.evict("q")).message
        await world.job("b", "q", mode="EvictDirectly")
        await limited(world, "b")
        await first.kill()
        await world.live(**limiter)
        await limited(world, "b")
        forced = {names.ANNOTATION_DESCHEDULER_EVICT: ""}
        await world.job("c", "r", mode="EvictDirectly", annotations=forced)
        await world.until_job("c", phase="Succeeded")
        assert await world.get(kinds.PODS, "q") is not None
        world.shift = 601.0  # "c" has taken a token in advance
        await world.client.patch(kinds.PODMIGRATIONJOBS, "b", {"spec": {"ttl": "1h"}})
        await world.until_job("b", phase="Succeeded", condition="Arbitration=True/")

    play(scenario)


@pytest.mark.feature("DS-MC-09")
def test_a_pod_that_somebody_else_deleted_is_counted_by_no_limiter_also_after_a_restart() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", owner=owner, metadata={"finalizers": ["test/hold"]})
        await world.pod("q", owner=owner)
        limits: dict[str, Any] = {"objectLimiters": {"workload": {"duration": "5m", "maxMigrating": 1}}}
        limits |= {"maxMigratingPerWorkload": 2, "maxUnavailablePerWorkload": 4}
        first = await world.live(**limits)
        await world.job("a", "p")
        made = await world.until_job("a", condition="ReservationCreated=True/")
        await world.client.delete(kinds.PODS, "p", NS)
        await world.reserve(made["spec"]["reservationOptions"]["reservationRef"]["name"])
        await world.until_job("a", phase="Running", condition="Eviction=False/Evicting")
        await first.kill()
        await world.live(**limits)
        await world.job("b", "q", mode="EvictDirectly")
        await world.until_job("b", phase="Succeeded")
        assert await world.get(kinds.PODS, "q") is None

    play(scenario)


async def limited(world: Cluster, job: str) -> None:
    async def told() -> bool:
        return any(record.verdict == "Limited" for record in world.lives[-1].recorder.ring.find(kind="PodMigrationJob", name=job))

    await world.until(told)
    found = await world.until_job(job, phase="Running", condition="Arbitration=False/ObjectLimiter")
    assert condition(found, "Arbitration")["message"] == "the workload has had its evictions"
    assert not condition(found, "Eviction")


@pytest.mark.feature("DS-MC-06")
@pytest.mark.parametrize("when", ["waiting", "reserving"])
def test_time_runs_out(when: str) -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        await world.live(maxMigratingGlobally=1)
        await world.job("a", "p", ttl="1h" if when == "waiting" else "5m")
        job = await world.until_job("a", condition="ReservationCreated=True/")
        if when == "waiting":
            await world.job("a2", "q", ttl="5m")
            await waits(world, "a2", "MaxMigratingGlobally")
        late = "a2" if when == "waiting" else "a"
        world.shift = 299.0 - 60.0
        await world.client.patch(kinds.PODMIGRATIONJOBS, late, {"metadata": {"labels": {"touched": "once"}}})
        world.shift = 301.0
        await world.client.patch(kinds.PODMIGRATIONJOBS, late, {"metadata": {"labels": {"touched": "twice"}}})
        found = await world.until_job(late, phase="Failed", reason="Timeout")
        assert found["status"]["message"] == "Abort job caused by timeout"
        if when == "reserving":
            await world.until_gone(kinds.RESERVATIONS, job["metadata"]["uid"])
        assert await world.get(kinds.PODS, "p") is not None

    play(scenario)


@pytest.mark.feature("DS-MC-06")
def test_old_jobs_and_reservations_without_a_job_are_swept_away() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        first = await world.live()
        await world.job(ttl="5m")
        await world.job("no-ttl", "nowhere", ttl=None)
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await world.until_job("no-ttl", phase="Failed", reason="MissingPod")
        await first.kill()
        gone = {"kind": "PodMigrationJob", "apiVersion": kinds.PODMIGRATIONJOBS.api_version, "name": "x", "uid": "gone"}
        meta = {"labels": {names.LABEL_CREATED_BY: "koord-descheduler"}, "ownerReferences": [gone]}
        owners = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
        await world.put(kinds.RESERVATIONS, "orphan", {"metadata": meta, "spec": {"owners": owners, "template": {"spec": {}}}})
        await world.put(kinds.RESERVATIONS, "mine", {"spec": {"owners": owners, "template": {"spec": {}}}})
        world.shift = 601.0
        second = await world.live()
        await world.until_gone(kinds.PODMIGRATIONJOBS, "j")
        await world.until_gone(kinds.RESERVATIONS, job["metadata"]["uid"])
        await world.until_gone(kinds.RESERVATIONS, "orphan")
        assert await world.names(kinds.RESERVATIONS) == ["mine"]
        assert await world.names(kinds.PODMIGRATIONJOBS) == ["no-ttl"]
        await second.kill()
        world.shift = 1801.0
        await world.live()
        await world.until_gone(kinds.PODMIGRATIONJOBS, "no-ttl")

    play(scenario)


@pytest.mark.feature("DS-MC-06")
def test_deleting_a_job_releases_its_reservation() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        await world.live()
        await world.job()
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await world.client.delete(kinds.PODMIGRATIONJOBS, "j")
        await world.until_gone(kinds.RESERVATIONS, job["metadata"]["uid"])

    play(scenario)


@pytest.mark.feature("DS-MC-06")
def test_what_is_gone_is_not_deleted_again() -> None:
    """An old job is swept away with its reservation; that it goes is an event by which its reservation would go, too."""

    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        first = await world.live()
        await world.job(ttl="5m")
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await first.kill()
        async with world.server.client() as client:
            deleted: list[str] = []
            delete = client.delete

            async def counted(kind: kinds.Kind, name: str, *args: Any, **fields: Any) -> Any:
                deleted.append(kind.plural)
                return await delete(kind, name, *args, **fields)

            client.delete = counted  # type: ignore[method-assign]
            world.shift = 601.0
            life = await world.live(client=client)
            await world.until_gone(kinds.PODMIGRATIONJOBS, "j")
            await world.until_gone(kinds.RESERVATIONS, job["metadata"]["uid"])

            async def forgotten() -> bool:
                return not life.migrations._left and life.migrations.jobs.get("j") is None

            await world.until(forgotten)
            assert deleted == ["reservations", "podmigrationjobs"]

    play(scenario)


@pytest.mark.feature("DS-ARB-02")
def test_of_two_jobs_about_one_pod_the_second_is_forbidden() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        for name in ("j", "k"):
            await world.job(name, "p")
        await world.live()

        async def ended() -> list[dict[str, Any]] | None:
            found = [job for name in ("j", "k") if (job := await world.get(kinds.PODMIGRATIONJOBS, name)) is not None]
            return found if any((job.get("status") or {}).get("phase") == "Failed" for job in found) else None

        first, second = sorted(await world.until(ended), key=lambda job: (job.get("status") or {}).get("phase") == "Failed")
        await world.until_job(first["metadata"]["name"], condition="ReservationCreated=True/")
        assert second["status"]["reason"] == "ForbiddenMigratePod"
        assert f'PodMigrationJob "{first["metadata"]["name"]}" moves it already' in second["status"]["message"]
        assert len(await world.names(kinds.RESERVATIONS)) == 1

    play(scenario)
