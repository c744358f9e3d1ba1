"""Devices in reservations: who may use them, how much of them, and what is left for others (SCH-DEV-16)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kinds import DEVICES, NODES, PODS, RESERVATIONS
from roles.scheduler import testing
from tests.roles.scheduler.reservation.worlds import AFFINITY, OWNER, body, enabled, placed, profile
from tests.roles.scheduler.reservation.worlds import ALLOCATED as USES
from tests.support import patience
from tests.support.devices import (
    ALLOCATED,
    CORE,
    EVERYTHING,
    MEMORY,
    RATIO,
    add,
    annotation,
    device,
    entry,
    gpu,
    gpus,
    holder,
    minors,
    refusal,
)  # fmt: skip

REQUIRED = {AFFINITY: "{}"}


def shipped(**gates: bool) -> dict[str, Any]:
    """The shipped profile's order of the two plugins."""
    made = profile()
    plugins = made["plugins"]
    plugins["preFilter"] = enabled("Reservation", "DeviceShare")
    plugins["filter"] = enabled("DeviceShare", "Reservation")
    plugins["score"]["enabled"].append({"name": "DeviceShare", "weight": 1})
    plugins["reserve"] = enabled("DeviceShare", "Reservation")
    plugins["preBind"] = enabled("DeviceShare", "Reservation", "DefaultPreBind")
    return made


def world(cards: int = 4) -> testing.World:
    found = testing.World(shipped())
    add(found, "n", gpus(cards))
    return found


def reserve(found: testing.World, name: str, allocated: dict[str, Any], percent: int = 100, **more: Any) -> None:
    """A Reservation that is available on the node and holds devices."""
    annotations = {ALLOCATED: json.dumps(allocated), **more.pop("annotations", {})}
    requests = {CORE: str(percent), RATIO: str(percent)}
    found.feed(
        "Reservation", placed(name, "n", cpu=more.pop("cpu", "50"), memory="50Gi", requests=requests, annotations=annotations, **more)
    )


def owner(percent: int, **more: Any) -> Any:
    return gpu(percent, labels=OWNER, **more)


def bound_owner(name: str, percent: int, minor: int, reservation: str) -> Any:
    """An owner that was bound."""
    uses = {USES: json.dumps({"name": reservation, "uid": f"{reservation}-uid"})}
    memory = f"{percent * (80 << 30) // 100}"
    held = {"gpu": [entry(minor, gpu_core=percent, gpu_memory_ratio=percent, gpu_memory=memory)]}
    return holder(name, "n", held, {CORE: percent, RATIO: percent}, labels=OWNER, annotations=uses)


@pytest.mark.feature("SCH-DEV-16")
def test_reserved_devices_are_for_owners() -> None:
    found = world(2)
    reserve(found, "r", {"gpu": [entry(1)]})
    assert minors(found, gpu(100)) == [0]
    assert "1 Insufficient GPU Devices" in refusal(found, gpu(50))
    decision = found.schedule(owner(100))
    assert decision.ctx.reservation is not None
    assert annotation(found, decision)["gpu"][0]["minor"] == 1
    assert not found.decide(owner(100)).scheduled


_CPU_ONLY = {"scheduling.koordinator.sh/reservation-restricted-options": '{"resources": ["cpu"]}'}


@pytest.mark.feature("SCH-DEV-16")
@pytest.mark.parametrize("more", [{}, {"policy": "Restricted", "annotations": _CPU_ONLY}], ids=["aligned", "devices not restricted"])
def test_a_reservation_that_does_not_restrict_devices_is_used_up_before_the_node_is(more: dict[str, Any]) -> None:
    found = world()
    reserve(found, "r", {"gpu": [entry(2)]}, **more)
    assert minors(found, owner(200)) == [2, 3]
    assert "Insufficient" in refusal(found, gpu(300))
    assert minors(found, gpu(200)) == [0, 1]


