"""Which changes bring a refused pod back: those that may help it, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from koord.api.kinds import SCHEDULING_PODGROUPS
from roles.scheduler import testing
from roles.scheduler.cluster.cache import Cache
from roles.scheduler.framework.events import Action, ClusterEvent
from roles.scheduler.framework.status import SUCCESS
from roles.scheduler.observing.observer import Observer
from roles.scheduler.queue.entry import UNSCHEDULABLE
from roles.scheduler.queue.queue import SchedulingQueue
from tests.support.claims import device as claimable
from tests.support.claims import device_class, of_template, slice_of, template
from tests.support.devices import ALLOCATED, CORE, EVERYTHING, RATIO, device, gpus
from tests.support.numa import nrt

Obj = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
QUOTA = "quota.scheduling.koordinator.sh/name"
AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
POLICY = "node.koordinator.sh/numa-topology-policy"
NUMA = "scheduling.koordinator.sh/numa-topology-spec"
RATIOS = "node.koordinator.sh/resource-amplification-ratio"
DONE = {"pv.kubernetes.io/bind-completed": "yes"}
HINT = "scheduling.koordinator.sh/device-allocate-hint"


class Waking:
    """Nodes, pods and other objects as the informers tell of them, and one pod that is refused."""

    def __init__(self) -> None:
        names = ("Reservation", "NodeNUMAResource", "DeviceShare", "ElasticQuota")
        plugins = {
            "preFilter": {"enabled": [{"name": name} for name in (*names, "Coscheduling")]},
            "filter": {"enabled": [{"name": name} for name in names[:3]]},
            "reserve": {"enabled": [{"name": name} for name in names]},
        }  # fmt: skip
        self.made = made = testing.World({"plugins": plugins})
        self.queue = SchedulingQueue(
            sort_key=lambda pod, entered: (entered,), pre_enqueue=lambda pod: SUCCESS,
            subscriptions={testing.SCHEDULER: made.framework.subscriptions},
        )  # fmt: skip
        self.observer = Observer(
            made.state, Cache(made.cluster, made.parser), self.queue, {testing.SCHEDULER: made.framework},
            clock=lambda: made.state.now, changed=lambda: None, gone=lambda uid: None,
        )  # fmt: skip
        for zone in "ab":
            self.observer.node_added(testing.node(zone, labels={ZONE: zone}, **EVERYTHING))
        self.known: dict[tuple[str, str], Any] = {}

    def tell(self, kind: str, name: str, content: Obj | None, **meta: Any) -> None:
        """An object as it is now; None for gone."""
        feed = next(feed for plugin in self.made.framework.plugins.values() for feed in plugin.feeds() if feed.kind.key == kind)
        version = {"resourceVersion": str(len(self.known) + self.made.state.now)}
        metadata = {"name": name, "namespace": "default", "uid": name, **version, **meta}
        new = msgspec.convert({**content, "metadata": metadata}, feed.projection) if content is not None else None
        old = self.known.pop((kind, name), None)
        if new is not None:
            self.known[kind, name] = new
        if feed.observe(old, new) is not False:
            action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
            self.observer._event(ClusterEvent(kind, action, old, new))

    def changes(self, **spec: Any) -> None:
        """The refused pod is another one by now."""
        before, meta = self.mine, self.mine.pod.metadata
        self.mine = self.made.parser.parse(testing.pod(meta.name, uid=meta.uid, cpu="10m", memory="1Mi", **spec))
        self.observer.pod_updated(before, self.mine)

    def pod(self, **spec: Any) -> Any:
        info = self.made.parser.parse(testing.pod(cpu="10m", memory="1Mi", **spec))
        self.observer.pod_added(info)
        return info

    def refused(self, by: str, **spec: Any) -> None:
        self.mine = self.pod(**spec)
        entry = self.queue.take(self.mine.uid, self.made.state.now)
        assert entry is not None
        decision = self.made.decide(entry.pod)
        assert by in decision.rejected_by, decision.message()
        self.queue.requeue(self.mine.uid, self.made.state.now, rejected_by=decision.rejected_by)
        self.made.state.now += 100

    @property
    def woken(self) -> bool:
        entry = self.queue.get(self.mine.uid)
        assert entry is not None
        return entry.state != UNSCHEDULABLE

    def node(self, name: str, **more: Any) -> None:
        self.observer.node_updated(node_of(self, name), testing.node(name, **more))


def claim(volume: str = "", storage_class: str = "slow") -> Obj:
    resources = {"requests": {"storage": "10Gi"}}
    return {"spec": {"volumeName": volume, "storageClassName": storage_class, "accessModes": ["ReadWriteOnce"], "resources": resources}}


def volume(storage_class: str = "slow", size: str = "10Gi", phase: str = "Available", **spec: Any) -> Obj:
    content = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class, **spec}
    return {"spec": content, "status": {"phase": phase}}


def capacity(size: str, storage_class: str = "slow", zone: str = "a") -> Obj:
    return {"storageClassName": storage_class, "capacity": size, "nodeTopology": {"matchLabels": {ZONE: zone}}}


CLAIMED = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}]}


def waits(found: Waking, provisioner: str = "kubernetes.io/no-provisioner") -> None:
    """A pod waits for a volume for its claim: one that is there, or room for one."""
    found.tell("StorageClass", "slow", {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"})
    found.tell("CSIDriver", "disks", {"spec": {"storageCapacity": True}})
    found.tell("PersistentVolumeClaim", "mine", claim())
    found.refused("VolumeBinding", **CLAIMED)


def no_claim(found: Waking) -> None:
    found.refused("VolumeBinding", **CLAIMED)


def no_room(found: Waking) -> None:
    found.tell("CSIStorageCapacity", "a", capacity("5Gi"))
    waits(found, "disks")


def affinity(kind: str, app: str) -> Obj:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": ZONE}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def near(found: Waking) -> None:
    found.refused("InterPodAffinity", **affinity("podAffinity", "web"))


def away(found: Waking) -> None:
    found.web = [found.pod(node=zone, labels={"app": "web"}) for zone in "ab"]  # type: ignore[attr-defined]
    found.refused("InterPodAffinity", **affinity("podAntiAffinity", "web"))


def kept_away(found: Waking) -> None:
    found.web = [found.pod(node=zone, **affinity("podAntiAffinity", "me")) for zone in "ab"]  # type: ignore[attr-defined]
    found.refused("InterPodAffinity", labels={"app": "me"})


def zoneless(found: Waking) -> None:
    found.observer.node_added(testing.node("c", unschedulable=True))
    away(found)


def node_of(found: Waking, name: str) -> Any:
    view = found.made.cluster.row(found.made.cluster.slot_of(name)).view
    assert view is not None
    return view.node


def skewed(found: Waking) -> None:
    spread = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}
    found.web = [found.pod(node="a", labels={"app": "web"})]  # type: ignore[attr-defined]
    found.node("b", labels={ZONE: "b"}, unschedulable=True)
    found.refused("PodTopologySpread", labels={"app": "web"}, topologySpreadConstraints=[spread])


def card(found: Waking) -> None:
    """The only card is another pod's."""
    for name, cards in (("a", gpus(1)), ("b", [])):
        found.tell("Device", name, device(name, cards))
    asked = {"requests": {CORE: "100", RATIO: "100"}}
    given = {"gpu": [{"minor": 0, "resources": {CORE: "100", RATIO: "100"}}]}
    found.web = [found.pod(node="a", annotations={ALLOCATED: json.dumps(given)}, **asked)]  # type: ignore[attr-defined]
    found.refused("DeviceShare", **asked)


