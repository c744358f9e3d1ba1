"""Pods with topology spread migrate: their successors find the place that was held for them, or the pods stay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api import kinds
from roles.descheduler.relief import Ceiling, Relief
from tests.roles.descheduler.migration.test_whole import configuration
from tests.support.migration import Cluster, cluster
from tests.support.wholecluster import Whole, at_work, descheduling, whole

Obj = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
ANY = {"maxMigratingPerNode": 0, "maxMigratingPerWorkload": "90%", "maxUnavailablePerWorkload": "90%", "skipCheckExpectedReplicas": True}
CLOSED = "topology spread"


def play(scenario: Callable[[Whole], Awaitable[None]]) -> None:
    async def run() -> None:
        async with whole() as plan:
            for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b")):
                await label(plan.world, name, {HOST: name, ZONE: zone, "pool": "x"})
            await scenario(plan)

    asyncio.run(run())


async def label(world: Cluster, node: str, labels: Obj) -> None:
    await world.client.patch(kinds.NODES, node, {"metadata": {"labels": labels}})


def spread(key: str = HOST, **more: Any) -> Obj:
    constraint = {
        "topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}, **more
    }  # fmt: skip
    return {"topologySpreadConstraints": [constraint]}


def only_of_pool(name: str) -> Obj:
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [name]}]}]
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}


async def cordon(world: Cluster, node: str) -> None:
    await world.client.patch(kinds.NODES, node, {"spec": {"unschedulable": True}})


@pytest.mark.feature("DS-MC-03")
def test_a_pod_stays_whose_successor_its_topology_spread_would_let_go_nowhere() -> None:
    """One pod a node, and one node is closed: with its pod gone no other one may have a second."""

    async def scenario(plan: Whole) -> None:
        await cordon(plan.world, "n1")
        workers = await plan.workload({"p0": "n1", "p1": "n2", "p2": "n3"}, spec={**spread(), **only_of_pool("x")})
        async with at_work(workers), descheduling(plan.client, configuration(migration=ANY)):
            await plan.world.job("j", "p0")
            (job,) = await plan.until_ended(1)
        assert (job["status"]["phase"], job["status"]["reason"]) == ("Failed", "Unschedulable")
        assert CLOSED in job["status"]["message"]
        assert (workers.left, workers.born, await plan.held()) == (set(), [], [])

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_pod_goes_to_a_node_that_is_open_only_once_it_has_left() -> None:
    """Two pods in one zone, one in the other: within the zone one may move, though the zone may not have three."""

    async def scenario(plan: Whole) -> None:
        workers = await plan.workload({"p0": "n1", "p1": "n1", "p2": "n3"}, spec=spread(ZONE, minDomains=2))
        await cordon(plan.world, "n3")
        async with at_work(workers), descheduling(plan.client, configuration(migration=ANY)):
            await plan.world.job("j", "p0")
            (job,) = await plan.until_ended(1)
        assert (job["status"]["phase"], job["status"]["nodeName"]) == ("Succeeded", "n2")
        assert await plan.nodes_of(workers.born) == {"n2": 1}

    play(scenario)


@pytest.mark.feature("DS-MC-03")
def test_of_two_pods_that_would_become_uneven_together_one_leaves() -> None:
    async def scenario(plan: Whole) -> None:
        workers = await plan.workload({"p0": "n1", "p1": "n1", "p2": "n2", "p3": "n3", "p4": "n3"}, spec=spread())
        async with at_work(workers), descheduling(plan.client, configuration(migration=ANY)):
            await plan.world.job("j0", "p0")
            await plan.world.job("j1", "p1")
            jobs = await plan.until_ended(2)
        assert sorted(job["status"]["phase"] for job in jobs) == ["Failed", "Succeeded"]
        assert await plan.nodes_of(workers.born) == {"n2": 1}

    play(scenario)


def alone(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster() as world:
            for name in ("n1", "n2", "n3"):
                await label(world, name, {HOST: name, "pool": "x"})
            await scenario(world)

    asyncio.run(run())


@pytest.mark.feature("DS-LNL-07")
@pytest.mark.feature("DS-ARB-02")
def test_no_job_is_made_for_a_pod_that_its_topology_spread_would_let_go_nowhere() -> None:
    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        for name, node in (("p0", "n1"), ("p1", "n2"), ("p2", "n3")):
            await world.pod(name, node, owner, spec=spread() | {"schedulerName": "koord-scheduler"})
        life = await world.live(**ANY)
        relief = Relief({"cpu": 100}, {name: Ceiling({"cpu": 10_000}) for name in ("n3", "n2")})
        refused = await life.evict("p0", relief=relief)
        assert not refused.accepted
        assert CLOSED in refused.message
        await world.pod("p3", "n1", owner, spec=spread() | {"schedulerName": "koord-scheduler"})

        async def accepted() -> bool:  # counts may be a moment old
            return (await life.evict("p0", relief=relief)).accepted

        await world.until(accepted)

    alone(scenario)


@pytest.mark.feature("DS-MC-03")
def test_a_place_is_given_back_whose_node_no_longer_matches_the_pod() -> None:
    """The node was taken out of the pool while the job waited."""

    async def scenario(world: Cluster) -> None:
        owner = await world.replicaset()
        await world.pod("p", "n1", owner, spec=only_of_pool("x"))
        life = await world.live(objectLimiters={"workload": {"duration": "0s"}})
        await label(world, "n2", {"pool": "y"})

        async def known() -> bool:
            node = life.setup.cluster.nodes.get("n2")
            return node is not None and node.metadata.labels["pool"] == "y"

        await world.until(known)
        job = await world.job("j", "p")
        (name,) = await world.until(lambda: world.names(kinds.RESERVATIONS))
        assert name == job["metadata"]["uid"]
        await world.reserve(name)

        async def given_back() -> bool:
            found = await world.get(kinds.RESERVATIONS, name)
            return found is not None and not (found.get("status") or {}).get("nodeName")

        await world.until(given_back)
        found = await world.get(kinds.RESERVATIONS, name) or {}
        (term,) = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert [each["values"] for each in term["matchFields"]] == [["n1"], ["n2"]]
        assert await world.get(kinds.PODS, "p") is not None

    alone(scenario)