@pytest.mark.feature("SCH-DEV-16")
def test_a_restricted_reservation_gives_no_more_than_it_has() -> None:
    found = world()
    reserve(found, "r", {"gpu": [entry(2)]}, policy="Restricted")
    message = refusal(found, owner(200, annotations=REQUIRED))
    assert "Reservation(s) Insufficient GPU Devices" in message
    assert minors(found, owner(50, annotations=REQUIRED)) == [2]
    assert minors(found, owner(50, annotations=REQUIRED)) == [2]
    assert "Reservation(s) Insufficient GPU Devices" in refusal(found, owner(50, annotations=REQUIRED))


def designated(minor: int) -> dict[str, str]:
    hint = {"scheduling.koordinator.sh/scheduling-hint": json.dumps({"extensions": {"DeviceShare": {}}})}
    return {**hint, ALLOCATED: json.dumps({"gpu": [entry(minor)]})}


@pytest.mark.feature("SCH-DEV-16")
@pytest.mark.feature("SCH-DEV-11")
@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
def test_a_designated_card_comes_from_the_reservation_that_holds_it(policy: str) -> None:
    found = world()
    order = {"scheduling.koordinator.sh/reservation-order": "1"}
    reserve(found, "r", {"gpu": [entry(1)]}, policy=policy, labels=order)
    reserve(found, "s", {"gpu": [entry(2)]}, policy=policy)
    used = found.schedule(owner(100, annotations=designated(2)))
    assert used.ctx.reservation is not None
    assert (used.ctx.reservation.name, annotation(found, used)["gpu"][0]["minor"]) == ("s", 2)
    for named in ("r", "s"):
        assert not found.decide(owner(100, annotations={**designated(2), AFFINITY: json.dumps({"name": named})})).scheduled
    free = found.schedule(owner(100, annotations=designated(3)))
    assert annotation(found, free)["gpu"][0]["minor"] == 3
    assert (free.ctx.reservation is None) is (policy == "Restricted")
    assert not found.decide(gpu(100, annotations=designated(1))).scheduled
    ignoring = {"scheduling.koordinator.sh/reservation-ignored": "true"}
    assert found.decide(gpu(100, annotations=designated(1), labels=ignoring)).scheduled


@pytest.mark.feature("SCH-DEV-16")
def test_owners_shares_inside_a_reservation_count_once() -> None:
    found = world(1)
    reserve(found, "r", {"gpu": [entry(0, gpu_core=60, gpu_memory_ratio=60, gpu_memory="48Gi")]}, 60)
    found.add_pods(bound_owner("first", 40, 0, "r"))
    assert minors(found, gpu(40)) == [0]
    assert "Insufficient" in refusal(found, gpu(10))
    assert minors(found, owner(20)) == [0]
    assert not found.decide(owner(10)).scheduled
    summary: Any = found.framework.plugins["DeviceShare"].endpoints()[1].answer({"name": "n"})
    assert summary["deviceFree"][CORE] == "0"


@pytest.mark.feature("SCH-DEV-16")
def test_who_does_not_fit_a_reservation_takes_free_devices_and_no_reserved_ones() -> None:
    found = world(3)
    reserve(found, "r", {"gpu": [entry(0)]}, policy="Restricted")
    reserve(found, "s", {"gpu": [entry(1)]}, policy="Restricted")
    assert not found.decide(owner(200)).scheduled  # neither has two, and one card is free
    decision = found.schedule(gpu(100, labels={**OWNER, "scheduling.koordinator.sh/reservation-ignored": "true"}))
    assert decision.scheduled
    assert decision.ctx.reservation is None


@pytest.mark.feature("SCH-DEV-16")
def test_ignoring_reservations_opens_all_of_them() -> None:
    found = world(3)
    reserve(found, "r", {"gpu": [entry(0)]}, policy="Restricted")
    reserve(found, "s", {"gpu": [entry(1)]}, policy="Restricted")
    ignoring = {"scheduling.koordinator.sh/reservation-ignored": "true"}
    assert minors(found, gpu(300, labels=ignoring)) == [0, 1, 2]


