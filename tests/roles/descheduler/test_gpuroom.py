"""FragmentationAware makes room for pods that wait for whole GPUs (DS-FA-02)."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import orjson
import pytest

from koord.api import kinds, names
from koord.api.objects import Node, Pod, convert
from koord.api.times import format_time
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import Evict, Pause, Rehearse
from roles.descheduler.framework.handle import Handle
from roles.descheduler.gpus import Cards, Group, Wanted, fewest, wanted
from roles.descheduler.plugins.gpuroom import GPURoomArgs, Rooms
from roles.descheduler.snapshot import NodeView, PodView, node_view, pod_view
from tests.roles.descheduler.support import after_rounds, configuration, descheduling, eventually, node, pod
from tests.support import patience

pytestmark = pytest.mark.feature("DS-FA-02")
NOW = 1e9
GPU = "nvidia.com/gpu"
Obj = dict[str, Any]


def requests(cards: int, percent: int = 100) -> Obj:
    if percent == 100:
        return {"cpu": f"{2 * cards}", GPU: str(cards)}
    return {"cpu": "1", names.RESOURCE_GPU_CORE: str(percent), names.RESOURCE_GPU_MEMORY_RATIO: str(percent)}


def holder(name: str, where: str, minors: list[int], percent: int = 100, meta: Obj | None = None) -> Obj:
    """A pod that holds these cards, or a part of the only one."""
    amounts = {names.RESOURCE_GPU_CORE: str(percent), names.RESOURCE_GPU_MEMORY_RATIO: str(percent)}
    allocated = orjson.dumps({"gpu": [{"minor": minor, "resources": amounts} for minor in minors]}).decode()
    asked = requests(len(minors), percent)
    limits = {key: value for key, value in asked.items() if "/" in key}
    containers = [{"name": "c", "image": "i", "resources": {"requests": asked, "limits": limits}}]
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: allocated, **(meta or {})}
    return pod(name, where, containers=containers, meta={"annotations": annotations})


def machine(name: str, cards: int, cpu: str = "64") -> Obj:
    found = node(name, cpu=cpu)
    share = str(100 * cards)
    found["status"]["allocatable"] = found["status"]["capacity"] = {
        **found["status"]["capacity"], GPU: str(cards), names.RESOURCE_GPU_CORE: share, names.RESOURCE_GPU_MEMORY_RATIO: share,
    }  # fmt: skip
    return found


def waiting(cards: int, name: str = "large") -> Obj:
    status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    containers = [{"name": "c", "image": "i", "resources": {"requests": requests(cards), "limits": {GPU: str(cards)}}}]
    return pod(name, "", containers=containers, status=status)


# ---------------------------------------------------------------- which pods


def view_of(name: str, cards: int, percent: int) -> PodView:
    return pod_view(convert({**holder(name, "n", list(range(cards)), percent), "apiVersion": "v1"}, Pod), None)


@pytest.mark.parametrize("seed", range(8))
def test_the_fewest_pods_are_those_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        groups = []
        for number in range(rng.randint(1, 8)):
            cards = rng.choice((1, 1, 2, 4))
            pods = tuple(
                view_of(f"g{number}-{n}", cards, 100 if cards > 1 else rng.choice((20, 50, 100))) for n in range(rng.randint(1, 3))
            )
            groups.append(Group(pods, cards))
        need = rng.randint(1, 9)
        every = [some for size in range(len(groups) + 1) for some in itertools.combinations(groups, size)]
        enough = [some for some in every if sum(group.cards for group in some) >= need]
        found = fewest(groups, need, {})
        if not enough:
            assert found is None
            continue
        cheapest = min((sum(group.cost[0] for group in some), sum(group.cost[1] for group in some)) for some in enough)
        assert found is not None
        assert Group(found, 0).cost == cheapest


def cluster(seed: int) -> list[NodeView]:
    """Nodes of eight and four cards on which single cards, pairs and shares are spread."""
    rng = random.Random(seed)
    made = []
    for number in range(rng.randint(3, 7)):
        count, name = rng.choice((4, 8)), f"n{number}"
        free, held = list(range(count)), []
        for index in range(rng.randint(0, count)):
            kind = rng.choice(("one", "one", "two", "share"))
            size = 2 if kind == "two" else 1
            if len(free) < size:
                break
            minors = [free.pop(rng.randrange(len(free))) for _ in range(size)]
            if kind == "share":
                for part in range(rng.randint(1, 2)):
                    held.append(holder(f"{name}-{index}-{part}", name, minors, rng.choice((20, 30, 50))))
            else:
                held.append(holder(f"{name}-{index}", name, minors))
        for each in held:
            each["metadata"]["uid"] = each["metadata"]["name"]
        pods = [convert(each, Pod) for each in held]
        made.append(node_view(convert(machine(name, count, rng.choice(("16", "64"))), Node), pods, None, now=NOW))
    return made


def large(cards: int, name: str = "large") -> Pod:
    found = waiting(cards, name)
    found["metadata"] |= {"uid": name, "creationTimestamp": format_time(NOW - 3600)}
    return convert(found, Pod)


def ask(
    rooms: Rooms, nodes: list[NodeView], pods: list[Pod], *, agrees: bool = True, stay: frozenset[str] = frozenset(), now: float = NOW
) -> tuple[list[Evict], list[Rehearse], Handle]:
    """What one round asks for; pods that are told to leave are taken off their nodes."""
    handle = Handle("p", "FragmentationAware", now, (), waiting=pods, clock=lambda: 0.0)
    evicted: list[Evict] = []
    asked: list[Rehearse] = []
    by_name = {each.name: each for each in nodes}
    turn = rooms.turn(nodes, Columns(nodes), handle, lambda each: "it stays" if each.metadata.name in stay else "", dry_run=False)
    effect = next(turn, None)
    while effect is not None:
        answer = True
        if isinstance(effect, Rehearse):
            asked.append(effect)
            answer = agrees
        elif isinstance(effect, Evict):
            evicted.append(effect)
            by_name[effect.pod.spec.node_name].take(effect.pod.metadata.uid)
        else:
            assert isinstance(effect, Pause)
        try:
            effect = turn.send(answer)
        except StopIteration:
            break
    return evicted, asked, handle


@pytest.mark.parametrize("seed", range(60))
def test_room_is_made_within_bounds_or_nothing_moves(seed: int) -> None:
    nodes = cluster(seed)
    wants = random.Random(seed).choice((2, 4, 8))
    pods = [large(wants)]
    if seed % 3 == 0:
        pods.append(large(4, "second"))
    before = {each.name: Cards.of(each) for each in nodes}
    most = 1 + seed % 4
    args = GPURoomArgs(max_moves_per_pod=most, max_moves_per_round=most + 1)
    evicted, asked, handle = ask(Rooms(args), nodes, pods)
    assert len(evicted) <= most + 1
    assert all(len(each.leaving) <= most for each in asked)
    assert {each.pod.metadata.uid for each in evicted} == {each.metadata.uid for one in asked for each in one.leaving}
    # play it: those who leave are gone from their nodes, then they and those who wait are placed
    after = {each.name: Cards.of(each) for each in nodes}
    for question in asked:
        source = {each.spec.node_name for each in question.leaving}
        assert len(source) == 1
        cards, view = after[source.pop()], pod_view(question.pod, None)
        own = wanted(view.requests)
        assert cards is not None
        assert own is not None
        minors = cards.room(own)
        assert minors is not None, "the pod that waits would not fit after all"
        cards.add(view, minors)
        free = cards.node.allocatable["cpu"] - cards.node.requested.get("cpu", 0)
        assert free >= view.requests["cpu"]
        assert before[cards.node.name] is not None
        assert before[cards.node.name].whole < own.cards or free - view.requests["cpu"] < sum(
            pod_view(each, None).requests["cpu"] for each in question.leaving
        ), "nobody had to move"
    for each in evicted:
        view = pod_view(each.pod, None)
        own = wanted(view.requests)
        target = after[each.target]
        assert target is not None
        assert own is not None
        minors = target.room(own)
        assert minors is not None, "a pod that moved fits nowhere"
        target.add(view, minors)
        assert own.gpu * 2 <= wants * 100 or len(pods) > 1
        assert each.pod.spec.node_name != each.target
    told = [record for record in handle.records if record.verdict == "Fragmented"]
    assert {record.subject.name for record in told} == {each.metadata.name for each in pods} or len(evicted) >= most


def spread() -> list[NodeView]:
    """Two nodes of four cards: one has two single cards in use, the other three."""
    held = {"a": (0, 2), "b": (0, 1, 2)}
    found = []
    for name, minors in held.items():
        pods = [holder(f"{name}{minor}", name, [minor]) for minor in minors]
        for each in pods:
            each["metadata"]["uid"] = each["metadata"]["name"]
        found.append(node_view(convert(machine(name, 4), Node), [convert(each, Pod) for each in pods], None, now=NOW))
    return found


def third(name: str = "c", used: int = 0) -> NodeView:
    pods = [
        convert({**(each := holder(f"{name}{m}", name, [m])), "metadata": {**each["metadata"], "uid": f"{name}{m}"}}, Pod)
        for m in range(used)
    ]
    return node_view(convert(machine(name, 2), Node), pods, None, now=NOW)


def test_what_it_would_take_is_told_when_it_is_too_much() -> None:
    evicted, _, handle = ask(Rooms(GPURoomArgs(max_moves_per_pod=1)), [*spread(), third()], [large(4)])
    assert not evicted
    (record,) = [each for each in handle.records if each.verdict == "Fragmented"]
    assert record.message == "2 pods would have to move from node a at least, more than maxMovesPerPod (1) allows"
    assert record.numbers["moves"] == 2


def test_nothing_moves_that_may_not_leave_or_that_the_scheduler_would_not_place() -> None:
    evicted, asked, handle = ask(Rooms(GPURoomArgs()), [*spread(), third()], [large(4)], agrees=False)
    assert not evicted
    assert asked
    assert "the scheduler would not place it" in handle.records[-1].message
    stay = frozenset(("a0", "b0"))
    evicted, asked, handle = ask(Rooms(GPURoomArgs()), [*spread(), third()], [large(4)], stay=stay)
    assert not evicted
    assert not asked
    assert handle.records[-1].message.endswith("and some may not leave, such as default/a0: it stays")


def test_room_is_made_once_for_a_pod_and_again_when_it_did_not_help() -> None:
    rooms, nodes = Rooms(GPURoomArgs()), [*spread(), third()]
    assert [each.pod.metadata.name for each in ask(rooms, nodes, [large(4)])[0]] == ["a0", "a2"]
    assert not ask(rooms, [*spread(), third()], [large(4)], now=NOW + 60)[0], "moves are on their way"
    assert ask(rooms, [*spread(), third()], [large(4)], now=NOW + 601)[0]


def test_pods_on_their_way_out_count_as_room_after_a_restart() -> None:
    nodes = [*spread(), third()]
    for view in nodes[0].pods:
        view.leaving = True
    evicted, asked, handle = ask(Rooms(GPURoomArgs()), nodes, [large(4)])
    assert not evicted
    assert not asked
    assert "will have once pods that leave it are gone" in handle.records[-1].message


def test_small_and_young_pods_are_not_waited_upon() -> None:
    young = convert({**waiting(4), "metadata": {"name": "y", "uid": "y", "creationTimestamp": format_time(NOW - 10)}}, Pod)
    evicted, asked, handle = ask(Rooms(GPURoomArgs()), [*spread(), third()], [large(1, "one"), young])
    assert not evicted
    assert not asked
    assert not handle.records


def test_requests_of_gpus_in_their_forms() -> None:
    assert wanted({GPU: 2}) == Wanted(2, 100)
    assert wanted({names.RESOURCE_GPU: 300}) == Wanted(3, 100)
    assert wanted({names.RESOURCE_GPU_CORE: 30, names.RESOURCE_GPU_MEMORY_RATIO: 50}) == Wanted(1, 50)
    assert wanted({names.RESOURCE_GPU_SHARED: 2, names.RESOURCE_GPU_MEMORY_RATIO: 100}) == Wanted(2, 50)
    assert wanted({names.RESOURCE_GPU_MEMORY: 1 << 30}) == Wanted(1, 0)
    assert wanted({"cpu": 4000}) is None


# ---------------------------------------------------------------- through the descheduler's own door

OBJECTS = [machine("a", 4), machine("b", 4), holder("a0", "a", [0]), holder("a1", "a", [3]), holder("b0", "b", [0]), waiting(4)]


def text(**gpus: Any) -> str:
    args = {"evenNodes": False, "gpus": {"minWaitingSeconds": 0, **gpus}}
    return configuration({"balance": ["FragmentationAware"]}, {"FragmentationAware": args})


def test_the_pod_that_waits_is_placed_where_fewest_had_to_leave() -> None:
    async def scenario() -> None:
        async with descheduling(OBJECTS, text()) as running:
            await running.wait_rounds(1)
            assert await running.pods() == {"a0", "a1", "large"}
            (evicted,) = running.records("Evicted")
            assert evicted.numbers["reason"] == "makes room for pod default/large, which waits for 4 cards, on node b by moving 1 pod"
            assert evicted.numbers["target"] == "a"
            async with asyncio.timeout(patience.seconds(20)):
                while (await running.client.get(kinds.PODS, "large", "default"))["spec"].get("nodeName") != "b":
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())


def test_what_is_more_than_the_scheduler_or_the_bound_allows_does_not_move() -> None:
    tight = [*OBJECTS, holder("b1", "b", [1])]
    done = after_rounds(tight, text(maxMovesPerPod=1))
    assert done.pods == {"a0", "a1", "b0", "b1", "large"}
    assert "2 pods would have to move" in done.records("Fragmented")[0].message
    small = [machine("a", 4, cpu="5"), *OBJECTS[1:]]  # a takes no third pod
    assert "b0" in after_rounds(small, text()).pods


def test_pods_that_make_room_migrate_with_a_place_reserved_first() -> None:
    """As installed: MigrationController evicts b0 once a reservation has a place for it, and the pod that waits gets node b."""
    evictors = {"evict": ["MigrationController"], "filter": ["MigrationController"]}
    args: dict[str, Obj] = {
        "FragmentationAware": {"evenNodes": False, "gpus": {"minWaitingSeconds": 0}},
        "MigrationController": {"maxUnavailablePerWorkload": 39, "maxMigratingPerWorkload": 2, "evictionPolicy": "Eviction"},
    }

    async def scenario() -> None:
        async with descheduling(OBJECTS, configuration({"balance": ["FragmentationAware"], **evictors}, args)) as running:

            async def moved() -> bool:
                return (await running.client.get(kinds.PODS, "large", "default"))["spec"].get("nodeName") == "b"

            await eventually(moved)
            assert await running.pods() == {"a0", "a1", "large"}
            (job,) = (await running.client.list(kinds.PODMIGRATIONJOBS)).items
            assert job["spec"]["mode"] == "ReservationFirst"
            (place,) = (await running.client.list(kinds.RESERVATIONS)).items
            assert place["status"]["nodeName"] == "a"

    asyncio.run(scenario())
