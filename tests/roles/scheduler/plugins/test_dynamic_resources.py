"""What claims are allocated, node by node, in what-ifs: alternatives, constraints, taints, partitions, shares, pools."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.objects_resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from koord.apiserver.cel.devices import CelError, compiled
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.framework.events import Action, ClusterEvent
from roles.scheduler.plugins.dynamic_resources import allocator, plugin
from roles.scheduler.plugins.dynamic_resources.allocator import allocate
from roles.scheduler.plugins.dynamic_resources.inventory import Use
from roles.scheduler.testing import SCHEDULER, World, node, pod
from roles.scheduler.whatif import Simulation, Snapshot
from tests.support.claims import (
    DRIVER,
    alternative,
    claim,
    device,
    device_class,
    of_claim,
    of_template,
    request,
    slice_of,
    taint_rule,
    template,
)

Obj = dict[str, Any]
MODEL = f'device.attributes["{DRIVER}"].model'


def world(*objects: Obj, nodes: int = 1, **args: Any) -> World:
    """Nodes n0, n1, … and a class for all devices of the driver; `args` are those of the plugin."""
    made = World({"pluginConfig": [{"name": "DynamicResources", "args": args}]} if args else None)
    made.add_nodes(*(node(f"n{number}", labels={"zone": "ab"[number % 2]}) for number in range(nodes)))
    for item in (device_class(), *objects):
        made.feed(item["kind"], item)
    return made


def place(made: World, *requests: Obj, **devices: Any) -> tuple[str, list[str]]:
    """Schedule a pod with a claim of its own: its node, and "request=pool/device" of what the claim got."""
    number = len(made.framework.plugins["DynamicResources"].cache.claims)  # type: ignore[attr-defined]
    made.feed("ResourceClaim", claim(f"c{number}", *requests, **devices))
    decision = made.schedule(pod(cpu="10m", resourceClaims=of_claim(f"c{number}")))
    if not decision.scheduled:
        return "", [reason(decision)]
    return decision.node, [f"{one['request']}={one['pool']}/{one['device']}" for one in status(made, f"c{number}")["devices"]["results"]]


def status(made: World, name: str) -> Obj:
    found: Obj = made.framework.plugins["DynamicResources"].cache.assumed[f"default/{name}"].status  # type: ignore[attr-defined]
    return found


def reason(decision: Decision) -> str:
    from roles.scheduler.cycle.record import record_of

    return record_of(decision, now=0.0).message


@pytest.mark.feature("SCH-DRA-10")
def test_the_end_of_a_claim_helps_although_it_was_not_allocated_as_far_as_was_seen() -> None:
    """Devices may have been assumed for it, or its pod waits for its end."""
    found = world()
    helps = next(each.hint for each in found.framework.subscriptions["DynamicResources"] if each.resource == "ResourceClaim")
    waiting = found.parser.parse(pod())
    shown = msgspec.convert({"metadata": {"name": "left", "namespace": "default"}}, ResourceClaim)
    assert helps(waiting, ClusterEvent("ResourceClaim", Action.DELETE, shown, None))
    assert not helps(waiting, ClusterEvent("ResourceClaim", Action.UPDATE, shown, shown))


@pytest.mark.feature("SCH-DRA-03")
def test_the_first_alternative_that_can_be_had_is_taken() -> None:
    made = world(slice_of("n0", device("a", model="big"), device("b", model="small"), device("c", model="small")))
    wanted = {
        "name": "any",
        "firstAvailable": [alternative("big", f'{MODEL} == "big"'), alternative("two", f'{MODEL} == "small"', count=2)],
    }
    assert place(made, wanted) == ("n0", ["any/big=n0/a"])
    assert place(made, wanted) == ("n0", ["any/two=n0/b", "any/two=n0/c"])
    assert place(made, wanted)[0] == ""


@pytest.mark.feature("SCH-DRA-03")
def test_nodes_with_the_preferred_alternative_come_first() -> None:
    made = world(*(slice_of(f"n{number}", device("a", model="big" if number == 2 else "small")) for number in range(4)), nodes=4)
    wanted = {"name": "any", "firstAvailable": [alternative("big", f'{MODEL} == "big"'), alternative("small")]}
    assert place(made, wanted) == ("n2", ["any/big=n2/a"])


@pytest.mark.feature("SCH-DRA-04")
def test_constraints_hold_between_requests() -> None:
    def numa(name: str, number: int) -> Obj:
        return device(name, attributes={"numa": {"int": number}, "model": {"string": "x"}})

    devices = [numa("a", 0), numa("b", 1), numa("c", 1)]
    made = world(slice_of("n0", *devices), slice_of("n1", *devices), nodes=2)
    pair = (request("one"), request("other"))
    name = f"{DRIVER}/numa"
    assert place(made, *pair, constraints=[{"matchAttribute": name}])[1] in (
        ["one=n0/b", "other=n0/c"], ["one=n1/b", "other=n1/c"],
    )  # fmt: skip
    assert place(made, *pair, constraints=[{"distinctAttribute": name}])[1] in (
        ["one=n0/a", "other=n0/b"], ["one=n1/a", "other=n1/b"],
    )  # fmt: skip
    assert place(made, request("two", count=2), constraints=[{"requests": ["two"], "matchAttribute": "other.org/x"}])[0] == ""


@pytest.mark.feature("SCH-DRA-01")
def test_all_devices_are_those_that_are_selected_and_none_may_be_in_use() -> None:
    made = world(slice_of("n0", device("a", model="x"), device("b", model="y")), slice_of("n1", device("a", model="y")), nodes=2)
    every = request("all", f'{MODEL} == "x"', allocationMode="All")
    assert place(made, every) == ("n0", ["all=n0/a"])
    assert place(made, every)[0] == ""
    assert place(made, request("rest", f'{MODEL} == "y"', allocationMode="All"))[1] in (["rest=n0/b"], ["rest=n1/a"])


@pytest.mark.feature("SCH-DRA-01")
@pytest.mark.feature("SCH-DRA-07")
def test_a_pods_own_requests_do_not_make_all_devices_fewer() -> None:
    """What the first request takes of the card leaves too little for the second, which wants all cards."""
    card = device("a", memory="40Gi", allowMultipleAllocations=True)
    made = world(slice_of("n0", card, device("b", memory="40Gi", allowMultipleAllocations=True)))
    some = request("some", capacity={"requests": {"memory": "20Gi"}})
    every = request("all", allocationMode="All")
    assert place(made, some, every)[0] == ""
    assert place(made, request("all", allocationMode="All", capacity={"requests": {"memory": "20Gi"}}), some)[1] == [
        "all=n0/a", "all=n0/b", "some=n0/a",
    ]  # fmt: skip
    assert place(made, every)[0] == ""  # nothing is left: none has all that it wants
    assert place(made, request("all", allocationMode="All", capacity={"requests": {"memory": "20Gi"}}))[1] == ["all=n0/b"]


@pytest.mark.feature("SCH-DRA-05")
def test_admin_access_takes_nothing_and_needs_nothing_free() -> None:
    made = world(slice_of("n0", device("a")))
    assert place(made) == ("n0", ["gpu=n0/a"])
    assert place(made, request("look", adminAccess=True)) == ("n0", ["look=n0/a"])
    assert status(made, "c1")["devices"]["results"][0]["adminAccess"] is True
    assert place(made, request("look", adminAccess=True, count=2))[0] == ""  # each device once in a claim


@pytest.mark.feature("SCH-DRA-11")
def test_tainted_devices_are_for_those_who_tolerate_it() -> None:
    taint = {"key": "broken", "value": "fan", "effect": "NoSchedule"}
    made = world(slice_of("n0", device("a", taints=[taint]), device("b", taints=[{**taint, "effect": "None"}])))
    assert place(made) == ("n0", ["gpu=n0/b"])
    assert place(made)[0] == ""
    assert place(made, request("gpu", tolerations=[{"key": "broken", "operator": "Equal", "value": "other"}]))[0] == ""
    assert place(made, request("gpu", tolerations=[{"key": "broken", "operator": "Exists"}])) == ("n0", ["gpu=n0/a"])
    assert status(made, "c3")["devices"]["results"][0]["tolerations"] == [{"key": "broken", "operator": "Exists"}]


@pytest.mark.feature("SCH-DRA-15")
def test_rules_taint_the_devices_that_they_select() -> None:
    def told(made: World, rule: Obj, old: Obj | None = None, **meta: str) -> None:
        rule["metadata"].update(meta)
        made.feed("DeviceTaintRule", rule, msgspec.convert(old, DeviceTaintRule) if old is not None else None)

    made = world(slice_of("n0", device("a"), device("b"), device("c")), slice_of("n0", device("d"), driver="other.example.com"))
    told(made, taint_rule("a", driver=DRIVER, pool="n0", device="a"), uid="1", resourceVersion="5")
    told(made, taint_rule("all", "None"), uid="2")
    told(made, taint_rule("future", "NoTea"), uid="3")
    assert place(made) == ("n0", ["gpu=n0/b"])
    # what another watch tells later of an older state does not count
    told(made, taint_rule("a", driver="elsewhere"), uid="1", resourceVersion="4")
    told(made, taint_rule("pool", "NoExecute", pool="n0"), uid="4")
    assert place(made)[0] == ""
    made.feed("ResourceSlice", slice_of("n0", device("a"), device("b"), device("e"), generation=2, name="next"))
    assert place(made)[0] == ""  # the new generation is of the same pool
    assert place(made, request("gpu", tolerations=[{"key": "broken", "operator": "Exists"}])) == ("n0", ["gpu=n0/a"])
    gone = taint_rule("pool", "NoExecute", pool="n0")
    for uid, expected in (("of another", ""), ("4", "n0")):
        gone["metadata"]["uid"] = uid
        made.feed("DeviceTaintRule", None, msgspec.convert(gone, DeviceTaintRule))
        assert place(made)[0] == expected


@pytest.mark.feature("SCH-DRA-17")
@pytest.mark.parametrize(("timeout", "said"), [("0s", "no allocation was found in 20000 tries"), ("1ms", "timed out trying to allocate")])
def test_a_search_ends_in_time(timeout: str, said: str) -> None:
    """Every choice of eight devices out of twenty would have to be tried: none leaves what the other request wants."""
    devices = [device(f"d{at}", attributes={"number": {"int": at}, "model": {"string": "x"}}) for at in range(20)]
    made = world(slice_of("n0", *devices), filterTimeout=timeout)
    _, (told,) = place(made, request("some", count=8), request("other", f'{MODEL} == "y"'))
    assert said in told
    assert place(made)[0] == "n0"


@pytest.mark.feature("SCH-DRA-16")
def test_devices_that_are_waited_for_come_last_and_are_free_in_what_ifs() -> None:
    conditional = device("a", bindingConditions=["Ready"])
    made = world(slice_of("n0", conditional, pool="a", name="a"), slice_of("n0", device("b"), pool="b", name="b"))
    assert place(made) == ("n0", ["gpu=b/b"])
    assert place(made) == ("n0", ["gpu=a/a"])
    assert status(made, "c1")["devices"]["results"][0]["bindingConditions"] == ["Ready"]


def at_numa(name: str, numa: int, root: str = "", **more: Any) -> Obj:
    roots = {"resource.kubernetes.io/pcieRoot": {"string": root}} if root else {}
    return device(name, attributes={"numaNode": {"int": numa}, **roots}, **more)


@pytest.mark.feature("SCH-DRA-19")
def test_devices_of_a_pod_share_a_numa_node_and_leave_the_others_whole() -> None:
    devices = [at_numa(f"g{at}", at // 4) for at in range(8)]
    made = world(slice_of("n0", *devices), deviceOrder="Together")
    assert place(made, request("gpu", count=3))[1] == ["gpu=n0/g0", "gpu=n0/g1", "gpu=n0/g2"]
    assert place(made, request("gpu", count=2))[1] == ["gpu=n0/g4", "gpu=n0/g5"]  # not one of each
    assert place(made)[1] == ["gpu=n0/g3"]  # what is left over of a group
    assert place(made, request("gpu", count=2))[1] == ["gpu=n0/g6", "gpu=n0/g7"]
    listed = world(slice_of("n0", *devices))
    assert place(listed, request("gpu", count=3))[1] == ["gpu=n0/g0", "gpu=n0/g1", "gpu=n0/g2"]
    assert place(listed, request("gpu", count=2))[1] == ["gpu=n0/g3", "gpu=n0/g4"]


@pytest.mark.feature("SCH-DRA-19")
def test_cards_of_other_drivers_are_taken_at_the_same_root() -> None:
    nics = [at_numa("r0", 0, "pci0"), at_numa("r2", 1, "pci2"), at_numa("r3", 1, "pci3")]
    gpus = [at_numa("g1", 0, "pci1"), at_numa("g2", 1, "pci9"), at_numa("g3", 1, "pci3")]
    made = world(
        slice_of("n0", *nics, driver="nic.example.com"), slice_of("n0", *gpus), device_class("nic", 'device.driver == "nic.example.com"'),
        deviceOrder="Together",
    )  # fmt: skip
    root = 'device.attributes["resource.kubernetes.io"].pcieRoot == "pci3"'
    assert place(made, request("gpu", root), request("nic", cls="nic"))[1] == ["gpu=n0/g3", "nic=n0/r3"]
    first, second = (place(made, request("nic", cls="nic"), request("gpu"))[1] for _ in range(2))
    assert sorted((first, second)) == [["nic=n0/r0", "gpu=n0/g1"], ["nic=n0/r2", "gpu=n0/g2"]]


@pytest.mark.feature("SCH-DRA-19")
def test_divided_cards_and_broken_groups_are_used_up_first() -> None:
    def part(name: str, card: str, memory: str) -> Obj:
        return device(name, consumesCounters=[{"counterSet": card, "counters": {"memory": {"value": memory}}}])

    def cards(node: str, *names: str) -> list[Obj]:
        counters = [{"name": name, "counters": {"memory": {"value": "40Gi"}}} for name in names]
        parts = [part(f"{name}-{at}", name, "10Gi") for at in range(4) for name in names]
        whole = [part(f"{name}-whole", name, "40Gi") for name in names]
        return [
            slice_of(node, *parts, *whole, name=f"{node}-parts", count=2),
            slice_of(node, name=f"{node}-counters", count=2, sharedCounters=counters),
        ]

    made = world(*cards("n0", "x", "y"), *cards("n1", "x", "y"), nodes=2, deviceOrder="Together")
    found = [place(made, request("gpu", 'device.capacity["gpu.example.com"].size() == 0'))[1][0] for _ in range(4)]
    assert len({one.partition("-")[0] for one in found}) == 1  # four parts of one card of one node


@pytest.mark.feature("SCH-DRA-19")
def test_an_allocation_is_found_in_any_order_or_in_none() -> None:
    from tests.e2e import test_claims_compared as generated

    def found(seed: int, **args: Any) -> bool:
        about, slices, claims = generated.world(seed)
        made = world(*generated.classes(about), *slices, *claims, **args)
        made.add_nodes(node(about["name"]))
        return made.decide(pod(cpu="1m", resourceClaims=generated.references(claims))).scheduled

    answers = [(found(seed), found(seed, deviceOrder="Together")) for seed in range(20)]
    assert all(one == other for one, other in answers)
    assert {one for one, _ in answers} == {True, False}


def shared_by(made: World, name: str, *pods: Any) -> None:
    """A claim, allocated on the first pod's node for all of these pods, as the API server shows it."""
    held = claim(name)
    status = {
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": pods[0].node_name, "device": "a"}]}},
        "reservedFor": [{"resource": "pods", "name": one.name, "uid": one.uid} for one in pods],
    }
    made.feed("ResourceClaim", {**held, "status": status})


