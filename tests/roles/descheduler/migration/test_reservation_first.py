"""A pod's place is reserved before it leaves: jobs in, reservations, evictions, conditions and events out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api import kinds, names
from koord.kube.errors import ApiError, Forbidden, NotFound
from roles.descheduler.workloads import Workload, Workloads
from tests.support.migration import NS, Cluster, cluster, condition

Scenario = Callable[[Cluster], Awaitable[None]]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def play(scenario: Scenario) -> None:
    async def run() -> None:
        async with cluster() as world:
            await scenario(world)

    asyncio.run(run())


async def started(world: Cluster, **spec: object) -> str:
    """A job whose reservation is there; the reservation's name."""
    await world.pod("p", owner=await world.replicaset())
    await world.job(**spec)
    job = await world.until_job("j", condition="ReservationCreated=True/")
    return str(job["spec"]["reservationOptions"]["reservationRef"]["name"])


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-MC-07")
@pytest.mark.feature("DS-OBS-01")
def test_a_pod_moves_to_the_place_that_was_reserved_for_it() -> None:
    async def scenario(world: Cluster) -> None:
        life = await world.live()
        name = await started(world)
        job = await world.get(kinds.PODMIGRATIONJOBS, "j")
        made = await world.get(kinds.RESERVATIONS, name)
        assert job is not None
        assert made is not None
        assert name == job["metadata"]["uid"]
        assert job["spec"]["podRef"]["uid"]
        assert made["spec"]["allocateOnce"] is True
        assert made["spec"]["ttl"] == "10m"
        assert made["spec"]["owners"][0]["controller"]["name"] == "web"
        assert made["spec"]["owners"][0]["controller"]["namespace"] == NS
        assert made["metadata"]["labels"][names.LABEL_CREATED_BY] == "koord-descheduler"
        assert int(made["metadata"]["labels"][names.LABEL_RESERVATION_ORDER]) > 1_600_000_000_000
        template = made["spec"]["template"]
        assert "nodeName" not in template["spec"]
        terms = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]
        assert template["metadata"]["labels"] == {"app": "web"}

        await world.reserve(name)
        job = await world.until_job("j", condition="Eviction=True/EvictComplete", phase="Running")
        assert job["status"]["nodeName"] == "n2"
        assert await world.get(kinds.PODS, "p") is None
        await world.until_job("j", condition="PodBoundReservation=False/WaitForPodBindReservation")
        new = await world.pod("q", "n2", ready=False)
        owner = {"namespace": NS, "name": "q", "uid": new["metadata"]["uid"]}
        await world.reserve(name, phase="Succeeded", currentOwners=[owner])
        job = await world.until_job("j", condition="BoundPodReady=False/WaitForBoundPodReady")
        assert job["status"]["podRef"]["name"] == "q"
        ready = [{"type": "Ready", "status": "True"}]
        await world.client.patch(kinds.PODS, "q", {"status": {"conditions": ready}}, NS, subresource="status")
        job = await world.until_job("j", phase="Succeeded", status="Complete")
        assert condition(job, "PodBoundReservation")["status"] == "True"
        assert condition(job, "ReservationBound")["status"] == "True"
        assert "reason" not in job["status"]
        assert name in job["status"]["message"]
        assert "q" in job["status"]["message"]

        told = [event["reason"] for event in await world.events("PodMigrationJob", "j")]
        for reason in ("ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete", "WaitForPodBindReservation",
                       "PodBoundReservation", "WaitForBoundPodReady", "BoundPodReady", "Complete"):  # fmt: skip
            assert reason in told
        (left,) = await world.events("Pod", "p")
        assert (left["reason"], left["reportingController"], left["action"]) == ("Descheduled", "test-profile", "Migrating")
        values = dict.fromkeys(("strategy",), "") | {"result": "success", "namespace": NS, "node": "n1"}
        assert life.metrics.registry.get_sample_value("descheduler_pods_evicted", values) == 1.0

    play(scenario)


