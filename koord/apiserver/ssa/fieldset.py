"""Sets of fields in the form that managedFields stores them (FieldsV1): nested maps whose keys are path elements.

`{}` is a member; `"."` inside a map says that the map's own path is a member beside what is below it.
"""

from __future__ import annotations

from typing import Any

import orjson

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


def without_descendants(a: FieldSet, gone: FieldSet) -> FieldSet:
    """`a` without the members of `gone` and without everything below those."""
    out: FieldSet = {}
    for key, mine in a.items():
        other = gone.get(key)
        if other is None:
            out[key] = mine
        elif other and SELF not in other:
            rest = without_descendants(mine, other)
            if rest:
                out[key] = rest
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
