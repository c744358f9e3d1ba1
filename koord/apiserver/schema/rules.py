"""Defaults of built-in types and the rules for their fields: what `rules.json` says of each type, and what needs a function.

The table has JSON Schema's words where it has one: `default` (with `when`: only beside these values of other fields), `required` (true, or
the text of the refusal), `enum` (for lists: of each item), `range` (least, and greatest), `name` (the rule for it), `selector`. `says` is
the text for a value out of its range; what is `optional` may be absent, and else absence counts as 0 or "". A field with a dot is that of
a member. Of a stored object what is `immutable` never changes, and what may be set `once` not again (true, or the text of the refusal;
`shown` is the field that it names). Functions register for a type with `defaulting` and `checking`, and run after the rules of the table
wherever that type appears.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson

from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.errors import Cause, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.schema.builtin import Path_, TypeNode, path_text
from koord.apiserver.store import Obj
from koord.apiserver.validation.names import dns_label

Default = Callable[[Obj], None]
Check = Callable[[Obj, Path_, list[Cause]], None]
"""(object, its place, causes)"""

_DEFAULTS: dict[str, Default] = {}
_CHECKS: dict[str, Check] = {}


def defaulting(*types: str) -> Callable[[Default], Default]:
    """Register what a type's defaults need beside the table, parts first."""

    def register(function: Default) -> Default:
        _DEFAULTS.update(dict.fromkeys(types, function))
        return function

    return register


def checking(*types: str) -> Callable[[Check], Check]:
    """Register what the checks of a type need beside the table."""

    def register(function: Check) -> Check:
        _CHECKS.update(dict.fromkeys(types, function))
        return function

    return register


@cache
def _table() -> dict[str, dict[str, Obj]]:
    table: dict[str, dict[str, Obj]] = orjson.loads(Path(__file__).with_name("rules.json").read_bytes())
    return table


@dataclass(slots=True)
class _Plan:
    """What is done with a type, and the fields below which there is more to do."""

    rows: list[Any]
    hook: Callable[..., None] | None
    below: list[tuple[str, _Plan]] = field(default_factory=list)


class _Plans:
    """Plans of one sort, made when their type is first seen."""

    def __init__(self, rows: Callable[[TypeNode], list[Any]], hooks: Mapping[str, Callable[..., None]]) -> None:
        self._rows = rows
        self._hooks = hooks
        self._made: dict[str, _Plan] = {}

    def of(self, node: TypeNode) -> _Plan:
        plan = self._made.get(node.name)
        if plan is None:
            plan = self._made[node.name] = _Plan(self._rows(node), self._hooks.get(node.name))
            for key, field in node.fields.items():
                inner = field.item if field.code == "[" and field.item is not None else field
                if inner.node is not None:
                    below = self.of(inner.node)
                    if below.rows or below.hook or below.below:
                        plan.below.append((key, below))
        return plan


# -- defaults ------------------------------------------------------------------------------------------------------------------------


def _default_rows(node: TypeNode) -> list[Any]:
    """(field, value, what makes one where each object needs its own, (parents, when) where there are any)."""
    out = []
    for name, row in _table().get(node.name, {}).items():
        if "default" in row:
            *parents, field = name.split(".")
            more = (parents, row.get("when") or {}) if parents or "when" in row else None
            make = dict if row["default"] == {} else partial(copy.deepcopy, row["default"]) if type(row["default"]) is dict else None
            out.append((field, row["default"], make, more))
    return out


_FILLING = _Plans(_default_rows, _DEFAULTS)


def fill(node: TypeNode, obj: Obj) -> None:
    """Set the defaults of an object, in place."""
    _fill(_FILLING.of(node), obj)


def _fill(plan: _Plan, obj: Obj) -> None:
    for key, value, make, more in plan.rows:
        holder = obj
        if more is not None:
            for parent in more[0]:
                holder = holder[parent]
            if not all(holder.get(other) in wanted for other, wanted in more[1].items()):
                continue
        if key not in holder:
            holder[key] = make() if make else value
    for key, below in plan.below:
        inner = obj.get(key)
        if inner is None:
            continue
        if type(inner) is list:
            for item in inner:
                _fill(below, item)
        else:
            _fill(below, inner)
    if plan.hook is not None:
        plan.hook(obj)


