"""Objects as differences: from the version before, or from the first object of the same owner. Pure.

A difference is plain JSON data in wire names. A mapping tells the fields that changed; null takes a field away. Lists and scalars are told
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
