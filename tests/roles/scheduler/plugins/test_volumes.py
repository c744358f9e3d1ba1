"""Pods with claims and disks (SCH-KS-09)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from koord.api.kinds import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS, STORAGECLASSES
from koord.api.objects import PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from koord.config.errors import InvalidConfig
from koord.config.loader import validate_model
from koord.kube.errors import Conflict
from roles.scheduler import testing
from roles.scheduler.config.args import VolumeBindingArgs
from roles.scheduler.framework.context import BindDraft
from tests.support import patience

ZONE = "topology.kubernetes.io/zone"
WAIT = {"metadata": {"name": "wait"}, "provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
LOCAL = {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}

DONE = {"pv.kubernetes.io/bind-completed": "yes"}

pytestmark = pytest.mark.feature("SCH-KS-09")


def world() -> testing.World:
    found = testing.World()
    found.add_nodes(*(testing.node(name, labels={ZONE: zone}) for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"))))
    return found


def claim(name: str, *, volume: str = "", storage_class: str = "wait", size: str = "1Gi", modes: tuple[str, ...] = ("ReadWriteOnce",),
          phase: str = "", bound: bool = True, **meta: Any) -> dict[str, Any]:  # fmt: skip
    done = {"annotations": DONE} if volume and bound else {}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **done, **meta},
        "spec": {
            "volumeName": volume,
            "storageClassName": storage_class,
            "accessModes": modes,
            "resources": {"requests": {"storage": size}},
        },
        "status": {"phase": phase or ("Bound" if volume else "Pending")},
    }


def volume(
    name: str, *, zone: str = "", node: str = "", storage_class: str = "local", size: str = "1Gi", driver: str = "", **meta: Any
) -> Any:
    expressions = [{"key": ZONE if zone else "kubernetes.io/hostname", "operator": "In", "values": [zone or node]}]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}} if zone or node else None
    source = {"csi": {"driver": driver, "volumeHandle": name}} if driver else {}
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "nodeAffinity": affinity,
        **source,
    }
    return {"metadata": {"name": name, "uid": f"uid-{name}", **meta}, "spec": spec, "status": {"phase": "Available"}}


def using(*names: str, **more: Any) -> Any:
    return testing.pod(volumes=[{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names], **more)


def feed(found: testing.World, **objects: list[dict[str, Any]]) -> None:
    kinds = {"classes": "StorageClass", "claims": "PersistentVolumeClaim", "volumes": "PersistentVolume"}
    for kind, items in objects.items():
        for item in items:
            found.feed(kinds.get(kind, kind), item)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (None, 'persistentvolumeclaim "c" not found'),
        (claim("c", storage_class="now"), "pod has unbound immediate PersistentVolumeClaims"),
        (claim("c", deletionTimestamp="2026-01-01T00:00:00Z"), 'persistentvolumeclaim "c" is being deleted'),
        (claim("c", volume="gone", phase="Lost"), 'persistentvolumeclaim "c" bound to non-existent persistentvolume "gone"'),
        (claim("c", volume="theirs", bound=False), "pod has unbound immediate PersistentVolumeClaims"),
        (claim("c", volume="unknown"), 'persistentvolume "unknown" of persistentvolumeclaim "c" not found'),
    ],
)
def test_claims_that_keep_a_pod_from_every_node(item: dict[str, Any] | None, said: str) -> None:
    found = world()
    feed(found, classes=[WAIT, {"metadata": {"name": "now"}, "provisioner": "csi.example.com"}], claims=[item] if item else [],
         volumes=[reserved(volume("theirs"), "other", uid="uid-other", phase="Bound")])  # fmt: skip
    decision = found.decide(using("c"))
    assert decision.message().startswith(f"0/3 nodes are available: {said}.")
    assert decision.rejected_by == {"VolumeBinding"}
    assert decision.nominate in (None, "")
    feed(found, claims=[claim("c", volume="v")], volumes=[volume("v")])
    assert found.decide(using("c")).scheduled


def test_a_bound_volume_leads_the_pod_to_its_nodes() -> None:
    found = world()
    feed(
        found, claims=[claim("c", volume="v"), claim("z", volume="w")], volumes=[volume("v", zone="b"), volume("w", labels={ZONE: "a__c"})]
    )
    assert found.decide(using("c")).node == "b1"
    assert found.decide(using("z")).node in ("a1", "a2")
    both = found.decide(using("c", "z"))
    assert "2 node(s) had volume node affinity conflict" in both.message()
    assert "1 node(s) had no available volume zone" in both.message()


def test_local_volumes_are_chosen_smallest_first_and_not_twice() -> None:
    found = world()
    feed(
        found,
        classes=[LOCAL],
        claims=[claim(name, storage_class="local", size="2Gi") for name in ("one", "two", "three")],
        volumes=[volume("small", node="a1"), volume("fits", node="a1", size="3Gi"), volume("large", node="b1", size="9Gi")],
    )
    nodes = {found.schedule(using(name)).node for name in ("one", "two")}
    assert nodes == {"a1", "b1"}
    refused = found.decide(using("three"))
    assert "3 node(s) didn't find available persistent volumes to bind" in refused.message()
    # Two claims of one pod need two volumes of one node.
    other = world()
    feed(other, classes=[LOCAL], claims=[claim(name, storage_class="local") for name in ("x", "y")],
         volumes=[volume("a", node="a1"), volume("b", node="b1"), volume("c", node="b1", size="2Gi")])  # fmt: skip
    assert other.decide(using("x", "y")).node == "b1"


class Name(str):
    """Counts how often such names are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_further_claim_compares_no_volume_with_all_others() -> None:
    found, many = world(), 60
    feed(found, classes=[LOCAL], claims=[claim(name, storage_class="local") for name in ("c", "d")])
    for number in range(many):
        item = msgspec.convert(volume(f"v{number}", node="a1", size=f"{number + 1}Gi"), PersistentVolume)
        named = msgspec.structs.replace(item.metadata, name=Name(item.metadata.name))
        found.feed("PersistentVolume", msgspec.structs.replace(item, metadata=named))
    Name.compared = 0
    assert found.decide(using("c", "d")).node == "a1"
    assert Name.compared < 5 * many


