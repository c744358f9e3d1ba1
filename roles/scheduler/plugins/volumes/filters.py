"""VolumeRestrictions, NodeVolumeLimits and VolumeZone (SCH-KS-09)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api.objects import CSINode
from roles.scheduler.cluster.changes import PODS
from roles.scheduler.cluster.labels import ABSENT
from roles.scheduler.cluster.podinfo import PodShape
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import NODE, Action, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Feed, Filter, PreFilter, Rejection
from roles.scheduler.framework.status import SKIP, SUCCESS, Status
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.volumes.hints import detached, storage_events
from roles.scheduler.plugins.volumes.store import VolumeColumns, claim_keys, volumes_of

_ONE_POD = "ReadWriteOncePod"
_ZONES = (
    ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
)


class _VolumeFilter(PreFilter, Filter):
    """What the three have in common."""

    reads = PODS

    def __init__(self, args: None, handle: Handle) -> None:
        super().__init__(args, handle)
        self.store = handle.cluster.register("Volumes", VolumeColumns())

    def feeds(self) -> Sequence[Feed]:
        return self.store.feeds()

    def pre_filter(self, ctx: CycleContext) -> Status:
        volumes = volumes_of(ctx.pod.shape)
        return SUCCESS if volumes.any_claim or volumes.disks else SKIP

    def filter_stamp(self, ctx: CycleContext) -> Any:
        return (self.store.version, ctx.cluster.node_version) if volumes_of(ctx.pod.shape).any_claim else None

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        volumes = volumes_of(other)
        return bool(volumes.any_claim or volumes.disks)

    def subscriptions(self) -> Sequence[Subscription]:
        return (*storage_events(self.store), Subscription(NODE, Action.ADD | Action.UPDATE_LABELS))


class VolumeRestrictions(_VolumeFilter):
    """Code 1: a disk is in use on the node; 2: a claim that one pod only may use is in use somewhere."""

    name = "VolumeRestrictions"

    def _exclusive(self, ctx: CycleContext) -> bool:
        """Whether a ReadWriteOncePod claim of the pod is in use."""
        store = self.store
        return any(
            store.in_use.get(key) and key in store.claims and _ONE_POD in store.claims[key].spec.access_modes for key in claim_keys(ctx.pod)
        )

    def filter_stamp(self, ctx: CycleContext) -> Any:
        return (self.store.version, self.store.users) if volumes_of(ctx.pod.shape).any_claim else None

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        if self._exclusive(ctx):
            return np.full(ctx.cluster.capacity, 2, dtype=np.int32)[rows]
        taken = [slot for disk, read_only in volumes_of(ctx.pod.shape).disks for slot in self.store.conflicts(disk, read_only)]
        if not taken:
            return None
        codes = np.zeros(ctx.cluster.capacity, dtype=np.int32)
        codes[taken] = 1
        return codes[rows]

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        if code == 2:
            return Rejection(("node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",))
        return Rejection(("node(s) had no available disk",))


class NodeVolumeLimits(_VolumeFilter):
    """Refuses nodes on which a CSI driver takes no more volumes (CSINode; code 1), and those without a driver whose CSIDriver wants no pods
    there (code 2; 3 without a CSINode).

    A volume counts from when a pod that uses it has the node until it is detached, which takes a while after the last such pod has left.
    As in kube-scheduler it counts until then for preemption as well: a victim would make no room at once."""

    name = "NodeVolumeLimits"

    def feeds(self) -> Sequence[Feed]:
        return (*super().feeds(), self.store.attachments())

    def subscriptions(self) -> Sequence[Subscription]:
        return (*super().subscriptions(), detached(self.store))

    def _wanted(self, ctx: CycleContext) -> dict[str, set[str]]:
        """Volumes of the pod by driver."""
        wanted: dict[str, set[str]] = {}
        for key in claim_keys(ctx.pod):
            handle = self.store.handle_of(key)
            if handle is not None:
                wanted.setdefault(handle[0], set()).add(handle[1])
        return wanted

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        wanted = self._wanted(ctx)
        if not wanted:
            return None
        slots = ctx.cluster.slots[rows].tolist()
        demanded = {name for name in wanted if (known := self.store.drivers.get(name)) and known.spec.prevent_pod_scheduling_if_missing}
        return np.fromiter((self._code(ctx.cluster.known_name(slot), slot, wanted, demanded) for slot in slots), np.int32, len(slots))

    def _code(self, node: str, slot: int, wanted: dict[str, set[str]], demanded: set[str]) -> int:
        found = self.store.nodes.get(node)
        if demanded and found is None:
            return 3
        if demanded and found is not None and not demanded <= {driver.name for driver in found.spec.drivers}:
            return 2
        return int(self._over(found, slot, wanted))

    def _over(self, found: CSINode | None, slot: int, wanted: dict[str, set[str]]) -> bool:
        for driver in found.spec.drivers if found is not None else ():
            limit = driver.allocatable.count if driver.allocatable is not None else None
            volumes = wanted.get(driver.name)
            if limit is None or not volumes:
                continue
            there = self.store.attached(slot).get(driver.name, set())
            if volumes - there and len(there | volumes) > limit:
                return True
        return False

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        if code == 1:
            return Rejection(("node(s) exceed max volume count",))
        return Rejection(("CSIDriverMissingOnNode" if code == 2 else "CSINodeMissing",), resolvable=False)


class VolumeZone(_VolumeFilter):
    """Refuses nodes of another zone or region than a bound volume's labels name; nodes without such labels pass."""

    name = "VolumeZone"
    reads = 0

    def _demands(self, ctx: CycleContext) -> Iterator[tuple[tuple[str, str], frozenset[str]]]:
        """(keys of a node's label, accepted values) of every bound volume."""
        for key in claim_keys(ctx.pod):
            claim = self.store.claims.get(key)
            volume = self.store.volumes.get(claim.spec.volume_name) if claim is not None and claim.spec.volume_name else None
            for keys in _ZONES if volume is not None else ():
                assert volume is not None
                value = next((volume.metadata.labels[name] for name in keys if name in volume.metadata.labels), "")
                if value:
                    yield keys, frozenset(value.split("__"))

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        demands = list(self._demands(ctx))
        if not demands:
            return None
        labels = ctx.cluster.labels
        labelled = np.zeros(len(ctx.cluster.slots[rows]), dtype=np.bool_)
        for keys in _ZONES:
            for key in keys:
                np.logical_or(labelled, labels.column(key).ids[rows] != ABSENT, out=labelled)
        refused = np.zeros_like(labelled)
        for keys, values in demands:
            accepted = self._accepted(ctx, keys[0], values, rows)
            legacy = np.logical_and(labels.column(keys[0]).ids[rows] == ABSENT, self._accepted(ctx, keys[1], values, rows))
            np.logical_or(refused, ~np.logical_or(accepted, legacy), out=refused)
        return np.logical_and(refused, labelled)

    @staticmethod
    def _accepted(ctx: CycleContext, key: str, values: frozenset[str], rows: Rows) -> NDArray[np.bool_]:
        column = ctx.cluster.labels.column(key)
        table = np.fromiter((value in values for value in column.values), np.bool_, len(column.values))
        return np.take(table, column.ids[rows])

    def tally(self, ctx: CycleContext) -> Tally:
        return FIXED

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        return False

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return Rejection(("node(s) had no available volume zone",), resolvable=False)