@pytest.mark.feature("SCH-DRA-18")
def test_preemption_takes_those_whose_claims_give_devices_back() -> None:
    made = world(slice_of("n0", device("a"), device("b")), nodes=2)
    plain, holder, other = made.add_pods(
        pod("plain", node="n0", priority=-10), pod("holder", node="n0", priority=-5), pod("other", node="n0", priority=-1),
    )  # fmt: skip
    shared_by(made, "held", holder)
    held_b = {**claim("held-b"), "status": {
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n0", "device": "b"}]}},
        "reservedFor": [{"resource": "pods", "name": other.name, "uid": other.uid}],
    }}  # fmt: skip
    made.feed("ResourceClaim", held_b)
    made.feed("ResourceClaim", claim("one"))
    made.feed("ResourceClaim", claim("two", request("gpu", count=2)))
    cache = made.framework.plugins["DynamicResources"].cache  # type: ignore[attr-defined]
    before = dict(cache.taken)
    for name, priority, victims in (("one", 0, ["holder"]), ("two", 0, ["other", "holder"]), ("two", -3, []), ("one", -10, [])):
        decision = made.decide(pod(resourceClaims=of_claim(name), priority=priority))
        assert (not decision.scheduled, [one.name for one in decision.victims]) == (True, victims)
        assert "cannot allocate all claims" in reason(decision)
        assert (cache.taken, cache.busy[made.cluster.slot_of("n0")]) == (before, 2)
    assert made.cluster.pod(plain.uid) is plain


