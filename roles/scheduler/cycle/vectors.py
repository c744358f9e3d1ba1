"""What one filter or one score says about all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.framework.interfaces import Codes, Filter, Score
from roles.scheduler.framework.normalize import Normalizer, extremes


def own(array: Any) -> Any:
    """The array itself, or a copy where it is a view of a column: rows are written into it later."""
    return array if array.base is None else array.copy()


class FilterVector:
    """One filter's answer for all rows; `codes` None means that every row passes."""

    __slots__ = ("codes", "plugin", "stamp")

    def __init__(self, plugin: Filter, codes: Codes | None, stamp: Any) -> None:
        self.plugin = plugin
        self.codes = codes
        self.stamp = stamp

    def code(self, slot: int) -> int:
        """The code of a row."""
        return 0 if self.codes is None else int(self.codes[slot])

    def set_code(self, slot: int, code: int, capacity: int) -> None:
        """A new code of a row."""
        codes = self.codes
        if codes is None:
            if not code:
                return
            codes = self.codes = np.zeros(capacity, dtype=np.int32)
        elif code > 1 and codes.dtype == np.bool_:
            codes = self.codes = codes.astype(np.int32)
        codes[slot] = code


class ScoreVector:
    """One score's raw values (or the one value of all rows) with the extremes they were normalized by."""

    __slots__ = ("fixed", "high", "low", "normalizer", "plugin", "raw", "stamp", "touched", "weight")

    def __init__(self, plugin: Score, weight: float, raw: Vector | float, stamp: Any, normalizer: Normalizer | None) -> None:
        self.plugin = plugin
        self.weight = weight
        self.normalizer = normalizer
        self.raw = raw
        self.stamp = stamp
        self.low = self.high = 0.0
        self.touched = False
        self.fixed = 0.0  # the value of every row while `raw` is one number

    def value(self, slot: int) -> float:
        """The weighted, normalized score of a row."""
        raw = self.raw
        if isinstance(raw, float):
            return self.fixed
        if self.normalizer is None:
            return raw.item(slot) * self.weight
        return float(self.normalizer.apply(raw.item(slot), self.low, self.high)) * self.weight

    def set_raw(self, slot: int, raw: float, capacity: int) -> bool:
        """A new raw value of a row; True when it was one number for all rows until now."""
        spread = False
        if isinstance(self.raw, float):
            if raw == self.raw:
                return False
            self.raw = np.full(capacity, self.raw)
            spread = True
        if self.raw[slot] != raw:
            self.raw[slot] = raw
            self.touched = True
        return spread

    def contribution(self) -> Any:
        """Weighted, normalized scores of all rows, or one number for all."""
        if isinstance(self.raw, float):
            fixed = self.raw if self.normalizer is None else float(self.normalizer.apply(self.raw, self.raw, self.raw))
            self.fixed = fixed * self.weight
            return self.fixed
        result: Any = self.raw
        if self.normalizer is not None:
            result = self.normalizer.apply(result, self.low, self.high)
        return result if self.weight == 1.0 else result * self.weight

    def set_extremes(self, feasible: NDArray[np.bool_]) -> bool:
        """Find the extremes among feasible rows; returns whether they differ from before."""
        if self.normalizer is None:
            return False
        before = (self.low, self.high)
        if isinstance(self.raw, float):
            self.low = self.high = self.raw
        else:
            self.low, self.high = extremes(self.raw, feasible, self.normalizer.ignored)
        return (self.low, self.high) != before
