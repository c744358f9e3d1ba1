"""Gangs and the network through the scheduler's door."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koord.api.kinds import CLUSTERNETWORKTOPOLOGIES, PODS
from koord.api.names import ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX, ANNOTATION_NETWORK_TOPOLOGY_SELECTOR
from tests.support import patience

Obj = dict[str, Any]
OPTIONS = {"network_topology": True}


async def topology(g: Any, *more: Obj) -> None:
    layers = [
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "RackLayer"},
        {"topologyLayer": "RackLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["example.com/rack"]},
    ]
    body = {"apiVersion": CLUSTERNETWORKTOPOLOGIES.api_version, "kind": "ClusterNetworkTopology", "metadata": {"name": "default"}}
    await g.client.create(CLUSTERNETWORKTOPOLOGIES, {**body, "spec": {"networkTopologySpec": layers + list(more)}})


async def racks(g: Any, **nodes: tuple[str, str]) -> None:
    for name, (rack, cpu) in nodes.items():
        await g.live.node(name, cpu=cpu, labels={"example.com/rack": rack, "kubernetes.io/hostname": name})


async def status(g: Any, test: Any) -> Obj:
    for _ in patience.tries(600):
        found = await g.client.get(CLUSTERNETWORKTOPOLOGIES, "default")
        if test(found.get("status") or {}):
            return found["status"]
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {found}")


def gather(*strategies: Obj) -> Obj:
    return {"network-topology-spec": {"gatherStrategy": list(strategies)}}


MUST = {"layer": "RackLayer", "strategy": "MustGather"}


@pytest.mark.feature("SCH-NT-01")
def test_the_status_shows_the_tree(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=OPTIONS) as g:
            await racks(g, a=("r1", "4"), b=("r1", "4"), c=("r2", "4"))
            await topology(g)
            shown = (await status(g, lambda s: s.get("detailStatus")))["detailStatus"]
            assert [(e["topologyInfo"]["topologyName"], e["nodeNum"]) for e in shown] == [("", 3), ("r1", 2), ("r2", 1)]

    asyncio.run(run())


@pytest.mark.feature("SCH-NT-02")
def test_a_gang_goes_to_the_rack_that_takes_all_of_it(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=OPTIONS, awareNetworkTopology=True) as g:
            await racks(g, a=("r1", "8"), b=("r2", "8"), c=("r2", "8"))
            await topology(g)
            await g.group("nccl", 3, annotations=gather(MUST))
            for number in range(3):
                await g.member(f"p{number}", "nccl", cpu="4")
            found = await g.bound("p0", "p1", "p2")
            assert found == {"p0": "b", "p1": "b", "p2": "c"}
            # More than any rack takes: nobody is bound, and everybody shows what the racks offer.
            await g.group("huge", 3, annotations=gather(MUST))
            for number in range(3):
                await g.member(f"h{number}", "huge", cpu="4")
            for number in range(3):
                await g.said(f"h{number}", "no place in the network takes 3 pods")
            await racks(g, d=("r3", "16"))
            assert set((await g.bound("h0", "h1", "h2")).values()) == {"d"}

    asyncio.run(run())


@pytest.mark.feature("SCH-NT-02")
def test_ranks_are_laid_out_in_order_and_in_multiples(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=OPTIONS, awareNetworkTopology=True) as g:
            await racks(g, a=("r1", "6"), b=("r1", "6"), c=("r2", "6"), d=("r2", "2"))
            await topology(g)
            await g.group("tp", 4, annotations=gather({"layer": "NodeTopologyLayer", "strategy": "PreferGather", "podCountMultiple": 2}))
            for number in range(4):
                rank = {ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX: str(3 - number)}
                await g.member(f"p{number}", "tp", cpu="2", annotations=rank)
            assert await g.bound("p0", "p1", "p2", "p3") == {"p3": "a", "p2": "a", "p1": "b", "p0": "b"}

    asyncio.run(run())


@pytest.mark.feature("SCH-NT-02")
def test_a_member_that_comes_back_joins_its_gang_where_it_is(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=OPTIONS, awareNetworkTopology=True, defaultMatchPolicy="waiting-and-running") as g:
            await racks(g, a=("r1", "8"), b=("r2", "8"))
            await topology(g)
            await g.group("job", 2, annotations=gather(MUST))
            await g.member("p0", "job", cpu="2")
            await g.member("p1", "job", cpu="2")
            first = await g.bound("p0", "p1")
            assert first["p0"] == first["p1"]
            await g.client.delete(PODS, "p1", "default", grace_period_seconds=0)
            await g.member("p2", "job", cpu="1")
            assert await g.live.bound("p2") == first["p0"]  # the other node is emptier, but in another rack

    asyncio.run(run())


@pytest.mark.feature("SCH-NT-02")
def test_where_bound_members_do_not_count_as_many_as_are_needed_are_planned_anew(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=OPTIONS, awareNetworkTopology=True, defaultMatchPolicy="only-waiting") as g:
            await racks(g, a=("r1", "8"))
            await topology(g)
            await g.group("job", 2, annotations=gather(MUST))
            for name in ("p0", "p1"):
                await g.member(name, "job", cpu="2")
            await g.bound("p0", "p1")
            await g.live.pod("other", cpu="2")
            assert await g.live.bound("other") == "a"
            late = ("l0", "l1", "l2")
            for name in late:
                await g.member(name, "job", cpu="2")
            await g.said("l2", "no place in the network takes")
            await g.client.delete(PODS, "other", "default", grace_period_seconds=0)  # now there is room for two of the three
            for _ in patience.tries(600):
                nodes = await g.nodes_of()
                if sum(bool(nodes[name]) for name in late) == 2:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError(await g.nodes_of())

    asyncio.run(run())


@pytest.mark.feature("SCH-NT-02")
def test_without_a_tree_a_gang_that_needs_one_is_told(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",), options=OPTIONS, awareNetworkTopology=True) as g:
            await g.group("nccl", 1, annotations=gather(MUST))
            await g.member("p0", "nccl")
            await g.said("p0", "no cluster network topology")
            await g.group("any", 1, annotations={"network-topology-spec": "{oops"})
            await g.member("q0", "any")
            assert await g.live.bound("q0") == "n0"

    asyncio.run(run())


@pytest.mark.feature("SCH-NT-03")
def test_pods_of_a_kind_are_placed_close_to_each_other(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=OPTIONS) as g:
            await racks(g, a=("r1", "2"), b=("r1", "64"), c=("r2", "64"), d=("r2", "64"), e=("r2", "64"))
            await topology(g)
            await status(g, lambda s: s.get("detailStatus"))
            kind = {"annotations": {ANNOTATION_NETWORK_TOPOLOGY_SELECTOR: "ring"}}
            profile = g.live.app.engine.frameworks["koord-scheduler"]
            assert any(plugin.name == "Coscheduling" for plugin, _ in profile.scores)
            await g.live.pod("first", cpu="1", meta=kind, nodeSelector={"kubernetes.io/hostname": "a"})
            assert await g.live.bound("first") == "a"
            record: Obj = {}
            await g.live.pod("second", cpu="1", meta=kind)
            await g.live.bound("second")
            ring = g.live.app.scheduler._recorder.ring
            record = json.loads(json.dumps({t.name: t.value for t in ring.find("Pod", "default", "second")[-1].terms}))
            assert "Coscheduling" in record
            await g.live.pod("plain", cpu="1")
            await g.live.bound("plain")
            assert "Coscheduling" not in {t.name for t in ring.find("Pod", "default", "plain")[-1].terms}

    asyncio.run(run())


@pytest.mark.feature("SCH-JP-01")
@pytest.mark.feature("SCH-NT-02")
def test_room_for_a_gang_is_made_in_one_rack(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(options=OPTIONS, awareNetworkTopology=True, enablePreemption=True, post_filter=("Coscheduling",)) as g:
            await g.priority("low", 10)
            await g.priority("high", 1000)
            await racks(g, a=("r1", "4"), b=("r1", "4"), c=("r2", "4"))
            await topology(g)
            for name, node in (("la", "a"), ("lb", "b"), ("lc", "c")):
                await g.live.pod(name, cpu="4", nodeName=node, priorityClassName="low", terminationGracePeriodSeconds=0)
            await g.group("job", 2, annotations=gather(MUST))
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="4", priorityClassName="high")
            assert await g.bound("p0", "p1") == {"p0": "a", "p1": "b"}
            left = await g.nodes_of()
            assert "lc" in left
            assert "la" not in left
            assert "lb" not in left
            # No rack has room for three, not even without anybody else: nobody goes.
            await g.group("huge", 3, annotations=gather(MUST))
            for number in range(3):
                await g.member(f"h{number}", "huge", cpu="4", priorityClassName="high")
            await g.said("h0", "no place in the network even without the victims")
            await g.quiet()
            assert "lc" in await g.nodes_of()

    asyncio.run(run())
