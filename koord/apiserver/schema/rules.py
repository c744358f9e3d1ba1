"""Defaults of built-in types and the rules for their fields: what `rules.json` says of each type, and what needs a function.

The table has JSON Schema's words where it has one: `default` (with `when`: only beside these values of other fields), `required` (true, or
the text of the refusal), `enum` (for lists: of each item), `range` (least, and greatest), `name` (the rule for it), `selector`. `says` is
the text for a value out of its range; what is `optional` may be absent, and else absence counts as 0 or "". A field with a dot is that of
a member. Functions register for a type with `defaulting` and `checking`, and run after the rules of the table wherever that type appears.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.errors import Cause, invalid_value, not_supported, required
from koord.apiserver.schema.builtin import Path_, TypeNode, path_text
from koord.apiserver.validation.names import dns_label

Obj = dict[str, Any]
Default = Callable[[Obj], None]
Check = Callable[[Obj, str, list[Cause]], None]
"""(object, its path, causes)"""

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


class _Plan:
    """The rules of a type, and the fields below which there are more."""

    __slots__ = ("below", "check", "checks", "default", "defaults")

    def __init__(self, name: str) -> None:
        rows = _table().get(name, {})
        self.defaults = [(field.split("."), row["default"], row.get("when")) for field, row in rows.items() if "default" in row]
        self.checks = [(field, row) for field, row in rows.items() if row.keys() - {"default", "when"}]
        self.default = _DEFAULTS.get(name)
        self.check = _CHECKS.get(name)
        self.below: list[tuple[str, _Plan]] = []

    def empty(self) -> bool:
        return not (self.defaults or self.checks or self.default or self.check or self.below)


_PLANS: dict[str, _Plan] = {}


def _plan(node: TypeNode) -> _Plan:
    plan = _PLANS.get(node.name)
    if plan is None:
        plan = _PLANS[node.name] = _Plan(node.name)
        for key, field in node.fields.items():
            inner = field.item if field.code == "[" and field.item is not None else field
            if inner.node is not None and not (below := _plan(inner.node)).empty():
                plan.below.append((key, below))
    return plan


def fill(node: TypeNode, obj: Obj) -> None:
    """Set the defaults of an object, in place."""
    _fill(_plan(node), obj)


def _fill(plan: _Plan, obj: Obj) -> None:
    for (*parents, key), value, when in plan.defaults:
        holder = obj
        for parent in parents:
            holder = holder[parent]
        if key not in holder and (when is None or all(holder.get(k) in wanted for k, wanted in when.items())):
            holder[key] = copy.deepcopy(value) if type(value) in (dict, list) else value
    for key, below in plan.below:
        inner = obj.get(key)
        if type(inner) is list:
            for item in inner:
                _fill(below, item)
        elif inner is not None:
            _fill(below, inner)
    if plan.default is not None:
        plan.default(obj)


def check(node: TypeNode, obj: Obj, causes: list[Cause]) -> None:
    """Add a cause for each rule that an object breaks."""
    _check(_plan(node), obj, None, causes)


def _check(plan: _Plan, obj: Obj, path: Path_, causes: list[Cause]) -> None:
    for field, rule in plan.checks:
        _field(rule, obj.get(field), (path, field), causes)
    for key, below in plan.below:
        inner = obj.get(key)
        if type(inner) is list:
            for i, item in enumerate(inner):
                _check(below, item, ((path, key), f"[{i}]"), causes)
        elif inner is not None:
            _check(below, inner, (path, key), causes)
    if plan.check is not None:
        plan.check(obj, path_text(path), causes)


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
