"""What a pod wants of reservations, and whether one reservation is it (SCH-RSV-03, SCH-RSV-09)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from koord.api import names
from koord.api.annotations import parse_exact_match_reservation, parse_reservation_affinity
from roles.scheduler.cluster.podinfo import PodShape
from roles.scheduler.cluster.terms import NodeTerm, node_term
from roles.scheduler.cluster.tolerations import HARD, UNSCHEDULABLE_TAINT, Toleration, compile_tolerations, first_untolerated
from roles.scheduler.plugins.reservation.forms import as_held
from roles.scheduler.plugins.reservation.terms import Terms

_MEMO = "Reservation/affinity"

NAME = "name"
UNSCHEDULABLE = "unschedulable"
AFFINITY = "affinity"
EXACT = "exact match"
TAINT = "taint "  # followed by the taint


class ReservationAffinity(NamedTuple):
    """The pod side. `required`: the pod runs in a reservation or not at all. `exact` are the resources whose amounts must be equal, None
    for none. `error` says which annotation cannot be read."""

    required: bool = False
    name: str = ""
    selector: Mapping[str, str] = {}
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    exact: tuple[str, ...] | None = None
    ignored: bool = False
    error: str = ""

    @property
    def by_labels(self) -> bool:
        """Whether labels of reservations or nodes decide."""
        return bool(self.selector) or self.terms is not None


def affinity_of(shape: PodShape) -> ReservationAffinity:
    """What pods of a shape want; read once."""
    known: ReservationAffinity | None = shape.memo.get(_MEMO)
    if known is None:
        known = shape.memo[_MEMO] = _read(shape)
    return known


def _read(shape: PodShape) -> ReservationAffinity:
    ignored = shape.labels.get(names.LABEL_POD_RESERVATION_IGNORED) == "true"
    try:
        affinity: Any = parse_reservation_affinity(shape.annotations)
        exact = parse_exact_match_reservation(shape.annotations)
    except ValueError as error:
        return ReservationAffinity(ignored=ignored, error=str(error))
    if affinity is None:
        return ReservationAffinity(exact=exact, ignored=ignored)
    terms = None
    if affinity.required is not None:
        terms = tuple(node_term(term) for term in affinity.required.reservation_selector_terms)
    tolerations = compile_tolerations(affinity.tolerations)
    return ReservationAffinity(True, affinity.name, affinity.reservation_selector, terms, tolerations, exact, ignored)


def objection(affinity: ReservationAffinity, amounts: Mapping[str, int], terms: Terms, node_labels: Mapping[str, str]) -> str:
    """Why a pod of an owner does not get a reservation: "" when it does, else one of the words above, the first that applies.

    `amounts` are the pod's requests. With a name nothing but the name and the exact match is looked at.
    """
    if affinity.name:
        if affinity.name != terms.name:
            return NAME
        return "" if _is_exact(affinity, amounts, terms) else EXACT
    if (terms.unschedulable or terms.deleting) and not any(t.tolerates(UNSCHEDULABLE_TAINT) for t in affinity.tolerations):
        return UNSCHEDULABLE
    if affinity.required:
        taint = first_untolerated(terms.taints, affinity.tolerations, HARD)
        if taint is not None:
            return f"{TAINT}{taint}"
        if affinity.by_labels and not _selected(affinity, terms, node_labels):
            return AFFINITY
    return "" if _is_exact(affinity, amounts, terms) else EXACT


def _selected(affinity: ReservationAffinity, terms: Terms, node_labels: Mapping[str, str]) -> bool:
    labels = {**node_labels, **terms.labels}
    if any(labels.get(key) != value for key, value in affinity.selector.items()):
        return False
    return affinity.terms is None or any(term.matches(terms.name, labels) for term in affinity.terms)


def _is_exact(affinity: ReservationAffinity, amounts: Mapping[str, int], terms: Terms) -> bool:
    """A resource that both sides lack says nothing; the ones after it still count."""
    if affinity.exact is None:
        return True
    asked = as_held(amounts, terms.allocatable)
    return all((asked if name in terms.allocatable else amounts).get(name, 0) == terms.allocatable.get(name, 0) for name in affinity.exact)
