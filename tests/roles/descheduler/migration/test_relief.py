"""What a migration for load promises: pods go from hot nodes to cool ones, or stay; what cannot leave stands in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api import kinds, names
from koord.api.times import format_time
from koord.kube import errors
from koord.kube.reflector import Reflector
from roles.descheduler import workloads
from roles.descheduler.framework.evicting import EvictOptions
from roles.descheduler.migration import evictors
from roles.descheduler.migration.backoff import FIRST, Backoff
from roles.descheduler.observing import Observer
from roles.descheduler.relief import Ceiling, Relief
from tests.roles.descheduler.migration.test_whole import configuration
from tests.support.migration import NS, Cluster, Life, cluster, condition
from tests.support.wholecluster import Whole, at_work, descheduling, whole

Obj = dict[str, Any]
JOB_TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
MANY = {"maxMigratingPerNode": 0, "maxMigratingPerWorkload": "90%", "maxUnavailablePerWorkload": "90%", "skipCheckExpectedReplicas": True}


def play(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster() as world:
            await scenario(world)

    asyncio.run(run())


def play_whole(scenario: Callable[[Whole], Awaitable[None]]) -> None:
    async def run() -> None:
        async with whole() as plan:
            await scenario(plan)

    asyncio.run(run())


async def report(world: Cluster, use: dict[str, tuple[float, float]]) -> dict[str, float]:
    """What koordlets would report of nodes whose system and whose pods each use so many cores; the use of each node in cores."""
    where: dict[str, list[str]] = {node: [] for node in use}
    for pod in (await world.client.list(kinds.PODS, NS)).items:
        where.setdefault(pod["spec"].get("nodeName", ""), []).append(pod["metadata"]["name"])
    for node, (system, each) in use.items():
        used = [
            {"namespace": NS, "name": name, "podUsage": {"resources": {"cpu": f"{each * 1000:.0f}m", "memory": "100Mi"}}}
            for name in where[node]
        ]
        info = {"systemUsage": {"resources": {"cpu": f"{system * 1000:.0f}m", "memory": "1Gi"}}}
        status = {"updateTime": format_time(world.now()), "nodeMetric": info, "podsMetric": used}
        if await world.get(kinds.NODEMETRICS, node) is None:
            await world.put(kinds.NODEMETRICS, node, {"status": status})
        else:
            await world.client.patch(kinds.NODEMETRICS, node, {"status": status}, subresource="status")
    return {node: system + each * len(where[node]) for node, (system, each) in use.items()}


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-LNL-07")
@pytest.mark.feature("DS-MC-07")
def test_pods_of_hot_nodes_go_to_the_cool_one_though_the_scheduler_likes_it_least() -> None:
    """Two nodes are hot by use; the third is cool, but most of it is requested, so that by requests it looks full."""

    async def scenario(plan: Whole) -> None:
        world = plan.world
        idle = await world.replicaset("idle", 1)
        held = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "8"}}}]
        await world.pod("idle-0", "n3", idle, controller="idle", spec={"containers": held})
        workers = await plan.workload({f"p{number}": "n1" if number < 8 else "n2" for number in range(16)})
        use = {"n1": (1.5, 0.7), "n2": (1.5, 0.7), "n3": (0.3, 0.7)}
        await report(world, use)
        text = configuration(migration=MANY, deschedulingInterval="300ms")
        async with at_work(workers), descheduling(plan.client, text) as (app, _):

            async def cool() -> bool:
                return max((await report(world, use)).values()) <= 6.0

            await world.until(cool)
            jobs = await plan.until_ended(4)

            async def measured() -> bool:
                await report(world, use)
                return all(condition(job, "Relieved") for job in await plan.jobs())

            await world.until(measured)
            for job in await plan.jobs():
                assert (job["status"]["phase"], job["status"]["status"]) == ("Succeeded", "Complete")
                assert condition(job, "Relieved")["status"] == "True"
                assert "before" in condition(job, "Relieved")["message"]
            sample = app.metrics.registry.get_sample_value
            assert sample("koord_descheduler_moves_measured_total", {"helped": "true"})
            assert sample("koord_descheduler_relief_total", {"resource": "cpu", "kind": "measured"}) == pytest.approx(2800)
        assert {job["status"]["phase"] for job in jobs} == {"Succeeded"}
        assert {job["status"]["nodeName"] for job in jobs} == {"n3"}
        assert len(jobs) == 4  # 7.1 cores on each, 6 may be used: two pods of 0.7 suffice

    play_whole(scenario)


@pytest.mark.feature("DS-LNL-06")
def test_what_a_move_has_done_is_written_when_the_job_ends_though_it_was_measured_before() -> None:
    """The successor comes late: the node has told that it is cooler, and the job still waits."""

    async def scenario(plan: Whole) -> None:
        world = plan.world
        workers = await plan.workload({f"p{number}": "n1" for number in range(8)})
        use = {"n1": (1.5, 0.7), "n2": (0.3, 0.7), "n3": (0.3, 0.7)}
        await report(world, use)
        text = configuration(migration=MANY, deschedulingInterval="300ms")
        async with descheduling(plan.client, text) as (app, _):

            async def measured() -> bool:
                await report(world, use)
                return bool(app.metrics.registry.get_sample_value("koord_descheduler_moves_measured_total", {"helped": "true"}))

            await world.until(measured)
            assert {job["status"]["phase"] for job in await plan.jobs()} == {"Running"}
            async with at_work(workers):

                async def written() -> bool:
                    return all(condition(job, "Relieved") for job in await plan.jobs())

                await world.until(written)
            for job in await plan.jobs():
                assert (job["status"]["phase"], job["status"]["status"]) == ("Succeeded", "Complete")

    play_whole(scenario)


async def budget(world: Cluster, name: str, app: str, *, allowed: int = 0, count: int = 2) -> None:
    seen = {"observedGeneration": 1, "expectedPods": count, "desiredHealthy": count, "currentHealthy": count, "disruptionsAllowed": allowed}
    spec = {"minAvailable": count, "selector": {"matchLabels": {"app": app}}}
    await world.put(kinds.PODDISRUPTIONBUDGETS, name, {"spec": spec, "status": seen})


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-ARB-02")
def test_pods_that_a_budget_holds_do_not_keep_the_others_on_a_hot_node() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        await plan.client.delete(kinds.NODES, "n3")
        guarded = await world.replicaset("guarded", 2)
        first = {"labels": {"app": "guarded", "koordinator.sh/priority-class": "koord-batch"}}  # batch pods leave first
        for name in ("g0", "g1"):
            await world.pod(name, "n1", guarded, controller="guarded", metadata=first)
        workers = await plan.workload({f"p{number}": "n1" for number in range(6)})
        await budget(world, "hold", "guarded")
        use = {"n1": (2.0, 0.7), "n2": (1.0, 0.7)}
        await report(world, use)
        text = configuration(migration=MANY, deschedulingInterval="300ms")
        async with at_work(workers), descheduling(plan.client, text) as (_, recorder):

            async def cool() -> bool:
                return (await report(world, use))["n1"] <= 6.0

            await world.until(cool)
            told = [record.message for record in recorder.ring.find(kind="Node", name="n1") if record.verdict == "Relieved"]
            jobs = await plan.until_ended(3)
        assert {job["spec"]["podRef"]["name"][0] for job in jobs} == {"p"}
        assert not [message for message in told if message.startswith("cool")]
        held = [record for record in recorder.ring.find(kind="Node", name="n1") if "hold allows no disruption" in record.message]
        assert held or told

    play_whole(scenario)


@pytest.mark.feature("DS-LNL-08")
@pytest.mark.feature("DS-MC-01")
def test_a_pod_counts_until_its_eviction_is_accepted_and_again_when_it_is_refused() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q", "r", "s"):
            await world.pod(name, owner=owner)
        life = await world.live()
        pod = life.setup.cluster.pod(NS, "p")
        assert pod is not None
        assert (await life.evict("p")).accepted
        (name,) = await world.names(kinds.PODMIGRATIONJOBS)
        job = await world.until_job(name, condition="ReservationCreated=True/")
        assert (life.plugin.leaving(pod), life.plugin.accepted(pod)) == (True, False)
        await budget(world, "hold", "web", count=4)
        await world.reserve(job["metadata"]["uid"])
        await world.until_job(name, condition="Eviction=False/FailedEvict")

        async def given_back() -> bool:
            return (life.plugin.leaving(pod), life.plugin.accepted(pod)) == (False, False)

        await world.until(given_back)
        await world.client.delete(kinds.PODDISRUPTIONBUDGETS, "hold", NS)

        async def told_to_go() -> bool:
            return life.plugin.accepted(pod) or await world.get(kinds.PODS, "p") is None

        await world.until(told_to_go)

    play(scenario)


@pytest.mark.feature("DS-LNL-07")
@pytest.mark.feature("DS-LNL-08")
def test_the_pod_that_came_is_not_the_one_that_was_told_to_leave() -> None:
    """While it starts, in no report yet, its node has less room than the report says."""

    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "r"):
            await world.pod(name, owner=owner)
        life = await world.live(**MANY)
        assert (await life.evict("p")).accepted
        (name,) = await world.names(kinds.PODMIGRATIONJOBS)
        held = (await world.until_job(name, condition="ReservationCreated=True/"))["metadata"]["uid"]
        await world.reserve(held)
        await world.until_job(name, condition="Eviction=True/EvictComplete")
        came = await world.pod("q", "n2", owner=owner, ready=False)
        await world.reserve(held, phase="Succeeded", currentOwners=[{"namespace": NS, "name": "q", "uid": came["metadata"]["uid"]}])
        await world.until_job(name, condition="BoundPodReady=False/WaitForBoundPodReady")
        pod = life.setup.cluster.pod(NS, "q")
        assert pod is not None
        assert (life.plugin.leaving(pod), life.plugin.accepted(pod)) == (True, False), "nobody moves it, and it is counted"

    play(scenario)


@pytest.mark.feature("DS-MC-01")
@pytest.mark.feature("DS-MC-08")
def test_an_eviction_that_would_be_refused_holds_no_place() -> None:
    """A webhook is asked by a dry run; its no is remembered for a while, of this pod only."""

    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        life = await world.live(**MANY)
        evict, asked = life.client.evict, []

        async def refusing(namespace: str, pod: str, **options: Any) -> None:
            asked.append((pod, (options.get("options") or {}).get("dryRun")))
            if pod == "p":
                raise errors.Forbidden(403, "Forbidden", "not today")
            await evict(namespace, pod, **options)

        life.client.evict = refusing  # type: ignore[method-assign]
        answer = await life.evict("p")
        assert not answer.accepted
        assert "not today" in answer.message
        assert asked == [("p", ["All"])]
        assert not await world.names(kinds.PODMIGRATIONJOBS)
        assert not await world.names(kinds.RESERVATIONS)
        assert "a migration has failed (FailedEvict)" in life.refusal("p")
        assert (await life.evict("q")).accepted
        assert await world.get(kinds.PODS, "q") is not None or len(asked) == 3
        world.shift = FIRST + 1
        assert not life.refusal("p")

    play(scenario)


@pytest.mark.feature("DS-MC-01")
@pytest.mark.parametrize(
    ("cause", "first", "longest"), [("Timeout", 60.0, 1800.0), ("FailedEvict", 15.0, 300.0), ("Unschedulable", 30.0, 1800.0)]
)
def test_waits_double_by_their_cause_and_end_with_a_success(cause: str, first: float, longest: float) -> None:
    backoff = Backoff()
    now, waits = 1000.0, []
    for _ in range(9):
        backoff.failed(["p", "w"], cause, now)
        backoff.failed(["p", "w"], cause, now + 1)  # another one of the same workload, at the same time
        start = now
        while backoff.refuse(["w"], now):
            now += 1.0
        waits.append(now - start)
    assert waits[:4] == [first, 2 * first, 4 * first, 8 * first]
    assert waits[-1] == longest
    assert f"({cause}); the next one may begin at 1970-01-01T" in backoff.refuse(["p"], now - 1)
    backoff.failed(["w"], "ReservationExpired", now)  # something else: the first time
    assert not backoff.refuse(["w"], now + FIRST)
    backoff.succeeded(["w"])
    assert not backoff.refuse(["w"], now)
    backoff.failed(["w"], "Unschedulable", now)
    assert backoff.refuse(["w", "p"], now + FIRST - 1)
    assert not backoff.refuse(["w", "p"], now + FIRST)


@pytest.mark.feature("DS-MC-01")
def test_a_workload_whose_migration_failed_waits_also_after_a_restart() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        life = await world.live(**MANY)
        assert (await life.evict("p")).accepted
        (name,) = await world.names(kinds.PODMIGRATIONJOBS)
        job = await world.until_job(name, condition="ReservationCreated=True/")
        failed = [{"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "full"}]
        await world.reserve(job["metadata"]["uid"], phase="Failed", nodeName="", conditions=failed)
        await world.until_job(name, phase="Failed", reason="Unschedulable")
        for each in (life, await world.live(**MANY)):

            async def waits(each: Any = each) -> bool:
                return "a migration has failed (Unschedulable)" in each.refusal("q")

            await world.until(waits)

    play(scenario)


@pytest.mark.feature("DS-WL-01")
def test_a_round_asks_about_kinds_and_candidates_not_about_pods() -> None:
    """Batch Jobs are watched; of a kind without scale as many pods are wanted as there are; the kinds are asked for once."""

    async def scenario(world: Cluster) -> None:
        job = await world.put(kinds.JOBS, "crunch", {"spec": {"parallelism": 3, "template": JOB_TEMPLATE}})
        owners = {"Job": ("batch/v1", str(job["metadata"]["uid"]), "crunch"), "SparkApplication": ("spark.example.com/v1", "s", "s")}
        for kind, (version, uid, name) in owners.items():
            owner = {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}
            for number in range(4):
                await world.pod(f"{kind.lower()}-{number}", metadata={"ownerReferences": [owner]})
        life = await world.live(**MANY)

        async def seen() -> bool:
            return len(life.setup.cluster.pods.list()) == 8

        await world.until(seen)
        asked: list[str] = []
        raw, get = life.client.raw, life.client.get

        async def counting(method: str, path: str, *args: Any, **more: Any) -> Any:
            asked.append(path)
            return await raw(method, path, *args, **more)

        async def getting(*args: Any, **more: Any) -> Any:
            asked.append(str(args))
            return await get(*args, **more)

        life.client.raw, life.client.get = counting, getting  # type: ignore[method-assign]
        for _ in range(3):
            await life.plugin.prepare(life.setup.cluster.pods.list())
            await life.setup.workloads.refresh(life.setup.cluster.pods.list())
        assert [path for path in asked if path != "/api/v1"] == ["/apis/spark.example.com/v1"]  # that one is asked at the start
        wanted = {pod.metadata.name: life.setup.workloads.of(pod) for pod in life.setup.cluster.pods.list()}
        found = {name: workload.replicas for name, workload in wanted.items() if workload is not None}
        assert found == {f"job-{n}": 3 for n in range(4)} | {f"sparkapplication-{n}": 4 for n in range(4)}
        assert not life.refusal("job-0")
        assert not life.refusal("sparkapplication-0")

    play(scenario)


@pytest.mark.feature("DS-WL-01")
def test_jobs_that_may_not_be_listed_stop_nothing_but_their_own_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ClusterRole of before batch Jobs were watched."""

    async def scenario(world: Cluster) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "crunch", "uid": "c", "controller": True}
        await world.pod("batch", metadata={"ownerReferences": [owner]})
        await world.pod("p", owner=await world.replicaset())
        monkeypatch.setattr(workloads, "PATIENCE", 0.05)
        watching = world.client.__class__.watch_batches

        def refused(self: Any, kind: kinds.Kind, *args: Any, **more: Any) -> Any:
            if kind.kind == "Job":
                raise errors.Forbidden(403, "Forbidden", "jobs.batch is forbidden")
            return watching(self, kind, *args, **more)

        monkeypatch.setattr(world.client.__class__, "watch_batches", refused)
        life = await world.live(**MANY)
        assert "batch Jobs cannot be listed" in life.refusal("batch")
        assert not life.refusal("p")

    play(scenario)


