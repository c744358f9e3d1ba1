"""A node as the scheduler sees it: today's resource names, the node reservation taken off (SCH-NRV-01, SCH-NRV-02)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.accounting.resources import parse
from koord.api import names
from koord.api.objects import Node
from roles.scheduler.cluster.podinfo import rename_deprecated
from roles.scheduler.cluster.vocabulary import TaintKey

log = logging.getLogger(__name__)

_APPLY_DEFAULT = ("", "Default")


class NodeView:
    """What placing looks at in a node. `allocatable` is in base units (milli-CPU, bytes, counts), reservation already taken off."""

    __slots__ = ("allocatable", "annotations", "images", "labels", "name", "node", "taints", "unschedulable")

    def __init__(self, node: Node) -> None:
        meta, spec, status = node.metadata, node.spec, node.status
        self.node = node
        self.name = meta.name
        self.labels: Mapping[str, str] = meta.labels or {}
        self.annotations: Mapping[str, str] = meta.annotations or {}
        self.unschedulable = bool(spec.unschedulable)
        self.taints = tuple(TaintKey(taint.key, taint.value or "", taint.effect) for taint in spec.taints or ())
        self.allocatable = trimmed(rename_deprecated(parse(status.allocatable or {})), self.annotations, self.name)
        self.images: dict[str, int] = {name: image.size_bytes or 0 for image in status.images or () for name in image.names or ()}


def trimmed(allocatable: dict[str, int], annotations: Mapping[str, str], node: str) -> dict[str, int]:
    """Allocatable less what the annotation `node.koordinator.sh/reservation` keeps back, floored at 0.

    Batch resources keep their values: the manager has taken the reservation off already. A malformed annotation is logged and ignored.
    """
    text = annotations.get(names.ANNOTATION_NODE_RESERVATION)
    if not text:
        return allocatable
    try:
        reserved = _reserved(msgspec.json.decode(text))
    except (ValueError, TypeError, AttributeError) as error:
        log.warning("node %s: annotation %s is ignored: %s", node, names.ANNOTATION_NODE_RESERVATION, error)
        return allocatable
    result = dict(allocatable)
    for name, amount in reserved.items():
        if name in result and name not in names.BATCH_RESOURCES:
            result[name] = max(0, result[name] - amount)
    return result


def _reserved(content: Any) -> dict[str, int]:
    if not isinstance(content, dict):
        raise ValueError("must be a JSON object")
    if content.get("applyPolicy", "") not in _APPLY_DEFAULT:
        return {}
    amounts = parse(content.get("resources") or {})
    cpus = content.get("reservedCPUs") or ""
    if cpus:
        amounts = {**amounts, names.RESOURCE_CPU: 1000 * _count_cpus(cpus)}
    return amounts


def _count_cpus(text: str) -> int:
    """How many CPUs a list such as "0,64-65" names. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if low < 0 or high < low:
            raise ValueError(f"reservedCPUs {text!r} is not a CPU list")
        found.update(range(low, high + 1))
    return len(found)
