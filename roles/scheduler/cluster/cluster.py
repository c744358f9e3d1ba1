"""The cluster as columns: one slot a node, one numpy array a property, kept current by events (design: columns, not rows).

Nothing here does I/O or reads a clock. Amounts are float64, exact for integers below 2^53.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.changes import FIRST_FREE_KIND, NODE, PODS, ChangeLog
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.labels import LabelColumns
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.vocabulary import CPU, MAX_EXACT, MEMORY, TaintKey, Vocabulary

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Columns)

_FIRST_CAPACITY = 64
_FEW = 16  # resources with columns, beyond those in use


class Row:
    """What a slot holds besides numbers. `view` is None while only pods of a node are known, not the node."""

    __slots__ = ("name", "pods", "slot", "view")

    def __init__(self, slot: int, name: str) -> None:
        self.slot = slot
        self.name = name
        self.view: NodeView | None = None
        self.pods: dict[str, PodInfo] = {}


class Cluster:
    """Nodes, the pods on them, and the columns.

    `alive[slot]` tells whether a node is there. `free = allocatable - requested` by resource id, `non_zero_free` likewise with scheduler
    defaults for containers without requests, `divisor` is allocatable with infinity for 0 (so that x/divisor is 0 there).
    """

    def __init__(self, vocabulary: Vocabulary, capacity: int = _FIRST_CAPACITY) -> None:
        self.vocabulary = vocabulary
        self.capacity = capacity
        self.changes = ChangeLog()
        self.alive: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)
        self.unschedulable: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)
        self.taints: NDArray[np.intp] = np.zeros(capacity, dtype=np.intp)  # number of the taint set
        self.pod_slots: Vector = np.zeros(capacity)  # how many more pods the node takes
        self.allocatable: list[Vector] = []
        self.free: list[Vector] = []
        self.divisor: list[Vector] = []
        self.non_zero_free: tuple[Vector, Vector] = (np.zeros(capacity), np.zeros(capacity))  # CPU and memory
        self.providers: list[int] = []  # by resource: how many live nodes have any of it
        # Constants as vectors: numpy compares two vectors several times faster than a vector and a number.
        self.zeros: Vector = _constant(0.0, capacity)
        self.ones: Vector = _constant(1.0, capacity)
        self._infinite: Vector = _constant(np.inf, capacity)
        # Resources with columns of their own. The others share constants: pods may name what no node has, each another.
        self._counted: list[int] = []
        self._most_counted = _FEW  # so many may be there before it is looked which are in use
        self.labels = LabelColumns(capacity)
        self.slots: NDArray[np.intp] = np.arange(capacity)  # each slot's number: `slots[rows]` are the numbers of rows
        self.live = 0
        self._everywhere: dict[tuple[int, ...], bool] = {}  # answers since a node changed
        self.cordoned = 0
        self.tainted = 0
        self.node_version = 0  # moves when any node appears, changes or goes
        self._rows: list[Row | None] = [None] * capacity
        self._slots: dict[str, int] = {}
        self._unused: list[int] = list(range(capacity - 1, -1, -1))
        self._where: dict[str, int] = {}
        self._columns: dict[str, Columns] = {}
        self._next_kind = FIRST_FREE_KIND
        self.supposing = 0  # what-ifs that are open: pods are taken away and added as if
        self.returning = False  # a what-if puts a pod back that counts somewhere: nothing has to be guessed of it
        self._vacated: set[int] = set()  # rows that were left with nothing in a what-if: what it took away comes back to them
        self.supposed = 0  # how many changes what-ifs noted; the one that is open began at a position
        self.supposing_since = 0
        self._quiet = 0
        self._told: set[str] = set()  # hooks of columns that have raised
        self._hooks: dict[str, list[Callable[..., Any]]] = {name: [] for name in _HOOKS}
        self._ensure_resources()

    # ---------------------------------------------------------------- rows

    def slot_of(self, name: str) -> int:
        """The slot of a node, -1 when it is unknown."""
        return self._slots.get(name, -1)

    def row(self, slot: int) -> Row:
        """The row of a slot in use. Raises IndexError for a slot that is not."""
        row = self._rows[slot]
        if row is None:
            raise IndexError(f"slot {slot} holds no node")
        return row

    def name_of(self, slot: int) -> str:
        """The node name of a slot in use."""
        return self.row(slot).name

    def known_name(self, slot: int) -> str:
        """The node name of a slot, "" for one that is not in use."""
        row = self._rows[slot]
        return row.name if row is not None else ""

    def rows(self) -> Iterator[Row]:
        """All rows in use, in slot order, also those whose node is not known (yet or any more)."""
        return (row for row in self._rows if row is not None)

    def reserve(self, nodes: int) -> None:
        """Make room for so many nodes at once, before a first list."""
        if nodes > self.capacity:
            self._grow(-(-nodes // 64) * 64)

    def set_node(self, view: NodeView) -> int:
        """Take over a node as it stands now; returns its slot."""
        slot = self._slots.get(view.name)
        if slot is None:
            slot = self._take_slot(view.name)
        self.node_version += 1
        row = self.row(slot)
        old, row.view = row.view, view
        self._count(slot, -1)
        self.alive[slot] = True
        self.unschedulable[slot] = view.unschedulable
        self._set_taints(slot, view.taints)
        self.labels.set(slot, view.labels)
        self._set_allocatable(slot, row, view)
        self._count(slot, 1)
        self.changes.note(slot, NODE)
        self._tell("node_set", slot, old, view)
        return slot

    def remove_node(self, name: str) -> None:
        """The node went. Its slot stays in use until its pods are gone too."""
        slot = self._slots.get(name)
        if slot is None:
            return
        row = self.row(slot)
        if row.view is None:
            return
        self.node_version += 1
        self._count(slot, -1)
        old, row.view = row.view, None
        self.alive[slot] = False
        self.unschedulable[slot] = False
        self._set_taints(slot, ())
        self.labels.clear(slot)
        self._clear_allocatable(slot)
        self.changes.note(slot, NODE)
        self._tell("node_removed", slot, old)
        self._release_if_empty(row)

    # ---------------------------------------------------------------- pods

    def slot_of_pod(self, uid: str) -> int:
        """The slot on which a pod counts, -1 if on none."""
        return self._where.get(uid, -1)

    def pod(self, uid: str) -> PodInfo | None:
        """The pod that counts under this UID."""
        slot = self._where.get(uid, -1)
        return None if slot < 0 else self.row(slot).pods[uid]

    @property
    def pod_count(self) -> int:
        """How many pods count on nodes."""
        return len(self._where)

    def add_pod(self, pod: PodInfo, node: str) -> None:
        """Count a pod on a node (known or not yet known). A pod that counts already is moved or replaced."""
        slot = self._slots.get(node)
        if slot is None:
            slot = self._take_slot(node)
        pod, _ = self._sized(slot, pod)
        before = self._where.get(pod.uid)
        if before is not None:
            old = self.row(before).pods[pod.uid]
            if before == slot and old.shape is pod.shape:
                self.row(slot).pods[pod.uid] = pod
                self._tell("pod_replaced", slot, old, pod)
                return
            if before == slot:
                self.swap_pod(pod)  # the row may be there for this pod only
                return
            self.remove_pod(pod.uid)
        self.place(pod, slot)

    def place(self, pod: PodInfo, slot: int) -> BaseException | None:
        """Count a pod that counts nowhere yet on a slot. It counts there also when a plugin's columns raise, which is returned."""
        row = self.row(slot)
        pod, failure = self._sized(slot, pod)
        row.pods[pod.uid] = pod
        self._where[pod.uid] = slot
        self._charge(slot, pod, -1.0)
        self.changes.note(slot, PODS)
        return self._tell("pod_added", slot, pod) or failure

    def remove_pod(self, uid: str) -> PodInfo | None:
        """Stop counting a pod; returns it, or None when it did not count."""
        slot = self._where.pop(uid, None)
        if slot is None:
            return None
        row = self.row(slot)
        pod = row.pods.pop(uid)
        self._charge(slot, pod, 1.0)
        self.changes.note(slot, PODS)
        self._tell("pod_removed", slot, pod)
        if not row.pods and row.view is None:
            self._release_if_empty(row)
        return pod

    def swap_pod(self, pod: PodInfo) -> None:
        """Count another version of a pod, with other amounts, in its place; the row is not given up in between."""
        slot = self._where[pod.uid]
        row = self.row(slot)
        old = row.pods.pop(pod.uid)
        self._charge(slot, old, 1.0)
        self._tell("pod_removed", slot, old)
        row.pods[pod.uid] = pod
        self._charge(slot, pod, -1.0)
        self.changes.note(slot, PODS)
        self._tell("pod_added", slot, pod)

    @property
    def settled_position(self) -> int:
        """As `changes.position`, but only what really changes moves it: in a what-if, and after it, it is as before."""
        return (self.supposing_since if self.supposing else self.changes.position) - self.supposed

    def begin_quiet(self) -> int:
        """A what-if begins that will leave no trace; returns what `end_quiet` wants. They may be nested."""
        self._quiet += 1
        if self._quiet == 1:
            self._tell("quiet_begins")
        return self.changes.position

    def end_quiet(self, position: int) -> None:
        """Everything is as it was when the what-if began."""
        self.changes.rewind(position)
        self._quiet -= 1
        if not self._quiet:
            self._tell("quiet_ends")

    def release_vacated(self) -> None:
        """The last what-if is over: rows that still hold nothing are given up."""
        while self._vacated:
            self._release_if_empty(self.row(self._vacated.pop()))

    # ---------------------------------------------------------------- columns of plugins

    def register(self, name: str, columns: C) -> C:
        """Add a plugin's columns under a name; the ones that are there under that name already win (several profiles share them)."""
        known = self._columns.get(name)
        if known is not None:
            if type(known) is not type(columns):
                raise TypeError(f"columns {name!r} are already registered as {type(known).__name__}")
            return known  # type: ignore[return-value]
        columns.kind = self._next_kind
        self._next_kind <<= 1
        self._columns[name] = columns
        columns.attach(self)
        for hook, users in self._hooks.items():
            if getattr(type(columns), hook) is not getattr(Columns, hook):
                users.append(getattr(columns, hook))
        for row in self.rows():
            if row.view is not None:
                columns.node_set(row.slot, None, row.view)
            for pod in row.pods.values():
                columns.pod_added(row.slot, pod)
        return columns

    def namespace_changed(self, name: str) -> None:
        """The labels of a namespace are others now: what was worked out from them is worked out again."""
        self._tell("namespace_changed", name)
        self.changes.resized()

    def requested(self, resource: int) -> Vector:
        """What pods request of a resource, by slot."""
        return self.allocatable[resource] - self.free[resource]

    def everywhere(self, resources: tuple[int, ...]) -> bool:
        """Whether every node has some of each of these resources."""
        known = self._everywhere.get(resources)
        if known is None:
            known = self._everywhere[resources] = all(self.providers[resource] == self.live for resource in resources)
        return known

    def ensure(self, resource: int) -> None:
        """Make sure that the columns of a resource id exist."""
        if resource >= len(self.free):
            self._ensure_resources()

    # ---------------------------------------------------------------- inside

    def _tell(self, hook: str, *args: Any) -> BaseException | None:
        """Tell all columns that follow. One that raises keeps neither the others nor us from going on; returns what was raised first."""
        first = None
        for step in self._hooks[hook]:
            try:
                step(*args)
            except DEFECTS as failure:
                self._failed(step, failure)
                first = first or failure
        return first

    def _sized(self, slot: int, pod: PodInfo) -> tuple[PodInfo, BaseException | None]:
        first = None
        for step in self._hooks["sized"]:
            try:
                pod = step(slot, pod)
            except DEFECTS as failure:
                self._failed(step, failure)
                first = first or failure
        return pod, first

    def _failed(self, step: Callable[..., Any], failure: BaseException) -> None:
        """What-ifs ask again and again: the whole story is told once a hook."""
        told = step.__qualname__
        log.log(logging.DEBUG if told in self._told else logging.ERROR, "columns: %s failed", told, exc_info=failure)
        self._told.add(told)

    def _take_slot(self, name: str) -> int:
        if not self._unused:
            self._grow(max(self.capacity + 64, -(-(self.capacity * 9 // 8) // 64) * 64))
        slot = self._unused.pop()
        self._rows[slot] = Row(slot, name)
        self._slots[name] = slot
        return slot

    def _release_if_empty(self, row: Row) -> None:
        if row.pods or row.view is not None:
            return
        if self.supposing:
            self._vacated.add(row.slot)
            return
        self._rows[row.slot] = None
        del self._slots[row.name]
        self._unused.append(row.slot)

    def _grow(self, capacity: int) -> None:
        self._unused.extend(range(capacity - 1, self.capacity - 1, -1))
        self._unused.sort(reverse=True)
        self._rows.extend([None] * (capacity - self.capacity))
        self.capacity = capacity
        self.alive = grown(self.alive, capacity)
        self.unschedulable = grown(self.unschedulable, capacity)
        self.taints = grown(self.taints, capacity)
        self.pod_slots = grown(self.pod_slots, capacity)
        self.zeros, self.ones, self._infinite = (_constant(value, capacity) for value in (0.0, 1.0, np.inf))
        resources, allocatable, free, divisor = len(self.free), self.allocatable, self.free, self.divisor
        self.allocatable, self.free, self.divisor = [self.zeros] * resources, [self.zeros] * resources, [self._infinite] * resources
        for resource in self._counted:
            self.allocatable[resource], self.free[resource] = grown(allocatable[resource], capacity), grown(free[resource], capacity)
            self.divisor[resource] = grown(divisor[resource], capacity, np.inf)
        self.non_zero_free = (grown(self.non_zero_free[0], capacity), grown(self.non_zero_free[1], capacity))
        self.slots = np.arange(capacity)
        self.labels.grow(capacity)
        for columns in self._columns.values():
            columns.grow(capacity)
        self.changes.resized()

    def _ensure_resources(self) -> None:
        missing = len(self.vocabulary.resources) - len(self.free)
        self.allocatable.extend([self.zeros] * missing)
        self.free.extend([self.zeros] * missing)
        self.divisor.extend([self._infinite] * missing)
        self.providers.extend([0] * missing)

    def _count_by_node(self, resource: int) -> Vector:
        """Give a resource columns of its own. Resources that no node has and no pod on a node holds any more give theirs up from time to
        time: to look at all of them for each new one would cost the square of their number. Returns the column of what is free."""
        self._ensure_resources()
        if len(self._counted) >= self._most_counted:
            self._give_up_unused()
            self._most_counted = 2 * len(self._counted) + _FEW
        self._counted.append(resource)
        self.allocatable[resource], self.free[resource] = np.zeros(self.capacity), np.zeros(self.capacity)
        self.divisor[resource] = np.full(self.capacity, np.inf)
        return self.free[resource]

    def _give_up_unused(self) -> None:
        used = []
        for resource in self._counted:
            if self.providers[resource] or self.allocatable[resource].any() or self.free[resource].any():
                used.append(resource)
            else:
                self.allocatable[resource], self.free[resource], self.divisor[resource] = self.zeros, self.zeros, self._infinite
        self._counted = used

    def _set_taints(self, slot: int, taints: tuple[TaintKey, ...]) -> None:
        before = self.taints.item(slot)
        self.taints[slot] = self.vocabulary.taint_sets.hold(taints) if taints else 0
        self.vocabulary.taint_sets.let_go(before)

    def _set_allocatable(self, slot: int, row: Row, view: NodeView) -> None:
        """New allocatable; what the pods of the row request stays taken off."""
        amounts = view.allocatable
        intern = self.vocabulary.resources.intern
        wanted = {intern(name): min(float(value), MAX_EXACT) for name, value in amounts.items()}
        self._ensure_resources()
        for resource in {*self._counted, *wanted}:
            value = wanted.get(resource, 0.0)
            before = self.allocatable[resource].item(slot)
            if value != before:
                if self.free[resource] is self.zeros:
                    self._count_by_node(resource)
                self.allocatable[resource][slot] = value
                self.free[resource][slot] += value - before
                self.divisor[resource][slot] = value if value > 0 else np.inf
                if resource in (CPU, MEMORY):
                    self.non_zero_free[resource][slot] += value - before
        self.pod_slots[slot] = float(amounts.get("pods", 0)) - len(row.pods)

    def _clear_allocatable(self, slot: int) -> None:
        for resource in self._counted:
            column = self.allocatable[resource]
            before = float(column[slot])
            if before:
                column[slot] = 0.0
                self.free[resource][slot] -= before
                self.divisor[resource][slot] = np.inf
                if resource in (CPU, MEMORY):
                    self.non_zero_free[resource][slot] -= before
        self.pod_slots[slot] = -float(len(self.row(slot).pods))

    def _charge(self, slot: int, pod: PodInfo, sign: float) -> None:
        shape = pod.shape
        free, nothing = self.free, self.zeros
        for resource, amount in shape.requests:
            column = free[resource] if resource < len(free) else nothing
            if column is nothing:
                column = self._count_by_node(resource)
            column[slot] = column.item(slot) + sign * amount  # plain numbers: numpy's own are slower one at a time
        cpu, memory = shape.non_zero
        column = self.non_zero_free[CPU]
        column[slot] = column.item(slot) + sign * cpu
        column = self.non_zero_free[MEMORY]
        column[slot] = column.item(slot) + sign * memory
        self.pod_slots[slot] = self.pod_slots.item(slot) + sign

    def _count(self, slot: int, step: int) -> None:
        """Counters over live rows that let plugins skip work."""
        self._everywhere.clear()
        if not self.alive[slot]:
            return
        self.live += step
        self.cordoned += step * bool(self.unschedulable[slot])
        self.tainted += step * bool(self.taints[slot])
        for resource in self._counted:
            if self.allocatable[resource][slot] > 0:
                self.providers[resource] += step


def _constant(value: float, capacity: int) -> Vector:
    """A vector that nobody can write to."""
    column = np.full(capacity, value)
    column.flags.writeable = False
    return column


_HOOKS = (
    "node_set", "node_removed", "sized", "pod_added", "pod_removed", "pod_replaced", "quiet_begins", "quiet_ends", "namespace_changed",
)  # fmt: skip
"""Methods of Columns that only those are called for who override them."""