def reserved(item: dict[str, Any], claim: str, *, uid: str = "", phase: str = "Available", **spec: Any) -> dict[str, Any]:
    """A volume that names its claim."""
    ref = {"namespace": "default", "name": claim, "uid": uid}
    return {**item, "spec": {**item["spec"], "claimRef": ref, **spec}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    "mine",
    [reserved(volume("mine", node="b1"), "c"), reserved(volume("mine", node="b1"), "c", uid="uid-c", phase="Bound")],
    ids=["reserved", "bound"],
)
def test_a_volume_that_names_the_claim_is_its_only_one(mine: dict[str, Any]) -> None:
    """An administrator gives a restored volume back, or an earlier attempt wrote the name."""
    found = world()
    feed(found, classes=[LOCAL], claims=[claim("c", storage_class="local")], volumes=[mine, volume("empty", node="a1")])
    [busy] = found.add_pods(testing.pod(node="b1", cpu="6", memory="24Gi"))
    assert found.decide(using("c")).node == "b1"
    found.cluster.remove_pod(busy.uid)
    refused = found.decide(using("c", nodeSelector={ZONE: "a"}))
    assert "2 node(s) didn't find available persistent volumes to bind" in refused.message()
    assert found.schedule(using("c")).node == "b1"


@pytest.mark.parametrize("wrong", [{"capacity": {"storage": "500Mi"}}, {"volumeMode": "Block"}], ids=["too small", "a device"])
def test_a_volume_that_names_the_claim_must_be_what_it_asks_for(wrong: dict[str, Any]) -> None:
    found = world()
    feed(found, classes=[LOCAL], claims=[claim("c", storage_class="local")], volumes=[reserved(volume("mine", node="a1"), "c", **wrong)])
    assert not found.decide(using("c")).scheduled
    feed(found, volumes=[volume("other", node="b1")])
    assert found.decide(using("c")).node == "b1"


@pytest.mark.parametrize("named", [False, True])
def test_a_volume_must_have_the_attributes_class_of_the_claim(named: bool) -> None:
    found = world()
    gold = claim("c", storage_class="local")
    gold["spec"]["volumeAttributesClassName"] = "gold"
    volumes = [volume("plain", node="a1"), volume("silver", node="a2")]
    volumes[1]["spec"]["volumeAttributesClassName"] = "silver"
    feed(found, classes=[LOCAL], claims=[gold], volumes=[reserved(item, "c") if named else item for item in volumes])
    assert not found.decide(using("c")).scheduled
    right = volume("gold", node="b1")
    right["spec"]["volumeAttributesClassName"] = "gold"
    feed(found, volumes=[right])
    assert found.decide(using("c")).node == "b1"


def test_unreserve_gives_the_volumes_back() -> None:
    found = world()
    feed(
        found,
        classes=[LOCAL],
        claims=[claim("one", storage_class="local"), claim("two", storage_class="local")],
        volumes=[volume("v", node="a2")],
    )
    first = found.schedule(using("one"))
    assert not found.decide(using("two")).scheduled
    found.framework.run_unreserve(first.ctx, first.slot)
    found.cluster.remove_pod(first.pod.uid)
    assert found.decide(using("two")).node == "a2"


