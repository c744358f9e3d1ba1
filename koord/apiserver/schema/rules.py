"""Defaults of built-in types and the rules for their fields: what `rules.json` says of each type, and what needs a function.

The table has JSON Schema's words where it has one: `default` (with `when`: only beside these values of other fields), `required` (true,
or the text of the refusal), `enum` (for lists: of each item), `range` (least, and greatest), `name` (the rule for it), `selector`, `most`
(items of a list), `unique` (the field by which they differ). `says` is the text for a value out of its range; what is `optional` may be
absent, and else absence counts as 0 or "". A field with a dot is that of a member. Of a stored object what is `immutable` never changes,
and what may be set `once` not again (true, or the text of the refusal; `shown` is the field that it names). The row "" is about whole
objects, see `facts`. Functions register for a type with `defaulting` and `checking`, and run after the rules of the table wherever that
type appears.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from koord.apiserver.errors import Cause, duplicate, field_forbidden, invalid_value, not_supported, required, too_many
from koord.apiserver.schema.builtin import Path_, TypeNode, path_text
from koord.apiserver.schema.lists import repeats
from koord.apiserver.store import Obj
from koord.apiserver.validation.names import check_name, dns_label, dns_subdomain, label_selector, qualified_name

Hook = TypeVar("Hook", bound=Callable[..., None])


class Hooks(dict[str, Callable[..., None]]):
    """Functions by the type that they are for; a decorator."""

    def __call__(self, *types: str) -> Callable[[Hook], Hook]:
        def register(function: Hook) -> Hook:
            self.update(dict.fromkeys(types, function))
            return function

        return register

    def run(self, node: TypeNode | None, *given: Any) -> None:
        """Call the function of a type, if it has one."""
        if node is not None and node.name in self:
            self[node.name](*given)


# (object): what a type's defaults need beside the table, parts first
defaulting = Hooks()
# (object, its place, causes): what its checks need
checking = Hooks()
# (object): what is set in a new one
creating = Hooks()
# (object, causes): what is checked of a new one alone
making = Hooks()
# (new, old, causes): what an update may not change beside the fields that are `immutable`
updating = Hooks()
# (subresource, new, old, causes): what a subresource may change
parting = Hooks()
# (object, warnings): what it asks for and does not get
warning = Hooks()


@cache
def _table() -> dict[str, dict[str, Obj]]:
    table: dict[str, dict[str, Obj]] = orjson.loads(Path(__file__).with_name("rules.json").read_bytes())
    return table


def facts(node: TypeNode | None) -> Obj:
    """What holds for the objects of a kind: the `status` of a new one, what it `keeps` of its own, a `warning` that it gets."""
    return _table().get(node.name, {}).get("", {}) if node is not None else {}


@dataclass(slots=True)
class _Plan:
    """What is done with a type, and the fields below which there is more to do."""

    rows: list[Any]
    hook: Callable[..., None] | None
    below: list[tuple[str, _Plan]] = field(default_factory=list)


def _planner(rows: Callable[[TypeNode], list[Any]], hooks: Hooks) -> Callable[[TypeNode], _Plan]:
    """What makes plans of one sort, once for each type."""
    begun: dict[int, _Plan] = {}

    @cache
    def plan(node: TypeNode) -> _Plan:
        made = begun[id(node)] = _Plan(rows(node), hooks.get(node.name))
        for key, part in node.fields.items():
            inner = part.item if part.code == "[" and part.item is not None else part
            if inner.node is not None:
                # of a type that holds itself nobody knows yet what is to be done below
                within = begun.get(id(inner.node))
                below = within or plan(inner.node)
                if within or below.rows or below.hook or below.below:
                    made.below.append((key, below))
        del begun[id(node)]
        return made

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


_FILLING = _planner(_default_rows, defaulting)


def fill(node: TypeNode, obj: Obj) -> None:
    """Set the defaults of an object, in place."""
    _fill(_FILLING(node), obj)


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


_NAME_RULES = {"label": dns_label, "subdomain": dns_subdomain, "qualified": qualified_name}
_NOT_CHECKED = {"default", "when", "immutable", "once", "shown", "status", "keeps", "warning"}


def _check_rows(node: TypeNode) -> list[Any]:
    """(field, a quick look that says yes to most values that are right, the rule)."""
    rows = _table().get(node.name, {})
    return [(name, _quick(node, name, row), row) for name, row in rows.items() if row.keys() - _NOT_CHECKED]


def _quick(node: TypeNode, name: str, rule: Obj) -> Callable[[Any], Any]:
    if "enum" in rule and node.fields[name].code != "[":
        return frozenset([*rule["enum"], None] if "optional" in rule else rule["enum"]).__contains__
    if "range" in rule:
        least, most = rule["range"][0], (*rule["range"], float("inf"))[1]
        return lambda value: value is not None and least <= value <= most
    if not rule.keys().isdisjoint({"most", "unique"}):
        return lambda value: not value or len(value) == 1
    if "name" in rule:
        wrong, absent = _NAME_RULES[rule["name"]], "optional" in rule
        return lambda value: not wrong(value) if value else absent and value is None
    return bool if rule.keys() <= {"required", *_NOT_CHECKED} else lambda value: False


_CHECKING = _planner(_check_rows, checking)


def check(node: TypeNode, obj: Obj, causes: list[Cause]) -> None:
    """Add a cause for each rule that an object breaks."""
    _check(_CHECKING(node), obj, None, causes)


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
        value, (least, *most) = value or 0, rule["range"]
        usual = f"must be between {least} and {most[0]}, inclusive" if most else f"must be greater than or equal to {least}"
        if value < least or (most and value > most[0]):
            causes.append(invalid_value(path_text(path), value, rule.get("says", usual)))
    elif "name" in rule:
        check_name(_NAME_RULES[rule["name"]], value or "", path_text(path), causes)
    elif "selector" in rule:
        label_selector(value or {}, path_text(path), causes)
    if "most" in rule and len(value) > rule["most"]:
        causes.append(too_many(path_text(path), len(value), rule["most"]))
    if "unique" in rule:
        names = [item.get(rule["unique"]) for item in value]
        causes += [duplicate(f"{path_text(path)}[{i}].{rule['unique']}", names[i]) for i in repeats(names) if names[i]]


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
    updating.run(node, new, old, causes)
