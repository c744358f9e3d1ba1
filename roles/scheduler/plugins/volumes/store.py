"""What the volume plugins know: claims, volumes, classes, drivers, and which pods use what on which node (SCH-KS-09)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from koord.api import kinds
from koord.api import objects as api
from roles.scheduler.cluster.changes import PODS
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.framework.interfaces import Feed

K = TypeVar("K")

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_ANNOTATIONS = (SELECTED_NODE, _BIND_COMPLETED, _CLASS_ANNOTATION)
_ALWAYS = "ebs"  # a disk of this sort is never shared


class Use(NamedTuple):
    """A disk that pods name directly, and whether this one only reads it."""

    disk: tuple[str, ...]
    read_only: bool


class PodVolumes(NamedTuple):
    """What placing looks at in the volumes of a shape: claim names, volume names of ephemeral claims, and disks."""

    claims: tuple[str, ...]
    ephemeral: tuple[str, ...]
    disks: tuple[Use, ...]

    @property
    def any_claim(self) -> bool:
        """Whether there is a claim at all."""
        return bool(self.claims or self.ephemeral)


def volumes_of(shape: PodShape) -> PodVolumes:
    """Kept with the shape."""
    known: PodVolumes | None = shape.memo.get("volumes")
    if known is None:
        claims = {volume.persistent_volume_claim.claim_name for volume in shape.volumes if volume.persistent_volume_claim is not None}
        ephemeral = tuple(volume.name for volume in shape.volumes if volume.ephemeral is not None)
        disks = tuple(use for volume in shape.volumes for use in _disks(volume))
        known = shape.memo["volumes"] = PodVolumes(tuple(sorted(claims)), ephemeral, disks)
    return known


def claim_keys(pod: PodInfo) -> tuple[str, ...]:
    """ "namespace/name" of every claim of a pod; an ephemeral volume's claim is named after pod and volume."""
    volumes = volumes_of(pod.shape)
    if not volumes.any_claim:
        return ()
    return (
        *(f"{pod.namespace}/{name}" for name in volumes.claims),
        *(f"{pod.namespace}/{pod.name}-{name}" for name in volumes.ephemeral),
    )


def bound(claim: api.PersistentVolumeClaim) -> bool:
    """Whether the volume controller has bound a claim; one that only names a volume may never get it."""
    return bool(claim.spec.volume_name) and _BIND_COMPLETED in claim.metadata.annotations


def _key(obj: Any) -> str:
    return f"{obj.metadata.namespace}/{obj.metadata.name}"


def _content(obj: Any) -> tuple[Any, ...]:
    """What is looked at in a storage object: many of its updates are about something else."""
    meta = obj.metadata
    told = [meta.annotations.get(key) for key in _ANNOTATIONS]
    rest = [getattr(obj, name) for name in obj.__struct_fields__ if name != "metadata"]
    return (meta.uid, meta.labels, meta.owner_references, meta.deletion_timestamp is None, told, rest)


def _disks(volume: api.Volume) -> list[Use]:
    if volume.gce_persistent_disk is not None:
        return [Use(("gce", volume.gce_persistent_disk.pd_name), volume.gce_persistent_disk.read_only)]
    if volume.aws_elastic_block_store is not None:
        return [Use((_ALWAYS, volume.aws_elastic_block_store.volume_id), False)]
    if volume.iscsi is not None:
        return [Use(("iscsi", volume.iscsi.iqn), volume.iscsi.read_only)]
    if volume.rbd is not None:
        source = volume.rbd
        return [Use(("rbd", monitor, source.pool or "rbd", source.image), source.read_only) for monitor in source.monitors]
    return []


def _tally(table: dict[str, Counter[K]], name: str, user: K, step: int) -> None:
    """Count who uses something. Nothing is kept of what nobody uses."""
    users = table.setdefault(name, Counter())
    users[user] += step
    if not users[user]:
        del users[user]
    if not users:
        del table[name]


