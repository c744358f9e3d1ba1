"""What the API offers for migrations, which workloads are understood, and what each gate opens."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from koord.api import kinds, names
from koord.api.kinds import Kind
from koord.kube import errors
from roles.descheduler.framework.evicting import EvictOptions
from roles.descheduler.migration.plugin import MigrationController
from roles.descheduler.migration.words import Kind as ConditionKind
from roles.descheduler.migration.words import Reason
from roles.descheduler.workloads import UNSERVED_LIFETIME
from tests.support.migration import NS, Cluster, arguments, cluster

WIDGETS = Kind("example.com", "v1", "Widget", "widgets", True, (), frozenset({"status", "scale"}))
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.count"}},
            }
        ],
    },
}


def play(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster() as world:
            await scenario(world)

    asyncio.run(run())


@pytest.mark.feature("DS-MC-02")
def test_the_resource_as_clients_see_it() -> None:
    async def scenario(world: Cluster) -> None:
        spec = {
            "podRef": {"namespace": NS, "name": "p"},
            "mode": "EvictDirectly",
            "ttl": "8m",
            "paused": True,
            "deleteOptions": {"gracePeriodSeconds": 4},
            "reservationOptions": {"template": {"spec": {"anything": [1]}}, "preemptionOptions": {}},
        }
        status = {"phase": "Running", "status": "Eviction", "nodeName": "n2", "podRef": {"name": "q"}}
        made = await world.put(kinds.PODMIGRATIONJOBS, "j", {"spec": spec, "status": status})
        assert made["spec"]["reservationOptions"]["template"] == {"spec": {"anything": [1]}}
        await world.client.patch(kinds.PODMIGRATIONJOBS, "j", {"status": {"phase": "Failed"}})  # not by this door
        assert (await world.client.get(kinds.PODMIGRATIONJOBS, "j"))["status"]["phase"] == "Running"
        definition = await world.client.get(kinds.CUSTOMRESOURCEDEFINITIONS, "podmigrationjobs.scheduling.koordinator.sh")
        version = definition["spec"]["versions"][0]
        columns = [column["name"] for column in version["additionalPrinterColumns"]]
        assert columns == ["Phase", "Status", "Age", "Node", "Reservation", "PodNamespace", "Pod", "NewPod", "TTL"]
        assert (definition["spec"]["scope"], definition["spec"]["names"]["shortNames"]) == ("Cluster", ["pmj"])
        code, _ = await world.client.raw("GET", "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs/j/status")
        assert code == 200
        with pytest.raises(errors.Invalid):
            await world.put(kinds.PODMIGRATIONJOBS, "k", {"spec": {"ttl": "5m"}})

    play(scenario)


CONDITION_TYPES = (
    "ReservationCreated", "ReservationScheduled", "Preemption", "Eviction", "PodScheduled", "PodBoundReservation", "BoundPodReady",
    "ReservationBound", "Arbitration", "Relieved",
)  # fmt: skip
REASONS = (
    "Timeout", "FailedCreateReservation", "ReservationExpired", "Unschedulable", "ForbiddenMigratePod", "MissingPod",
    "MissingReservation", "Preempting", "PreemptComplete", "Evicting", "FailedEvict", "EvictComplete", "WaitForPodBindReservation",
    "WaitForBoundPodReady", "InvalidPodRef", "WaitForNode", "ObjectLimiter", "InvalidSpec", "PodEnded", "PodLeaving",
)  # fmt: skip


@pytest.mark.feature("DS-MC-02")
def test_the_words_are_those_of_the_api() -> None:
    assert {str(reason) for reason in Reason} - {""} <= set(REASONS)
    assert {str(kind) for kind in ConditionKind} <= set(CONDITION_TYPES)


async def _workload(world: Cluster, kind: str, replicas: int) -> dict[str, Any]:
    """A workload of a kind; the reference that its pods have."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    if kind == "Widget":
        await world.client.create(kinds.CUSTOMRESOURCEDEFINITIONS, CRD)

        async def served() -> bool:
            status, _ = await world.client.raw("GET", "/apis/example.com/v1/namespaces/default/widgets")
            return status == 200

        await world.until(served)
        which, spec = WIDGETS, {"count": replicas}
    elif kind == "ReplicationController":
        which, spec["selector"] = kinds.REPLICATIONCONTROLLERS, labels
    else:
        which, spec["serviceName"] = kinds.STATEFULSETS, "web"
    made = await world.put(which, "web", {"spec": spec})
    return {"apiVersion": which.api_version, "kind": kind, "name": "web", "uid": made["metadata"]["uid"], "controller": True}


