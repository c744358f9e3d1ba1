"""Extension points that no built-in plugin of a plain profile takes, each by a small plugin of the test (SCH-FW-07)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from koord.kube import errors
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.framework.interfaces import (
    Filter,
    FindOneNode,
    Permit,
    PreBind,
    PreferNodes,
    PreFilter,
    Rejection,
    Reserve,
    ResizePod,
    Score,
    Transformer,
)
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, unschedulable, wait


def enabled(*points: str, name: str = "Probe") -> dict[str, Any]:
    return {"plugins": {point: {"enabled": [{"name": name}]} for point in points}}


def world(plugin: type[Any], *points: str, nodes: int = 4) -> testing.World:
    found = testing.World(enabled(*points), plugins=(plugin,))
    found.add_nodes(*(testing.node(f"n{number}") for number in range(nodes)))
    return found


@pytest.mark.feature("SCH-FW-07")
def test_a_row_wise_filter_is_asked_only_about_nodes_that_are_left() -> None:
    class Probe(Filter):
        name = "Probe"
        row_wise = True
        asked: ClassVar[list[str]] = []

        def filter_row(self, ctx: CycleContext, slot: int) -> int:
            self.asked.append(ctx.cluster.name_of(slot))
            return int(len(ctx.cluster.row(slot).pods) >= 1)

        def rejection(self, ctx: CycleContext, code: int) -> Rejection:
            return Rejection(("node(s) had a pod already",))

    found = world(Probe, "filter")
    found.add_nodes(testing.node("small", cpu="100m"))
    assert {found.schedule(testing.pod()).node for _ in range(4)} == {"n0", "n1", "n2", "n3"}
    assert "small" not in Probe.asked
    assert len(Probe.asked) == 4 + 3  # all four once, then the one that changed
    refused = found.decide(testing.pod())
    assert refused.message().startswith("0/5 nodes are available: 1 Insufficient cpu, 4 node(s) had a pod already.")


@pytest.mark.feature("SCH-FW-07")
def test_a_plugin_may_look_at_one_node_at_a_time() -> None:
    class Probe(Filter, Score):
        name = "Probe"

        def filter_row(self, ctx: CycleContext, slot: int) -> int:
            return int(len(ctx.cluster.row(slot).pods) >= 2)

        def rejection(self, ctx: CycleContext, code: int) -> Rejection:
            return Rejection(("node(s) had two pods already",))

        def score_row(self, ctx: CycleContext, slot: int) -> float:
            return 100.0 if ctx.cluster.row(slot).pods else 0.0

    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "Probe"}]}
    found = testing.World({"plugins": {"filter": {"enabled": [{"name": "Probe"}]}, "score": only}}, plugins=(Probe,))
    found.add_nodes(*(testing.node(f"n{number}") for number in range(2)))
    went = [found.schedule(testing.pod()).node for _ in range(4)]
    assert went[0] == went[1] != went[2] == went[3]  # one node is filled first
    found.cluster.remove_node(went[0])
    assert found.decide(testing.pod()).message().startswith("0/1 nodes are available: 1 node(s) had two pods already.")


@pytest.mark.feature("SCH-FW-07")
def test_what_is_said_of_all_rows_counts_where_both_are_written() -> None:
    """As plugins were written that took one row for a case of its own."""

    class Probe(Filter):
        name = "Probe"

        def filter(self, ctx: CycleContext, rows: Any) -> Any:
            return ctx.cluster.pod_slots[rows] < 110

        def filter_row(self, ctx: CycleContext, slot: int) -> int:
            raise AssertionError("not asked")

        def rejection(self, ctx: CycleContext, code: int) -> Rejection:
            return Rejection(("node(s) had a pod already",))

    found = world(Probe, "filter")
    assert {found.schedule(testing.pod()).node for _ in range(4)} == {"n0", "n1", "n2", "n3"}
    assert not found.decide(testing.pod()).scheduled


@pytest.mark.feature("SCH-FW-07")
def test_find_one_node_plans_and_may_refuse() -> None:
    class Probe(PreFilter, FindOneNode):
        name = "Probe"
        answer: ClassVar[tuple[Status, str]] = (SUCCESS, "n2")

        def pre_filter(self, ctx: CycleContext) -> Status:
            return SUCCESS

        def find_one_node(self, ctx: CycleContext, candidates: Any) -> tuple[Status, str]:
            return self.answer

    found = world(Probe, "preFilter")
    assert {found.schedule(testing.pod()).node for _ in range(3)} == {"n2"}
    Probe.answer = (SKIP, "")
    assert found.schedule(testing.pod()).node != "n2"
    Probe.answer = (unschedulable("no plan"), "")
    assert found.decide(testing.pod()).message().startswith("0/4 nodes are available: no plan.")
    Probe.answer = (SUCCESS, "")
    assert found.decide(testing.pod()).verdict == "Error"


@pytest.mark.feature("SCH-FW-07")
def test_preferred_nodes_are_taken_in_order_if_they_pass_the_filters() -> None:
    class Probe(PreFilter, PreferNodes):
        name = "Probe"

        def pre_filter(self, ctx: CycleContext) -> Status:
            return SUCCESS

        def prefer_nodes(self, ctx: CycleContext, candidates: Any) -> tuple[Status, Sequence[str]]:
            return SUCCESS, ("unknown", "n3", "n1")

    found = world(Probe, "preFilter")
    found.add_pods(testing.pod(cpu="1", node="n3"))
    assert found.schedule(testing.pod(cpu="2")).node == "n3"
    assert found.schedule(testing.pod(cpu="6")).node == "n1"
    assert found.schedule(testing.pod(cpu="7")).node in ("n0", "n2")


@pytest.mark.feature("SCH-FW-07")
def test_a_transformer_replaces_the_pod_for_the_cycle() -> None:
    class Probe(PreFilter, Transformer):
        name = "Probe"
        after: ClassVar[Status] = SUCCESS

        def pre_filter(self, ctx: CycleContext) -> Status:
            return SUCCESS

        def before_pre_filter(self, ctx: CycleContext) -> tuple[Status, PodInfo | None]:
            if "bad" in ctx.pod.labels:
                return unschedulable("bad pod"), None
            return SUCCESS, self.handle.parser.parse(testing.pod(cpu="7", uid=ctx.pod.uid))

        def after_pre_filter(self, ctx: CycleContext) -> Status:
            return self.after

    found = world(Probe, "preFilter", nodes=1)
    assert found.decide(testing.pod(labels={"bad": "1"})).message().startswith("0/1 nodes are available: bad pod.")
    assert found.schedule(testing.pod(cpu="1")).scheduled
    assert not found.decide(testing.pod(cpu="1")).scheduled  # two of seven CPUs each do not fit
    found.add_nodes(testing.node("more"))
    Probe.after = unschedulable("not now")
    decision = found.decide(testing.pod(cpu="1"))
    assert (decision.rejected_by, decision.verdict) == (frozenset(("Probe",)), "Unschedulable")


@pytest.mark.feature("SCH-FW-07")
@pytest.mark.parametrize("gate", [True, False])
def test_resize_counts_other_requests_than_were_asked_for(gate: bool) -> None:
    class Probe(ResizePod, Reserve):
        name = "Probe"

        def resize(self, ctx: CycleContext, slot: int) -> PodInfo | None:
            return self.handle.parser.parse(testing.pod(ctx.pod.name, cpu="500m", uid=ctx.pod.uid))

        def reserve(self, ctx: CycleContext, slot: int) -> Status:
            return SUCCESS

        def unreserve(self, ctx: CycleContext, slot: int) -> None:
            """Nothing was taken."""

    found = world(Probe, "reserve", nodes=1)
    found.handle.gates["ResizePod"] = gate
    assert found.schedule(testing.pod(cpu="4")).scheduled
    assert float(found.cluster.free[0][0]) == (7500.0 if gate else 4000.0)


class Events:
    """What happened to a pod in a live scheduler, in order."""

    log: ClassVar[list[str]] = []


class Guard(Permit, Reserve, PreBind):
    """Reserves, permits and prepares by what the pod's label asks for."""

    name = "Guard"

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        Events.log.append("reserve")
        return unschedulable("not reserved") if ctx.pod.labels.get("do") == "no-reserve" else SUCCESS

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        Events.log.append("unreserve")

    def permit(self, ctx: CycleContext, slot: int) -> Status:
        Events.log.append("permit")
        todo = ctx.pod.labels.get("do")
        if todo == "no-permit":
            return unschedulable("not permitted")
        return wait(0.3 if todo == "timeout" else 30.0) if todo in ("wait", "timeout") else SUCCESS

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        Events.log.append("preBind")
        return unschedulable("not prepared") if ctx.pod.labels.get("do") == "no-bind" else SUCCESS


