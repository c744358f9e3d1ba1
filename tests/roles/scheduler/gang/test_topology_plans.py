"""The network tree and plans along it, against trying everything."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koord.api.annotations import NetworkTopologyGatherSpec
from koord.api.objects import ClusterNetworkTopology, NetworkTopologySpec
from roles.scheduler.plugins.network_topology.plan import Demand, Layout, Offer, Planner, demand_of
from roles.scheduler.plugins.network_topology.tree import Place, Tree, TreeError, detail_status, layers_of

NODE, RACK, SPINE, ROOT = "NodeTopologyLayer", "RackLayer", "SpineLayer", "ClusterTopologyLayer"


def layers(*entries: tuple[str, str, list[str]]) -> Any:
    return layers_of(
        msgspec.convert(
            [{"topologyLayer": name, "parentTopologyLayer": parent, "labelKey": keys} for name, parent, keys in entries],
            tuple[NetworkTopologySpec, ...],
        )
    )


THREE = ((NODE, RACK, []), (RACK, SPINE, ["rack", "rack-alt"]), (SPINE, ROOT, ["spine"]))


def tree(*nodes: tuple[str, str, str]) -> Tree:
    """Nodes as (name, spine, rack)."""
    return Tree(layers(*THREE), [(name, {"spine": spine, "rack": rack}) for name, spine, rack in nodes])


@pytest.mark.feature("SCH-NT-01")
def test_the_tree_follows_labels() -> None:
    found = Tree(
        layers(*THREE),
        [
            ("a", {"rack": "r1", "spine": "s1"}),
            ("b", {"rack": "", "rack-alt": "r1", "spine": "s1"}),
            ("c", {"spine": "s1"}),  # a rack of its own
            ("d", {"rack": "r9"}),  # no spine: left out
            ("e", {"rack": "r1", "spine": "s2"}),  # r1 was seen under s1 first
        ],
    )
    assert set(found.leaves) == {"a", "b", "c", "e"}
    shown = detail_status(found)
    assert [(e["topologyInfo"]["topologyLayer"], e["topologyInfo"]["topologyName"], e["nodeNum"]) for e in shown] == [
        (ROOT, "", 4), (SPINE, "s1", 4), (RACK, "c", 1), (RACK, "r1", 3), (SPINE, "s2", 0),
    ]  # fmt: skip
    assert "parentTopologyInfo" not in shown[0]
    assert shown[0]["childTopologyLayer"] == SPINE
    assert shown[1]["childTopologyNames"] == ["c", "r1"]
    assert shown[3]["childTopologyLayer"] == NODE
    assert "childTopologyNames" not in shown[3]


@pytest.mark.feature("SCH-NT-01")
@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (((RACK, ROOT, []),), "no layer NodeTopologyLayer"),
        (((NODE, RACK, []),), "parentTopologyLayer RackLayer"),
        (((NODE, ROOT, []), (RACK, ROOT, [])), "RackLayer of 2 are no part"),
        (((NODE, RACK, []), (RACK, NODE, [])), "circle"),
        (((NODE, ROOT, []), (NODE, ROOT, [])), "duplicate layer"),
    ],
)
def test_layers_that_make_no_chain_are_refused(entries: Any, text: str) -> None:
    with pytest.raises(TreeError, match=text):
        layers(*entries)


def offer(found: Tree, slots: dict[str, int], **more: dict[str, int]) -> Offer:
    """What nodes offer, by name."""
    columns = {key: np.array([by.get(name, 0) for name in found.leaves], dtype=np.intp) for key, by in {"slots": slots, **more}.items()}
    return Offer(**columns)


@pytest.mark.feature("SCH-NT-02")
def test_the_fullest_place_that_is_deep_enough_wins() -> None:
    found = tree(("a", "s", "r1"), ("b", "s", "r1"), ("c", "s", "r2"), ("d", "s", "r2"))
    plan = Planner(found, Demand(5), offer(found, {"a": 3, "b": 2, "c": 4, "d": 4})).plan()
    assert plan.counts == (("a", 3), ("b", 2))
    more = Planner(found, Demand(5), offer(found, {"a": 3, "b": 2, "c": 4, "d": 4}, existing={"d": 1})).plan()
    assert more.counts == (("d", 4), ("c", 1))
    assert Planner(found, Demand(14), offer(found, {"a": 3, "b": 2, "c": 4, "d": 4})).plan() == Layout(offered=((ROOT, 13),))


@pytest.mark.feature("SCH-NT-02")
def test_multiples_are_kept_in_every_layer() -> None:
    found = tree(("a", "s", "r1"), ("b", "s", "r1"), ("c", "s", "r2"), ("d", "s", "r2"))
    slots = {"a": 3, "b": 3, "c": 3, "d": 1}
    assert Planner(found, Demand(4, multiples={NODE: 2}), offer(found, slots)).plan().counts == (("a", 2), ("b", 2))
    # Filling the roomiest node first would leave one pod that fits nowhere in twos.
    assert Planner(found, Demand(6, multiples={NODE: 2, RACK: 3}), offer(found, {"a": 8, "c": 8})).plan().counts == (("a", 6),)
    # Members that are there already count.
    assert Planner(found, Demand(1, RACK, {NODE: 2}), offer(found, slots, own={"c": 1})).plan().counts == (("c", 1),)


@pytest.mark.feature("SCH-NT-02")
def test_a_demand_takes_the_deepest_layer_that_must_gather() -> None:
    spec = msgspec.convert(
        {"gatherStrategy": [
            {"layer": SPINE, "strategy": "MustGather"}, {"layer": RACK, "strategy": "MustGather", "podCountMultiple": 4},
            {"layer": NODE, "strategy": "PreferGather", "podCountMultiple": 1}, {"layer": "Nowhere", "strategy": "MustGather"},
        ]},
        NetworkTopologyGatherSpec,
    )  # fmt: skip
    assert demand_of(tree(("a", "s", "r")), spec, 8) == Demand(8, RACK, {RACK: 4})


def every_layout(found: Tree, demand: Demand, slots: dict[str, int], own: dict[str, int]) -> list[dict[str, int]]:
    """All ways to lay the pods out that keep to the rules, by trying everything."""
    names = sorted(found.leaves)
    result = []
    for counts in itertools.product(*(range(slots.get(name, 0) + 1) for name in names)):
        if sum(counts) == demand.pods:
            layout = dict(zip(names, counts, strict=True))
            if legal(found, demand, layout, own):
                result.append(layout)
    return result


def used(found: Tree, layout: dict[str, int]) -> dict[int, int]:
    totals: dict[int, int] = {}
    for name, count in layout.items():
        for place in found.leaves[name].lineage():
            totals[place.index] = totals.get(place.index, 0) + count
    return totals


def legal(found: Tree, demand: Demand, layout: dict[str, int], own: dict[str, int]) -> bool:
    """Whether all are in one gathering place, that of the members who are there already, and every place that gets some has a multiple."""
    totals, before = used(found, layout), used(found, own)
    gathering = [place.index for place in found.places if place.layer == demand.gather and totals.get(place.index)]
    if len(gathering) != 1 or before.get(gathering[0], 0) != sum(own.values()):
        return False
    return all(
        (totals[place.index] + before.get(place.index, 0)) % demand.multiples.get(place.layer, 1) == 0
        for place in found.places
        if totals.get(place.index)
    )


def depth(found: Tree, layout: dict[str, int]) -> int:
    """The deepest layer of which one place holds all."""
    total = sum(layout.values())
    return max(place.depth for place in found.places if used(found, layout).get(place.index) == total)


@pytest.mark.feature("SCH-NT-02")
@given(
    nodes=st.lists(
        st.tuples(st.sampled_from("st"), st.sampled_from("xy"), st.integers(0, 4), st.sampled_from([0, 0, 0, 1, 2])), min_size=1, max_size=5
    ),
    pods=st.integers(1, 8),
    gather=st.sampled_from([NODE, RACK, SPINE, ROOT]),
    multiples=st.dictionaries(st.sampled_from([NODE, RACK, SPINE]), st.integers(2, 4), max_size=2),
)
@example(nodes=[("s", "x", 1, 1), ("s", "x", 2, 0), ("s", "x", 2, 0)], pods=4, gather=RACK, multiples={NODE: 2})
@example(nodes=[("s", "x", 1, 0)], pods=1, gather=NODE, multiples={RACK: 2})
def test_plans_equal_trying_everything(nodes: list[tuple[str, str, int, int]], pods: int, gather: str, multiples: dict[str, int]) -> None:
    found = tree(*((f"n{number}", spine, spine + rack) for number, (spine, rack, _, _) in enumerate(nodes)))
    slots = {f"n{number}": room for number, (_, _, room, _) in enumerate(nodes)}
    own = {f"n{number}": there for number, (_, _, _, there) in enumerate(nodes) if there}  # members that have nodes already
    demand = Demand(pods, gather, multiples)
    plan = Planner(found, demand, offer(found, slots, own=own)).plan()
    possible = every_layout(found, demand, slots, own)
    assert bool(plan.counts) == bool(possible)
    if possible:
        layout = dict(plan.counts)
        assert all(count <= slots[name] for name, count in layout.items())
        assert sum(layout.values()) == pods
        assert legal(found, demand, layout, own)
        assert isinstance(plan.place, Place)
        assert depth(found, layout) == max(depth(found, other) for other in possible)


@pytest.mark.feature("SCH-NT-01")
def test_an_object_that_makes_no_tree_leaves_the_last_one() -> None:
    from roles.scheduler import testing
    from roles.scheduler.plugins.network_topology.network import Network

    world = testing.World()
    world.add_nodes(testing.node("a", labels={"rack": "r1"}))
    network = world.cluster.register("NetworkTopology", Network())
    assert network.tree() is None

    def topology(parent: str) -> ClusterNetworkTopology:
        entries = [{"topologyLayer": NODE, "parentTopologyLayer": parent}, {"topologyLayer": RACK, "labelKey": ["rack"]}]
        return msgspec.convert({"metadata": {"name": "default"}, "spec": {"networkTopologySpec": entries}}, ClusterNetworkTopology)

    network.observe(None, topology(RACK))
    first = network.tree()
    assert first is not None
    assert [place.name for place in first.places if place.layer == RACK] == ["r1"]
    world.add_nodes(testing.node("b", labels={"rack": "r2"}))
    network.observe(topology(RACK), topology("Elsewhere"))
    assert "Elsewhere" in network.problem
    current = network.tree()
    assert current is not None
    assert [place.name for place in current.places if place.layer == RACK] == ["r1", "r2"]
    network.observe(topology(RACK), None)
    assert network.tree() is current


@pytest.mark.feature("SCH-NT-02")
def test_how_many_like_pods_nodes_take_is_seen_at_one_look() -> None:
    """With kube-scheduler's plugins nothing has to be tried: each step would be a pod laid on a node."""
    from roles.scheduler import testing
    from roles.scheduler.plugins.network_topology.offers import offers

    world = testing.World()
    world.add_nodes(testing.node("a", cpu="4"), testing.node("b", cpu="1"))
    pods = [world.parser.parse(testing.pod(f"p{number}", cpu="1")) for number in range(3)]
    with pytest.raises(StopIteration) as told:
        next(offers(world.cycle, world.state, pods, world.cluster.alive, "Coscheduling"))
    assert told.value.value.counts[[world.cluster.slot_of("a"), world.cluster.slot_of("b")]].tolist() == [3, 1]


