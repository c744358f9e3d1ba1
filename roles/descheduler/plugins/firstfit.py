"""The first node, in a given order, that a pod fits: what plugins with an order of nodes ask for every pod of a cluster. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from roles.descheduler.columns import Columns
from roles.descheduler.relief import CANDIDATES, Ceiling, Relief
from roles.descheduler.snapshot import NodeView, PodView, Vector
from roles.descheduler.spreading import spreads

PLACES = 32  # targets that a migration may choose from
_ANY = Ceiling()


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Targets with room for pods of a shape, by their places among those that suit it. `more`: perhaps there are others behind."""

    places: list[int]
    names: list[str]
    more: bool


class FirstFit:
    """Targets in their order. Room on a target only gets less (until `give_back`), so a pod's search begins where the search for the last
    pod of its shape has ended, and all searches together cost one pass for each shape.

    `labels`: node selectors, affinity, taints and cordons count too; without, room alone does."""

    def __init__(self, columns: Columns, targets: Sequence[NodeView], *, labels: bool) -> None:
        self._columns = columns
        self._labels = labels
        self._rows = np.array([columns.row(target.name) for target in targets], dtype=np.int64)
        self._among = columns.rows(targets)
        self._ends: dict[bytes, tuple[Any, int]] = {}  # shape -> rows that suit it, and how many of them are known to be full
        self._ahead: dict[bytes, _Ahead] = {}
        self._tables: dict[bytes, tuple[tuple[str, int], dict[str, Ceiling]]] = {}  # by shape, the last one

    def of(self, view: PodView, wanted: Vector) -> str:
        """The first target with `wanted` left (base units; "pods" is slots) that suits the pod, "" when there is none."""
        shape = self._shape(view, wanted)
        known = self._ends.get(shape)
        rows, start = known if known is not None else (self._suited(view), 0)
        for end in range(start, len(rows)):
            if self._columns.has_room(int(rows[end]), wanted):
                self._ends[shape] = (rows, end)
                return self._columns.names[int(rows[end])]
        self._ends[shape] = (rows, len(rows))
        return ""

    def several(self, view: PodView, wanted: Vector, first: str, most: int) -> list[str]:
        """`first`, which `of` has answered, and the next targets with `wanted` left that suit the pod, `most` of them at most."""
        shape = self._shape(view, wanted)
        rows, end = self._ends.get(shape) or (self._suited(view), 0)
        ahead = self._ahead.get(shape)
        if ahead is None or (ahead.more and len(ahead.places) - bisect_left(ahead.places, end) < most):
            wide = 2 * most  # those that come next are there already
            with_room = (place for place in range(end, len(rows)) if self._columns.has_room(int(rows[place]), wanted))
            found = list(islice(with_room, wide))
            ahead = self._ahead[shape] = _Ahead(found, [self._columns.names[int(rows[place])] for place in found], len(found) == wide)
        start = bisect_left(ahead.places, end)
        return [first, *(name for name in ahead.names[start : start + most] if name != first)][:most]

    def relief(self, view: PodView, wanted: Vector, first: str) -> Relief:
        """That a migration of the pod may end on some of the targets only; `first` is what `of` has answered. Pods of a shape share the
        table of targets until the first one is full: it may be long."""
        most = CANDIDATES if spreads(view.pod) else PLACES
        key, shape = (first, most), self._shape(view, wanted)
        known = self._tables.get(shape)
        if known is None or known[0] != key:
            known = self._tables[shape] = (key, dict.fromkeys(self.several(view, wanted, first, most), _ANY))
        return Relief(view.usage or {}, known[1], view.is_prod)

    def take(self, target: str, requests: Vector) -> None:
        """A pod is expected there."""
        self._columns.promise(target, {**requests, "pods": 1})

    def give_back(self, places: Iterable[tuple[str, Vector]]) -> None:
        """Pods are expected there no more."""
        for target, requests in places:
            self._columns.promise(target, {name: -value for name, value in {**requests, "pods": 1}.items()})
        self._ends.clear()
        self._ahead.clear()
        self._tables.clear()

    def _suited(self, view: PodView) -> Any:
        if not self._labels:
            return self._rows
        suited = self._columns.suited(view, self._among)
        return self._rows[suited[self._rows]]

    def _shape(self, view: PodView, wanted: Vector) -> bytes:
        if not self._labels:
            return msgspec.json.encode(wanted)
        spec = view.pod.spec
        return msgspec.json.encode((wanted, spec.node_selector, spec.affinity.node_affinity if spec.affinity else None, spec.tolerations))
