"""Sets of fields: which ones a value has along its schema, what two values differ in, and who manages them.

A set holds the paths of its members. A path is a tuple of elements as they stand in FieldsV1: `f:` a field or an entry of a map, `k:` an
item of a list by its keys, `v:` one by its value. How values merge is a shape: which maps and lists are of one piece, and what tells the
items of the others apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from koord.apiserver.remember import short_ones
from koord.apiserver.schema.builtin import Field, TypeNode
from koord.apiserver.schema.lists import put_member
from koord.apiserver.schema.structural import Structural
from koord.apiserver.store import Obj
from koord.kube.patch import json_equal

LEAF, MAP, LIST_MAP, LIST_SET = "leaf", "map", "list-map", "list-set"

# key fields of built-in types that default, so that an item without them is still known
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
        self._children: dict[str | None, Shape] = {}

    def of(self, key: str) -> Shape:
        """The shape of a member of a map."""
        place = key if self._names(key) else None  # those that the schema does not name are alike, and may be any
        found = self._children.get(place)
        if found is None:
            found = self._children[place] = _child(self._source, key)
        return found

    def _default(self, key: str) -> Any:
        """What an item of this list has for a key that it leaves out, None for nothing."""
        source = self.item._source
        if isinstance(source, Structural):
            return source.props[key].default if key in source.props else None
        return _KEY_DEFAULTS.get(key)

    def _names(self, key: str) -> bool:
        source = self._source
        return key in source.fields if isinstance(source, TypeNode) else isinstance(source, Structural) and key in source.props

    def key_of(self, item: Any) -> str:
        """The path element of an item of an associative list."""
        if self.mode == LIST_SET:
            return "v:" + _text(item)
        found = {}
        for key in self.keys:
            value = item.get(key) if isinstance(item, dict) else None
            if value is None:
                value = self._default(key)
            if value is not None:
                found[key] = value
        return "k:" + _text(found)

    def named(self, key: str) -> bool:
        """The member is a field of a struct, rather than an entry of a map."""
        return isinstance(self._source, TypeNode) or self._names(key)


def _text(value: Any) -> str:
    """Compact JSON with sorted keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


_ATOM = Shape(LEAF)
# values without a schema: maps merge by key, lists are of one piece
FREE = Shape(MAP)
_META: dict[int, Shape] = {}


def _child(source: Any, key: str) -> Shape:
    if isinstance(source, TypeNode):
        field = source.fields.get(key)
        return _of_field(source.name, field) if field is not None else FREE
    if isinstance(source, Field):
        return _of_field("", source)
    if isinstance(source, Structural):
        prop = source.props.get(key)
        if prop is not None:
            return of_structural(prop)
        return of_structural(source.additional) if isinstance(source.additional, Structural) else FREE
    return FREE


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
            return Shape(LIST_MAP, tuple(keys), item=of_type(node) if node is not None else FREE)
        return Shape(LIST_SET, item=_ATOM) if field.name in _table()["sets"].get(owner, ()) else _ATOM
    return FREE if field.code in "oj|" else _ATOM


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
                LIST_MAP, tuple(node.raw.get("x-kubernetes-list-map-keys") or ()), item=of_structural(node.items) if node.items else FREE
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


# -- sets ----------------------------------------------------------------------------------------------------------------------------

Place = tuple[str, ...]
Fields = frozenset[Place]

# a field name in FieldsV1: the path itself is a member, beside those below it
_SELF = "."
# nobody owns these as containers when an object is written as a whole
_FRAME = frozenset({"f:metadata", "f:spec", "f:status", "f:template"})


def parts(value: Any, shape: Shape) -> list[tuple[str, Any, Shape]]:
    """(path element, value, its shape) of what a value is made of; nothing for a leaf."""
    if type(value) is not shape.container:
        return []
    if shape.container is dict:
        return [(f"f:{key}", inner, shape.of(key)) for key, inner in value.items()]
    return [(shape.key_of(item), item, shape.item) for item in value]


def twice(value: Any, shape: Shape, path: Place = ()) -> str:
    """Where a list has an item twice that it tells apart by its keys, or by its value; "" for nowhere."""
    seen: set[str] = set()
    for element, inner, child in parts(value, shape):
        if element in seen:
            return f"{''.join(_element(part) for part in path)}: duplicate entries for key {_element(element)}"
        seen.add(element)
        if found := twice(inner, child, (*path, element)):
            return found
    return ""