@pytest.mark.feature("SCH-DEV-16")
def test_preempting_an_owner_frees_the_reservation_only() -> None:
    found = world(1)
    reserve(found, "r", {"gpu": [entry(0)]}, policy="Restricted")
    found.add_pods(bound_owner("low", 100, 0, "r"))
    stranger = found.decide(gpu(100, priority=10))
    assert not stranger.victims
    mine = found.decide(owner(100, priority=10))
    assert [victim.name for victim in mine.victims] == ["low"]


@pytest.mark.feature("SCH-DEV-16")
def test_when_a_reservation_ends_its_owners_keep_theirs() -> None:
    found = world(1)
    held = {"gpu": [entry(0, gpu_core=60, gpu_memory_ratio=60, gpu_memory="48Gi")]}
    reserve(found, "r", held, 60)
    found.add_pods(bound_owner("first", 20, 0, "r"))
    assert "Insufficient" in refusal(found, gpu(50))
    found.feed("Reservation", placed("r", "n", phase="Succeeded", cpu="1", memory="1Gi"))
    assert minors(found, gpu(80)) == [0]
    assert "Insufficient" in refusal(found, gpu(1))


@pytest.mark.feature("SCH-DEV-16")
@settings(max_examples=30, deadline=None)
@given(
    reserved=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([40, 60, 100]), st.booleans()), max_size=3),
    pods=st.lists(st.tuples(st.sampled_from([20, 50, 100, 200]), st.booleans()), max_size=10),
)
def test_no_card_is_oversold_and_strangers_leave_reservations_alone(reserved: Any, pods: Any) -> None:
    found = world()
    left = dict.fromkeys(range(4), 100)
    held: dict[int, int] = dict.fromkeys(range(4), 0)
    for number, (minor, percent, restricted) in enumerate(reserved):
        if left[minor] >= percent:
            left[minor] -= percent
            held[minor] += percent
            share = entry(minor, gpu_core=percent, gpu_memory_ratio=percent, gpu_memory=f"{percent * (80 << 30) // 100}")
            reserve(found, f"r{number}", {"gpu": [share]}, percent, policy="Restricted" if restricted else "Aligned")
    outside: dict[int, int] = dict.fromkeys(range(4), 0)
    total: dict[int, int] = dict.fromkeys(range(4), 0)
    for percent, mine in pods:
        decision = found.schedule(owner(percent) if mine else gpu(percent))
        if decision.scheduled:
            given = annotation(found, decision)
            assert given, "what the filters promise is there to be taken"
            for item in given["gpu"]:
                amount = int(item["resources"][CORE])
                total[item["minor"]] += amount
                if decision.ctx.reservation is None:
                    outside[item["minor"]] += amount
    for minor in range(4):
        assert total[minor] <= 100
        assert outside[minor] + held[minor] <= 100


