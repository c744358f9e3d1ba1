"""A plugin with defects off the main points: in its columns, feeds and background work, and in steps beside filters and scores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import CONFIGMAPS, PODS
from roles.scheduler import testing
from roles.scheduler.cluster.audit import recount
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.hypothesis import Hypothesis

#: Steps that are asked for each pod, in each of which the plugin raises for one pod; the first ones cost the pod its attempt.
COSTLY = (
    "sized", "pod_added", "shape_key", "before_pre_filter", "after_pre_filter", "find_one_node", "find_in_steps", "filter_stamp",
    "score_stamp", "normalizer_of", "prefer_nodes", "restored_rows", "resize", "waits", "apply",
)  # fmt: skip
HARMLESS = ("pod_seen", "placed", "pod_replaced", "job_of")

PLUGIN = """
import asyncio

from koord.api.kinds import CONFIGMAPS
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.events import Action, Subscription
from roles.scheduler.framework.status import SKIP, SUCCESS, unschedulable


def trip(pod, step):
    if pod.name == "bad-" + step.replace("_", "-"):
        raise ValueError("a defect in " + step)


class Follows(Columns):
    def node_set(self, slot, old, new):
        if new.name == "bad":
            raise ValueError("a defect in node_set")

    node_removed = lambda self, slot, old: self.node_set(slot, None, old)

    def sized(self, slot, pod):
        trip(pod, "sized")
        return pod

    pod_added = lambda self, slot, pod: trip(pod, "pod_added")
    pod_removed = lambda self, slot, pod: trip(pod, "pod_added")
    pod_replaced = lambda self, slot, old, new: trip(new, "pod_replaced")


class Faulty(api.PreFilter, api.Filter, api.Score, api.PreBind, api.PreBindPatch, api.PodObserver, api.NextPod, api.Transformer,
             api.FindOneNode, api.PreferNodes, api.Restorer, api.ResizePod, api.Controllers):
    name = "Faulty"

    def __init__(self, args, handle):
        super().__init__(args, handle)
        handle.cluster.register("faulty", Follows())
        self.broken_work = 0
        self.open = False

    def subscriptions(self):
        return (Subscription("ConfigMap", Action.ALL),)

    def feeds(self):
        return (api.Feed(CONFIGMAPS, dict, self.observe),)

    def observe(self, old, new):
        if new is not None and new["metadata"]["name"] == "opens":
            self.open = True
            raise ValueError("a defect in observe")

    def controllers(self):
        async def ends():
            self.broken_work += 1
            await asyncio.sleep(0.05)
            raise ValueError("a defect in a controller")

        return (("ends", ends),)

    def shape_key(self, pod):
        trip(pod, "shape_key")
        return pod.name

    def placed(self, ctx, slot):
        trip(ctx.pod, "placed")
        return ()

    def pod_seen(self, pod):
        trip(pod, "pod_seen")

    def pod_gone(self, uid):
        raise ValueError("a defect in pod_gone")

    def job_of(self, pod):
        trip(pod, "job_of")

    def next_pod(self):
        if self.broken_work == 1:
            self.broken_work = 2
            return self.work()
        if self.broken_work == 2:
            self.broken_work = 3
            raise ValueError("a defect in next_pod")
        return None

    def work(self):
        yield
        raise ValueError("a defect in the work of next_pod")

    def before_pre_filter(self, ctx):
        trip(ctx.pod, "before_pre_filter")
        return SUCCESS, None

    def after_pre_filter(self, ctx):
        trip(ctx.pod, "after_pre_filter")
        return SUCCESS

    def pre_filter(self, ctx):
        return SUCCESS

    def find_one_node(self, ctx, candidates):
        trip(ctx.pod, "find_one_node")
        return self.find(ctx)

    def find(self, ctx):
        yield
        trip(ctx.pod, "find_in_steps")
        return SKIP, ""

    def filter(self, ctx, rows):
        closed = ctx.pod.name == "waits-for-a-change" and not self.open
        return ctx.cluster.zeros[rows] == 0.0 if closed else None

    def filter_stamp(self, ctx):
        trip(ctx.pod, "filter_stamp")
        return self.open

    def rejection(self, ctx, code):
        return api.Rejection(("closed",))

    def score(self, ctx, rows):
        return 0.0

    def score_stamp(self, ctx):
        trip(ctx.pod, "score_stamp")
        return None

    def normalizer_of(self, ctx):
        trip(ctx.pod, "normalizer_of")
        return None

    def prefer_nodes(self, ctx, candidates):
        trip(ctx.pod, "prefer_nodes")
        return SKIP, ()

    def connect(self, filters):
        pass

    def restored_rows(self, ctx):
        trip(ctx.pod, "restored_rows")
        return {}

    def restored_row(self, ctx, slot):
        return ()

    def nominate(self, ctx, slot):
        return None

    def resize(self, ctx, slot):
        trip(ctx.pod, "resize")

    def waits(self, ctx):
        trip(ctx.pod, "waits")
        return False

    async def pre_bind(self, ctx, node, draft):
        draft.annotations["example.com/x"] = "y"
        return SUCCESS

    async def apply(self, ctx, node, draft):
        trip(ctx.pod, "apply")
        return SUCCESS
