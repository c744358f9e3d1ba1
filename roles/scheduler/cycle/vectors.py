"""What one filter or one score says about all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.changes import NODE
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.interfaces import Codes, Filter, Score
from roles.scheduler.framework.normalize import Normalizer, extremes


def _own(array: Any) -> Any:
    """The array itself, or a copy where it is a view of a column: rows are written into it later."""
    return array if array.base is None else array.copy()


class FilterVector:
    """One filter's answer for all rows; `codes` None means that every row passes. `asked` are the rows about which a row-wise filter was
    asked since they changed, `told` one that it has just refused again."""

    __slots__ = ("asked", "codes", "kept", "plugin", "stamp", "told")

    def __init__(self, plugin: Filter, *, kept: bool = True) -> None:
        self.plugin = plugin
        self.kept = kept  # whether answers outlive a decision
        self.codes: Codes | None = None
        self.stamp: Any = None
        self.asked: NDArray[np.bool_] | None = None
        self.told: int | None = None

    @property
    def of_node_alone(self) -> bool:
        """Whether pods on a node change nothing of what the filter says of it."""
        return self.plugin.reads == NODE and self.stamp is None and self.asked is None

    def stamp_of(self, ctx: CycleContext) -> Any:
        """What says whether answers about rows that did not change themselves still hold."""
        return self.plugin.filter_stamp(ctx) if self.kept else object()

    def code(self, slot: int) -> int:
        """The code of a row."""
        return 0 if self.codes is None else int(self.codes[slot])

    def put(self, rows: Rows, codes: Codes | None, capacity: int) -> None:
        """New codes of some rows, None where all of them pass."""
        mine = self.codes
        if isinstance(rows, slice):
            self.codes = None if codes is None else _own(codes)
        elif codes is None:
            if mine is not None:
                mine[rows] = 0
        else:
            if mine is None:
                if not codes.any():
                    return
                mine = self.codes = np.zeros(capacity, dtype=codes.dtype)
            elif not np.can_cast(codes.dtype, mine.dtype):
                mine = self.codes = mine.astype(np.result_type(codes, mine))
            mine[rows] = codes

    def close(self, rows: Rows, passing: NDArray[np.bool_]) -> None:
        """Take those that the filter refuses out of `passing`, which is about these rows."""
        if self.codes is not None:
            codes = self.codes[rows]
            np.greater(passing, codes if codes.dtype == np.bool_ else codes != 0, out=passing)


class ScoreVector:
    """One score's raw values (or the one value of all rows) with the extremes they were normalized by."""

    __slots__ = ("fixed", "high", "kept", "low", "normalizer", "plugin", "raw", "stamp", "touched", "weight")

    def __init__(self, plugin: Score, weight: float, normalizer: Normalizer | None, *, kept: bool = True) -> None:
        self.plugin = plugin
        self.kept = kept
        self.weight = weight
        self.normalizer = normalizer
        self.raw: Vector | float | None = None
        self.stamp: Any = None
        self.low = self.high = 0.0
        self.touched = False
        self.fixed = 0.0  # the value of every row while `raw` is one number

    def stamp_of(self, ctx: CycleContext) -> Any:
        """As `FilterVector.stamp_of`."""
        return self.plugin.score_stamp(ctx) if self.kept else object()

    def value(self, slot: int) -> float:
        """The weighted, normalized score of a row."""
        raw = self.raw
        if raw is None or isinstance(raw, float):
            return self.fixed
        if self.normalizer is None:
            return raw.item(slot) * self.weight
        return float(self.normalizer.apply(raw.item(slot), self.low, self.high)) * self.weight

    def put(self, rows: Rows, raw: Vector | float, capacity: int) -> None:
        """New raw values of some rows."""
        mine = self.raw
        number = isinstance(raw, (int, float, np.number))
        if isinstance(rows, slice) or (mine is None and number):
            self.raw = float(raw) if number else _own(raw)
            if number:
                fixed = self.raw if self.normalizer is None else float(self.normalizer.apply(self.raw, self.raw, self.raw))
                self.fixed = fixed * self.weight
        elif isinstance(mine, np.ndarray):
            if self.normalizer is not None and not self.touched and (mine[rows] == raw).all():
                return  # the extremes are what they were
            mine[rows] = raw
        else:
            if mine is not None and (raw == mine if number else np.all(raw == mine)):
                return
            self.raw = np.full(capacity, mine or 0.0)
            self.raw[rows] = raw
        self.touched = True

    def put_one(self, slot: int, raw: float) -> bool:
        """The new raw value of a row; False where that may move the extremes, or makes a column of one number."""
        mine = self.raw
        if mine is None or isinstance(mine, float):
            return raw == mine
        if self.normalizer is not None:
            return raw == mine.item(slot)
        mine[slot] = raw
        return True

    def contribution(self, rows: Rows) -> Any:
        """Weighted, normalized scores of some rows, or one number for all."""
        raw: Any = self.raw
        if isinstance(raw, float):
            return self.fixed
        result = raw[rows]
        if self.normalizer is not None:
            result = self.normalizer.apply(result, self.low, self.high)
        return result if self.weight == 1.0 else result * self.weight

    def set_extremes(self, feasible: NDArray[np.bool_]) -> bool:
        """Find the extremes among feasible rows; returns whether they differ from before."""
        if self.normalizer is None:
            return False
        before = (self.low, self.high)
        if isinstance(self.raw, np.ndarray):
            self.low, self.high = extremes(self.raw, feasible, self.normalizer.ignored)
        else:
            self.low = self.high = self.raw or 0.0
        return (self.low, self.high) != before
