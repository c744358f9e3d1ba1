"""What the NUMA nodes of all rows have left, as columns: which of them hold a request and what they would score with it, without trying
an allocation (SCH-NUMA-07, SCH-NUMA-08, SCH-NUMA-12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import ResourceVector
from koord.api import names
from roles.scheduler.cluster.columns import Vector, grown
from roles.scheduler.cluster.interning import Interner
from roles.scheduler.framework.context import Rows
from roles.scheduler.plugins.numa.facts import Facts
from roles.scheduler.plugins.numa.machine import Machine
from roles.scheduler.plugins.numa.records import Usage, counts_of
from roles.scheduler.plugins.numa.scoring import Scorer
from roles.scheduler.plugins.topology_manager.hints import NodeUse

_USE_CODES = {use: code for code, use in enumerate(NodeUse)}
_SCORED = "cpu/scored"  # CPU left beside what pods have as amounts
_BOUND = ("cpu/any", "cpu/full", "cpu/spread")  # CPU that bound pods can have, by BIND_CODES of the policy that is required


class ZoneColumns:
    """By resource one row of the array for each position of a NUMA node in its machine. A resource that a machine's NUMA nodes do not have
    is infinite there: it is no matter. `kinds` numbers what NUMA nodes a machine has, as a mask, and which resources they have. `use`
    is how pods use a NUMA node: all of them, and those with CPUs of their own."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._width = 1
        self._left: dict[str, Vector] = {}
        self._total: dict[str, Vector] = {}
        self._facts: dict[int, Facts] = {}  # what a row was prepared for
        self.use: tuple[NDArray[np.int8], NDArray[np.int8]] = (np.zeros((1, capacity), np.int8), np.zeros((1, capacity), np.int8))
        self.count: NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)  # NUMA nodes of the row
        self.kinds: NDArray[np.intp] = np.zeros(capacity, dtype=np.intp)
        self.sets: Interner[tuple[frozenset[str], int]] = Interner(((frozenset(), 0),))

    def grow(self, capacity: int) -> None:
        """Lengthen the arrays."""
        for columns, fill in ((self._left, np.inf), (self._total, 0.0)):
            for name, column in columns.items():
                columns[name] = grown(column, capacity, fill)
        self.use = (grown(self.use[0], capacity), grown(self.use[1], capacity))
        self.kinds, self.count = grown(self.kinds, capacity), grown(self.count, capacity)
        self._capacity = capacity

    def write(self, slot: int, facts: Facts, usage: Usage, left: Mapping[int, ResourceVector]) -> None:
        """Bring a row up to date. `left` is by NUMA node what nobody holds."""
        if self._facts.get(slot) is not facts:
            self._prepare(slot, facts)
        bound = names.RESOURCE_CPU in facts.resources
        for index, (node, amounts) in enumerate(left.items()):
            for name, amount in amounts.items():
                self._left[name][index, slot] = float(amount)
            for column, use in zip(self.use, (usage.use, usage.bound_use), strict=True):
                column[index, slot] = _USE_CODES[use.get(node, NodeUse.IDLE)]
            if bound:
                self._write_bound(index, slot, facts.machine, usage.free & facts.machine.nodes.get(node, 0))
                recorded = usage.recorded.get(node, {}).get(names.RESOURCE_CPU, 0)
                self._left[_SCORED][index, slot] = max(0, facts.zones[node].get(names.RESOURCE_CPU, 0) - recorded)

    def _prepare(self, slot: int, facts: Facts) -> None:
        """Write of a row what only its topology decides."""
        self._facts[slot] = facts
        for column in self._left.values():
            column[:, slot] = np.inf
        for column in self._total.values():
            column[:, slot] = 0.0
        for use in self.use:
            use[:, slot] = 0
        self.kinds[slot] = self.sets.intern((facts.resources, facts.zone_mask))
        self.count[slot] = len(facts.zones)
        if len(facts.zones) > self._width:
            self._widen(len(facts.zones))
        for name in (*facts.resources, *((*_BOUND, _SCORED) if names.RESOURCE_CPU in facts.resources else ())):
            _column(self._left, name, self._width, self._capacity, np.inf)[:, slot] = 0.0
        for index, amounts in enumerate(facts.zones.values()):
            for name, amount in amounts.items():
                _column(self._total, name, self._width, self._capacity, 0.0)[index, slot] = float(amount)

    def _write_bound(self, index: int, slot: int, machine: Machine, free: int) -> None:
        """CPU that bound pods can have, in the steps in which it is dealt out."""
        cpu = self._left[names.RESOURCE_CPU].item(index, slot)
        steps = (1000.0, 1000.0 * max(1, machine.per_core), 1000.0)
        for name, count, step in zip(_BOUND, counts_of(machine, free), steps, strict=True):
            self._left[name][index, slot] = min(cpu, 1000.0 * count) // step * step

    def holds(self, amounts: Mapping[str, int], rows: Rows, required: NDArray[Any], bound: NDArray[Any]) -> NDArray[np.bool_]:
        """By position and row: whether that NUMA node alone holds the request. `required` are BIND_CODES and `bound` whether the pod is
        bound, by row."""
        found = np.arange(self._width)[:, None] < self.count[rows]
        for name, amount in amounts.items():
            left = self._part(name, rows, required, bound)
            if left is not None:
                found &= left >= amount
        return found

    def exclusively(self, amounts: Mapping[str, int], rows: Rows, *, of_all: bool) -> NDArray[np.bool_]:
        """By position and row: whether a pod may have that NUMA node for exclusive use, of all pods or of those with CPUs of their own.
        A request for nothing that NUMA nodes have is on all of them."""
        use = self.use[0 if of_all else 1][:, rows]
        wide = self.count[rows] > 1
        for name in amounts:
            if name in self._left:
                wide &= np.isinf(self._left[name][0, rows])
        return np.asarray(np.where(wide, (use != _USE_CODES[NodeUse.SINGLE]).all(axis=0), use != _USE_CODES[NodeUse.SHARED]))

    def lacks(self, amounts: Mapping[str, int], rows: Rows, required: NDArray[Any], bound: NDArray[Any]) -> NDArray[np.bool_]:
        """Rows whose NUMA nodes do not hold the request even together."""
        short = np.zeros(len(required), dtype=np.bool_)
        for name, amount in amounts.items():
            left = self._part(name, rows, required, bound)
            if left is not None:
                short |= left.sum(axis=0) < amount
        return short

    def everywhere(self, amounts: Mapping[str, int], rows: Rows) -> NDArray[np.bool_]:
        """Rows of whose NUMA nodes each has something left of everything that is asked for."""
        there = np.arange(self._width)[:, None] < self.count[rows]
        found = np.ones(there.shape[1], dtype=np.bool_)
        for name in amounts:
            if name in self._left:
                found &= ((self._left[name][:, rows] > 0) | ~there).all(axis=0)
        return found

    def _part(self, name: str, rows: Rows, required: NDArray[Any], bound: NDArray[Any]) -> Vector | None:
        left = self._left.get(name)
        if left is None:
            return None
        if name != names.RESOURCE_CPU or not bound.any():
            return left[:, rows]
        anyhow, whole, single = (self._left[key][:, rows] for key in _BOUND)
        tied = np.where(required == 1, whole, np.where(required == 2, single, anyhow))
        return np.where(bound, tied, left[:, rows])

    def scores(self, scorer: Scorer, amounts: Mapping[str, int], rows: Rows, more: Mapping[str, Any]) -> tuple[Vector, Vector]:
        """By position and row: the score of that NUMA node as it is, and with `more` (by resource, a number or one a row) on it."""
        count = len(self.count[rows])
        total, weights = np.zeros((2, self._width, count)), np.zeros((self._width, count))
        for name, weight in scorer.resources(amounts):
            if name not in self._total:
                continue
            left = self._left[_SCORED if name == names.RESOURCE_CPU else name][:, rows]
            capacity = self._total[name][:, rows]
            there = capacity > 0
            used = capacity - np.where(there, left, 0.0)
            both = np.stack((used, used + more.get(name, 0.0)))
            part = np.minimum(both, capacity) if scorer.most else np.maximum(capacity - both, 0.0)
            total += weight * np.floor(part * 100.0 / np.where(there, capacity, np.inf))
            weights += weight * there
        before, after = np.floor(total / np.maximum(weights, 1.0))
        return before, after

    def _widen(self, width: int) -> None:
        """Room for machines with more NUMA nodes than any before; those that others do not have hold nothing."""
        for columns in (self._left, self._total):
            for name, column in columns.items():
                wider = np.where(np.isinf(column[0]), np.inf, 0.0) * np.ones((width, 1))
                wider[: self._width] = column
                columns[name] = wider
        more = np.zeros((width - self._width, self._capacity), np.int8)
        self.use = (np.concatenate((self.use[0], more)), np.concatenate((self.use[1], more)))
        self._width = width


def _column(columns: dict[str, Vector], name: str, width: int, capacity: int, fill: float) -> Vector:
    column = columns.get(name)
    if column is None:
        column = columns[name] = np.full((width, capacity), fill)
    return column
