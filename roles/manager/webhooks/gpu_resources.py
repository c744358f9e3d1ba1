"""Pod mutate: one way to write GPU requests (MGR-POD-M-05); pure."""

from __future__ import annotations

from typing import Any

from koord.api import names
from koord.api.quantity import format_decimal, parse_value

_ANY = frozenset(
    {
        names.RESOURCE_GPU,
        names.RESOURCE_GPU_CORE,
        names.RESOURCE_GPU_MEMORY,
        names.RESOURCE_GPU_MEMORY_RATIO,
        names.RESOURCE_GPU_SHARED,
    }
)


def normalize(spec: dict[str, Any]) -> None:
    """`gpu` becomes gpu-core and gpu-memory-ratio, `gpu.shared` is filled in, on requests and limits of regular containers, in place."""
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
        if _ANY.isdisjoint(requests) and _ANY.isdisjoint(limits):
            continue
        asked = {**limits, **requests}
        if names.RESOURCE_GPU in asked:
            whole = asked[names.RESOURCE_GPU]
            for name in (names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY_RATIO):
                requests[name] = limits[name] = asked[name] = whole
            requests.pop(names.RESOURCE_GPU, None)
            limits.pop(names.RESOURCE_GPU, None)
        if names.RESOURCE_GPU_SHARED not in asked:
            share = asked.get(names.RESOURCE_GPU_MEMORY_RATIO, asked.get(names.RESOURCE_GPU_CORE))
            amount = parse_value(share) if share is not None else 0
            cards = amount // 100 if amount > 100 and amount % 100 == 0 else 1
            requests[names.RESOURCE_GPU_SHARED] = limits[names.RESOURCE_GPU_SHARED] = format_decimal(cards)
        changed = {key: value for key, value in (("requests", requests), ("limits", limits)) if value != (resources.get(key) or {})}
        if changed:
            container["resources"] = {**resources, **changed}
