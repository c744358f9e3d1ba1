"""How pods leave: evictors, refusals, pods that change under the job's feet; each through the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
import pytest

from koord import seams
from koord.api import kinds, names
from koord.api.objects import Pod, Reservation
from koord.kube import errors
from koord.kube.client import Client
from koord.process.errors import FatalError
from roles.descheduler.migration import evictors
from tests.support.migration import NS, Cluster, cluster, condition

FORCE = {"annotations": {names.ANNOTATION_DESCHEDULER_EVICT: "true"}}
HOLD = {"finalizers": ["test/hold"]}


def play(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster() as world:
            await scenario(world)

    asyncio.run(run())


class Failing(Client):
    """A client whose evictions meet errors, one after the other, before or after they took place."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.errors: list[tuple[Exception, bool]] = []
        self.asked = 0

    async def evict(self, namespace: str, pod: str, **options: Any) -> None:
        self.asked += 1
        error, done = self.errors.pop(0) if self.errors else (None, True)
        if done:
            await super().evict(namespace, pod, **options)
        if error is not None:
            raise error


class Keeping(Failing):
    """A client that counts how often places are held for longer. `late`: the scheduler lets a place expire at that very moment."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kept: list[str] = []
        self.late = False

    async def patch(self, kind: kinds.Kind, name: str, body: Any, *args: Any, **options: Any) -> dict[str, Any]:
        if kind is kinds.RESERVATIONS and "ttl" in body.get("spec", {}):
            self.kept.append(name)
            if self.late:
                gone = {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False", "reason": "Expired"}]}
                await super().patch(kind, name, {"status": gone}, subresource="status")
        return await super().patch(kind, name, body, *args, **options)


async def slow_movers(world: Cluster, count: int) -> None:
    """Jobs j0, j1, … for pods that may take longer to end than their reservations last."""
    owner = await world.replicaset()
    for number in range(count):
        await world.pod(f"p{number}", owner=owner, metadata=dict(FORCE), spec={"terminationGracePeriodSeconds": 3600})
        await world.job(f"j{number}", f"p{number}")


@pytest.mark.feature("DS-MC-04")
def test_a_place_is_held_for_as_long_as_the_eviction_lets_the_pod_stay() -> None:
    """The pod itself would be gone at once; who evicts it gives it an hour."""

    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p0", owner=owner, metadata=dict(FORCE))
        await world.job("j0", "p0", deleteOptions={"gracePeriodSeconds": 3600})
        async with Keeping(world.client.config) as client:
            await world.live(client=client)
            await place(world, "j0")
            await world.until_job("j0", condition="Eviction=False/Evicting")
            assert len(client.kept) == 1
            await world.lives[0].kill()

    play(scenario)


async def place(world: Cluster, job: str) -> None:
    """Give a job's reservation a node."""
    made = await world.until_job(job, condition="ReservationCreated=True/")
    await world.reserve(made["spec"]["reservationOptions"]["reservationRef"]["name"])


@pytest.mark.feature("DS-MC-04")
def test_a_place_is_held_for_longer_once_and_only_when_it_is_the_pods_turn() -> None:
    async def scenario(world: Cluster) -> None:
        await slow_movers(world, 2)
        async with Keeping(world.client.config) as client:
            await world.live(client=client, evictQPS=4, evictBurst=1, maxMigratingPerNode=0)
            for number in range(2):
                await place(world, f"j{number}")
            for number in range(2):
                await world.until_job(f"j{number}", condition="Eviction=False/Evicting")
            assert len(client.kept) == len(set(client.kept)) == 2
            await world.lives[0].kill()

    play(scenario)


@pytest.mark.feature("DS-MC-04")
def test_a_place_that_expires_while_it_is_held_for_longer_is_none() -> None:
    async def scenario(world: Cluster) -> None:
        await slow_movers(world, 1)
        async with Keeping(world.client.config) as client:
            client.late = True
            await world.live(client=client)
            await place(world, "j0")
            await world.until_job("j0", phase="Failed", reason="ReservationExpired")
            pod = await world.get(kinds.PODS, "p0")
            assert pod is not None
            assert "deletionTimestamp" not in pod["metadata"]
            await world.lives[0].kill()

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_a_place_is_not_held_for_longer_at_each_refusal() -> None:
    async def scenario(world: Cluster) -> None:
        await slow_movers(world, 1)
        async with Keeping(world.client.config) as client:
            client.errors = [(errors.TooManyRequests(429, "TooManyRequests", "a budget"), False)] * 1000
            await world.live(client=client)
            await place(world, "j0")

            async def several() -> bool:
                return client.asked >= 5

            await world.until(several)
            assert len(client.kept) == 1
            assert client.asked < 12  # what is written about the place is no reason to ask again at once
            await world.lives[0].kill()

    play(scenario)


