"""Kubernetes' strategic merge patch: like a merge patch, but lists with a merge key are merged element by element.

Directives: `$patch: replace|delete|merge` (in an object, or as an element of a merged list), `$retainKeys`,
`$deleteFromPrimitiveList/<field>` and `$setElementOrder/<field>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koord.kube.errors import PatchError
from koord.kube.merge_keys import TYPES, Field, fields_of_kind

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_ATOMIC = Field()


def apply_strategic_patch(doc: dict[str, Any], patch: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Apply a strategic merge patch to an object of a built-in kind (a `Kind` or its name, such as "Pod").

    The arguments are not changed; the result shares what did not change. Raises PatchError for a malformed directive, a
    list of the wrong type, or an element without its merge key.
    """
    name = kind if isinstance(kind, str) else kind.kind
    if not isinstance(patch, Mapping):
        raise PatchError("a strategic merge patch must be an object")
    return _merge_object(doc, patch, fields_of_kind(name), "")


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _merge_object(doc: Any, patch: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> dict[str, Any]:
    directive = patch.get(_PATCH)
    if directive == "replace":
        return _merge_object({}, {key: value for key, value in patch.items() if key != _PATCH}, fields, where)
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(f"{_at(where, _PATCH)}: {directive!r} is not known; accepted: replace, delete, merge")
    merged: dict[str, Any] = dict(doc) if isinstance(doc, dict) else {}
    if _RETAIN in patch:
        kept = _scalars(patch[_RETAIN], _at(where, _RETAIN))
        merged = {key: value for key, value in merged.items() if key in kept}
    orders: list[str] = []
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_member(merged, key, value, fields.get(key, _ATOMIC), _at(where, key))
        elif key.startswith(_DELETE_FROM):
            name = key[len(_DELETE_FROM) :]
            gone = _scalars(value, _at(where, key))
            if isinstance(merged.get(name), list):
                merged[name] = [item for item in merged[name] if isinstance(item, (Mapping, list)) or item not in gone]
        elif key.startswith(_ORDER):
            orders.append(key)
        elif key not in (_PATCH, _RETAIN):
            raise PatchError(f"{_at(where, key)}: unknown directive")
    for key in orders:
        name = key[len(_ORDER) :]
        order = _list(patch[key], _at(where, key))
        _check_order(patch.get(name), order, fields.get(name, _ATOMIC), _at(where, key))
        _reorder(merged, name, doc, order, fields.get(name, _ATOMIC), where=_at(where, key))
    return merged


def _merge_member(merged: dict[str, Any], key: str, value: Any, field: Field, where: str) -> None:
    if value is None:
        merged.pop(key, None)
    elif isinstance(value, Mapping):
        merged[key] = _merge_object({} if field.whole else merged.get(key), value, TYPES[field.type], where)
    elif isinstance(value, list) and field.merge:
        merged[key] = _merge_list(merged.get(key), value, field, where)
    elif isinstance(value, list):
        merged[key] = [_plain(item, where) for item in value]
    else:
        merged[key] = value


def _plain(item: Any, where: str) -> Any:
    """An element of an atomic list as it is stored: directives and nulls inside objects are resolved."""
    return _merge_object({}, item, {}, where) if isinstance(item, Mapping) else item


def _merge_list(current: Any, patch: list[Any], field: Field, where: str) -> list[Any]:
    if current is not None and not isinstance(current, list):
        raise PatchError(f"{where}: the object has no list here")
    server: list[Any] = current or []
    if not field.key:
        if any(isinstance(item, (Mapping, list)) for item in patch):
            raise PatchError(f"{where}: must be a list of scalars")
        added = dict.fromkeys(patch)
        return _interleave(list(added), [item for item in server if item not in added], server, field.key_of)
    return _merge_keyed(server, patch, field, where)


def _merge_keyed(server: list[Any], patch: list[Any], field: Field, where: str) -> list[Any]:
    """Merge a list of objects by its merge key; `$patch` elements replace the list or delete an element."""
    fields = TYPES[field.type]
    updates: dict[Any, Any] = {}
    gone: set[Any] = set()
    replace = False
    for index, item in enumerate(patch):
        if not isinstance(item, Mapping):
            raise PatchError(f"{where}[{index}]: must be an object with {field.key!r}")
        directive = item.get(_PATCH)
        if directive == "replace" and field.key not in item:
            replace = True
            continue
        if not isinstance(item.get(field.key), (str, int, float)):
            raise PatchError(f"{where}[{index}]: has no merge key {field.key!r}")
        if directive == "delete":
            gone.add(item[field.key])
            continue
        identity = item[field.key]
        updates[identity] = {**updates[identity], **item} if identity in updates else item
    if replace:
        return [_merge_object({}, item, fields, where) for item in updates.values()]

    def key_of(item: Any) -> Any:
        value = item.get(field.key) if isinstance(item, Mapping) else None
        return value if isinstance(value, (str, int, float)) else None

    known: dict[Any, Any] = {}
    for item in server:
        known.setdefault(key_of(item), item)
    touched = [_merge_object(known.get(identity), item, fields, f"{where}[{identity}]") for identity, item in updates.items()]
    untouched = [item for item in server if key_of(item) not in updates and key_of(item) not in gone]
    return _interleave(touched, untouched, server, key_of)


def _interleave(ordered: list[Any], others: list[Any], server: list[Any], key_of: Callable[[Any], Any]) -> list[Any]:
    """Merge two lists, each keeping its order; an element of `others` comes first only where the server had it first.

    So elements that the server did not know stand before those that the patch did not name, as the API server does it.
    """
    position: dict[Any, int] = {}
    for index, item in enumerate(server):
        position.setdefault(key_of(item), index)
    result: list[Any] = []
    waiting = 0
    for item in ordered:
        limit = position.get(key_of(item), -1)
        while waiting < len(others) and position.get(key_of(others[waiting]), len(server)) < limit:
            result.append(others[waiting])
            waiting += 1
        result.append(item)
    return result + others[waiting:]


def _check_order(changes: Any, order: list[Any], field: Field, where: str) -> None:
    """The elements of the patch must come in the order that `$setElementOrder` gives, and all be in it."""
    if not isinstance(changes, list):
        return
    waiting = map(field.key_of, order)
    for item in changes:
        if isinstance(item, Mapping) and _PATCH in item:
            continue
        identity = field.key_of(item)
        if identity not in waiting:  # consumes the order up to the element
            raise PatchError(f"{where}: the elements of the patch do not come in this order ({identity!r})")


def _reorder(merged: dict[str, Any], name: str, doc: Any, order: list[Any], field: Field, *, where: str) -> None:
    """Apply `$setElementOrder`: named elements in the order given, the others where the server had them."""
    items = merged.get(name)
    if not isinstance(items, list):
        return
    if not field.merge:
        raise PatchError(f"{where}: {name} is not a merged list")
    if field.key and not all(isinstance(item, Mapping) and isinstance(item.get(field.key), (str, int, float)) for item in order):
        raise PatchError(f"{where}: every element needs the merge key {field.key!r}")
    if not field.key and any(isinstance(item, (Mapping, list)) for item in order):
        raise PatchError(f"{where}: must be a list of scalars")

    key_of = field.key_of
    rank = {key_of(item): index for index, item in reversed(list(enumerate(order)))}
    ordered = sorted((item for item in items if key_of(item) in rank), key=lambda item: rank[key_of(item)])
    server = doc.get(name) if isinstance(doc, Mapping) else None
    server = server if isinstance(server, list) else []
    others = [item for item in items if key_of(item) not in rank]
    merged[name] = _interleave(ordered, others, server, key_of)


def _scalars(value: Any, where: str) -> set[Any]:
    return {item for item in _list(value, where) if not isinstance(item, (Mapping, list))}


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise PatchError(f"{where}: must be a list")
    return value