@pytest.mark.feature("DS-ARB-02")
def test_what_a_job_waits_for_is_in_a_condition_at_once() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        await world.live(maxMigratingPerWorkload=1, maxUnavailablePerWorkload="50%")
        await world.job("first", "p")
        await world.until_job("first", phase="Running")
        await world.job("second", "q")
        job = await world.until_job("second", condition="Arbitration=False/MaxMigratingPerWorkload")
        assert job["status"]["message"] == "1 pods of ReplicaSet web (8 replicas) migrate already, 1 may"
        await world.client.delete(kinds.PODMIGRATIONJOBS, "first")
        await world.until_job("second", phase="Running", condition="Arbitration=True/")

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_what_leaves_open_whether_a_write_took_place() -> None:
    def answer(status: int, body: bytes) -> bool:
        return evictors.ambiguous(errors.from_response(status, body))

    told = b'{"kind": "Status", "status": "Failure", "code": 500, "message": "This pod has more than one PodDisruptionBudget"}'
    late = b'{"kind": "Status", "status": "Failure", "code": 500, "message": "etcdserver: request timed out"}'
    assert not answer(500, told)
    assert answer(500, late)
    assert answer(500, b"<html>bad gateway")
    assert answer(503, told)
    assert evictors.ambiguous(errors.Unreachable("connection lost"))
    assert not answer(429, b"{}")