@pytest.mark.feature("SCH-DRA-18")
def test_a_shared_claim_is_given_back_by_all_of_its_pods_or_not_at_all() -> None:
    made = world(slice_of("n0", device("a")))
    low, lower, high = made.add_pods(*(pod(f"p{priority}", node="n0", priority=priority) for priority in (-1, -2, 100)))
    made.feed("ResourceClaim", claim("mine"))
    wanting = pod(resourceClaims=of_claim("mine"), priority=0)
    shared_by(made, "held", low, lower)
    assert [one.name for one in made.decide(wanting).victims] == ["p-1", "p-2"]
    shared_by(made, "held", low, high)
    assert made.decide(wanting).victims == ()


@pytest.mark.feature("SCH-DRA-18")
def test_pods_that_are_supposed_to_be_somewhere_have_their_devices_there() -> None:
    """Preemption for jobs supposes all members, one after another: no device may be promised twice."""
    made = world(slice_of("n0", device("a")))
    for name in ("first", "second"):
        made.feed("ResourceClaim", claim(name))
    first = made.parser.parse(pod(resourceClaims=of_claim("first")))
    with made.state.suppose() as supposed:
        supposed.add(first, made.cluster.slot_of("n0"))
        assert not made.decide(pod(resourceClaims=of_claim("second"))).scheduled
        supposed.remove(first.uid)
        assert made.decide(pod(resourceClaims=of_claim("second"))).scheduled
    assert made.decide(pod(resourceClaims=of_claim("second"))).scheduled