@pytest.mark.feature("DS-MC-07")
def test_what_the_scheduler_gave_to_the_pod_is_not_asked_for_again() -> None:
    """CPUs, devices and the reservation of its node; they would count on the node where the reservation lies."""

    async def scenario(world: Cluster) -> None:
        given = (names.ANNOTATION_RESOURCE_STATUS, names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_RESERVATION_ALLOCATED)
        await world.pod("p", owner=await world.replicaset(), metadata={"annotations": {**dict.fromkeys(given, "{}"), "kept": "yes"}})
        await world.live()
        await world.job("j")
        job = await world.until_job("j", condition="ReservationCreated=True/")
        made = await world.get(kinds.RESERVATIONS, job["spec"]["reservationOptions"]["reservationRef"]["name"])
        assert made is not None
        assert made["spec"]["template"]["metadata"]["annotations"] == {"kept": "yes"}

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.parametrize(
    ("status", "reason", "released"),
    [
        (
            {"phase": "Failed", "nodeName": "", "conditions": [{"type": "Ready", "status": "False", "reason": "Expired"}]},
            "ReservationExpired",
            True,
        ),
        ({"nodeName": "n1"}, "ForbiddenMigratePod", True),
        ({"phase": "Succeeded", "currentOwners": [{"namespace": NS, "name": "other", "uid": "u"}]}, "ForbiddenMigratePod", True),
        (
            {
                "phase": "Failed",
                "nodeName": "",
                "conditions": [{"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}],
            },
            "Unschedulable",
            True,
        ),
    ],
)
def test_a_place_that_is_of_no_use_ends_the_job_and_is_released(status: dict[str, object], reason: str, released: bool) -> None:
    async def scenario(world: Cluster) -> None:
        await world.live()
        name = await started(world)
        await world.reserve(name, **status)
        await world.until_job("j", phase="Failed", reason=reason)
        await world.until_gone(kinds.RESERVATIONS, name)
        assert await world.get(kinds.PODS, "p") is not None
        assert reason in [event["reason"] for event in await world.events("PodMigrationJob", "j")]

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-WL-01")
@pytest.mark.parametrize("scales", [None, Forbidden(403, "Forbidden", "no scales"), NotFound(404, "NotFound", "no such path")])
@pytest.mark.parametrize(("there", "why"), [(True, "has another uid than the pod's owner"), (False, "does not exist")])
def test_a_pod_whose_workload_is_lost_since_its_job_was_let_through_stays(
    monkeypatch: pytest.MonkeyPatch, there: bool, why: str, scales: ApiError | None
) -> None:
    """The API server has lost what it knew and the workload was made anew, or was not. The watch of ReplicaSets does not say so yet;
    where scales cannot be read it does."""
    known = Workload("ReplicaSet", NS, "web", "before", 8, frozenset({"before"}))

    async def scenario(world: Cluster) -> None:
        life = await world.live()
        with monkeypatch.context() as old:
            old.setattr(Workloads, "of", lambda _self, _pod: known)
            if there:
                await world.replicaset()
            await world.pod("p", owner="before")
            await world.job()
            job = await world.until_job("j", condition="ReservationCreated=True/")
            name = str(job["spec"]["reservationOptions"]["reservationRef"]["name"])
            if scales is not None:
                old.undo()
                get = life.client.get

                async def no_scales(*about: Any, error: ApiError = scales, **more: Any) -> Any:
                    if more.get("subresource") == "scale":
                        raise error
                    return await get(*about, **more)

                monkeypatch.setattr(life.client, "get", no_scales)
            await world.reserve(name)
            job = await world.until_job("j", phase="Failed", reason="ForbiddenMigratePod")
        assert why in job["status"]["message"]
        await world.until_gone(kinds.RESERVATIONS, name)
        assert await world.get(kinds.PODS, "p") is not None

    play(scenario)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.parametrize("forced", [True, False])
def test_a_pod_that_need_not_be_replaced_leaves_though_its_workload_is_lost(forced: bool) -> None:
    async def scenario(world: Cluster) -> None:
        skipped = ["MaxUnavailablePerWorkload", "MaxMigratingPerWorkload", "ExpectedReplicas"]
        await world.live(**({} if forced else {"skipEvictionGates": skipped}))
        await world.pod("p", owner="before", metadata={"annotations": {names.ANNOTATION_DESCHEDULER_EVICT: "true"} if forced else {}})
        await world.job()
        await world.until_job("j", condition="ReservationCreated=True/")
        job = await world.get(kinds.PODMIGRATIONJOBS, "j")
        assert job is not None
        await world.reserve(str(job["spec"]["reservationOptions"]["reservationRef"]["name"]))
        await world.until_job("j", condition="Eviction=True/EvictComplete")

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_place_is_lost_when_it_is_used_up_not_when_it_tells_of_a_user() -> None:
    """As upstream: what says that nobody else can come is phase Succeeded."""

    async def scenario(world: Cluster) -> None:
        await world.live()
        name = await started(world)
        new = await world.pod("q", "n2")
        await world.reserve(name, currentOwners=[{"namespace": NS, "name": "q", "uid": new["metadata"]["uid"]}])
        job = await world.until_job("j", phase="Succeeded", status="Complete")
        assert job["status"]["podRef"]["name"] == "q"
        assert await world.get(kinds.PODS, "p") is None

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_an_unschedulable_reservation_is_reported_and_waited_for() -> None:
    async def scenario(world: Cluster) -> None:
        await world.live()
        name = await started(world)
        refused = [{"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: no room"}]
        await world.reserve(name, phase="Pending", nodeName="", conditions=refused)
        job = await world.until_job("j", condition="ReservationScheduled=False/Unschedulable")
        assert job["status"]["phase"] == "Running"
        assert condition(job, "ReservationScheduled")["message"] == "0/2 nodes: no room"
        assert await world.get(kinds.PODS, "p") is not None
        await world.reserve(name)
        await world.until_job("j", condition="Eviction=True/EvictComplete")

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_job_whose_scheduler_says_nothing_tells_what_it_waits_for() -> None:
    async def scenario(world: Cluster) -> None:
        await world.live()
        await world.pod("p", spec={"schedulerName": "someone"}, owner=await world.replicaset())
        await world.job("j", "p")
        job = await world.until_job("j", condition="ReservationScheduled=False/WaitForNode")
        assert 'scheduler "someone" has not answered yet' in job["status"]["message"]
        await world.reserve(job["metadata"]["uid"])
        await world.until_job("j", condition="ReservationScheduled=True/")

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_job_may_name_a_reservation_that_is_there() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        pod = await world.pod("p", owner=owner)
        owners = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
        body = {"spec": {"owners": owners, "template": {"spec": pod["spec"]}, "ttl": "1h"}}
        made = await world.put(kinds.RESERVATIONS, "mine", body)
        await world.reserve("mine")
        await world.live()
        await world.job(reservationOptions={"reservationRef": {"name": "mine", "uid": made["metadata"]["uid"]}})
        await world.until_job("j", condition="Eviction=True/EvictComplete")
        found = await world.get(kinds.RESERVATIONS, "mine")
        assert found is not None
        assert names.LABEL_RESERVATION_ORDER in found["metadata"]["labels"]
        new = await world.pod("q", "n2", owner)
        await world.reserve("mine", phase="Succeeded", currentOwners=[{"namespace": NS, "name": "q", "uid": new["metadata"]["uid"]}])
        await world.until_job("j", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_reservation_that_does_not_exist_ends_the_job() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        await world.live()
        await world.job(reservationOptions={"reservationRef": {"name": "nowhere"}})
        await world.until_job("j", phase="Failed", reason="MissingReservation")
        assert await world.get(kinds.PODS, "p") is not None

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_reservation_that_cannot_be_made_is_tried_again() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset(), metadata={"annotations": {}})
        await world.live()
        refused = {"spec": {"allocatePolicy": "Sideways"}}  # no such policy: the API server refuses it
        await world.job(reservationOptions={"template": refused})
        job = await world.until_job("j", condition="ReservationCreated=False/FailedCreateReservation")
        assert job["status"]["phase"] == "Running"
        assert "allocatePolicy" in condition(job, "ReservationCreated")["message"]
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"spec": {"reservationOptions": {"template": {"spec": None}}}})
        await world.until_job("j", condition="ReservationCreated=True/")

    play(scenario)


