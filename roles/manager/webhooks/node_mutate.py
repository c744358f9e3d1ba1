"""/mutate-node-status: amplified allocatable (MGR-NODE-M-01)."""

from __future__ import annotations

from typing import Any

import orjson

from koord.api import names
from koord.api.quantity import QuantityError, format_milli, multiply_base, parse_milli
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View

_AMPLIFIED = (names.RESOURCE_CPU, names.RESOURCE_MEMORY)
_RATIO, _RAW = names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO, names.ANNOTATION_NODE_RAW_ALLOCATABLE


async def mutate(node: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """Multiply cpu and memory of allocatable by the node's ratios, keeping the raw amounts in an annotation. Raises Refusal."""
    if request.sub_resource != "status" or request.operation != "UPDATE":
        return node
    metadata = node.setdefault("metadata", {})
    annotations = dict(metadata.get("annotations") or {})
    if _RATIO not in annotations:
        if annotations.pop(_RAW, None) is not None:
            metadata["annotations"] = annotations
        return node
    allocatable = (node.get("status") or {}).get("allocatable")
    if allocatable is None:
        return node
    before = ((request.old_object or {}).get("status") or {}).get("allocatable") or {}
    try:
        ratios = _object(annotations[_RATIO], _RATIO)
        if _RAW not in annotations or any(_milli(before, name) != _milli(allocatable, name) for name in _AMPLIFIED):
            raw = {name: allocatable[name] for name in _AMPLIFIED if name in allocatable}
            annotations[_RAW] = orjson.dumps(raw, option=orjson.OPT_SORT_KEYS).decode()
            metadata["annotations"] = annotations
        else:
            raw = _object(annotations[_RAW], _RAW)
        for name in _AMPLIFIED:
            ratio = ratios.get(name, 0)
            if name in raw and name in allocatable and isinstance(ratio, (int, float)) and ratio > 1:
                allocatable[name] = format_milli(multiply_base(parse_milli(raw[name]), ratio))
    except QuantityError as error:
        raise Refusal(f"node {request.name}: {error}") from None
    return node


def _milli(resources: dict[str, Any], name: str) -> int | None:
    return parse_milli(resources[name]) if name in resources else None


def _object(text: str, key: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Refusal(f'metadata.annotations["{key}"] is not valid JSON: {error}') from None
    if not isinstance(value, dict):
        raise Refusal(f'metadata.annotations["{key}"] must be an object')
    return value
