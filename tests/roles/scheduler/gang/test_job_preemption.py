"""Room for a whole job, or nobody is evicted: through the API server, and as a property of the plan."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import ELASTICQUOTAS, NODES, PODDISRUPTIONBUDGETS, PODS
from koord.api.names import LABEL_QUOTA_NAME
from koord.api.objects import PodDisruptionBudget
from koord.kube.errors import NotFound
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.steps import at_once
from roles.scheduler.plugins.budgets import DisruptionBudgets
from roles.scheduler.plugins.coscheduling.preemption import JobPlan, JobPreemption, job_rule
from tests.support import patience

from .conftest import condition, profile

Obj = dict[str, Any]
ALONE = ("Coscheduling",)


async def gone(g: Any, name: str) -> None:
    for _ in patience.tries(400):
        try:
            await g.client.get(PODS, name, "default")
        except NotFound:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"pod {name} is still there")


async def filled(g: Any, *pods: tuple[str, str, str], **labels: Obj) -> None:
    """Pods (name, node, priority class) of 4 CPUs each."""
    for name, node, priority in pods:
        meta = {"labels": labels.get(name, {})}
        await g.live.pod(name, cpu="4", meta=meta, nodeName=node, priorityClassName=priority, terminationGracePeriodSeconds=0)


async def classes(g: Any) -> None:
    for name, value in (("low", 10), ("mid", 50), ("high", 900)):
        await g.priority(name, value)


async def slow_to_go(g: Any) -> None:
    """A pod on n0 that stays, once it is asked to leave, until `goes`."""
    body = await g.live.pod("slow", cpu="4", nodeName="n0", priorityClassName="low", terminationGracePeriodSeconds=60)
    await g.client.patch(PODS, "slow", {"metadata": {"uid": body["metadata"]["uid"], "finalizers": ["example.com/hold"]}}, "default")


async def goes(g: Any) -> None:
    await g.client.patch(PODS, "slow", {"metadata": {"finalizers": None}}, "default")
    await g.client.delete(PODS, "slow", "default", grace_period_seconds=0)


@pytest.mark.feature("SCH-JP-01")
def test_a_job_gets_room_for_all_of_it_at_the_lowest_price(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8", "8"), enablePreemption=True, post_filter=ALONE) as g:
            await classes(g)
            await filled(g, ("a0", "n0", "mid"), ("a1", "n0", "low"), ("b0", "n1", "low"), ("b1", "n1", "low"), b0={"app": "x"})
            await g.group("job", 2)
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="4", priorityClassName="high")
            assert await g.bound("p0", "p1") == {"p0": "n1", "p1": "n1"}
            await gone(g, "b0")
            await gone(g, "b1")
            assert {"a0", "a1"} <= set(await g.nodes_of())
            assert "on node n1" in (await g.event("b0", "Preempted"))["note"]

    asyncio.run(run())


@pytest.mark.feature("SCH-JP-01")
def test_nobody_is_evicted_for_a_part_of_a_job(gangs: Any) -> None:
    async def run() -> None:
        everybody = ("Coscheduling", "ElasticQuota", "DefaultPreemption")
        async with gangs(nodes=("8",), enablePreemption=True, post_filter=everybody) as g:
            await classes(g)
            await filled(g, ("a0", "n0", "low"), ("a1", "n0", "low"))
            await g.group("job", 3)
            for number in range(3):
                await g.member(f"p{number}", "job", cpu="4", priorityClassName="high")
            said = await g.said("p0", "finds no node even without the victims")
            assert "preemption" in said
            await g.quiet()
            assert set(await g.nodes_of()) == {"a0", "a1", "p0", "p1", "p2"}

    asyncio.run(run())


@pytest.mark.feature("SCH-JP-01")
def test_default_preemption_does_not_evict_for_a_part_of_a_gang(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await classes(g)
            await filled(g, ("a0", "n0", "low"), ("a1", "n0", "low"))
            await g.group("job", 3)
            for number in range(3):
                await g.member(f"p{number}", "job", cpu="4", priorityClassName="high")
            await g.said("p0", "not for a part of gang group default/job")
            await g.quiet()
            assert {"a0", "a1"} <= set(await g.nodes_of())

    asyncio.run(run())


@pytest.mark.feature("SCH-JP-01")
def test_protected_pods_and_those_of_a_budget_are_no_victims(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("16",), enablePreemption=True, post_filter=("Coscheduling", "DefaultPreemption")) as g:
            await classes(g)
            labels = {
                "np": {"quota.scheduling.koordinator.sh/preemptible": "false"},
                "dp": {"scheduling.koordinator.sh/disable-preemptible": "true"},
                "kept": {"app": "kept"},
            }
            body = {
                "apiVersion": PODDISRUPTIONBUDGETS.api_version, "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
            }  # fmt: skip
            await g.client.create(PODDISRUPTIONBUDGETS, body, "default")
            await filled(g, ("np", "n0", "low"), ("dp", "n0", "low"), ("kept", "n0", "low"), ("free", "n0", "mid"), **labels)
            await g.live.pod("vip", cpu="4", priorityClassName="high")
            assert await g.live.bound("vip") == "n0"
            await gone(g, "free")
            assert {"np", "dp", "kept"} <= set(await g.nodes_of())
            await g.live.pod("more", cpu="4", priorityClassName="high")
            await g.said("more", "preemption")
            await g.quiet()
            assert {"np", "dp", "kept"} <= set(await g.nodes_of())

    asyncio.run(run())


@pytest.mark.feature("SCH-JP-01")
def test_a_pod_that_must_not_preempt_does_not(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",), enablePreemption=True, post_filter=ALONE) as g:
            await classes(g)
            await filled(g, ("a0", "n0", "low"))
            await g.priority("meek", 900, preemptionPolicy="Never")
            await g.live.pod("p", cpu="4", priorityClassName="meek")
            await g.said("p", "preemptionPolicy=Never")
            assert "a0" in await g.nodes_of()

    asyncio.run(run())


@pytest.mark.feature("SCH-JP-01")
def test_members_show_the_nodes_where_room_is_made(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4", "4"), enablePreemption=True, post_filter=ALONE) as g:
            await classes(g)
            # The victim takes its time to go: the job waits for it and evicts nobody else.
            await slow_to_go(g)
            await g.group("job", 2)
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="4", priorityClassName="high")
            pods = [await g.live.until(f"p{number}", lambda p: p["status"].get("nominatedNodeName")) for number in range(2)]
            assert sorted(pod["status"]["nominatedNodeName"] for pod in pods) == ["n0", "n1"]
            slow = await g.live.until("slow", lambda p: p["metadata"].get("deletionTimestamp"))
            target = next(c for c in slow["status"]["conditions"] if c["type"] == "DisruptionTarget")
            assert target["reason"] == "PreemptionByScheduler"
            assert not any(p["spec"].get("nodeName") for p in pods)
            await goes(g)
            found = await g.bound("p0", "p1")
            assert sorted(found.values()) == ["n0", "n1"]
            assert condition(await g.live.get("p0"))["status"] == "True"

    asyncio.run(run())


async def cordoned(g: Any) -> None:
    await g.client.patch(NODES, "n1", {"spec": {"unschedulable": True}})


async def short_of_members(g: Any) -> None:
    await g.client.delete(PODS, "p1", "default", grace_period_seconds=0)


async def short_of_quota(g: Any) -> None:
    """The quota takes one of two members."""
    quota = {"apiVersion": ELASTICQUOTAS.api_version, "kind": "ElasticQuota", "metadata": {"name": "q"}}
    await g.client.create(ELASTICQUOTAS, {**quota, "spec": {"max": {"cpu": "5"}, "min": {"cpu": "0"}}}, "default")
    cache = g.live.app.engine.frameworks["koord-scheduler"].plugins["ElasticQuota"].cache
    while cache.quota("q") is None:
        await asyncio.sleep(0.02)


@pytest.mark.feature("SCH-JP-01")
@pytest.mark.parametrize("trouble", [cordoned, short_of_members, short_of_quota])
def test_room_made_for_a_job_is_free_for_others_once_not_all_of_it_can_be_placed(gangs: Any, trouble: Any) -> None:
    async def run() -> None:
        given = profile("ElasticQuota", enablePreemption=True, post_filter=ALONE)
        given["plugins"]["reserve"]["enabled"].append({"name": "ElasticQuota"})
        async with gangs(nodes=("4", "4"), profiles=[given]) as g:
            await classes(g)
            await slow_to_go(g)
            await g.group("job", 2)
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="4", labels={LABEL_QUOTA_NAME: "q"}, priorityClassName="high")
            for number in range(2):
                await g.live.until(f"p{number}", lambda p: p["status"].get("nominatedNodeName"))
            await trouble(g)
            if trouble is short_of_members:
                await g.live.pod("first", cpu="4", priorityClassName="mid")  # has the place of who is gone
                await g.live.bound("first")
            await g.live.pod("other", cpu="4", priorityClassName="mid")
            await g.said("other", "0/2 nodes are available")
            await goes(g)
            await g.live.bound("other")
            await g.live.until("p0", lambda p: not p["status"].get("nominatedNodeName"))

    asyncio.run(run())


# -------------------------------------------------------------------------------- the plan


class Case:
    """Nodes with pods of lower priority, and a job; amounts in CPUs."""

    def __init__(self, nodes: list[list[tuple[int, int]]], budget: int | None = None) -> None:
        self.world = testing.World()
        self.cycle = Cycle({testing.SCHEDULER: self.world.framework}, self.world.state)
        self.budgets = DisruptionBudgets(self.world.handle)
        self.world.add_nodes(*(testing.node(f"n{number}", cpu="8") for number in range(len(nodes))))
        for number, pods in enumerate(nodes):
            for cpu, priority in pods:
                self.world.add_pods(
                    testing.pod(cpu=str(cpu), memory="1Mi", priority=priority, node=f"n{number}", labels={"app": str(priority % 2)})
                )
        if budget is not None:
            body = {
                "metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "1"}}},
                "status": {"disruptionsAllowed": budget},
            }  # fmt: skip
            self.budgets.observe(None, msgspec.convert(body, PodDisruptionBudget))
        self.preemption = JobPreemption(self.cycle, self.world.state, self.budgets, "")

    def plan(self, job: list[PodInfo]) -> JobPlan:
        return at_once(self.preemption.planning(job, job_rule("test", job)))

    def job(self, *cpus: int) -> list[PodInfo]:
        return [self.world.parser.parse(testing.pod(cpu=str(cpu), memory="1Mi", priority=100)) for cpu in cpus]

    def fits(self, plan: JobPlan, job: list[PodInfo], victims: tuple[PodInfo, ...]) -> bool:
        """Whether the job fits on its nodes once these are gone."""
        cluster = self.world.cluster
        with self.world.state.suppose() as supposed:
            for victim in victims:
                supposed.remove(victim.uid)
            for pod in job:
                slot = cluster.slot_of(plan.nodes[pod.uid])
                if not self.cycle.survey(pod).mask[slot]:
                    return False
                supposed.add(pod, slot)
        return True


SIZES = st.lists(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 5, 100, 200])), max_size=3), min_size=1, max_size=4)


@pytest.mark.feature("SCH-JP-01")
@given(nodes=SIZES, cpus=st.lists(st.integers(1, 6), min_size=1, max_size=5), budget=st.none() | st.integers(0, 2))
def test_a_plan_frees_enough_with_no_more_victims_than_needed(
    nodes: list[list[tuple[int, int]]], cpus: list[int], budget: int | None
) -> None:
    kept = [pods for pods in nodes if sum(cpu for cpu, _ in pods) <= 8]
    if not kept:
        return
    case = Case(kept, budget)
    job = case.job(*cpus)
    free = {slot: case.world.cluster.free[0][slot] for slot in range(len(kept))}
    plan = case.plan(job)
    assert {slot: case.world.cluster.free[0][slot] for slot in range(len(kept))} == free  # a what-if leaves nothing behind
    if plan.refusal:
        assert not plan.victims
        assert not plan.nodes
        return
    assert set(plan.nodes) == {pod.uid for pod in job}
    assert all(victim.priority < 100 for victim in plan.victims)
    assert case.fits(plan, job, plan.victims)
    for spared in plan.victims:
        assert not case.fits(plan, job, tuple(victim for victim in plan.victims if victim is not spared))
    if budget is not None:
        assert sum(1 for victim in plan.victims if victim.labels["app"] == "1") <= budget


@pytest.mark.feature("SCH-JP-01")
def test_the_lower_priorities_go_and_of_equal_nodes_the_first() -> None:
    case = Case([[(8, 5)], [(8, 1)], [(8, 1)]])
    job = case.job(6)
    assert case.plan(job).nodes == {job[0].uid: "n1"}
    both = case.job(6, 6)
    assert sorted(case.plan(both).nodes.values()) == ["n1", "n2"]
    # Pods that belong to nothing are one job: three of a low priority go rather than one of a higher.
    several = Case([[(3, 2), (3, 2), (2, 2)], [(8, 5)], [(4, 1), (4, 200)]])
    assert {victim.node_name for victim in several.plan(several.job(8)).victims} == {"n0"}
    # Room that is there already costs nobody his place.
    roomy = Case([[(8, 1)], [(2, 1)]])
    plan = roomy.plan(roomy.job(6, 6))
    assert sorted(plan.nodes.values()) == ["n0", "n1"]
    assert [victim.node_name for victim in plan.victims] == ["n0"]


@pytest.mark.feature("SCH-JP-01")
def test_a_plan_looks_for_others_when_a_budget_is_used_up() -> None:
    case = Case([[(4, 1), (4, 1)], [(8, 2)]], budget=1)
    plan = case.plan(case.job(8))
    assert [victim.node_name for victim in plan.victims] == ["n1"]
    assert "disruption budgets" in case.plan(case.job(8, 8)).refusal or "no node" in case.plan(case.job(8, 8)).refusal