@pytest.mark.feature("DS-WL-01")
@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicationController", "Widget"])
@pytest.mark.parametrize("replicas", [1, 8])
def test_workloads_of_other_kinds(kind: str, replicas: int) -> None:
    async def scenario(world: Cluster) -> None:
        owner = await _workload(world, kind, replicas)
        await world.pod("p", metadata={"ownerReferences": [owner]})
        await world.pod("stranger", metadata={"ownerReferences": [{**owner, "uid": "another"}]})
        await world.live()
        await world.job("j", "p", mode="EvictDirectly")
        await world.job("k", "stranger", mode="EvictDirectly")
        if replicas == 1:
            await world.until_job("j", phase="Failed", reason="ForbiddenMigratePod")
        else:
            await world.until_job("j", phase="Succeeded")
        await world.until_job("k", phase="Failed", reason="ForbiddenMigratePod")

    play(scenario)


@pytest.mark.feature("DS-WL-01")
def test_a_kind_whose_definition_comes_later_is_asked_for_its_scale() -> None:
    async def scenario(world: Cluster) -> None:
        early = {"apiVersion": WIDGETS.api_version, "kind": "Widget", "name": "early", "uid": "e", "controller": True}
        await world.pod("early", metadata={"ownerReferences": [early]})
        life = await world.live()
        workloads, now = life.setup.workloads, [1000.0]
        workloads._clock = lambda: now[0]

        async def replicas(name: str) -> int:
            async def known() -> Any:
                return life.setup.cluster.pod(NS, name)

            pod = await world.until(known)
            await workloads.refresh([pod])
            found = workloads.of(pod)
            assert found is not None
            return found.replicas

        assert await replicas("early") == 1  # as many as there are
        owner = await _workload(world, "Widget", 8)
        await world.pod("p", metadata={"ownerReferences": [owner]})
        now[0] += 2 * UNSERVED_LIFETIME
        assert await replicas("p") == 8

    play(scenario)


@pytest.mark.feature("DS-WL-01")
@pytest.mark.feature("DS-ARB-03")
def test_the_next_life_looks_at_a_workload_that_is_known_by_its_scale_before_a_pod_leaves() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await _workload(world, "Widget", 8)
        for number in range(8):
            await world.pod(f"p{number}", metadata={"ownerReferences": [owner]})
        life = await world.live()
        await world.job("j", "p0")
        job = await world.until_job("j", condition="ReservationCreated=True/")
        await life.kill()
        down = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        for name in ("p3", "p5", "p7"):  # two may be
            await world.client.patch(kinds.PODS, name, down, NS, subresource="status")
        await world.live()
        await world.reserve(job["spec"]["reservationOptions"]["reservationRef"]["name"])
        await world.until_job("j", condition="Arbitration=False/MaxUnavailablePerWorkload")
        assert await world.get(kinds.PODS, "p0") is not None

    play(scenario)


@pytest.mark.feature("DS-WL-01")
@pytest.mark.feature("DS-MC-09")
def test_the_next_life_counts_what_has_left_a_workload_that_is_known_by_its_scale() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await _workload(world, "Widget", 8)
        for name in ("p", "q"):
            await world.pod(name, metadata={"ownerReferences": [owner]})
        limiters = {"objectLimiters": {"workload": {"duration": "1h"}}}
        life = await world.live(**limiters)
        await world.job("j", "p", mode="EvictDirectly")
        await world.until_job("j", phase="Succeeded")
        await life.kill()
        await world.live(**limiters)
        await world.job("k", "q", mode="EvictDirectly")
        await world.until_job("k", condition="Arbitration=False/ObjectLimiter")
        assert await world.get(kinds.PODS, "q") is not None

    play(scenario)


