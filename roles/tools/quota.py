"""An ElasticQuota in words: what it may use now, what is used of that, and who waits for it (pure)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from koord.api import names
from koord.api.objects import ElasticQuota, convert
from koord.api.quantity import QuantityError, parse_milli, parse_value
from roles.manager.webhooks.quota_topology import QuotaTopology, resolve

HEADINGS = ("Resource", "Used", "Requested", "May use", "Min", "Max")
_UNLIMITED = 1 << 50
"""What a quota without a limit has in place of one is larger."""

Amounts = Mapping[str, int]


def amounts(listed: Any) -> dict[str, int]:
    """A ResourceList, or its JSON: milli-CPU for cpu, the resource's own unit for others. What cannot be read is left out."""
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except ValueError:
            return {}
    out = {}
    for name, quantity in listed.items() if isinstance(listed, Mapping) else ():
        try:
            out[str(name)] = parse_milli(quantity) if name == "cpu" else parse_value(quantity)
        except QuantityError:
            continue
    return out


def parts(obj: Mapping[str, Any]) -> tuple[Amounts, Amounts, Amounts, Amounts, Amounts]:
    """(used, requested, runtime, min, max); runtime is max where the scheduler has not told it."""
    spec, annotations = obj.get("spec") or {}, (obj.get("metadata") or {}).get("annotations") or {}
    most = amounts(spec.get("max"))
    return (
        amounts((obj.get("status") or {}).get("used")),
        amounts(annotations.get(names.ANNOTATION_QUOTA_REQUEST)),
        {**most, **amounts(annotations.get(names.ANNOTATION_QUOTA_RUNTIME))},
        amounts(spec.get("min")),
        most,
    )


def topology(quotas: Iterable[Mapping[str, Any]]) -> QuotaTopology:
    """The quotas by age, as the scheduler takes them: the oldest of one name holds, and of those that list a namespace. What cannot be
    read is left out."""
    made, read = QuotaTopology(), list[ElasticQuota]()
    for one in quotas:
        with contextlib.suppress(msgspec.ValidationError):
            read.append(convert(one, ElasticQuota))
    for each in sorted(read, key=_age):
        if made.get(each.metadata.name) is None:
            made.on_quota(each)
    return made


def _age(obj: ElasticQuota) -> tuple[str, str, str]:
    meta = obj.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name


def places_of(name: str, quotas: Iterable[Mapping[str, Any]]) -> list[str]:
    """Namespaces whose pods belong to a quota unless they name another one."""
    tree = topology(quotas)
    known = tree.get(name)
    asked = sorted({name, *known.namespaces}) if known is not None else []
    return [namespace for namespace in asked if resolve({}, namespace, tree, False) == name]


def members(name: str, pods: Iterable[dict[str, Any]], quotas: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of pods without a quota's label that belong to a quota by their namespace."""
    tree = topology(quotas)
    return [pod for pod in pods if resolve({}, pod["metadata"].get("namespace", ""), tree, False) == name]


def sentence(obj: Mapping[str, Any], told: Callable[[str, int], str]) -> str:
    """What decides about its pods now: the resource that is used up, or the fullest; `told` writes an amount."""
    used, requested, runtime, _, most = parts(obj)
    wanting = {name: requested.get(name, 0) - runtime[name] for name in runtime if requested.get(name, 0) > runtime[name]}
    if wanting:
        name = max(wanting, key=lambda one: wanting[one] / (runtime[one] or 1))
        why = "its max" if runtime[name] >= most.get(name, 0) else f"others use the rest of its {told(name, most[name])}"
        return f"is full: pods request {told(name, requested[name])} {name}, may use {told(name, runtime[name])}: {why}"
    # What nobody requests is lent to others: runtime is then no more than the requests, and says nothing of what there would be.
    limits = {name: amount if amount > requested.get(name, 0) else most.get(name, amount) for name, amount in runtime.items()}
    limits = {name: amount for name, amount in limits.items() if amount < _UNLIMITED}
    closed = [name for name, amount in limits.items() if not amount]
    if len(closed) == len(limits) or "cpu" in closed or "memory" in closed:
        return f"gives its pods no {' and no '.join(sorted(closed))}: its max is 0" if closed else "has no limit"
    name = max((one for one in limits if limits[one]), key=lambda one: used.get(one, 0) / limits[one])
    state = "has room" if used.get(name, 0) < limits[name] else "is used up"
    return f"{state}: {told(name, used.get(name, 0))} of {told(name, limits[name])} {name} used"


def rows(obj: Mapping[str, Any], told: Callable[[str, int], str]) -> list[tuple[str, ...]]:
    """A row for each resource, under HEADINGS."""
    columns = parts(obj)
    found = sorted({name for column in columns for name in column})

    def cell(column: Amounts, name: str) -> str:
        value = column.get(name)
        return "-" if value is None else "no limit" if value >= _UNLIMITED else told(name, value)

    return [(name, *(cell(column, name) for column in columns)) for name in found]