@pytest.mark.feature("SCH-DRA-18")
def test_a_pod_that_is_only_supposed_to_be_somewhere_keeps_what_its_claim_has() -> None:
    """A scheduler that begins finds a claim allocated for a pod that is not bound; supposing that pod somewhere leaves no trace."""
    made = world(slice_of("n0", device("a")))
    cache = made.framework.plugins["DynamicResources"].cache  # type: ignore[attr-defined]
    made.feed("ResourceClaim", claim("mine"))
    coming = made.parser.parse(pod("coming", node="n0", resourceClaims=of_claim("mine")))
    shared_by(made, "mine", coming)
    before = dict(cache.taken)
    assert before
    for _ in range(2):
        with made.state.suppose() as supposed:
            supposed.add(coming, made.cluster.slot_of("n0"))
        assert cache.taken == before
    (there,) = made.add_pods(pod("there", node="n0"))
    with made.state.suppose() as supposed:
        supposed.remove(there.uid)
    assert (cache._guests, cache._away) == ({}, set())


@pytest.mark.feature("SCH-DRA-06")
def test_partitions_share_the_counters_of_their_pool() -> None:
    def part(name: str, memory: str) -> Obj:
        return device(name, consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}])

    counters = {"sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]}
    made = world(
        slice_of("n0", part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi"), name="parts", count=2),
        slice_of("n0", name="counters", count=2, **counters),
    )
    assert place(made, request("half", 'device.driver != "x"', count=2)) == ("n0", ["half=n0/half-0", "half=n0/half-1"])
    assert place(made)[0] == ""


@pytest.mark.feature("SCH-DRA-07")
def test_a_device_for_several_is_shared_by_what_they_take() -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "2Gi"}}
    nic = device("nic", allowMultipleAllocations=True, capacity={"bandwidth": {"value": "10Gi", "requestPolicy": policy}})
    made = world(slice_of("n0", nic))

    def takes(amount: str) -> Obj:
        return request("nic", capacity={"requests": {"bandwidth": amount}})

    assert place(made, takes("4Gi")) == ("n0", ["nic=n0/nic"])
    result = status(made, "c0")["devices"]["results"][0]
    assert result["consumedCapacity"] == {"bandwidth": "5Gi"}  # min and two steps
    assert result["shareID"]
    assert place(made, takes("9Gi"))[0] == ""  # more than may be asked for
    assert place(made, request("nic", count=2))[0] == ""  # devices of one request differ
    assert place(made, request("one"), request("two")) == ("n0", ["one=n0/nic", "two=n0/nic"])  # each the default
    assert place(made, takes("3Gi")) == ("n0", ["nic=n0/nic"])
    assert place(made)[0] == ""


