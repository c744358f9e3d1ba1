"""A plan carried out as one batch (gate EnableInlineBatchSchedule), and what is told of jobs that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from koord.kube.errors import Conflict
from roles.scheduler.diagnosis import diagnosis_of
from tests.roles.scheduler.test_metrics import samples

from .conftest import condition
from .test_live_topology import MUST, gather, racks, topology

Obj = dict[str, Any]
BATCH = {"network_topology": True, "gates": {"EnableInlineBatchSchedule": True}}


@pytest.mark.feature("SCH-BATCH-01")
def test_a_planned_gang_is_placed_as_one_batch(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=BATCH, awareNetworkTopology=True) as g, aiohttp.ClientSession() as session:
            await racks(g, a=("r1", "4"), b=("r1", "4"), c=("r2", "4"))
            await topology(g)
            await g.group("job", 4, annotations=gather(MUST))
            for number in range(4):
                await g.member(f"p{number}", "job", cpu="2")
            assert await g.bound("p0", "p1", "p2", "p3") == {"p0": "a", "p1": "a", "p2": "b", "p3": "b"}
            metrics = await (await session.get(f"{g.live.ops.url}/metrics")).text()
            assert 'scheduler_inline_batch_schedule_duration_seconds_count{result="success"} 1.0' in metrics
            assert 'scheduler_gang_schedule_cycle_duration_seconds_count{job_size="1-100",reason="released"} 1.0' in metrics

    asyncio.run(run())


@pytest.mark.feature("SCH-BATCH-01")
def test_a_batch_of_which_one_does_not_fit_is_rolled_back_without_preemption(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=BATCH, awareNetworkTopology=True, enablePreemption=True) as g:
            await g.priority("high", 1000)
            # Each node takes one pod, but the second pod is too big for the second node.
            await racks(g, a=("r1", "3"), b=("r1", "1"))
            await topology(g)
            await g.live.pod("low", cpu="1", nodeName="b", terminationGracePeriodSeconds=0)
            await racks(g, b2=("r1", "1"))
            await g.group("job", 2, annotations=gather(MUST))
            for number, cpu in enumerate(("1", "3")):
                await g.member(f"p{number}", "job", cpu=cpu, priorityClassName="high")
            said = await g.said("p1", "batch of 2 pods is rolled back")
            assert "p1" in said
            await g.said("p0", "pod default/p1 cannot be placed")
            await g.quiet()
            assert (await g.nodes_of())["low"] == "b"

    asyncio.run(run())


@pytest.mark.feature("SCH-BATCH-01")
def test_a_binding_that_fails_concerns_that_pod_only(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=BATCH, awareNetworkTopology=True) as g:
            await racks(g, a=("r1", "4"), b=("r1", "4"))
            await topology(g)
            bind, failed = g.client.bind, asyncio.Event()

            async def once(namespace: str, pod: str, node: str, uid: str | None = None) -> Any:
                if pod == "p1" and not failed.is_set():
                    failed.set()
                    raise Conflict(409, "Conflict", "changed")
                return await bind(namespace, pod, node, uid=uid)

            g.live.app.client.bind = once
            await g.group("job", 3, annotations=gather(MUST))
            for number in range(3):
                await g.member(f"p{number}", "job", cpu="2")
            await g.bound("p0", "p1", "p2")
            assert failed.is_set()
            await g.quiet()
            found = await samples(f"{g.live.ops.url}/metrics")
            assert found["scheduler_batch_bind_failures_total", (("phase", "Binding"), ("reason", "BindingFailed"))] == 1
            assert found["scheduler_batch_assumed_pods_cleanup_total", (("reason", "BindingFailed"),)] == 1
            assert found["scheduler_batch_partial_bind_jobs_total", ()] == 1
            assert found["scheduler_batch_partial_bind_pods_total", (("status", "failure"),)] == 1
            assert found["scheduler_batch_partial_bind_pods_total", (("status", "success"),)] == 3
            # The pod that failed is planned again, or scheduled by itself if the others were bound before it was known where it is.
            assert found["scheduler_batch_algorithm_by_node_duration_seconds_count", ()] in (1, 2)
            assert found["scheduler_batch_algorithm_by_pod_duration_seconds_count", ()] >= 1
            assert found["scheduler_inline_batch_schedule_duration_seconds_count", (("result", "success"),)] >= 1

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-10")
@pytest.mark.feature("SCH-FW-09")
def test_the_diagnosis_of_a_member_speaks_of_its_job(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            seen: list[Obj] = []
            outcomes = g.live.app.scheduler.outcomes
            fail = outcomes.fail

            def look(decision: Any) -> Any:
                seen.append(diagnosis_of(decision, 0.0))
                return fail(decision)

            outcomes.fail = look
            await g.group("job", 2)
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="3")
            await g.said("p0", "Insufficient cpu")
            (first, *_) = seen
            assert first["questionedKey"] == "default/job"
            assert first["isRootCausePod"] is True
            assert first["scheduleDiagnosis"]["alreadyWaitForBound"] == 1
            assert first["scheduleDiagnosis"]["nodeFailedDetails"][0]["reason"] == "Insufficient cpu"
            record = g.live.app.scheduler._recorder.ring.find("PodGroup", "default", "job")[-1]
            terms = {term.name: term.value for term in record.terms}
            assert terms["members with a node"] == 1
            assert terms["first missing member"].startswith("default/p")
            assert terms["short: Insufficient cpu"] == 1
            assert record.numbers["minimum"] == 2

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-10")
def test_a_node_is_shown_with_what_its_pods_ask_of_others(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g, aiohttp.ClientSession() as session:
            term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
            affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            await g.live.pod("shy", affinity=affinity)
            await g.live.bound("shy")
            node = await (await session.get(f"{g.live.ops.url}/apis/v1/nodes/n0")).json()
            assert node["podsWithAffinity"] == node["podsWithRequiredAntiAffinity"] == ["default/shy"]
            assert node["nonZeroRequested"]["cpu"] == 1000
            assert node["pvcRefCounts"] == {}
            assert condition(await g.live.get("shy"))["status"] == "True"

    asyncio.run(run())
