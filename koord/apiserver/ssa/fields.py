"""Sets of fields: which ones a value has along its schema, what two values differ in, and who manages them.

A set holds the paths of its members. A path is a tuple of elements as they stand in FieldsV1: `f:` a field or an entry of a map, `k:` an
item of a list by its keys, `v:` one by its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from koord.apiserver.ssa.schema import Shape
from koord.apiserver.store import Obj

Path = tuple[str, ...]
Fields = frozenset[Path]

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


def members(value: Any, shape: Shape, path: Path = (), *, applied: bool = False, whole: bool = False) -> set[Path]:
    """All fields of a value, and the containers that they are in: without structs in what was `applied`, without the frame of a `whole`."""
    out: set[Path] = set()
    for element, inner, child in parts(value, shape):
        here = (*path, element)
        frame = whole and element in _FRAME
        below = members(inner, child, here, applied=applied, whole=frame)
        if not below or not (frame or (applied and shape.named(element[2:]))):
            out.add(here)
        out |= below
    return out


def compare(old: Any, new: Any, shape: Shape, path: Path = ()) -> tuple[set[Path], set[Path]]:
    """(changed or added, removed) fields between two values of one shape; equal parts are skipped at once."""
    changed: set[Path] = set()
    removed: set[Path] = set()
    was = {element: (inner, child) for element, inner, child in parts(old, shape)}
    now = {element: (inner, child) for element, inner, child in parts(new, shape)}
    for element, (after, child) in now.items():
        before = was[element][0] if element in was else None
        if element in was and before == after and type(before) is type(after):
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
    if type(applied) is not shape.container or type(live) is not shape.container:
        return applied
    if shape.container is dict:
        merged = {key: merge(live[key], inner, shape.of(key)) if key in live else inner for key, inner in applied.items()}
        return {**live, **merged}
    known = {shape.key_of(item): item for item in live}
    mine = {shape.key_of(item): item for item in applied}
    both = {key: merge(known[key], mine[key], shape.item) for key in mine if key in known}
    return [{**known, **mine, **both}[key] for key in _interleaved(list(mine), [shape.key_of(item) for item in live])]


def _interleaved(applied: list[str], live: list[str]) -> list[str]:
    """Applied items in their order; each live item that is not applied stays behind the item it followed."""
    wanted = set(applied)
    if wanted.isdisjoint(live):
        return [*live, *applied]
    out: list[str] = []
    rest = list(live)
    for key in applied:
        if key in rest:
            at = rest.index(key)
            out += [other for other in rest[:at] if other not in wanted]
            del rest[: at + 1]
        out.append(key)
    return out + [key for key in rest if key not in wanted]


def remove(value: Any, gone: Fields, shape: Shape) -> Any:
    """The value without the fields of `gone`. Maps that lose all they had go too, and list items that are members themselves."""
    above = containers(gone)

    def rest(value: Any, shape: Shape, path: Path) -> Any:
        if type(value) is not shape.container:
            return value
        kept: list[tuple[str, Any]] = []
        for element, inner, child in parts(value, shape):
            here, in_map = (*path, element), isinstance(value, dict)
            if here in above and isinstance(inner, (dict, list)) and (in_map or here not in gone):
                left = rest(inner, child, here)
                if left or not inner or not in_map:
                    kept.append((element, left))
            elif here not in gone and here not in above:
                kept.append((element, inner))
        return {element[2:]: inner for element, inner in kept} if isinstance(value, dict) else [inner for _, inner in kept]

    return rest(value, shape, ())


def containers(fields: Iterable[Path]) -> set[Path]:
    """The paths above some fields."""
    return {path[:depth] for path in fields for depth in range(1, len(path))}


# -- on the wire ---------------------------------------------------------------------------------------------------------------------


def unpack(wire: Obj) -> Fields:
    """The set that FieldsV1 says."""
    return _unpacked(orjson.dumps(wire))


@lru_cache(maxsize=1024)
def _unpacked(text: bytes) -> Fields:
    out: set[Path] = set()

    def walk(node: Obj, path: Path) -> None:
        for key, inner in node.items():
            if key == _SELF:
                out.add(path)
            elif inner:
                walk(inner, (*path, key))
            else:
                out.add((*path, key))

    walk(orjson.loads(text), ())
    return frozenset(out)


@lru_cache(maxsize=1024)
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


def shown(fields: Iterable[Path]) -> list[str]:
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
    meta["managedFields"] = [r.wire() for r in kept]
    if not kept:
        del meta["managedFields"]


def _capped(records: list[Record]) -> list[Record]:
    updates = sorted((r for r in records if r.operation == UPDATE), key=lambda r: r.time)
    if len(updates) <= MAX_UPDATE_MANAGERS:
        return records
    excess = updates[: len(updates) - MAX_UPDATE_MANAGERS + 1]
    fields: Fields = frozenset().union(*(r.fields for r in excess))
    return [*(r for r in records if r not in excess), Record(ANCIENT, UPDATE, excess[-1].api_version, "", fields, excess[-1].time)]
