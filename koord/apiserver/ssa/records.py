"""metadata.managedFields: reading and writing the list of managers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

Obj = dict[str, Any]

FieldSet = dict[str, Any]

SELF = "."


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in either set."""
    if not a:
        return b
    if not b:
        return a
    out = dict(a)
    for key, inner in b.items():
        if key not in out:
            out[key] = inner
            continue
        mine = out[key]
        if mine is inner:
            continue
        if not mine and inner:
            # a leaf on one side, a branch on the other: the path itself stays a member
            out[key] = inner if SELF in inner else {SELF: {}, **inner}
        elif mine and not inner:
            out[key] = mine if SELF in mine else {SELF: {}, **mine}
        else:
            out[key] = union(mine, inner)
    return out


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in `a` and not in `b`."""
    if not b:
        return a
    out: FieldSet = {}
    for key, mine in a.items():
        if key not in b:
            out[key] = mine
            continue
        other = b[key]
        if not mine:
            # a leaf is gone if the other has the path itself
            if other and SELF not in other:
                out[key] = mine
        elif not other:
            # the other has the path itself only
            rest = {k: v for k, v in mine.items() if k != SELF}
            if rest:
                out[key] = rest
        else:
            rest = difference(mine, other)
            if rest:
                out[key] = {} if rest == {SELF: {}} else rest
    return out


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in both sets."""
    out: FieldSet = {}
    for key, mine in a.items():
        other = b.get(key)
        if other is None:
            continue
        if not mine and not other:
            out[key] = {}
        elif not mine:
            if SELF in other:
                out[key] = {}
        elif not other:
            if SELF in mine:
                out[key] = {}
        else:
            both = intersection(mine, other)
            if both:
                out[key] = {} if both == {SELF: {}} else both
    return out


def paths(a: FieldSet, prefix: str = "") -> list[str]:
    """All members as text: `.spec.containers[name="a"].image`."""
    out: list[str] = []
    for key, inner in a.items():
        if key == SELF:
            out.append(prefix)
            continue
        here = prefix + element_text(key)
        if not inner:
            out.append(here)
        else:
            out += paths(inner, here)
    return out


def element_text(key: str) -> str:
    """One path element as conflicts print it."""
    kind, _, rest = key.partition(":")
    if kind == "f":
        return "." + rest
    if kind == "k":
        fields = orjson.loads(rest)
        return "[" + ",".join(f"{k}={orjson.dumps(v).decode()}" for k, v in sorted(fields.items())) + "]"
    return f"[={rest}]" if kind == "v" else f"[{rest}]"


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
    fields: FieldSet
    time: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.manager, self.operation, self.api_version if self.operation == UPDATE else "", self.subresource)

    def wire(self) -> Obj:
        out: Obj = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version}
        if self.time:
            out["time"] = self.time
        out["fieldsType"] = "FieldsV1"
        out["fieldsV1"] = self.fields
        if self.subresource:
            out["subresource"] = self.subresource
        return out

    def text(self) -> str:
        """As conflicts print it."""
        out = f'"{self.manager}"'
        if self.subresource:
            out += f' with subresource "{self.subresource}"'
        if self.operation == UPDATE:
            out += f" using {self.api_version}"
        return out


def read(meta: Obj) -> list[Record]:
    """The managers of an object; entries of unknown form are left out."""
    out: list[Record] = []
    for entry in meta.get("managedFields") or ():
        if entry.get("fieldsType", "FieldsV1") != "FieldsV1" or entry.get("operation") not in (APPLY, UPDATE):
            continue
        fields = entry.get("fieldsV1")
        if isinstance(fields, dict):
            out.append(
                Record(
                    entry.get("manager") or "",
                    entry["operation"],
                    entry.get("apiVersion") or "",
                    entry.get("subresource") or "",
                    fields,
                    entry.get("time") or "",
                )
            )
    return out


def write(meta: Obj, records: list[Record]) -> None:
    """Store the managers: those that apply first, then by age, as kube-apiserver orders them."""
    kept = _capped([r for r in records if r.fields])
    if not kept:
        meta.pop("managedFields", None)
        return
    kept.sort(key=lambda r: (r.operation != APPLY, r.time, r.manager, r.api_version))
    meta["managedFields"] = [r.wire() for r in kept]


def _capped(records: list[Record]) -> list[Record]:
    from koord.apiserver.ssa.records import union

    updates = sorted((r for r in records if r.operation == UPDATE), key=lambda r: r.time)
    if len(updates) <= MAX_UPDATE_MANAGERS:
        return records
    excess = updates[: len(updates) - MAX_UPDATE_MANAGERS + 1]
    merged = Record(ANCIENT, UPDATE, excess[-1].api_version, "", {}, excess[-1].time)
    for record in excess:
        merged.fields = union(merged.fields, record.fields)
    return [r for r in records if r not in excess] + [merged]
