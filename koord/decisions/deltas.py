"""Objects as differences: from the version before, or from the first object of the same owner. Pure.

A difference is plain JSON data in wire names. A mapping tells the fields that changed; null takes a field away. Lists and scalars are told
whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, cast

import msgspec

Obj = dict[str, Any]


_Values = Callable[[Any], tuple[Any, ...]]


@cache
def _fields(kind: type) -> tuple[tuple[str, ...], _Values]:
    """The wire names of a struct's fields, and what reads all of them."""
    fields = msgspec.structs.fields(kind)
    if len(fields) == 1:
        only = attrgetter(fields[0].name)
        return (fields[0].encode_name,), lambda obj: (only(obj),)
    return tuple(field.encode_name for field in fields), cast(_Values, attrgetter(*(field.name for field in fields)))


def difference(old: Any, new: Any) -> Obj:
    """What makes `new` of `old`; two structs of one type, or two mappings. Values are structs and plain data, ready to be encoded."""
    if isinstance(old, dict):
        keys: Iterable[str] = dict.fromkeys((*old, *new))
        befores: Iterable[Any] = map(old.get, keys)
        afters: Iterable[Any] = map(new.get, keys)
    else:
        keys, values = _fields(cast(Any, type(old)))
        befores, afters = values(old), values(new)
    found: Obj = {}
    for key, before, after in zip(keys, befores, afters, strict=True):
        if before is after or before == after:
            continue
        if type(before) is type(after) and isinstance(before, (msgspec.Struct, dict)):
            found[key] = difference(before, after)
        elif key != "resourceVersion":  # nobody decides by it
            found[key] = after
    return found


def applied(base: Obj, change: Obj) -> Obj:
    """Plain data with a difference. Neither argument is changed."""
    result = dict(base)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = applied(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


# ---------------------------------------------------------------- reports: the same fields each time, other numbers

_AMOUNT = re.compile(r"(-?\d+)([A-Za-z]*)")
Leaf = str | int | float | bool | None


def leaf_changes(old: Any, new: Any) -> list[Any] | None:
    """How the leaves of plain data differ, in order; None where the fields differ. Amounts of one unit are told as differences."""
    found: list[Any] = []
    return found if _compare(old, new, found) else None


def leaf_applied(old: Any, changes: Iterable[Any]) -> Any:
    """Plain data with such changes. Raises ValueError, TypeError, StopIteration for changes of other data."""
    return _renewed(old, iter(changes))


def _compare(old: Any, new: Any, found: list[Any]) -> bool:
    if isinstance(old, dict):
        return isinstance(new, dict) and [*old] == [*new] and all(_compare(value, new[key], found) for key, value in old.items())
    if isinstance(old, (list, tuple)):
        return (
            isinstance(new, (list, tuple)) and len(old) == len(new) and all(_compare(*pair, found) for pair in zip(old, new, strict=True))
        )
    if isinstance(new, (dict, list, tuple)):
        return False
    found.append(0 if old == new and type(old) is type(new) else _moved(old, new))
    return True


def _moved(old: Leaf, new: Leaf) -> Any:
    if isinstance(old, str) and isinstance(new, str):
        before, after = _AMOUNT.fullmatch(old), _AMOUNT.fullmatch(new)
        if before is not None and after is not None and before[2] == after[2] and _plain(before) and _plain(after):
            return int(after[1]) - int(before[1])
    return [new]


def _plain(amount: re.Match[str]) -> bool:
    return str(int(amount[1])) == amount[1]


def _renewed(old: Any, changes: Iterator[Any]) -> Any:
    if isinstance(old, dict):
        return {key: _renewed(value, changes) for key, value in old.items()}
    if isinstance(old, list):
        return [_renewed(value, changes) for value in old]
    change = next(changes)
    if isinstance(change, list):
        return change[0]
    if change == 0:
        return old
    amount = _AMOUNT.fullmatch(old)
    if amount is None:
        raise ValueError(f"{old!r} is no amount")
    return f"{int(amount[1]) + change}{amount[2]}"
