"""A node as the scheduler sees it: today's resource names, the node reservation taken off (SCH-NRV-01, SCH-NRV-02)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from koord.accounting.resources import parse
from koord.api import names
from koord.api.annotations import node_reservation_resources, parse_node_reservation
from koord.api.deprecated import rewrite_node
from koord.api.objects import Node
from roles.scheduler.cluster.vocabulary import TaintKey

log = logging.getLogger(__name__)

_APPLY_DEFAULT = ("", "Default")


class NodeView:
    """What placing looks at in a node. `allocatable` is in base units (milli-CPU, bytes, counts), reservation already taken off."""

    __slots__ = ("allocatable", "annotations", "declared_features", "images", "labels", "name", "node", "taints", "unschedulable")

    def __init__(self, node: Node) -> None:
        rewrite_node(node)
        meta, spec, status = node.metadata, node.spec, node.status
        self.node = node
        self.name = meta.name
        self.labels: Mapping[str, str] = meta.labels or {}
        self.annotations: Mapping[str, str] = meta.annotations or {}
        self.unschedulable = bool(spec.unschedulable)
        self.taints = tuple(TaintKey(taint.key, taint.value or "", taint.effect) for taint in spec.taints or ())
        self.allocatable = trimmed(parse(status.allocatable), self.annotations, self.name)
        self.declared_features = frozenset(status.declared_features)
        self.images: dict[str, int] = {name: image.size_bytes or 0 for image in status.images or () for name in image.names or ()}


def trimmed(allocatable: dict[str, int], annotations: Mapping[str, str], node: str) -> dict[str, int]:
    """Allocatable less what the annotation `node.koordinator.sh/reservation` keeps back, floored at 0.

    Batch resources keep their values: the manager has taken the reservation off already. A malformed annotation is logged and ignored.
    """
    if names.ANNOTATION_NODE_RESERVATION not in annotations:
        return allocatable
    try:
        reservation = parse_node_reservation(annotations)
        if reservation is None or reservation.apply_policy not in _APPLY_DEFAULT:
            return allocatable
        reserved = parse(node_reservation_resources(reservation))
    except ValueError as error:
        log.warning("node %s: %s; it is ignored", node, error)
        return allocatable
    result = dict(allocatable)
    for name, amount in reserved.items():
        if name in result and name not in names.BATCH_RESOURCES:
            result[name] = max(0, result[name] - amount)
    return result
