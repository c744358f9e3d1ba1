"""docs/reference/chart.md: every value of the Helm chart, from its schema and its defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from roles.tools.reference.markdown import between, code, page, table

CHART = Path(__file__).resolve().parents[3] / "configs" / "chart" / "koord"

_HEAD = ("Value", "Type", "Default", "Meaning")
Row = tuple[str, str, str, str]


def _kind(schema: dict[str, Any]) -> str:
    """What a value may be; null, which every such value has as its default, is not worth a word."""
    if "enum" in schema:
        return ", ".join(code(str(word)) for word in schema["enum"] if word)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    found = " or ".join(kind for kind in kinds if kind != "null")
    if found == "array" and (words := schema["items"].get("enum")):
        return "list of " + ", ".join(map(code, words))
    return f"{found}, {between(schema['minimum'], schema['maximum'])}" if {"minimum", "maximum"} <= schema.keys() else found


def rows(schema: dict[str, Any], value: Any, path: str) -> Iterator[Row]:
    """A row for every value below `path`; a folder of values is none itself."""
    properties = schema.get("properties")
    if properties and value:
        for name, part in properties.items():
            yield from rows(part, value[name], f"{path}.{name}" if path else name)
        return
    default = code(json.dumps(value)) if value not in (None, "", [], {}) else ""
    yield code(path), _kind(schema), default, schema["description"]


def render() -> str:
    """The page."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    intro = (
        "Values of `configs/chart/koord`. Without a default: as the manifests or the chosen variant have it, which `helm template` shows. "
        "[Install](../install.md#with-helm) tells what differs from Koordinator's chart."
    )
    general, sections = [], []
    for name, part in schema["properties"].items():
        found = list(rows(part, values[name], name))
        if len(found) == 1:
            general += found
        else:
            sections.append(f"## {name}\n\n{part['description']}\n\n{table(_HEAD, found)}")
    return page("Values of the Helm chart", intro, [table(_HEAD, general), *sections])