"""


def name_of(step: str) -> str:
    return f"bad-{step.replace('_', '-')}"


@pytest.mark.feature("SCH-FW-06")
def test_whatever_else_a_plugin_does_wrong_costs_one_pod_an_attempt_and_nobody_else_anything(scheduler: Any, tmp_path: Path) -> None:
    async def run() -> None:
        file = tmp_path / "faulty.py"
        file.write_text(PLUGIN)
        plugins = {point: {"enabled": [{"name": "Faulty"}]} for point in ("preFilter", "filter", "score", "preBind")}
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}
        async with scheduler(config, plugin_paths=(str(file),), binders=2, gates={"ResizePod": True}) as live:
            failed, untold = live.app.reporter.failed, [name_of("before_pre_filter")]

            def tells(pod: Any, *args: Any, **more: Any) -> None:
                if pod.name in untold:
                    untold.remove(pod.name)
                    raise ValueError("a defect in what tells of failures")
                failed(pod, *args, **more)

            live.app.reporter.failed = tells
            await live.node("n", cpu="64")
            await live.node("bad", cpu="1")
            await live.pod("waits-for-a-change", cpu="100m")
            for step in (*COSTLY, *HARMLESS):
                await live.pod(name_of(step), cpu="100m")
            await live.pod("good", cpu="100m")
            assert await live.bound("good") in ("n", "bad")
            for step in COSTLY:
                condition = await live.refused(name_of(step))
                assert condition["reason"] == "SchedulerError", step
                assert f"ValueError: a defect in {step}" in condition["message"]
                assert ("columns Follows" if step in COSTLY[:2] else "plugin Faulty") in condition["message"], condition["message"]
            for step in HARMLESS:
                assert await live.bound(name_of(step))
            await live.refused("waits-for-a-change")
            await live.client.create(CONFIGMAPS, {"metadata": {"name": "opens"}}, "default")
            assert await live.bound("waits-for-a-change")  # the event counts although the plugin failed to take it over
            plugin = live.app.engine.frameworks["koord-scheduler"].plugins["Faulty"]
            while plugin.broken_work < 3:
                await asyncio.sleep(0.01)
            for step in COSTLY[:3]:
                await live.client.delete(PODS, name_of(step), "default", grace_period_seconds=0)
            await live.pod("later", cpu="100m")
            assert await live.bound("later")
            assert not live.running.done()
            assert not untold
            assert live.ops.health.report("healthz")[0]

    asyncio.run(run())


EXPLAINING = """
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.status import SUCCESS, unschedulable


class Explaining(api.Filter, api.Permit, api.NextPod):
    name = "Explaining"

    def shape_key(self, pod):
        return pod.name

    def filter(self, ctx, rows):
        return ctx.cluster.zeros[rows] == 0.0 if ctx.pod.name != "bad-permit" else None

    def permit(self, ctx, slot):
        return unschedulable("not now")

    def next_pod(self):
        return None

    def _raise(self, step, pod):
        if pod.name == "bad-" + step:
            raise ValueError("a defect in " + step)

    def wording(self, pod, message):
        raise ValueError("a defect in wording")

    def rejection(self, ctx, code):
        self._raise("rejection", ctx.pod)
        return api.Rejection(("no",))

    def refine(self, ctx, slots, codes):
        self._raise("refine", ctx.pod)
        return codes

    def tally(self, ctx):
        self._raise("tally", ctx.pod)
        return None

    def explain(self, ctx):
        self._raise("explain", ctx.pod)
        return ()
