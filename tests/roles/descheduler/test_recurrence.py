"""Nobody is evicted in vain for ever: pods that come back are left in place, one refusal a round is enough, evictors do not cross, and a
reservation counts topology spread as its pod does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from koord.api import objects
from koord.api.objects import Node, Pod
from roles.descheduler.framework.evicting import EvictOptions, EvictResult
from roles.descheduler.framework.limits import Limits
from roles.descheduler.framework.round import Profile, Rounds
from roles.descheduler.migration.template import elsewhere
from roles.descheduler.snapshot import NodeView, node_view
from roles.descheduler.spreading import Spread
from tests.roles.descheduler.support import node, pod
from tests.roles.descheduler.test_rounds import Evictor, Nothing, made

HOUR = 3600.0
OWNED = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1", "controller": True}]}


def views(where: dict[str, str], nodes: int = 2) -> list[NodeView]:
    """Nodes with pods of one workload, by name."""
    found = []
    for name in [f"n{number}" for number in range(nodes)]:
        there = []
        for each in sorted(one for one, at in where.items() if at == name):
            there.append(objects.convert(pod(each, name, meta={"uid": each, **OWNED}), Pod))
        found.append(node_view(objects.convert(node(name), Node), there, None, now=0.0))
    return found


def lived(rounds: Rounds, evictor: Evictor, hours: float, place: Callable[[int], str], interval: float = 300.0) -> list[float]:
    """When pods of a workload of three left, round after round, with successors where `place` puts the n-th one."""
    where, made_, left = {f"p{number}": "n0" for number in range(3)}, 3, []
    for turn in range(int(hours * HOUR / interval)):
        now = turn * interval
        asyncio.run(rounds.run(views(where), now, Nothing()))
        for gone in [one.metadata.name for one in evictor.gone]:
            del where[gone]
            where[f"p{made_}"] = place(made_)
            made_ += 1
            left.append(now)
        evictor.gone.clear()
    return left


def profile(plugin: str, evictor: Evictor) -> Profile:
    found = made(plugin)
    return Profile("p", None, evictor, [evictor], {"deschedule": [], "balance": []} | {found.point: [found]})


@pytest.mark.feature("DS-FW-03")
def test_pods_that_the_scheduler_puts_back_are_left_alone_for_longer_each_time() -> None:
    evictor = Evictor(Limits(per_node=1))
    rounds = Rounds([profile("RemoveDuplicates", evictor)], selector=None, limits=evictor.limits, dry_run=False)
    left = lived(rounds, evictor, 24.0, lambda number: "n0")
    assert 3 <= len(left) <= 2 + 24 + 6, left  # without the brake one leaves in each of 288 rounds
    gaps = [later - earlier for earlier, later in itertools.pairwise(left)][4:]
    assert gaps == sorted(gaps)
    assert max(gaps) == HOUR


@pytest.mark.feature("DS-FW-03")
def test_where_successors_go_elsewhere_nobody_waits() -> None:
    evictor = Evictor(Limits())
    rounds = Rounds([profile("RemoveDuplicates", evictor)], selector=None, limits=evictor.limits, dry_run=False)
    left = lived(rounds, evictor, 1.0, lambda number: "n1")
    assert left == [0.0], "one of three is too many for two nodes"


@pytest.mark.feature("DS-FW-03")
def test_a_plugin_that_minds_no_place_takes_successors_as_they_come() -> None:
    evictor = Evictor(Limits())
    rounds = Rounds([profile("PodLifeTime", evictor)], selector=None, limits=evictor.limits, dry_run=False)
    assert len(lived(rounds, evictor, 1.0, lambda number: "n0")) == 3 * 12


@pytest.mark.feature("DS-FW-03")
def test_what_the_evictor_has_refused_is_not_asked_again_in_the_round() -> None:
    class Asked(Evictor):
        asked = 0

        async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
            self.asked += 1
            return EvictResult(False, "a disruption budget does not allow it now")

    evictor = Asked(Limits())
    both = Profile("p", None, evictor, [evictor], {"deschedule": [made("PodLifeTime")], "balance": [made("RemoveDuplicates")]})
    rounds = Rounds([both], selector=None, limits=Limits(), dry_run=False)
    outcome = asyncio.run(rounds.run(views({"p0": "n0", "p1": "n0", "p2": "n0"}), 0.0, Nothing()))
    assert evictor.asked == 3
    assert len([record for record in outcome.records if record.verdict == "NotEvicted"]) > 3, "each plugin is told why"
    asyncio.run(rounds.run(views({"p0": "n0", "p1": "n0", "p2": "n0"}), 300.0, Nothing()))
    assert evictor.asked == 6


@pytest.mark.feature("DS-FW-03")
def test_what_one_evictor_has_begun_no_other_one_finishes() -> None:
    class Moves(Evictor):
        def holds(self, pod: Pod) -> str:
            return "PodMigrationJob j is to move it" if pod.metadata.name == "p0" else ""

    evictor, other = Evictor(Limits()), Moves(Limits())
    empty: dict[str, list[Any]] = {"deschedule": [], "balance": []}
    ages = empty | {"deschedule": [made("PodLifeTime")]}
    profiles = [Profile("at once", None, evictor, [evictor], ages), Profile("p", None, other, [other], empty)]
    rounds = Rounds(profiles, selector=None, limits=Limits(), dry_run=False)
    outcome = asyncio.run(rounds.run(views({"p0": "n0", "p1": "n0"}), 0.0, Nothing()))
    assert [one.metadata.name for one in evictor.gone] == ["p1"]
    assert any("PodMigrationJob j is to move it" in record.message for record in outcome.records if record.verdict == "NotEvicted")


@pytest.mark.feature("DS-MC-07")
@pytest.mark.parametrize("policy", ["Honor", "Ignore", None])
def test_a_reservation_that_is_kept_to_some_nodes_counts_all_for_topology_spread(policy: str | None) -> None:
    """Else it would lie where the pod that comes may not go: n1 is empty, and the reservation would not know."""
    constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    constraint |= {"labelSelector": {"matchLabels": {"app": "web"}}} | ({"nodeAffinityPolicy": policy} if policy else {})
    body = pod("web", "n0", meta={"labels": {"app": "web"}}, topologySpreadConstraints=[constraint])
    moves = objects.convert(body, Pod)
    asks = elsewhere(moves, ["n2"])
    nodes = views({}, nodes=4)
    for node_ in nodes:
        counted = [Spread(each.spec.topology_spread_constraints[0], each).counts(node_.node) for each in (moves, asks)]
        assert counted == [True, True], node_.name


@pytest.mark.feature("DS-MC-07")
def test_a_reservation_of_a_pod_that_is_bound_to_nodes_counts_those_only() -> None:
    constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    body = pod("web", "n0", topologySpreadConstraints=[constraint], nodeSelector={"disk": "ssd"})
    asks = elsewhere(objects.convert(body, Pod), ["n2"])
    assert asks.spec.topology_spread_constraints[0].node_affinity_policy is None
