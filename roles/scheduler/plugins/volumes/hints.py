"""Which changes may help a pod that was refused for its volumes: of its own claims, and of what unbound ones could get (SCH-KS-09)."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api import kinds
from koord.api.objects import PersistentVolumeClaim
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.events import ASSIGNED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.plugins.volumes.matching import largest, names, requested, suits
from roles.scheduler.plugins.volumes.store import VolumeColumns, volumes_of

_CHANGES = Action.ADD | Action.UPDATE


def storage_events(store: VolumeColumns) -> tuple[Subscription, ...]:
    """For all plugins that look at volumes. Hints are shared by pods of a shape, which differ in their ephemeral claims: each event of the
    namespace, or of storage that such a claim may want, may help these."""
    hints = _Hints(store)
    return (
        Subscription(ASSIGNED_POD, Action.DELETE, hints.pod_left),
        Subscription(kinds.PERSISTENTVOLUMECLAIMS.kind, _CHANGES, hints.claim),
        Subscription(kinds.PERSISTENTVOLUMES.kind, _CHANGES | Action.DELETE, hints.volume),
        Subscription(kinds.STORAGECLASSES.kind, _CHANGES, hints.storage_class),
        Subscription(kinds.CSISTORAGECAPACITIES.kind, _CHANGES, hints.capacity),
        Subscription(kinds.CSINODES.kind, _CHANGES, _any_claim),
        Subscription(kinds.CSIDRIVERS.kind, _CHANGES, _any_claim),
    )


def detached(store: VolumeColumns) -> Subscription:
    """For those who count the volumes of nodes."""
    return Subscription(kinds.VOLUMEATTACHMENTS.kind, Action.DELETE, _Hints(store).detached)


def _any_claim(pod: PodInfo, event: ClusterEvent) -> bool:
    return volumes_of(pod.shape).any_claim


class _Hints:
    def __init__(self, store: VolumeColumns) -> None:
        self._store = store

    def _claims(self, pod: PodInfo) -> Iterator[tuple[str, PersistentVolumeClaim]]:
        keys = (f"{pod.namespace}/{name}" for name in volumes_of(pod.shape).claims)
        return ((key, claim) for key in keys if (claim := self._store.claims.get(key)) is not None)

    def _unbound(self, pod: PodInfo) -> Iterator[tuple[str, PersistentVolumeClaim]]:
        return ((key, claim) for key, claim in self._claims(pod) if not claim.spec.volume_name)

    def detached(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A volume of a driver that the pod needs."""
        volumes = volumes_of(pod.shape)
        handles = (self._store.handle_of(key) for key, _ in self._claims(pod))
        return bool(volumes.ephemeral) or any(handle is not None and handle[0] == event.old.spec.attacher for handle in handles)

    def pod_left(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A pod that used volumes, or had some set aside for it."""
        left = volumes_of(event.old.shape)
        mine = volumes_of(pod.shape)
        shared = {use.disk for use in left.disks} & {use.disk for use in mine.disks}
        return bool(shared) or (left.any_claim and mine.any_claim)

    def claim(self, pod: PodInfo, event: ClusterEvent) -> bool:
        meta = event.new.metadata
        volumes = volumes_of(pod.shape)
        return meta.namespace == pod.namespace and (bool(volumes.ephemeral) or meta.name in volumes.claims)

    def volume(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """That of a claim, one that a claim could get, or one that was kept for a claim: if it no longer suits, others may."""
        volumes, old, new = volumes_of(pod.shape), event.old, event.new
        if volumes.ephemeral:
            return True
        if old is not None and any(names(old, claim) for _, claim in self._unbound(pod)):
            return True
        if new is None:
            return False
        if any(claim.spec.volume_name == new.metadata.name for _, claim in self._claims(pod)):
            return True
        return any(suits(self._store, new, claim, key) for key, claim in self._unbound(pod))

    def storage_class(self, pod: PodInfo, event: ClusterEvent) -> bool:
        name = event.new.metadata.name
        return bool(volumes_of(pod.shape).ephemeral) or any(self._store.class_of(claim) == name for _, claim in self._unbound(pod))

    def capacity(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """More than before, or somewhere else, and enough."""
        if volumes_of(pod.shape).ephemeral:
            return True
        old, new = event.old, event.new
        sizes = [requested(claim) for _, claim in self._unbound(pod) if self._store.class_of(claim) == new.storage_class_name]
        moved = old is None or (old.node_topology, old.storage_class_name) != (new.node_topology, new.storage_class_name)
        return any(largest(new) >= size and (moved or largest(old) < size) for size in sizes)