@pytest.mark.feature("SCH-NT-02")
@pytest.mark.feature("SCH-DRA-09")
@pytest.mark.parametrize(("nominated", "counts"), [(False, [2, 1, 0]), (True, [1, 1, 0])])
@pytest.mark.parametrize("follows", [False, True], ids=["by themselves", "beside the first"])
def test_nodes_take_as_many_pods_with_claims_as_they_have_devices(follows: bool, nominated: bool, counts: list[int]) -> None:
    from roles.scheduler import testing
    from roles.scheduler.framework.steps import at_once
    from roles.scheduler.plugins.network_topology.offers import offers
    from tests.support.claims import device, device_class, of_template, slice_of, template

    world, claims = testing.World(), of_template("one")
    world.add_nodes(*(testing.node(name) for name in "abc"))
    for item in (device_class(), template("one"), slice_of("a", device("x"), device("y")), slice_of("b", device("x"))):
        world.feed(item["kind"], item)
    if nominated:
        world.state.nominations.add(world.parser.parse(testing.pod(priority=100, resourceClaims=claims)), "a")
    term = {"labelSelector": {"matchLabels": {"app": "first"}}, "topologyKey": "kubernetes.io/hostname"}
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}} if follows else {}
    made = [testing.pod("p0", labels={"app": "first"}, resourceClaims=claims)]
    made += [testing.pod(f"p{number}", resourceClaims=claims, **near) for number in range(1, 4)]
    found = at_once(offers(world.cycle, world.state, [world.parser.parse(pod) for pod in made], world.cluster.alive, "Coscheduling"))
    assert found.counts[[world.cluster.slot_of(name) for name in "abc"]].tolist() == counts
    assert "DynamicResources" in found.refusing()


