"""How far a calculation is followed: less on an abnormal node (BEY-ABN-01), and slowly where smoothing is asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from koord.api.quantity import QuantityError, multiply_base, parse_milli
from koord.decisions.record import Term
from roles.manager.noderesource import batch, mid
from roles.manager.noderesource.model import Contribution, ZoneAmounts

NAMES = frozenset((*batch.NAMES, *mid.NAMES))
UNKNOWN_AGE = 60.0  # seconds that are taken to have passed since a write that this process did not make


def lowered(contribution: Contribution, penalty: int) -> Contribution:
    """Batch and Mid of a node that is trusted less by `penalty` percent; everything else as it is."""
    if not penalty or not NAMES & contribution.resources.keys():
        return contribution
    share = (100 - penalty) / 100
    resources = {name: multiply_base(amount, share) if name in NAMES else amount for name, amount in contribution.resources.items()}
    zones = {
        zone: {name: multiply_base(amount, share) if name in NAMES else amount for name, amount in amounts.items()}
        for zone, amounts in contribution.zones.items()
    }
    term = Term(f"{contribution.plugin}.penalty", penalty, "the node is abnormal: what is left is lowered by so many percent", "percent")
    message = f"{contribution.message}; lowered by {penalty}% while the node is abnormal"
    return replace(contribution, resources=resources, zones=zones, reasons=lambda: (*contribution.terms, term), message=message)


def smoothed(
    amounts: Mapping[str, int], present: Mapping[str, str | int | float], half_life: float, seconds: float | None
) -> dict[str, int]:
    """Batch and Mid on their way from what stands on the node up to what was calculated: half of the way in `half_life` seconds.

    What shrinks is taken over at once: it is not there any more. `seconds` is the time since the last write, None when this
    process made none. 0 as half-life switches smoothing off; a resource that is not on the node yet is taken over at once.
    """
    if half_life <= 0:
        return dict(amounts)
    left = 0.5 ** (max(UNKNOWN_AGE if seconds is None else seconds, 0.0) / half_life)
    found = {}
    for name, amount in amounts.items():
        found[name] = amount
        if name in NAMES and name in present:
            try:
                before = parse_milli(present[name]) / 1000
            except QuantityError:
                continue
            found[name] = min(amount, max(round(amount + (before - amount) * left), 0))
    return found


def share_of(zones: ZoneAmounts, eased: Mapping[str, int], calculated: Mapping[str, int]) -> ZoneAmounts:
    """Zones with the share of each amount that the node takes over."""
    return {
        zone: {name: amount * eased[name] // calculated[name] if calculated.get(name) else amount for name, amount in amounts.items()}
        for zone, amounts in zones.items()
    }
