"""Long decisions are made in slices: others have their turn, and the decision sees one picture (SCH-FW-05)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import NODES, PODS
from roles.scheduler import live as live_module
from roles.scheduler import testing
from roles.scheduler import turns as turns_module
from roles.scheduler.cluster.audit import recounting
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.steps import Steps, at_once, sorted_in_steps
from roles.scheduler.gate import Gate
from roles.scheduler.observing.observer import Observer
from roles.scheduler.plugins.budgets import DisruptionBudgets
from roles.scheduler.plugins.coscheduling.preemption import JobPreemption, job_rule
from roles.scheduler.turns import CATCH_UP, SLICE, Turns
from tests.support import patience

from .gang.conftest import gangs

__all__ = ["gangs"]  # the fixture


class Thing(NamedTuple):
    """An object of a kind, as informers hand it over."""

    key: str
    version: int


def turns(gate: Gate) -> Turns:
    found = Turns(gate, lambda seconds: None)
    found.steps = 1
    return found


@pytest.mark.feature("SCH-FW-05")
@given(
    changes=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
    closed=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_what_is_held_back_is_merged_and_nothing_is_lost(changes: list[tuple[str, bool]], closed: tuple[int, int]) -> None:
    gate, there, told = Gate(), dict[str, Thing](), dict[str, Thing]()

    def tell(old: Thing | None, new: Thing | None) -> None:
        known = new or old
        assert known is not None
        assert told.get(known.key) == old  # each change goes on from what was told last
        if new is None:
            del told[known.key]
        else:
            told[new.key] = new

    add, update, delete = gate.handlers(tell)
    for number, (key, present) in enumerate(changes):
        if number == min(closed):
            gate.close()
        if number == max(closed):
            gate.open()
        old = there.get(key)
        if present:
            new = there[key] = Thing(key, number)
            add(new) if old is None else update(old, new)
        elif old is not None:
            del there[key]
            delete(old)
        assert gate.held_back <= 3
    gate.open()
    for _ in gate.deliver():
        pass
    assert told == there


@pytest.mark.feature("SCH-FW-05")
def test_others_have_their_turn_and_driven_tasks_wait() -> None:
    async def run() -> None:
        gate, seen, answers = Gate(), list[str](), asyncio.Queue[int]()

        async def other() -> None:
            while True:
                seen.append("other")
                await asyncio.sleep(0)

        async def binding() -> None:
            await answers.get()
            seen.append("binding")

        def work() -> Steps[str]:
            for number in range(3):
                seen.append(f"step {number}")
                answers.put_nowait(number)
                yield
            yield CATCH_UP
            seen.append("last")
            yield
            return "done"

        tasks = [asyncio.create_task(other()), asyncio.create_task(gate.drive(binding))]
        await asyncio.sleep(0)
        assert await turns(gate).take(work()) == "done"
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert seen.index("other") < seen.index("step 0")
        assert "other" in seen[seen.index("step 0") : seen.index("step 1")]
        assert seen.index("step 2") < seen.index("binding") < seen.index("last")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
def test_a_driven_task_can_be_cancelled_while_the_gate_is_closed() -> None:
    async def run() -> None:
        gate = Gate()
        gate.close()
        task = asyncio.create_task(gate.drive(asyncio.sleep, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers()), max_size=600))
def test_sorting_in_steps_is_sorting(items: list[tuple[int, int]]) -> None:
    assert at_once(sorted_in_steps(items, lambda item: item[0])) == sorted(items, key=lambda item: item[0])


@pytest.mark.feature("SCH-JP-01")
def test_a_plan_for_a_job_changes_little_between_two_steps() -> None:
    """What a step costs does not grow with the job: at most a node's pods are moved or looked at."""
    world = testing.World()
    for number in range(60):
        world.add_nodes(testing.node(f"n{number}", cpu="8", memory="32Gi"))
        world.add_pods(*(testing.pod(cpu="2", memory="1Mi", priority=number % 3, node=f"n{number}") for _ in range(4)))
    handle = world.handle
    planner = JobPreemption(Cycle({testing.SCHEDULER: world.framework}, world.state), world.state,
                            DisruptionBudgets(handle), "")  # fmt: skip
    job = [world.parser.parse(testing.pod(cpu="8", memory="1Mi", priority=100)) for _ in range(50)]
    work, most, steps, plan = planner.planning(job, job_rule("test", job)), 0, 0, None
    while plan is None:
        before = world.cluster.changes.position
        try:
            next(work)
        except StopIteration as end:
            plan = end.value
        most, steps = max(most, world.cluster.changes.position - before), steps + 1
    assert len(plan.nodes) == 50
    assert len(plan.victims) == 200
    assert steps > 600
    assert most <= 10