def test_provisioning_keeps_to_topologies_and_free_capacity() -> None:
    found = world()
    topology = [{"matchLabelExpressions": [{"key": ZONE, "values": ["b"]}]}]
    feed(found, classes=[WAIT, {**WAIT, "metadata": {"name": "zonal"}, "allowedTopologies": topology}],
         claims=[claim("c"), claim("z", storage_class="zonal"), claim("big", size="100Gi")])  # fmt: skip
    assert found.decide(using("c")).feasible == 3
    assert found.decide(using("z")).node == "b1"
    feed(found, CSIDriver=[{"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": True}}])
    assert "3 node(s) did not have enough free storage" in found.decide(using("c")).message()
    room = {"metadata": {"name": "r", "namespace": "kube-system"}, "storageClassName": "wait", "capacity": "50Gi"}
    feed(found, CSIStorageCapacity=[{**room, "nodeTopology": {"matchLabels": {ZONE: "a"}}}])
    assert found.decide(using("c")).feasible == 2
    assert not found.decide(using("big")).scheduled


def test_a_claim_that_is_being_provisioned_takes_no_other_volume() -> None:
    found = world()
    asked = claim("c", annotations={"volume.kubernetes.io/selected-node": "a1"})
    feed(found, classes=[WAIT], claims=[asked, claim("other")], volumes=[volume("free", node="a1", storage_class="wait")])
    assert found.schedule(using("c")).node == "a1"
    other = found.schedule(using("other", nodeSelector={"kubernetes.io/hostname": "a1"}))
    found.handle.may_write = lambda: True
    client = found.handle.client = Writes(lambda: remove(found, "other"))
    pre_bind(found, other)
    assert [body["spec"]["claimRef"]["name"] for body in client.bodies] == ["other"], "the volume was left to it"


def test_a_driver_takes_only_so_many_volumes() -> None:
    found = world()
    limit = {"spec": {"drivers": [{"name": "d", "nodeID": "x", "allocatable": {"count": 1}}]}}
    feed(found, CSINode=[{"metadata": {"name": name}, **limit} for name in ("a1", "a2", "b1")])
    feed(found, claims=[claim(f"c{n}", volume=f"v{n}") for n in range(5)], volumes=[volume(f"v{n}", driver="d") for n in range(5)])
    assert {found.schedule(using(f"c{n}")).node for n in range(3)} == {"a1", "a2", "b1"}
    assert "3 node(s) exceed max volume count" in found.decide(using("c3")).message()
    again = found.decide(using("c0"))
    assert again.feasible == 1  # a volume that is attached there already is no further one


def attachment(name: str, node: str, volume: str, driver: str = "d") -> dict[str, Any]:
    spec = {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}}
    return {"metadata": {"name": name, "uid": name}, "spec": spec}


def test_a_volume_counts_until_it_is_detached() -> None:
    found = world()
    limit = {"spec": {"drivers": [{"name": "d", "nodeID": "x", "allocatable": {"count": 1}}]}}
    feed(found, CSINode=[{"metadata": {"name": name}, **limit} for name in ("a1", "a2", "b1")])
    feed(found, claims=[claim(f"c{n}", volume=f"v{n}") for n in range(3)], volumes=[volume(f"v{n}", driver="d") for n in range(3)])
    assert found.decide(using("c0")).feasible == 3
    there = [attachment("x", "a1", "v1"), attachment("y", "a2", "v0"), attachment("z", "b1", "v2", driver="other")]
    feed(found, VolumeAttachment=there)
    assert found.decide(using("c0")).feasible == 2  # on a2 it is attached already, and the other driver's volumes are not counted
    assert found.decide(using("c1")).feasible == 2
    placed = found.schedule(using("c1", nodeSelector={"kubernetes.io/hostname": "a1"}))
    assert placed.scheduled  # by it and by its attachment it counts once
    found.cluster.remove_pod(placed.pod.uid)
    assert found.decide(using("c2", nodeSelector={"kubernetes.io/hostname": "a1"})).feasible == 0
    gone = msgspec.convert(there[0], VolumeAttachment)
    found.feed("VolumeAttachment", None, gone)
    assert found.decide(using("c2", nodeSelector={"kubernetes.io/hostname": "a1"})).feasible == 1


def test_attachments_may_be_known_before_their_node_and_volume() -> None:
    found = testing.World()
    feed(found, VolumeAttachment=[attachment("x", "n", "v1")], claims=[claim("c", volume="v0")])
    feed(found, CSINode=[{"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": "x", "allocatable": {"count": 1}}]}}])
    found.add_nodes(testing.node("n"))
    feed(found, volumes=[volume("v0", driver="d")])
    assert found.decide(using("c")).scheduled
    feed(found, volumes=[volume("v1", driver="d")])
    assert not found.decide(using("c")).scheduled