@pytest.mark.feature("SCH-DRA-07")
def test_ranges_of_a_capacity_may_be_fractions() -> None:
    policy = {"default": "100m", "validRange": {"min": "100m", "max": "900m", "step": "50m"}}
    card = device("card", allowMultipleAllocations=True, capacity={"share": {"value": "1", "requestPolicy": policy}})
    made = world(slice_of("n0", card))
    assert place(made, request("card", capacity={"requests": {"share": "330m"}})) == ("n0", ["card=n0/card"])
    assert status(made, "c0")["devices"]["results"][0]["consumedCapacity"] == {"share": "350m"}
    assert place(made, request("card", capacity={"requests": {"share": "660m"}}))[0] == ""  # 700m, and 650m are left
    assert place(made, request("card", capacity={"requests": {"share": "650m"}}))[0] == "n0"


@pytest.mark.feature("SCH-DRA-12")
def test_only_the_newest_generation_of_a_complete_pool_counts() -> None:
    made = world(slice_of("n0", device("old"), name="old", pool="p"))
    made.feed("ResourceSlice", slice_of("n0", device("new"), name="new", pool="p", generation=2, count=2))
    assert place(made)[0] == ""  # incomplete
    assert "is currently being updated" in place(made, request("all", allocationMode="All"))[1][0]
    made.feed("ResourceSlice", slice_of("n0", device("more"), name="more", pool="p", generation=2, count=2))
    assert place(made, request("gpu", count=2)) == ("n0", ["gpu=p/more", "gpu=p/new"])  # in the order of the slices' names