@pytest.mark.feature("SCH-JP-01")
@pytest.mark.parametrize("change", ["node goes", "member goes", "other pods go"])
def test_a_plan_that_took_long_is_checked_against_what_has_happened_meanwhile(gangs: Any, change: str) -> None:
    """Four nodes of which a job needs two; while its room is planned the cluster changes."""

    async def run() -> None:
        async with gangs(nodes=("4",) * 4, enablePreemption=True, post_filter=("Coscheduling",)) as g:
            app = g.live.app
            for name, value in (("low", 10), ("high", 900)):
                await g.priority(name, value)
            for number in range(4):
                await g.live.pod(f"low-{number}", cpu="4", nodeName=f"n{number}", priorityClassName="low", terminationGracePeriodSeconds=0)
            planned = asyncio.Event()
            take = app.scheduler.turns._slice
            held = False

            def slow(work: Any, since: float) -> Any:
                nonlocal held
                found = take(work, since)
                if found[1] is CATCH_UP and not held:
                    held = True
                    planned.set()
                return found

            app.scheduler.turns._slice = slow
            let_in = app.scheduler.turns.let_in
            happened = asyncio.Event()

            async def when_it_happened() -> None:
                if held:
                    await happened.wait()
                await let_in()

            app.scheduler.turns.let_in = when_it_happened
            await g.group("job", 2)
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="4", priorityClassName="high")
            await asyncio.wait_for(planned.wait(), patience.seconds(10))
            assert not len(app.engine.state.evictions)
            victims = ()
            if change == "node goes":
                for number in (0, 1):
                    await g.client.delete(PODS, f"low-{number}", "default")
                    await g.client.delete(NODES, f"n{number}")
                victims = ("low-2", "low-3")
            elif change == "member goes":
                await g.client.delete(PODS, "p1", "default")
            else:
                await g.client.delete(PODS, "low-3", "default")
            left = {"node goes": 2, "member goes": 4, "other pods go": 3}[change]
            for _ in patience.tries(400):
                if len([pod for pod in app.observer.pods.list() if pod.name.startswith("low")]) == left and (
                    change != "member goes" or app.observer.pods.get("default/p1") is None
                ):
                    break
                await asyncio.sleep(0.02)
            happened.set()
            if change == "member goes":
                await g.quiet()
                names = set(await g.nodes_of())
                assert {f"low-{number}" for number in range(4)} <= names  # for half a job nobody goes
                return
            places = await g.bound("p0", "p1")
            assert len(set(places.values())) == 2
            if change == "node goes":
                assert set(places.values()) == {"n2", "n3"}
                assert not set(victims) & set(await g.nodes_of())
                assert app.scheduler.outdated_plans >= 1

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
def test_a_gate_that_holds_nothing_back_is_handed_on() -> None:
    """Everybody keeps the one that is given; an empty one that counted as none would leave each with a gate of its own."""
    gate = Gate()
    assert gate
    assert Turns(gate, lambda _: None).gate is gate
    nothing: Any = None
    observer = Observer(nothing, nothing, nothing, {}, clock=float, changed=lambda: None, gone=lambda _: None, gate=gate)
    assert observer._gate is gate


@pytest.mark.feature("SCH-FW-05")
def test_short_works_in_a_row_leave_others_their_turn(scheduler: Any, monkeypatch: Any) -> None:
    """Each by itself ends before its slice does."""
    done: list[int] = []
    clock = 0.0
    for module in (turns_module, live_module):
        monkeypatch.setattr(module, "perf_counter", lambda: clock)

    def short(number: int) -> Steps[None]:
        nonlocal clock
        clock += SLICE / 4
        done.append(number)
        yield

    async def run() -> None:
        async with scheduler() as live:
            live.app.scheduler.turns.steps = 0
            live.app.scheduler._later.extend(short(number) for number in range(200))
            live.app.scheduler.wake()
            seen = []
            while len(done) < 200:
                await asyncio.sleep(0)
                seen.append(len(done))
            assert max(after - before for before, after in itertools.pairwise([0, *seen])) <= 5

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
def test_two_long_works_do_not_see_one_another_half_done() -> None:
    """A page about all of the state is written in slices, as decisions are made, by another task."""

    async def run() -> list[str]:
        gate, seen = Gate(), list[str]()
        both = turns(gate)

        def work(name: str) -> Steps[None]:
            for _ in range(3):
                seen.append(name)
                yield

        await asyncio.gather(both.take(work("a")), both.take(work("b")), both.take(work("c")))
        assert not gate.closed
        return seen

    assert [name for name, _ in itertools.groupby(asyncio.run(run()))] == ["a", "b", "c"]


@pytest.mark.feature("SCH-FW-06")
def test_the_audit_of_the_cache_comes_in_small_steps(monkeypatch: Any) -> None:
    world = testing.World()
    world.add_nodes(*(testing.node(f"n{number}") for number in range(200)))
    world.add_pods(*(testing.pod(node=f"n{number % 200}") for number in range(600)))
    counted: list[str] = []
    add = Cluster.add_pod
    monkeypatch.setattr(Cluster, "add_pod", lambda cluster, pod, node: counted.append(node) or add(cluster, pod, node))
    most = before = 0
    for _ in recounting(world.cluster):
        most, before = max(most, len(counted) - before), len(counted)
    assert len(counted) == 600
    assert most <= 16 * 3


@pytest.mark.feature("SCH-FW-06")
def test_pods_are_scheduled_beside_a_page_about_all_of_the_cache(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            for number in range(40):
                await live.node(f"n{number}")
            pages = [asyncio.create_task(page(f"{live.ops.url}/debug/cache")) for _ in range(4)]
            for number in range(8):
                await live.pod(f"p{number}")
            for number in range(8):
                await live.bound(f"p{number}")
            assert await asyncio.gather(*pages) == [{"differences": []}] * 4
            assert live.app.scheduler.turns.sliced

    async def page(url: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.json()

    asyncio.run(run())