def limited(nodes: int) -> testing.World:
    """Each node has a pod with a volume, and room for another one."""
    found = testing.World()
    found.add_nodes(*(testing.node(f"n{number}") for number in range(nodes)))
    drivers = {"spec": {"drivers": [{"name": "d", "nodeID": "x", "allocatable": {"count": 2}}]}}
    names = [f"c{number}" for number in range(nodes)]
    feed(found, CSINode=[{"metadata": {"name": f"n{number}"}, **drivers} for number in range(nodes)])
    feed(found, claims=[claim(name, volume=f"v{name}") for name in names], volumes=[given(f"v{name}", name) for name in names])
    found.add_pods(*(using(name, node=f"n{number}") for number, name in enumerate(names)))
    return found


def given(name: str, to: str, *, driver: str = "d") -> dict[str, Any]:
    item: dict[str, Any] = volume(name, driver=driver)
    item["spec"]["claimRef"] = {"namespace": "default", "name": to, "uid": f"uid-{to}"}
    return item


def test_what_is_said_of_one_volume_costs_no_look_at_those_of_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = limited(50)
    feed(found, claims=[claim("c", volume="v")], volumes=[volume("v", driver="d")])
    plugin: Any = found.framework.plugins["NodeVolumeLimits"]
    looks: list[str] = []
    look = plugin.store.handle_of
    monkeypatch.setattr(plugin.store, "handle_of", lambda key: (looks.append(key), look(key))[1])
    assert found.decide(using("c")).feasible == 50
    assert len(looks) > 50
    looks.clear()
    feed(found, claims=[claim("other", volume="w")], volumes=[given("w", "other"), volume("free")], CSIStorageCapacity=[room("n0", "1Gi")])
    feed(found, claims=[claim("c7", volume="vc7", phase="Lost")], volumes=[given("vc7", "c7", driver="another")])
    assert found.decide(using("c")).feasible == 50
    assert sorted(looks) == ["default/c", "default/c7"]


def test_a_volume_that_comes_is_compared_with_no_attachment_of_others() -> None:
    found, many = limited(1), 60
    for number in range(many):
        item = msgspec.convert(attachment(f"x{number}", "n0", f"w{number}"), VolumeAttachment)
        source = msgspec.structs.replace(item.spec.source, persistent_volume_name=Name(f"w{number}"))
        found.feed("VolumeAttachment", msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, source=source)))
    Name.compared = 0
    feed(found, volumes=[given(f"w{number}", f"c{number}") for number in range(many)])
    assert Name.compared < 5 * many


@pytest.mark.parametrize("seed", range(4))
def test_property_volumes_of_nodes_are_those_that_a_new_look_finds(seed: int) -> None:
    found, random = limited(4), Random(seed)
    plugin: Any = found.framework.plugins["NodeVolumeLimits"]
    store = plugin.store
    shown: dict[str, Any] = {}

    def change() -> None:
        number = random.randrange(4)
        name, here = f"c{number}", f"a{random.randrange(3)}"
        what = random.randrange(5)
        if what == 0:
            found.feed("PersistentVolumeClaim", claim(name, volume=random.choice(["", f"v{name}"])))
        elif what == 1:
            owner = random.choice([name, "another"])  # it may be bound to another claim than the one that names it
            item = msgspec.convert(given(f"v{name}", owner, driver=random.choice("de")), PersistentVolume)
            known = f"v{name}" in store.volumes and random.random() < 0.5
            found.feed("PersistentVolume", None if known else item, item)
        elif what == 2:
            old = shown.pop(here, None)
            item = msgspec.convert(attachment(here, f"n{number}", f"vc{random.randrange(4)}"), VolumeAttachment)
            if old is None:
                shown[here] = item
            found.feed("VolumeAttachment", item if old is None else None, old)
        elif what == 3:
            provisioner = random.choice(["d", "csi.example.com"])
            found.feed("StorageClass", {**WAIT, "provisioner": provisioner})
        else:
            found.feed("CSIDriver", {"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": random.random() < 0.5}})

    for _ in range(200):
        change()
        kept = {slot: store.attached(slot) for slot in range(4)}
        store._attached.clear()
        assert kept == {slot: store.attached(slot) for slot in range(4)}


def test_a_driver_may_want_no_pods_where_it_is_missing() -> None:
    found = world()
    nodes = {"a1": [{"name": "d", "nodeID": "x"}], "a2": []}
    feed(found, CSINode=[{"metadata": {"name": name}, "spec": {"drivers": drivers}} for name, drivers in nodes.items()])
    feed(found, claims=[claim("c", volume="v")], volumes=[volume("v", driver="d")])
    assert found.decide(using("c")).feasible == 3
    feed(found, CSIDriver=[{"metadata": {"name": "d"}, "spec": {"preventPodSchedulingIfMissing": True}}])
    assert found.decide(using("c")).node == "a1"
    found.cluster.remove_node("a1")
    told = found.decide(using("c")).message()
    assert "1 CSIDriverMissingOnNode" in told
    assert "1 CSINodeMissing" in told


