"""Gangs through the scheduler's door: PodGroups and pods in the API server in, bindings, conditions and annotations out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import msgspec
import pytest

from koord.api.kinds import NODES, PODGROUPS, PODS
from koord.api.names import (
    ANNOTATION_BIND_GANG_GROUP_ID,
    ANNOTATION_BIND_GANG_MEMBER_COUNT,
    LABEL_POD_GROUP,
    LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED,
    LABEL_POD_GROUP_NAME_DEPRECATED,
)
from koord.api.objects import PodGroup
from roles.scheduler import testing
from roles.scheduler.plugins.coscheduling.cache import GangCache, Group, Round
from roles.scheduler.plugins.coscheduling.spec import Defaults
from tests.support import patience

from .conftest import GANG, condition, profile


@pytest.mark.feature("SCH-GANG-01")
@pytest.mark.feature("SCH-GANG-05")
def test_members_wait_for_the_pod_group_and_for_each_other(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.member("a0", "late", annotations={GANG + "name": "late", GANG + "min-available": "1"})
            await g.live.pod("plain")
            await g.live.bound("plain")
            assert g.live.app.queue.counts()["gated"] == 1
            await g.group("late", 2)
            await g.said("a0", "default/late has 1 of 2 pods")
            await g.member("a1", "late")
            assert await g.bound("a0", "a1") == {"a0": "n0", "a1": "n0"}

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-01")
@pytest.mark.feature("SCH-GANG-02")
def test_pods_describe_their_gang_by_annotations_or_by_lightweight_labels(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.annotated("a0", "self", "two")  # no number: the next pod may say what the gang is
            await g.annotated("a1", "self", "2", waiting_time="30s", mode="NonStrict", total_number="1")
            labels = {LABEL_POD_GROUP_NAME_DEPRECATED: "light", LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED: "2"}
            for name in ("l0", "l1"):
                await g.live.pod(name, meta={"labels": labels})
            await g.bound("a0", "a1", "l0", "l1")
            spec = g.plugin.cache.gangs["default/self"].spec
            assert (spec.min_number, spec.total, spec.mode, spec.wait_time) == (2, 2, "NonStrict", 30.0)

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-06")
@pytest.mark.feature("SCH-GANG-07")
@pytest.mark.feature("SCH-GANG-10")
def test_a_strict_gang_that_does_not_fit_holds_nothing_and_says_why_on_every_member(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            await g.group("crowd", 5)
            for number in range(5):
                await g.member(f"c{number}", "crowd", cpu="3")
            for number in range(5):
                await g.said(f"c{number}", "Insufficient cpu")
            await g.quiet()
            assert not any((await g.nodes_of()).values())
            # Nobody keeps a place: there is room for somebody else.
            await g.live.pod("other", cpu="4")
            assert await g.live.bound("other") == "n0"
            assert "1 member(s) wait for it" in condition(await g.live.get("c4"))["message"]

    asyncio.run(run())


async def count_writes(g: Any) -> Counter[str]:
    """Writes of statuses from now on, by object; rests are short, as nobody wants to wait for them here."""
    patch, told = g.live.app.client.patch, Counter[str]()

    async def counted(kind: Any, name: str, *args: Any, **options: Any) -> Any:
        if options.get("subresource") == "status":
            told[name] += 1
        return await patch(kind, name, *args, **options)

    g.live.app.client.patch = counted
    g.live.app.queue._initial_backoff = g.live.app.queue._max_backoff = 0.01
    return told


async def written(g: Any) -> None:
    """Nothing more is tried or told."""
    app = g.live.app

    def busy() -> bool:
        counts = app.queue.counts()
        tried = counts["active"] or counts["backoff"] or g.plugin.cache.round or counts["in-flight"] > len(app.waiting)
        return bool(tried or app.reporter._pending or app.reporter._writing)

    while busy():
        await asyncio.sleep(0.005)


async def begin(g: Any, *members: str) -> None:
    """Tries of a refused gang, each begun by another member; those with a place begin none."""
    for name in members:
        begins = next(entry for entry in g.live.app.queue.entries() if entry.pod.name == name)
        if begins.state == "in-flight":
            continue
        g.plugin.cache.gang_of(begins.pod).group.representative = ""
        before = begins.attempts
        g.live.app.queue.activate((begins.pod,), g.live.app._clock())
        g.live.app.scheduler.wake()
        while begins.attempts == before:
            await asyncio.sleep(0.005)
        await written(g)


@pytest.mark.feature("SCH-GANG-10")
@pytest.mark.parametrize("cpus", ["33333", "32311", "12333"])
def test_each_member_of_an_unchanged_refused_gang_is_told_once(gangs: Any, cpus: str) -> None:
    async def run() -> None:
        async with gangs(nodes=("4", "4")) as g:
            told = await count_writes(g)
            await g.group("crowd", 5)
            for number, cpu in enumerate(cpus):
                await g.member(f"c{number}", "crowd", cpu=cpu)
            for number in range(5):
                await g.said(f"c{number}", "Insufficient cpu")
            await written(g)
            assert told.keys() >= {f"c{number}" for number in range(5)}
            told.clear()
            await begin(g, "c0", "c1", "c2", "c3", "c4", "c0")
            assert not told

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-10")
def test_a_reason_that_is_met_no_more_is_not_shown_for_good() -> None:
    group = Group("default/g")

    def shown(why: str) -> str:
        group.refused(f"gang: {why}", "first", why)
        return group.wording("second", f"gang: {why}")

    assert [shown(why) for why in ("cpu", "disk", "cpu", "disk", "cpu")] == ["gang: cpu", *4 * ["gang: disk"]]
    told = [shown("cpu") for _ in range(40)]
    assert told[10] == "gang: disk"
    assert told[-1] == group.shown == "gang: cpu"
    assert shown("disk") == "gang: disk", "it is news again"
    group.refused("")
    assert group.wording("second", "alone") == "alone"


@pytest.mark.feature("SCH-GANG-10")
@pytest.mark.parametrize("mode", ["Strict", "NonStrict"])
def test_members_refused_for_different_reasons_are_told_each_once_whoever_comes_first(gangs: Any, mode: str) -> None:
    async def run() -> None:
        async with gangs(nodes=("4", "4")) as g:
            told = await count_writes(g)
            await g.group("crowd", 5, annotations={"mode": mode})
            for number, spec in enumerate(({"cpu": "3"}, {"cpu": "3"}, {"cpu": "9"}, {"nodeSelector": {"no": "where"}}, {"cpu": "2"})):
                await g.member(f"c{number}", "crowd", **spec)
            await g.said("c2", "nodes are available")
            await begin(g, "c2", "c3", "c4", "c2", "c3", "c4")
            told.clear()
            for _ in range(4):
                await begin(g, "c4", "c3", "c2")
            assert not told

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-06")
def test_a_gang_that_failed_is_tried_again_when_room_comes(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            await g.group("two", 2)
            for number in range(2):
                await g.member(f"p{number}", "two", cpu="3")
            await g.said("p0", "Insufficient cpu")
            await g.quiet()
            await g.live.node("later", cpu="4")
            found = await g.bound("p0", "p1")
            assert sorted(found.values()) == ["later", "n0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-07")
def test_members_of_a_loose_gang_keep_their_places_until_their_time_is_over(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            await g.group("loose", 2, annotations={"mode": "NonStrict"}, scheduleTimeoutSeconds=600)
            for number in range(2):
                await g.member(f"p{number}", "loose", cpu="3")
            for _ in patience.tries(400):
                if len(g.live.app.waiting) == 1 and g.live.app.queue.counts()["unschedulable"] == 1:
                    break
                await asyncio.sleep(0.02)
            await g.live.pod("other", cpu="2")
            await g.live.refused("other")
            await g.live.node("later", cpu="4")
            assert sorted((await g.bound("p0", "p1")).values()) == ["later", "n0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-07")
def test_a_loose_member_whose_time_is_over_gives_its_place_back(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            await g.group("loose", 2, annotations={"mode": "NonStrict"}, scheduleTimeoutSeconds=1)
            for number in range(2):
                await g.member(f"p{number}", "loose", cpu="3")
            await g.live.pod("other", cpu="2")
            assert await g.live.bound("other") == "n0"

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-03")
def test_gangs_of_a_group_go_together(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("3",)) as g:
            both = {"groups": ["default/ps", "default/worker"]}
            await g.group("ps", 1, annotations=both)
            await g.group("worker", 2, annotations=both)
            await g.member("ps-0", "ps")
            await g.said("ps-0", "default/worker has 0 of 2 pods")
            await g.member("worker-0", "worker")
            await g.member("worker-1", "worker", cpu="2")
            # The whole group needs 4 CPUs: nobody is bound while there are 3.
            await g.said("ps-0", "Insufficient cpu")
            await g.quiet()
            assert not any((await g.nodes_of()).values())
            await g.live.node("more", cpu="2")
            await g.bound("ps-0", "worker-0", "worker-1")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-04")
@pytest.mark.parametrize(("policy", "goes"), [("once-satisfied", True), ("waiting-and-running", True), ("only-waiting", False)])
def test_what_counts_when_a_member_comes_later(gangs: Any, policy: str, goes: bool) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("gang", 2, annotations={"match-policy": policy})
            await g.member("p0", "gang")
            await g.member("p1", "gang")
            await g.bound("p0", "p1")
            await g.member("late", "gang")
            if goes:
                assert await g.live.bound("late") == "n0"
            else:
                await g.said("late", "1 member(s) found nodes, 2 are needed together")
                await g.member("later", "gang")
                await g.bound("late", "later")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-02")
def test_an_unknown_policy_is_taken_for_the_configured_one(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",), defaultMatchPolicy="only-waiting") as g:
            await g.group("gang", 2, annotations={"match-policy": "sometimes"})
            await g.member("p0", "gang")
            await g.member("p1", "gang")
            await g.bound("p0", "p1")
            await g.member("late", "gang")
            await g.said("late", "1 member(s) found nodes, 2 are needed together")
            assert "'sometimes' is not known: only-waiting holds" in (await g.event("gang", "InvalidGang"))["note"]

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-04")
def test_a_replacement_needs_the_minimum_again_where_running_members_count(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("gang", 3, annotations={"match-policy": "waiting-and-running"})
            for number in range(3):
                await g.member(f"p{number}", "gang")
            await g.bound("p0", "p1", "p2")
            for name in ("p0", "p1"):
                await g.client.delete(PODS, name, "default", grace_period_seconds=0)
            await g.member("r0", "gang")
            await g.said("r0", "default/gang has 2 of 3 pods")
            await g.member("r1", "gang")
            await g.bound("r0", "r1")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-08")
def test_bound_members_tell_with_whom_they_were_let_go(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("gang", 2, annotations={"groups": ["default/gang"]})
            await g.member("p0", "gang")
            await g.member("p1", "gang")
            await g.bound("p0", "p1")
            for name in ("p0", "p1"):
                notes = (await g.live.get(name))["metadata"]["annotations"]
                assert notes[ANNOTATION_BIND_GANG_GROUP_ID] == "default/gang"
                assert notes[ANNOTATION_BIND_GANG_MEMBER_COUNT] == "2"
                assert notes["scheduling.koordinator.sh/bind-gang-group-id"] == "default/gang"
                assert notes["scheduling.koordinator.sh/bind-gang-member-count"] == "2"
            stale = {ANNOTATION_BIND_GANG_GROUP_ID: "old", ANNOTATION_BIND_GANG_MEMBER_COUNT: "9"}
            await g.live.pod("copy", meta={"annotations": stale})
            await g.live.bound("copy")
            assert not (await g.live.get("copy"))["metadata"].get("annotations")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-08")
@pytest.mark.parametrize("policy", ["once-satisfied", "waiting-and-running"])
def test_a_later_member_does_not_count_to_those_that_were_let_go_before(gangs: Any, policy: str) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            members = [f"p{number}" for number in range(5)]
            for name in members:
                await g.member(name, "gang")
            await g.group("gang", 3, annotations={"match-policy": policy})
            await g.bound(*members)
            notes = [(await g.live.get(name))["metadata"].get("annotations") or {} for name in members]
            counts = [(found.get(ANNOTATION_BIND_GANG_MEMBER_COUNT), found.get(ANNOTATION_BIND_GANG_GROUP_ID)) for found in notes]
            assert sorted(counts, key=str) == [("3", "default/gang")] * 3 + [(None, None)] * 2

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-05")
def test_one_pod_of_a_gang_is_in_the_queue_and_another_takes_over(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("1",)) as g:
            await g.group("gang", 3)
            for number in range(4):
                await g.member(f"p{number}", "gang", cpu="2")
            for number in range(4):
                await g.said(f"p{number}", "Insufficient cpu")
            await g.quiet()
            said = {name: condition(await g.live.get(name))["message"] for name in ("p0", "p1", "p2", "p3")}
            failed = next(name for name, message in said.items() if message.startswith("0/1"))
            await g.client.delete(PODS, failed, "default", grace_period_seconds=0)
            for number in range(3):
                await g.live.node(f"big{number}", cpu="2")
            left = [name for name in ("p0", "p1", "p2", "p3") if name != failed]
            await g.bound(*left)

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-05")
def test_a_member_with_scheduling_gates_does_not_count_until_they_are_gone(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("gang", 2)
            await g.member("p0", "gang")
            await g.member("p1", "gang", schedulingGates=[{"name": "example.com/wait"}])
            await g.said("p0", "default/gang has 1 of 2 pods")
            await g.client.patch(PODS, "p1", [{"op": "remove", "path": "/spec/schedulingGates"}], "default", type="json")
            await g.bound("p0", "p1")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-03")
def test_gangs_are_shown(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g, aiohttp.ClientSession() as session:
            await g.group("gang", 2, annotations={"mode": "NonStrict"})
            await g.member("p0", "gang")
            await g.member("p1", "gang")
            await g.bound("p0", "p1")
            await g.annotated("solo", "alone", "2")
            base = f"{g.live.ops.url}/apis/v1/plugins/Coscheduling"
            shown = await (await session.get(f"{base}/gang/default/gang")).json()
            assert shown["name"] == "default/gang"
            assert shown["mode"] == "NonStrict"
            assert shown["waitTime"] == 600 * 10**9
            assert set(shown["boundChildren"]) == set(shown["children"]) == {"default/p0", "default/p1"}
            assert shown["onceResourceSatisfied"] is True
            assert shown["gangFrom"] == "GangFromPodGroupCrd"
            everything = await (await session.get(f"{base}/gangs")).json()
            assert everything["default/alone"]["gangFrom"] == "GangFromPodAnnotation"
            assert (await session.get(f"{base}/gang/default/none")).status == 404

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-01")
def test_a_gang_whose_pod_group_goes_finds_none_until_it_is_there_again(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("1",)) as g:
            await g.group("gang", 2)
            await g.member("p0", "gang")
            await g.said("p0", "has 1 of 2 pods")
            await g.client.delete(PODGROUPS, "gang", "default")
            await g.said("p0", "have no PodGroup")
            await g.group("gang", 1)
            await g.live.bound("p0")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-01")
def test_members_that_are_on_their_way_out_do_not_count_for_a_pod_group_that_is_made_anew(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("gang", 2)
            await g.member("p0", "gang")
            await g.member("p1", "gang")
            await g.bound("p0", "p1")
            await g.client.delete(PODGROUPS, "gang", "default")
            for name in ("p0", "p1"):
                await g.client.delete(PODS, name, "default", grace_period_seconds=30)
            await g.group("gang", 2)
            await g.member("r0", "gang")
            await g.said("r0", "1 member(s) found nodes, 2 are needed together")
            await g.member("r1", "gang")
            await g.bound("r0", "r1")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-01")
def test_a_pod_group_in_the_place_of_another_is_a_gang_of_its_own() -> None:
    """A watch that is interrupted tells of the new one only."""
    cache, parser = GangCache(Defaults()), testing.World().parser
    old, new = (
        msgspec.convert({"metadata": {"name": "gang", "namespace": "default", "uid": uid}, "spec": {"minMember": 1}}, PodGroup)
        for uid in ("old", "new")
    )
    cache.pod_group_event(None, old)
    cache.pod_seen(parser.parse(testing.pod("p0", uid="p0", node="n0", labels={LABEL_POD_GROUP: "gang"})))
    cache.pod_gone("p0")
    assert cache.satisfied(cache.gangs["default/gang"])
    cache.pod_group_event(old, new)
    assert not cache.satisfied(cache.gangs["default/gang"])


@pytest.mark.feature("SCH-GANG-04")
@pytest.mark.parametrize(("policy", "lacking"), [("once-satisfied", 0), ("only-waiting", 2), ("waiting-and-running", 1)])
def test_how_many_a_gang_lacks_follows_its_policy_once_its_group_came_about(policy: str, lacking: int) -> None:
    cache, parser = GangCache(Defaults()), testing.World().parser
    meta = {"name": "gang", "namespace": "default", "annotations": {GANG + "match-policy": policy}}
    cache.pod_group_event(None, msgspec.convert({"metadata": meta, "spec": {"minMember": 2}}, PodGroup))
    for number, node in enumerate(("n0", "")):
        cache.pod_seen(parser.parse(testing.pod(f"p{number}", uid=f"p{number}", node=node, labels={LABEL_POD_GROUP: "gang"})))
    gang = cache.gangs["default/gang"]
    assert gang.spec is not None
    gang.group.once_satisfied = True
    assert (gang.lacking(gang.spec), gang.valid()) == (lacking, lacking == 0)


@pytest.mark.feature("SCH-GANG-01")
def test_a_gang_that_ends_in_the_middle_of_its_wait_gives_its_places_back(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            await g.group("loose", 2, annotations={"mode": "NonStrict"})
            await g.member("small", "loose", cpu="1")
            await g.member("big", "loose", cpu="4")
            record: Any = None
            for _ in patience.tries(400):
                found = g.live.app.scheduler._recorder.ring.find("PodGroup", "default", "loose")
                if found and len(g.live.app.waiting) == 1:
                    record = found[-1]
                    break
                await asyncio.sleep(0.02)
            terms = {term.name: term.value for term in record.terms}
            # Whichever came first, one of the two has room.
            assert terms["best achievable"] == 1
            for name in ("small", "big"):
                await g.client.delete(PODS, name, "default", grace_period_seconds=0)
            await g.live.pod("other", cpu="4")
            assert await g.live.bound("other") == "n0"

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-04")
@pytest.mark.parametrize(
    "how",
    ["fewer are needed", "the group goes", "the members leave it", "annotated members leave it", "its mode is strict now", "the node goes"],
)
def test_members_that_wait_follow_what_becomes_of_their_gang(gangs: Any, how: str) -> None:
    async def run() -> None:
        async with gangs(nodes=("2",)) as g:
            if "annotated" not in how:
                await g.group("loose", 3, annotations={"mode": "NonStrict"})
            names = ("p0", "p1", "p2")
            for name in names:
                await (g.annotated(name, "loose", "3", mode="NonStrict") if "annotated" in how else g.member(name, "loose"))
            await g.live.pod("other", cpu="2")
            await g.live.refused("other")
            for _ in patience.tries(400):
                held = [waiting.pod.name for waiting in g.live.app.waiting.all()]
                if len(held) == 2:
                    break
                await asyncio.sleep(0.02)
            if how == "fewer are needed":
                await g.client.patch(PODGROUPS, "loose", {"spec": {"minMember": 2}}, "default")
                await g.bound(*held)
            elif how == "the group goes":
                await g.client.delete(PODGROUPS, "loose", "default")
                await g.bound("other")
            elif "members leave it" in how:
                for name in ("other", *(name for name in names if name not in held)):
                    await g.client.delete(PODS, name, "default", grace_period_seconds=0)
                left = {"annotations": {GANG + "name": None}} if "annotated" in how else {"labels": {LABEL_POD_GROUP: None}}
                for name in held:
                    await g.client.patch(PODS, name, {"metadata": left}, "default")
                await g.bound(*held)
            elif how == "its mode is strict now":
                await g.client.patch(PODGROUPS, "loose", {"metadata": {"annotations": {GANG + "mode": "Strict"}}}, "default")
                await g.bound("other")
            else:
                await g.client.delete(NODES, "n0")
                await g.live.node("n1", cpu="5")
                assert set((await g.bound(*names, "other")).values()) == {"n1"}

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-05")
def test_a_strict_gang_that_found_no_room_is_tried_again_when_it_needs_fewer(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("2",)) as g:
            await g.group("strict", 3)
            for number in range(3):
                await g.member(f"p{number}", "strict")
            await g.said("p0", "Insufficient cpu")
            await g.quiet()
            await g.client.patch(PODGROUPS, "strict", {"spec": {"minMember": 2}}, "default")
            for _ in patience.tries(400):
                if sum(1 for node in (await g.nodes_of()).values() if node) == 2:
                    break
                await asyncio.sleep(0.02)
            assert sorted((await g.nodes_of()).values()) == ["", "n0", "n0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-05")
@pytest.mark.parametrize("by", ["label", "annotation"])
def test_pods_that_leave_a_gang_that_found_no_room_are_tried_by_themselves(gangs: Any, by: str) -> None:
    async def run() -> None:
        async with gangs(nodes=("2",)) as g:
            names = ("p0", "p1", "p2")
            for name in names:
                await (g.annotated(name, "strict", "3") if by == "annotation" else g.member(name, "strict"))
            if by == "label":
                await g.group("strict", 3)
            await g.said("p0", "Insufficient cpu")
            await g.quiet()
            left = {"labels": {LABEL_POD_GROUP: None}} if by == "label" else {"annotations": {GANG + "name": None}}
            for name in names:
                await g.client.patch(PODS, name, {"metadata": left}, "default")
            for _ in patience.tries(400):
                if sum(1 for node in (await g.nodes_of()).values() if node) == 2:
                    break
                await asyncio.sleep(0.02)
            assert sorted((await g.nodes_of()).values()) == ["", "n0", "n0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-05")
def test_a_gang_that_becomes_ready_while_another_one_is_tried_is_let_in() -> None:
    let_in: list[str] = []
    cache = GangCache(Defaults())
    cache.activate = lambda pods: let_in.extend(pod.name for pod in pods)
    cache.pod_seen(testing.World().parser.parse(testing.pod("p0", uid="u", labels={LABEL_POD_GROUP: "late"})))
    cache.round = Round("default/other", "default/other", "default/q0", 0.0)
    group = {"metadata": {"name": "late", "namespace": "default"}, "spec": {"minMember": 1}}
    cache.pod_group_event(None, msgspec.convert(group, PodGroup))
    assert let_in == ["p0"]


@pytest.mark.feature("SCH-GANG-05")
@pytest.mark.parametrize("how", ["its PodGroup is there again", "its policy is another one"])
def test_all_members_that_a_gang_which_came_about_kept_out_are_let_in(gangs: Any, how: str) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("gang", 4, annotations={"match-policy": "once-satisfied" if "PodGroup" in how else "only-waiting"})
            for number in range(4):
                await g.member(f"p{number}", "gang")
            await g.bound("p0", "p1", "p2", "p3")
            if "PodGroup" in how:
                await g.client.delete(PODGROUPS, "gang", "default")
                for name in ("p0", "p1"):
                    await g.client.delete(PODS, name, "default", grace_period_seconds=0)
            for name in ("late", "later"):
                await g.member(name, "gang")
            if "PodGroup" in how:
                await g.said("late", "have no PodGroup")
                await g.said("later", "have no PodGroup")
                await g.group("gang", 5)  # more than there are
            else:
                await g.said("late", "2 member(s) found nodes, 4 are needed together")
                await g.quiet()
                await g.client.patch(PODGROUPS, "gang", {"metadata": {"annotations": {GANG + "match-policy": "once-satisfied"}}}, "default")
            await g.bound("late", "later")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-03")
def test_gangs_of_a_group_that_came_about_are_let_in_whichever_is_known_first() -> None:
    let_in: list[str] = []
    cache, parser = GangCache(Defaults()), testing.World().parser
    cache.activate = lambda pods: let_in.extend(pod.name for pod in pods)
    for name, gang, node in (("a", "a", ""), ("b0", "b", "n0"), ("b1", "b", "")):
        cache.pod_seen(parser.parse(testing.pod(name, uid=name, node=node, labels={LABEL_POD_GROUP: gang})))
    for name in "ab":
        meta = {"name": name, "namespace": "default", "annotations": {GANG + "groups": '["default/a","default/b"]'}}
        cache.pod_group_event(None, msgspec.convert({"metadata": meta, "spec": {"minMember": 1}}, PodGroup))
    assert {"a", "b1"} <= set(let_in)


@pytest.mark.feature("SCH-JP-01")
def test_what_a_quota_refuses_evicts_nobody(gangs: Any) -> None:
    from koord.api.kinds import ELASTICQUOTAS

    async def run() -> None:
        profiles = [profile("ElasticQuota", enablePreemption=True, post_filter=("Coscheduling", "ElasticQuota", "DefaultPreemption"))]
        profiles[0]["plugins"]["reserve"]["enabled"].append({"name": "ElasticQuota"})
        async with gangs(nodes=("8",), profiles=profiles) as g:
            await g.priority("high", 1000)
            quota = {"metadata": {"name": "q"}, "apiVersion": ELASTICQUOTAS.api_version, "kind": "ElasticQuota"}
            await g.client.create(ELASTICQUOTAS, {**quota, "spec": {"max": {"cpu": "5"}, "min": {"cpu": "0"}}}, "default")
            cache = g.live.app.engine.frameworks["koord-scheduler"].plugins["ElasticQuota"].cache
            while cache.quota("q") is None:
                await asyncio.sleep(0.02)
            for name in ("l0", "l1"):
                await g.live.pod(name, cpu="4", nodeName="n0", terminationGracePeriodSeconds=0)
            labels = {"quota.scheduling.koordinator.sh/name": "q"}
            await g.group("job", 2)
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="4", labels=labels, priorityClassName="high")
            # There would be room for both once the others are gone, but the quota has room for one only.
            await g.said("p0", "quota")
            await g.said("p1", "quota")
            await g.quiet()
            assert {"l0", "l1"} <= set(await g.nodes_of())

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-07")
def test_a_member_may_wait_longer_than_a_quarter_of_an_hour(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            await g.group("patient", 2, annotations={"mode": "NonStrict"}, scheduleTimeoutSeconds=7200)
            for number in range(2):
                await g.member(f"p{number}", "patient", cpu="3")
            for _ in patience.tries(400):
                if len(g.live.app.waiting):
                    break
                await asyncio.sleep(0.02)
            (held,) = g.live.app.waiting.all()
            assert held.deadlines["Coscheduling"] - g.live.app._clock() > 7000

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-07")
def test_a_large_gang_of_the_second_profile_is_let_go_as_a_whole(gangs: Any) -> None:
    """More members than are told at once; a small one comes after it."""
    profiles = [{**profile(), "schedulerName": "first"}, profile()]

    async def run() -> None:
        async with gangs(nodes=("64",), profiles=profiles) as g:
            for gang, size in (("large", 40), ("small", 3)):
                await g.group(gang, size)
                names = [f"{gang}-{number}" for number in range(size)]
                for name in names:
                    await g.member(name, gang)
                assert set((await g.bound(*names)).values()) == {"n0"}

    asyncio.run(run())
