"""The columns of DeviceShare: who holds what on every node, and what that leaves as arrays (SCH-DEV-01, SCH-DEV-11).

Holdings follow pods. A pod that was bound has what its annotation says. A pod that is being bound has what `take` gave it, also while a
what-if takes it away and puts it back. A pod that is only supposed to be on a node (nominated there, say) has what it would get.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import ResourceVector
from koord.api import names
from koord.api.annotations import parse_reservation_allocated
from koord.api.objects import Device
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.interning import Counted
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import Rows
from roles.scheduler.plugins.device_share.amounts import DEVICE_RESOURCES
from roles.scheduler.plugins.device_share.claimed import CLAIM, by_pods, ids, places
from roles.scheduler.plugins.device_share.claimed import holding_of as claim_holding
from roles.scheduler.plugins.device_share.holdings import Allocation, Holding, Place, read_allocation
from roles.scheduler.plugins.device_share.inventory import Card, Inventory, read_device
from roles.scheduler.plugins.device_share.node import NodeDevices
from roles.scheduler.plugins.device_share.partitions import honored
from roles.scheduler.plugins.device_share.request import DeviceRequest, request_for
from roles.scheduler.plugins.dynamic_resources.claims import Claims
from roles.scheduler.plugins.dynamic_resources.devices import DeviceId
from roles.scheduler.plugins.dynamic_resources.inventory import Use

log = logging.getLogger(__name__)

_LABELS = (
    names.LABEL_GPU_VENDOR, names.LABEL_GPU_MODEL, names.LABEL_NODE_GPU_PARTITION_POLICY, names.LABEL_GPU_ISOLATION_PROVIDER,
)  # fmt: skip

_KEPT_CONTENTS = 1 << 13

ABSENT = -1.0
"""What stands for a resource that a card does not have."""

Matrix = NDArray[np.float64]

Guess = Callable[[NodeDevices, PodInfo], Holding | None]


class CardColumns:
    """One type's cards by position in the inventory, a line for each: what is left of each resource, ABSENT where there is none of it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free: dict[str, Matrix] = {}
        self.sums: dict[str, tuple[Vector, Vector]] = {}  # total and free over all cards
        self.memory: Matrix = np.zeros((0, capacity))  # GPU memory of each card, 0 for none
        self.cards: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)

    @property
    def positions(self) -> int:
        """The most cards of a node."""
        return len(self.memory)

    def grow(self, capacity: int) -> None:
        """Lengthen the arrays."""
        self.capacity = capacity
        self.free = {name: grown(lines, capacity, ABSENT) for name, lines in self.free.items()}
        self.sums = {name: (grown(total, capacity), grown(free, capacity)) for name, (total, free) in self.sums.items()}
        self.memory = grown(self.memory, capacity)
        self.cards = grown(self.cards, capacity)

    def of(self, name: str) -> Matrix:
        """What is left of a resource on the cards."""
        lines = self.free.get(name)
        if lines is None:
            lines = self.free[name] = np.full((self.positions, self.capacity), ABSENT)
        return lines

    def write(self, slot: int, cards: Sequence[Card], used: Sequence[ResourceVector]) -> None:
        """What a node has, which had nothing, and what of each card is used."""
        more = len(cards) - self.positions
        if more > 0:
            lines = np.full((more, self.capacity), ABSENT)
            self.free = {name: np.concatenate((before, lines)) for name, before in self.free.items()}
            self.memory = np.concatenate((self.memory, np.zeros((more, self.capacity))))
        self.cards[slot] = len(cards)
        self.memory[: len(cards), slot] = [card.amounts.get(names.RESOURCE_GPU_MEMORY, 0) for card in cards]
        for name in {name: None for card in cards for name in card.amounts}:
            amounts = [card.amounts.get(name) for card in cards]
            left = [ABSENT if amount is None else max(0, amount - gone.get(name, 0)) for amount, gone in zip(amounts, used, strict=True)]
            self.of(name)[: len(cards), slot] = left
            if name not in self.sums:
                self.sums[name] = (np.zeros(self.capacity), np.zeros(self.capacity))
            total, free = self.sums[name]
            total[slot] = sum(amount for amount in amounts if amount is not None)
            free[slot] = sum(amount for amount in left if amount != ABSENT)

    def clear(self, slot: int) -> None:
        """Nothing is there."""
        for lines in self.free.values():
            lines[:, slot] = ABSENT
        for total, free in self.sums.values():
            total[slot] = free[slot] = 0.0
        self.memory[:, slot] = 0.0
        self.cards[slot] = 0


