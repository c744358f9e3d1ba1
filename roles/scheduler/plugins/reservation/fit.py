"""Whether a pod fits a node with the help of one reservation (SCH-RSV-04, SCH-RSV-17), which of several it gets, and what nodes score for
it (SCH-RSV-07). Amounts in base units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from koord.api import names
from roles.scheduler.framework.normalize import MAX_SCORE
from roles.scheduler.framework.restoring import RESTRICTED
from roles.scheduler.plugins.reservation.forms import as_held
from roles.scheduler.plugins.reservation.ledger import Held

Free = Mapping[str, float]
_STEP = 128.0  # above any score: raw values of ordered reservations are (a number above 0) * 128 + score
_FURTHEST = 1 << 43  # orders beyond count as this; keeps raw values exact


def lacking(wanted: Mapping[str, int], free: Free) -> tuple[str, ...]:
    """Resources that the node alone does not have."""
    return tuple(name for name, amount in wanted.items() if amount > free.get(name, 0.0))


def by_node(resources: Sequence[str]) -> tuple[str, ...]:
    """The same as reasons."""
    return tuple(f"Insufficient {name} by node" for name in resources)


def refusals(wanted: Mapping[str, int], held: Held, free: Free, *, named: bool, node_too: bool = True) -> tuple[str, ...]:
    """Why a pod does not fit with a reservation, () when it does.

    `free` is what the node has beside all reservations and pods. With `named`, the pod asked for this reservation by name: amounts are
    told. `node_too` False looks at the reservation alone.
    """
    reasons: list[str] = []
    if node_too:
        reasons.extend(by_node([name for name, amount in wanted.items() if amount > free.get(name, 0.0) + held.left(name)]))
    if held.terms.policy == RESTRICTED:
        reasons.extend(_restricted(wanted, held, named=named))
    return tuple(reasons)


def _restricted(wanted: Mapping[str, int], held: Held, *, named: bool) -> list[str]:
    """What a Restricted reservation holds too little of."""
    terms = held.terms
    reasons: list[str] = []
    for name, amount in as_held(wanted, terms.allocatable).items():
        if name in terms.restricted and amount > held.restricted_left(name):
            text = f"Reservation(s) Insufficient {name}"
            if named:
                capacity = terms.allocatable.get(name, 0) - terms.inner.get(name, 0)
                text += f", requested: {amount}, used: {held.allocated.get(name, 0)}, capacity: {capacity}"
            reasons.append(text)
    pods = terms.allocatable.get(names.RESOURCE_PODS)
    if pods is not None and names.RESOURCE_PODS in terms.restricted and len(held.owners) + 1 > pods:
        reasons.append("Reservation(s) Too many pods")
    return reasons


def uses(wanted: Mapping[str, int], held: Held) -> bool:
    """Whether a pod requests anything that the reservation holds."""
    return any(name in held.terms.allocatable for name in as_held(wanted, held.terms.allocatable))


def score(amounts: Mapping[str, int], held: Held) -> int:
    """How full the reservation gets, 0..100: the floored mean over what it holds; 0 for a resource of which there is too little."""
    return share(amounts, held, held.taken)


def share(amounts: Mapping[str, int], held: Held, taken: Mapping[str, int]) -> int:
    """The same beside what is taken of it."""
    amounts = as_held(amounts, held.terms.allocatable)
    parts = [
        100 * used // amount if used <= amount else 0
        for name, amount in held.terms.allocatable.items()
        if amount > 0
        for used in (amounts.get(name, 0) + taken.get(name, 0),)
    ]
    return sum(parts) // len(parts) if parts else 0


def pick(amounts: Mapping[str, int], candidates: Sequence[Held]) -> Held:
    """The candidate with the smallest order if any has one, else the one that the pod fills best. Ties go by name."""
    ordered = [held for held in candidates if held.terms.order]
    if ordered:
        return min(ordered, key=lambda held: (held.terms.order, held.terms.name))
    return min(candidates, key=lambda held: (-score(amounts, held), held.terms.name))


def raw(amounts: Mapping[str, int], held: Held) -> float:
    """The raw node score of a nominated reservation; smaller orders come out higher, above all that have none."""
    points = float(score(amounts, held))
    order = held.terms.order
    if not order:
        return points
    return (float(_FURTHEST) - max(-_FURTHEST + 1, min(order, _FURTHEST - 1))) * _STEP + points


class ByOrder:
    """The node with the smallest order counts as 1000 points; all are brought to 0..100 in proportion to the highest."""

    ignored: float | None = None

    def apply(self, raw: Any, low: float, high: float) -> Any:
        if high <= 0:
            return raw * 0.0
        points = np.mod(raw, _STEP)
        if high < _STEP:
            return np.floor(raw * MAX_SCORE / high)
        first = np.floor_divide(raw, _STEP) == high // _STEP
        return np.where(first, MAX_SCORE, np.floor(points * MAX_SCORE / 1000.0))


BY_ORDER = ByOrder()