def quota(found: Waking) -> None:
    """Two quotas, each of which is used up."""
    for name in ("ours", "theirs"):
        found.tell("ElasticQuota", name, {"spec": {"min": {"cpu": "10m"}, "max": {"cpu": "10m"}}})
    found.web = [found.pod(node="a", labels={QUOTA: name}) for name in ("ours", "theirs")]  # type: ignore[attr-defined]
    found.refused("ElasticQuota", labels={QUOTA: "ours"})


def bound_to_a_reservation(found: Waking) -> None:
    found.refused("Reservation", annotations={AFFINITY: "{}"})


def owner(found: Waking) -> None:
    """The card of its reservation is broken."""
    found.tell("Device", "a", device("a", gpus(1, health=False)))
    asked = {CORE: "100", RATIO: "100"}
    container = {"name": "main", "resources": {"requests": {"cpu": "1", **asked}}}
    template = {"spec": {"schedulerName": testing.SCHEDULER, "containers": [container]}}
    spec = {"template": template, "owners": [{"labelSelector": {"matchLabels": {"app": "owner"}}}], "allocatePolicy": "Restricted"}
    status = {"phase": "Available", "nodeName": "a", "allocatable": {"cpu": "1", **asked}}
    found.tell("Reservation", "r", {"spec": spec, "status": status})
    found.refused("Reservation", labels={"app": "owner"}, annotations={AFFINITY: "{}"}, requests=asked)