def guarded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    from roles.scheduler.plugins import registry

    Events.log.clear()
    monkeypatch.setattr(registry, "PLUGINS", (*registry.PLUGINS, Guard))
    points = {point: {"enabled": [{"name": "Guard"}]} for point in ("reserve", "permit", "preBind")}
    return {"profiles": [{"schedulerName": "koord-scheduler", "plugins": points}]}


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-FW-07")
@pytest.mark.parametrize(
    ("todo", "text", "seen"),
    [
        ("no-reserve", "not reserved", ["reserve", "unreserve"]),
        ("no-permit", "not permitted", ["reserve", "permit", "unreserve"]),
        ("no-bind", "not prepared", ["reserve", "permit", "preBind", "unreserve"]),
        ("timeout", "timed out waiting on permit by Guard", ["reserve", "permit", "unreserve"]),
    ],
)
def test_refusals_after_a_node_was_found_give_everything_back(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch, todo: str, text: str, seen: list[str]
) -> None:
    config = guarded(monkeypatch)

    async def run() -> None:
        async with scheduler(config) as live:
            await live.node("n", cpu="1")
            await live.pod("p", meta={"labels": {"do": todo}})
            condition = await live.refused("p")
            assert text in condition["message"]
            assert condition["reason"] == "Unschedulable"
            assert Events.log[: len(seen)] == seen
            assert live.app.cache.assumed_count == 0
            await live.pod("other")
            assert await live.bound("other") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-07")