def members(value: Any, shape: Shape, path: Place = (), *, applied: bool = False, whole: bool = False) -> set[Place]:
    """All fields of a value, and the containers that they are in: without structs in what was `applied`, without the frame of a `whole`."""
    out: set[Place] = set()
    for element, inner, child in parts(value, shape):
        here = (*path, element)
        frame = whole and element in _FRAME
        below = members(inner, child, here, applied=applied, whole=frame)
        if not below or not (frame or (applied and shape.named(element[2:]))):
            out.add(here)
        out |= below
    return out


def compare(old: Any, new: Any, shape: Shape, path: Place = ()) -> tuple[set[Place], set[Place]]:
    """(changed or added, removed) fields between two values of one shape; equal parts are skipped at once."""
    changed: set[Place] = set()
    removed: set[Place] = set()
    was = {element: (inner, child) for element, inner, child in parts(old, shape)}
    now = {element: (inner, child) for element, inner, child in parts(new, shape)}
    for element, (after, child) in now.items():
        before = was[element][0] if element in was else None
        if element in was and json_equal(before, after):
            continue
        here = (*path, element)
        if before and after and type(before) is type(after) is child.container:
            below = compare(before, after, child, here)
            changed |= below[0]
            removed |= below[1]
        else:  # a leaf, or a container that came, went or became empty
            changed |= {here, *members(after, child, here)}
            removed |= members(before, child, here)
    for element in was.keys() - now.keys():
        here = (*path, element)
        removed |= {here, *members(*was[element], here)}
    return changed, removed


def merge(live: Any, applied: Any, shape: Shape) -> Any:
    """The applied value over the live one. Lists keep the live order; new items come behind, in applied order."""
    if applied is None and type(live) is shape.container:
        return live  # nothing is said of what is in it
    if type(applied) is not shape.container or type(live) is not shape.container:
        return applied
    if shape.container is dict:
        merged = {key: merge(live[key], inner, shape.of(key)) if key in live else inner for key, inner in applied.items()}
        return {**live, **merged}
    mine = {shape.key_of(item): item for item in applied}
    known: dict[str, deque[Any]] = {}
    for item in live:  # what was not applied may have a key twice: environment variables, say
        known.setdefault(shape.key_of(item), deque()).append(item)
    both = {key: merge(known[key][0], mine[key], shape.item) for key in mine if len(known.get(key, ())) == 1}
    order = _interleaved(list(mine), [shape.key_of(item) for item in live])
    return [both.get(key, mine[key]) if key in mine else known[key].popleft() for key in order]


def _interleaved(applied: list[str], live: list[str]) -> list[str]:
    """Applied items in their order; each live item that is not applied stays behind the item it followed."""
    wanted = set(applied)
    if wanted.isdisjoint(live):
        return [*live, *applied]
    places: dict[str, list[int]] = {}
    for at, key in enumerate(live):
        if key in wanted:
            places.setdefault(key, []).append(at)
    out: list[str] = []
    done = 0  # how much of the live list is in its place
    for key in applied:
        at = next((place for place in places.get(key, ()) if place >= done), -1)
        if at >= 0:
            out += [other for other in live[done:at] if other not in wanted]
            done = at + 1
        out.append(key)
    return out + [key for key in live[done:] if key not in wanted]


def with_structs(fields: Iterable[Place], shape: Shape) -> set[Place]:
    """Some fields, and the structs that they are in."""
    out = set(fields)
    for path in fields:
        here = shape
        for depth, element in enumerate(path[:-1], 1):
            in_map = element.startswith("f:")
            if in_map and here.named(element[2:]):
                out.add(path[:depth])
            here = here.of(element[2:]) if in_map else here.item
    return out


def remove(value: Any, gone: Fields, shape: Shape) -> Any:
    """The value without the fields of `gone`, list items that are members themselves among them. A map that loses all it had is null
    then, as kube-apiserver's; such a list goes."""
    above = containers(gone)

    def rest(value: Any, shape: Shape, path: Place) -> Any:
        if type(value) is not shape.container:
            return value
        kept: list[tuple[str, Any]] = []
        for element, inner, child in parts(value, shape):
            here, in_map = (*path, element), isinstance(value, dict)
            if here in gone:
                continue
            if here in above and isinstance(inner, (dict, list)):
                left = rest(inner, child, here)
                if left or not inner or not in_map:
                    kept.append((element, left))
                elif isinstance(inner, dict):  # somebody owns it
                    kept.append((element, None))
            elif here not in above:
                kept.append((element, inner))
        return {element[2:]: inner for element, inner in kept} if isinstance(value, dict) else [inner for _, inner in kept]

    return rest(value, shape, ())