def tied_to_a_numa_node(found: Waking) -> None:
    found.refused("NodeNUMAResource", annotations={NUMA: '{"numaTopologyPolicy": "SingleNUMANode"}'})


def amplified(found: Waking) -> None:
    """A CPU of its own counts twice on the nodes, of each of which one CPU is free."""
    for name in "ab":
        found.node(name, labels={ZONE: name}, cpu="4", annotations={RATIOS: '{"cpu": 2}'}, **EVERYTHING)
        report = nrt(name, sockets=1, nodes=1, cores=1)
        found.tell("NodeResourceTopology", name, report, annotations=report["metadata"]["annotations"])
    found.web = [found.pod(node=name, requests={"cpu": "3"}) for name in "ab"]  # type: ignore[attr-defined]
    found.refused("NodeNUMAResource", labels={"koordinator.sh/qosClass": "LSR"}, requests={"cpu": "1"})


def shrinks(found: Waking, pod: Any) -> None:
    """A pod was resized in place."""
    less = testing.pod(pod.name, uid=pod.uid, node=pod.node_name, labels=pod.labels, cpu="1m", memory="1Mi")
    found.observer.pod_updated(pod, found.made.parser.parse(less))


def strict(found: Waking) -> None:
    """The nodes' only cards are broken, and a card has to be of the NUMA node that the CPUs are of."""
    for name in "ab":
        found.node(name, labels={ZONE: name, POLICY: "SingleNUMANode"}, **EVERYTHING)
        found.tell("NodeResourceTopology", name, nrt(name, sockets=1, nodes=2, cores=4))
        found.tell("Device", name, device(name, gpus(1, health=False)))
    found.refused("NodeNUMAResource", requests={CORE: "100", RATIO: "100"})


def full_of_volumes(found: Waking) -> None:
    """Each node takes one volume and has one attached that no pod uses."""
    driver = {"name": "disks", "nodeID": "x", "allocatable": {"count": 1}}
    csi = {"csi": {"driver": "disks", "volumeHandle": "v"}}
    found.tell("PersistentVolume", "v", volume(**csi))
    found.tell("PersistentVolumeClaim", "mine", claim("v"), annotations=DONE)
    for node in "ab":
        found.tell("PersistentVolume", f"old-{node}", volume(csi={"driver": "disks", "volumeHandle": f"old-{node}"}))
        found.tell("CSINode", node, {"spec": {"drivers": [driver]}})
        found.tell("VolumeAttachment", node, attachment("disks", node))
        found.tell("VolumeAttachment", f"other-{node}", attachment("others", node))
    found.refused("NodeVolumeLimits", **CLAIMED)


def attachment(driver: str, node: str) -> Obj:
    return {"spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": f"old-{node}"}}}


def cordoned(found: Waking) -> None:
    for zone in "ab":
        found.node(zone, labels={ZONE: zone}, unschedulable=True)
    found.refused("NodeUnschedulable")


def tolerates(found: Waking, key: str) -> None:
    found.changes(tolerations=[{"key": key, "operator": "Exists"}])


def names_a_volume(found: Waking) -> None:
    found.tell("PersistentVolume", "v", volume())
    found.tell("PersistentVolumeClaim", "mine", claim("v"))
    found.refused("VolumeBinding", **CLAIMED)