@pytest.mark.feature("SCH-DRA-12")
def test_nothing_is_kept_of_what_devices_were() -> None:
    made = world()
    catalogue = made.framework.plugins["DynamicResources"].cache._catalogue  # type: ignore[attr-defined]
    for number in range(20):
        taints = [{"key": "hot", "value": str(number % 5), "effect": "NoSchedule"}]
        made.feed("ResourceSlice", slice_of("n0", device("a", model=f"m{number}"), device("b", taints=taints), device("c"), name="s"))
    assert len(catalogue._kinds) == 2
    assert len(catalogue._likes) == 3
    assert place(made) == ("n0", ["gpu=n0/a"])


@pytest.mark.feature("SCH-DRA-12")
def test_devices_of_several_nodes_are_used_from_any_of_them_once() -> None:
    in_zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
    made = world(slice_of("", device("net"), name="net", pool="net", nodeSelector=in_zone), nodes=4)
    chosen, devices = place(made)
    assert chosen in ("n1", "n3")
    assert devices == ["gpu=net/net"]
    assert status(made, "c0")["nodeSelector"] == in_zone
    assert place(made)[0] == ""
    made.feed("ResourceSlice", slice_of("", device("any"), name="any", pool="any", allNodes=True))
    assert place(made)[1] == ["gpu=any/any"]
    assert "nodeSelector" not in status(made, "c2")


