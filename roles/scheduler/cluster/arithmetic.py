"""Arithmetic on columns that serves one row, in plain numbers, and many rows, in arrays, with one formula.

`at` reads a column, operators calculate, and where they do not do for both there is a function here. `part *= 100.0` works in the place of
an array and gives a plain number another value, so begin with something new (`part = free - amount`): what `at` returns may be the column.
The functions work in the place of an array, too. An array of one number costs numpy ten times what the number costs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from roles.scheduler.cluster.columns import Vector

AnyRows = slice | NDArray[np.intp] | int
"""Several rows, or the slot of one."""


def at(column: NDArray[Any], rows: AnyRows) -> Any:
    """Some rows of a column. Not to be written to."""
    return column.item(rows) if type(rows) is int else column[rows]


def several(rows: AnyRows) -> slice | NDArray[np.intp]:
    """The rows, one as an array of one."""
    return np.array((rows,), dtype=np.intp) if isinstance(rows, int) else rows


def floored(value: Any) -> Any:
    """Whole numbers: no more than the value."""
    return np.floor(value, out=value) if type(value) is ndarray else math.floor(value)


def at_least(value: Any, least: Any) -> Any:
    """The value where it is more than `least`."""
    if type(value) is ndarray:
        return np.maximum(value, least, out=value)
    return value if value > least else least


def at_most(value: Any, most: Any) -> Any:
    """The value where it is less than `most`."""
    if type(value) is ndarray:
        return np.minimum(value, most, out=value)
    return value if value < most else most


def looked_up(table: Vector, whole: Any) -> Any:
    """The table's entries at whole numbers."""
    return table[whole.astype(np.intp)] if type(whole) is ndarray else table.item(whole)