def kept_for(claim: str) -> Obj:
    nowhere = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["c"]}]}]}}
    return volume(claimRef={"namespace": "default", "name": claim}, nodeAffinity=nowhere)


def kept_elsewhere(found: Waking) -> None:
    """A volume is free, but the claim is to get one that no node reaches."""
    found.tell("PersistentVolume", "free", volume())
    found.tell("PersistentVolume", "v", kept_for("mine"))
    waits(found)


def gang(found: Waking, by: str, *members: Obj) -> None:
    """Members of a gang that go to one zone; the first one is tried."""
    spec = {"schedulingPolicy": {"gang": {"minCount": len(members)}}, "schedulingConstraints": {"topology": [{"key": ZONE}]}}
    found.tell(SCHEDULING_PODGROUPS.key, "g", {"spec": spec})
    named = [{"name": f"m{number}", "schedulingGroup": {"podGroupName": "g"}, **member} for number, member in enumerate(members)]
    for member in named[1:]:
        found.pod(**member)
    found.refused(by, **named[0])


def gang_with_devices(found: Waking) -> None:
    found.tell("DeviceClass", "gpu", device_class())
    found.tell("ResourceClaimTemplate", "one", template("one"))
    gang(found, "DynamicResources", *[{"resourceClaims": of_template("one")}] * 2)


def gang_with_a_quota(found: Waking) -> None:
    """The quota refuses the second member."""
    found.tell("ElasticQuota", "ours", {"spec": {"min": {"cpu": "20m"}, "max": {"cpu": "20m"}}})
    gang(found, "ElasticQuota", {"labels": {QUOTA: "ours"}}, {"labels": {QUOTA: "ours"}, "requests": {"cpu": "30m"}})


def gang_with_a_device(found: Waking) -> None:
    """There is one for one of them."""
    found.tell("ResourceSlice", "a", slice_of("a", claimable("x")))
    gang_with_devices(found)