def test_a_held_pod_goes_when_it_is_allowed_and_others_go_meanwhile(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = guarded(monkeypatch)

    async def run() -> None:
        async with scheduler(config) as live:
            await live.node("n")
            held = await live.pod("held", meta={"labels": {"do": "wait"}})
            await live.pod("quick")
            await live.bound("quick")
            assert not (await live.get("held"))["spec"].get("nodeName")
            live.app.waiting.allow(held["metadata"]["uid"], "Guard")
            assert await live.bound("held") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_pod_that_the_api_server_will_not_have_waits_until_it_changes(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            real, calls = live.client.bind, []

            async def bind(*arguments: Any, **more: Any) -> None:
                calls.append(arguments)
                raise errors.Invalid(422, "Invalid", "pod cannot be bound")

            live.client.bind = bind
            await live.pod("p")
            condition = await live.refused("p")
            assert condition["reason"] == "SchedulerError"
            assert "pod cannot be bound" in condition["message"]
            await live.node("another")
            await asyncio.sleep(0.3)
            assert len(calls) == 1
            assert live.app.queue.counts()["unschedulable"] == 1
            live.client.bind = real
            from koord.api.kinds import PODS

            await live.client.patch(PODS, "p", {"metadata": {"labels": {"try": "again"}}}, "default")
            assert await live.bound("p") in ("n", "another")

    asyncio.run(run())


def test_filters_may_answer_with_whole_numbers_or_booleans() -> None:
    class Probe(Filter):
        name = "Probe"
        reads = 0

        def filter(self, ctx: CycleContext, rows: Any) -> Any:
            return np.arange(ctx.cluster.capacity)[rows] % 2 * 7

        def rejection(self, ctx: CycleContext, code: int) -> Rejection:
            return Rejection((f"code {code}",))

    found = world(Probe, "filter", nodes=2)
    assert found.schedule(testing.pod(cpu="8")).node == found.cluster.name_of(0)
    assert "1 Insufficient cpu, 1 code 7" in found.decide(testing.pod(cpu="8")).message()
