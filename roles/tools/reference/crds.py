"""docs/reference/api.md: the custom resources with every field, from the models that configs/crds is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from koord.api import crdgen
from roles.tools.reference.markdown import FIELDS, between, code, noted, page, table

Schema = Mapping[str, Any]


def type_of(schema: Schema) -> str:
    """A field's type in a word or two."""
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in schema else "integer or string"
    kind = schema.get("type")
    if kind == "array":
        return f"[]{type_of(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"map of {type_of(schema['additionalProperties'])}"
    if kind == "string" and schema.get("format") == "date-time":
        return "time"
    return str(kind or "any")


def limits_of(schema: Schema) -> str:
    """What a value must be, besides its type."""
    parts = []
    if "enum" in schema:
        parts.append("one of " + ", ".join(code(str(word)) for word in schema["enum"]))
    parts.append(between(schema.get("minimum"), schema.get("maximum")))
    if schema.get("minItems") or schema.get("minLength"):
        parts.append("not empty")
    return "; ".join(filter(None, parts))


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Every field below a schema: path, its schema, whether it is required."""
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        if here in ("apiVersion", "kind", "metadata"):
            continue
        yield here, field, name in schema.get("required", ())
        inner = field
        while True:
            if inner.get("type") == "array":
                inner, here = inner["items"], here + "[]"
            elif isinstance(inner.get("additionalProperties"), Mapping):
                inner, here = inner["additionalProperties"], here + ".*"
            else:
                break
        yield from fields(inner, here)


def _row(path: str, schema: Schema, required: bool) -> tuple[str, ...]:
    default = json.dumps(schema["default"]) if "default" in schema else ""
    text = noted(schema.get("description", ""), "required" if required else "", limits_of(schema))
    return code(path), type_of(schema), code(default), text


def _section(definition: Schema) -> Iterator[str]:
    spec, names = definition["spec"], definition["spec"]["names"]
    yield f"## {names['kind']}"
    served = ", ".join(code(f"{spec['group']}/{version['name']}") for version in spec["versions"])
    short = f"; short {', '.join(map(code, names['shortNames']))}" if names.get("shortNames") else ""
    scope = "namespaced" if spec["scope"] == "Namespaced" else "cluster-wide"
    yield f"{served}, kind {code(names['kind'])}, {code(names['plural'])}{short}; {scope}."
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        head = f"{version['name']}: " if len(spec["versions"]) > 1 else ""
        yield head + schema.get("description", "")
        yield table(FIELDS, [_row(*row) for row in fields(schema)])


def render() -> str:
    """The page."""
    intro = (
        "Custom resources, as `configs/crds` defines them; `kubectl explain` says the same. `[]` stands for an item of a list, `*` for a "
        "value of a map. Unknown fields of other versions are kept where a schema allows it."
    )
    return page("API", intro, [part for definition in crdgen.all_crds() for part in _section(definition)])