@pytest.mark.feature("DS-MC-04")
@pytest.mark.feature("DS-MC-08")
def test_a_pod_under_two_budgets_is_refused_and_warned_about_once() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", owner=owner)
        await world.pod("q", owner=owner)
        life = await world.live(**MANY)
        await world.job("j", "p", mode="EvictDirectly", paused=True)
        for name in ("one", "two"):
            await budget(world, name, "web", allowed=1)

        async def known() -> bool:
            return "more than one disruption budget" in life.refusal("q")

        await world.until(known)
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"spec": {"paused": None}})
        await world.until_job("j", condition="Eviction=False/FailedEvict")
        evict, asked = life.client.evict, 0

        async def counting(*args: Any, **options: Any) -> None:
            nonlocal asked
            asked += 1
            await evict(*args, **options)

        life.client.evict = counting  # type: ignore[method-assign]

        async def tried() -> bool:
            return asked >= 3

        await world.until(tried)
        events = [each for each in await world.events("PodMigrationJob", "j") if each["type"] == "Warning"]
        assert len(events) == 1
        assert (events[0].get("series") or {}).get("count", 1) == 1

    play(scenario)


@pytest.mark.feature("DS-MC-04")
def test_an_eviction_that_is_refused_in_other_words_each_time_is_warned_about_once() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        life = await world.live(**MANY)
        asked = 0

        async def refuse(*args: Any, **options: Any) -> None:
            nonlocal asked
            asked += 1
            raise errors.Forbidden(403, "Forbidden", f"admission webhook denied request {asked}")

        life.client.evict = refuse  # type: ignore[method-assign]
        await world.job("j", "p", mode="EvictDirectly")

        async def tried() -> bool:
            return asked >= 4

        await world.until(tried)
        assert len([each for each in await world.events("PodMigrationJob", "j") if each["type"] == "Warning"]) == 1

    play(scenario)


