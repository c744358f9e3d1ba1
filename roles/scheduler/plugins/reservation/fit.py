"""Whether a pod fits a node with the help of one reservation (SCH-RSV-04, SCH-RSV-17). Amounts in base units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api import names
from roles.scheduler.framework.restoring import RESTRICTED
from roles.scheduler.plugins.reservation.forms import as_held
from roles.scheduler.plugins.reservation.ledger import Held

Free = Mapping[str, float]


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