@pytest.mark.feature("DS-ARB-04")
@pytest.mark.parametrize(
    ("gate", "fields", "pod"),
    [
        ("BarePods", {}, {"owner": ""}),
        ("LocalStorage", {}, {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
        ("PVC", {"ignorePvcPods": True}, {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}),
        ("SystemCritical", {}, {"spec": {"priorityClassName": "system-node-critical"}}),
        ("PriorityThreshold", {"priorityThreshold": {"value": 0}}, {}),
        ("LabelSelector", {"labelSelector": {"matchLabels": {"app": "other"}}}, {}),
        ("Namespaces", {"namespaces": {"exclude": [NS]}}, {}),
        ("ExpectedReplicas", {"maxMigratingPerWorkload": 8}, {}),
    ],
)
def test_each_gate_opens_one_check(gate: str, fields: dict[str, Any], pod: dict[str, Any]) -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", **({"owner": owner} | pod))
        other = "NodeFit" if gate != "NodeFit" else "PVC"
        life = await world.live(**fields, skipEvictionGates=[other])
        assert life.refusal("p")
        await world.job("closed", mode="EvictDirectly")
        await world.until_job("closed", phase="Failed", reason="ForbiddenMigratePod")
        await life.kill()
        await world.live(**fields, skipEvictionGates=[gate])
        await world.job("open", mode="EvictDirectly")
        await world.until_job("open", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-ARB-04")
@pytest.mark.feature("DS-WL-01")
def test_a_workload_without_scale_matters_only_where_its_size_does() -> None:
    """A batch Job has no scale: its pods stay, unless nobody asks how many there are."""
    gates = ["MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"]

    async def scenario(world: Cluster) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "batch", "uid": "1", "controller": True}
        await world.pod("p", metadata={"ownerReferences": [owner]})
        for fields, opens in (({}, False), ({"skipCheckExpectedReplicas": True}, False), ({"skipEvictionGates": gates}, False)):
            life = await world.live(**fields)
            assert bool(life.refusal("p")) != opens
            await life.kill()
        life = await world.live(skipEvictionGates=[*gates, "ExpectedReplicas"])
        assert not life.refusal("p")
        await world.job("j", mode="EvictDirectly")
        await world.until_job("j", phase="Succeeded")

    play(scenario)


@pytest.mark.feature("DS-ARB-04")
def test_node_fit_and_its_gate() -> None:
    async def scenario(world: Cluster) -> None:
        await world.pod("p", owner=await world.replicaset(), spec={"nodeSelector": {"disk": "ssd"}})
        for gates, refused in (([], True), (["NodeFit"], False)):
            life = await world.live(nodeFit=True, skipEvictionGates=gates)
            found = life.setup.cluster.pod(NS, "p")
            assert found is not None
            assert bool(life.plugin.pre_eviction_filter(found)) == refused
            await life.kill()

    play(scenario)


@pytest.mark.feature("DS-MC-01")
def test_jobs_follow_the_arguments_of_the_profile_that_made_them() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset(replicas=40)
        for name in ("p", "q", "r"):
            await world.pod(name, owner=owner)
        life = await world.live(defaultJobMode="EvictDirectly", evictionPolicy="Delete")
        softly = MigrationController(arguments(defaultJobMode="EvictDirectly", evictionPolicy="SoftEviction"), _named(life.setup, "soft"))
        assert not softly.controllers()
        found = life.setup.cluster.pod(NS, "q")
        assert found is not None
        assert (await life.evict("p")).accepted
        assert (await softly.evict(found, EvictOptions("CustomPriority", "cheaper"))).accepted
        await world.job("by-hand", "r", mode="EvictDirectly")
        await world.until_gone(kinds.PODS, "p")
        await world.until_gone(kinds.PODS, "r")

        async def asked() -> Any:
            pod = await world.get(kinds.PODS, "q")
            return (pod or {})["metadata"].get("annotations", {}).get(names.ANNOTATION_SOFT_EVICTION)

        assert orjson.loads(await world.until(asked))["initiator"] == "CustomPriority"

    play(scenario)


@pytest.mark.feature("DS-ARB-01")
@pytest.mark.parametrize("text", ["a \u00b2 u", f"a {'9' * 5000} u", "a -1 u", "a b", "\ufffd \u0663 \u2028 x"])
def test_a_job_whose_annotation_says_nonsense_keeps_no_other_from_its_turn(text: str) -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset(replicas=40)
        for name in ("p", "q"):
            await world.pod(name, owner=owner)
        life = await world.live()
        await world.job("a-odd", "p", mode="EvictDirectly", annotations={names.ANNOTATION_MIGRATION_GANG: text})
        await world.job("b-good", "q", mode="EvictDirectly")
        await world.until_gone(kinds.PODS, "q")
        assert not life.died

    play(scenario)


def _named(setup: Any, profile: str) -> Any:
    return dataclasses.replace(setup, profile=profile)
