"""Who may use a reservation, how much of it, and which one: decisions of the whole cycle on small worlds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api import names
from roles.scheduler import testing
from roles.scheduler.plugins.reservation.status import used
from tests.roles.scheduler.reservation.worlds import AFFINITY, OWNER, World, placed

GI = 1 << 30


def wish(**fields: Any) -> dict[str, str]:
    return {AFFINITY: json.dumps(fields)}


@pytest.fixture
def world() -> World:
    found = World()
    found.add_nodes(testing.node("a", cpu="8", memory="16Gi"), testing.node("b", cpu="8", memory="16Gi", labels={"zone": "z1"}))
    return found


@pytest.mark.feature("SCH-RSV-02")
@pytest.mark.parametrize(
    ("owners", "matches"),
    [
        ([{"object": {"name": "p", "namespace": "default"}}], True),
        ([{"object": {"name": "p", "namespace": "other"}}], False),
        ([{"object": {"kind": "Job", "name": "p"}}], True),  # the kind is not looked at
        ([{"object": {"apiVersion": "apps/v1", "name": "p"}}], False),
        ([{"object": {"uid": "the-uid"}}], True),
        ([{"object": {"uid": "another"}}], False),
        ([{"controller": {"name": "rs", "kind": "ReplicaSet"}}], True),
        ([{"controller": {"name": "rs", "kind": "StatefulSet"}}], False),
        ([{"controller": {"name": "rs", "namespace": "other"}}], False),
        ([{"controller": {"name": "rs", "controller": False}}], False),
        ([{"controller": {"uid": "rs-uid", "apiVersion": "apps/v1", "controller": True}}], True),
        ([{"labelSelector": {"matchLabels": {"app": "owner"}}}], True),
        ([{"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["owner"]}]}}], False),
        ([{"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}], True),
        ([{"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Sideways"}]}}], False),
        ([{"labelSelector": {"matchLabels": {"app": "owner"}}, "object": {"name": "other"}}], False),  # all parts of an entry
        ([{"object": {"name": "other"}}, {"labelSelector": {"matchLabels": {"app": "owner"}}}], True),  # any entry
        ([{}], True),
    ],
)
def test_owners(world: World, owners: list[dict[str, Any]], matches: bool) -> None:
    world.hold("r", "a", owners=owners, cpu="2", memory="2Gi")
    reference = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs-uid", "controller": True}]
    decision = world.owner("p", uid="the-uid", ownerReferences=reference, annotations=wish())
    assert decision.scheduled is matches
    assert world.uses(decision) == ("r" if matches else "")


@pytest.mark.feature("SCH-RSV-03")
def test_affinity_by_selector_terms_and_name(world: World) -> None:
    world.hold("gold", "a", labels={"tier": "gold"})
    world.hold("silver", "b", labels={"tier": "silver"})
    assert world.uses(world.owner(annotations=wish(reservationSelector={"tier": "silver"}))) == "silver"
    zone = {"reservationSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]}]}
    assert world.uses(world.owner(annotations=wish(requiredDuringSchedulingIgnoredDuringExecution=zone))) == "silver"
    named = {"reservationSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gold"]}]}]}
    assert world.uses(world.owner(annotations=wish(requiredDuringSchedulingIgnoredDuringExecution=named))) == "gold"
    assert world.uses(world.owner(annotations=wish(name="gold"))) == "gold"
    refused = world.owner(annotations=wish(reservationSelector={"tier": "bronze"}))
    assert "node(s) no reservations match reservation affinity" in refused.message()
    assert not world.owner(annotations=wish(name="bronze")).scheduled
    assert not world.owner(annotations=wish(name="gold"), labels={"app": "stranger"}).scheduled


@pytest.mark.feature("SCH-RSV-03")
def test_labels_of_nodes_can_be_left_out() -> None:
    world = World(gates={"OmitNodeLabelsForReservation": True})
    world.add_nodes(testing.node("b", labels={"zone": "z1"}))
    world.hold("r", "b")
    assert not world.owner(annotations=wish(reservationSelector={"zone": "z1"})).scheduled


@pytest.mark.feature("SCH-RSV-03")
def test_an_empty_affinity_requires_a_reservation_and_a_broken_one_is_told(world: World) -> None:
    assert not world.owner(annotations={AFFINITY: ""}).scheduled
    broken = world.owner(annotations={AFFINITY: "{"})
    assert AFFINITY in broken.message()
    world.hold("r", "a")
    assert world.uses(world.owner(annotations={AFFINITY: ""})) == "r"


@pytest.mark.feature("SCH-RSV-06")
def test_reservations_on_nodes_that_the_pod_does_not_want_do_not_match(world: World) -> None:
    world.hold("r", "a")
    elsewhere = {"nodeSelector": {"kubernetes.io/hostname": "b"}}
    refused = world.owner(annotations=wish(), **elsewhere)
    assert "node(s) no reservations match reservation affinity" in refused.message()
    assert world.uses(world.owner(annotations=wish(), nodeSelector={"kubernetes.io/hostname": "a"})) == "r"


@pytest.mark.feature("SCH-RSV-03")
def test_exact_match(world: World) -> None:
    world.hold("r", "a", cpu="2", memory="4Gi", requests={"example.com/widget": "1"})
    exact = {"scheduling.koordinator.sh/exact-match-reservation": json.dumps({"resourceNames": ["cpu", "example.com/other", "memory"]})}
    assert world.uses(world.owner(cpu="2", memory="2Gi", annotations={**wish(), **exact})) == ""
    assert world.uses(world.owner(cpu="1", memory="4Gi", annotations={**wish(), **exact})) == ""
    assert world.uses(world.owner(cpu="2", memory="4Gi", annotations={**wish(), **exact})) == "r"


@pytest.mark.feature("SCH-RSV-09")
def test_unschedulable_and_tainted(world: World) -> None:
    taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    world.hold("closed", "a", unschedulable=True, cpu="2", memory="2Gi")
    world.hold("tainted", "b", taints=[taint], cpu="2", memory="2Gi")
    plain = world.owner(annotations=wish())
    assert not plain.scheduled
    assert "1 Reservation(s) is unschedulable" in plain.message()
    assert "1 Reservation(s) had untolerated taint {dedicated: x}" in plain.message()
    assert "2 Reservation(s) matched owner total" in plain.message()
    cordon = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert world.uses(world.owner(annotations=wish(tolerations=[cordon]))) == "closed"
    assert world.uses(world.owner(annotations=wish(name="closed"))) == "closed"
    tolerant = wish(tolerations=[{"key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule"}])
    assert world.uses(world.owner(annotations=tolerant)) == "tainted"
    assert world.uses(world.owner(cpu="1")) == "tainted"  # without affinity taints are not looked at


@pytest.mark.feature("SCH-RSV-04")
def test_aligned_takes_the_rest_from_the_node_and_restricted_does_not(world: World) -> None:
    world.hold("aligned", "a", cpu="6", memory="8Gi")
    world.hold("restricted", "b", cpu="6", memory="8Gi", policy="Restricted")
    assert world.owner(cpu="8", memory="1Gi", annotations=wish(name="aligned")).scheduled
    refused = world.owner(cpu="7", memory="1Gi", annotations=wish(name="restricted"))
    assert "Reservation(s) Insufficient cpu, requested: 7000, used: 0, capacity: 6000" in refused.message()
    assert world.owner(cpu="4", memory="1Gi", annotations=wish(name="restricted")).scheduled
    refused = world.owner(cpu="3", memory="1Gi", annotations=wish(name="restricted"))
    assert "Reservation(s) Insufficient cpu, requested: 3000, used: 4000, capacity: 6000" in refused.message()
    unnamed = world.owner(cpu="3", memory="1Gi", annotations=wish())
    assert "Reservation(s) Insufficient cpu" in unnamed.message()
    assert "requested" not in unnamed.message()
    assert world.free("a") == 0
    assert world.free("b") == 2000


@pytest.mark.feature("SCH-RSV-04")
def test_restricted_options_restrict_some_names_only(world: World) -> None:
    option = {names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS: json.dumps({"resources": ["cpu"]})}
    held = world.hold("r", "a", cpu="4", memory="4Gi", policy="Restricted", annotations=option)
    assert world.uses(world.owner(cpu="2", memory="6Gi", annotations=wish())) == "r"
    assert held.shown().allocated == {"cpu": 2000}
    assert world.free("a", "memory") == 10 * GI  # the pod's 6Gi, of which the reservation had 4
    assert not world.owner(cpu="3", memory="1Gi", annotations=wish()).scheduled
    assert not world.owner(cpu="1", memory="11Gi", annotations=wish()).scheduled


@pytest.mark.feature("SCH-RSV-04")
def test_inner_reserved_amounts_and_pods(world: World) -> None:
    kept = {"node.koordinator.sh/reservation": json.dumps({"resources": {"cpu": "1"}})}
    world.hold("kept", "a", cpu="4", memory="4Gi", policy="Restricted", annotations=kept)
    assert not world.owner(cpu="4", annotations=wish()).scheduled
    assert world.owner(cpu="3", annotations=wish()).scheduled
    odd = {"node.koordinator.sh/reservation": json.dumps({"resources": {"cpu": "-1"}})}
    assert world.hold("odd", "c", cpu="4", annotations=odd).left("cpu") == 4000
    world.hold("one", "b", cpu="4", memory="4Gi", policy="Restricted", requests={"pods": "1"})
    assert world.owner(annotations=wish(name="one")).scheduled
    assert "Reservation(s) Too many pods" in world.owner(annotations=wish(name="one")).message()


@pytest.mark.feature("SCH-RSV-17")
def test_ignored_extended_resources() -> None:
    world = World({"ignoredResources": ["example.com/widget"], "ignoredResourceGroups": ["example.org"]})
    world.add_nodes(testing.node("a", **{"example.com/widget": "4", "example.org/gadget": "4"}))
    world.hold("r", "a", policy="Restricted", requests={"example.com/widget": "1", "example.org/gadget": "1"})
    wanted = {"example.com/widget": "2", "example.org/gadget": "2"}
    assert world.uses(world.owner(requests=wanted, annotations=wish())) == "r"


@pytest.mark.feature("SCH-RSV-05")
def test_once_or_by_several(world: World) -> None:
    world.hold("once", "a", once=True, cpu="4")
    assert world.uses(world.owner(cpu="1", annotations=wish())) == "once"
    assert not world.owner(cpu="1", annotations=wish()).scheduled
    held = world.hold("many", "b", cpu="4")
    for _ in range(4):
        assert world.uses(world.owner(cpu="1", annotations=wish())) == "many"
    assert held.taken["cpu"] == 4000
    assert world.free("b") == 4000


@pytest.mark.feature("SCH-RSV-06")
def test_strangers_do_not_get_what_is_reserved_and_owners_fall_back(world: World) -> None:
    world.hold("a", "a", cpu="8", memory="8Gi")
    world.hold("b", "b", cpu="6", memory="8Gi")
    stranger = testing.pod(cpu="3")
    assert "2 Insufficient cpu" in world.decide(stranger).message()
    assert world.schedule(testing.pod(cpu="2")).node == "b"
    full = world.owner(cpu="8")
    assert (full.node, world.uses(full)) == ("a", "a")
    both = world.owner(cpu="9")  # more than any node has
    assert not both.scheduled


@pytest.mark.feature("SCH-RSV-06")
def test_an_owner_that_needs_nothing_of_a_reservation_does_not_take_it(world: World) -> None:
    world.hold("r", "a", cpu=None, memory=None, requests={"example.com/widget": "1"})
    decision = world.owner()
    assert decision.scheduled
    assert world.uses(decision) == ""


@pytest.mark.feature("SCH-RSV-06")
def test_host_ports_pass_to_owners(world: World) -> None:
    port = [{"containerPort": 80, "hostPort": 80}]
    world.hold("r", "a", cpu="4", ports=port)
    world.schedule(testing.pod(ports=port, nodeSelector={"kubernetes.io/hostname": "b"}))
    assert not world.decide(testing.pod(ports=port)).scheduled
    assert world.uses(world.owner(ports=port)) == "r"
    assert not world.owner(ports=port).scheduled  # it is in use now
    world.feed("Reservation", placed("r", "a", phase="Succeeded", cpu="4", ports=port))
    assert not world.owner(ports=port).scheduled


@pytest.mark.feature("SCH-RSV-07")
def test_order_then_the_fullest(world: World) -> None:
    world.hold("big", "a", cpu="8", memory="8Gi")
    world.hold("tight", "b", cpu="3", memory="3Gi")
    assert world.uses(world.owner(cpu="2", memory="2Gi")) == "tight"
    world.hold("big", "a", cpu="8", memory="8Gi", labels={"scheduling.koordinator.sh/reservation-order": "5"})
    assert world.uses(world.owner(cpu="1", memory="1Gi")) == "big"
    world.hold("tight", "b", cpu="3", memory="3Gi", labels={"scheduling.koordinator.sh/reservation-order": "-1"})
    assert world.uses(world.owner(cpu="1", memory="1Gi")) == "tight"


@pytest.mark.feature("SCH-RSV-07")
def test_of_several_on_a_node_order_wins_too(world: World) -> None:
    label = "scheduling.koordinator.sh/reservation-order"
    for name, order in (("x", "0"), ("y", "3"), ("z", "2"), ("w", "none")):
        world.hold(name, "a", cpu="1", memory="1Gi", labels={label: order}, once=True)
    picked = [world.uses(world.owner(cpu="1", memory="1Gi", annotations=wish())) for _ in range(4)]
    assert picked == ["z", "y", "w", "x"]


@pytest.mark.feature("SCH-RSV-10")
def test_a_pod_that_ignores_reservations_uses_their_room_without_owning(world: World) -> None:
    held = world.hold("a", "a", cpu="8", memory="8Gi", owners=[{"object": {"name": "somebody"}}])
    world.hold("b", "b", cpu="8", memory="8Gi")
    decision = world.schedule(testing.pod(cpu="6", labels={names.LABEL_POD_RESERVATION_IGNORED: "true"}))
    assert decision.scheduled
    assert world.uses(decision) == ""
    assert not held.owners
    assert not world.schedule(testing.pod(cpu="6")).scheduled


@pytest.mark.feature("SCH-RSV-01")
def test_policies_of_one_node_go_together_and_pins_are_kept(world: World) -> None:
    world.hold("default", "a", policy="")
    aligned = placed("aligned", policy="Aligned", template={"nodeName": "a"})
    world.feed("Reservation", aligned)
    decision = world.decide(world.plugin.ledger.given["aligned-uid"])
    assert "1 node(s) reservation allocate policy conflict" in decision.message()
    assert "1 node(s) didn't match the nodeName specified by reservation" in decision.message()
    world.feed("Reservation", placed("free", policy="Aligned"))
    assert world.decide(world.plugin.ledger.given["free-uid"]).node == "b"


@pytest.mark.feature("SCH-RSV-06")
def test_skip_reservation_fits_node() -> None:
    world = World(gates={"SkipReservationFitsNode": True})
    world.add_nodes(testing.node("a", cpu="4"))
    world.hold("r", "a", cpu="4")
    world.add_pods(testing.pod(cpu="2", node="a"))  # more is counted than the node has
    # Only the other plugins' view of the node is left: NodeResourcesFit sees 2 CPUs.
    assert not world.owner(cpu="3", annotations=wish()).scheduled
    assert world.uses(world.owner(cpu="2", annotations=wish())) == "r"


@pytest.mark.feature("SCH-RSV-15")
def test_the_message_counts_reservations_by_reason(world: World) -> None:
    world.hold("x", "a", cpu="2", labels={"tier": "gold"})
    world.hold("y", "b", cpu="2", labels={"tier": "silver"})
    world.add_pods(testing.pod(cpu="6", node="a"))
    message = world.owner(cpu="4", annotations=wish(reservationSelector={"tier": "gold"})).message()
    assert "1 Reservation(s) didn't match affinity rules" in message
    assert "1 Reservation(s) for node reason that Insufficient cpu" in message
    assert "2 Reservation(s) matched owner total" in message
    named = world.owner(cpu="4", annotations=wish(name="x")).message()
    assert "1 Reservation(s) exactly matches the requested reservation name, 1 Reservation(s) didn't match the requested" in named
    assert "Reservation" not in world.decide(testing.pod(cpu="9")).message()
    assert "0 Reservation(s) matched owner total" in world.decide(testing.pod(annotations=wish())).message()


@pytest.mark.feature("SCH-RSV-16")
def test_the_selector_index_changes_no_answer(world: World) -> None:
    indexed = World({"reservationSelectorIndex": {"enabled": True, "keys": ["tier"], "keyPrefixes": ["team.example.com/", " "]}})
    indexed.add_nodes(*(testing.node(n, labels={"tier": "node"} if n == "c" else {}) for n in ("a", "b", "c")))
    world.add_nodes(testing.node("c", labels={"tier": "node"}))
    for found in (world, indexed):
        found.hold("x", "a", labels={"tier": "gold", "team.example.com/a": "1"})
        found.hold("y", "b", labels={"tier": "silver", "team.example.com/b": "1"})
        found.hold("z", "c")
    queries: list[tuple[str, int]] = []
    indexed.plugin.ledger.index.counted = lambda result, nodes: queries.append((result, nodes))
    for selector in ({"tier": "gold"}, {"tier": "bronze"}, {"tier": "node"}, {"team.example.com/b": "1"}, {"other": "1"}):
        answers = [found.uses(found.owner(annotations=wish(reservationSelector=selector))) for found in (world, indexed)]
        assert answers[0] == answers[1]
    # "tier" is a label of a node too, so the index cannot tell; prefixes narrow by key alone.
    assert [query for query in queries if query[0] == "hit"] == [("hit", 1)]
    assert indexed.plugin.ledger.index.view(True)["exact"] == {"tier=gold": ["x-uid"], "tier=silver": ["y-uid"]}


@pytest.mark.feature("SCH-RSV-06")
def test_reserved_pods_of_a_deployment_do_not_stand_in_their_owners_way(world: World) -> None:
    """The template is a copy of the pod's: the same labels, the same anti-affinity and spreading."""
    anti = {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": OWNER}}]}  # fmt: skip
    spec = {"affinity": {"podAntiAffinity": anti}}
    for name in ("a", "b"):
        made = placed(f"r-{name}", name, once=True, template=spec)
        made.spec.template.metadata.labels.update(OWNER)  # type: ignore[union-attr]
        world.feed("Reservation", made)
    first, second = world.owner(**spec), world.owner(**spec)
    assert {first.node, second.node} == {"a", "b"}
    assert {world.uses(first), world.uses(second)} == {"r-a", "r-b"}


@pytest.mark.feature("SCH-RSV-01")
def test_claims_of_a_template_are_left_to_the_owners(world: World) -> None:
    waiting = {"metadata": {"name": "wait"}, "provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
    world.feed("StorageClass", waiting)
    spec = {"storageClassName": "wait", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    world.feed(
        "PersistentVolumeClaim",
        {"metadata": {"name": "c", "namespace": "default", "uid": "c"}, "spec": spec, "status": {"phase": "Pending"}},
    )
    volumes = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
    world.feed("Reservation", placed("r", template=volumes, cpu="2"))
    decision = world.schedule(world.plugin.ledger.given["r-uid"])
    assert decision.scheduled
    store = world.framework.plugins["VolumeBinding"].store  # type: ignore[attr-defined]
    assert not store.assumed_nodes
    assert world.owner(cpu="1", **volumes).scheduled
    assert store.assumed_nodes


@pytest.mark.feature("SCH-RSV-04")
def test_a_batch_owner_uses_what_its_reservation_calls_cpu(world: World) -> None:
    """A profile turns cpu of pods into batch-cpu, and of templates it does not."""
    batch = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "2Gi"}
    world.add_nodes(testing.node("c", cpu="8", memory="16Gi", **{"kubernetes.io__batch_cpu": "4000", "kubernetes.io__batch_memory": "8Gi"}))
    held = world.hold("r", "c", cpu="2", memory="2Gi", policy="Restricted")
    decision = world.owner("p", cpu=None, memory=None, requests=batch, annotations=wish())
    assert decision.node == "c", decision.message()
    assert world.uses(decision) == "r"
    assert held.taken == {"cpu": 2000, "memory": 2 * GI}
    assert "Reservation(s) Insufficient cpu" in world.owner("q", cpu=None, memory=None, requests=batch, annotations=wish()).message()


@pytest.mark.feature("SCH-RSV-05")
def test_the_status_shows_no_more_than_is_reserved() -> None:
    """An owner of an Aligned reservation may take more than that from the node; one that requests nothing leaves nothing to show."""
    reservation = placed("r", "a", cpu="2", memory="2Gi")
    parse = World().parser.parse
    big, small = parse(testing.pod("big", cpu="3", memory="1Gi")), parse(testing.pod("small", cpu=None, memory=None))
    shown = used(reservation, [big], 0.0, finished=False, inner={})
    assert shown is not None
    assert shown["allocated"] == {"cpu": "2", "memory": "1Gi"}
    idle = used(reservation, [small], 0.0, finished=False, inner={})
    assert idle is not None
    assert idle["allocated"] is None