@pytest.mark.feature("DS-MC-06")
@pytest.mark.feature("DS-MC-08")
def test_the_pause_that_a_refusal_asks_for_is_no_longer_than_the_jobs_time_and_never_nothing() -> None:
    async def scenario(world: Cluster) -> None:
        for name in ("p", "q"):
            await world.pod(name, metadata=FORCE)
        async with Failing(world.client.config) as client:
            client.errors = [(errors.TooManyRequests(429, "TooManyRequests", "a webhook", retry_after=3600.0), False)] * 1000
            life = await world.live(client=client)
            passed = {names.ANNOTATION_PASSED_ARBITRATION: "true"}  # in an earlier life: this one has not waited for it
            await world.job("j", "p", mode="EvictDirectly", ttl="3s", annotations=passed)
            await world.until_job("j", phase="Failed", reason="Timeout")
            client.asked, client.errors = 0, [(errors.TooManyRequests(429, "TooManyRequests", "a webhook", retry_after=0.0), False)] * 1000
            await world.job("k", "q", mode="EvictDirectly", ttl="3s")
            await world.until_job("k", phase="Failed", reason="Timeout")
            assert client.asked < 20
            await life.kill()

    play(scenario)


@pytest.mark.feature("DS-MC-04")
def test_evicted_directly() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE)
        await world.live()
        await world.job(mode="EvictDirectly")
        job = await world.until_job("j", phase="Succeeded", status="Complete", condition="Eviction=True/EvictComplete")
        assert job["status"]["message"] == 'Pod "default/p" has been evicted'
        assert job["spec"]["podRef"]["uid"]
        assert await world.get(kinds.PODS, "p") is None
        assert not await world.names(kinds.RESERVATIONS)

    play(scenario)


@pytest.mark.feature("DS-MC-04")
def test_a_pod_that_takes_its_time_is_waited_for_and_not_evicted_again() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE | HOLD)
        client = Failing(world.client.config)
        async with client:
            life = await world.live(client=client)
            annotations = {names.ANNOTATION_EVICT_REASON: "too hot", names.ANNOTATION_EVICT_TRIGGER: "LowNodeLoad"}
            await world.job(mode="EvictDirectly", annotations=annotations)
            job = await world.until_job("j", condition="Eviction=False/Evicting")
            assert condition(job, "Eviction")["message"] == 'Pod "default/p" evicted from node "n1" by the reason "too hot"'
            assert job["status"]["phase"] == "Running"
            values = {"result": "success", "strategy": "LowNodeLoad", "namespace": NS, "node": "n1"}
            assert life.metrics.registry.get_sample_value("descheduler_pods_evicted", values) == 1.0
            await life.kill()
            second = await world.live(client=client)
            await world.client.patch(kinds.PODS, "p", {"metadata": {"finalizers": None}}, NS)
            await world.until_job("j", phase="Succeeded")
            assert client.asked == 1
            await second.kill()

    play(scenario)


@pytest.mark.feature("DS-MC-04")
@pytest.mark.parametrize("mode", ["EvictDirectly", "ReservationFirst"])
def test_a_job_for_a_pod_that_does_not_exist(mode: str) -> None:
    async def scenario(world: Cluster) -> None:
        await world.live()
        await world.job(mode=mode)
        await world.until_job("j", phase="Failed", reason="MissingPod")
        await world.job("k", pod="", mode=mode)
        await world.until_job("k", phase="Failed", reason="InvalidPodRef")

    play(scenario)


