"""How values merge: which maps and lists are of one piece, and what tells the items of the others apart."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import orjson

from koord.apiserver.schema.builtin import Field, TypeNode
from koord.apiserver.schema.structural import Structural

LEAF, MAP, LIST_MAP, LIST_SET = "leaf", "map", "list-map", "list-set"

# key fields that default, so that an item without them is still known
_KEY_DEFAULTS: dict[str, Any] = {"protocol": "TCP"}


@cache
def _table() -> dict[str, Any]:
    """Of built-in types: `keys` of the lists that merge by them (under "" in every type), `sets`, maps and whole types that are atomic."""
    table: dict[str, Any] = orjson.loads(Path(__file__).with_name("merging.json").read_bytes())
    return table


class Shape:
    """One place in a schema. `of(key)` is the shape of a field or map value, `item` that of list elements."""

    __slots__ = ("_children", "_source", "container", "item", "keys", "mode")

    def __init__(self, mode: str, keys: tuple[str, ...] = (), source: Any = None, item: Shape | None = None) -> None:
        self.mode = mode
        # the type of values that are not of one piece
        self.container = {MAP: dict, LIST_MAP: list, LIST_SET: list}.get(mode)
        self.keys = keys
        self.item = item or self
        self._source = source
        self._children: dict[str, Shape] = {}

    def of(self, key: str) -> Shape:
        """The shape of a member of a map."""
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = _child(self._source, key)
        return found

    def key_of(self, item: Any) -> str:
        """The path element of an item of an associative list."""
        if self.mode == LIST_SET:
            return "v:" + _text(item)
        found = {}
        for key in self.keys:
            value = item.get(key) if isinstance(item, dict) else None
            if value is None:
                value = _KEY_DEFAULTS.get(key)
            if value is not None:
                found[key] = value
        return "k:" + _text(found)

    def named(self, key: str) -> bool:
        """The member is a field of a struct, rather than an entry of a map."""
        source = self._source
        if isinstance(source, TypeNode):
            return True
        return isinstance(source, Structural) and key in source.props


def _text(value: Any) -> str:
    """Compact JSON with sorted keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


_ATOM = Shape(LEAF)
# values without a schema: maps merge by key, lists are of one piece
_FREE = Shape(MAP)
_META: dict[int, Shape] = {}


def _child(source: Any, key: str) -> Shape:
    if isinstance(source, TypeNode):
        field = source.fields.get(key)
        return _of_field(source.name, field) if field is not None else _FREE
    if isinstance(source, Field):
        return _of_field("", source)
    if isinstance(source, Structural):
        prop = source.props.get(key)
        if prop is not None:
            return of_structural(prop)
        return of_structural(source.additional) if isinstance(source.additional, Structural) else _FREE
    return _FREE


def _of_field(owner: str, field: Field) -> Shape:
    if field.code == "r":
        assert field.node is not None
        return of_type(field.node)
    if field.code == "{":
        return _ATOM if field.name in _table()["atomic"].get(owner, ()) else Shape(MAP, source=field.item)
    if field.code == "[":
        assert field.item is not None
        node, known = field.item.node, _table()["keys"]
        keys = known.get(owner, {}).get(field.name) or (known[""].get(field.name) if node is not None else None)
        if keys is not None:
            # items merge field by field, also those whose type is of one piece elsewhere
            return Shape(LIST_MAP, tuple(keys), item=of_type(node) if node is not None else _FREE)
        return Shape(LIST_SET, item=_ATOM) if field.name in _table()["sets"].get(owner, ()) else _ATOM
    return _FREE if field.code == "o" else _ATOM


def of_type(node: TypeNode) -> Shape:
    """The shape of a built-in type."""
    if node.name in _table()["atomic types"]:
        return _ATOM
    found = _META.get(id(node))
    if found is None:
        found = _META[id(node)] = Shape(MAP, source=node)
    return found


def of_structural(node: Structural) -> Shape:
    """The shape of a node of a custom resource's schema."""
    if node.type == "array":
        kind = node.raw.get("x-kubernetes-list-type")
        if kind == "map":
            return Shape(
                LIST_MAP, tuple(node.raw.get("x-kubernetes-list-map-keys") or ()), item=of_structural(node.items) if node.items else _FREE
            )
        if kind == "set":
            return Shape(LIST_SET, item=_ATOM)
        return _ATOM
    if node.raw.get("x-kubernetes-map-type") == "atomic":
        return _ATOM
    if node.type == "object" or node.props or node.preserve:
        return Shape(MAP, source=node)
    return _ATOM


class CustomRoot(Shape):
    """The root of a custom resource: its metadata has the built-in type."""

    __slots__ = ("_meta",)

    def __init__(self, node: Structural, meta: TypeNode) -> None:
        super().__init__(MAP, source=node)
        self._meta = of_type(meta)

    def of(self, key: str) -> Shape:
        return self._meta if key == "metadata" else super().of(key)