def test_one_pod_only_and_disks_that_are_not_shared() -> None:
    found = world()
    feed(found, claims=[claim("c", volume="v", modes=("ReadWriteOncePod",))], volumes=[volume("v")])
    user = found.schedule(using("c"))
    assert user.scheduled
    text = "3 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
    assert text in found.decide(using("c")).message()
    found.cluster.remove_pod(user.pod.uid)
    assert found.decide(using("c")).scheduled

    def disk(read_only: bool) -> Any:
        return testing.pod(volumes=[{"name": "d", "gcePersistentDisk": {"pdName": "pd", "readOnly": read_only}}])

    first = found.schedule(disk(True))
    assert found.decide(disk(True)).feasible == 3
    assert found.decide(disk(False)).feasible == 2
    found.cluster.remove_pod(first.pod.uid)
    assert found.decide(disk(False)).feasible == 3
    plugin: Any = found.framework.plugins["VolumeRestrictions"]
    assert (plugin.store.in_use, plugin.store._disks) == ({}, {})  # of what nobody uses nothing is kept


def test_ephemeral_claims_belong_to_their_pod() -> None:
    found = world()
    template = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    pods = [testing.pod(name, uid=f"u-{name}", volumes=[template]) for name in ("p", "q")]
    feed(found, classes=[WAIT])
    assert 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-scratch"' in found.decide(pods[0]).message()
    owner = {"kind": "Pod", "name": "p", "uid": "u-p", "apiVersion": "v1"}
    feed(found, claims=[claim("p-scratch", ownerReferences=[owner]), claim("q-scratch", ownerReferences=[owner])])
    assert found.decide(pods[0]).scheduled
    assert "was not created for pod" in found.decide(pods[1]).message()