@pytest.mark.feature("DS-MC-04")
@pytest.mark.feature("DS-MC-06")
def test_a_job_that_nobody_can_read_leaves_its_pod_alone_and_says_why() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        await world.live()
        await world.job("a", "p", mode="EvictDirectly", ttl="5 minutes")
        await world.job("b", "q", mode="evictDirectly")
        job = await world.until_job("a", phase="Failed", reason="InvalidSpec")
        assert job["status"]["message"] == "spec.ttl: '5 minutes' is not a duration such as 1h30m, 5m0s, 500ms or 0"
        job = await world.until_job("b", phase="Failed", reason="InvalidSpec")
        assert job["status"]["message"] == "spec.mode: 'evictDirectly' is not known; accepted: ReservationFirst, EvictDirectly"
        assert {"p", "q"} <= set(await world.names(kinds.PODS))
        assert not await world.names(kinds.RESERVATIONS)

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-04")
def test_another_pod_of_the_same_name_is_never_evicted() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", owner=owner)
        await world.live()
        await world.job()
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await world.client.delete(kinds.PODS, "p", NS)
        again = await world.pod("p", owner=owner)
        await world.reserve(job["metadata"]["uid"])
        await world.until_job("j", phase="Failed", reason="MissingPod")
        left = await world.get(kinds.PODS, "p")
        assert left is not None
        assert left["metadata"]["uid"] == again["metadata"]["uid"]
        assert "deletionTimestamp" not in left["metadata"]
        await world.until_gone(kinds.RESERVATIONS, job["metadata"]["uid"])

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_pod_that_comes_again_under_its_name_is_the_new_one() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", owner=owner, metadata=HOLD)
        await world.live()
        await world.job()
        job = await world.until_job("j", condition="ReservationCreated=True/")
        name = job["metadata"]["uid"]
        await world.reserve(name)
        await world.until_job("j", condition="Eviction=False/Evicting")
        await world.client.patch(kinds.PODS, "p", {"metadata": {"finalizers": None}}, NS)
        await world.until_gone(kinds.PODS, "p")
        again = await world.pod("p", "n2", owner)  # as a StatefulSet does it
        await world.until_job("j", condition="Eviction=True/EvictComplete")
        await world.reserve(name, phase="Succeeded", currentOwners=[{"namespace": NS, "name": "p", "uid": again["metadata"]["uid"]}])
        job = await world.until_job("j", phase="Succeeded")
        assert job["status"]["podRef"]["uid"] == again["metadata"]["uid"]

    play(scenario)


@pytest.mark.feature("DS-MC-01")
def test_a_pod_that_a_plugin_chose_must_still_be_that_pod() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE)
        await world.live()
        ref = {"namespace": NS, "name": "p", "uid": "an-older-one"}
        annotations = {names.ANNOTATION_JOB_CREATED_BY: "a-former-life"}
        await world.job("chosen", podRef=ref, mode="EvictDirectly", annotations=annotations)
        await world.until_job("chosen", phase="Failed", reason="MissingPod")
        assert await world.get(kinds.PODS, "p") is not None
        await world.job("by-hand", podRef=ref, mode="EvictDirectly")  # a person's uid is overwritten
        await world.until_job("by-hand", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_a_disruption_budget_is_waited_for() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE)
        budget: dict[str, Any] = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}
        seen = {"observedGeneration": 1, "expectedPods": 1, "desiredHealthy": 1, "currentHealthy": 1, "disruptionsAllowed": 0}
        await world.put(kinds.PODDISRUPTIONBUDGETS, "b", budget | {"status": seen})
        life = await world.live()
        await world.job(mode="EvictDirectly")
        job = await world.until_job("j", condition="Eviction=False/FailedEvict", phase="Running")
        assert "needs 1 healthy pods and has 1" in condition(job, "Eviction")["message"]
        assert await world.get(kinds.PODS, "p") is not None
        now = {"status": seen | {"currentHealthy": 2, "disruptionsAllowed": 1}}
        await world.client.patch(kinds.PODDISRUPTIONBUDGETS, "b", now, NS, subresource="status")
        await world.until_job("j", phase="Succeeded")
        told = [(event["type"], event["reason"]) for event in await world.events("PodMigrationJob", "j")]
        assert ("Warning", "Evicting") in told
        failed = {"result": "error", "strategy": "", "namespace": NS, "node": "n1"}
        assert life.metrics.registry.get_sample_value("descheduler_pods_evicted", failed)

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_a_refusal_that_was_written_is_no_reason_to_ask_again_at_once() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE)
        async with Failing(world.client.config) as client:
            client.errors = [(errors.TooManyRequests(429, "TooManyRequests", "a budget"), False)] * 1000
            life = await world.live(client=client)
            await world.job(mode="EvictDirectly")
            await world.until_job("j", condition="Eviction=False/FailedEvict")
            await asyncio.sleep(1)
            assert client.asked < 12  # each pause is twice the one before
            client.errors.clear()
            await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"metadata": {"labels": {"seen": "yes"}}})  # what others write is
            await world.until_job("j", phase="Succeeded")
            await life.kill()

    play(scenario)


