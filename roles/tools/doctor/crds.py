"""How far an installed definition is from ours. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Obj = dict[str, Any]
_KEYS = ("type", "format", "enum", "minimum", "maximum", "pattern", "required", "x-kubernetes-preserve-unknown-fields")


def drift(ours: Obj, theirs: Obj) -> tuple[list[str], list[str]]:
    """(fields that they lack, fields whose rules differ), by path, over the versions that both have."""
    missing: list[str] = []
    changed: list[str] = []
    known = {version["name"]: version for version in theirs["spec"]["versions"]}
    for version in ours["spec"]["versions"]:
        other = known.get(version["name"])
        if other is None:
            continue
        mine, its = (((v.get("schema") or {}).get("openAPIV3Schema") or {}) for v in (version, other))
        for lacks, path in _compare(mine, its, ""):
            (missing if lacks else changed).append(path or "the schema")
        for name in version.get("subresources") or {}:
            if name not in (other.get("subresources") or {}):
                missing.append(f"subresource {name}")
    return missing, changed


def _compare(ours: Obj, theirs: Obj, path: str) -> Iterator[tuple[bool, str]]:
    if any(_rule(ours, key) != _rule(theirs, key) for key in _KEYS):
        yield False, path
    for name, schema in (ours.get("properties") or {}).items():
        below = f"{path}.{name}" if path else name
        other = (theirs.get("properties") or {}).get(name)
        if other is not None:
            yield from _compare(schema, other, below)
        elif not theirs.get("x-kubernetes-preserve-unknown-fields"):
            yield True, below
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        mine, its = ours.get(key), theirs.get(key)
        if isinstance(mine, dict) and isinstance(its, dict):
            yield from _compare(mine, its, path + mark)


def _rule(schema: Obj, key: str) -> Any:
    value = schema.get(key)
    return sorted(map(str, value)) if isinstance(value, list) else value or None
