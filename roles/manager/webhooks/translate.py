"""Resource translation and extended-resource-spec (MGR-POD-M-02, MGR-POD-M-03); pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from koord.api import names
from koord.api.priority import TRANSLATION, PriorityClass
from koord.api.quantity import Quantity, QuantityError, canonical, format_decimal, parse_milli
from roles.manager.webhooks.review import Refusal


def translate(spec: dict[str, Any], priority_class: PriorityClass) -> None:
    """Move cpu and memory of all containers, init containers and the overhead to the class's names, in place. Prod, none and Free: nothing.

    cpu becomes an integer of milli-cores, a part of a milli rounded up.
    """
    table = TRANSLATION.get(priority_class)
    if not table:
        return
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            resources = container.get("resources")
            if not resources:
                continue
            requests, limits = resources.get("requests"), resources.get("limits")
            for native, extended in table.items():
                _move(requests, native, extended)
                _move(limits, native, extended)
                if limits and extended in limits and extended not in (requests or {}):
                    requests = resources["requests"] = {**(requests or {}), extended: limits[extended]}
    for native, extended in table.items():
        _move(spec.get("overhead"), native, extended)


def _move(resources: dict[str, Any] | None, native: str, extended: str) -> None:
    if resources and native in resources:
        quantity = resources.pop(native)
        resources[extended] = format_decimal(parse_milli(quantity)) if native == names.RESOURCE_CPU else quantity


def extended_resource_spec(spec: Mapping[str, Any], present: str | None) -> str | None:
    """The annotation's new text, None when it already says the same. Raises Refusal for a present one that cannot be read."""
    containers: dict[str, dict[str, dict[str, str]]] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        entry = {
            field: found
            for field in ("limits", "requests")
            if (found := {name: canonical(q) for name, q in (resources.get(field) or {}).items() if name in names.BATCH_RESOURCES})
        }
        if entry:
            containers[container.get("name") or ""] = entry
    said = _parse_present(present)
    if containers == said or ((said or not containers) and _numeric(containers) == _numeric(said)):
        return None
    built = {"containers": containers} if containers else {}
    return orjson.dumps(built, option=orjson.OPT_SORT_KEYS).decode()


def _parse_present(text: str | None) -> Mapping[str, Any]:
    if not text:
        return {}
    key = names.ANNOTATION_EXTENDED_RESOURCE_SPEC
    try:
        containers = _map(_map(orjson.loads(text)).get("containers"))
        for entry in containers.values():
            for field in ("limits", "requests"):
                for quantity in _map(_map(entry).get(field)).values():
                    Quantity(quantity)
    except (orjson.JSONDecodeError, QuantityError, TypeError) as error:
        raise Refusal(f'metadata.annotations["{key}"] is not readable: {error}') from None
    return containers


def _map(value: Any) -> Mapping[str, Any]:
    """An object, an empty one for null. Raises TypeError for anything else."""
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"an object is wanted where {value!r:.80} stands")
    return value or {}


def _numeric(containers: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Quantity]]]:
    return {
        name: {
            field: {resource: Quantity(q) for resource, q in (entry.get(field) or {}).items()}
            for field in ("limits", "requests")
            if entry.get(field)
        }
        for name, entry in containers.items()
        if entry is not None
    }