@pytest.mark.feature("DS-MC-08")
@pytest.mark.parametrize(
    "error",
    [
        errors.TooManyRequests(429, "TooManyRequests", "slow down"),
        errors.Conflict(409, "Conflict", "changed"),
        errors.Unreachable("the line is dead"),
        errors.ServerError(500, "InternalError", "no etcd"),
        errors.Forbidden(403, "Forbidden", "a webhook says no"),
    ],
    ids=lambda error: str(error.status),
)
@pytest.mark.parametrize("done", [False, True], ids=["refused", "done all the same"])
def test_errors_of_an_eviction_are_got_over(error: Exception, done: bool) -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE)
        async with Failing(world.client.config) as client:
            client.errors = [(error, done)] if done else [(error, False)] * 2
            life = await world.live(client=client)
            await world.job(mode="EvictDirectly")
            if done and isinstance(error, (errors.TooManyRequests, errors.Forbidden)):
                await world.until_job("j", phase="Failed", reason="MissingPod")  # a clear no, and then somebody else took the pod away
            else:
                await world.until_job("j", phase="Succeeded")
            assert client.asked == (1 if done else 3)
            await life.kill()

    play(scenario)


@pytest.mark.feature("DS-MC-08")
@pytest.mark.feature("DS-MC-09")
def test_an_eviction_without_an_answer_that_is_refused_in_the_end_is_not_counted() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        async with Failing(world.client.config) as client:
            client.errors = [
                (errors.Unreachable("the line is dead"), False),
                (errors.TooManyRequests(429, "TooManyRequests", "a budget"), False),
            ]
            life = await world.live(client=client, objectLimiters={"workload": {"duration": "1h", "maxMigrating": 1}})
            await world.job(mode="EvictDirectly")
            await world.until_job("j", phase="Succeeded")
            assert client.asked == 3
            await life.kill()

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_the_way_out_follows_the_pod_then_the_job_then_the_arguments() -> None:
    async def scenario(world: Cluster) -> None:
        soft = {names.LABEL_EVICT_POLICY: "SoftEviction"}
        await world.pod("by-pod", metadata=FORCE | {"labels": soft})
        await world.pod("by-job", metadata=FORCE)
        await world.pod("by-default", metadata=FORCE | {"labels": {names.LABEL_EVICT_POLICY: "Nonsense"}})
        await world.live(evictionPolicy="Delete", defaultDeleteOptions={"gracePeriodSeconds": 0})
        await world.job(
            "a", "by-pod", mode="EvictDirectly", deleteOptions={"gracePeriodSeconds": 7}, annotations={names.ANNOTATION_EVICT_TRIGGER: "me"}
        )
        await world.client.create(
            kinds.PODMIGRATIONJOBS,
            {
                "apiVersion": kinds.PODMIGRATIONJOBS.api_version,
                "kind": "PodMigrationJob",
                "metadata": {"name": "b", "labels": soft},
                "spec": {"podRef": {"namespace": NS, "name": "by-job"}, "mode": "EvictDirectly"},
            },
        )
        await world.job("c", "by-default", mode="EvictDirectly")
        await world.until_job("c", phase="Succeeded")
        for job, name in (("a", "by-pod"), ("b", "by-job")):
            await world.until_job(job, condition="Eviction=False/Evicting")
            pod = await world.get(kinds.PODS, name)
            assert pod is not None
            asked = orjson.loads(pod["metadata"]["annotations"][names.ANNOTATION_SOFT_EVICTION])
            assert asked["timestamp"].endswith("Z")
            assert asked["deleteOptions"] == {"gracePeriodSeconds": 7 if job == "a" else 0}
            assert (asked["initiator"], asked["reason"]) == (("me", "me") if job == "a" else ("", "NotSet"))
        await world.client.delete(kinds.PODS, "by-pod", NS)  # whoever follows soft evictions
        await world.until_job("a", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-MC-08")
@pytest.mark.feature("DS-MC-06")
def test_a_soft_eviction_that_nobody_follows_is_taken_back_when_the_time_is_up() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", metadata=FORCE)
        life = await world.live(evictionPolicy="SoftEviction")
        await world.job(mode="EvictDirectly", ttl="5m")
        await world.until_job("j", condition="Eviction=False/Evicting")

        async def counted() -> bool:
            pod = life.setup.cluster.pods.get(f"{NS}/p")
            return pod is not None and life.plugin.leaving(pod) and not life.plugin.accepted(pod)

        await world.until(counted)  # nobody can tell whether it will go
        world.shift = 301.0
        await world.client.patch(kinds.PODS, "p", {"metadata": {"labels": {"touched": "yes"}}}, NS)
        await world.until_job("j", phase="Failed", reason="Timeout")

        async def free() -> bool:
            pod = await world.get(kinds.PODS, "p")
            return pod is not None and names.ANNOTATION_SOFT_EVICTION not in pod["metadata"]["annotations"]

        await world.until(free)

    play(scenario)


class Without(Client):
    """A client of a server that has no evictions, or does not say."""

    status = 200

    async def raw(self, method: str, path: str, *args: Any, **options: Any) -> tuple[int, bytes]:
        return self.status, b'{"resources": [{"name": "pods"}, {"name": "pods/status"}]}'


@pytest.mark.feature("DS-MC-08")
def test_a_server_without_evictions_ends_the_process() -> None:
    async def scenario(world: Cluster) -> None:
        async with Without(world.client.config) as client:
            with pytest.raises(FatalError, match="pods/eviction"):
                await evictors.require_evictions(client)
            client.status = 403
            await evictors.require_evictions(client)
            client.status = 500
            with pytest.raises(errors.ServerError):
                await evictors.require_evictions(client)

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_evictions_keep_their_pace_without_failing() -> None:
    async def scenario(world: Cluster) -> None:
        for number in range(4):
            await world.pod(f"p{number}", metadata=FORCE)
            await world.job(f"j{number}", f"p{number}", mode="EvictDirectly")
        began = asyncio.get_running_loop().time()
        life = await world.live(evictQPS=5, evictBurst=1, maxMigratingPerNode=0, maxConcurrentReconciles=4)
        for number in range(4):
            await world.until_job(f"j{number}", phase="Succeeded")
        assert asyncio.get_running_loop().time() - began >= 0.6  # the first at once, then one every 200 ms
        failed = {"result": "error", "strategy": "", "namespace": NS, "node": "n1"}
        assert life.metrics.registry.get_sample_value("descheduler_pods_evicted", failed) is None

    play(scenario)


class Agreeing:
    """The scheduler agrees, and counts how often it is asked."""

    asked = 0

    async def refuse(self, pods: Sequence[Pod], held: Sequence[Reservation]) -> str:
        self.asked += 1
        return ""


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-08")
def test_the_scheduler_is_not_asked_about_pods_whose_turn_it_is_not_yet() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        agreeing = Agreeing()
        await world.live(successors=agreeing, evictQPS=5, evictBurst=1, maxMigratingPerNode=0, maxMigratingPerWorkload=4)
        for number in range(4):
            await world.pod(f"p{number}", owner=owner, metadata=dict(FORCE))
            await world.job(f"j{number}", f"p{number}")
        for number in range(4):
            await placed(world, f"j{number}")
        for number in range(4):
            await world.until_job(f"j{number}", condition="ReservationScheduled=True/")
        while len(await world.names(kinds.PODS)) > 0:
            await asyncio.sleep(0.01)
        assert agreeing.asked == 4

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_nothing_is_kept_of_a_job_whose_eviction_never_had_an_answer() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        async with Failing(world.client.config) as client:
            client.errors = [(errors.Unreachable("the line is dead"), True)]
            life = await world.live(client=client)
            await world.job(mode="EvictDirectly")
            await world.until_job("j", phase="Succeeded")
            await world.client.delete(kinds.PODMIGRATIONJOBS, "j")

            async def forgotten() -> bool:
                return not life.migrations.reconciler._acting._counted

            await world.until(forgotten)
            await life.kill()

    play(scenario)


@pytest.mark.feature("DS-MC-08")
def test_an_eviction_that_is_refused_while_its_job_goes_is_not_counted() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name in ("p", "q"):
            await world.pod(name, owner=owner)

        async def gone_and_not_counted() -> bool:
            (policy,) = life.migrations.policies.values()
            held = policy.limiters.hold(owner, NS, seams.now())
            return await world.get(kinds.PODMIGRATIONJOBS, "a") is None and held is None

        class Deleting(Failing):
            async def evict(self, namespace: str, pod: str, **options: Any) -> None:
                if pod == "p":
                    await world.client.delete(kinds.PODMIGRATIONJOBS, "a")
                    while life.migrations.jobs.list():
                        await asyncio.sleep(0.01)
                    raise errors.TooManyRequests(429, "TooManyRequests", "a budget refuses")
                await super().evict(namespace, pod, **options)

        async with Deleting(world.client.config) as client:
            limits: dict[str, Any] = {"objectLimiters": {"workload": {"duration": "5m", "maxMigrating": 1}}, "maxUnavailablePerWorkload": 4}
            life = await world.live(client=client, **limits)
            await world.job("a", "p", mode="EvictDirectly")
            await world.until(gone_and_not_counted)
            await world.job("b", "q", mode="EvictDirectly")
            await world.until_job("b", phase="Succeeded")
            await life.kill()

    play(scenario)


# ---------------------------------------------------------------- what has changed since arbitration


async def placed(world: Cluster, name: str) -> None:
    """The job's reservation is there and lies on a node."""
    job = await world.until_job(name, condition="ReservationCreated=True/")
    await world.reserve(str(job["spec"]["reservationOptions"]["reservationRef"]["name"]))


async def becomes(world: Cluster, pod: str, *, ready: bool = True, phase: str = "Running") -> None:
    conditions = [{"type": "Ready", "status": str(ready)}]
    await world.client.patch(kinds.PODS, pod, {"status": {"phase": phase, "conditions": conditions}}, NS, subresource="status")


@pytest.mark.feature("DS-ARB-02")
def test_a_pod_waits_while_others_of_its_workload_have_become_unavailable_since_arbitration() -> None:
    """2 of 5 may be unavailable: with two that are down by themselves nobody leaves, with one that is down one of two does."""

    async def scenario(world: Cluster) -> None:
        await world.live(maxMigratingPerWorkload=2, maxUnavailablePerWorkload=2)
        uid = await world.replicaset(replicas=5, status={"observedGeneration": 1, "replicas": 5})
        for name in ("p", "q", "a", "b", "c"):
            await world.pod(name, owner=uid)
        for job, pod in (("j", "p"), ("k", "q")):
            await world.job(job, pod)
            await world.until_job(job, condition="ReservationCreated=True/")
        for pod in ("a", "b"):
            await becomes(world, pod, ready=False)
        for job in ("j", "k"):
            waits = await world.until_job(job, condition="Arbitration=False/MaxUnavailablePerWorkload")
            assert "2 pods of ReplicaSet web (5 replicas) are unavailable" in waits["status"]["message"]
            await placed(world, job)
        await asyncio.sleep(1.5)
        assert {"p", "q"} <= set(await world.names(kinds.PODS))

        await becomes(world, "a")

        async def one_has_left() -> bool:
            return len({"p", "q"} & set(await world.names(kinds.PODS))) == 1

        await world.until(one_has_left)
        await asyncio.sleep(1.5)
        assert await one_has_left()

        await becomes(world, "b")

        async def both_have_left() -> bool:
            return not {"p", "q"} & set(await world.names(kinds.PODS))

        await world.until(both_have_left)

    play(scenario)


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("SCH-GANG-01")
def test_a_member_of_a_gang_waits_while_the_gang_is_at_its_minimum_since_arbitration() -> None:
    async def scenario(world: Cluster) -> None:
        await world.live(maxMigratingPerWorkload=4, maxUnavailablePerWorkload=4)
        uid = await world.replicaset()
        gang = {"annotations": {names.ANNOTATION_GANG_NAME: "g", names.ANNOTATION_GANG_MIN_AVAILABLE: "2"}}
        for name in ("p", "a", "b"):
            await world.pod(name, owner=uid, metadata=gang)
        await world.job()
        await world.until_job("j", condition="ReservationCreated=True/")
        await becomes(world, "a", ready=False, phase="Failed")
        waits = await world.until_job("j", condition="Arbitration=False/Gang")
        assert "would have 1 of the 2 members that it needs" in waits["status"]["message"]
        await placed(world, "j")
        await asyncio.sleep(1.5)
        assert await world.get(kinds.PODS, "p") is not None
        await world.pod("c", owner=uid, metadata=gang)
        await world.until_gone(kinds.PODS, "p")

    play(scenario)


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.parametrize("forced", [True, False])
def test_a_pod_that_is_forced_or_not_available_itself_does_not_wait_for_others(forced: bool) -> None:
    async def scenario(world: Cluster) -> None:
        await world.live(maxMigratingPerWorkload=2, maxUnavailablePerWorkload=2)
        uid = await world.replicaset()
        await world.pod("p", owner=uid, ready=forced, metadata=FORCE if forced else {})
        for name in ("a", "b"):
            await world.pod(name, owner=uid)
        await world.job()
        await world.until_job("j", condition="ReservationCreated=True/")
        for name in ("a", "b"):
            await becomes(world, name, ready=False)
        await placed(world, "j")
        await world.until_gone(kinds.PODS, "p")

    play(scenario)
