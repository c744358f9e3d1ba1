"""Scoring by what a placement strands: against brute force, kept against fresh, and what it brings (SCH-DEV-18)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from koord.config.errors import InvalidConfig
from roles.scheduler import testing
from roles.scheduler.framework.registry import PluginError
from roles.scheduler.plugins.device_share.fragmentation import STEPS, Tables
from roles.scheduler.plugins.device_share.groups import Groups
from roles.scheduler.plugins.device_share.request import request_for
from tests.benchmarks import openb
from tests.roles.scheduler.device.test_numa import RESTRICTED, SINGLE, both
from tests.roles.scheduler.device.test_numa import machine as numa_machine
from tests.support.devices import CORE, RATIO, add, device, gpus, minors, pod, world
from tests.support.numa import nrt

ARGS: Any = {"scoringStrategy": {"type": "LeastStranded"}}


def plugin(found: testing.World) -> Any:
    return found.framework.plugins["DeviceShare"]


def see(found: testing.World, *pods: Any) -> list[Any]:
    """Pods that the cluster has shown."""
    infos = [found.parser.parse(item) for item in pods]
    for info in infos:
        plugin(found).pod_seen(info)
    return infos


def machine(found: testing.World, name: str, cards: int, cpu: int, memory: int, **labels: str) -> None:
    amounts = {"nvidia.com/gpu": str(cards), CORE: str(100 * cards), RATIO: str(100 * cards)} if cards else {}
    found.add_nodes(testing.node(name, labels=labels, cpu=str(cpu), memory=f"{memory}Gi", **amounts))
    if cards:
        found.feed("Device", device(name, gpus(cards)))


def worth(tables: Tables, free: list[int], cpu: float, memory: float, labels: dict[str, str]) -> float:
    """What a node is worth, card by card and class by class."""
    total = 0.0
    for weight, one, number in zip(tables.weights.tolist(), tables.classes, range(len(tables.classes)), strict=True):
        if not all(labels.get(item.key) in item.values for item in one.selector):
            continue
        if one.cards > 1 and sum(card == 100 for card in free) < one.cards:
            continue
        usable = sum(float(tables.worth[card, number]) for card in free)
        for left, asked in ((cpu, one.cpu), (memory, one.memory)):
            if asked:
                usable = min(usable, left * one.cards * one.percent / asked)
        total += weight * usable
    return total


@pytest.mark.feature("SCH-DEV-18")
@pytest.mark.parametrize("seed", range(6))
def test_scores_equal_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    found = world(ARGS)
    nodes = {f"n{n}": (rng.choice((0, 1, 2, 4, 8)), rng.choice((8, 32, 96)), rng.choice((32, 256)), rng.choice("ab")) for n in range(9)}
    for name, (cards, cpu, memory, pool) in nodes.items():
        machine(found, name, cards, cpu, memory, pool=pool)

    def draw() -> Any:
        cards = rng.choice((0, 1, 1, 1, 2, 4))
        percent = rng.choice((100, 100, 30, 50, 81)) if cards == 1 else 100
        more = {"nodeSelector": {"pool": rng.choice("ab")}} if rng.random() < 0.3 else {}
        requests = {CORE: percent * cards, RATIO: percent * cards} if cards else {}
        return pod(requests, cpu=str(rng.randint(1, 12)), memory=f"{rng.randint(1, 40)}Gi", **more)

    for _ in range(30):
        found.schedule(see(found, draw())[0])
    tables, cluster = plugin(found)._stranding.tables, found.cluster
    for _ in range(8):
        info = found.parser.parse(draw())
        decision = found.decide(info)
        if not decision.scheduled:
            continue
        vector = plugin(found).score(decision.ctx, slice(None))
        asked = dict(info.shape.requests)
        wanted = int(info.shape.amounts.get(CORE, 0))
        for name, (cards, _, _, pool) in nodes.items():
            slot = cluster.slot_of(name)
            if not decision.ctx.feasible[slot]:
                continue
            used = plugin(found).columns.node(slot).use
            free = [100 - used.of(("gpu", minor)).get(RATIO, 0) for minor in range(cards)]
            cpu, memory = cluster.free[0].item(slot), cluster.free[1].item(slot)
            before = worth(tables, free, cpu, memory, {"pool": pool})
            left = list(free)
            if 0 < wanted < 100:
                card = [float(tables.card[value]) for value in range(101)]
                costs = [(round((card[free[n]] - card[free[n] - wanted]) * STEPS), n) for n in range(cards) if free[n] >= wanted]
                left[min(costs)[1]] -= wanted
            else:
                for index in [n for n in range(cards) if free[n] == 100][: wanted // 100]:
                    left[index] = 0
            after = worth(tables, left, cpu - asked.get(0, 0), memory - asked.get(1, 0), {"pool": pool})
            assert -vector[slot] == pytest.approx((before - after) * STEPS, abs=1.0), (name, free, wanted)


# ---------------------------------------------------------------- nodes that hand out cards in groups

HONOR = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
TABLES: Any = {  # minors by size; a pair across the middle of the second is there to be chosen wrongly
    "blocks": {1: [[n] for n in range(8)], 2: [[0, 1], [2, 3], [4, 5], [6, 7]], 4: [[0, 1, 2, 3], [4, 5, 6, 7]], 8: [[*range(8)]]},
    "ring": {1: [[n] for n in range(4)], 2: [[0, 1], [1, 2], [2, 3], [0, 3]], 4: [[0, 1, 2, 3]]},
    "pairs": {2: [[0, 1], [2, 3]]},
}


def partitioned(found: testing.World, name: str, table: str, **labels: str) -> None:
    cards = 8 if table == "blocks" else 4
    amounts = {"nvidia.com/gpu": str(cards), CORE: str(100 * cards), RATIO: str(100 * cards)}
    found.add_nodes(testing.node(name, labels={**HONOR, **labels}, cpu="64", memory="256Gi", **amounts))
    rows = {str(size): [{"minors": minors, "allocationScore": 1} for minors in sets] for size, sets in TABLES[table].items()}
    found.feed("Device", device(name, gpus(cards), labels=HONOR, partitions=rows))


def at_once(sets: list[list[int]], free: set[int]) -> int:
    """How many of the sets can be had together, by trying all."""
    best, fitting = 0, [set(each) for each in sets if set(each) <= free]
    for size in range(1, len(fitting) + 1):
        for some in itertools.combinations(fitting, size):
            if sum(map(len, some)) == len(set().union(*some)):
                best = size
    return best


def grouped_worth(tables: Tables, free: list[int], cpu: float, memory: float, sets: dict[int, list[list[int]]]) -> float:
    """As `worth`, of a node that hands out cards in these sets."""
    total, whole = 0.0, {minor for minor, left in enumerate(free) if left == 100}
    for weight, one, number in zip(tables.weights.tolist(), tables.classes, range(len(tables.classes)), strict=True):
        usable = sum(float(tables.worth[card, number]) for card in free)
        if one.percent == 100:
            pods = at_once(sets.get(one.cards, []), whole)
            if one.cards > 1 and not pods:
                continue
            usable = max(0.0, usable - 100 * (len(whole) - one.cards * pods))
        for left, asked in ((cpu, one.cpu), (memory, one.memory)):
            if asked:
                usable = min(usable, left * one.cards * one.percent / asked)
        total += weight * usable
    return total


def check_grouped(found: testing.World, draw: Any, sets: Any, rounds: int = 6) -> int:
    """Compare the scores of some pods with brute force; returns how many figures were compared."""
    tables, cluster, compared = plugin(found)._stranding.tables, found.cluster, 0
    for _ in range(rounds):
        info = found.parser.parse(draw())
        decision = found.decide(info)
        if not decision.scheduled:
            continue
        vector, asked = plugin(found).score(decision.ctx, slice(None)), dict(info.shape.requests)
        for name, groups in sets.items():
            slot = cluster.slot_of(name)
            if not decision.ctx.feasible[slot]:
                continue
            node = plugin(found).columns.node(slot)
            cards = node.inventory.cards["gpu"]
            free = [100 - node.use.of(("gpu", minor)).get(RATIO, 0) for minor in range(len(cards))]
            left = list(free)
            request = request_for(info.shape)
            if request is not None:
                affinity = plugin(found)._topology.at_filter(decision.ctx, slot).affinity
                for share in plugin(found).chooser.outcome(decision.ctx, slot, request, affinity):
                    left[share.minor] -= dict(share.amounts)[RATIO]
            cpu, memory = cluster.free[0].item(slot), cluster.free[1].item(slot)
            before = grouped_worth(tables, free, cpu, memory, groups)
            after = grouped_worth(tables, left, cpu - asked.get(0, 0), memory - asked.get(1, 0), groups)
            assert -vector[slot] == pytest.approx((before - after) * STEPS, abs=1.0), (name, free, left)
            compared += 1
    return compared


def drawn(rng: random.Random) -> Any:
    cards = rng.choice((0, 1, 1, 1, 2, 2, 4))
    percent = rng.choice((100, 100, 30, 50)) if cards == 1 else 100
    return pod(
        {CORE: percent * cards, RATIO: percent * cards} if cards else {}, cpu=str(rng.randint(1, 6)), memory=f"{rng.randint(1, 8)}Gi"
    )


@pytest.mark.feature("SCH-DEV-18")
@pytest.mark.parametrize("seed", range(5))
def test_scores_of_nodes_with_partitions_equal_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    found = world(ARGS)
    nodes = {f"n{number}": rng.choice(sorted(TABLES)) for number in range(5)}
    for name, table in nodes.items():
        partitioned(found, name, table)
    found.cycle.verify = 1
    for _ in range(12):
        found.schedule(see(found, drawn(rng))[0])
    assert check_grouped(found, lambda: drawn(rng), {name: TABLES[table] for name, table in nodes.items()})
    assert not found.framework.trust.unkept


@pytest.mark.feature("SCH-DEV-18")
@pytest.mark.parametrize("policy", [SINGLE, RESTRICTED])
def test_scores_of_nodes_with_numa_policies_equal_brute_force(policy: str) -> None:
    found = both(ARGS)
    rng = random.Random(policy)
    halves = [list(range(4)), list(range(4, 8))]
    sets = {size: [list(some) for half in halves for some in itertools.combinations(half, size)] for size in (1, 2, 4)}
    for name in ("a", "b"):
        numa_machine(found, name, policy, gpus(8))

    def draw() -> Any:
        cards = rng.choice((1, 1, 2, 4))
        return pod({CORE: 100 * cards, RATIO: 100 * cards}, cpu="1")

    for _ in range(4):
        found.schedule(see(found, draw())[0])
    assert check_grouped(found, draw, {"a": sets, "b": sets}, 12)


@pytest.mark.feature("SCH-DEV-18")
def test_a_node_whose_numa_policy_has_gone_is_worth_what_its_like_is() -> None:
    found = both(ARGS)
    for name in ("a", "b"):
        numa_machine(found, name, "", gpus(4, per_switch=1, per_numa=2))
    one = pod({CORE: 100, RATIO: 100}, cpu="1", memory="1Gi")
    see(found, one, *(pod({CORE: 100 * cards, RATIO: 100 * cards}, cpu="1") for cards in (2, 3) for _ in range(6)))
    for policy in ("SingleNUMANodePodLevel", "None"):
        found.feed("NodeResourceTopology", nrt("a", policy=policy, sockets=1, nodes=2, cores=4))
        totals = found.decide(one).evaluation.totals[:2].tolist()
    assert totals[0] == totals[1]


@pytest.mark.feature("SCH-DEV-18")
@pytest.mark.parametrize("seed", range(30))
def test_how_many_groups_there_are_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    sets = [sorted(rng.sample(range(8), 2)) for _ in range(rng.randint(0, 9))]
    groups = Groups(((2, tuple(sum(1 << minor for minor in each) for each in sets)),))
    free = {minor for minor in range(8) if rng.random() < 0.8}
    assert groups.most(sum(1 << minor for minor in free), 2) == at_once(sets, free)


@pytest.mark.feature("SCH-DEV-18")
def test_a_card_goes_where_no_pair_is_broken_and_the_record_says_what_is_left() -> None:
    found = world(ARGS)
    for name in ("a", "b"):
        partitioned(found, name, "blocks")
    pair, one = pod({CORE: 200, RATIO: 200}, cpu="4"), pod({CORE: 100, RATIO: 100}, cpu="2")
    see(found, *[pod({CORE: 200, RATIO: 200}, cpu="4") for _ in range(6)], one)
    found.schedule(pod({CORE: 100, RATIO: 100}, cpu="2", nodeSelector={"kubernetes.io/hostname": "b"}))
    decision = found.schedule(one)
    assert decision.node == "b"  # where a pair is broken already
    told = {term.name: term for term in plugin(found).placed(decision.ctx, decision.slot)}
    left = told["gpu: cards that one pod can still get"]
    assert (left.value, left.note) == (4, "by its partitions")
    assert found.schedule(pair).scheduled


@pytest.mark.feature("SCH-DEV-18")
def test_kept_scores_equal_fresh_ones() -> None:
    machines, asks = openb.made(12, seed=3)
    found = openb.cluster(machines, openb.profile("installed"))
    found.cycle.verify = 1
    for number, ask in enumerate(openb.arrivals(asks, 1000 * sum(one.gpu for one in machines), 1)[:70]):
        found.schedule(see(found, openb.pod_of(ask, number))[0])
    assert not found.framework.trust.unkept


@pytest.mark.feature("SCH-DEV-18")
@pytest.mark.feature("SCH-DEV-12")
@pytest.mark.parametrize("seed", [3, 21, 25])
def test_scores_of_numa_nodes_follow_what_cards_are_worth(seed: int) -> None:
    found, rng = both(ARGS), random.Random(seed)
    for name in ("a", "b"):
        numa_machine(found, name, SINGLE, gpus(4, per_switch=1, per_numa=2))
    found.cycle.verify = 1

    def some(*percents: int) -> Any:
        percent = rng.choice(percents)
        return pod({CORE: percent, RATIO: percent}, cpu=rng.choice(("1", "4")))

    for _ in range(12):
        see(found, *(some(25, 30, 50, 75, 100, 200) for _ in range(rng.randint(1, 30))))
        found.bind(see(found, some(25, 50, 100))[0].pod)
        for percent in (25, 50, 100):
            found.decide(pod({CORE: percent, RATIO: percent}, cpu="1"))
    assert not found.framework.trust.unkept


@pytest.mark.feature("SCH-DEV-18")
def test_answers_kept_before_devices_came_equal_fresh_ones() -> None:
    """As after a restart: pods are known before Devices, and a pod without devices is the first one for whom nodes are scored."""
    found = world(ARGS)
    see(found, *(pod({"nvidia.com/gpu": "1"}, cpu="8") for _ in range(4)))
    for name in ("a", "b"):
        amounts = {"nvidia.com/gpu": "4", CORE: "400", RATIO: "400"}
        found.add_nodes(testing.node(name, cpu="16", memory="64Gi", **amounts))
        found.feed("Device", device(name, gpus(4)))
    first, second = (testing.pod(requests={"cpu": "12"}) for _ in range(2))
    found.decide(found.parser.parse(first))
    found.decide(found.parser.parse(pod({"nvidia.com/gpu": "1"}, cpu="8")))
    found.cycle.verify = 1
    found.decide(found.parser.parse(second))
    assert not found.framework.trust.unkept


@pytest.mark.feature("SCH-DEV-18")
def test_what_was_learnt_without_devices_is_learnt_anew_once_there_are_some() -> None:
    found = world(ARGS)
    shares = [pod({"koordinator.sh/gpu-memory": "8Gi"}, cpu="1") for _ in range(4)]
    see(found, *shares)
    stranding = plugin(found)._stranding
    blind = stranding.tables
    machine(found, "a", 4, 64, 256)
    see(found, shares[0])
    assert stranding.tables is not blind
    version = stranding.version
    see(found, shares[1])
    assert stranding.version == version
    rest = world(ARGS)
    machine(rest, "a", 4, 64, 256)
    see(rest, *shares)
    assert stranding.tables.worth.tolist() == plugin(rest)._stranding.tables.worth.tolist()


@pytest.mark.feature("SCH-DEV-18")
def test_a_share_goes_to_the_card_whose_use_strands_least() -> None:
    """70 % are free on one card and 30 % on another; who comes wants 30 % or 70 %: emptiest and lowest first would spoil the 70 %."""
    found = world(ARGS)
    add(found, "n", gpus(2))
    half = [pod({CORE: share, RATIO: share}, cpu="1") for share in (30, 70, 30, 70)]
    see(found, *half)
    assert minors(found, pod({CORE: 30, RATIO: 30}, cpu="1")) == [0]
    assert minors(found, pod({CORE: 70, RATIO: 70}, cpu="1")) == [0]
    assert minors(found, pod({CORE: 70, RATIO: 70}, cpu="1")) == [1]
    assert minors(found, pod({CORE: 30, RATIO: 30}, cpu="1")) == [1]


@pytest.mark.feature("SCH-DEV-18")
def test_single_cards_leave_room_for_eight_and_the_record_says_what_is_stranded() -> None:
    found = world(ARGS)
    for name in ("a", "b", "c"):
        machine(found, name, 8, 96, 768)
    see(found, *[pod({CORE: 100, RATIO: 100}, cpu="4") for _ in range(8)], pod({CORE: 800, RATIO: 800}, cpu="32"))
    placed = [found.schedule(pod({CORE: 100, RATIO: 100}, cpu="4")) for _ in range(8)]
    assert len({decision.node for decision in placed}) == 1
    assert [found.schedule(pod({CORE: 800, RATIO: 800}, cpu="32")).scheduled for _ in range(2)] == [True, True]
    told = [term.name for term in plugin(found).placed(placed[-1].ctx, placed[-1].slot)]
    assert "gpu: stranded there for what typically asks" in told


@pytest.mark.feature("SCH-DEV-18")
def test_a_card_whose_model_few_may_use_is_left_to_them() -> None:
    found = world(ARGS)
    for number in range(4):
        machine(found, f"n{number}", 2, 64, 256, model="rare" if number == 0 else "common")
    bound = [pod({CORE: 100, RATIO: 100}, cpu="2", nodeSelector={"model": "rare"}) for _ in range(3)]
    free = [pod({CORE: 100, RATIO: 100}, cpu="2") for _ in range(6)]
    see(found, *bound, *free)
    assert "n0" not in {found.schedule(item).node for item in free}


@pytest.mark.feature("SCH-DEV-18")
def test_a_node_with_other_labels_is_worth_something_else_also_after_a_record_was_made() -> None:
    requests = ({"nvidia.com/gpu": "1", "cpu": "4"}, {"nvidia.com/gpu": "8", "cpu": "8"})
    typical = [{"requests": each, "nodeSelector": {"pool": pool}} for each, pool in zip(requests, "xy", strict=True)]
    found = world({"scoringStrategy": {"type": "LeastStranded", "typicalPods": typical}})
    for name in "abc":
        machine(found, name, 8, 64, 256, pool="x" if name == "a" else "y", zone="2" if name == "c" else "1")
    other = found.schedule(see(found, pod({CORE: 100, RATIO: 100}, cpu="4", nodeSelector={"zone": "2"}))[0])
    for pool in ("x", "z"):
        machine(found, "a", 8, 64, 256, pool=pool, zone="1")
        plugin(found).placed(other.ctx, other.slot)
        decision = found.decide(pod({CORE: 100, RATIO: 100}, cpu="4", nodeSelector={"zone": "1"}))
    assert decision.node == "a"  # nobody's any more
    assert plugin(found).score(decision.ctx, slice(None))[decision.slot] == 0


@pytest.mark.feature("SCH-DEV-18")
@pytest.mark.parametrize("seed", range(3))
def test_pods_without_devices_keep_off_nodes_with_devices_while_others_have_room(seed: int) -> None:
    """Packing never makes a pod unplaceable: whoever fits somewhere is placed, on a node without devices if one of these has room."""
    rng = random.Random(seed)
    found = openb.cluster([openb.Machine(f"n{n}", 16000, 64 << 10, 4 if n % 2 else 0, "G2") for n in range(6)], openb.profile("installed"))
    cluster = found.cluster
    for number in range(40):
        cpu, cards = rng.randint(1, 8), rng.choice((0, 0, 1))
        info = see(found, openb.pod_of(openb.Ask(cpu * 1000, cpu << 12, cards, 1000), number))[0]
        room = {f"n{n}" for n in range(6) if cluster.free[0][cluster.slot_of(f"n{n}")] >= cpu * 1000}
        without = {name for name in room if int(name[1:]) % 2 == 0}
        decision = found.schedule(info)
        if not cards:
            assert decision.scheduled == bool(room)
            assert not without or decision.node in without
        elif decision.scheduled:
            assert int(decision.node[1:]) % 2


@pytest.mark.feature("SCH-DEV-18")
def test_as_installed_more_is_allocated_than_by_spreading() -> None:
    machines, asks = openb.made(12, seed=2)
    spread = openb.profile("installed")
    for entry in spread["pluginConfig"]:
        if entry["name"] == "DeviceShare":
            entry["args"]["scoringStrategy"] = {"type": "LeastAllocated"}
    installed = openb.run(machines, asks, openb.profile("installed"), 1)
    assert installed.at130 >= openb.run(machines, asks, spread, 1).at130 + 3


@pytest.mark.feature("SCH-DEV-18")
def test_what_typically_asks_may_be_given() -> None:
    typical = [{"requests": {"nvidia.com/gpu": "4", "cpu": "16"}, "weight": 3}, {"requests": {"koordinator.sh/gpu-core": "50"}}]
    with pytest.raises(PluginError, match="name no GPUs"):
        world({"scoringStrategy": {"type": "LeastStranded", "typicalPods": [{"requests": {"cpu": "1"}}]}})
    with pytest.raises(InvalidConfig, match="typicalPods"):
        world({"scoringStrategy": {"type": "LeastAllocated", "typicalPods": typical[:1]}})
    found = world({"scoringStrategy": {"type": "LeastStranded", "typicalPods": typical[:1]}})
    for name in ("a", "b"):
        machine(found, name, 4, 64, 256)
    found.schedule(pod({CORE: 100, RATIO: 100}, cpu="1", nodeSelector={"kubernetes.io/hostname": "b"}))
    assert found.decide(see(found, pod({CORE: 100, RATIO: 100}, cpu="1"))[0]).node == "b"