@pytest.mark.feature("DS-MC-04")
def test_an_eviction_that_waits_for_its_answer_keeps_no_other_job_waiting() -> None:
    async def scenario(world: Cluster) -> None:
        for name in ("slow", "fast"):
            await world.pod(name, metadata={"annotations": {names.ANNOTATION_DESCHEDULER_EVICT: ""}})
        life = await world.live(maxConcurrentReconciles=1)
        evict, answered = life.client.evict, asyncio.Event()

        async def slow(namespace: str, pod: str, **options: Any) -> None:
            if pod == "slow":
                await answered.wait()
            await evict(namespace, pod, **options)

        life.client.evict = slow  # type: ignore[method-assign]
        await world.job("s", "slow", mode="EvictDirectly")
        await world.until_job("s", condition="Eviction=Unknown/Evicting")
        await world.job("f", "fast", mode="EvictDirectly")
        await world.until_job("f", phase="Succeeded")
        answered.set()
        await world.until_job("s", phase="Succeeded")

    play(scenario)


def relief(**nodes: int) -> EvictOptions:
    return EvictOptions("LowNodeLoad", "hot", relief=Relief({"cpu": 700}, {name: Ceiling({"cpu": high}) for name, high in nodes.items()}))


async def load_job(world: Cluster, life: Any, options: EvictOptions, pod: str = "p") -> str:
    found = life.setup.cluster.pod(NS, pod)
    assert (await life.plugin.evict(found, options)).accepted
    (name,) = await world.names(kinds.PODMIGRATIONJOBS)
    return name


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-07")
def test_a_place_that_would_become_hot_is_given_back_and_another_one_asked_for() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", owner=owner)
        use = {"n1": (6.5, 0.7), "n2": (2.0, 0.7), "n3": (2.0, 0.7)}
        await report(world, use)
        life = await world.live(**MANY)
        name = await load_job(world, life, relief(n2=6000, n3=6000))
        job = await world.until_job(name, condition="ReservationCreated=True/")
        made = await world.get(kinds.RESERVATIONS, job["metadata"]["uid"])
        assert made is not None
        affinity = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        fields = [[(each["operator"], *each["values"]) for each in term["matchFields"]] for term in affinity["nodeSelectorTerms"]]
        assert fields == [[("NotIn", "n1"), ("In", "n2")], [("NotIn", "n1"), ("In", "n3")]]
        use["n2"] = (5.5, 0.7)  # meanwhile
        await report(world, use)
        await world.reserve(job["metadata"]["uid"])

        async def another() -> Obj | None:
            found = await world.get(kinds.RESERVATIONS, job["metadata"]["uid"])
            return found if found is not None and found["metadata"]["uid"] != made["metadata"]["uid"] else None

        second = await world.until(another)
        affinity = second["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert [term["matchFields"][-1]["values"] for term in affinity["nodeSelectorTerms"]] == [["n3"]]
        job = await world.until_job(name, phase="Running")
        assert "would use 6200 of cpu" in condition(job, "ReservationScheduled")["message"]
        use["n3"] = (5.5, 0.7)
        await report(world, use)
        await world.reserve(job["metadata"]["uid"], nodeName="n3")
        await world.until_job(name, phase="Failed", reason="Unschedulable")
        await world.until_gone(kinds.RESERVATIONS, job["metadata"]["uid"])
        assert await world.get(kinds.PODS, "p") is not None

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.parametrize("lost", ["cordoned", "tainted", "not ready", "deleted", "going"])
def test_a_promised_node_that_is_lost_before_the_eviction_is_given_back(lost: str) -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q", "r", "s"):
            await world.pod(name, owner=owner)
        await budget(world, "hold", "web", count=4)
        await world.live(**MANY)
        await world.job("j", "p")
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await world.reserve(job["metadata"]["uid"])
        await world.until_job("j", condition="Eviction=False/FailedEvict", nodeName="n2")
        if lost == "cordoned":
            await world.client.patch(kinds.NODES, "n2", {"spec": {"unschedulable": True}})
        elif lost == "tainted":
            await world.client.patch(kinds.NODES, "n2", {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
        elif lost == "deleted":
            await world.client.delete(kinds.NODES, "n2")
        elif lost == "going":
            await world.client.patch(kinds.NODES, "n2", {"metadata": {"finalizers": ["test/hold"]}})
            await world.client.delete(kinds.NODES, "n2")
        else:
            ready = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
            await world.client.patch(kinds.NODES, "n2", ready, subresource="status")
        job = await world.until_job("j", condition="ReservationScheduled=False/Unschedulable")

        async def avoids() -> bool:
            found = await world.get(kinds.PODMIGRATIONJOBS, "j")
            return found is not None and found["metadata"].get("annotations", {}).get(names.ANNOTATION_MIGRATION_AVOID) == "n2"

        await world.until(avoids)
        await world.client.delete(kinds.PODDISRUPTIONBUDGETS, "hold", NS)

        async def another() -> bool:
            found = await world.get(kinds.RESERVATIONS, job["metadata"]["uid"])
            return found is not None and not (found.get("status") or {}).get("nodeName")

        await world.until(another)
        assert await world.get(kinds.PODS, "p") is not None
        await world.reserve(job["metadata"]["uid"], nodeName="n3")
        await world.until_job("j", condition="Eviction=True/EvictComplete", nodeName="n3")

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-04")
@pytest.mark.parametrize("lost", ["cordoned", "deleted"])
def test_an_eviction_without_an_answer_is_not_asked_for_again_when_its_place_is_lost(lost: str) -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        life = await world.live(**MANY)
        evict, silent = life.client.evict, True

        async def answer(*args: Any, **options: Any) -> None:
            if silent:
                raise errors.from_response(503, b"")
            await evict(*args, **options)

        life.client.evict = answer  # type: ignore[method-assign]
        await world.job("j", "p")
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await world.reserve(job["metadata"]["uid"])
        await world.until_job("j", condition="Eviction=Unknown/Evicting")
        if lost == "cordoned":
            await world.client.patch(kinds.NODES, "n2", {"spec": {"unschedulable": True}})
        else:
            await world.client.delete(kinds.NODES, "n2")
        await world.until_job("j", condition="ReservationScheduled=False/Unschedulable")
        silent = False

        async def another() -> bool:
            found = await world.get(kinds.RESERVATIONS, job["metadata"]["uid"])
            return found is not None and not (found.get("status") or {}).get("nodeName")

        await world.until(another)
        assert await world.get(kinds.PODS, "p") is not None
        await world.reserve(job["metadata"]["uid"], nodeName="n3")
        await world.until_job("j", condition="Eviction=True/EvictComplete", nodeName="n3")

    play(scenario)


async def held_back(world: Cluster) -> tuple[Life, str]:
    """A job that has a place on n2, and whose pod a budget does not let go."""
    await world.pod("p", owner=await world.replicaset())
    await report(world, {"n1": (6.5, 0.7), "n2": (1.0, 0.0), "n3": (6.5, 0.7)})
    life = await world.live(**MANY)
    name = await load_job(world, life, relief(n2=6000))
    job = await world.until_job(name, condition="ReservationCreated=True/")
    await budget(world, "hold", "web", count=4)
    await world.reserve(job["metadata"]["uid"])
    await world.until_job(name, condition="Eviction=False/FailedEvict", nodeName="n2")
    return life, name


async def place_is_given_back(world: Cluster, name: str) -> None:
    # The budget changes and still allows nothing: an attempt that is under way may have read the report of before.
    await world.client.patch(kinds.PODDISRUPTIONBUDGETS, "hold", {"spec": {"minAvailable": 5}}, NS)

    async def given_back() -> bool:
        job = await world.get(kinds.PODMIGRATIONJOBS, name)
        return job is not None and condition(job, "ReservationScheduled").get("status") == "False"

    await world.until(given_back)
    assert await world.get(kinds.PODS, "p") is not None


class Deaf:
    """What a watch that has stalled knows of reports: those of before."""

    def __init__(self, informer: Any) -> None:
        self.known = {metric.metadata.name: metric for metric in informer.list()}

    def get(self, name: str) -> Any:
        return self.known.get(name)


@pytest.mark.feature("DS-MC-03")
def test_no_pod_leaves_for_a_node_that_has_become_hot_while_the_watch_of_reports_says_nothing() -> None:
    async def scenario(world: Cluster) -> None:
        life, name = await held_back(world)
        life.setup.cluster.node_metrics = Deaf(life.setup.cluster.node_metrics)
        await report(world, {"n2": (6.5, 0.0)})
        await place_is_given_back(world, name)

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-LNL-08")
def test_no_pod_leaves_for_a_node_that_is_hot_by_pods_of_which_only_its_report_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """They came while nothing was heard of pods. By what the caches know such a pod has left."""
    ages: dict[str, float] = {}
    monkeypatch.setattr(Reflector, "age", property(lambda reflector: ages.get(reflector.kind.plural, 0.0)))

    async def scenario(world: Cluster) -> None:
        life, name = await held_back(world)
        ages["pods"] = 30.0
        busy = {"namespace": NS, "name": "new", "priority": "koord-prod", "podUsage": {"resources": {"cpu": "5500m"}}}
        status = {"updateTime": format_time(world.now()), "podsMetric": [busy]}
        await world.client.patch(kinds.NODEMETRICS, "n2", {"status": status}, subresource="status")

        async def seen_by_rounds() -> bool:
            views = await Observer(life.setup.cluster, []).views(world.now())
            return next(view for view in views if view.name == "n2").arriving.get("cpu") == 5500

        await world.until(seen_by_rounds)
        await place_is_given_back(world, name)

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_no_pod_leaves_while_nothing_is_heard_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another descheduler may have led meanwhile, and be moving it."""
    ages = {"podmigrationjobs": 93.0}
    monkeypatch.setattr(Reflector, "age", property(lambda reflector: ages.get(reflector.kind.plural, 0.0)))

    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        await world.live()
        await world.job("j", "p")
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await world.reserve(job["metadata"]["uid"])
        await world.until_job("j", condition="ReservationScheduled=True/", nodeName="n2")
        await asyncio.sleep(0.3)
        job = await world.get(kinds.PODMIGRATIONJOBS, "j") or {}
        assert not condition(job, "Eviction")
        ages.clear()
        await world.until_job("j", condition="Eviction=True/EvictComplete")

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_two_jobs_that_find_the_last_room_do_not_both_take_it() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        await report(world, {"n1": (6.5, 0.7), "n2": (4.9, 0.0), "n3": (6.5, 0.7)})
        life = await world.live(**MANY)
        for name in ("p", "q"):
            found = life.setup.cluster.pod(NS, name)
            assert found is not None
            assert (await life.plugin.evict(found, relief(n2=6000))).accepted

        async def both() -> list[str] | None:
            found = await world.names(kinds.RESERVATIONS)
            return found if len(found) == 2 else None

        for made in await world.until(both):
            await world.reserve(made)

        async def settled() -> list[Obj] | None:
            found = (await world.client.list(kinds.PODMIGRATIONJOBS)).items
            ended = [job for job in found if job["status"].get("phase") == "Failed"]
            left = [job for job in found if condition(job, "Eviction").get("status") == "True"]
            return found if len(ended) == 1 and len(left) == 1 else None

        await world.until(settled)
        assert len(await world.names(kinds.PODS)) == 1

    play(scenario)


@pytest.mark.feature("DS-MC-06")
def test_a_terminating_pod_keeps_the_place_of_its_successor_beyond_the_ttl() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        grace = {"terminationGracePeriodSeconds": 900}
        await world.pod("p", owner=owner, spec=grace, metadata={"finalizers": ["test/hold"]})
        await world.live(**MANY)
        await world.job("j", "p", ttl="5m")
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await world.reserve(job["metadata"]["uid"])
        await world.until_job("j", condition="Eviction=False/Evicting")
        made = await world.get(kinds.RESERVATIONS, job["metadata"]["uid"])
        assert made is not None
        assert made["spec"]["ttl"] >= "16m"  # 900 s of grace, and one minute for the successor
        world.shift = 600.0
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"metadata": {"labels": {"look": "again"}}})
        await asyncio.sleep(0.3)
        assert ((await world.get(kinds.PODMIGRATIONJOBS, "j")) or {})["status"]["phase"] == "Running"
        assert await world.get(kinds.RESERVATIONS, job["metadata"]["uid"]) is not None
        world.shift = 2000.0
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"metadata": {"labels": {"look": "again2"}}})
        await world.until_job("j", phase="Failed", reason="Timeout")

    play(scenario)


@pytest.mark.feature("DS-MC-06")
def test_a_paused_job_does_not_age() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", owner=owner)
        life = await world.live(**MANY)
        await world.job("j", "p", ttl="5m")
        await world.until_job("j", condition="ReservationCreated=True/")
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"spec": {"paused": True}})

        async def noted(text: str = "0 ") -> bool:
            found = (await world.get(kinds.PODMIGRATIONJOBS, "j")) or {}
            return str(found["metadata"].get("annotations", {}).get(names.ANNOTATION_MIGRATION_PAUSED, "")).startswith(text)

        await world.until(noted)
        world.shift = 3600.0
        await life.migrations.scavenger.sweep()
        assert await world.get(kinds.PODMIGRATIONJOBS, "j") is not None
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"spec": {"paused": None}})
        await world.until(lambda: noted("36"))
        assert ((await world.get(kinds.PODMIGRATIONJOBS, "j")) or {})["status"]["phase"] == "Running"
        world.shift = 4000.0
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"metadata": {"labels": {"look": "again"}}})
        await world.until_job("j", phase="Failed", reason="Timeout")

    play(scenario)


@pytest.mark.feature("DS-MC-04")
def test_a_job_whose_place_expired_while_it_was_paused_asks_for_another_one() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        await world.live(**MANY)
        await world.job("j", "p", ttl="5m")
        await world.until_job("j", condition="ReservationCreated=True/")
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"spec": {"paused": True}})

        async def noted(text: str = "0 ") -> bool:
            found = (await world.get(kinds.PODMIGRATIONJOBS, "j")) or {}
            return str(found["metadata"].get("annotations", {}).get(names.ANNOTATION_MIGRATION_PAUSED, "")).startswith(text)

        await world.until(noted)
        (first,) = (await world.client.list(kinds.RESERVATIONS)).items
        placed = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
        gone = {"type": "Ready", "status": "False", "reason": "Expired"}
        await world.reserve(first["metadata"]["name"], phase="Failed", conditions=[placed, gone])
        world.shift = 3600.0
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"spec": {"paused": None}})

        async def another() -> bool:
            found = (await world.client.list(kinds.RESERVATIONS)).items
            return [each["metadata"]["uid"] != first["metadata"]["uid"] for each in found] == [True]

        await world.until(another)
        assert "n2" not in str((await world.client.list(kinds.RESERVATIONS)).items[0]["spec"]["template"])  # that node did nothing wrong
        await world.reserve(first["metadata"]["name"])
        await world.until_job("j", condition="Eviction=True/EvictComplete")

    play(scenario)
