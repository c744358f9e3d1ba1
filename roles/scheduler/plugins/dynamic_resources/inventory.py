"""What nodes can give of devices, and what claims have of them, kept by node (SCH-DRA-01). Columns: `free` counts unused devices, `busy`
those that claims have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from koord.api.objects_resource import AllocationResult, DeviceTaintRule, ResourceSlice
from koord.api.quantity import QuantityError
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.plugins.dynamic_resources.allocator import Stock
from roles.scheduler.plugins.dynamic_resources.amounts import Amount, amount
from roles.scheduler.plugins.dynamic_resources.devices import Catalogue, DeviceId, DeviceView, PoolId, SliceView
from roles.scheduler.plugins.dynamic_resources.pools import Pool, pool_of
from roles.scheduler.plugins.dynamic_resources.taints import TaintRules, may_select

_NOTHING: Mapping[str, Any] = {}
_MANY = 1 << 20


class Use(NamedTuple):
    """What an allocation has of one device: the device, or amounts of one that several may use."""

    device: DeviceId
    shared: Mapping[str, Amount] | None


def uses(allocation: AllocationResult | None) -> tuple[Use, ...]:
    """What an allocation takes from others; looking after a device (admin access) takes nothing."""
    found = []
    for one in allocation.devices.results if allocation is not None else ():
        if not one.admin_access:
            shared = None if one.share_id is None else {name: _amount(value) for name, value in one.consumed_capacity.items()}
            found.append(Use((one.driver, one.pool, one.device), shared))
    return tuple(found)


def _amount(value: str | int | float) -> Amount:
    try:
        return amount(value)
    except QuantityError:
        return 0


class Inventory:
    """The pools of one node. `shape` is equal for nodes whose devices no claim can tell apart; `single` are the devices of the node that
    one claim at a time may have, `known` all that it knows of."""

    __slots__ = ("devices", "every", "known", "pools", "shape", "single", "stock")

    def __init__(self, pools: tuple[Pool, ...]) -> None:
        self.pools = pools
        self.stock = Stock(pools)
        self.every: tuple[DeviceView, ...] = tuple(device for pool in pools for device in (*pool.devices, *pool.others))
        self.devices: tuple[DeviceView, ...] = tuple(device for pool in pools for device in pool.devices)
        self.known = frozenset([device.id for device in self.every])
        self.single = frozenset([device.id for device in self.devices if not device.kind.multiple])
        self.shape = tuple(
            (
                pool.id[0], pool.incomplete, pool.problem, tuple(device.like for device in pool.devices),
                tuple(device.like for device in pool.others), tuple(sorted(pool.counters.items())),
            )
            for pool in pools
        )  # fmt: skip


class Counted:
    """The devices in use. `taken` are those that claims have for themselves: how many (one, unless somebody erred)."""

    def __init__(self) -> None:
        self.taken: dict[DeviceId, int] = {}
        self.shared: dict[DeviceId, dict[str, Amount]] = {}
        self._sharers: dict[DeviceId, int] = {}

    def count(self, found: Iterable[Use], step: int) -> None:
        """So many more have this (1 or -1)."""
        for device, amounts in found:
            if amounts is None:
                _count(self.taken, device, step)
                continue
            _count(self._sharers, device, step)
            shared = self.shared.setdefault(device, {})
            for name, value in amounts.items():
                shared[name] = shared.get(name, 0) + step * value
            if device not in self._sharers:
                del self.shared[device]

    def with_more(self, found: Iterable[Use]) -> Counted:
        """A copy that counts these as well."""
        copied = Counted()
        copied.taken, copied._sharers = dict(self.taken), dict(self._sharers)
        copied.shared = {device: dict(amounts) for device, amounts in self.shared.items()}
        copied.count(found, 1)
        return copied


class DeviceColumns(Columns, Counted):
    """Slices by node, and the devices in use."""

    def __init__(self) -> None:
        Counted.__init__(self)
        self.free: Vector = np.zeros(0)
        self.busy: Vector = np.zeros(0)
        self._catalogue = Catalogue()
        self._pools: dict[PoolId, dict[str, SliceView]] = {}
        self._slices: dict[str, SliceView] = {}  # as they are published
        self._rules = TaintRules()
        self._local: dict[str, set[PoolId]] = {}  # node name -> pools with slices for it alone
        self._homes: dict[PoolId, set[str]] = {}  # the same the other way round
        self._wide: set[PoolId] = set()  # pools with slices for several nodes
        self._inventories: dict[int, Inventory] = {}

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free, self.busy = np.zeros(cluster.capacity), np.zeros(cluster.capacity)

    def grow(self, capacity: int) -> None:
        self.free, self.busy = grown(self.free, capacity), grown(self.busy, capacity)

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        if old is None or (self._wide and old.labels != new.labels):
            self._changed(slot)

    def node_removed(self, slot: int, old: NodeView) -> None:
        self._inventories.pop(slot, None)
        self.free[slot] = self.busy[slot] = 0

    # ---------------------------------------------------------------- slices

    def slice_set(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """A slice appeared, changed or went."""
        shown = new or old
        assert shown is not None
        before = self._slices.pop(shown.metadata.name, None)
        touched: dict[PoolId, None] = {}
        nodes: set[str] | None = set()
        if before is not None:
            nodes = _both(nodes, {before.node} if before.node else None)
            del self._pools[before.pool][before.name]
            touched[before.pool] = None
        if new is not None:
            after = self._catalogue.read(new)
            self._slices[after.name] = after
            self._pools.setdefault(after.pool, {})[after.name] = self._catalogue.under(self._rules, after)
            touched[after.pool] = None
            nodes = _both(nodes, {after.node} if after.node else None)
        for pool in touched:
            nodes = _both(nodes, self._nodes_of(pool))
            self._index(pool)
            nodes = _both(nodes, self._nodes_of(pool))
        self._changed_on(nodes)

    def rule_set(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> bool:
        """A DeviceTaintRule appeared, changed or went. Returns whether any device has other taints now."""
        changed = self._rules.told(old, new)
        touched: dict[PoolId, None] = {}
        for slice_ in self._slices.values() if changed else ():
            if not any(may_select(selector, slice_.pool) for selector in changed):
                continue
            after = self._catalogue.under(self._rules, slice_)
            if after != self._pools[slice_.pool][slice_.name]:
                self._pools[slice_.pool][slice_.name] = after
                touched[slice_.pool] = None
        nodes: set[str] | None = set()
        for pool in touched:
            nodes = _both(nodes, self._nodes_of(pool))
        self._changed_on(nodes)
        return bool(touched)

    def _index(self, pool: PoolId) -> None:
        """Where a pool's slices are looked for."""
        slices = self._pools.get(pool)
        for name in self._homes.pop(pool, ()):
            self._local[name].discard(pool)
            if not self._local[name]:
                del self._local[name]
        self._wide.discard(pool)
        if not slices:
            self._pools.pop(pool, None)
        elif all(one.node for one in slices.values()):
            self._homes[pool] = {one.node for one in slices.values()}
            for name in self._homes[pool]:
                self._local.setdefault(name, set()).add(pool)
        else:
            self._wide.add(pool)

    def _nodes_of(self, pool: PoolId) -> set[str] | None:
        """Nodes for which a pool has slices; None when that is not said by name."""
        if pool in self._wide:
            return None
        return {one.node for one in self._pools.get(pool, _NOTHING).values()}

    def _changed_on(self, nodes: Iterable[str] | None) -> None:
        if nodes is None:
            for slot in np.flatnonzero(self.cluster.alive).tolist():
                self._changed(slot)
            return
        for name in nodes:
            slot = self.cluster.slot_of(name)
            if slot >= 0:
                self._changed(slot)

    def _changed(self, slot: int) -> None:
        """The devices of a node are others, or elsewhere."""
        self._inventories.pop(slot, None)
        row = self.cluster.row(slot)
        known = bool(self._wide) or row.name in self._local
        self.free[slot] = self.busy[slot] = 0
        if known and row.view is not None:
            self._recount(slot)
        self.cluster.changes.note(slot, self.kind)

    def inventory(self, slot: int) -> Inventory:
        """The pools of a node in the order in which they are tried."""
        known = self._inventories.get(slot)
        if known is None:
            row = self.cluster.row(slot)
            labels: Mapping[str, str] = row.view.labels if row.view is not None else {}
            ids = sorted(self._local.get(row.name, set()) | self._wide)
            pools = [pool for one in ids if (pool := pool_of(self._pools[one].values(), row.name, labels)) is not None]
            pools.sort(key=lambda pool: pool.conditional)  # what has to be waited for comes last
            known = self._inventories[slot] = Inventory(tuple(pools))
        return known

    def _recount(self, slot: int) -> None:
        """How many devices can be had, a device for several counting as many, and of how many somebody has something. Those of other nodes
        that take of the same counters matter as well."""
        inventory = self.inventory(slot)
        self.free[slot] = sum(_MANY if device.kind.multiple else device.id not in self.taken for device in inventory.devices)
        self.busy[slot] = sum(device in self.taken or device in self.shared for device in inventory.known)

    def signature(self, inventory: Inventory, used: Counted) -> tuple[Any, ...]:
        """What a search on a node depends on: its devices and what is in use. Equal for nodes that are alike."""
        taken, shared = used.taken, used.shared
        states = [tuple(sorted(shared[one.id].items())) if one.id in shared else one.id in taken for one in inventory.every]
        return inventory.shape, tuple(states)

    @property
    def any_wide(self) -> bool:
        """Whether there are devices that several nodes may use."""
        return bool(self._wide)

    def is_wide(self, device: DeviceId) -> bool:
        """Whether several nodes may use a device."""
        return device[:2] in self._wide

    # ---------------------------------------------------------------- what is in use

    def use(self, found: Iterable[Use], step: int) -> None:
        """Claims have something more (1), or no longer (-1)."""
        found = list(found)
        before = {device: (device in self.taken, device in self.taken or device in self.shared) for device, _ in found}
        self.count(found, step)
        changed: dict[PoolId, list[tuple[DeviceId, int, int]]] = {}  # devices, and how many more than before are taken and in use
        for device, (taken, used) in before.items():
            now = device in self.taken
            changed.setdefault(device[:2], []).append((device, now - taken, (now or device in self.shared) - used))
        for pool, devices in changed.items():
            self._recounted(self._nodes_of(pool), devices)

    def _recounted(self, nodes: Iterable[str] | None, changed: Iterable[tuple[DeviceId, int, int]]) -> None:
        """Devices of a pool are in use otherwise than before: those of whom it is count on."""
        slots = np.flatnonzero(self.cluster.alive).tolist() if nodes is None else [self.cluster.slot_of(name) for name in nodes]
        for slot in slots:
            if slot < 0 or not self.cluster.alive[slot]:
                continue
            inventory = self.inventory(slot)
            for device, taken, used in changed:
                if taken and device in inventory.single:
                    self.free[slot] -= taken
                if used and device in inventory.known:
                    self.busy[slot] += used
            self.cluster.changes.note(slot, self.kind)


def _both(one: set[str] | None, other: set[str] | None) -> set[str] | None:
    return None if one is None or other is None else one | other


def _count(counts: dict[DeviceId, int], device: DeviceId, step: int) -> None:
    counts[device] = counts.get(device, 0) + step
    if not counts[device]:
        del counts[device]
