"""Validation of the schemas in CustomResourceDefinitions: structural, and no more than the server keeps to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.apiserver.errors import Cause, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.schema.structural import Structural, compiled_pattern

if TYPE_CHECKING:
    from koord.apiserver.cel.rules import RuleNode

Obj = dict[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LIST_TYPES = ("atomic", "map", "set")


def check_schema(schema: Obj, path: str, causes: list[Cause]) -> None:
    """Each specified node needs a type (or says that it is free), lists need the schema of their items, and defaults must hold."""
    if schema.get("$ref"):
        causes.append(field_forbidden(f"{path}.$ref", "$ref is not supported"))
        return
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    kind = schema.get("type")
    if not kind and not free:
        causes.append(required(f"{path}.type", "must not be empty for specified object fields"))
    elif kind and kind not in _TYPES:
        causes.append(not_supported(f"{path}.type", kind, _TYPES))
        return
    if kind == "array" and not isinstance(schema.get("items"), dict):
        causes.append(required(f"{path}.items", "must be specified"))
    if schema.get("properties") and schema.get("additionalProperties"):
        causes.append(field_forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"))
    if schema.get("uniqueItems"):
        causes.append(field_forbidden(f"{path}.uniqueItems", "uniqueItems cannot be set to true since the runtime complexity is quadratic"))
    _list_type(schema, path, causes)
    _pattern(schema, path, causes)
    for name, inner in (schema.get("properties") or {}).items():
        if isinstance(inner, dict):
            check_schema(inner, f"{path}.properties[{name}]", causes)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            check_schema(schema[key], f"{path}.{key}", causes)
    if schema.get("default") is not None and not causes:
        wrong: list[Cause] = []
        Structural(schema).validate(schema["default"], None, wrong)
        causes += [invalid_value(f"{path}.default{'.' + c.field if c.field else ''}", schema["default"], c.message) for c in wrong]


def rules_of(root: Structural, path: str, causes: list[Cause]) -> RuleNode | None:
    """The compiled CEL rules of a schema, None where it has none; mistakes become causes."""
    if not root.has_rules:
        return None
    from koord.apiserver.cel.rules import compile_rules

    return compile_rules(root, path, causes)


def _pattern(schema: Obj, path: str, causes: list[Cause]) -> None:
    if not isinstance(schema.get("pattern"), str):
        return
    try:
        compiled_pattern(schema["pattern"])
    except ValueError as error:
        causes.append(invalid_value(f"{path}.pattern", schema["pattern"], f"must be a valid regular expression, but isn't: {error}"))


def _list_type(schema: Obj, path: str, causes: list[Cause]) -> None:
    """Keys of a list that is a map must be in every item: required, or with a default."""
    kind = schema.get("x-kubernetes-list-type")
    if kind is None:
        return
    if kind not in _LIST_TYPES:
        causes.append(not_supported(f"{path}.x-kubernetes-list-type", kind, _LIST_TYPES))
    if kind != "map":
        return
    items = schema.get("items") or {}
    if items.get("type") != "object":
        causes.append(
            invalid_value(f"{path}.items.type", items.get("type", ""), "must be object if parent array's x-kubernetes-list-type is map")
        )
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys:
        causes.append(required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map"))
    for key in keys or ():
        found = (items.get("properties") or {}).get(key)
        if found is None:
            causes.append(invalid_value(f"{path}.x-kubernetes-list-map-keys", key, "entries must all be names of item properties"))
        elif key not in (items.get("required") or ()) and found.get("default") is None:
            text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            causes.append(required(f"{path}.items.properties[{key}].default", text))
