"""Members of JSON that a msgspec projection does not read: the roles pass over them, a linter must not. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import inspect


@lru_cache(maxsize=128)
def _info(shape: Any) -> inspect.Type:
    return inspect.type_info(shape)


def unknown_members(shape: Any, value: Any) -> Iterator[tuple[str, str, list[str]]]:
    """(path of the object, name of the member, names that are read) of each member that `shape` does not have."""
    yield from _walk(_info(shape), value, "")


def _walk(info: inspect.Type, value: Any, path: str) -> Iterator[tuple[str, str, list[str]]]:
    if isinstance(info, inspect.UnionType):
        fitting = [one for one in info.types if isinstance(one, (inspect.StructType, inspect.DictType, *_LISTS))]
        if len(fitting) == 1:
            yield from _walk(fitting[0], value, path)
    elif isinstance(info, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in info.fields}
        for name, item in value.items():
            if name in fields:
                yield from _walk(fields[name], item, f"{path}.{name}" if path else name)
            else:
                yield path, name, list(fields)
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        for name, item in value.items():
            yield from _walk(info.value_type, item, f'{path}["{name}"]')
    elif isinstance(info, _LISTS) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(info.item_type, item, f"{path}[{index}]")


_LISTS = (inspect.ListType, inspect.VarTupleType)
