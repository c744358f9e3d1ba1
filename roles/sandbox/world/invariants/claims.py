"""Claims of devices: each device has one owner, and a claim ends with its pod."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.deviceslices import DRIVER, place_of
from roles.sandbox.world.invariants.base import CLAIM, DEVICE_ALLOCATED, POD, Invariant, Obj, annotations_of, finished, node_of
from roles.sandbox.world.invariants.placement import cards_used

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roles.sandbox.world.history import Entry, History

Card = tuple[str, str, int]
"""Node, type and minor."""


def claimed(history: History) -> dict[Card, list[str]]:
    """Who has each card by a claim."""
    owners: dict[Card, list[str]] = defaultdict(list)
    for key, claim in history.of(CLAIM).items():
        for one in _results(claim):
            place = place_of(one["device"]) if one["driver"] == DRIVER else None
            if place is not None:
                owners[one["pool"], *place].append(key)
    return owners


def _results(claim: Obj) -> list[Obj]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


class ClaimedOnce(Invariant):
    """No device is allocated to two claims, or to a claim while pods have a part of it; a claim of a pod that is gone is given back."""

    hears = frozenset({CLAIM, POD})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == CLAIM and entry.new is not None and _results(entry.new) != _results(entry.old or {}):
            yield from self._shared({one["pool"] for one in _results(entry.new)})
        elif entry.bucket == POD and DEVICE_ALLOCATED in annotations_of(entry.new) and node_of(entry.new) != node_of(entry.old):
            yield from self._shared({node_of(entry.new)})

    def _shared(self, nodes: Iterable[str]) -> Iterator[str]:
        used = cards_used(pod for node in nodes for pod in self.pods_of(node))
        for card, claims in claimed(self.history).items():
            if card[0] in nodes and (len(claims) > 1 or used.get(card)):
                node, kind, minor = card
                yield f"{kind} {minor} of {node} is allocated to {', '.join(claims)}, and {used.get(card, 0)} % of it to pods"

    def end(self) -> Iterator[str]:
        alive = {pod["metadata"]["uid"] for pod in self.history.of(POD).values() if not finished(pod)}
        for key, claim in sorted(self.history.of(CLAIM).items()):
            gone = [one["name"] for one in (claim.get("status") or {}).get("reservedFor") or () if one["uid"] not in alive]
            owners = [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or ()]
            if gone:
                yield f"claim {key} is reserved for {', '.join(gone)}, which is gone"
            elif owners and _results(claim) and not alive.intersection(owners):
                yield f"claim {key} has devices, and its pod is gone"
