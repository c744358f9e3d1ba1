"""The status of PodGroups: through the API server, and step by step."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from koord import seams
from koord.api import names
from koord.api.kinds import PODGROUPS, PODS
from koord.api.names import LABEL_POD_GROUP
from koord.api.objects import Pod, PodGroup
from roles.scheduler import testing
from roles.scheduler.plugins.coscheduling import notices, podgroups
from roles.scheduler.plugins.coscheduling.cache import GangCache
from roles.scheduler.plugins.coscheduling.notices import problems_of
from roles.scheduler.plugins.coscheduling.phases import Member, over, step
from roles.scheduler.plugins.coscheduling.podgroups import ended_member
from roles.scheduler.plugins.coscheduling.spec import Defaults

from .conftest import GANG

BEFORE, MADE, AFTER = "2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"  # the PodGroup in between


@pytest.mark.feature("SCH-GANG-09")
def test_a_group_from_its_first_pod_to_its_end(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("job", 2)
            await g.podgroup("job", lambda s: s.get("phase") == "Pending")
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "owner-uid"}
            for name in ("p0", "p1"):
                body = await g.member(name, "job", schedulingGates=[{"name": "example.com/hold"}])
                await g.client.patch(PODS, name, {"metadata": {"uid": body["metadata"]["uid"], "ownerReferences": [owner]}}, "default")
            await g.podgroup("job", lambda s: s.get("phase") == "Scheduling" and s.get("scheduleStartTime"))
            for name in ("p0", "p1"):
                await g.client.patch(PODS, name, [{"op": "remove", "path": "/spec/schedulingGates"}], "default", type="json")
            await g.bound("p0", "p1")
            status = await g.podgroup("job", lambda s: s.get("phase") == "Scheduled")
            assert status["scheduled"] == 2
            await g.finish("p0", "Running")
            await g.finish("p1", "Running")
            await g.podgroup("job", lambda s: s.get("phase") == "Running" and s.get("running") == 2)
            await g.finish("p0", "Succeeded")
            status = await g.podgroup("job", lambda s: s.get("succeeded") == 1)
            assert (status["phase"], status["scheduled"], status["running"]) == ("Running", 2, 1)
            await g.finish("p1", "Succeeded")
            status = await g.podgroup("job", lambda s: s.get("phase") == "Finished")
            assert (status["scheduled"], status["succeeded"]) == (2, 2)
            # A group that has come to its end is left alone.
            await g.client.delete(PODS, "p0", "default", grace_period_seconds=0)
            await g.group("other", 1)
            await g.podgroup("other", lambda s: s.get("phase") == "Pending")
            assert (await g.podgroup("job", bool))["phase"] == "Finished"

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-09")
def test_a_failed_member_fails_the_group_and_an_empty_one_is_pending_again(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("sad", 1)
            await g.member("s0", "sad")
            await g.live.bound("s0")
            await g.finish("s0", "Failed")
            status = await g.podgroup("sad", lambda s: s.get("phase") == "Failed")
            assert (status["failed"], status["scheduled"]) == (1, 1)
            await g.group("empty", 1)
            await g.member("e0", "empty")
            await g.podgroup("empty", lambda s: s.get("phase") == "Scheduled")
            await g.client.delete(PODS, "e0", "default", grace_period_seconds=0)
            await g.podgroup("empty", lambda s: s.get("phase") == "Pending")

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-02")
def test_what_is_wrong_with_a_gang_is_told_on_the_object(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await g.group("odd", 3, annotations={"mode": "Sometimes", "groups": "[nonsense", "total-number": "2"})
            await g.member("o0", "odd", annotations={"gang.scheduling.koordinator.sh/min-available": "7"})
            note = (await g.event("odd", "GangNotReady"))["note"]
            assert "default/odd has 1 of 3 pods" in note
            said = await g.said("o0", "'Sometimes' is not known: Strict holds")
            assert "groups: not valid JSON" in said
            assert "2 is below the minimum 3" in said
            assert "'7', the PodGroup 3" in said
            assert (await g.event("odd", "InvalidGang"))["type"] == "Warning"
            await g.annotated("lost", "nowhere", "many")
            await g.said("lost", "'many' is no whole number")
            await g.event("lost", "InvalidGang")

    asyncio.run(run())


def group(minimum: int = 2, **status: Any) -> PodGroup:
    body = {"metadata": {"name": "g", "namespace": "ns", "creationTimestamp": MADE}, "spec": {"minMember": minimum}}
    return msgspec.convert({**body, "status": status}, PodGroup)


def members(**counts: int) -> list[Member]:
    return [Member(f"{phase}{n}", phase, phase != "Pending", ("ns/b", "ns/a")) for phase, count in counts.items() for n in range(count)]


@pytest.mark.feature("SCH-GANG-09")
@pytest.mark.parametrize(
    ("phase", "children", "after"),
    [
        ("", {}, "Pending"),
        ("Pending", {"Pending": 1}, "Pending"),
        ("Pending", {"Pending": 2}, "PreScheduling"),
        ("PreScheduling", {"Pending": 2}, "Scheduling"),
        ("PreScheduling", {}, "Pending"),
        ("Scheduling", {"Pending": 1, "Running": 1}, "Scheduling"),
        ("Scheduling", {"Running": 2}, "Running"),
        ("Scheduled", {"Running": 1, "Succeeded": 1}, "Running"),
        ("Running", {"Running": 1, "Failed": 1}, "Failed"),
        ("Running", {"Failed": 1, "Pending": 4}, "Scheduling"),
        ("Running", {"Succeeded": 2, "Failed": 1}, "Finished"),
    ],
)
def test_each_step_of_a_group(phase: str, children: dict[str, int], after: str) -> None:
    found = step(group(phase=phase), members(**children), 0.0)
    assert found.phase == after
    if after == "PreScheduling":
        assert found.occupied_by == "ns/a,ns/b"


@pytest.mark.feature("SCH-GANG-09")
def test_groups_that_are_over_are_left_alone() -> None:
    assert over(group(phase="Finished"))
    assert over(group(phase="Failed"))
    assert over(group(phase="Scheduled", scheduled=2, scheduleStartTime="2026-01-03T00:00:01Z"))
    assert not over(group(phase="Scheduled", scheduled=2, scheduleStartTime="2026-01-02T00:00:00Z"))
    assert not over(group(phase="Running", scheduled=2, running=1, scheduleStartTime="2026-01-03T00:00:01Z"))
    assert not over(group(phase="Scheduled", scheduled=2, scheduleStartTime="when it was"))


@pytest.mark.feature("SCH-GANG-09")
def test_a_defect_that_one_group_shows_holds_up_no_other(gangs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(of: Any, name: Any) -> Any:
        return lambda subject, *rest: (of(subject, *rest), 1 / (name(subject) != "a-bad"))[0]

    starts = list[Any]()
    for keeper in (podgroups.PodGroups, notices.Notices):
        monkeypatch.setattr(keeper, "run", lambda self, run=keeper.run: (starts.append(self), run(self))[1])
    monkeypatch.setattr(podgroups, "step", broken(podgroups.step, lambda group: group.metadata.name))
    monkeypatch.setattr(notices, "problems_of", broken(notices.problems_of, lambda gang: gang.name))

    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            for name in ("a-bad", "good"):
                await g.group(name, 2)
                await g.member(f"{name}-0", name)
            await g.podgroup("good", lambda s: s.get("phase") == "Pending")
            await g.event("good", "GangNotReady")
            await g.group("better", 1)
            await g.podgroup("better", lambda s: s.get("phase") == "Pending")
            assert not (await g.client.get(PODGROUPS, "a-bad", "default")).get("status")
            assert len(starts) == 2  # neither had to be started again

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-09")
def test_an_update_of_a_group_is_one_merge_patch_with_its_uid(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            asked: list[Any] = []
            patch = g.client.patch

            async def see(kind: Any, name: str, body: Any, *rest: Any, **more: Any) -> Any:
                if kind is PODGROUPS:
                    asked.append(body)
                return await patch(kind, name, body, *rest, **more)

            g.live.app.client.patch = see
            created = await g.group("job", 1)
            await g.podgroup("job", lambda s: s.get("phase") == "Pending")
            assert asked == [{"status": {"phase": "Pending"}, "metadata": {"uid": created["metadata"]["uid"]}}]

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-09")
@pytest.mark.parametrize(
    ("times", "phase"),
    [
        ({"bound": BEFORE}, "Scheduling"),
        ({"bound": BEFORE, "ended": BEFORE}, "Scheduling"),
        ({"bound": BEFORE, "ended": AFTER, "deleted": AFTER}, "Scheduling"),
        ({"bound": BEFORE, "ended": AFTER}, "Finished"),  # they ran on under the new one
        ({"bound": MADE, "ended": BEFORE}, "Finished"),  # their node's clock is behind
        ({"bound": AFTER, "ended": AFTER, "deleted": AFTER}, "Finished"),
    ],
)
def test_a_group_that_is_made_anew_does_not_count_what_ended_before_it(times: dict[str, str], phase: str) -> None:
    world = testing.World({"plugins": {"preFilter": {"enabled": [{"name": "Coscheduling"}]}}})
    plugin: Any = world.framework.plugins["Coscheduling"]
    plugin.cache.pod_group_event(None, group())
    for number in range(2):
        plugin.cache.pod_seen(world.parser.parse(testing.pod(f"new{number}", namespace="ns", labels={LABEL_POD_GROUP: "g"})))
        plugin._pod_groups.ended(None, ended_member(ended_pod(f"old{number}", **times)))
    shown = ""
    for _ in range(4):
        shown = step(group(phase=shown), plugin._pod_groups.members(plugin.cache.gangs["ns/g"]), 0.0).phase
    assert shown == phase


def ended_pod(name: str, *, bound: str, ended: str = "", deleted: str = "") -> Pod:
    """A pod of the group that succeeded; times in RFC 3339."""
    meta = {"name": name, "namespace": "ns", "uid": name, "labels": {LABEL_POD_GROUP: "g"}, "creationTimestamp": BEFORE}
    status = {
        "phase": "Succeeded", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}],
        "containerStatuses": [{"name": "main", "state": {"terminated": {"finishedAt": ended}}}] if ended else [],
    }  # fmt: skip
    body = {"metadata": {**meta, "deletionTimestamp": deleted or None}, "spec": {"nodeName": "n"}, "status": status}
    return msgspec.convert(body, Pod)


@pytest.mark.feature("SCH-GANG-03")
def test_a_group_of_very_many_gangs_is_told_in_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, parser, looks = GangCache(Defaults()), testing.World().parser, list[str]()
    groups = [f"default/{name}{number:03}" for name in ("g", "gone") for number in range(300)]
    for number in range(300):
        listed = groups[:-1] if number == 7 else groups
        notes = {GANG + "name": f"g{number:03}", GANG + "min-available": "1", GANG + "groups": json.dumps(listed)}
        cache.pod_seen(parser.parse(testing.pod(f"p{number}", uid=f"u{number}", annotations=notes)))
    of_group = cache.group_gangs
    monkeypatch.setattr(cache, "group_gangs", lambda gang: ((looks.append(found[0]), found)[1] for found in of_group(gang)))
    usual, odd = cache.gangs["default/g000"], cache.gangs["default/g007"]
    for gang in (usual, odd):
        told = [cache.shortage(gang)]
        looks.clear()
        told += problems_of(gang, cache)
        assert len(looks) <= 20  # each gang compares itself with others: it would be their number to the third for all of them
        assert len(told) > 1
        assert all(len(text) < 2000 and " more" in text for text in told)


@pytest.mark.feature("SCH-GANG-03")
def test_a_gang_that_changes_while_others_are_spoken_of_is_not_quiet_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world, told = testing.World(), list[str]()
        cache = GangCache(Defaults())
        for name in ("a", "b"):
            notes = {GANG + "name": name, GANG + "min-available": "2"}
            cache.pod_seen(world.parser.parse(testing.pod(name, uid=name, annotations=notes)))
        world.handle.may_write = lambda: True
        keeper = notices.Notices(world.handle, cache)

        def tell(gang: Any) -> None:
            told.append(gang.name)
            monkeypatch.setattr(notices, "_QUIET", 1000.0)
            keeper.changed(cache.gangs["default/b"])

        monkeypatch.setattr(keeper, "tell", tell)
        monkeypatch.setattr(notices, "_QUIET", 0.0)
        monkeypatch.setattr(seams, "sleep", lambda seconds: asyncio.sleep(0))
        work = asyncio.create_task(keeper.run())
        for _ in range(20):
            await asyncio.sleep(0)
        work.cancel()
        assert told == ["a"]

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-03")
def test_members_that_are_bound_are_not_looked_at_for_each_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of leader a gang with a small minimum grows by thousands of pods."""
    world, cache, looks = testing.World(), GangCache(Defaults()), list[Any]()
    notes = {GANG + "name": "g", GANG + "min-available": "2"}
    together = {names.ANNOTATION_BIND_GANG_GROUP_ID: "default/g", names.ANNOTATION_BIND_GANG_MEMBER_COUNT: "2"}
    for number in range(4):
        bound = testing.pod(f"b{number}", uid=f"b{number}", node="n", annotations={**notes, **(together if number < 2 else {})})
        cache.pod_seen(world.parser.parse(bound))
    gang, members = cache.gangs["default/g"], cache.members
    monkeypatch.setattr(cache, "members", lambda *args: (looks.append(args), members(*args))[1])
    for number in range(10):
        assert not cache.rejoins(gang, world.parser.parse(testing.pod(f"p{number}", uid=f"p{number}", annotations=notes)))
    assert len(looks) == 1
