"""State of NodeNUMAResource: a report, facts and records per node, and columns that let filters decide without looking at single nodes
(SCH-NUMA-10, SCH-NUMA-11).

Records follow the pods that count on a node: from their annotations, or, between Reserve and the bound pod's event, from what Reserve
decided. They are kept whether or not the node's topology is known, so none is lost that arrives first. What follows from them is
worked out when somebody asks, afresh from the records, so taking pods off and putting them back leaves no trace.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import amplify_value
from koord.api.objects import NodeResourceTopology
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import State
from roles.scheduler.plugins.numa.allocator import Pool, pool_of
from roles.scheduler.plugins.numa.facts import NO_FACTS, NO_REPORT, Facts, Report, facts_of, read_report
from roles.scheduler.plugins.numa.picks import FULL, SPREAD
from roles.scheduler.plugins.numa.records import Record, Usage, counts_of, read_record, usage_of
from roles.scheduler.plugins.numa.zones import ZoneColumns
from roles.scheduler.plugins.topology_manager.hints import Policy

log = logging.getLogger(__name__)

BIND_CODES = {"": 0, FULL: 1, SPREAD: 2}
POLICY_CODES = {policy: number for number, policy in enumerate(Policy)}

_NO_OWNERS: Mapping[str, Iterable[str]] = {}
_MANY = 64  # rows to be written anew, beyond which they are written before the next event of a node


@dataclass(slots=True, eq=False)
class NodeState:
    """One slot. `version` moves with everything that allocation looks at, and is never the same for two different states."""

    facts: Facts = NO_FACTS
    records: dict[str, Record] = field(default_factory=dict)
    usage: Usage | None = None
    pool: Pool | None = None
    version: int = 0


class NumaColumns(Columns):
    """By slot: `policy` and `bind` of the node as numbers (POLICY_CODES, BIND_CODES), `valid` a usable topology, `uniform` cores of one
    width (`per_core`), `zoned` NUMA amounts known, `ratio` of cpu amplification (1 for none, NaN for an unreadable one), `bound`
    milli-CPU of held CPUs, `extra` what amplification adds to them, `free` CPUs by BIND_CODES. Call `current()` before reading them.
    `guess` says what a pod that is only supposed to be on a node would get."""

    def __init__(self, state: State) -> None:
        self.guess: Callable[[int, PodInfo], Record | None] = lambda slot, pod: None
        self._state = state
        self._states: dict[int, NodeState] = {}
        self._reports: dict[str, Report] = {}
        self._decided: dict[str, Record] = {}
        self._read: dict[str, Record] = {}  # by UID of a bound pod, what its annotations told when they could last be read
        self._dirty: set[int] = set()
        self._supposed: set[int] = set()  # rows whose arrays show a what-if that leaves no trace
        self._versions = itertools.count(1)
        self._before: dict[int, tuple[Usage | None, int, bool]] | None = None  # what a what-if that leaves no trace found

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster
        size = cluster.capacity
        self.policy: NDArray[np.int8] = np.zeros(size, dtype=np.int8)
        self.bind: NDArray[np.int8] = np.zeros(size, dtype=np.int8)
        self.valid: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self.uniform: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self.zoned: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self.per_core: NDArray[np.int64] = np.ones(size, dtype=np.int64)
        self.ratio: Vector = np.ones(size)
        self.bound: Vector = np.zeros(size)
        self.extra: Vector = np.zeros(size)
        self.free: tuple[Vector, Vector, Vector] = (np.zeros(size), np.zeros(size), np.zeros(size))
        self.zones = ZoneColumns(size)
        self.amplified = 0  # rows whose ratio is not 1
        self.special = 0  # rows with a policy of any kind

    def grow(self, capacity: int) -> None:
        self.policy, self.bind = grown(self.policy, capacity), grown(self.bind, capacity)
        self.valid, self.uniform, self.zoned = (grown(column, capacity) for column in (self.valid, self.uniform, self.zoned))
        self.per_core, self.ratio = grown(self.per_core, capacity, 1), grown(self.ratio, capacity, 1.0)
        self.bound, self.extra = grown(self.bound, capacity), grown(self.extra, capacity)
        self.zones.grow(capacity)
        self.free = (grown(self.free[0], capacity), grown(self.free[1], capacity), grown(self.free[2], capacity))

    # ---------------------------------------------------------------- nodes and their topology

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        self._keep_up()
        if old is None or old.labels != new.labels or old.annotations != new.annotations:
            self._facts(slot, new)

    def node_removed(self, slot: int, old: NodeView) -> None:
        self._set_facts(slot, NO_FACTS)

    def topology_set(self, old: NodeResourceTopology | None, new: NodeResourceTopology | None) -> bool:
        """A NodeResourceTopology appeared, changed or went; whether that changes what we know of the node. Which CPUs its pods have is
        written there, too, each time that one comes or goes."""
        self._keep_up()
        present = new or old
        assert present is not None
        name = present.metadata.name
        report = read_report(new) if new is not None else NO_REPORT
        if report == self._reports.get(name, NO_REPORT):
            return False
        if new is None:
            self._reports.pop(name, None)
        else:
            self._reports[name] = report
        slot = self.cluster.slot_of(name)
        view = self.cluster.row(slot).view if slot >= 0 else None
        if view is not None:
            self._facts(slot, view)
        return True

    def _facts(self, slot: int, view: NodeView) -> None:
        self._set_facts(slot, facts_of(self._reports.get(view.name, NO_REPORT), view))

    def _set_facts(self, slot: int, facts: Facts) -> None:
        self.at(slot).facts = facts
        self._touch(slot)

    # ---------------------------------------------------------------- pods

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        record = self._record(pod)
        if record is None and self.cluster.supposing and not self.cluster.returning and not pod.node_name:
            record = self.guess(slot, pod)
        if record is not None:
            self.at(slot).records[pod.uid] = record
            self._touch(slot)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        state = self._states.get(slot)
        if state is not None and state.records.pop(pod.uid, None) is not None:
            self._touch(slot)

    def pod_replaced(self, slot: int, old: PodInfo, new: PodInfo) -> None:
        state = self.at(slot)
        before, record = state.records.get(new.uid), self._record(new)
        if before == record:
            return
        if record is None:
            del state.records[new.uid]
        else:
            state.records[new.uid] = record
        self._touch(slot)

    def quiet_begins(self) -> None:
        self._before = {}

    def quiet_ends(self) -> None:
        """Pods are as they were, and so is what was worked out from them."""
        for slot, (usage, version, dirty) in (self._before or {}).items():
            state = self.at(slot)
            state.usage, state.version, state.pool = usage, version, None
            if not dirty:
                self._dirty.discard(slot)
        self._dirty |= self._supposed
        self._supposed.clear()
        self._before = None

    def _record(self, pod: PodInfo) -> Record | None:
        """What a pod holds. Annotations count once the API shows it on a node: those of a pending pod are left from another attempt."""
        if not pod.node_name:
            return self._decided.get(pod.uid)
        last = self._read.pop(pod.uid, None)
        try:
            record = read_record(pod.key, pod.pod.metadata.annotations)
        except ValueError as error:
            record = last or self._decided.get(pod.uid)
            log.warning("pod %s: %s; it counts as holding %s", pod.key, error, "nothing" if record is None else "what it held before")
        if record is None:
            return self._decided.get(pod.uid)
        self._decided.pop(pod.uid, None)
        self._read[pod.uid] = record
        return record

    def reserve(self, slot: int, pod: PodInfo, record: Record) -> None:
        """The pod holds this from now on, until its own annotations say so or `release`."""
        self._decided[pod.uid] = record
        self.at(slot).records[pod.uid] = record
        self._touch(slot)

    def take_nothing(self, slot: int, uid: str) -> None:
        """A pod holds nothing yet, whatever was decided or guessed."""
        self._decided.pop(uid, None)
        if self.at(slot).records.pop(uid, None) is not None:
            self._touch(slot)

    def release(self, slot: int, uid: str) -> None:
        """Take a reservation of `reserve` back; nothing happens without one, or once the node is gone (slot -1)."""
        if self._decided.pop(uid, None) is not None and slot >= 0 and self.at(slot).records.pop(uid, None) is not None:
            self._touch(slot)

    def decided(self, uid: str) -> Record | None:
        """What `reserve` was told for a pod whose binding is under way."""
        return self._decided.get(uid)

    def gone(self, uid: str) -> None:
        """The pod is no more."""
        self._decided.pop(uid, None)
        self._read.pop(uid, None)

    # ---------------------------------------------------------------- reading

    def at(self, slot: int) -> NodeState:
        """The state of a slot."""
        state = self._states.get(slot)
        if state is None:
            state = self._states[slot] = NodeState()
        return state

    def usage(self, slot: int) -> Usage:
        """What is held on a slot, as things are now (also inside a what-if)."""
        state = self.at(slot)
        if state.usage is None:
            state.usage = self._usage_of(slot, state.records)
        return state.usage

    def pool(self, slot: int, exclusive: str) -> Pool:
        """What a slot has left for a pod with this exclusive policy, whatever reservations keep; nobody may change it."""
        state = self.at(slot)
        if exclusive:
            return pool_of(state.facts, self.usage(slot), exclusive)
        if state.pool is None:
            state.pool = pool_of(state.facts, self.usage(slot), "")
        return state.pool

    def later(self, slot: int) -> Usage | None:
        """What will be held once those have left who are on their way out; None if nobody is."""
        records = self.at(slot).records
        known = ((uid, self.cluster.pod(uid)) for uid in records)
        left = {uid for uid, pod in known if pod is not None and self._state.leaving(pod)}
        return self._usage_of(slot, {uid: record for uid, record in records.items() if uid not in left}) if left else None

    def _usage_of(self, slot: int, records: Mapping[str, Record]) -> Usage:
        owners = _NO_OWNERS
        if records:
            owners = {found.uid: found.owners for found in self._state.holdings.on(slot) if found.owners}
        return usage_of(self.at(slot).facts, records, owners)

    def current(self) -> None:
        """Bring the arrays up to date, also inside a what-if: its rows are written again when it is over."""
        if not self._dirty:
            return
        for slot in self._dirty:
            self._write(slot)
        self._supposed.update(self._dirty.intersection(self._before or ()))
        self._dirty.clear()

    def _keep_up(self) -> None:
        """Thousands of nodes that change together must not all be left to the next decision."""
        if len(self._dirty) >= _MANY and self._before is None:
            self.current()

    # ---------------------------------------------------------------- inside

    def _touch(self, slot: int) -> None:
        state = self.at(slot)
        if self._before is not None and slot not in self._before:
            self._before[slot] = (state.usage, state.version, slot in self._dirty)
        state.usage = state.pool = None
        state.version = next(self._versions)
        self._dirty.add(slot)
        self.cluster.changes.note(slot, self.kind)

    def _write(self, slot: int) -> None:
        facts, usage = self.at(slot).facts, self.usage(slot)
        machine = facts.machine
        self.special += int(bool(facts.policy or facts.bind_policy)) - int(bool(self.policy[slot] or self.bind[slot]))
        self.amplified += int(facts.ratio != 1.0) - int(self.ratio[slot] != 1.0)
        self.policy[slot] = POLICY_CODES[facts.policy]
        self.bind[slot] = BIND_CODES[facts.bind_policy]
        self.valid[slot] = machine.valid
        self.uniform[slot] = machine.uniform
        self.zoned[slot] = bool(facts.zones)
        self.zones.write(slot, facts, usage, self.pool(slot, "").amounts)
        self.per_core[slot] = max(1, machine.per_core)
        self.ratio[slot] = facts.ratio if facts.ratio is not None else np.nan
        self.bound[slot] = usage.bound
        self.extra[slot] = amplify_value(usage.bound, facts.ratio or 1.0) - usage.bound
        for column, count in zip(self.free, counts_of(machine, usage.free), strict=True):
            column[slot] = count