@pytest.mark.feature("SCH-NT-03")
def test_pods_of_a_kind_stay_close_in_a_tree_that_comes_and_changes_after_them() -> None:
    """What is kept of the kind's pods follows the tree."""
    from koord.api.names import ANNOTATION_NETWORK_TOPOLOGY_SELECTOR
    from roles.scheduler import testing

    only = {point: {"enabled": [{"name": "Coscheduling"}]} for point in ("preScore", "score")}
    world = testing.World({"plugins": {**only, "score": {"disabled": [{"name": "*"}], **only["score"]}}})
    for name, first, second in (("a", "x", "x"), ("b", "y", "y"), ("c", "x", "y")):
        world.add_nodes(testing.node(name, labels={"first": first, "second": second}, cpu="1" if name == "b" else "8"))
    ring = {"annotations": {ANNOTATION_NETWORK_TOPOLOGY_SELECTOR: "ring"}}
    world.add_pods(testing.pod(node="b", cpu="1", **ring))

    def topology(label: str) -> dict[str, Any]:
        entries = [{"topologyLayer": NODE, "parentTopologyLayer": RACK}, {"topologyLayer": RACK, "labelKey": [label]}]
        return {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": entries}}

    assert world.decide(testing.pod(cpu="1", **ring)).scheduled  # anywhere
    for label, close in (("second", "c"), ("first", "a")):
        world.feed("ClusterNetworkTopology", topology(label))
        assert world.decide(testing.pod(cpu="1", **ring)).node == close