def test_claims_are_bound_before_the_pod_and_slow_ones_hold_nobody_up(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(binders=1) as live:
            await live.node("n")
            for kind, item in ((STORAGECLASSES, LOCAL), (STORAGECLASSES, WAIT)):
                await live.client.create(kind, {"apiVersion": "storage.k8s.io/v1", "kind": kind.kind, **item})
            await live.client.create(PERSISTENTVOLUMES, {"apiVersion": "v1", "kind": "PersistentVolume", **volume("v", node="n")})
            await live.client.patch(PERSISTENTVOLUMES, "v", {"status": {"phase": "Available"}}, subresource="status")
            for name, storage in (("static", "local"), ("dynamic", "wait")):
                await live.client.create(
                    PERSISTENTVOLUMECLAIMS,
                    {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim(name, storage_class=storage)},
                    "default",
                )
            for name in ("static", "dynamic"):
                await live.pod(name, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": name}}])
            await live.pod("quick")
            assert await live.bound("quick") == "n"
            for _ in patience.tries(200):
                found = await live.client.get(PERSISTENTVOLUMES, "v")
                asked = await live.client.get(PERSISTENTVOLUMECLAIMS, "dynamic", "default")
                if found["spec"].get("claimRef") and asked["metadata"].get("annotations"):
                    break
                await asyncio.sleep(0.02)
            assert found["spec"]["claimRef"]["name"] == "static"
            assert asked["metadata"]["annotations"] == {"volume.kubernetes.io/selected-node": "n"}
            assert not (await live.get("static"))["spec"].get("nodeName")
            await live.client.create(
                PERSISTENTVOLUMES, {"apiVersion": "v1", "kind": "PersistentVolume", **volume("made", storage_class="wait")}
            )
            for name, bound in (("static", "v"), ("dynamic", "made")):
                done = {"metadata": {"annotations": DONE}, "spec": {"volumeName": bound}}
                await live.client.patch(PERSISTENTVOLUMECLAIMS, name, done, "default")
                assert await live.bound(name) == "n"

    asyncio.run(run())


class Writes:
    """A client that notes patches; `meanwhile` happens at the first one."""

    def __init__(self, meanwhile: Any = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._meanwhile = meanwhile

    async def patch(self, kind: Any, name: str, body: dict[str, Any], *args: Any, **options: Any) -> None:
        self.bodies.append(body)
        if len(self.bodies) == 1 and self._meanwhile is not None:
            self._meanwhile()


def pre_bind(found: testing.World, decision: Any) -> Any:
    plugin: Any = found.framework.plugins["VolumeBinding"]
    return asyncio.run(plugin.pre_bind(decision.ctx, decision.node, BindDraft()))


def remove(found: testing.World, name: str) -> None:
    found.feed("PersistentVolumeClaim", None, old=msgspec.convert(claim(name), PersistentVolumeClaim))


def test_a_claim_that_vanishes_while_its_pod_is_bound_is_told() -> None:
    found = world()
    found.handle.may_write = lambda: True
    feed(found, classes=[WAIT], claims=[claim("one", resourceVersion="7"), claim("two", resourceVersion="8")])
    decision = found.schedule(using("one", "two"))

    client = found.handle.client = Writes(lambda: remove(found, "two"))
    status = pre_bind(found, decision)
    assert status.message == "binding volumes: persistentvolumeclaim default/two is gone"
    assert [body["metadata"]["resourceVersion"] for body in client.bodies] == ["7"]  # who wrote since wins


def test_a_volume_that_got_another_claim_meanwhile_is_left_to_it() -> None:
    """Say, while the pod waited on permit."""
    found = world()
    found.handle.may_write = lambda: True
    feed(found, classes=[LOCAL], claims=[claim("c", storage_class="local")], volumes=[volume("v", node="a1")])
    decision = found.schedule(using("c"))
    feed(found, volumes=[reserved(volume("v", node="a1"), "other")])
    client = found.handle.client = Writes(lambda: remove(found, "c"))
    assert pre_bind(found, decision).message == "binding volumes: persistentvolume v was given to another claim"
    assert not client.bodies


def test_a_claim_that_is_provisioned_for_another_node_meanwhile_is_left_there() -> None:
    found = world()
    found.handle.may_write = lambda: True
    feed(found, classes=[WAIT], claims=[claim("c")])
    decision = found.schedule(using("c", nodeSelector={ZONE: "b"}))
    feed(found, claims=[claim("c", annotations={"volume.kubernetes.io/selected-node": "a1"})])
    client = found.handle.client = Writes(lambda: remove(found, "c"))
    assert pre_bind(found, decision).message == "binding volumes: persistentvolumeclaim default/c is provisioned for node a1"
    assert not client.bodies


MINE = reserved(volume("v", node="a1"), "c", uid="uid-c")
WHILE_WAITING: dict[str, tuple[list[dict[str, Any]], str]] = {
    "bound elsewhere": (
        [{"volumes": [volume("other", node="b1")], "claims": [claim("c", storage_class="local", volume="other")]}],
        "persistentvolume other cannot be used from node a1",
    ),
    "the volume is elsewhere": (
        [{"volumes": [reserved(volume("v", node="b1"), "c", uid="uid-c")], "claims": [claim("c", storage_class="local", volume="v")]}],
        "persistentvolume v cannot be used from node a1",
    ),
    "the volume is gone": ([{"volumes": [MINE]}, {}], "persistentvolume v is gone"),
    "the claim is taken off": (
        [{"volumes": [MINE]}, {"volumes": [volume("v", node="a1")]}],
        "binding failed for persistentvolumeclaim default/c",
    ),
    "the bound volume is gone": (
        [{"claims": [claim("c", storage_class="local", volume="made", phase="Lost")]}],
        "persistentvolume made is gone",
    ),
}


@pytest.mark.parametrize("what", WHILE_WAITING)
def test_a_pod_whose_claim_does_not_get_what_was_chosen_is_not_bound(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, message = WHILE_WAITING[what]
    found = world()
    found.handle.may_write = lambda: True
    feed(found, classes=[LOCAL], claims=[claim("c", storage_class="local")], volumes=[volume("v", node="a1")])
    decision = found.schedule(using("c"))
    left = iter(steps)

    async def happens(seconds: float) -> None:
        step = next(left)
        feed(found, **step)
        if not step:
            found.feed("PersistentVolume", None, old=msgspec.convert(MINE, PersistentVolume))

    found.handle.client = Writes()
    monkeypatch.setattr("koord.seams.sleep", happens)
    assert pre_bind(found, decision).message == f"binding volumes: {message}"


@pytest.mark.feature("SCH-FW-03")
def test_no_volume_is_written_without_the_lease() -> None:
    found = world()
    held = [True]
    found.handle.may_write = lambda: held[0]
    feed(found, classes=[WAIT], claims=[claim("one"), claim("two")])
    decision = found.schedule(using("one", "two"))
    client = found.handle.client = Writes(lambda: held.pop() and held.append(False))
    assert "the lease is lost" in pre_bind(found, decision).message
    assert len(client.bodies) == 1


@pytest.mark.parametrize("named", [False, True])
def test_only_what_nobody_had_reserved_is_marked_as_bound_by_a_controller(named: bool) -> None:
    """The volume controller takes back what is marked so, reservations of administrators too."""
    found = world()
    found.handle.may_write = lambda: True
    item = volume("v", node="a1", resourceVersion="3")
    feed(found, classes=[LOCAL], claims=[claim("c", storage_class="local")], volumes=[reserved(item, "c") if named else item])
    decision = found.schedule(using("c"))
    client = found.handle.client = Writes(lambda: remove(found, "c"))
    pre_bind(found, decision)
    [body] = client.bodies
    assert body["spec"]["claimRef"]["uid"] == "uid-c"
    mark = {} if named else {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}
    assert body["metadata"] == {"uid": "uid-v", "resourceVersion": "3", **mark}


class Binds(Writes):
    """A client that takes its time, and a volume controller that binds the claim then."""

    def __init__(self, found: testing.World, name: str, volume: str) -> None:
        super().__init__()
        self._bind = lambda: feed(found, claims=[claim(name, volume=volume)])

    async def patch(self, *args: Any, **options: Any) -> None:
        await super().patch(*args, **options)
        for _ in range(5):
            await asyncio.sleep(0)
        self._bind()


SHARED: list[dict[str, Any]] = [
    {"claims": [claim("shared", storage_class="local")], "volumes": [volume("v", node="a1")]},
    {"claims": [claim("shared")], "volumes": []},
]


@pytest.mark.parametrize("objects", SHARED, ids=["a volume", "provisioning"])
def test_pods_that_share_a_claim_wait_for_it_and_one_of_them_writes(objects: dict[str, Any]) -> None:
    found = world()
    found.handle.may_write = lambda: True
    feed(found, classes=[LOCAL, WAIT], **objects)
    pods = [found.schedule(using("shared")) for _ in range(3)]
    assert len({pod.node for pod in pods}) == 1
    plugin: Any = found.framework.plugins["VolumeBinding"]
    assert all(plugin.waits(pod.ctx) for pod in pods)
    client = found.handle.client = Binds(found, "shared", "v")
    feed(found, volumes=[volume("v", node=pods[0].node)])

    async def run() -> list[Any]:
        return await asyncio.gather(*(plugin.pre_bind(pod.ctx, pod.node, BindDraft()) for pod in pods))

    assert all(status.ok for status in asyncio.run(run()))
    assert len(client.bodies) == 1


@pytest.mark.parametrize("objects", SHARED, ids=["a volume", "provisioning"])
def test_what_a_claim_is_to_get_stays_so_while_a_pod_is_left_that_shares_it(objects: dict[str, Any]) -> None:
    found = world()
    found.handle.may_write = lambda: True
    feed(found, classes=[LOCAL, WAIT], **objects)
    first, second = found.schedule(using("shared")), found.schedule(using("shared"))
    found.framework.run_unreserve(first.ctx, first.slot)
    found.cluster.remove_pod(first.pod.uid)
    found.add_pods(testing.pod(node=first.node, cpu="5", memory="20Gi"))
    assert found.decide(using("shared")).node == first.node
    client = found.handle.client = Binds(found, "shared", "v")
    feed(found, volumes=[volume("v", node=first.node)])
    assert pre_bind(found, second).ok
    assert len(client.bodies) == 1


def test_a_pod_takes_over_from_one_that_fails_to_bind_their_claim() -> None:
    found = world()
    found.handle.may_write = lambda: True
    feed(found, classes=[LOCAL], claims=[claim("shared", storage_class="local")], volumes=[volume("v", node="a1")])
    first, second = found.schedule(using("shared")), found.schedule(using("shared"))
    plugin: Any = found.framework.plugins["VolumeBinding"]
    client = Binds(found, "shared", "v")

    class Refuses(Writes):
        async def patch(self, *args: Any, **options: Any) -> None:
            await super().patch(*args, **options)
            await asyncio.sleep(0)  # the other looks meanwhile
            found.handle.client = client
            raise Conflict(409, "Conflict", "somebody else wrote it")

    found.handle.client = Refuses()

    async def fails() -> None:
        assert "somebody else wrote it" in (await plugin.pre_bind(first.ctx, first.node, BindDraft())).message
        assert not client.bodies
        plugin.unreserve(first.ctx, first.slot)

    async def run() -> Any:
        return (await asyncio.gather(fails(), plugin.pre_bind(second.ctx, second.node, BindDraft())))[1]

    assert asyncio.run(run()).ok
    assert len(client.bodies) == 1


def test_pods_of_several_profiles_share_a_claim(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler({"profiles": [{"schedulerName": name} for name in ("one", "two")]}) as live:
            await live.node("n")
            await live.client.create(STORAGECLASSES, {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **WAIT})
            shared = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim("shared")}
            await live.client.create(PERSISTENTVOLUMECLAIMS, shared, "default")
            mounted = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "shared"}}]}
            for name in ("one", "two"):
                await live.pod(name, schedulerName=name, terminationGracePeriodSeconds=0, **mounted)
            await live.pod("quick", schedulerName="two")
            assert await live.bound("quick") == "n"
            store = live.app.engine.frameworks["two"].plugins["VolumeBinding"].store
            assert store.assumed_nodes == {"default/shared": "n"}
            await live.client.delete(PODS, "one", "default", grace_period_seconds=0)
            await live.pod("later", schedulerName="one")
            assert await live.bound("later") == "n"
            assert store.assumed_nodes == {"default/shared": "n"}
            assert not (await live.get("two"))["spec"].get("nodeName")
            made = {"apiVersion": "v1", "kind": "PersistentVolume", **volume("made", storage_class="wait")}
            await live.client.create(PERSISTENTVOLUMES, made)
            done = {"metadata": {"annotations": DONE}, "spec": {"volumeName": "made"}}
            await live.client.patch(PERSISTENTVOLUMECLAIMS, "shared", done, "default")
            assert await live.bound("two") == "n"

    asyncio.run(run())