@pytest.mark.feature("SCH-DRA-12")
@given(
    st.lists(st.tuples(st.lists(st.tuples(st.sampled_from("abcdefgx"), st.booleans()), max_size=4), st.integers(0, 9)), max_size=12),
    st.sampled_from("abn"),
)
@settings(max_examples=60, deadline=None)
def test_devices_are_counted_on_as_if_all_were_counted_anew(steps: list[tuple[list[tuple[str, bool]], int]], zone: str) -> None:
    """Devices of one node, of a zone and of all, for one claim and for several; claims may have what nobody published."""
    in_zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}
    many = {"allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "10"}}}
    counters = {"sharedCounters": [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]}
    part = {"consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": "20Gi"}}}]}
    made = world(
        slice_of("n0", device("a"), device("b", **many)),
        slice_of("", device("c"), device("d", **many), name="zone", pool="zone", nodeSelector=in_zone),
        slice_of("", device("e", nodeName="n1", **part), device("e", nodeName="n2", **part), device("f", allNodes=True), name="own",
                 pool="own", count=2, perDeviceNodeSelection=True),
        slice_of("", name="counters", pool="own", count=2, perDeviceNodeSelection=True, **counters),
        slice_of("", device("g"), name="any", pool="any", allNodes=True),
        nodes=4,
    )  # fmt: skip
    cache = made.framework.plugins["DynamicResources"].cache  # type: ignore[attr-defined]
    pools = {"a": "n0", "b": "n0", "c": "zone", "d": "zone", "e": "own", "f": "own"}
    given_out: list[list[Use]] = []
    for claimed, back in steps:
        found = [Use((DRIVER, pools.get(name, "any"), name), {"bandwidth": 1} if shared else None) for name, shared in claimed]
        given_out.append(found)
        cache.use(found, 1)
        if back < len(given_out):
            cache.use(given_out.pop(back), -1)
    counted = cache.free.tolist(), cache.busy.tolist()
    for number in range(4):
        cache._recount(made.cluster.slot_of(f"n{number}"))
    assert counted == (cache.free.tolist(), cache.busy.tolist())


def of_numa(name: str, numa: int | list[int] | None, **more: Any) -> Obj:
    """A device with an attribute `numa` (one number, several or none), and one that no other has."""
    attributes: Obj = {"uuid": {"string": name}}
    if numa is not None:
        attributes["numa"] = {"int": numa} if isinstance(numa, int) else {"ints": numa}
    return device(name, attributes=attributes, **more)


