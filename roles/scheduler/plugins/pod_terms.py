"""Terms that pods on nodes bring along (InterPodAffinity): by the labels that they speak of, with how many pods bring them where."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.podinfo import UNIQUE_LABELS, PodInfo, PodShape
from roles.scheduler.cluster.terms import PodTerm
from roles.scheduler.plugins.topology_columns import Pair, pairs_of, places_of

_EMPTY = 256  # terms that nobody brings any more and that are kept, for they come back

Place = tuple[str, Pair | None]


@dataclass(slots=True, eq=False)
class Brought:
    """A term with its weight (0 for required ones), and by slot how many pods bring it. `version` names the state: the same one never
    stands for two."""

    term: PodTerm
    weight: int
    places: list[Place]
    slots: dict[int, int] = field(default_factory=dict)
    version: int = 0


class TermIndex:
    """Terms of one kind, found by a namespace and a label of the pods that they may concern."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, PodTerm], Brought] = {}
        self._at: dict[Place, dict[Brought, None]] = {}
        self._empty: dict[tuple[int, PodTerm], None] = {}
        self._versions = itertools.count(1)
        self._before: dict[Brought, int] | None = None

    def __bool__(self) -> bool:
        return len(self._all) > len(self._empty)

    def __len__(self) -> int:
        return len(self._all)

    def quiet(self, begins: bool) -> None:
        """A what-if that leaves no trace begins, or ends."""
        if not begins:
            for brought, version in (self._before or {}).items():
                brought.version = version
        self._before = {} if begins else None

    def count(self, slot: int, term: PodTerm, weight: int, step: int) -> None:
        """So many pods more (or less) on a slot bring a term."""
        key = (weight, term)
        brought = self._all.get(key)
        if brought is None:
            brought = self._all[key] = Brought(term, weight, self._places(term))
            for place in brought.places:
                self._at.setdefault(place, {})[brought] = None
        if self._before is not None:
            self._before.setdefault(brought, brought.version)
        brought.version = next(self._versions)
        left = brought.slots.get(slot, 0) + step
        if left:
            brought.slots[slot] = left
            self._empty.pop(key, None)
        else:
            del brought.slots[slot]
            if not brought.slots:
                self._empty[key] = None
                self._purge()

    def _purge(self) -> None:
        while len(self._empty) > _EMPTY and self._before is None:
            key = next(iter(self._empty))
            del self._empty[key]
            brought = self._all.pop(key)
            for place in brought.places:
                del self._at[place][brought]
                if not self._at[place]:
                    del self._at[place]

    def _places(self, term: PodTerm) -> list[Place]:
        """Where a term is found: under each label of which whatever it selects has one, in each namespace that it names if it names all."""
        scopes = sorted(term.namespaces) if term.namespace_selector is None else [""]
        at = self._at
        pairs = pairs_of(term.selector, lambda pair: sum(len(at.get((scope, pair), ())) for scope in scopes))
        return [(scope, pair) for scope in scopes for pair in pairs or (None,)]

    def concerning(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> Iterator[Brought]:
        """Terms that select a pod."""
        for scope in (namespace, ""):
            for pair in places_of(labels):
                for brought in self._at.get((scope, pair), ()):
                    if brought.slots and brought.term.matches(namespace, labels, namespace_labels):
                        yield brought


class TermColumns(Columns):
    """Required anti-affinity, and weighted preferences (required affinity among them, under weight 0: its weight is the profile's)."""

    def __init__(self) -> None:
        self.anti = TermIndex()
        self.preferred = TermIndex()
        self.unique = 0  # how many terms on nodes speak of labels that are another on each pod of a template

    def quiet_begins(self) -> None:
        self.anti.quiet(True)
        self.preferred.quiet(True)

    def quiet_ends(self) -> None:
        self.anti.quiet(False)
        self.preferred.quiet(False)

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        self._count(slot, pod.shape, 1)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        self._count(slot, pod.shape, -1)

    def _count(self, slot: int, shape: PodShape, step: int) -> None:
        if not (shape.anti_affinity or shape.affinity or shape.preferred_affinity):
            return
        if speaks_of_unique(shape):
            self.unique += step
        for term in shape.anti_affinity:
            self.anti.count(slot, term, 0, step)
        for term in shape.affinity:
            self.preferred.count(slot, term, 0, step)
        for weight, term in shape.preferred_affinity:
            self.preferred.count(slot, term, weight, step)


def speaks_of_unique(shape: PodShape) -> bool:
    """Whether a term of the shape selects by a label that controllers set to another value on each pod."""
    known: bool | None = shape.memo.get("unique terms")
    if known is None:
        terms = (*shape.anti_affinity, *shape.affinity, *(item.term for item in shape.preferred_affinity))
        known = any(requirement.key in UNIQUE_LABELS for term in terms for requirement in term.selector or ())
        shape.memo["unique terms"] = known
    return known
