"""Status, deadlines and garbage as pure decisions, and the arguments."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koord import seams
from koord.accounting.resources import is_extended
from koord.api.objects import Reservation
from koord.api.times import format_time, parse_time
from koord.config.errors import InvalidConfig
from koord.kube.errors import ServerError
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import BindDraft
from roles.scheduler.framework.events import Action, ClusterEvent
from roles.scheduler.plugins.reservation.controller import Controller
from roles.scheduler.plugins.reservation.ledger import Orphan
from roles.scheduler.plugins.reservation.metrics import ReservationMetrics
from roles.scheduler.plugins.reservation.reserve_pod import HIGHEST_PRIORITY, read
from roles.scheduler.plugins.reservation.status import expired, unscheduled
from roles.scheduler.plugins.reservation.terms import of_reservation
from tests.roles.scheduler.reservation.worlds import ALLOCATED, World, placed

CREATED = parse_time("1970-01-12T00:00:00Z")
HOUR = 3600.0


def deadline(**spec: Any) -> float | None:
    return of_reservation(placed("r", **spec), {}).deadline()


@pytest.mark.feature("SCH-RSV-12")
def test_when_it_expires() -> None:
    in_an_hour, in_two_days = format_time(CREATED + HOUR), format_time(CREATED + 48 * HOUR)
    assert deadline(ttl="24h") == CREATED + 24 * HOUR
    assert deadline(ttl="0s", expires=in_an_hour) is None
    assert deadline(ttl="24h", expires=in_an_hour) == CREATED + HOUR
    assert deadline(ttl="10m", expires=in_an_hour) == CREATED + 600
    assert deadline(ttl=None, expires=in_an_hour) == CREATED + HOUR
    assert deadline(ttl="24h", expires=in_two_days) == CREATED + 48 * HOUR  # a ttl that is the default does not cut it short


def over(phase: str, reason: str, *, node: str = "", at: float = CREATED) -> Reservation:
    stamp = format_time(at)
    made = msgspec.to_builtins(placed(f"{phase}-{reason}-{node}", node or "a", phase=phase))
    made["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "reason": reason, "lastProbeTime": stamp, "lastTransitionTime": stamp}
    ]
    return msgspec.convert(made, Reservation)


@pytest.mark.feature("SCH-RSV-12")
def test_garbage() -> None:
    world = World({"gcDurationSeconds": 100})
    world.add_nodes(testing.node("a"))
    shown = [over("Failed", "Expired"), over("Succeeded", "Succeeded", at=CREATED + 50), over("Failed", "Other"),
             over("Failed", "Expired", node="gone", at=CREATED + 90), placed("live", "a")]  # fmt: skip
    for reservation in shown:
        world.feed("Reservation", reservation)
    controller = Controller(world.plugin.args, world.handle, world.plugin.observer, ReservationMetrics(None))

    def names(now: float) -> set[str]:
        return {found.metadata.name for found in controller.garbage(now)}

    assert names(CREATED + 99) == {"Failed-Expired-gone"}
    assert names(CREATED + 101) == {"Failed-Expired-gone", "Failed-Expired-", "Failed-Other-"}
    assert names(CREATED + 151) == {"Failed-Expired-gone", "Failed-Expired-", "Failed-Other-", "Succeeded-Succeeded-"}


@pytest.mark.feature("SCH-RSV-01")
@pytest.mark.parametrize(
    ("label", "priority"), [("7", 7), ("-7", -7), ("", HIGHEST_PRIORITY), ("high", HIGHEST_PRIORITY), ("9" * 20, HIGHEST_PRIORITY)]
)
def test_the_priority_of_a_reserve_pod_is_that_of_the_label_where_that_is_one(label: str, priority: int) -> None:
    world = World()
    world.feed("Reservation", placed("r", labels={"koordinator.sh/priority": label}))
    assert world.plugin.ledger.given["r-uid"].priority == priority


@pytest.mark.feature("SCH-RSV-12")
def test_a_reservation_with_a_number_that_no_pod_can_have_holds_up_no_other() -> None:
    world = World()
    world.add_nodes(testing.node("a"))
    odd, short = placed("odd", template={"priority": 10**20}), placed("short", ttl="1s")
    assert read(odd, world.parser)[0].problems == ("spec.template: a number in it does not fit into 64 bits",)
    written: list[str] = []

    async def patch(kind: Any, name: str, *args: Any, **more: Any) -> None:
        written.append(name)

    async def run() -> None:
        for reservation in (odd, short):
            world.feed("Reservation", reservation)
        world.handle.client = SimpleNamespace(patch=patch)  # type: ignore[assignment]
        controller = Controller(world.plugin.args, world.handle, world.plugin.observer, ReservationMetrics(None), lambda: CREATED)
        await asyncio.gather(*(controller._one(uid, CREATED + 10) for uid in world.plugin.ledger.objects))

    asyncio.run(run())
    assert written == ["short"]


@pytest.mark.feature("SCH-RSV-01")
@pytest.mark.feature("SCH-RSV-12")
def test_conditions_keep_their_times() -> None:
    fresh = unscheduled(placed("r"), "no room", 100.0)
    assert fresh is not None
    (condition,) = fresh["conditions"]
    assert condition == {
        "type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no room",
        "lastProbeTime": format_time(100), "lastTransitionTime": format_time(100),
    }  # fmt: skip
    shown = msgspec.convert({**msgspec.to_builtins(placed("r")), "status": {"conditions": [condition]}}, Reservation)
    assert unscheduled(shown, "no room", 105.0) is None
    later = unscheduled(shown, "still none", 200.0)
    assert later is not None
    assert (later["conditions"][0]["lastTransitionTime"], later["conditions"][0]["lastProbeTime"]) == (format_time(100), format_time(200))
    scheduled = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
    was = msgspec.convert({**msgspec.to_builtins(placed("r")), "status": {"conditions": [scheduled]}}, Reservation)
    assert unscheduled(was, "no room", 100.0) is None
    again = expired(over("Failed", "Expired", at=50.0), 100.0)
    assert again["conditions"][0]["lastTransitionTime"] == format_time(50)


@pytest.mark.feature("SCH-CFG-01")
@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"minCandidateNodesPercentage": 101}, "minCandidateNodesPercentage"),
        ({"gcIntervalSeconds": -1}, "gcIntervalSeconds"),
        ({"ignoredResources": ["cpu"]}, "ignoredResources[0]"),
        ({"ignoredResources": ["kubernetes.io/batch-cpu"]}, "ignoredResources[0]"),
        ({"ignoredResourceGroups": ["example.com/x"]}, "ignoredResourceGroups[0]"),
        ({"ignoredResourceGroups": ["kubernetes.io"]}, "ignoredResourceGroups[0]"),
        ({"preAllocationConfig": {"enableClusterMod": True}}, "preAllocationConfig.enableClusterMod"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_arguments_that_are_refused(args: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        World(args)
    assert path in str(caught.value)


@pytest.mark.feature("SCH-CFG-01")
def test_defaults() -> None:
    args = World({"gcDurationSeconds": 0}).plugin.args
    assert (args.gc_duration_seconds, args.gc_interval_seconds, args.controller_workers) == (86400, 60, 1)
    assert args.pre_allocation_config.cluster_label_key == "pod.koordinator.sh/is-pre-allocatable"
    assert not args.reservation_selector_index.active
    assert is_extended("example.com/widget")
    assert not is_extended("requests.example.com/widget")


@pytest.mark.feature("SCH-CFG-02")
def test_the_shipped_weight_lets_reservations_win() -> None:
    world = World()
    world.add_nodes(testing.node("empty", cpu="64"), testing.node("full", cpu="8"))
    world.add_pods(testing.pod(cpu="4", node="full"))
    world.hold("r", "full", cpu="4")
    assert world.owner(cpu="1").node == "full"


@pytest.mark.feature("SCH-RSV-08")
def test_a_pod_that_is_gone_leaves_nothing_behind() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    held = world.hold("r", "a", cpu="4")
    world.owner("p", uid="p", cpu="2")
    world.cluster.remove_pod("p")
    world.plugin.pod_gone("p")
    world.add_pods(testing.pod("p", uid="p", node="a", cpu="2"))
    assert not held.owners
    assert world.free("a") == 2000


@pytest.mark.feature("SCH-RSV-08")
def test_pods_whose_annotation_is_being_written_are_known_until_they_are_gone() -> None:
    world = World()
    world.add_nodes(testing.node("a", cpu="8"))
    held = world.hold("r", "a", cpu="4")
    late, writer = world.owner("late", cpu="1"), world.plugin.writer

    def left_over(pod: PodInfo) -> bool:
        draft = BindDraft()
        writer.draft(pod, None, draft)
        return ALLOCATED in draft.annotations

    asyncio.run(world.plugin.pre_bind(late.ctx, "a", BindDraft()))
    others = [world.parser.parse(testing.pod()) for _ in range(5000)]
    for pod in others:
        writer.draft(pod, held.shown(), BindDraft())
    world.framework.run_unreserve(late.ctx, late.slot)
    assert [orphan.pod.name for orphan in world.plugin.ledger.orphans] == ["late"]
    assert left_over(others[-1])
    world.plugin.pod_gone(others[-1].uid)
    assert not left_over(others[-1])


@pytest.mark.feature("SCH-RSV-08")
@pytest.mark.parametrize("failure", [ServerError(500, "InternalError", "no"), KeyError("one more defect")])
def test_an_annotation_that_cannot_be_taken_off_holds_up_no_other(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    world, done = World(), list[str]()
    writer, orphans = world.plugin.writer, world.plugin.ledger.orphans
    world.handle.may_write = lambda: True
    orphans += [Orphan(world.parser.parse(testing.pod(name)), "r-uid", running=True) for name in ("bad", "good")]

    async def remove(orphan: Orphan) -> None:
        if orphan.pod.name == "bad":
            raise failure
        done.append(orphan.pod.name)

    async def run() -> None:
        monkeypatch.setattr(writer, "_remove", remove)
        monkeypatch.setattr(seams, "sleep", lambda seconds: asyncio.sleep(0))
        work = asyncio.create_task(writer.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not work.done()
        work.cancel()

    asyncio.run(run())
    assert done == ["good"]
    assert [orphan.pod.name for orphan in orphans] == ["bad"]


@pytest.mark.feature("SCH-RSV-12")
def test_of_a_reservation_that_is_gone_there_is_nothing_to_look_at() -> None:
    """A scheduler that stands by is told of them as well, and looks at none."""
    world = World()
    world.add_nodes(testing.node("a"))
    world.hold("r", "a")
    world.feed("Reservation", None, old=placed("r", "a"))
    assert not world.plugin.ledger.touched


@pytest.mark.feature("SCH-RSV-06")
def test_what_brings_waiting_pods_back() -> None:
    world = World()
    subscribed = world.plugin.subscriptions()
    waiting = world.parser.parse(testing.pod())
    taking = placed("t", preAllocation=True, policy="Restricted")
    world.feed("Reservation", taking)

    def helps(resource: str, action: Action, old: Any, new: Any, pod: Any = waiting) -> bool:
        event = ClusterEvent(resource, action, old, new)
        return any(s.covers(event) and (s.hint is None or s.hint(pod, event)) for s in subscribed)

    before, there, closed = placed("r"), placed("r", "a"), placed("r", "a", unschedulable=True)
    used = msgspec.convert(msgspec.to_builtins(there), Reservation)
    used.status.allocated["cpu"] = "1"
    assert helps("Reservation", Action.UPDATE, before, there)
    assert helps("Reservation", Action.UPDATE, closed, there)
    assert helps("Reservation", Action.DELETE, there, None)
    assert not helps("Reservation", Action.UPDATE, there, used)
    assert helps("AssignedPod", Action.DELETE, waiting, None)
    assert not helps("AssignedPod", Action.ADD, None, waiting)
    assert not helps("AssignedPod", Action.UPDATE, waiting, waiting)
    assert helps("AssignedPod", Action.ADD, None, waiting, world.plugin.ledger.given["t-uid"])
    assert helps("AssignedPod", Action.UPDATE, waiting, waiting, world.plugin.ledger.given["t-uid"])  # a controller has adopted it


@pytest.mark.feature("SCH-RSV-12")
def test_what_the_controller_wrote_itself_is_looked_at_once_more() -> None:
    """Its end is planned only when there is nothing left to write."""
    world = World()
    world.add_nodes(testing.node("a"))
    held = world.hold("r", "a")
    pod = held.pod
    world.plugin.ledger.touched.clear()
    used = msgspec.convert(msgspec.to_builtins(placed("r", "a")), Reservation)
    used.status.allocated["cpu"] = "1"
    world.feed("Reservation", used, old=placed("r", "a"))
    assert held.pod is pod
    assert list(world.plugin.ledger.touched) == ["r-uid"]