@pytest.mark.feature("SCH-DRA-04")
@pytest.mark.parametrize(("constraint", "count"), [("matchAttribute", 9), ("distinctAttribute", 3)])
def test_too_few_devices_for_a_constraint_are_not_tried_in_all_sets(constraint: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MOST_STEPS", 150)
    made = world(slice_of("n0", *(of_numa(f"d{number:02}", number % 2) for number in range(16))))
    requests = [request(f"r{number}") for number in range(count)]
    assert "cannot allocate all claims" in place(made, *requests, constraints=[{constraint: f"{DRIVER}/numa"}])[1][0]


@pytest.mark.feature("SCH-DRA-04")
@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 1, [0, 1], [1, 2], 2]), st.booleans()), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 2), st.booleans()), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(["matchAttribute", "distinctAttribute"]), st.sets(st.integers(0, 2))), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_counting_devices_first_changes_no_answer(
    devices: list[tuple[Any, bool]], requests: list[tuple[int, bool]], constraints: list[tuple[str, set[int]]]
) -> None:
    many = {"allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "10"}}}
    found = [of_numa(f"d{number}", numa, **(many if shared else {})) for number, (numa, shared) in enumerate(devices)]
    names = [f"r{number}" for number in range(len(requests))]
    asked = [
        {"name": name, "firstAvailable": [alternative("many", count=count), alternative("one")]} if choice else request(name, count=count)
        for name, (count, choice) in zip(names, requests, strict=True)
    ]
    bound = [
        {kind: f"{DRIVER}/numa", **({"requests": [names[number % len(names)] for number in sorted(about)]} if about else {})}
        for kind, about in constraints
    ]
    answers = []
    for steps in (0, 1):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(allocator, "_STEPS_BEFORE_COUNTING", steps)
            answers.append(place(world(slice_of("n0", *found)), *asked, constraints=bound))
    assert answers[0] == answers[1]


@pytest.mark.feature("SCH-DRA-18")
def test_who_took_a_device_from_a_nominated_pod_of_less_priority_leaves_it_another() -> None:
    made = world(slice_of("", *(device(f"net-{number}") for number in range(3)), name="any", pool="any", allNodes=True), nodes=2)
    made.feed("ResourceClaimTemplate", template("one"))
    for priority, where in ((1000, "n0"), (500, "n1")):
        made.state.nominations.add(made.parser.parse(pod(f"waits-{priority}", priority=priority, resourceClaims=of_template())), where)
    zone = {"nodeSelector": {"zone": "a"}}
    assert made.schedule(pod(cpu="10m", priority=800, resourceClaims=of_template(), **zone)).node == "n0"
    assert not made.schedule(pod(cpu="10m", priority=1, resourceClaims=of_template())).scheduled


@pytest.mark.feature("SCH-DRA-18")
def test_what_nominated_pods_get_is_looked_for_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(slice_of("", *(device(f"net-{number}") for number in range(64)), name="any", pool="any", allNodes=True), nodes=24)
    made.feed("ResourceClaimTemplate", template("one"))
    for number in range(24):
        waiting = made.parser.parse(pod(f"waits-{number}", priority=1000, resourceClaims=of_template()))
        made.state.nominations.add(waiting, f"n{number}")
    searches = 0

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal searches
        searches += 1
        return allocate(*args, **kwargs)

    monkeypatch.setattr(plugin, "allocate", counting)
    assert made.schedule(pod(cpu="10m", priority=1, resourceClaims=of_template())).scheduled
    assert 24 <= searches <= 5 * 24


@pytest.mark.feature("SCH-DRA-02")
def test_a_selector_that_fails_is_told() -> None:
    made = world(slice_of("n0", device("a")))
    assert "no such key: model" in place(made, request("gpu", f'{MODEL} == "x"'))[1][0]
    assert place(made, request("gpu", f'"model" in device.attributes["{DRIVER}"]'))[0] == ""
    assert place(made, request("gpu", f'!("model" in device.attributes["{DRIVER}"])')) == ("n0", ["gpu=n0/a"])


@pytest.mark.feature("SCH-DRA-09")
def test_a_what_if_makes_claims_of_templates_and_leaves_no_trace() -> None:
    objects = {
        "DeviceClass": [msgspec.convert(device_class(), DeviceClass)],
        "ResourceSlice": [msgspec.convert(slice_of("n0", device("a")), ResourceSlice)],
        "ResourceClaimTemplate": [msgspec.convert(template("one"), ResourceClaimTemplate)],
        "ResourceClaim": [msgspec.convert(claim("named"), ResourceClaim)],
    }
    config = KubeSchedulerConfiguration.model_validate({"profiles": [{"schedulerName": SCHEDULER}]})
    simulation = Simulation(Snapshot(nodes=[node("n0"), node("n1")], objects=objects), config=config, now=0.0)
    for _ in range(2):
        found = simulation.fits(pod(resourceClaims=of_template()))
        assert found.node == "n0", found.message
    first, second = simulation.place([pod("p", uid="p", resourceClaims=of_template()), pod("q", resourceClaims=of_claim("named"))])
    assert first.node == "n0"
    assert second.node == ""
    assert "cannot allocate all claims" in second.message
    assert simulation.remove(["p"]) == 1
    assert simulation.fits(pod("q", resourceClaims=of_claim("named"))).node == "n0"


@pytest.mark.feature("SCH-DRA-02")
@pytest.mark.parametrize(
    ("expression", "reads"),
    [
        (f'{MODEL} == "x"', (("attributes", DRIVER, "model"),)),
        (f'"model" in device.attributes["{DRIVER}"] && device.allowMultipleAllocations', (("attributes", DRIVER, "model"),)),
        ('device.driver == "x"', ()),
        ("device.attributes[device.driver].model == 'x'", None),
        ("device.attributes.exists(key, key == 'x')", None),
        (f'device.attributes["{DRIVER}"] == device.attributes["x"]', None),
        (f'cel.bind(mine, device.capacity["{DRIVER}"], has(mine.memory))', None),
    ],
)
def test_what_a_selector_looks_at_is_known_or_taken_for_everything(expression: str, reads: Any) -> None:
    assert compiled(expression).reads == reads


@pytest.mark.feature("SCH-DRA-02")
def test_a_selector_takes_no_memory_without_end() -> None:
    """Whoever writes a claim has its selectors evaluated by the scheduler."""
    grown = MODEL
    for level in range(15):
        grown = f"cel.bind(a{level}, {grown}, a{level} + a{level} + a{level})"
    with pytest.raises(CelError, match="could grow beyond"):
        compiled(f'{grown} == "x"')