@pytest.mark.feature("SCH-DEV-16")
@pytest.mark.feature("SCH-DEV-11")
def test_a_reservation_holds_devices_through_the_api_server(scheduler: Any) -> None:
    async def before(objects: Any) -> None:
        await objects.node("n", cpu="100", memory="1Ti")
        amounts = {**EVERYTHING, MEMORY: "10Ti"}
        await objects.client.patch(NODES, "n", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
        await objects.client.create(DEVICES, {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", **device("n", gpus(2))})

    async def until(live: Any, test: Any) -> Any:
        for _ in patience.tries(1000):
            found = await live.client.get(RESERVATIONS, "r")
            if test(found):
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(found)

    async def ask(live: Any, name: str, labels: dict[str, str]) -> None:
        amounts = {"cpu": "1", CORE: "100", RATIO: "100"}
        container = {"name": "main", "image": "i", "resources": {"requests": amounts, "limits": {**amounts}}}
        meta = {"name": name, "labels": labels}
        spec = {"schedulerName": "koord-scheduler", "containers": [container]}
        await live.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")

    async def run() -> None:
        async with scheduler({"profiles": [shipped()]}, crds=True, before=before, gates={"ResizePod": True}) as live:
            await live.client.create(RESERVATIONS, body("r", cpu="1", memory="1Gi", requests={CORE: "100", RATIO: "100"}))
            shown = await until(live, lambda r: r.get("status", {}).get("phase") == "Available")
            (held,) = json.loads(shown["metadata"]["annotations"][ALLOCATED])["gpu"]
            assert held["resources"] == {CORE: "100", RATIO: "100", MEMORY: "80Gi"}
            assert shown["status"]["allocatable"][MEMORY] == "80Gi"  # the gate shows all that was allocated
            await ask(live, "stranger", {})
            await live.bound("stranger")
            await ask(live, "late", {})
            assert "Insufficient GPU Devices" in (await live.refused("late"))["message"]
            await ask(live, "owner", OWNER)
            await live.bound("owner")
            given = json.loads((await live.get("owner"))["metadata"]["annotations"][ALLOCATED])["gpu"]
            assert [item["minor"] for item in given] == [held["minor"]]

    asyncio.run(run())


@pytest.mark.feature("SCH-DEV-16")
def test_a_reservation_that_takes_a_pod_over_gets_its_devices() -> None:
    found = world(4)
    found.add_pods(holder("running", "n", {"gpu": [entry(1)]}, labels=OWNER, uid="running"))
    found.add_pods(holder("other", "n", {"gpu": [entry(2)]}))
    made = placed(
        "r", cpu="1", memory="1Gi", requests={CORE: "200", RATIO: "200"}, policy="Restricted", preAllocation=True,
        labels={"scheduling.koordinator.sh/pre-allocation-required": "true"},
    )  # fmt: skip
    found.feed("Reservation", made)
    plugin: Any = found.framework.plugins["Reservation"]
    info = plugin.ledger.held["r-uid"].pod
    assert minors(found, info) == [0, 1]


_RAW, _TRANSLATED = {"koordinator.sh/gpu": 100}, {CORE: 100, RATIO: 100, "koordinator.sh/gpu.shared": 1}
_VENDOR = {"nvidia.com/gpu": 1}
_FORMS = {
    "pod translated": (_RAW, _TRANSLATED), "template translated": (_TRANSLATED, _RAW), "both translated": (_TRANSLATED, _TRANSLATED),
    "template in parts": ({CORE: 100, RATIO: 100}, _TRANSLATED), "template of a vendor": (_VENDOR, _TRANSLATED),
    "pod of a vendor": (_RAW, _VENDOR), "template in parts, pod of a vendor": ({CORE: 100, RATIO: 100}, _VENDOR),
}  # fmt: skip


@pytest.mark.feature("SCH-DEV-16")
@pytest.mark.feature("SCH-RSV-04")
@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
@pytest.mark.parametrize(("reserved", "asked"), _FORMS.values(), ids=_FORMS)
@pytest.mark.parametrize("wish", [{}, REQUIRED], ids=["", "required"])
def test_a_reservation_and_its_owner_may_write_gpus_differently(
    reserved: dict[str, int], asked: dict[str, int], policy: str, wish: dict[str, str]
) -> None:
    """The pod webhook translates pods and no templates, and it may be there or not."""
    found = world(2)
    annotations = {ALLOCATED: json.dumps({"gpu": [entry(1)]})}
    texts = {name: str(amount) for name, amount in reserved.items()}
    found.feed("Reservation", placed("r", "n", cpu=None, memory=None, requests=texts, annotations=annotations, policy=policy))
    amounts = {name: str(amount) for name, amount in asked.items()}
    decision = found.schedule(testing.pod("p", cpu=None, memory=None, requests=amounts, labels=OWNER, annotations=wish))
    assert decision.scheduled, decision.message()
    assert decision.ctx.reservation is not None
    assert decision.ctx.reservation.name == "r"
    ledger = found.framework.plugins["Reservation"].ledger  # type: ignore[attr-defined]
    held = ledger.held["r-uid"]
    assert held.taken == held.terms.allocatable  # it is used up, whatever it is called
    second = testing.pod("q", cpu=None, memory=None, requests=amounts, labels=OWNER, annotations=REQUIRED)
    assert found.decide(second).scheduled is (policy == "Aligned")
