"""Values along their schema: which fields they have, how two differ, how one merges into another, what remains after a removal."""

from __future__ import annotations

from typing import Any

from koord.apiserver.ssa.records import SELF, FieldSet
from koord.apiserver.ssa.schema import LEAF, LIST_MAP, LIST_SET, MAP, Shape

Obj = dict[str, Any]


def _is_map(value: Any, shape: Shape) -> bool:
    return shape.mode == MAP and isinstance(value, dict)


def _is_list(value: Any, shape: Shape) -> bool:
    return shape.mode in (LIST_MAP, LIST_SET) and isinstance(value, list)


def to_set(value: Any, shape: Shape) -> FieldSet:
    """All fields of an applied value. The result is {} for a leaf, which is how a member is written."""
    out: FieldSet = {}
    if _is_map(value, shape):
        for key, inner in value.items():
            child = shape.of(key)
            below = to_set(inner, child)
            if below and not shape.named(key):
                below = {SELF: {}, **below}
            out["f:" + key] = below
    elif _is_list(value, shape):
        item = shape.item
        for inner in value:
            below = to_set(inner, item) if shape.mode == LIST_MAP else {}
            out[shape.key_of(inner)] = {SELF: {}, **below} if below else {}
    return out


def all_fields(value: Any, shape: Shape, *, top: bool = False) -> FieldSet:
    """All fields of a value that was written as a whole: containers are members beside what they contain."""
    out: FieldSet = {}
    if _is_map(value, shape):
        for key, inner in value.items():
            below = all_fields(inner, shape.of(key), top=top and key in ("metadata", "spec", "status", "template"))
            out["f:" + key] = below if top and key in ("metadata", "spec", "status", "template") else _with_self(below)
    elif _is_list(value, shape):
        item = shape.item
        for inner in value:
            out[shape.key_of(inner)] = _with_self(all_fields(inner, item)) if shape.mode == LIST_MAP else {}
    return out


def _with_self(below: FieldSet) -> FieldSet:
    return {SELF: {}, **below} if below and SELF not in below else below


def compare(old: Any, new: Any, shape: Shape) -> tuple[FieldSet, FieldSet]:
    """(changed or added, removed) fields between two values of one shape; equal parts are skipped at once."""
    changed: FieldSet = {}
    removed: FieldSet = {}
    if shape.mode == LEAF or not isinstance(old, type(new)):
        return changed, removed
    if _is_map(new, shape):
        for key, after in new.items():
            if key not in old:
                changed["f:" + key] = _with_self(all_fields(after, shape.of(key)))
                continue
            before = old[key]
            if before == after and type(before) is type(after):
                continue
            _descend("f:" + key, before, after, shape.of(key), changed, removed)
        for key, before in old.items():
            if key not in new:
                removed["f:" + key] = _with_self(all_fields(before, shape.of(key)))
    elif _is_list(new, shape):
        item = shape.item
        was = {shape.key_of(x): x for x in old}
        now = {shape.key_of(x): x for x in new}
        for key, after in now.items():
            if key not in was:
                changed[key] = _with_self(all_fields(after, item)) if shape.mode == LIST_MAP else {}
            elif was[key] != after:
                _descend(key, was[key], after, item, changed, removed)
        for key, before in was.items():
            if key not in now:
                removed[key] = _with_self(all_fields(before, item)) if shape.mode == LIST_MAP else {}
    return changed, removed


def _descend(key: str, before: Any, after: Any, shape: Shape, changed: FieldSet, removed: FieldSet) -> None:
    structured = (_is_map(before, shape) and _is_map(after, shape)) or (_is_list(before, shape) and _is_list(after, shape))
    if not structured or not before or not after:
        # a leaf, or a container that became empty or ceased to be
        if structured and before and not after:
            removed[key] = all_fields(before, shape)
            changed[key] = {}
        elif structured and after and not before:
            changed[key] = _with_self(all_fields(after, shape))
        else:
            changed[key] = {}
        return
    c, r = compare(before, after, shape)
    if c:
        changed[key] = c
    if r:
        removed[key] = r


def merge(live: Any, applied: Any, shape: Shape) -> Any:
    """The applied value over the live one. Lists keep the live order; new items come behind, in applied order."""
    if applied is None:
        return None
    if _is_map(applied, shape) and isinstance(live, dict):
        out = dict(live)
        for key, inner in applied.items():
            out[key] = merge(live[key], inner, shape.of(key)) if key in live else inner
        return out
    if _is_list(applied, shape) and isinstance(live, list):
        item = shape.item
        mine = {shape.key_of(x): x for x in applied}
        order = [shape.key_of(x) for x in live]
        known = dict(zip(order, live, strict=True))
        out_list = []
        for key in _interleave(list(mine), order):
            if key in mine and key in known:
                out_list.append(merge(known[key], mine[key], item) if shape.mode == LIST_MAP else known[key])
            else:
                out_list.append(mine.get(key, known.get(key)))
        return out_list
    return applied


def _interleave(applied: list[str], live: list[str]) -> list[str]:
    """Applied items in their order; each live item that is not applied stays behind the item it followed."""
    wanted = set(applied)
    if wanted.isdisjoint(live):
        return [*live, *applied]
    out: list[str] = []
    position = 0
    seen: set[str] = set()
    for key in applied:
        if key in live:
            index = live.index(key)
            while position < index:
                other = live[position]
                if other not in wanted and other not in seen:
                    out.append(other)
                    seen.add(other)
                position += 1
            position = max(position, index + 1)
        out.append(key)
    out += [k for k in live if k not in wanted and k not in seen]
    return out


def remove(value: Any, gone: FieldSet, shape: Shape) -> Any:
    """The value without the fields of `gone`. Maps that lose all they had go too, and list items that are members themselves."""
    if _is_map(value, shape):
        out = {}
        for key, inner in value.items():
            below = gone.get("f:" + key)
            if below is None:
                out[key] = inner
            elif below and isinstance(inner, (dict, list)):
                kept = remove(inner, below, shape.of(key))
                if kept or not inner:
                    out[key] = kept
        return out
    if _is_list(value, shape):
        item = shape.item
        out_list = []
        for inner in value:
            below = gone.get(shape.key_of(inner))
            if below is None:
                out_list.append(inner)
            elif below and SELF not in below:
                out_list.append(remove(inner, below, item))
        return out_list
    return value


def protect(gone: FieldSet, owned: FieldSet) -> FieldSet:
    """`gone` without what others own, and without the containers of what they own."""
    out: FieldSet = {}
    for key, below in gone.items():
        if key == SELF:
            continue
        theirs = owned.get(key)
        if theirs is None:
            out[key] = below
        elif below:
            rest = protect(below, theirs)
            if rest:
                out[key] = rest
    if SELF in gone and not owned:
        out[SELF] = {}
    return out