# -- scoring by storage ------------------------------------------------------------------------------------------------------

CAPACITY = {"CSIDriver": [{"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": True}}]}


def room(node: str, size: str, storage_class: str = "wait", **more: Any) -> dict[str, Any]:
    there = {"matchLabels": {"kubernetes.io/hostname": node}}
    meta = {"name": f"{node}-{storage_class}-{size.lower()}", "namespace": "kube-system"}
    return {"metadata": meta, "storageClassName": storage_class, "capacity": size, "nodeTopology": there, **more}


def scored(*claims: dict[str, Any], shape: list[dict[str, int]] | None = None, gate: bool = False, **objects: Any) -> dict[str, float]:
    """What VolumeBinding gives the nodes for a pod with all claims; {} when it gives nothing."""
    profile = {"pluginConfig": [{"name": "VolumeBinding", "args": {"shape": shape}}]} if shape else None
    found = testing.World(profile, gates={"StorageCapacityScoring": gate})
    found.add_nodes(*(testing.node(name, labels={ZONE: zone}) for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"))))
    feed(found, claims=list(claims), **objects)
    decision = found.decide(using(*(item["metadata"]["name"] for item in claims)))
    assert decision.evaluation is not None
    terms = {name: dict(decision.evaluation.terms(found.cluster.slot_of(name))) for name in ("a1", "a2", "b1")}
    return {name: each["VolumeBinding"] for name, each in terms.items() if "VolumeBinding" in each}


@pytest.mark.feature("SCH-KS-14")
def test_nodes_with_more_free_storage_are_preferred() -> None:
    rooms = [room("a1", "10Gi"), room("a2", "40Gi"), room("b1", "100Gi")]
    assert scored(claim("c", size="10Gi"), classes=[WAIT], CSIStorageCapacity=rooms, **CAPACITY) == {}
    assert scored(claim("c", size="10Gi"), gate=True, classes=[WAIT], CSIStorageCapacity=rooms, **CAPACITY) == {"a1": 0, "a2": 75, "b1": 90}
    packing = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
    found = scored(claim("c", size="10Gi"), shape=packing, classes=[WAIT], CSIStorageCapacity=rooms, **CAPACITY)
    assert found == {"a1": 100, "a2": 25, "b1": 10}
    # two claims take of one pool; what is told beside it of the same node counts where it is more
    both = (claim("c", size="10Gi"), claim("d", size="20Gi"))
    rooms = [*rooms[1:], room("a1", "20Gi"), room("a1", "60Gi", maximumVolumeSize="30Gi")]
    assert scored(*both, gate=True, classes=[WAIT], CSIStorageCapacity=rooms, **CAPACITY) == {"a1": 50, "a2": 25, "b1": 70}
    assert scored(*both, gate=True, classes=[WAIT]) == {"a1": 0, "a2": 0, "b1": 0}, "nobody tells how much is free"


@pytest.mark.feature("SCH-KS-14")
def test_volumes_that_are_there_count_alone_and_classes_alike() -> None:
    volumes = [volume("small", node="a1", size="4Gi"), volume("large", node="a2", size="40Gi"), volume("other", node="b1", size="5Gi")]
    local = claim("l", storage_class="local", size="4Gi")
    assert scored(local, gate=True, classes=[LOCAL], volumes=volumes) == {"a1": 0, "a2": 90, "b1": 20}
    # beside a volume that is there, what would be provisioned does not count
    rooms = [room(node, "10Gi") for node in ("a1", "a2", "b1")]
    found = scored(local, claim("c", size="1Gi"), gate=True, classes=[LOCAL, WAIT], volumes=volumes, CSIStorageCapacity=rooms, **CAPACITY)
    assert found == {"a1": 0, "a2": 90, "b1": 20}
    fast = {**WAIT, "metadata": {"name": "fast"}}
    rooms += [room(node, "3Gi", "fast") for node in ("a1", "a2", "b1")]
    two = (claim("c", size="1Gi"), claim("f", storage_class="fast", size="1Gi"))
    assert scored(*two, gate=True, classes=[WAIT, fast], CSIStorageCapacity=rooms, **CAPACITY) == {"a1": 79, "a2": 79, "b1": 79}


@pytest.mark.feature("SCH-CFG-01")
def test_a_shape_that_does_not_rise_is_refused_with_its_path() -> None:
    shape = [{"utilization": 10, "score": 1}, {"utilization": 10, "score": 2}]
    with pytest.raises(InvalidConfig, match=r"args\.shape\[1\]\.utilization: must be higher"):
        validate_model({"shape": shape}, VolumeBindingArgs, "file", "args")
