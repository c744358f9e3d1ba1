"""Lists in objects. Each check of the items of a long one against one another is one pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson


def identity(value: Any) -> Any:
    """A key that equal JSON values share, and no others: 1 and true differ, the order of an object's members does not count."""
    return value if type(value) is str else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def repeats(values: Iterable[Any]) -> list[int]:
    """The indices of values that stood in the list before."""
    seen: set[Any] = set()
    found = []
    for at, value in enumerate(values):
        key = identity(value)
        if key in seen:
            found.append(at)
        seen.add(key)
    return found


def put_member(holder: dict[str, Any], key: str, items: list[Any] | dict[str, Any]) -> None:
    """Make `items` a member of an object; an empty list or map is none."""
    if items:
        holder[key] = items
    else:
        holder.pop(key, None)