class VolumeColumns(Columns):
    """`version` moves when a storage object or an assumption changes, `users` when a pod with claims comes or goes."""

    def __init__(self) -> None:
        self.claims: dict[str, api.PersistentVolumeClaim] = {}
        self._naming: dict[str, Counter[str]] = {}  # volume name -> keys of the claims that name it
        self.volumes: dict[str, api.PersistentVolume] = {}
        self.classes: dict[str, api.StorageClass] = {}
        self.drivers: dict[str, api.CSIDriver] = {}
        self.nodes: dict[str, api.CSINode] = {}
        self.capacities: dict[str, api.CSIStorageCapacity] = {}
        self.assumed_volumes: dict[str, str] = {}  # volume name -> key of the claim that is to get it
        self.assumed_nodes: dict[str, str] = {}  # claim key -> node for which it is to be provisioned
        self._holders: dict[str, set[str]] = {}  # claim key -> UIDs of the pods that are to get one of these, of all profiles
        self._writers: dict[str, str] = {}  # claim key -> UID of the one of them that writes it
        self.version = 0
        self.users = 0
        self._states = itertools.count(1)
        self._users_before = 0
        self.in_use: dict[str, Counter[int]] = {}  # claim key -> by slot the pods that use it
        self._pods: dict[int, dict[str, PodInfo]] = {}
        self._disks: dict[tuple[str, ...], dict[int, list[int]]] = {}  # disk -> slot -> [readers, writers]
        self._attached: dict[int, dict[str, set[str]]] = {}
        self._attachments: dict[str, dict[str, tuple[str, str]]] = {}  # by node and their names, the driver and the volume's name
        self._shown_on: dict[str, Counter[str]] = {}  # volume name -> by node its attachments

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    # ---------------------------------------------------------------- objects

    def feeds(self) -> Sequence[Feed]:
        """Everything that must be observed; the same bound methods for each plugin, so that each kind is told once."""
        return (
            Feed(kinds.PERSISTENTVOLUMECLAIMS, api.PersistentVolumeClaim, self.claim_set),
            Feed(kinds.PERSISTENTVOLUMES, api.PersistentVolume, self.volume_set),
            Feed(kinds.STORAGECLASSES, api.StorageClass, self.class_set),
            Feed(kinds.CSIDRIVERS, api.CSIDriver, self.driver_set),
            Feed(kinds.CSINODES, api.CSINode, self.node_object_set),
            Feed(kinds.CSISTORAGECAPACITIES, api.CSIStorageCapacity, self.capacity_set),
        )

    def attachments(self) -> Feed:
        """What only those must observe who count the volumes of nodes."""
        return Feed(kinds.VOLUMEATTACHMENTS, api.VolumeAttachment, self.attachment_set)

    def claim_set(self, old: Any, new: Any) -> bool:
        """A claim appeared, changed or went; whether that changes anything that is looked at, as for the other kinds."""
        key = _key(new or old)
        if new is not None and new.spec.volume_name:
            self._settle(key)  # it may have got another one
        self._look_again(key)
        for claim, step in ((self.claims.get(key), -1), (new, 1)):
            if claim is not None and claim.spec.volume_name:
                _tally(self._naming, claim.spec.volume_name, key, step)
        return self._put(self.claims, key, new)

    def volume_set(self, old: Any, new: Any) -> bool:
        """A PersistentVolume."""
        name = (new or old).metadata.name
        before = self.volumes.get(name)
        if before is None or new is None or before.spec.csi != new.spec.csi:
            self._other_volume(name)
        return self._put(self.volumes, name, new)

    def class_set(self, old: Any, new: Any) -> bool:
        """A StorageClass."""
        return self._put(self.classes, (new or old).metadata.name, new, of_all=True)

    def driver_set(self, old: Any, new: Any) -> bool:
        """A CSIDriver."""
        return self._put(self.drivers, (new or old).metadata.name, new, of_all=True)

    def node_object_set(self, old: Any, new: Any) -> bool:
        """A CSINode, named after its node."""
        return self._put(self.nodes, (new or old).metadata.name, new, of_all=True)

    def capacity_set(self, old: Any, new: Any) -> bool:
        """A CSIStorageCapacity."""
        return self._put(self.capacities, _key(new or old), new)

    def attachment_set(self, old: Any, new: Any) -> bool:
        """A volume is attached to a node, or is to be, or is no longer. Other nodes are as they were: one row is looked at again."""
        name, spec = (new or old).metadata.name, (new or old).spec
        on_node = self._attachments.get(spec.node_name, {})
        before = on_node.pop(name, None)
        after = (spec.attacher, spec.source.persistent_volume_name) if new is not None and spec.source.persistent_volume_name else None
        if after is not None:
            self._attachments.setdefault(spec.node_name, on_node)[name] = after
        elif not on_node:
            self._attachments.pop(spec.node_name, None)
        if before == after:
            return False
        if before is not None:
            _tally(self._shown_on, before[1], spec.node_name, -1)
        if after is not None:
            _tally(self._shown_on, after[1], spec.node_name, 1)
        slot = self.cluster.slot_of(spec.node_name)
        if slot >= 0:
            self._attached.pop(slot, None)
            self.cluster.changes.note(slot, PODS)
        return True

    def _put(self, table: dict[str, Any], name: str, new: Any, *, of_all: bool = False) -> bool:
        """`of_all`: the volumes of all nodes are to be looked at again."""
        before = table.pop(name, None)
        if new is not None:
            table[name] = new
        if before is not None and new is not None and _content(before) == _content(new):
            return False
        self.version += 1
        if of_all:
            self._attached.clear()
        return True

    def _look_again(self, key: str) -> None:
        """At the volumes of the nodes whose pods use a claim. Not at those of all nodes: there are events of claims all the time."""
        for slot in self.in_use.get(key, ()):
            self._attached.pop(slot, None)

    def _other_volume(self, name: str) -> None:
        """A volume came, went, or is another one now."""
        for key in self._naming.get(name, ()):
            self._look_again(key)
        for node in self._shown_on.get(name, ()):
            self._attached.pop(self.cluster.slot_of(node), None)

    def class_of(self, claim: api.PersistentVolumeClaim) -> str:
        """Name of the claim's storage class, "" for none."""
        return claim.metadata.annotations.get(_CLASS_ANNOTATION) or claim.spec.storage_class_name or ""

    def waits(self, claim: api.PersistentVolumeClaim) -> bool:
        """Whether the claim is bound only when a pod that uses it was placed."""
        found = self.classes.get(self.class_of(claim))
        return found is not None and found.volume_binding_mode == "WaitForFirstConsumer"

    def selected_node(self, claim: api.PersistentVolumeClaim, key: str) -> str:
        """The node for which the claim, "namespace/name", is being provisioned, "" for none."""
        return self.assumed_nodes.get(key) or claim.metadata.annotations.get(SELECTED_NODE, "")

    # ---------------------------------------------------------------- assumptions

    def assume(self, key: str, uid: str, *, volume: str = "", node: str = "") -> None:
        """A pod is to get a volume for its claim, or one that is made for a node. Pods may share the claim."""
        table, name, value = (self.assumed_volumes, volume, key) if volume else (self.assumed_nodes, key, node)
        if table.get(name) != value:
            table[name] = value
            self.version += 1
        self._holders.setdefault(key, set()).add(uid)

    def writes(self, key: str, uid: str) -> bool:
        """Whether it is up to this pod to write what its claim gets: one of those that share it does."""
        return uid in self._holders.get(key, ()) and self._writers.setdefault(key, uid) == uid

    def give_up(self, key: str, uid: str) -> None:
        """A pod is not to get it any more. If no other waits for it, it is free again."""
        holders = self._holders.get(key, set())
        if uid not in holders:
            return
        holders.remove(uid)
        if self._writers.get(key) == uid:
            del self._writers[key]
        if not holders:
            self._settle(key)
            self.version += 1

    def _settle(self, key: str) -> None:
        """Nothing is assumed of a claim any more."""
        self._holders.pop(key, None)
        self._writers.pop(key, None)
        self.assumed_nodes.pop(key, None)
        for volume in [volume for volume, claim in self.assumed_volumes.items() if claim == key]:
            del self.assumed_volumes[volume]

    # ---------------------------------------------------------------- nodes and pods

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        if old is None:
            self._attached.pop(slot, None)

    def node_removed(self, slot: int, old: NodeView) -> None:
        self._attached.pop(slot, None)

    def quiet_begins(self) -> None:
        self._users_before = self.users

    def quiet_ends(self) -> None:
        self.users = self._users_before

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        self._count(slot, pod, 1)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        self._count(slot, pod, -1)

    def _count(self, slot: int, pod: PodInfo, step: int) -> None:
        volumes = volumes_of(pod.shape)
        for disk, read_only in volumes.disks:
            holders = self._disks.setdefault(disk, {})
            counts = holders.setdefault(slot, [0, 0])
            counts[not read_only] += step
            if counts == [0, 0]:
                del holders[slot]
            if not holders:
                del self._disks[disk]
        if not volumes.any_claim:
            return
        self.users = next(self._states)
        self._attached.pop(slot, None)
        row = self._pods.setdefault(slot, {})
        if step > 0:
            row[pod.uid] = pod
        else:
            row.pop(pod.uid, None)
        for key in claim_keys(pod):
            _tally(self.in_use, key, slot, step)

    def conflicts(self, disk: tuple[str, ...], read_only: bool) -> list[int]:
        """Slots where a disk is in use in a way that excludes this use: only readers may share."""
        return [slot for slot, (_, writers) in self._disks.get(disk, {}).items() if writers or not read_only]

    def attached(self, slot: int) -> dict[str, set[str]]:
        """By CSI driver the volumes of a slot: those of its pods, and those that are attached still or already for others. A volume counts
        once."""
        known = self._attached.get(slot)
        if known is None:
            known = self._attached[slot] = {}
            for pod in self._pods.get(slot, {}).values():
                for key in claim_keys(pod):
                    handle = self.handle_of(key)
                    if handle is not None:
                        known.setdefault(handle[0], set()).add(handle[1])
            for attacher, name in self._attachments.get(self.cluster.known_name(slot), {}).values():
                volume = self.volumes.get(name)
                if volume is not None and volume.spec.csi is not None:
                    known.setdefault(attacher, set()).add(volume.spec.csi.volume_handle)
        return known

    def handle_of(self, key: str) -> tuple[str, str] | None:
        """(CSI driver, volume) of a claim; a claim that is not bound yet stands for itself. None when no CSI driver is concerned."""
        claim = self.claims.get(key)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            return (volume.spec.csi.driver, volume.spec.csi.volume_handle) if volume.spec.csi is not None else None
        found = self.classes.get(self.class_of(claim))
        return (found.provisioner, key) if found is not None and found.provisioner in self._known_drivers() else None

    def _known_drivers(self) -> set[str]:
        return {driver.name for node in self.nodes.values() for driver in node.spec.drivers} | self.drivers.keys()