@pytest.mark.feature("DS-MC-07")
@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ({"spec": {"template": "x"}}, "spec.reservationOptions.template.spec.template must be an object, found str"),
        ({"metadata": {"labels": [1]}}, "spec.reservationOptions.template.metadata.labels must be an object, found list"),
        ({"spec": {"template": {"spec": {"affinity": 3}}}}, "template.spec.template.spec.affinity must be an object, found int"),
        ("x", "spec.reservationOptions.template must be an object, found str"),
        ({"metadata": "x"}, "spec.reservationOptions.template.metadata must be an object, found str"),
        ({"metadata": {"ownerReferences": 5}}, "spec.reservationOptions.template.metadata.ownerReferences must be a list, found int"),
        ({"spec": {"template": {"metadata": 5}}}, "makes no Reservation: Expected `object`, got `int` - at `$.spec.template.metadata`"),
        (
            {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": "x"}}}}}}},
            f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms must be a list, found str",
        ),
        (
            {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": 5}]}}}}}}},
            f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[].matchFields must be a list, found int",
        ),
    ],
)
def test_a_template_that_makes_no_sense_is_told(template: object, wanted: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset())
        life = await world.live()
        await world.job(reservationOptions={"template": template})
        job = await world.until_job("j", condition="ReservationCreated=False/FailedCreateReservation")
        assert wanted in condition(job, "ReservationCreated")["message"]
        assert await world.get(kinds.PODS, "p") is not None
        world.shift = 700.0
        life.migrations.reconciler.queue.add("j")
        await world.until_job("j", phase="Failed", reason="Timeout")
        await life.kill()
        assert not [record for record in caplog.records if record.exc_info], "it ends without a mistake"

    play(scenario)