"""


@pytest.mark.feature("SCH-FW-06")
def test_a_plugin_that_cannot_explain_a_refusal_leaves_nobody_without_one(scheduler: Any, tmp_path: Path) -> None:
    async def run() -> None:
        file = tmp_path / "explaining.py"
        file.write_text(EXPLAINING)
        plugins = {point: {"enabled": [{"name": "Explaining"}]} for point in ("filter", "permit")}
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}
        async with scheduler(config, plugin_paths=(str(file),)) as live:
            await live.node("n", cpu="64")
            steps = ("rejection", "refine", "tally", "explain")
            for step in (*steps, "permit", "wording"):
                await live.pod(f"bad-{step}", cpu="100m")
            for step in steps:
                assert f"plugin Explaining ({step}): ValueError: a defect in {step}" in (await live.refused(f"bad-{step}"))["message"]
            assert (await live.refused("bad-permit"))["message"] == "not now"
            assert "0/1 nodes are available: 1 no." in (await live.refused("bad-wording"))["message"]
            assert not live.running.done()

    asyncio.run(run())


class Sums(Columns):
    """CPU of the pods on each node, counted by its own hooks."""

    def attach(self, cluster: Any) -> None:
        self.cpu = dict.fromkeys(range(cluster.capacity), 0)

    def pod_added(self, slot: int, pod: Any) -> None:
        self.cpu[slot] += pod.shape.amounts["cpu"]

    def pod_removed(self, slot: int, pod: Any) -> None:
        self.cpu[slot] -= pod.shape.amounts["cpu"]


class Trips(Columns):
    """Raises for some pods, whichever way they go."""

    def pod_added(self, slot: int, pod: Any) -> None:
        if "bad" in pod.name:
            raise KeyError(pod.name)

    pod_removed = pod_added
    pod_replaced = lambda self, slot, old, new: self.pod_added(slot, new)  # noqa: E731


class Stopping(Columns):
    """Is interrupted where a pod is taken off, and counts quiet what-ifs that are open."""

    quiet = 0

    def pod_removed(self, slot: int, pod: Any) -> None:
        raise KeyboardInterrupt

    def quiet_begins(self) -> None:
        self.quiet += 1

    def quiet_ends(self) -> None:
        self.quiet -= 1


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("quiet", [True, False])
def test_a_what_if_is_over_also_when_undoing_it_is_interrupted(quiet: bool) -> None:
    made = testing.World()
    stopping = made.cluster.register("stopping", Stopping())
    made.add_nodes(testing.node("n", cpu="8"), testing.node("goes", cpu="8"))

    def interrupted() -> None:
        with Hypothesis(made.cluster, quiet=quiet) as what_if:
            what_if.add(made.parser.parse(testing.pod(cpu="1")), made.cluster.slot_of("n"))
            made.cluster.remove_node("goes")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (made.cluster.supposing, stopping.quiet, made.cluster.slot_of("goes")) == (0, 0, -1)


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("first", [True, False])
def test_columns_that_raise_keep_the_others_and_what_ifs_right(first: bool) -> None:
    made = testing.World(strict=False)
    sums = Sums()
    for name, columns in (("a", Trips()), ("b", sums)) if first else (("b", sums), ("a", Trips())):
        made.cluster.register(name, columns)
    made.add_nodes(testing.node("n", cpu="8"), testing.node("m", cpu="8"))
    n, m = made.cluster.slot_of("n"), made.cluster.slot_of("m")
    pods = [made.parser.parse(testing.pod(name, cpu="1")) for name in ("good", "bad-1", "bad-2")]

    def books() -> tuple[Any, ...]:
        return [(made.cluster.slot_of_pod(pod.uid)) for pod in pods], sums.cpu[n], sums.cpu[m], made.cluster.free[0][[n, m]].tolist()

    for pod in pods:
        made.cluster.add_pod(pod, "n")
    before = books()
    assert before[1:] == (3000, 0, [5000.0, 8000.0])
    for quiet in (True, False):
        with Hypothesis(made.cluster, quiet=quiet) as what_if:
            for pod in pods:
                assert what_if.remove(pod.uid) is pod
            what_if.add(pods[1], m)
            assert books()[1:] == (0, 1000, [8000.0, 7000.0])
        assert books() == before
    made.cluster.add_pod(pods[1], "m")  # it is seen elsewhere
    assert books()[1:] == (2000, 1000, [6000.0, 7000.0])
    for pod in pods:
        made.cluster.remove_pod(pod.uid)
    assert books()[1:] == (0, 0, [8000.0, 8000.0])
    assert recount(made.cluster) == []
