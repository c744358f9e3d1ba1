"""Table output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]


def table(resource: Resource, objs: list[Obj], version: str, meta: Obj, include: str = "") -> Obj:
    """A meta.k8s.io Table."""
    columns = [
        {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
        {"name": "Created At", "type": "date", "format": "", "description": "", "priority": 0},
    ]
    rows = []
    for obj in objs:
        part = {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}
        rows.append({"cells": [obj["metadata"]["name"], obj["metadata"]["creationTimestamp"]], "object": part})
    return {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "metadata": meta, "columnDefinitions": columns, "rows": rows}
