"""What DeviceShare knows of nodes, as pages (SCH-DEV-17), and of a pod's devices, as terms of its record.

Amounts are written as quantities.
"""

from __future__ import annotations

from typing import Any

from koord.accounting.resources import ResourceVector, add_into, format
from koord.decisions.record import Term
from roles.scheduler.plugins.device_share.columns import DeviceColumns
from roles.scheduler.plugins.device_share.holdings import Allocation, Share
from roles.scheduler.plugins.device_share.inventory import Inventory
from roles.scheduler.plugins.device_share.node import NodeDevices


def summaries(columns: DeviceColumns) -> dict[str, Any]:
    """All nodes with devices, by name."""
    found = ((name, columns.find(name)) for name in columns.names())
    return {name: _summary(node) for name, node in found if node is not None}


def node_summary(columns: DeviceColumns, name: str) -> dict[str, Any] | None:
    """One node; None for one without a Device object."""
    node = columns.find(name)
    return _summary(node) if node is not None else None


def given(allocation: Allocation, inventory: Inventory) -> list[Term]:
    """The devices of a pod by type: how many, which, and where they are."""
    found: dict[str, list[Share]] = {}
    for share in allocation:
        found.setdefault(share.type, []).append(share)
    terms = []
    for kind, shares in found.items():
        cards = [card for share in shares if (card := inventory.card(*share.place)) is not None]
        numas = ",".join(str(numa) for numa in sorted({card.numa for card in cards if card.numa is not None}))
        switches = ",".join(sorted({card.pcie for card in cards if card.pcie}))
        note = f"minors={','.join(str(share.minor) for share in shares)} numa={numas} pcie={switches}"
        terms.append(Term(kind, len(shares), note, "devices"))
    return terms


def _summary(node: NodeDevices) -> dict[str, Any]:
    assert node.inventory is not None
    use = node.use
    sums: dict[str, ResourceVector] = {"deviceTotal": {}, "deviceFree": {}, "deviceUsed": {}}
    details: dict[str, dict[str, dict[str, Any]]] = {f"{key}Detail": {} for key in sums}
    for kind, cards in node.inventory.cards.items():
        for card in cards:
            used = use.of((kind, card.minor))
            free = {name: max(0, amount - used.get(name, 0)) for name, amount in card.amounts.items()}
            for key, amounts in (("deviceTotal", card.amounts), ("deviceFree", free), ("deviceUsed", used)):
                add_into(sums[key], amounts)
                details[f"{key}Detail"].setdefault(kind, {})[str(card.minor)] = format(amounts)
    return {**{key: format(amounts) for key, amounts in sums.items()}, **details, "allocateSet": _allocate_set(node)}


def _allocate_set(node: NodeDevices) -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """By type, "namespace/name" and minor, what each pod has."""
    found: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    for holding in sorted(node.holdings.values(), key=lambda holding: holding.key):
        for share in holding.allocation:
            found.setdefault(share.type, {}).setdefault(holding.key, {})[str(share.minor)] = format(dict(share.amounts))
    return found