class DeviceColumns(Columns):
    """`known[slot]`: the node has (or had) a Device object; `honors[slot]`: it hands out GPUs as partitions only; `held[slot]`: some pod
    has a PCIe switch for itself; `content[slot]` is equal for nodes that are alike in all that choosing looks at. Call `refresh` before
    reading arrays. `guess` says what a pod that is only supposed to be on a node would get."""

    def __init__(self) -> None:
        self.guess: Guess = lambda node, pod: None
        self.by_type: dict[str, CardColumns] = {}
        self._nodes: dict[str, NodeDevices] = {}
        self._taken: dict[str, Holding] = {}
        self._read: dict[str, Allocation] = {}  # by UID of a bound pod, what its annotation said when it could last be read
        self._deleted: set[str] = set()
        self._contents: dict[Hashable, int] = {}
        self._numbers = itertools.count(1)
        self._dirty: set[int] = set()
        self._quiet = False
        self._quiet_dirty: set[int] = set()  # rows that a what-if has changed, and will change back
        self._before: dict[NodeDevices, tuple[Any, ...]] = {}
        self._claims: Claims | None = None
        self._claimed: dict[str, dict[str, frozenset[Place]]] = {}  # by claim and node

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.known: NDArray[np.bool_] = np.zeros(cluster.capacity, dtype=np.bool_)
        self.honors: NDArray[np.bool_] = np.zeros(cluster.capacity, dtype=np.bool_)
        self.held: NDArray[np.bool_] = np.zeros(cluster.capacity, dtype=np.bool_)
        self.content: NDArray[np.int64] = np.zeros(cluster.capacity, dtype=np.int64)
        self._kinds = Counted(0)  # contents that there are now, numbered without gaps to speak of
        self._kind: NDArray[np.intp] = np.zeros(cluster.capacity, dtype=np.intp)
        self._alike: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None  # of all rows, until one is written

    def grow(self, capacity: int) -> None:
        self.known, self.honors, self.held = grown(self.known, capacity), grown(self.honors, capacity), grown(self.held, capacity)
        self.content = grown(self.content, capacity)
        self._kind = grown(self._kind, capacity)
        self._alike = None
        for columns in self.by_type.values():
            columns.grow(capacity)

    def node(self, slot: int) -> NodeDevices:
        """The devices of a slot."""
        return self._node(self.cluster.name_of(slot))

    def find(self, name: str) -> NodeDevices | None:
        """The devices of a node by name; None where there is no Device object."""
        found = self._nodes.get(name)
        return found if found is not None and found.inventory is not None else None

    def names(self) -> list[str]:
        """Nodes with a Device object, sorted."""
        return sorted(name for name, node in self._nodes.items() if node.inventory is not None)

    # ---------------------------------------------------------------- devices that claims have

    def beside(self, claims: Claims) -> None:
        """Devices are given out by claims as well: each side hears what the other gives."""
        self._claims = claims
        claims.told = self._claim_has
        claims.left = self._left_by

    def holders(self, uid: str) -> Sequence[str]:
        """UIDs of the pods behind a holding: of a claim those for which it is reserved."""
        if not uid.startswith(CLAIM) or self._claims is None:
            return (uid,)
        claim = self._claims.claims.get(uid.removeprefix(CLAIM))
        return [consumer.uid for consumer in claim.status.reserved_for] if claim is not None else ()

    def _claim_has(self, key: str, uses: Sequence[Use]) -> None:
        before, now = self._claimed.pop(key, {}), places(uses)
        if now:
            self._claimed[key] = now
        for name in before.keys() | now.keys():
            if before.get(name) != now.get(name):
                node = self._node(name)
                self._hold(node, key)
                slot = self.cluster.slot_of(name)
                self._changed(slot, node)
                if slot < 0 or not self.cluster.alive[slot]:
                    self._collect(name)

    def _hold(self, node: NodeDevices, key: str) -> None:
        has = self._claimed.get(key, {}).get(node.name)
        if has is None:
            node.holdings.pop(CLAIM + key, None)
        else:
            node.holdings[CLAIM + key] = claim_holding(CLAIM + key, has, node.inventory)

    def _tell(self, node: NodeDevices) -> None:
        """What pods have of a node's devices is in use for claims."""
        now = by_pods(node.holdings)
        if self._claims is not None and now != node.told:
            before, node.told = node.told, now
            self._claims.taken_otherwise(ids(node.name, now - before), ids(node.name, before - now))

    def _left_by(self, slot: int, pods: frozenset[str]) -> list[DeviceId]:
        """Devices of which only these pods have something."""
        node = self.node(slot)
        return ids(node.name, node.told - by_pods({uid: holding for uid, holding in node.holdings.items() if uid not in pods}))

    # ---------------------------------------------------------------- Device objects and nodes

    def device_set(self, old: Device | None, new: Device | None) -> bool:
        """A Device appeared, changed or went; whether that changes what the node has. A malformed one is logged and the last good one
        stays."""
        present = new or old
        assert present is not None
        name = present.metadata.name
        inventory: Inventory | None = None
        if new is not None:
            try:
                inventory = read_device(new)
            except ValueError as error:
                log.error("Device %s: %s; the last good one stays", name, error)
                return False
            self._deleted.discard(name)
        slot = self.cluster.slot_of(name)
        node = self._node(name)
        if inventory is None:
            self._deleted.add(name)
            inventory = node.inventory.dark() if node.inventory is not None else None
        elif node.inventory is not None and inventory.same(node.inventory):
            return False
        node.inventory = inventory
        for uid in [uid for uid in node.holdings if uid.startswith(CLAIM)]:
            self._hold(node, uid.removeprefix(CLAIM))
        self._changed(slot, node)
        if new is None and (slot < 0 or not self.cluster.alive[slot]):
            self._collect(name)
        return True

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        node = self._node(new.name)
        labels = {key: new.labels[key] for key in _LABELS if key in new.labels}
        if old is None or labels != node.labels:
            node.labels = labels
            self._changed(slot, node)
        self._dirty.add(slot)

    def node_removed(self, slot: int, old: NodeView) -> None:
        self._dirty.add(slot)
        self._collect(old.name)

    def _collect(self, name: str) -> None:
        """Forget a node that is gone together with its Device; one of the two may come back alone."""
        node = self._nodes.get(name)
        if node is not None and not node.holdings and (node.inventory is None or name in self._deleted):
            del self._nodes[name]
            self._deleted.discard(name)

    def _node(self, name: str) -> NodeDevices:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = NodeDevices(name)
        return node

    # ---------------------------------------------------------------- pods

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        if not self._concerns(pod):
            return
        node = self.node(slot)
        holding = self._holding(node, pod)
        if holding is not None:
            node.holdings[pod.uid] = holding
            self._changed(slot, node)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        if not self._concerns(pod):
            return
        name = self.cluster.name_of(slot)
        node = self._nodes.get(name)
        if node is not None and node.holdings.pop(pod.uid, None) is not None:
            self._changed(slot, node)
            if not self.cluster.alive[slot]:
                self._collect(name)

    def pod_replaced(self, slot: int, old: PodInfo, new: PodInfo) -> None:
        if not self._concerns(new) and not self._concerns(old):
            return
        node = self.node(slot)
        before, now = node.holdings.get(new.uid), self._holding(node, new)
        if before == now:
            return
        if now is None:
            del node.holdings[new.uid]
        else:
            node.holdings[new.uid] = now
        self._changed(slot, node)

    def pod_gone(self, uid: str) -> None:
        """The pod is no more."""
        self._taken.pop(uid, None)
        self._read.pop(uid, None)

    def take(self, slot: int, uid: str, holding: Holding) -> None:
        """A pod that counts on the node gets these shares."""
        self._taken[uid] = holding
        node = self.node(slot)
        if node.holdings.get(uid) != holding:
            node.holdings[uid] = holding
            self._changed(slot, node)

    def take_nothing(self, slot: int, uid: str) -> None:
        """A pod that counts on the node gets nothing, whatever was guessed."""
        self._taken.pop(uid, None)
        node = self.node(slot)
        if node.holdings.pop(uid, None) is not None:
            self._changed(slot, node)

    def give_back(self, name: str, uid: str) -> None:
        """What `take` gave a pod is free again. Nothing happens once the pod is gone, or its annotation says what it holds."""
        if self._taken.pop(uid, None) is None:
            return
        node = self._nodes.get(name)
        if node is not None and node.holdings.pop(uid, None) is not None:
            self._changed(self.cluster.slot_of(name), node)

    def taken(self, uid: str) -> Holding | None:
        """What `take` gave a pod whose binding has not been seen yet."""
        return self._taken.get(uid)

    def _concerns(self, pod: PodInfo) -> bool:
        """Whether a pod can hold devices."""
        if not DEVICE_RESOURCES.isdisjoint(pod.shape.amounts):
            return True
        annotations = pod.metadata.annotations
        return bool(annotations) and names.ANNOTATION_DEVICE_ALLOCATED in annotations

    def _holding(self, node: NodeDevices, pod: PodInfo) -> Holding | None:
        if not pod.node_name:
            return self._taken.get(pod.uid) or self.guess(node, pod)
        self._taken.pop(pod.uid, None)
        before = node.holdings.get(pod.uid)
        last = self._read.pop(pod.uid, before.allocation if before is not None else ())
        try:
            allocation = read_allocation(pod.metadata.annotations)
        except ValueError as error:
            stays = "what it holds of the node's devices stays" if last else "what it holds of the node's devices is not known"
            log.warning("pod %s: %s; %s", pod.key, error, stays)
            allocation = last
        if not allocation:
            return None
        self._read[pod.uid] = allocation
        return holding_of(pod, allocation, _owner_of(pod))

    # ---------------------------------------------------------------- what-ifs that leave no trace

    def quiet_begins(self) -> None:
        self._quiet = True

    def quiet_ends(self) -> None:
        """Holdings are what they were: so are the versions, and what was worked out for them."""
        self._quiet = False
        for node, state in self._before.items():
            node.restore(state)
        self._before = {}
        self._quiet_dirty.clear()

    def _changed(self, slot: int, node: NodeDevices) -> None:
        if self._quiet and node not in self._before:
            self._before[node] = node.state()
        node.changed()
        self._tell(node)
        if slot >= 0:
            (self._quiet_dirty if self._quiet else self._dirty).add(slot)
            self.cluster.changes.note(slot, self.kind)

    # ---------------------------------------------------------------- arrays

    def refresh(self) -> None:
        """Bring the arrays up to date."""
        if self._dirty or self._quiet_dirty:
            if len(self._contents) > _KEPT_CONTENTS:
                self._contents.clear()  # numbers are never given out again, so what is written already stays right
            for slot in self._dirty | self._quiet_dirty:
                self._write(slot)
            self._dirty = set(self._quiet_dirty)  # to be written again when the what-if is over

    def alike(self, rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Indexes of one of each kind of nodes in `rows`, and for each of `rows` which of these it is like. What the arrays tell of nodes
        that are alike is the same. Not to be written to."""
        self.refresh()
        if not isinstance(rows, slice):
            return _alike(self._kind[rows], len(self._kinds))
        if self._alike is None:
            self._alike = _alike(self._kind, len(self._kinds))
        return self._alike

    def cards(self, kind: str) -> CardColumns:
        """The columns of a type."""
        found = self.by_type.get(kind)
        if found is None:
            found = self.by_type[kind] = CardColumns(self.cluster.capacity)
        return found

    def _write(self, slot: int) -> None:
        node = self.node(slot) if self.cluster.alive[slot] else None
        inventory = node.inventory if node is not None else None
        self.known[slot] = inventory is not None
        self.honors[slot] = inventory is not None and node is not None and honored(inventory, node.labels)
        self.held[slot] = node is not None and any(holding.alone for holding in node.holdings.values())
        for columns in self.by_type.values():
            columns.clear(slot)
        if node is None or inventory is None:
            self._became(slot, 0)
            return
        known = self._contents.get(node.content)
        if known is None:
            known = self._contents[node.content] = next(self._numbers)
        self._became(slot, known)
        use = node.use
        for kind, found in inventory.cards.items():
            self.cards(kind).write(slot, found, [use.of((kind, card.minor)) for card in found])

    def _became(self, slot: int, content: int) -> None:
        if content == self.content[slot]:
            return
        before = self._kind.item(slot)
        self.content[slot] = content
        self._kind[slot] = self._kinds.hold(content) if content else 0
        self._kinds.let_go(before)
        self._alike = None


def _alike(kinds: NDArray[np.intp], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    where = np.full(count, -1, dtype=np.intp)
    where[kinds] = np.arange(len(kinds))
    there = where >= 0
    return where[there], (np.cumsum(there) - 1)[kinds]


def _owner_of(pod: PodInfo) -> str:
    """UID of the reservation that a pod says it uses; "" for none. What it holds counts also where that cannot be read."""
    try:
        used = parse_reservation_allocated(pod.metadata.annotations)
    except ValueError as error:
        log.warning("pod %s: %s; it counts as using no reservation", pod.key, error)
        return ""
    return used.uid if used is not None else ""


def holding_of(pod: PodInfo, allocation: Allocation, owner_of: str = "") -> Holding:
    """The holding of a pod that has these shares and uses the reservation of this UID."""
    request = request_for(pod.shape)
    alone = request.alone if isinstance(request, DeviceRequest) else frozenset()
    return Holding(pod.key, allocation, owner_of, bool(pod.reservation), alone)
