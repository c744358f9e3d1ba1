"""Evictions in background (gate EvictionsInBackground): a webhook refuses, says that it was triggered, and moves the pod itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api import kinds, names
from koord.api.objects import Pod, PodMigrationJob, convert
from koord.api.times import format_time
from koord.kube import errors
from koord.kube.client import Client
from roles.descheduler.migration import status
from tests.roles.descheduler.support import configuration, descheduling, node, pod
from tests.support.migration import NS, condition
from tests.support.wholecluster import at_work, whole

TAINTS = [{"key": "leave", "effect": "NoSchedule"}]
GATE = "EvictionsInBackground"


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize(
    ("on", "annotated", "message", "asked_once"),
    [
        (True, True, "admission webhook: Eviction triggered evacuation of VMI d/vm", True),
        (True, True, "Cannot evict pod as it would violate the pod's disruption budget.", False),
        (True, False, "admission webhook: Eviction triggered evacuation of VMI d/vm", False),
        (False, True, "admission webhook: Eviction triggered evacuation of VMI d/vm", False),
    ],
)
def test_a_pod_that_is_moved_in_background_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, on: bool, annotated: bool, message: str, asked_once: bool
) -> None:
    asked: list[str] = []

    async def evict(self: Client, namespace: str, name: str, **more: Any) -> None:
        asked.append(name)
        raise errors.TooManyRequests(429, "TooManyRequests", message)

    monkeypatch.setattr(Client, "evict", evict)
    meta = {"annotations": {names.ANNOTATION_REQUEST_EVICT_ONLY: "true"}} if annotated else {}
    text = configuration({"deschedule": ["RemovePodsViolatingNodeTaints"]}, deschedulingInterval="50ms", maxNoOfPodsToEvictTotal=1)

    async def scenario() -> None:
        async with descheduling([node("n1", taints=TAINTS), node("n2"), pod("vm", "n1", meta=meta)], text, {GATE: on}) as running:
            await running.wait_rounds(4)
            assert (len(asked) == 1) == asked_once
            assert bool(running.records("Evicted")) == asked_once
            if asked_once:
                assert "its eviction in background has begun" in running.records("Evicted")[0].message

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-11")
def test_a_pod_that_says_it_is_on_its_way_is_not_asked_after_a_restart() -> None:
    """Nothing is remembered by a new process: the annotation tells."""
    on_its_way = {"annotations": {names.ANNOTATION_REQUEST_EVICT_ONLY: "true", names.ANNOTATION_EVICTION_IN_PROGRESS: "kubevirt"}}
    text = configuration({"deschedule": ["RemovePodsViolatingNodeTaints"]}, deschedulingInterval="50ms")

    async def scenario() -> None:
        objects = [node("n1", taints=TAINTS), node("n2"), pod("vm", "n1", meta=on_its_way), pod("other", "n1")]
        async with descheduling(objects, text, {GATE: True}) as running:
            await running.wait_rounds(2)
            assert await running.pods() == {"vm"}
            assert (await running.client.get(kinds.PODS, "vm", "default"))["metadata"].get("deletionTimestamp") is None

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.feature("DS-MC-04")
@pytest.mark.parametrize("on", [True, False])
def test_a_migration_waits_for_who_moves_its_pod_in_background(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """The refusal counted as one: no job was made, and one that a person made was asked again until its time was up."""
    asked: list[str] = []

    async def evict(self: Client, namespace: str, name: str, **more: Any) -> None:
        asked.append("dry" if "dryRun" in (more.get("options") or {}) else "real")
        raise errors.TooManyRequests(429, "TooManyRequests", "admission webhook: Eviction triggered evacuation of VMI d/vm")

    monkeypatch.setattr(Client, "evict", evict)

    async def scenario() -> None:
        async with whole() as plan:
            world = plan.world
            workers = await plan.workload({f"p{number}": "n1" for number in range(8)})
            meta = {"annotations": {names.ANNOTATION_REQUEST_EVICT_ONLY: "true"}}
            await plan.client.patch(kinds.PODS, "p3", {"metadata": meta}, NS)
            life = await world.live(gates=f"{GATE}={str(on).lower()}")
            async with at_work(workers):
                await world.job("j", "p3", ttl="60s")
                if not on:
                    await world.until_job("j", reason="FailedEvict")
                    return

                async def begun() -> bool:
                    found = condition(await world.get(kinds.PODMIGRATIONJOBS, "j") or {}, "Eviction")
                    return bool(found) and "in background has begun" in found["message"]

                await world.until(begun)
                working = {"annotations": {names.ANNOTATION_EVICTION_IN_PROGRESS: "kubevirt"}}
                await plan.client.patch(kinds.PODS, "p3", {"metadata": working}, NS)
                await life.kill()
                world.shift = 3000.0  # far beyond the job's time
                again = await world.live(gates=f"{GATE}=true")  # a new leader finds the job, and does not ask again

                async def told() -> bool:
                    pod = again.setup.cluster.pod(NS, "p3")
                    return pod is not None and again.plugin.leaving(pod) and not again.plugin.accepted(pod)

                await world.until(told)
                assert (await world.get(kinds.PODMIGRATIONJOBS, "j") or {})["status"]["phase"] == "Running"
                await plan.client.delete(kinds.PODS, "p3", NS)
                job = await world.until_job("j", phase="Succeeded")
                assert asked == ["real"]
                assert await plan.nodes_of(workers.born) == {job["status"]["nodeName"]: 1}

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.feature("DS-MC-01")
def test_a_plugin_gets_a_job_for_a_pod_that_is_moved_in_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question whether the pod may go is answered as the eviction is: the job was never made."""

    async def evict(self: Client, namespace: str, name: str, **more: Any) -> None:
        raise errors.TooManyRequests(429, "TooManyRequests", "admission webhook: Eviction triggered evacuation of VMI d/vm")

    monkeypatch.setattr(Client, "evict", evict)
    text = configuration({"deschedule": ["RemovePodsViolatingNodeTaints"]}, deschedulingInterval="50ms")

    async def scenario() -> None:
        meta = {"annotations": {names.ANNOTATION_REQUEST_EVICT_ONLY: "true"}}
        objects = [node("n1", taints=TAINTS), node("n2"), pod("vm", "n1", meta=meta), pod("other", "n1")]
        async with descheduling(objects, text.replace("name: DefaultEvictor", "name: MigrationController"), {GATE: True}) as running:
            await running.wait_rounds(2)
            jobs = (await running.client.list(kinds.PODMIGRATIONJOBS)).items
            assert [job["spec"]["podRef"]["name"] for job in jobs] == ["vm"]

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-06")
@pytest.mark.parametrize(
    ("annotations", "terminating", "end"),
    [
        ((), False, 100.0 + 30 + 60),
        ((names.ANNOTATION_REQUEST_EVICT_ONLY,), False, 100.0 + 600 + 60),
        ((names.ANNOTATION_REQUEST_EVICT_ONLY, names.ANNOTATION_EVICTION_IN_PROGRESS), False, None),
        ((names.ANNOTATION_REQUEST_EVICT_ONLY, names.ANNOTATION_EVICTION_IN_PROGRESS), True, 150.0 + 60),
    ],
)
def test_the_time_of_a_job_whose_pod_is_moved_in_background(annotations: tuple[str, ...], terminating: bool, end: float | None) -> None:
    accepted = {"type": "Eviction", "status": "False", "reason": "Evicting", "lastTransitionTime": format_time(100.0)}
    head = {"name": "j", "creationTimestamp": format_time(90.0)}
    job = convert({"metadata": head, "spec": {"ttl": "10s"}, "status": {"phase": "Running", "conditions": [accepted]}}, PodMigrationJob)
    deleted = {"deletionTimestamp": format_time(150.0)} if terminating else {}
    vm = convert({"metadata": {"name": "vm", "annotations": dict.fromkeys(annotations, "true"), **deleted}}, Pod)
    assert status.deadline(job, vm) == end
