"""Node labels as integer columns, one per key that a pod has asked for, built on first use and kept current afterwards."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from koord.api.selectors import whole_number
from roles.scheduler.cluster.columns import grown
from roles.scheduler.cluster.interning import Counted
from roles.scheduler.cluster.terms import DOES_NOT_EXIST, EXISTS, GREATER, IN, LESS, NOT_IN, Requirement

Rows = slice | NDArray[np.intp]
BoolVector = NDArray[np.bool_]

ABSENT = 0
_BYTES = 32 << 20  # of columns that are kept
_FEWEST = 64


class LabelColumn:
    """Value ids of one label key by slot; id 0 means that the node lacks the key. An id is another value's once no node has its value: what
    is kept of ids is good for one `node_version` only."""

    __slots__ = ("_numbers", "ids", "key", "values")

    def __init__(self, key: str, capacity: int) -> None:
        self.key = key
        self._numbers: tuple[NDArray[np.int64], BoolVector] | None = None
        self.values: Counted[str | None] = Counted(None)
        self.ids: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)

    def set(self, slot: int, value: str | None) -> None:
        """The value of a node, None for none."""
        before = self.ids.item(slot)
        self.ids[slot] = ABSENT if value is None else self.values.hold(value)
        self.values.let_go(before)
        self._numbers = None

    def match(self, requirement: Requirement, rows: Rows) -> BoolVector:
        """Which rows meet a requirement on this key."""
        ids: NDArray[np.int32] = self.ids[rows]
        op = requirement.op
        if op == EXISTS:
            return np.not_equal(ids, ABSENT)
        if op == DOES_NOT_EXIST:
            return np.equal(ids, ABSENT)
        if op in (IN, NOT_IN) and len(requirement.values) == 1:
            wanted = self.values.find(requirement.values[0])
            return np.equal(ids, wanted) if op == IN else np.not_equal(ids, wanted)
        return np.take(self._table(requirement), ids)

    def _table(self, requirement: Requirement) -> BoolVector:
        """Which values meet a requirement, by id. Pods may name thousands of values, in thousands of terms: those here are not
        looked at in turn."""
        op, wanted = requirement.op, requirement.values
        if op in (IN, NOT_IN):
            table = np.full(len(self.values), op == NOT_IN)
            table[[found for value in wanted if (found := self.values.find(value)) >= 0]] = op == IN
            return table
        want = whole_number(wanted[0]) if op in (GREATER, LESS) and len(wanted) == 1 else None
        if want is None:
            return np.zeros(len(self.values), dtype=np.bool_)
        numbers, valid = self._whole_numbers()
        return valid & (numbers > want if op == GREATER else numbers < want)

    def _whole_numbers(self) -> tuple[NDArray[np.int64], BoolVector]:
        """By id the values that are numbers, and which are."""
        if self._numbers is None:
            found = [None if value is None else whole_number(value) for value in self.values]
            valid = np.array([number is not None for number in found])
            self._numbers = np.array([number or 0 for number in found], dtype=np.int64), valid
        return self._numbers


class LabelColumns:
    """The columns of label keys in use; those not asked for the longest are dropped, and filled again when they are."""

    __slots__ = ("_capacity", "_columns", "_having", "_rows")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: OrderedDict[str, LabelColumn] = OrderedDict()
        self._rows: dict[int, Mapping[str, str]] = {}
        self._having: Counter[str] = Counter()  # by key the nodes that have it: pods may name thousands of keys that none has

    def column(self, key: str) -> LabelColumn:
        """The column of a key."""
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = LabelColumn(key, self._capacity)
            for slot, labels in self._rows.items() if key in self._having else ():
                if key in labels:
                    column.set(slot, labels[key])
            if len(self._columns) > max(_FEWEST, _BYTES // (column.ids.itemsize * self._capacity)):
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(key)
        return column

    def set(self, slot: int, labels: Mapping[str, str]) -> None:
        """Take over the labels of a node."""
        before = self._rows.get(slot, {})
        self._rows[slot] = labels
        self._having.update(labels.keys() - before.keys())
        for key in before.keys() - labels.keys():
            self._having[key] -= 1
            if not self._having[key]:
                del self._having[key]
        for key in before.keys() | labels.keys():
            column = self._columns.get(key)
            if column is not None:
                column.set(slot, labels.get(key))

    def clear(self, slot: int) -> None:
        """Forget a node."""
        self.set(slot, {})
        del self._rows[slot]

    def grow(self, capacity: int) -> None:
        """Lengthen all columns."""
        self._capacity = capacity
        for column in self._columns.values():
            column.ids = grown(column.ids, capacity)

    def match_all(self, selector: Iterable[Requirement], rows: Rows) -> BoolVector | None:
        """Which rows meet all requirements; None when there is none."""
        result: BoolVector | None = None
        for requirement in selector:
            matched = self.column(requirement.key).match(requirement, rows)
            result = matched if result is None else np.logical_and(result, matched, out=result)
        return result
