"""Server-side printing: meta.k8s.io Tables."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from koord.apiserver.tables.kinds import AGE, KINDS, NAME, UNKNOWN, Column, Row, age, ago

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]

_STEP = re.compile(
    r"""\.?(?:
        \['(?P<quoted>(?:[^'\\]|\\.)+)'\]
      | \["(?P<double>[^"]+)"\]
      | \[\?\(@\.?(?P<field>[^\s=!]*)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\)\]
      | \[(?P<index>-?\d+|\*)\]
      | (?P<name>(?:[^.\[\]\\]|\\.)+)
    )""",
    re.VERBOSE,
)
Step = tuple[str, str, str]


@lru_cache(maxsize=1024)
def parse(path: str) -> tuple[Step, ...]:
    """The steps of a path. Raises ValueError."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps: list[Step] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or found.end() == at:
            raise ValueError(f"JSONPath {path!r}: cannot read {text[at:]!r}")
        at = found.end()
        if found["field"] is not None:
            steps.append(("filter" if found["op"] == "==" else "not", found["field"], found["value"].strip("\"'")))
        elif found["index"] is not None:
            steps.append(("index", found["index"], ""))
        else:
            name = found["quoted"] or found["double"] or found["name"]
            steps.append(("name", name.replace("\\", ""), ""))
    return tuple(steps)


def find(obj: Any, path: str) -> list[Any]:
    """All values that a path leads to."""
    values = [obj]
    for kind, key, wanted in parse(path):
        out: list[Any] = []
        for value in values:
            out += _step(value, kind, key, wanted)
        values = out
    return values


def _step(value: Any, kind: str, key: str, wanted: str) -> list[Any]:
    if kind == "name":
        if isinstance(value, dict):
            if key == "*":
                return list(value.values())
            return [value[key]] if key in value and value[key] is not None else []
        return []
    if not isinstance(value, list):
        return []
    if kind == "index":
        if key == "*":
            return list(value)
        index = int(key)
        return [value[index]] if -len(value) <= index < len(value) else []
    matches = []
    for item in value:
        inner: Any = item
        for part in key.split(".") if key else ():
            inner = inner.get(part) if isinstance(inner, dict) else None
        if (_text(inner) == wanted) == (kind == "filter"):
            matches.append(item)
    return matches


def _text(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _custom_cell(obj: Obj, column: Obj) -> Any:
    """The value of a printer column, of the type that the column declares."""
    try:
        found = find(obj, column["jsonPath"])
    except ValueError:
        return None
    if not found:
        return None
    value = found[0]
    kind = column.get("type")
    if kind == "date":
        return ago(value) if isinstance(value, str) else UNKNOWN
    if kind == "integer":
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "number":
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return orjson.dumps(value).decode()


def _columns(resource: Resource) -> tuple[list[Obj], Row]:
    """Column definitions, and what makes a row."""
    if resource.crd_version is not None:
        extra = resource.crd_version.get("additionalPrinterColumns") or [
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
        ]
        definitions = [_definition(NAME, "name"), *(_custom_definition(c) for c in extra)]
        return definitions, lambda obj: [obj["metadata"]["name"], *(_custom_cell(obj, c) for c in extra)]
    known = KINDS.get((resource.group if resource.group != "events.k8s.io" else "", resource.plural))
    if known is None:
        return [_definition(NAME, "name"), _definition(AGE)], lambda obj: [obj["metadata"]["name"], age(obj)]
    columns, row = known
    return [_definition(c, "name" if c == NAME else "") for c in columns], row


def _definition(column: Column, form: str = "") -> Obj:
    name, kind, priority = column
    return {"name": name, "type": kind, "format": form, "description": name, "priority": priority}


def _custom_definition(column: Obj) -> Obj:
    return {
        "name": column["name"],
        "type": column.get("type") or "string",
        "format": column.get("format") or "",
        "description": column.get("description") or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
        "priority": column.get("priority", 0),
    }


def table(resource: Resource, objs: list[Obj], version: str, meta: Obj, include: str = "") -> Obj:
    """A Table of objects. `include` is "None", "Metadata" (the default) or "Object": what each row carries along."""
    definitions, row = _columns(resource)
    rows = []
    for obj in objs:
        entry: Obj = {"cells": row(obj)}
        if include == "Object":
            entry["object"] = obj
        elif include != "None":
            entry["object"] = {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}
        rows.append(entry)
    return {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "metadata": meta, "columnDefinitions": definitions, "rows": rows}
