"""Carrying decisions out when things go wrong: plugins that raise, answers that are lost, nodes and pods that vanish on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import EVENTS, NODES, PODS
from koord.kube.connection import Lost
from koord.kube.errors import Forbidden, ServerError, Unreachable
from tests.roles.scheduler.test_live import events_of
from tests.support import patience

POINTS = (
    "pre_enqueue", "pre_filter", "filter", "post_filter", "pre_score", "score", "reserve", "permit", "pre_bind", "bind", "post_bind",
    "unreserve",
)  # fmt: skip

PLUGIN = """
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.status import SKIP, SUCCESS, unschedulable


class Faulty(api.PreEnqueue, api.PreFilter, api.Filter, api.PostFilter, api.PreScore, api.Score, api.Reserve, api.Permit, api.PreBind,
             api.Bind, api.PostBind):
    name = "Faulty"

    def shape_key(self, pod):
        return pod.name

    def _do(self, pod, point):
        if pod.name == "bad-" + point.replace("_", "-"):
            raise ValueError("a defect in " + point)

    def pre_enqueue(self, pod):
        self._do(pod, "pre_enqueue")
        return SUCCESS

    def pre_filter(self, ctx):
        self._do(ctx.pod, "pre_filter")
        return SUCCESS

    def filter(self, ctx, rows):
        self._do(ctx.pod, "filter")
        return ctx.cluster.zeros[rows] == 0.0 if ctx.pod.name == "bad-post-filter" else None

    def rejection(self, ctx, code):
        return api.Rejection(("no",))

    def post_filter(self, ctx, failure):
        self._do(ctx.pod, "post_filter")
        return api.PostFilterResult(unschedulable())

    def pre_score(self, ctx):
        self._do(ctx.pod, "pre_score")
        return SUCCESS

    def score(self, ctx, rows):
        self._do(ctx.pod, "score")
        return 0.0

    def reserve(self, ctx, slot):
        self._do(ctx.pod, "reserve")
        return SUCCESS

    def unreserve(self, ctx, slot):
        self._do(ctx.pod, "unreserve")

    def permit(self, ctx, slot):
        self._do(ctx.pod, "permit")
        return unschedulable("not now") if ctx.pod.name == "bad-unreserve" else SUCCESS

    async def pre_bind(self, ctx, node, draft):
        self._do(ctx.pod, "pre_bind")
        return SUCCESS

    async def bind(self, ctx, node):
        self._do(ctx.pod, "bind")
        return SKIP

    def post_bind(self, ctx, node):
        self._do(ctx.pod, "post_bind")