# -- checks --------------------------------------------------------------------------------------------------------------------------


_NOT_CHECKED = {"default", "when", "immutable", "once", "shown"}


def _check_rows(node: TypeNode) -> list[Any]:
    """(field, a quick look that says yes to most values that are right, the rule)."""
    rows = _table().get(node.name, {})
    return [(name, _quick(node, name, row), row) for name, row in rows.items() if row.keys() - _NOT_CHECKED]


def _quick(node: TypeNode, name: str, rule: Obj) -> Callable[[Any], Any]:
    if "enum" in rule and node.fields[name].code != "[":
        return frozenset(rule["enum"]).__contains__
    if "range" in rule:
        least, most = rule["range"][0], (*rule["range"], float("inf"))[1]
        return lambda value: value is not None and least <= value <= most
    return bool if rule.keys() <= {"required", *_NOT_CHECKED} else lambda value: False


_CHECKING = _Plans(_check_rows, _CHECKS)


def check(node: TypeNode, obj: Obj, causes: list[Cause]) -> None:
    """Add a cause for each rule that an object breaks."""
    _check(_CHECKING.of(node), obj, None, causes)


def _check(plan: _Plan, obj: Obj, path: Path_, causes: list[Cause]) -> None:
    for name, quick, rule in plan.rows:
        value = obj.get(name)
        if not quick(value):
            _field(rule, value, (path, name), causes)
    for key, below in plan.below:
        inner = obj.get(key)
        if inner is None:
            continue
        if type(inner) is list:
            for i, item in enumerate(inner):
                _check(below, item, ((path, key), i), causes)
        else:
            _check(below, inner, (path, key), causes)
    if plan.hook is not None:
        plan.hook(obj, path, causes)


def _field(rule: Obj, value: Any, path: Path_, causes: list[Cause]) -> None:
    if not value:
        if "required" in rule:
            causes.append(required(path_text(path), rule["required"] if rule["required"] is not True else ""))
            return
        if value is None and "optional" in rule:
            return
    if "enum" in rule:
        accepted = rule["enum"]
        if type(value) is list:
            causes += [not_supported(f"{path_text(path)}[{i}]", item, accepted) for i, item in enumerate(value) if item not in accepted]
        elif value not in accepted:
            causes.append(not_supported(path_text(path), value or "", accepted))
    elif "range" in rule:
        _range(rule, value or 0, path, causes)
    elif "name" in rule:
        if wrong := dns_label(value):
            causes.append(invalid_value(path_text(path), value, wrong))
    elif "selector" in rule:
        try:
            from_label_selector(value or {})
        except SelectorError as error:
            causes.append(invalid_value(path_text(path), value, str(error)))


def _range(rule: Obj, value: int, path: Path_, causes: list[Cause]) -> None:
    least, *greatest = rule["range"]
    if value < least or (greatest and value > greatest[0]):
        usual = f"must be between {least} and {greatest[0]}, inclusive" if greatest else f"must be greater than or equal to {least}"
        causes.append(invalid_value(path_text(path), value, rule.get("says", usual)))


def check_update(node: TypeNode, new: Obj, old: Obj, causes: list[Cause]) -> None:
    """Add a cause for each field of a stored object that changes and may not."""
    for name, row in _table().get(node.name, {}).items():
        refusal = row.get("immutable") or row.get("once")
        if refusal is None:
            continue
        before: Any = old
        after: Any = new
        for key in name.split("."):
            before, after = (before or {}).get(key), (after or {}).get(key)
        if (before or None) == (after or None) or ("once" in row and not before):
            continue
        path = row.get("shown", name)
        causes.append(invalid_value(path, after, "field is immutable") if refusal is True else field_forbidden(path, refusal))
