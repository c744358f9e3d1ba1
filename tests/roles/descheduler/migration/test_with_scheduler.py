"""The whole way, with the real scheduler: a hot node, a job, a reservation that is scheduled, an eviction, a pod that takes the place."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from koord.api import kinds, names
from koord.api.times import format_time
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.kube import errors
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.descheduler.app import App, Options
from roles.descheduler.config import parse_configuration
from roles.scheduler.app import App as Scheduler
from roles.scheduler.app import Options as SchedulerOptions
from tests.roles.scheduler.reservation.worlds import profile
from tests.support.migration import NS, Cluster, cluster, condition

CONFIGURATION = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
leaderElection: {leaderElect: false}
deschedulingInterval: 0s
maxNoOfPodsToEvictTotal: 1
profiles:
- name: balance
  plugins: {balance: {enabled: [{name: LowNodeLoad}]}}
  pluginConfig:
  - name: LowNodeLoad
    args:
      lowThresholds: {cpu: 30}
      highThresholds: {cpu: 60}
      anomalyCondition: {consecutiveAbnormalities: 1, consecutiveNormalities: 1, timeout: 1m}
  - name: MigrationController
    args: {defaultJobTTL: 2m, arbitrationArgs: {interval: 20ms}}
"""


@contextlib.asynccontextmanager
async def scheduling(world: Cluster) -> AsyncIterator[None]:
    """The scheduler role on the cluster."""
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [profile()],
    }
    informers, recorder, life = InformerFactory(world.client), Recorder("scheduler"), Life()
    ops = OpsServer("127.0.0.1", 0, recorder=recorder, role="scheduler")
    options = SchedulerOptions(KubeSchedulerConfiguration.model_validate(content))
    app = Scheduler(options, client=world.client, informers=informers, recorder=recorder, ops=ops)
    running = asyncio.ensure_future(app.run(life))
    try:
        yield
    finally:
        life.stop()
        await asyncio.wait_for(running, 5)
        await life.finish()
        await informers.stop()
        await ops.stop()


@contextlib.asynccontextmanager
async def descheduling(world: Cluster, text: str = CONFIGURATION) -> AsyncIterator[Recorder]:
    """The descheduler role on the cluster, as `koord descheduler` wires it."""
    assert yaml.safe_load(text)
    informers, recorder, life = InformerFactory(world.client), Recorder("descheduler"), Life()
    app = App(Options(parse_configuration(text, "test"), "test"), client=world.client, informers=informers, recorder=recorder)
    running = asyncio.ensure_future(app.run(life))
    try:
        yield recorder
    finally:
        life.stop()
        await asyncio.wait_for(running, 5)
        await life.finish()
        await informers.stop()


async def replace_what_leaves(world: Cluster, owner: str, count: int) -> None:
    """Workload controller and kubelet: pods come again, unbound, and what is bound becomes ready."""
    born = 0
    while True:
        await asyncio.sleep(0.02)
        with contextlib.suppress(errors.ApiError):
            pods = (await world.client.list(kinds.PODS, NS)).items
            for pod in pods:
                conditions = pod["status"].get("conditions", [])
                if pod["spec"].get("nodeName") and not any(each["type"] == "Ready" for each in conditions):
                    body = {"status": {"phase": "Running", "conditions": [*conditions, {"type": "Ready", "status": "True"}]}}
                    await world.client.patch(kinds.PODS, pod["metadata"]["name"], body, NS, subresource="status")
            for _ in range(count - len(pods)):
                born += 1
                meta = {"name": f"new-{born}", "labels": {"app": "web"}}
                meta["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner, "controller": True}]  # type: ignore[assignment]
                container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
                spec = {"schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0, "containers": [container]}
                await world.client.create(kinds.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, NS)


async def report(world: Cluster, node: str, cpu: str, pods: dict[str, str]) -> None:
    """A NodeMetric, as koordlet writes it."""
    used = [{"namespace": NS, "name": name, "podUsage": {"resources": {"cpu": each, "memory": "1Gi"}}} for name, each in pods.items()]
    usage: dict[str, Any] = {
        "updateTime": format_time(time.time()),
        "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu}}, "systemUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}},
        "podsMetric": used,
    }
    await world.put(kinds.NODEMETRICS, node, {"status": usage})


@pytest.mark.feature("DS-MC-01")
@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-OBS-01")
def test_a_hot_node_is_relieved_and_the_pod_lands_where_its_place_was_reserved() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            await world.client.delete(kinds.NODES, "n3")
            owner = await world.replicaset(replicas=8)
            for number in range(8):
                await world.pod(f"p{number}", "n1" if number < 6 else "n2", owner)
            await report(world, "n1", "7", {f"p{number}": "300m" for number in range(6)})
            await report(world, "n2", "1", {})
            others = asyncio.ensure_future(replace_what_leaves(world, owner, 8))
            async with scheduling(world), descheduling(world) as recorder:

                async def made() -> list[str]:
                    return await world.names(kinds.PODMIGRATIONJOBS)

                (name,) = await world.until(made)
                job = await world.until_job(name, phase="Succeeded", status="Complete")
                assert job["status"]["nodeName"] == "n2"
                assert job["metadata"]["annotations"][names.ANNOTATION_EVICT_TRIGGER] == "LowNodeLoad"
                assert "node is overutilized" in job["metadata"]["annotations"][names.ANNOTATION_EVICT_REASON]
                assert job["metadata"]["annotations"][names.ANNOTATION_PASSED_ARBITRATION] == "true"
                for kind in ("ReservationCreated", "ReservationScheduled", "Eviction", "ReservationBound", "BoundPodReady"):
                    assert condition(job, kind)["status"] == "True", kind
                new = await world.get(kinds.PODS, job["status"]["podRef"]["name"])
                assert new is not None
                assert new["spec"]["nodeName"] == "n2"
                reservation = await world.get(kinds.RESERVATIONS, job["metadata"]["uid"])
                assert reservation is not None
                assert reservation["status"]["phase"] == "Succeeded"
                verdicts = [record.verdict for record in recorder.ring.find(kind="Pod", namespace=NS, name=job["spec"]["podRef"]["name"])]
                assert "Evicted" in verdicts
                assert "Complete" in verdicts
            others.cancel()

    asyncio.run(scenario())


@pytest.mark.feature("DS-MC-05")
def test_a_pod_that_no_node_has_room_for_gets_a_place_of_its_own_when_room_comes() -> None:
    async def scenario() -> None:
        async with cluster() as world:
            owner = await world.replicaset(replicas=8)
            for number in range(7):
                await world.pod(f"p{number}", "n1", owner)
            big = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "30"}}}
            async with scheduling(world), descheduling(world):
                await world.pod("big", "", owner, spec={"containers": [big]})
                await world.job("j", "big")
                job = await world.until_job("j", condition="ReservationScheduled=False/Unschedulable")
                assert "Insufficient cpu" in condition(job, "ReservationScheduled")["message"]
                await world.node("n4")
                amounts = {"cpu": "40", "memory": "40Gi", "pods": "110"}
                await world.client.patch(kinds.NODES, "n4", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
                await world.until_job("j", phase="Succeeded", condition="PodScheduled=True/")
                pod = await world.get(kinds.PODS, "big")
                assert pod is not None
                assert pod["spec"]["nodeName"] == "n4"

                async def nothing_held() -> bool:
                    held = (await world.client.list(kinds.RESERVATIONS)).items
                    return all((each.get("status") or {}).get("phase") == "Succeeded" for each in held)

                await world.until(nothing_held)

    asyncio.run(scenario())