CASES: dict[str, tuple[Callable[[Waking], None], Callable[[Waking], Any], bool]] = {
    "its claim": (no_claim, lambda w: w.tell("PersistentVolumeClaim", "mine", claim()), True),
    "another claim": (no_claim, lambda w: w.tell("PersistentVolumeClaim", "other", claim()), False),
    "a volume without a claim": (no_claim, lambda w: w.tell("PersistentVolume", "v", volume()), False),
    "its claim is bound": (waits, lambda w: w.tell("PersistentVolumeClaim", "mine", claim("v"), annotations=DONE), True),
    "its claim is bound to the volume that it names": (
        names_a_volume,
        lambda w: w.tell("PersistentVolumeClaim", "mine", claim("v"), annotations=DONE),
        True,
    ),
    "its claim as it was": (waits, lambda w: w.tell("PersistentVolumeClaim", "mine", claim(), annotations={"x": "y"}), False),
    "a volume": (waits, lambda w: w.tell("PersistentVolume", "v", volume()), True),
    "a small volume": (waits, lambda w: w.tell("PersistentVolume", "v", volume(size="9Gi")), False),
    "a volume of another class": (waits, lambda w: w.tell("PersistentVolume", "v", volume("fast")), False),
    "a volume in use": (waits, lambda w: w.tell("PersistentVolume", "v", volume(phase="Bound")), False),
    "a volume that names its claim": (
        waits,
        lambda w: w.tell("PersistentVolume", "v", {**kept_for("mine"), "status": {"phase": "Bound"}}),
        True,
    ),
    "the volume that was kept for it is gone": (kept_elsewhere, lambda w: w.tell("PersistentVolume", "v", None), True),
    "the volume that was kept for it is another's": (kept_elsewhere, lambda w: w.tell("PersistentVolume", "v", kept_for("other")), True),
    "its class": (waits, lambda w: w.tell("StorageClass", "slow", {"provisioner": "other"}), True),
    "another class": (waits, lambda w: w.tell("StorageClass", "fast", {"provisioner": "other"}), False),
    "more room": (no_room, lambda w: w.tell("CSIStorageCapacity", "a", capacity("20Gi")), True),
    "room elsewhere": (no_room, lambda w: w.tell("CSIStorageCapacity", "b", capacity("20Gi", zone="b")), True),
    "too little room": (no_room, lambda w: w.tell("CSIStorageCapacity", "a", capacity("6Gi")), False),
    "room of another class": (no_room, lambda w: w.tell("CSIStorageCapacity", "b", capacity("20Gi", "fast")), False),
    "a pod that it wants to be near": (near, lambda w: w.pod(node="a", labels={"app": "web"}), True),
    "a pod that is nothing to it": (near, lambda w: w.pod(node="a", labels={"app": "db"}), False),
    "a pod that it is kept from leaves": (away, lambda w: w.observer.pod_deleted(w.web[0]), True),  # type: ignore[attr-defined]
    "a pod that kept it away leaves": (kept_away, lambda w: w.observer.pod_deleted(w.web[0]), True),  # type: ignore[attr-defined]
    "a stranger leaves": (away, lambda w: w.observer.pod_deleted(w.pod(node="a", labels={"app": "db"})), False),
    "one more that it is kept from": (away, lambda w: w.pod(node="a", labels={"app": "web"}), False),
    "the node of one that it is kept from is deleted": (away, lambda w: w.observer.node_deleted(node_of(w, "a")), True),
    "the node of one that kept it away is deleted": (kept_away, lambda w: w.observer.node_deleted(node_of(w, "a")), True),
    "a node without a zone is deleted": (zoneless, lambda w: w.observer.node_deleted(node_of(w, "c")), False),
    "a node moves": (away, lambda w: w.node("a", labels={ZONE: "c"}), True),
    "a node is labelled": (away, lambda w: w.node("a", labels={ZONE: "a", "x": "y"}), False),
    "one of its own leaves": (skewed, lambda w: w.observer.pod_deleted(w.web[0]), True),  # type: ignore[attr-defined]
    "a stranger comes": (skewed, lambda w: w.pod(node="a", labels={"app": "db"}), False),
    "a domain moves": (skewed, lambda w: w.node("a", labels={ZONE: "c"}), True),
    "a card is given back": (card, lambda w: w.observer.pod_deleted(w.web[0]), True),  # type: ignore[attr-defined]
    "a card of its NUMA node is repaired": (strict, lambda w: w.tell("Device", "a", device("a", gpus(1))), True),
    "a pod without devices leaves": (card, lambda w: w.observer.pod_deleted(w.pod(node="a")), False),
    "one of its quota leaves": (quota, lambda w: w.observer.pod_deleted(w.web[0]), True),  # type: ignore[attr-defined]
    "one of another quota leaves": (quota, lambda w: w.observer.pod_deleted(w.web[1]), False),  # type: ignore[attr-defined]
    "one of its quota shrinks": (quota, lambda w: shrinks(w, w.web[0]), True),  # type: ignore[attr-defined]
    "one of another quota shrinks": (quota, lambda w: shrinks(w, w.web[1]), False),  # type: ignore[attr-defined]
    "a pod of an amplified node shrinks": (amplified, lambda w: shrinks(w, w.web[0]), True),  # type: ignore[attr-defined]
    "a pod of a node as it is shrinks": (tied_to_a_numa_node, lambda w: shrinks(w, w.pod(node="a")), False),
    "its quota grows": (quota, lambda w: w.tell("ElasticQuota", "ours", {"spec": {"min": {"cpu": "1"}, "max": {"cpu": "1"}}}), True),
    "it needs no reservation any more": (bound_to_a_reservation, lambda w: w.changes(), True),
    "it is an owner": (bound_to_a_reservation, lambda w: w.changes(annotations={AFFINITY: "{}"}, labels={"app": "owner"}), True),
    "the card of its reservation is repaired": (owner, lambda w: w.tell("Device", "a", device("a", gpus(1))), True),
    "the topology of its reservation's node is told": (owner, lambda w: w.tell("NodeResourceTopology", "a", nrt("a", sockets=1)), True),
    "it needs no NUMA node any more": (tied_to_a_numa_node, lambda w: w.changes(), True),
    "it is of another quota": (quota, lambda w: w.changes(labels={QUOTA: "others"}), True),
    "its devices are others": (card, lambda w: w.changes(annotations={HINT: "{}"}, requests={CORE: "100", RATIO: "100"}), True),
    "it is shown as it was": (quota, lambda w: w.changes(labels={QUOTA: "ours"}), False),
    "a volume is detached": (full_of_volumes, lambda w: w.tell("VolumeAttachment", "a", None), True),
    "a volume of another driver is detached": (full_of_volumes, lambda w: w.tell("VolumeAttachment", "other-a", None), False),
    "a node is uncordoned": (cordoned, lambda w: w.node("a", labels={ZONE: "a"}), True),
    "it tolerates cordoned nodes": (cordoned, lambda w: tolerates(w, "node.kubernetes.io/unschedulable"), True),
    "it tolerates something else": (cordoned, lambda w: tolerates(w, "x"), False),
    "a gang's devices are published": (
        gang_with_devices,
        lambda w: w.tell("ResourceSlice", "a", slice_of("a", claimable("x"), claimable("y"))),
        True,
    ),
    "a gang's quota grows": (
        gang_with_a_quota,
        lambda w: w.tell("ElasticQuota", "ours", {"spec": {"min": {"cpu": "1"}, "max": {"cpu": "1"}}}),
        True,
    ),
    "a gang's second device is published": (
        gang_with_a_device,
        lambda w: w.tell("ResourceSlice", "a", slice_of("a", claimable("x"), claimable("y"))),
        True,
    ),
    "a volume for a gang without any": (gang_with_devices, lambda w: w.tell("PersistentVolume", "v", volume()), False),
    "a domain is labelled": (skewed, lambda w: w.node("a", labels={ZONE: "a", "x": "y"}), False),
}


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.parametrize("what", CASES)
def test_a_refused_pod_comes_back_for_what_may_help_it(what: str) -> None:
    refused, happens, woken = CASES[what]
    found = Waking()
    refused(found)
    happens(found)
    assert found.woken is woken