@pytest.mark.feature("DS-MC-05")
def test_a_pod_that_waits_for_a_node_is_not_evicted_but_reserved_for() -> None:
    async def scenario(world: Cluster) -> None:
        pod = await world.pod("p", "", await world.replicaset())
        await world.live()
        await world.job(reservationOptions={"template": {"metadata": {"name": "place"}}})
        await world.until_job("j", condition="ReservationCreated=True/")
        made = await world.get(kinds.RESERVATIONS, "place")
        assert made is not None
        assert made["spec"]["owners"] == [{"object": {"kind": "Pod", "namespace": NS, "name": "p", "uid": pod["metadata"]["uid"]}}]
        assert "affinity" not in made["spec"]["template"]["spec"]
        await world.reserve("place")
        job = await world.until_job("j", condition="PodScheduled=False/Unschedulable")
        assert condition(job, "PodScheduled")["message"] == "full"
        scheduled = {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}
        await world.client.patch(kinds.PODS, "p", scheduled, NS, subresource="status")
        job = await world.until_job("j", phase="Succeeded", status="Complete")
        assert condition(job, "PodScheduled")["status"] == "True"
        assert not condition(job, "Eviction")

    play(scenario)


@pytest.mark.feature("DS-MC-05")
@pytest.mark.parametrize(("what", "reason"), [("taken", "ForbiddenMigratePod"), ("gone", "MissingPod")])
def test_a_pod_that_waits_for_a_node_and_loses_its_place_or_goes(what: str, reason: str) -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", "", await world.replicaset())
        await world.live()
        await world.job(reservationOptions={"template": {"metadata": {"name": "place"}}})
        await world.until_job("j", condition="ReservationCreated=True/")
        await world.reserve("place")
        await world.until_job("j", condition="PodScheduled=False/Unschedulable")
        if what == "taken":
            await world.reserve("place", phase="Succeeded", currentOwners=[{"namespace": NS, "name": "x", "uid": "another"}])
        else:
            await world.client.delete(kinds.PODS, "p", NS)
        await world.until_job("j", phase="Failed", reason=reason)
        await world.until_gone(kinds.RESERVATIONS, "place")

    play(scenario)


@pytest.mark.feature("DS-MC-07")
def test_what_the_template_says_wins_and_claims_can_be_left_out() -> None:
    async def scenario(world: Cluster) -> None:
        volumes = [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "emptyDir": {}},
        ]
        terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in ("a", "b")]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        await world.pod("p", owner=await world.replicaset(), spec={"volumes": volumes, "affinity": affinity})
        await world.live(gates="DisablePVCReservation=true", evictLocalStoragePods=True)
        owners = [{"labelSelector": {"matchLabels": {"mine": "yes"}}}]
        given = {
            "metadata": {"name": "place", "labels": {"team": "a"}},
            "spec": {"owners": owners, "expires": "2099-01-01T00:00:00Z", "allocateOnce": False},
        }
        await world.job(reservationOptions={"template": given})
        await world.until_job("j", condition="ReservationCreated=True/")
        made = await world.get(kinds.RESERVATIONS, "place")
        assert made is not None
        spec = made["spec"]
        assert spec["owners"] == owners
        assert spec["allocateOnce"] is True
        assert spec["expires"] == "2099-01-01T00:00:00Z"
        assert spec.get("ttl") != "10m"
        assert made["metadata"]["labels"]["team"] == "a"
        assert [volume["name"] for volume in spec["template"]["spec"]["volumes"]] == ["scratch"]
        found = spec["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert [term["matchExpressions"][0]["key"] for term in found] == ["a", "b"]
        assert all(term["matchFields"][0]["values"] == ["n1"] for term in found)

    play(scenario)
