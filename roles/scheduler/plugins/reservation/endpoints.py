"""Debug pages of reservations (SCH-RSV-16)."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.accounting.resources import format as format_amounts
from roles.scheduler.plugins.reservation.ledger import Held, Ledger


def node_reservations(ledger: Ledger, node: str) -> dict[str, Any] | None:
    """All reservations on a node; None for a node that is not known."""
    slot = ledger.cluster.slot_of(node)
    if slot < 0:
        return None
    return {"items": [_item(held) for held in sorted(ledger.here(slot), key=lambda held: held.terms.name)]}


def _item(held: Held) -> dict[str, Any]:
    terms = held.terms
    return {
        "name": terms.name,
        "namespace": terms.namespace,
        "uid": terms.uid,
        "kind": terms.kind,
        "available": terms.available,
        "allocateOnce": terms.allocate_once,
        "allocatable": format_amounts(terms.allocatable),
        "reserved": format_amounts(terms.inner),
        "allocated": format_amounts(held.allocated),
        "ports": [{"protocol": protocol, "ip": ip, "port": port} for protocol, ip, port in held.pod.shape.ports],
        "owners": list(msgspec.to_builtins(terms.owners)),
        "allocatePolicy": terms.policy,
        "assignedPods": [
            {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "requests": format_amounts(pod.shape.amounts)}
            for pod in sorted(held.owners.values(), key=lambda pod: pod.key)
        ],
    }