@pytest.mark.feature("SCH-EQ-13")
@pytest.mark.parametrize(
    ("name", "room", "asked", "woken"), [("theirs", True, 0, False), ("ours", True, 1, True), ("ours", False, 1, False)]
)
def test_the_status_of_a_quota_is_a_matter_of_its_own_pods(
    monkeypatch: pytest.MonkeyPatch, name: str, room: bool, asked: int, woken: bool
) -> None:
    """A scheduler writes hundreds of statuses a second at its start; each would be looked at for each shape of waiting pods."""
    found, looked = Waking(), list[Any]()
    quota(found)
    monkeypatch.setattr(found.made.framework.plugins["ElasticQuota"], "_fits_now", lambda pod: looked.append(pod) or room)
    seen = {"annotations": {"quota.scheduling.koordinator.sh/runtime": '{"cpu": "10m"}'}}
    found.tell("ElasticQuota", name, {"spec": {"min": {"cpu": "10m"}, "max": {"cpu": "10m"}}}, **seen)
    assert (len(looked), found.woken) == (asked, woken)


@pytest.mark.feature("SCH-KS-09")
def test_room_that_was_set_aside_for_a_pod_that_is_not_there_wakes_who_waits_for_it() -> None:
    found = Waking()
    found.tell("PersistentVolume", "v", volume())
    found.tell("PersistentVolumeClaim", "other", claim())
    store = found.made.framework.plugins["VolumeBinding"].store  # type: ignore[attr-defined]
    store.assumed_volumes["v"] = "default/other"
    waits(found)
    del store.assumed_volumes["v"]
    other = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "other"}}]}
    found.queue.room_given_up(found.made.parser.parse(testing.pod(**other)), found.made.state.now)
    assert found.woken


@pytest.mark.feature("SCH-KS-09")
def test_a_volume_that_was_set_aside_is_free_once_its_claim_got_another() -> None:
    found = Waking()
    found.tell("PersistentVolume", "v", volume())
    store = found.made.framework.plugins["VolumeBinding"].store  # type: ignore[attr-defined]
    store.assumed_volumes["v"] = "default/other"
    found.tell("PersistentVolumeClaim", "other", claim("another"))
    assert store.assumed_volumes == {}