"""
AT = ["preEnqueue", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit", "preBind", "bind", "postBind"]


def with_plugin(name: str) -> dict[str, Any]:
    """A configuration with the plugin first at every point."""
    plugins: dict[str, Any] = {point: {"enabled": [{"name": name}]} for point in AT if point not in ("bind", "postFilter")}
    plugins["bind"] = {"disabled": [{"name": "*"}], "enabled": [{"name": name}, {"name": "DefaultBinder"}]}
    plugins["postFilter"] = {"disabled": [{"name": "*"}], "enabled": [{"name": name}]}
    return {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("kind", ["ValueError", "CancelledError", "SystemExit"])
def test_a_plugin_that_raises_anywhere_costs_that_pod_an_attempt(scheduler: Any, tmp_path: Path, kind: str) -> None:
    """Also what is no Exception: a task of its own that was cancelled, or a library that would end the process."""

    async def run() -> None:
        file = tmp_path / "faulty.py"
        file.write_text("from asyncio import CancelledError\n" + PLUGIN.replace("ValueError", kind))
        async with scheduler(with_plugin("Faulty"), plugin_paths=(str(file),), binders=2) as live:
            await live.node("n", cpu="64")
            for point in POINTS:
                await live.pod(f"bad-{point.replace('_', '-')}", cpu="100m")
            await live.pod("good", cpu="100m")
            assert await live.bound("good") == "n"
            for point in POINTS:
                name = f"bad-{point.replace('_', '-')}"
                if point == "post_bind":
                    assert await live.bound(name) == "n"  # it is bound whatever is made of that
                elif point != "unreserve":
                    condition = await live.refused(name)
                    assert condition["reason"] == "SchedulerError", name
                    assert f"plugin Faulty ({point}): {kind}: a defect in {point}" in condition["message"]
            await live.pod("later", cpu="100m")
            assert await live.bound("later") == "n"
            assert not live.running.done()
            for point in ("filter", "reserve", "permit", "pre_bind", "bind"):  # they back off and are tried again
                entry = next(e for e in live.app.queue.entries() if e.pod.name == f"bad-{point.replace('_', '-')}")
                assert entry.errors >= 1

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_plugin_that_writes_an_annotation_that_is_no_text_is_named(scheduler: Any, tmp_path: Path) -> None:
    """Rather than the binder, with whatever the API server says of the whole pod."""

    async def run() -> None:
        (tmp_path / "seats.py").write_text(
            "from roles.scheduler.framework.interfaces import PreBind\nfrom roles.scheduler.framework.status import SUCCESS\n\n\n"
            "class Seats(PreBind):\n    name = 'Seats'\n\n    async def pre_bind(self, ctx, node, draft):\n"
            "        draft.annotations['example.com/gone'] = None\n"
            "        draft.annotations['example.com/seat'] = 3 if ctx.pod.name == 'bad' else '3'\n        return SUCCESS\n"
        )
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": {"preBind": {"enabled": [{"name": "Seats"}]}}}]}
        async with scheduler(config, plugin_paths=(str(tmp_path / "seats.py"),)) as live:
            await live.node("n")
            await live.pod("bad")
            what = "plugin Seats (pre_bind): draft.annotations['example.com/seat'] is 3, not a text (None removes the key)"
            assert what in (await live.refused("bad"))["message"]
            await live.pod("good")
            assert await live.bound("good") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("watch_first", [True, False])
def test_a_pod_whose_binding_was_not_answered_is_bound(scheduler: Any, watch_first: bool) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="2")
            bind = live.app.client.bind

            async def lost(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                await bind(namespace, pod, node, uid=uid)
                while watch_first and live.app.cache.is_assumed(uid):
                    await asyncio.sleep(0.005)
                raise ServerError(504, "Timeout", "request did not complete within the allotted timeout")

            live.app.client.bind = lost
            pod = await live.pod("first", cpu="2")
            await live.pod("waiting", cpu="2")
            assert await live.bound("first") == "n"
            (event,) = await events_of(live, "first", "Scheduled")
            assert event["note"] == "Successfully assigned default/first to n"
            await live.refused("waiting")
            listed = (await live.client.list(EVENTS, "default")).items
            assert not [e for e in listed if e["reason"] == "FailedScheduling" and e["regarding"]["uid"] == pod["metadata"]["uid"]]
            assert (await live.get("first"))["status"]["conditions"][0]["status"] == "True"
            assert live.app.queue.get(pod["metadata"]["uid"]) is None
            assert len(live.app.scheduler.placements) == 0

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_binding_that_was_lost_on_the_way_is_sent_again_to_the_same_node(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            for name in ("a", "b"):
                await live.node(name, cpu="2")
            bind, nodes = live.app.client.bind, []

            async def once(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                nodes.append(node)
                if len(nodes) == 1:
                    raise Unreachable("connection reset")
                await bind(namespace, pod, node, uid=uid)

            live.app.client.bind = once
            await live.pod("p", cpu="2")
            assert await live.bound("p") == nodes[0]
            assert nodes == [nodes[0], nodes[0]]

    asyncio.run(run())


@pytest.mark.feature("BEY-SEC-03")
def test_what_others_wrote_before_a_binding_is_sent_again_does_not_stay(scheduler: Any) -> None:
    """Admission that fails open lets an author write what only schedulers write, between two tries."""
    key = "scheduling.koordinator.sh/resource-status"
    profile = {"schedulerName": "koord-scheduler", "plugins": {"preBind": {"enabled": [{"name": "DefaultPreBind"}]}}}

    async def run() -> None:
        async with scheduler({"profiles": [profile]}) as live:
            await live.node("a", cpu="2")
            bind, tries = live.app.client.bind, []

            async def once(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                tries.append(node)
                if len(tries) == 1:
                    await live.client.patch(PODS, pod, {"metadata": {"annotations": {key: '{"cpuset":"0"}'}}}, namespace)
                    while key not in (live.app.queue.get(uid).pod.pod.metadata.annotations or {}):
                        await asyncio.sleep(0.005)
                    raise Unreachable("connection reset")
                await bind(namespace, pod, node, uid=uid)

            live.app.client.bind = once
            await live.pod("p", cpu="2")
            assert await live.bound("p") == "a"
            assert key not in ((await live.get("p"))["metadata"].get("annotations") or {})
            assert len(tries) == 2

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_binding_that_never_works_is_told_and_gives_its_room_back(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="2")
            bind = live.app.client.bind

            async def never(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                if pod == "p":
                    raise ServerError(500, "InternalError", "admission webhook does not answer")
                await bind(namespace, pod, node, uid=uid)

            live.app.client.bind = never
            await live.pod("p", cpu="2", priority=0)
            condition = await live.refused("p")
            assert condition["reason"] == "SchedulerError"
            assert "admission webhook does not answer" in condition["message"]
            await live.client.delete(PODS, "p", "default", grace_period_seconds=0)
            await live.pod("q", cpu="2")
            assert await live.bound("q") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_pods_and_their_node_may_vanish_while_they_are_bound(scheduler: Any) -> None:
    async def run() -> None:
        points = ("preFilter", "filter", "reserve", "preBind")
        plugins = {point: {"enabled": [{"name": "DeviceShare"}]} for point in points}
        plugins["preBind"]["enabled"].append({"name": "DefaultPreBind"})
        async with scheduler({"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}, crds=True, binders=2) as live:
            await live.node("gone")
            bind, gone = live.app.client.bind, asyncio.Event()

            async def slow(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                if pod.startswith("early"):
                    await gone.wait()
                await bind(namespace, pod, node, uid=uid)

            live.app.client.bind = slow
            for name in ("early-1", "early-2"):
                await live.pod(name)
            while live.app.binder.backlog < 2:
                await asyncio.sleep(0.005)
            for name in ("early-1", "early-2"):
                await live.client.delete(PODS, name, "default", grace_period_seconds=0)
            await live.client.delete(NODES, "gone")
            while live.app.engine.cluster.live or live.app.engine.cluster.pod_count:
                await asyncio.sleep(0.005)
            gone.set()
            await live.node("new")
            await live.pod("later")
            assert await live.bound("later") == "new"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_pod_is_not_bound_to_a_node_that_went_before(scheduler: Any, tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "slow.py").write_text(
            "import asyncio\nfrom roles.scheduler.framework.interfaces import PreBind\n"
            "from roles.scheduler.framework.status import SUCCESS\n\n\n"
            "class Slow(PreBind):\n    name = 'Slow'\n\n    async def pre_bind(self, ctx, node, draft):\n"
            "        while node == 'gone' and ctx.cluster.live:\n            await asyncio.sleep(0.01)\n        return SUCCESS\n"
        )
        plugins = {"preBind": {"enabled": [{"name": "Slow"}]}}
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}
        async with scheduler(config, plugin_paths=(str(tmp_path / "slow.py"),)) as live:
            await live.node("gone")
            await live.pod("p")
            while not live.app.binder.backlog:
                await asyncio.sleep(0.005)
            await live.client.delete(NODES, "gone")
            assert (await live.refused("p"))["message"] == "node gone is gone"
            await live.node("new")
            assert await live.bound("p") == "new"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_health_fails_while_a_placement_does_not_come_to_its_end(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            bind, go_on = live.app.client.bind, asyncio.Event()

            async def hangs(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                await go_on.wait()
                await bind(namespace, pod, node, uid=uid)

            live.app.client.bind = hangs
            pod = await live.pod("p")
            while not live.app.binder.backlog:
                await asyncio.sleep(0.005)
            assert live.ops.health.report("healthz")[0]
            placement = live.app.scheduler.placements.get(pod["metadata"]["uid"])
            placement.since -= placement.limit + 1
            ok, rows = live.ops.health.report("healthz")
            assert not ok
            assert any(name == "placements" and "on n is binding for" in detail for name, _, detail in rows)
            go_on.set()
            assert await live.bound("p") == "n"
            while not live.ops.health.report("healthz")[0]:
                await asyncio.sleep(0.005)

    asyncio.run(run())


async def full_nodes(live: Any, nodes: int) -> None:
    """Nodes with two pods of low priority each that leave no room, and a class of high priority."""
    from koord.api.kinds import PRIORITYCLASSES

    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    await live.client.create(PRIORITYCLASSES, body)
    for number in range(nodes):
        await live.node(f"n{number}", cpu="4")
        for index in range(2):
            await live.pod(f"low-{number}-{index}", cpu="2", nodeName=f"n{number}", terminationGracePeriodSeconds=0)


@pytest.mark.feature("SCH-KS-12")
def test_one_preemptor_removes_the_pods_of_one_node_whatever_happens_meanwhile(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await full_nodes(live, 12)
            await live.node("other", cpu="60", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
            for number in range(10):
                await live.pod(f"x-{number}", cpu="1", nodeName="other")
            delete, asked, answer = live.app.client.delete, [], asyncio.Event()

            async def slow(kind: Any, name: str, *args: Any, **options: Any) -> Any:
                if name.startswith("low-"):
                    asked.append(name)
                    await answer.wait()
                return await delete(kind, name, *args, **options)

            live.app.client.delete = slow
            await live.pod("high", cpu="4", priorityClassName="high")
            while len(asked) < 2:  # both at the same time
                await asyncio.sleep(0.005)
            for number in range(10):
                await delete(PODS, f"x-{number}", "default", grace_period_seconds=0)
                await asyncio.sleep(0.02)
            assert len(asked) == 2
            entry = next(e for e in live.app.queue.entries() if e.pod.name == "high")
            assert entry.attempts == 1  # not decided while its victims are being asked
            answer.set()
            node = await live.bound("high")
            assert sorted(asked) == [f"low-{node[1:]}-0", f"low-{node[1:]}-1"]

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_what_could_not_be_removed_is_removed_from_the_same_node(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await full_nodes(live, 8)
            delete, tried, removed = live.app.client.delete, [], []

            async def fails(kind: Any, name: str, *args: Any, **options: Any) -> Any:
                if name.startswith("low-"):
                    tried.append(name)
                    if len(tried) < 3 and name.endswith("-1"):
                        raise ServerError(500, "InternalError", "the database is away")
                    removed.append(name)
                return await delete(kind, name, *args, **options)

            live.app.client.delete = fails
            await live.pod("high", cpu="4", priorityClassName="high")
            node = await live.bound("high")
            assert sorted(removed) == [f"low-{node[1:]}-0", f"low-{node[1:]}-1"]
            assert {name[:-2] for name in tried} == {f"low-{node[1:]}"}

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_nobody_is_removed_for_whom_there_is_room_by_the_time_of_another_try(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await full_nodes(live, 1)
            await live.node("other", cpu="4", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
            delete, tried = live.app.client.delete, []

            async def storm(kind: Any, name: str, *args: Any, **options: Any) -> Any:
                if name.startswith("low-"):
                    tried.append(name)
                    if len(tried) == 1:
                        await live.client.patch(NODES, "other", {"spec": {"taints": None}})
                        while live.app.cache.cluster.tainted:
                            await asyncio.sleep(0.005)
                        raise ServerError(504, "Timeout", "timed out")
                return await delete(kind, name, *args, **options)

            live.app.client.delete = storm
            await live.pod("high", cpu="2", priorityClassName="high")
            assert await live.bound("high") == "other"
            for name in ("low-0-0", "low-0-1"):
                assert "deletionTimestamp" not in (await live.get(name))["metadata"]

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_pods_that_leave_for_one_preemptor_cost_nothing_to_another_and_are_asked_once(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await full_nodes(live, 6)
            delete, asked, answer = live.app.client.delete, [], asyncio.Event()

            async def slow(kind: Any, name: str, *args: Any, **options: Any) -> Any:
                if name.startswith("low-"):
                    asked.append(name)
                    await answer.wait()
                return await delete(kind, name, *args, **options)

            live.app.client.delete = slow
            await live.pod("high-1", cpu="3", priorityClassName="high")
            while len(asked) < 2:
                await asyncio.sleep(0.005)
            await live.pod("high-2", cpu="1", priorityClassName="high")
            await live.until("high-2", lambda pod: pod["status"].get("nominatedNodeName"))
            assert len(asked) == 2
            answer.set()
            assert await live.bound("high-1") == await live.bound("high-2")
            assert len(asked) == 2

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_room_that_was_made_for_a_pod_is_kept_while_its_binding_fails(scheduler: Any) -> None:
    """Else somebody less important takes it while the pod rests, and others have to leave for the same pod."""

    async def run() -> None:
        async with scheduler() as live:
            await full_nodes(live, 2)
            bind, delete, refused, asked = live.app.client.bind, live.app.client.delete, [], []

            async def once(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                if pod == "high" and not refused:
                    refused.append(node)
                    raise Forbidden(403, "Forbidden", "not yet")
                await bind(namespace, pod, node, uid=uid)

            async def counted(kind: Any, name: str, *args: Any, **options: Any) -> Any:
                asked.append(name)
                return await delete(kind, name, *args, **options)

            live.app.client.bind, live.app.client.delete = once, counted
            await live.pod("high", cpu="3", priorityClassName="high")
            while not refused:
                await asyncio.sleep(0.005)
            await live.pod("late", cpu="2")
            assert await live.bound("high") == refused[0]
            assert len(asked) == 2
            await live.refused("late")

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize("done", [True, False])
def test_a_victim_whose_deletion_was_not_answered_is_read_before_anything_is_sent_again(scheduler: Any, done: bool) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await full_nodes(live, 1)
            transport, sent = live.app.client.transport, []
            once = transport._once

            async def losing(method: str, target: str, *args: Any, **options: Any) -> Any:
                if "/pods/low-" not in target or method not in ("GET", "DELETE"):
                    return await once(method, target, *args, **options)
                first = not sent
                sent.append(method)
                if first and not done:
                    raise Lost("connection reset")
                answer = await once(method, target, *args, **options)
                if first:
                    raise Lost("connection reset")
                return answer

            transport._once = losing
            await live.pod("high", cpu="2", priorityClassName="high")
            assert await live.bound("high") == "n0"
            assert sent == (["DELETE", "GET"] if done else ["DELETE", "GET", "DELETE"])

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_each_attempt_is_about_the_pod_as_it_is_when_it_begins(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("plain", cpu="2")
            await live.node("better", cpu="64", memory="256Gi", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
            targets: list[str] = []

            async def fails(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                targets.append(node)
                if len(targets) == 1:
                    tolerations = {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}
                    await live.client.patch(PODS, "p", tolerations, "default")
                    while not live.app.queue.get(uid).pod.shape.tolerations:
                        await asyncio.sleep(0.005)
                raise Forbidden(403, "Forbidden", "not today")

            live.app.client.bind = fails
            await live.pod("p")
            while len(targets) < 3:
                await asyncio.sleep(0.01)
            assert targets == ["plain", "better", "better"]

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_pod_on_its_way_out_is_not_tried_again(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            targets: list[str] = []

            async def fails(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                targets.append(node)
                if pod != "p":
                    return
                await live.client.delete(PODS, "p", "default")
                while not live.app.queue.get(uid).pod.deleting:
                    await asyncio.sleep(0.005)
                raise Forbidden(403, "Forbidden", "not today")

            live.app.client.bind = fails
            pod = await live.pod("p", meta={"finalizers": ["example.com/keep"]})
            while not targets or live.app.queue.get(pod["metadata"]["uid"]) is not None:
                await asyncio.sleep(0.01)
            assert not live.app.cache.is_assumed(pod["metadata"]["uid"])
            assert targets == ["n"]
            told: list[str] = []
            live.app.reporter.event = lambda pod, kind, reason, note, action: told.append(note)
            for number in range(3):  # whatever happens to it until it is gone
                await live.client.patch(PODS, "p", {"metadata": {"labels": {"number": str(number)}}}, "default")
            while live.app.observer.pods.get("default/p").labels.get("number") != "2":
                await asyncio.sleep(0.005)
            await live.pod("next")
            await live.until("next", lambda pod: len(targets) == 2)
            assert not [note for note in told if "skip schedule deleting" in note]
            await live.client.patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("finalizers", [[], ["example.com/keep"]])
def test_nothing_is_told_of_a_pod_that_was_deleted_while_it_was_held(scheduler: Any, tmp_path: Path, finalizers: list[str]) -> None:
    """It keeps no room meanwhile, however long a finalizer keeps it."""

    async def run() -> None:
        file = tmp_path / "holds.py"
        file.write_text(
            "from roles.scheduler.framework.interfaces import Permit\nfrom roles.scheduler.framework.status import wait\n\n"
            "class Holds(Permit):\n    name = 'Holds'\n\n    def permit(self, ctx, slot):\n        return wait(60.0)\n"
        )
        plugins = {"permit": {"enabled": [{"name": "Holds"}]}}
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}
        async with scheduler(config, plugin_paths=(str(file),)) as live:
            await live.node("n")
            uid = (await live.pod("p", meta={"finalizers": finalizers}))["metadata"]["uid"]
            while live.app.waiting.get(uid) is None:
                await asyncio.sleep(0.005)
            told: list[str] = []
            live.app.reporter.event = lambda pod, kind, reason, note, action: told.append(reason)
            await live.client.delete(PODS, "p", "default", grace_period_seconds=0)
            while live.app.waiting.get(uid) is not None or live.app.cache.is_assumed(uid):
                await asyncio.sleep(0.005)
            assert told == []
            assert uid not in live.app.reporter._written
            assert uid not in live.app.reporter._pending
            assert live.app.engine.cluster.slot_of_pod(uid) < 0
            assert len(live.app.scheduler.placements) == 0
            if finalizers:
                await live.client.patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_plugin_that_lets_a_held_pod_go_sends_it_back_no_more(scheduler: Any, tmp_path: Path) -> None:
    async def run() -> None:
        file = tmp_path / "holds.py"
        file.write_text(
            "from roles.scheduler.framework.interfaces import Permit\nfrom roles.scheduler.framework.status import wait\n\n"
            "class Short(Permit):\n    name = 'Short'\n\n    def permit(self, ctx, slot):\n        return wait(600.0)\n\n"
            "class Long(Permit):\n    name = 'Long'\n\n    def permit(self, ctx, slot):\n        return wait(6000.0)\n"
        )
        plugins = {"permit": {"enabled": [{"name": "Short"}, {"name": "Long"}]}}
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}
        async with scheduler(config, plugin_paths=(str(file),)) as live:
            await live.node("n")
            uid = (await live.pod("p"))["metadata"]["uid"]
            await live.until("p", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            waiting, now = live.app.waiting, live.app._clock()
            waiting.allow(uid, "Short")
            assert waiting.expire(now + 1000.0) == 0
            waiting.allow(uid, "Long")
            assert await live.bound("p") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_pod_that_waits_with_a_node_shows_it_until_it_has_lost_it(scheduler: Any, tmp_path: Path) -> None:
    """So autoscalers add no node for it, and whoever leads next begins there."""

    async def run() -> None:
        file = tmp_path / "holds.py"
        file.write_text(
            "from roles.scheduler.framework.interfaces import Permit\nfrom roles.scheduler.framework.status import SUCCESS, wait\n\n"
            "class Holds(Permit):\n    name = 'Holds'\n\n    def permit(self, ctx, slot):\n"
            "        return wait(600.0) if ctx.pod.name == 'held' else SUCCESS\n"
        )
        plugins = {"permit": {"enabled": [{"name": "Holds"}]}}
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}
        async with scheduler(config, plugin_paths=(str(file),)) as live:
            await live.node("n")
            uid = (await live.pod("held"))["metadata"]["uid"]
            await live.until("held", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            assert not (await live.get("held"))["spec"].get("nodeName")
            await live.pod("quick")
            assert await live.bound("quick") == "n"
            assert "nominatedNodeName" not in (await live.get("quick"))["status"]
            live.app.waiting.reject(uid, "Holds", "not today")
            pod = await live.until("held", lambda pod: "nominatedNodeName" not in pod["status"] and pod["status"].get("conditions"))
            assert "not today" in pod["status"]["conditions"][0]["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_condition_on_its_way_lands_before_the_pod_is_bound(scheduler: Any) -> None:
    """Else a pod that is bound would be told afterwards that it was not scheduled."""

    async def run() -> None:
        async with scheduler() as live:
            await live.node("small", cpu="500m")
            patch, began, go_on = live.app.client.patch, asyncio.Event(), asyncio.Event()

            async def slow(kind: Any, name: str, body: Any, *args: Any, **options: Any) -> Any:
                if name == "p" and not go_on.is_set():
                    began.set()
                    await go_on.wait()
                return await patch(kind, name, body, *args, **options)

            live.app.reporter._client = type("Slow", (), {"patch": staticmethod(slow)})()
            uid = (await live.pod("p", cpu="1"))["metadata"]["uid"]
            await asyncio.wait_for(began.wait(), patience.seconds(5))
            await live.node("big", cpu="2")
            while live.app.scheduler.placements.get(uid) is None:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert not (await live.get("p"))["spec"].get("nodeName")
            go_on.set()
            assert await live.bound("p") == "big"
            pod = await live.get("p")
            assert {c["type"]: c["status"] for c in pod["status"]["conditions"]}["PodScheduled"] == "True"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_pod_that_another_replica_has_bound_is_not_told_that_it_was_not_scheduled(scheduler: Any) -> None:
    """A replica decides on its picture, and that may be older than the binding."""

    async def run() -> None:
        async with scheduler() as live:
            await live.node("small", cpu="500m")
            client, began, go_on = live.app.client, asyncio.Event(), asyncio.Event()

            class Slow:
                get = staticmethod(client.get)

                @staticmethod
                async def patch(*args: Any, **options: Any) -> Any:
                    began.set()
                    await go_on.wait()
                    return await client.patch(*args, **options)

            live.app.reporter._client = Slow()
            uid = (await live.pod("p", cpu="1"))["metadata"]["uid"]
            await asyncio.wait_for(began.wait(), patience.seconds(5))
            await live.client.bind("default", "p", "small")
            go_on.set()
            await live.app.reporter.quiet(uid)
            conditions = {c["type"]: c["status"] for c in (await live.get("p"))["status"]["conditions"]}
            assert conditions["PodScheduled"] == "True"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_condition_is_written_although_the_pod_has_changed(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("small", cpu="500m")
            patch = live.app.client.patch

            async def late(kind: Any, name: str, body: Any, *args: Any, **options: Any) -> Any:
                if kind is PODS and "conditions" in body["status"] and not changed:
                    changed.append(await patch(PODS, name, {"metadata": {"labels": {"new": "yes"}}}, "default"))
                return await patch(kind, name, body, *args, **options)

            changed: list[Any] = []
            live.app.client.patch = late
            await live.pod("p", cpu="1")
            assert (await live.refused("p"))["reason"] == "Unschedulable"
            assert changed

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-04")
def test_nobody_makes_room_while_nothing_is_heard_of_nodes(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await full_nodes(live, 1)
            monkeypatch.setattr(live.app.informers, "age", lambda *kinds: 40.0)
            await live.pod("high", cpu="4", priorityClassName="high")
            await live.refused("high")
            await live.pod("small", cpu="0")
            assert await live.bound("small") == "n0", "others go on"
            for number in range(2):
                assert not (await live.get(f"low-0-{number}"))["metadata"].get("deletionTimestamp")
            monkeypatch.undo()
            assert await live.bound("high") == "n0"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_the_end_of_its_victims_brings_a_preemptor_back_without_a_rest(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="2")
            await live.pod("low", cpu="2", meta={"finalizers": ["example.com/keep"]})
            await live.bound("low")
            from koord.api.kinds import PRIORITYCLASSES

            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            await live.client.create(PRIORITYCLASSES, body)
            uid = (await live.pod("high", cpu="2", priorityClassName="high"))["metadata"]["uid"]
            await live.until("low", lambda pod: pod["metadata"].get("deletionTimestamp"))
            while not live.app.engine.state.evictions.awaited(uid):
                await asyncio.sleep(0.005)
            entry = live.app.queue.get(uid)
            for name in ("a", "b"):  # it is tried in vain, and rests
                attempts = entry.attempts
                await live.node(name, cpu="1")
                while entry.attempts == attempts:
                    live.app.queue.activate((entry.pod,), live.app._clock())
                    live.app.scheduler.wake()
                    await asyncio.sleep(0.01)
            entry.ready_at = live.app._clock() + 60.0
            await live.client.patch(PODS, "low", {"metadata": {"finalizers": None}}, "default")
            await live.client.delete(PODS, "low", "default", grace_period_seconds=0)
            assert await live.bound("high") == "n"
            assert not len(live.app.engine.state.evictions)

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
def test_a_pod_rests_no_longer_because_the_machines_clock_was_set_back(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            uid = (await live.pod("p", cpu="4"))["metadata"]["uid"]
            for number in range(2):
                await live.node(f"small-{number}", cpu="500m")
                await live.refused("p")
                while live.app.queue.get(uid).failures <= number:
                    await asyncio.sleep(0.005)
            machine = live.app._clock._time
            wall = machine._wall
            machine._wall = lambda: wall() - 3600.0
            await live.node("big", cpu="8")
            assert await live.bound("p") == "big"

    asyncio.run(run())
