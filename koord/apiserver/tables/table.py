"""Server-side printing: meta.k8s.io Tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from koord.apiserver.store import Obj
from koord.apiserver.tables.cells import CELLS, UNKNOWN, ago

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource

Row = Callable[[Obj], list[Any]]

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
_SLOT = re.compile(r"\{[^}]*\}")
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
    if kind == "name" and isinstance(value, dict):
        return list(value.values()) if key == "*" else [value[key]] if value.get(key) is not None else []
    if kind == "name" or not isinstance(value, list):
        return []
    if kind == "index":
        return list(value) if key == "*" else [value[int(key)]] if -len(value) <= int(key) < len(value) else []
    return [item for item in value if (_text(next(iter(find(item, key)), None)) == wanted) == (kind == "filter")]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_OF_TYPE: dict[str, tuple[type, ...]] = {"integer": (int, float), "number": (int, float), "boolean": (bool,)}


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
    if kind in _OF_TYPE:
        fits = type(value) in _OF_TYPE[kind]
        return (int(value) if kind == "integer" else value) if fits else None
    if isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


@cache
def _known() -> dict[str, Any]:
    """Columns of built-in kinds by group/plural: name, cell, what stands for an absent field; under `cells` what several kinds have.

    A name may end in its type (`Value:integer`); `*` marks what only `-o wide` shows. A cell is a path, a path as text ($), the length of
    what it leads to (#), the age of the first time that is there (@, paths with |), or a text with paths in braces, each with what stands
    for an absent value behind |; else it is the name of a cell. Without one it is that of the column.
    """
    known: dict[str, Any] = orjson.loads(Path(__file__).with_name("columns.json").read_bytes())
    return known


def _cell(name: str, cell: str = "", absent: Any = None) -> Callable[[Obj], Any]:
    cell = cell or name.lower()
    if cell in _known()["cells"]:
        return _cell("", *_known()["cells"][cell])
    if cell.startswith("#"):
        return lambda obj: len(next(iter(find(obj, cell[1:])), ()))
    if cell.startswith("@"):
        paths = cell[1:].split("|")
        return lambda obj: next((ago(stamp) for path in paths for stamp in find(obj, path) if stamp), absent or UNKNOWN)
    if "{" in cell:
        return lambda obj: _filled(obj, cell, absent)
    if not cell.startswith((".", "$")):
        return CELLS[cell]
    as_text = cell.startswith("$")

    def value(obj: Obj) -> Any:
        found = next((v for v in find(obj, cell) if v != "" or absent is None), absent)
        return str(found) if as_text else found

    return value


def _filled(obj: Obj, template: str, absent: str | None) -> str:
    """A template with its values; `absent` where there is none of them."""
    values = {slot: find(obj, slot[1:-1].partition("|")[0]) for slot in _SLOT.findall(template)}
    if absent is not None and not any(values.values()):
        return absent
    return _SLOT.sub(lambda slot: ",".join(map(str, values[slot[0]])) or slot[0][1:-1].partition("|")[2], template)


def _columns(resource: Resource) -> tuple[list[Obj], Row]:
    """Column definitions, and what makes a row."""
    if resource.crd_version is not None:
        extra = resource.crd_version.get("additionalPrinterColumns") or [
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
        ]
        definitions = [_definition("Name", form="name"), *(_custom_definition(c) for c in extra)]
        return definitions, lambda obj: [obj["metadata"]["name"], *(_custom_cell(obj, c) for c in extra)]
    group = resource.group if resource.group != "events.k8s.io" else ""
    columns = _known().get(f"{group}/{resource.plural}", [["Name"], ["Age"]])
    cells = [_cell(name.lstrip("*").partition(":")[0], *rest) for name, *rest in columns]
    return [_definition(name, form="name" if name == "Name" else "") for name, *_ in columns], lambda obj: [cell(obj) for cell in cells]


def _definition(column: str, form: str) -> Obj:
    name, _, kind = column.lstrip("*").partition(":")
    priority = int(column.startswith("*"))
    return {"name": name, "type": kind or "string", "format": form, "description": name, "priority": priority}


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
    rows = [_row(row(obj), obj, version, include) for obj in objs]
    return _wire(definitions, rows, version, meta)


def blank(resource: Resource, version: str, meta: Obj, include: str) -> Obj:
    """A Table of one object of which nothing but its metadata is known."""
    definitions, _ = _columns(resource)
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    cells: list[Any] = [0 if column["type"] in _OF_TYPE else "" for column in definitions]
    return _wire(definitions, [_row(cells, obj, version, include)], version, {"resourceVersion": meta["resourceVersion"]})


def _row(cells: list[Any], obj: Obj, version: str, include: str) -> Obj:
    entry: Obj = {"cells": cells}
    if include == "Object":
        entry["object"] = obj
    elif include != "None":
        entry["object"] = {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}
    return entry


def _wire(definitions: list[Obj], rows: list[Obj], version: str, meta: Obj) -> Obj:
    return {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "metadata": meta, "columnDefinitions": definitions, "rows": rows}