def containers(fields: Iterable[Place]) -> set[Place]:
    """The paths above some fields."""
    return {path[:depth] for path in fields for depth in range(1, len(path))}


# -- on the wire ---------------------------------------------------------------------------------------------------------------------


_SHORT = 16 * 1024


def unpack(wire: Obj) -> Fields:
    """The set that FieldsV1 says."""
    return _unpacked(orjson.dumps(wire))


@short_ones(1024, _SHORT, len)
def _unpacked(text: bytes) -> Fields:
    out: set[Place] = set()

    def walk(node: Obj, path: Place) -> None:
        for key, inner in node.items():
            if key == _SELF:
                out.add(path)
            elif inner:
                walk(inner, (*path, key))
            else:
                out.add((*path, key))

    walk(orjson.loads(text), ())
    return frozenset(out)


def _size(fields: Fields) -> int:
    """About as many bytes as the last elements of the paths have."""
    return sum(16 + len(path[-1]) for path in fields if path)


@short_ones(1024, 2 * _SHORT, _size)
def pack(fields: Fields) -> Obj:
    """FieldsV1 of a set; shared, so not to be changed."""
    out: Obj = {}
    for path in sorted(fields):
        node = out
        for depth, element in enumerate(path, 1):
            node = node.setdefault(element, {})
            if depth < len(path) and path[:depth] in fields:
                node.setdefault(_SELF, {})
    return out


def shown(fields: Iterable[Place]) -> list[str]:
    """The members as conflicts print them: `.spec.containers[name="a"].image`."""
    return ["".join(_element(element) for element in path) for path in sorted(fields)]


def _element(element: str) -> str:
    kind, _, rest = element.partition(":")
    if kind == "f":
        return "." + rest
    if kind == "k":
        keys = orjson.loads(rest)
        return "[" + ",".join(f"{k}={orjson.dumps(v).decode()}" for k, v in sorted(keys.items())) + "]"
    return f"[={rest}]" if kind == "v" else f"[{rest}]"


# -- managers ------------------------------------------------------------------------------------------------------------------------

APPLY, UPDATE = "Apply", "Update"
# managers with operation Update that a busy object keeps; older ones become one
MAX_UPDATE_MANAGERS = 10
ANCIENT = "ancient-changes"


@dataclass(slots=True)
class Record:
    """One manager: who, how, through which version and subresource, which fields, since when."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    fields: Fields
    time: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.manager, self.operation, self.api_version if self.operation == UPDATE else "", self.subresource)

    def wire(self) -> Obj:
        out: Obj = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version}
        out |= {"time": self.time} if self.time else {}
        out |= {"fieldsType": "FieldsV1", "fieldsV1": pack(self.fields)}
        return out | ({"subresource": self.subresource} if self.subresource else {})

    def text(self) -> str:
        """As conflicts print it."""
        through = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.manager}"{through}' + (f" using {self.api_version}" if self.operation == UPDATE else "")


def read(managed: Iterable[Obj]) -> list[Record]:
    """The managers of an object by its metadata.managedFields; entries of unknown form are left out."""
    out: list[Record] = []
    for entry in managed:
        known = entry.get("fieldsType", "FieldsV1") == "FieldsV1" and entry.get("operation") in (APPLY, UPDATE)
        if known and isinstance(entry.get("fieldsV1"), dict):
            manager, operation, version, part = (entry.get(key) or "" for key in ("manager", "operation", "apiVersion", "subresource"))
            out.append(Record(manager, operation, version, part, unpack(entry["fieldsV1"]), entry.get("time") or ""))
    return out


def write(meta: Obj, records: list[Record]) -> None:
    """Store the managers: those that apply first, then by age, as kube-apiserver orders them."""
    kept = _capped([r for r in records if r.fields])
    kept.sort(key=lambda r: (r.operation != APPLY, r.time, r.manager, r.api_version))
    put_member(meta, "managedFields", [r.wire() for r in kept])


def _capped(records: list[Record]) -> list[Record]:
    updates = sorted((r for r in records if r.operation == UPDATE), key=lambda r: r.time)
    if len(updates) <= MAX_UPDATE_MANAGERS:
        return records
    excess = updates[: len(updates) - MAX_UPDATE_MANAGERS + 1]
    fields: Fields = frozenset().union(*(r.fields for r in excess))
    return [*(r for r in records if r not in excess), Record(ANCIENT, UPDATE, excess[-1].api_version, "", fields, excess[-1].time)]
