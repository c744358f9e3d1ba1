"""Devices that are published as ResourceSlices are given out twice over, by claims and by DeviceShare: what one has counts for the other
(SCH-DRA-21).

A claim has whole devices. To claims a device of which a pod has anything is in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.deviceslices import DRIVER, device_name, place_of
from roles.scheduler.plugins.device_share.holdings import Holding, Place, Share
from roles.scheduler.plugins.device_share.inventory import Inventory
from roles.scheduler.plugins.dynamic_resources.devices import DeviceId
from roles.scheduler.plugins.dynamic_resources.inventory import Use

CLAIM = "claim "
"""How keys of holdings begin that are claims'."""


def places(uses: Iterable[Use]) -> dict[str, frozenset[Place]]:
    """What an allocation has of devices that Device objects tell of, by node."""
    found: dict[str, set[Place]] = {}
    for (driver, pool, device), _ in uses:
        place = place_of(device) if driver == DRIVER else None
        if place is not None:
            found.setdefault(pool, set()).add(place)
    return {node: frozenset(of_node) for node, of_node in found.items()}


def holding_of(key: str, has: Iterable[Place], inventory: Inventory | None) -> Holding:
    """A claim as a holder of all of its devices, as far as they are known."""
    shares = []
    for place in sorted(has):
        card = inventory.card(*place) if inventory is not None else None
        if card is not None:
            functions = tuple(function for group in card.groups for function in group.functions)
            shares.append(Share(*place, tuple(sorted(card.amounts.items())), functions))
    return Holding(key, tuple(shares))


def by_pods(holdings: Mapping[str, Holding]) -> frozenset[Place]:
    """Devices of which pods have something."""
    return frozenset(share.place for uid, holding in holdings.items() if not uid.startswith(CLAIM) for share in holding.allocation)


def ids(node: str, of_node: Iterable[Place]) -> list[DeviceId]:
    """The same as claims name them."""
    return [(DRIVER, node, name) for place in of_node if (name := device_name(*place))]
