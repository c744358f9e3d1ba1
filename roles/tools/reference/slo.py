"""Rows of the reference table of one key of slo-controller-config (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from koord.api.nodeslo_defaults import recommended_resource_qos_strategy
from koord.api.schema import Amount, Bool, Int, IntOrText, ListOf, MapOf, Node, Num, Selector, Span, Str, Struct
from koord.config import slo_schema
from roles.tools.reference.markdown import between, code, noted
from roles.tools.reference.models import Row

_TYPES: Mapping[type[Node], str] = {
    Int: "integer", Num: "number", Bool: "boolean", Str: "string", Amount: "quantity", IntOrText: "integer or string", Span: "duration",
    Selector: "label selector",
}  # fmt: skip


def type_of(node: Node) -> str:
    """The type in a word or two."""
    match node:
        case ListOf():
            return f"[]{type_of(node.item)}"
        case MapOf():
            return f"map of {type_of(node.value)}"
        case _:
            return _TYPES.get(type(node), "object")


def limits_of(node: Node) -> str:
    """What the webhook demands of a value."""
    match node:
        case Int(cm=bounds) if bounds is not None:
            return between(*(None if bound is None else f"{bound:g}" for bound in bounds))
        case Num(above=above, most=most):
            return ", ".join(filter(None, (f"above {above:g}" if above is not None else "", between(None, most))))
        case Str(choices=choices) if choices:
            return "one of " + ", ".join(map(code, choices))
        case ListOf(item=inner) | MapOf(value=inner):
            return limits_of(inner)
        case _:
            return ""


def _default(key: str, path: str) -> str:
    value: Any = recommended_resource_qos_strategy() if key == slo_schema.QOS else slo_schema.DEFAULTS[key]
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return ""
        value = value[part]
    return "" if value in ({}, []) or isinstance(value, Mapping) else value if isinstance(value, str) else json.dumps(value)


def rows(key: str, node: Node, path: str = "") -> Iterator[Row]:
    """Path, type, default, meaning of every field of a key's strategy."""
    while isinstance(node, (ListOf, MapOf)):
        path, node = (path + "[]", node.item) if isinstance(node, ListOf) else (path + ".*", node.value)
    if not isinstance(node, Struct):
        return
    below = dict(node.pairs)
    for name, child in node.fields.items():
        here = f"{path}{'.' if path else ''}{name}"
        text = noted(child.text, limits_of(child), f"below {below[name]}" if name in below else "")
        yield code(here), type_of(child), code(_default(key, here)), text
        yield from rows(key, child, here)
