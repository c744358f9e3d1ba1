"""Where pods fit, asked of all nodes at once: a row a node, arrays of what is free, of taints, of labels (DS-FIT-01).

The rules are those of `Placeable`, which asks one node, and required anti-affinity, for which all of them count. A table is made once
for a round, and follows the pods that leave in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from koord.accounting.resources import add_into
from koord.api import names
from koord.api.objects import Node, Pod, Taint
from koord.api.selectors import Selector
from roles.descheduler.framework.effects import PAUSE, Pause, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.nodefit import HARD, Placeable, Term, anti_affinity_terms, compiled_affinity, compiled_terms, must_fit, tolerates
from roles.descheduler.nodelabels import NodeLabels
from roles.descheduler.podindex import Alike, PodIndex, asked_for
from roles.descheduler.snapshot import NodeView, PodView, Vector

Rows = Any  # numpy array of bool, one a node
READ_AT_ONCE = 500  # nodes that are read before others get their turn
AT_ONCE = 50  # nodes whose pods are looked at before others get their turn
LIKE_AT_ONCE = 250  # templates of pods
REMEMBERED = 1024  # rules about labels whose nodes are known
TAKING = 128  # of shapes of pods whose nodes are known
ALL = slice(None)
FIRST = 512  # nodes that are asked before the others
HEAD = 16
BLOCKS = (slice(0, FIRST), slice(FIRST, None))
_ENCODER = msgspec.msgpack.Encoder()


class Columns:
    """The nodes of one round. `community` asks for a free pod slot, and of anti-affinity for the pod's own on the node itself; without it
    anti-affinity counts as it does for the scheduler, which would find the pod no other place: in whole domains, that of other pods too."""

    def __init__(self, nodes: Sequence[NodeView] = ()) -> None:
        for _ in self.read(nodes):
            pass

    @classmethod
    def paced(cls, nodes: Sequence[NodeView]) -> Generator[Pause, object, Columns]:
        """The same, made a few nodes at a time, so that others may have their turn."""
        made = cls()
        yield from made.read(nodes)
        return made

    def read(self, nodes: Sequence[NodeView]) -> Iterator[Pause]:
        """Start anew with these nodes; stops after every few of them."""
        self.nodes = list(nodes)
        self.names = [node.name for node in self.nodes]
        self._row = {name: row for row, name in enumerate(self.names)}
        self.labels = NodeLabels(self.nodes)
        self._free: dict[str, Any] = {}
        self._labelled: dict[bytes, Rows] = {}
        self._pods: PodIndex | None = None
        self._promised: dict[int, Vector] = {}
        self._expected: dict[bytes, _Expected] = {}  # by template
        self._expected_apart: list[_Expected] = []  # those that have anti-affinity
        self._keyed: dict[str, set[int]] = {}
        self._places: dict[bytes, bytes] = {}  # by template
        self._apart: dict[bytes, list[tuple[str, list[Alike]]]] = {}  # by template: the pods that its anti-affinity means
        self._rules: dict[bytes, tuple[Term, list[Alike]]] = {}  # anti-affinity of pods, and the pods that have it
        self._rules_by_label: dict[tuple[str, str, str], list[tuple[Term, list[Alike]]]] = {}  # by namespace, and a label that it asks for
        self._kept_apart: tuple[bytes, int, list[_Counted]] = (b"", -1, [])  # as `_besides`
        self._fits: dict[bytes, _Fit] = {}
        self._taking: dict[tuple[bytes, bool, int], _Takers] = {}
        self._left: list[int] = []  # rows that pods have left, in that order
        self._changed_rows: set[int] = set()
        self._besides: tuple[bytes, int, set[int]] = (b"", -1, set())  # the last answer of _beside: for which template, after how many left
        groups = _TaintGroups()
        slots: list[int] = []
        tainted: list[int] = []
        resources: dict[str, None] = {}
        for row, node in enumerate(self.nodes):
            node.watch(self._changed)
            slots.append(node.slots)
            tainted.append(groups.of(node.node))
            resources.update(dict.fromkeys(node.allocatable))
            if row % READ_AT_ONCE == READ_AT_ONCE - 1:
                yield PAUSE
        self._open = np.array([not node.node.spec.unschedulable for node in self.nodes], dtype=bool)
        self._slots, self._tainted = np.array(slots, dtype=np.int64), np.array(tainted, dtype=np.int64)
        self._taints = groups.found
        for name in resources:
            self._free_of(name)
            if len(self.nodes) >= READ_AT_ONCE:
                yield PAUSE

    def row(self, node: str) -> int:
        """The row of a node, by its name."""
        return self._row[node]

    def view_of(self, pod: Pod) -> PodView | None:
        """The pod as its node's snapshot shows it, None for one that is on none of these nodes."""
        row = self._row.get(pod.spec.node_name)
        return None if row is None else next((view for view in self.nodes[row].pods if view.pod is pod), None)

    def rows(self, nodes: Sequence[NodeView]) -> Rows:
        """These nodes and no others."""
        found = np.zeros(len(self.nodes), dtype=bool)
        found[[self._row[node.name] for node in nodes]] = True
        return found

    def learn(self, keys: Iterable[str] = ()) -> Iterator[None]:
        """Look at the labels of all pods, which anti-affinity asks for, or a plugin (`keys`); stops after every few nodes, so that
        others may have their turn. What was not learned is learned at once by the first question that needs it."""
        if self._pods is not None:
            return
        pods = PodIndex()
        for number, node in enumerate(self.nodes):
            pods.add(node.pods)
            if number % AT_ONCE == AT_ONCE - 1:
                yield
        yield from self.know(pods, keys)

    def know(self, pods: PodIndex, keys: Iterable[str] = ()) -> Iterator[None]:
        """The same from the pods of all nodes, which somebody has added up already."""
        keys, topology_keys = set(keys), set[str]()
        for number, alike in enumerate(pods.templates.values()):
            for term in compiled_terms(alike.view):
                keys.update(asked_for(term.selector))
                topology_keys.add(term.topology_key)
                self._rule(term).append(alike)
            if number % LIKE_AT_ONCE == LIKE_AT_ONCE - 1:
                yield
        for number, _ in enumerate(pods.index(keys)):
            if number % LIKE_AT_ONCE == LIKE_AT_ONCE - 1:
                yield
        for key in sorted(topology_keys):
            self._rows_with(key)
            yield
        self._pods = pods

    def _rule(self, term: Term) -> list[Alike]:
        """The pods that have a term."""
        rule = self._rules.get(term.key)
        if rule is None:
            rule = self._rules[term.key] = (term, [])
            asked = next((each for each in term.selector.requirements if each.operator == "In"), None)
            labels = [(asked.key, value) for value in asked.values] if asked is not None else [("", "")]
            for namespace in term.namespaces if term.sure else ():
                for key, value in labels:
                    self._rules_by_label.setdefault((namespace, key, value), []).append(rule)
        return rule[1]

    def matching(self, namespace: str, selector: Selector) -> list[PodView]:
        """Pods of these nodes, in the order of the nodes, that a selector means; those that left in this round too."""
        return self._indexed().matching(namespace, selector)

    def _indexed(self) -> PodIndex:
        if self._pods is None:
            for _ in self.learn():
                pass
        assert self._pods is not None
        return self._pods

    def free(self, handle: Handle) -> Turn:
        """Nobody asks any more about pods."""
        if self._pods is not None:
            yield from free(handle, *self._pods.tables())

    def elsewhere(self, view: PodView, *, community: bool = False, among: Rows | None = None) -> str:
        """The first node but its own that the pod fits, "" when there is none."""
        return self._first(view, community=community, among=among, own=False)

    def fits_one(self, view: PodView, rows: Any) -> bool:
        """Whether one of these nodes, by a few rows, takes the pod by the community's rule; its own one does not count."""
        fits = self._open[rows]
        for _, bad in self._problems(view, community=True, rows=rows):
            fits &= ~bad
        apart, own = self._beside(view), self._row.get(view.pod.spec.node_name, -1)
        return any(row != own and row not in apart for row in rows[fits].tolist())

    def fits_elsewhere(self, view: PodView) -> bool:
        """Whether some node but its own would take the pod by the community's rule: as `elsewhere`, for many pods of few shapes. What
        has fitted a node fits it as long as pods only leave; what has fitted none is asked again of the nodes that pods have left."""
        shape = shape_of(view)
        fit = self._fits.get(shape)
        if fit is None:
            found = self._open.copy()
            for _, bad in self._problems(view, community=True):
                found &= ~bad
            for term in compiled_terms(view):
                found[self._excluded(term, view.pod, itself=True)] = False
            fit = self._fits[shape] = _Fit(np.flatnonzero(found)[:2].tolist(), len(self._left))
        own = self._row.get(view.pod.spec.node_name)
        if any(row != own for row in fit.rows):
            return True
        one = Placeable(view)
        left = dict.fromkeys(self._left[fit.seen :])
        for row in left:
            if row != own and not one.community_unfit(self.nodes[row]):
                fit.rows.append(row)
                return True
        if own not in left:
            fit.seen = len(self._left)
        return False

    def anywhere(self, view: PodView) -> str:
        """The first node that the pod fits by the community's rule, "" when there is none. It needs no room where it is."""
        return self._first(view, community=True, among=None, own=True)

    def _first(self, view: PodView, *, community: bool, among: Rows | None, own: bool) -> str:
        apart = self._beside(view) if community else set(np.flatnonzero(self._kept_out(view)).tolist())
        at = self._row.get(view.pod.spec.node_name, -1)
        stays = own and at >= 0 and (among is None or bool(among[at])) and not Placeable(view).community_unfit(self.nodes[at])
        place = self._places.get(view.template)
        if place is None:
            place = self._places[view.template] = _place(view)
        for block, rows in enumerate(BLOCKS):  # most pods fit one of the first nodes
            for row in self._takers(view, place, block, community=community).among(among):
                if stays and at < row:
                    break
                if row != at and row not in apart:
                    return str(self.names[row])
            if stays and rows.start <= at < (rows.stop or len(self.nodes)):
                return self.names[at]
        return ""

    def _takers(self, view: PodView, place: bytes, block: int, *, community: bool) -> _Takers:
        """Rows that the pod fits apart from what it excludes; asked again for its like as long as no pod leaves or comes."""
        found = self._taking.get((place, community, block))
        if found is None:
            rows = BLOCKS[block]
            fits = self._open[rows].copy()
            for _, bad in self._problems(view, community=community, rows=rows):
                fits &= ~bad
            if len(self._taking) >= TAKING:
                self._taking.clear()
            found = self._taking[place, community, block] = _Takers.of(np.flatnonzero(fits) + rows.start)
        return found

    def why_not(self, view: PodView, among: Rows | None = None, *, community: bool = True) -> Counter[str]:
        """Why the pod fits none of the other nodes: each node's first reason, counted."""
        left = np.ones(len(self.nodes), dtype=bool) if among is None else among.copy()
        if (row := self._row.get(view.pod.spec.node_name)) is not None:
            left[row] = False
        reasons: Counter[str] = Counter()
        if community:
            apart = np.zeros(len(self.nodes), dtype=bool)
            for term in compiled_terms(view):
                apart[self._excluded(term, view.pod)] = True
            beside = ("a pod runs there that the pod's anti-affinity excludes", apart)
        else:
            beside = ("required anti-affinity keeps the pod apart from pods there", self._kept_out(view))
        for reason, bad in (("it is cordoned", ~self._open), beside, *self._problems(view, community=community)):
            if count := int(np.count_nonzero(left & bad)):
                reasons[reason] += count
                left &= ~bad
        return reasons

    # ---------------------------------------------------------------- the rules

    def _problems(self, view: PodView, *, community: bool, rows: Any = ALL) -> Iterator[tuple[str, Rows]]:
        """Reasons with the nodes for which they hold, the cheap ones first as far as the order of the rules allows. What the pod's own
        anti-affinity says is not among them."""
        pod = view.pod
        if (suited := self._suited(pod)) is not None:
            yield "it does not match the pod's node selector or node affinity", ~suited[rows]
        for taint, number in self._untolerated(pod):
            yield f"it has taint {taint.key}, which the pod does not tolerate", self._tainted[rows] == number
        for name, wanted in sorted(must_fit(view.requests).items()):
            yield f"it lacks {name}", self._free_of(name)[rows] < wanted
        if community:
            yield "it has no free pod slot", self._slots[rows] < 1

    def _suited(self, pod: Pod) -> Rows | None:
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        if not pod.spec.node_selector and (affinity is None or affinity.required is None):
            return None
        key = msgspec.json.encode((pod.spec.node_selector, affinity.required if affinity is not None else None))
        found = self._labelled.get(key)
        if found is None:
            if len(self._labelled) >= REMEMBERED:
                self._labelled.clear()
            found = self._labelled[key] = self.labels.suited(pod.spec.node_selector, compiled_affinity(pod))
        return found

    def _untolerated(self, pod: Pod) -> Iterator[tuple[Taint, int]]:
        for number, taints in enumerate(self._taints):
            taint = next((each for each in taints if not tolerates(pod.spec.tolerations, each)), None)
            if taint is not None:
                yield taint, number

    def _beside(self, view: PodView) -> set[int]:
        """Rows of nodes with pods that the pod's anti-affinity excludes, it and its like among them. Pods of one template come one after
        the other."""
        template, left, found = self._besides
        if template == view.template and left == len(self._left):
            return found
        found = self._find_beside(view)
        self._besides = (view.template, len(self._left), found)
        return found

    def _find_beside(self, view: PodView) -> set[int]:
        meant = self._apart.get(view.template)
        if meant is None:
            like = self._indexed().templates.get(view.template)
            meant = self._apart[view.template] = [
                (term.topology_key, [alike for namespace in term.namespaces for alike in self._indexed().alike(namespace, term.selector)])
                for term in compiled_terms(view if like is None else like.view)
            ]
        if not meant:
            return set()
        index = self._indexed()
        view_of, rows, left = index.view, index.rows, self._changed_rows
        found = set[int]()
        for key, some in meant:
            there = {rows[number] for alike in some for number in alike.numbers}
            if not there.isdisjoint(left):
                there = {rows[number] for alike in some for number in alike.numbers if rows[number] not in left or view_of(number).here}
            found |= there & self._rows_with(key)
        return found

    def _kept_out(self, view: PodView) -> Rows:
        """Nodes in a domain of other pods that the pod's required anti-affinity excludes, or whose own excludes the pod."""
        found = np.zeros(len(self.nodes), dtype=bool)
        template, left, counted = self._kept_apart
        if template != view.template or left != len(self._left):
            counted = [self._count(key, some, view.template) for key, some in self._apart_from(view)]
            self._kept_apart = (view.template, len(self._left), counted)
        own = self._row.get(view.pod.spec.node_name, -1) if view.here else -1
        for each in counted:
            codes = self.labels.column(each.key).codes
            there = each.pods[codes]
            if each.itself and own >= 0:
                there = there - (codes == codes[own])  # who leaves is in nobody's way
            found |= (there > 0) & (codes >= 0)
        for key, rows in self._expected_apart_from(view):
            codes = self.labels.column(key).codes
            found |= np.isin(codes, codes[rows]) & (codes >= 0)
        return found

    def _expected_apart_from(self, view: PodView) -> Iterator[tuple[str, list[int]]]:
        """By topology key, the rows where pods are expected that exclude the pod or that it excludes."""
        if not self._expected:
            return
        meta = view.pod.metadata
        for other in self._expected_apart:
            for term in other.terms:
                if meta.namespace in term.namespaces and term.selector.matches(meta.labels):
                    yield term.topology_key, other.rows
        for term in compiled_terms(view):
            for other in self._expected.values() if term.sure else ():
                there = other.view.pod.metadata
                if there.namespace in term.namespaces and term.selector.matches(there.labels):
                    yield term.topology_key, other.rows

    def _apart_from(self, view: PodView) -> list[tuple[str, list[Alike]]]:
        """By topology key, the pods that exclude the pod or that it excludes."""
        index, meta = self._indexed(), view.pod.metadata
        found = [
            (term.topology_key, [alike for namespace in term.namespaces for alike in index.alike(namespace, term.selector)])
            for term in compiled_terms(view)
            if term.sure
        ]
        for label in (("", ""), *meta.labels.items()):
            for term, owners in self._rules_by_label.get((meta.namespace, *label), ()):
                if term.selector.matches(meta.labels):
                    found.append((term.topology_key, owners))
        return found

    def _count(self, key: str, some: list[Alike], template: bytes) -> _Counted:
        column, index = self.labels.column(key), self._indexed()
        numbers = [number for alike in some for number in alike.numbers]
        rows = index.places()[np.array(numbers, dtype=np.int64)] if numbers else np.zeros(0, dtype=np.int64)
        if self._changed_rows:
            here = [row not in self._changed_rows or index.view(number).here for number, row in zip(numbers, rows.tolist(), strict=True)]
            rows = rows[np.array(here, dtype=bool)]
        codes = column.codes[rows]
        pods = np.bincount(codes[codes >= 0], minlength=len(column.values) + 1)
        return _Counted(key, pods, any(alike.template == template for alike in some))

    def _rows_with(self, key: str) -> set[int]:
        """The nodes that have a label."""
        found = self._keyed.get(key)
        if found is None:
            found = self._keyed[key] = set(np.flatnonzero(self.labels.column(key).codes >= 0).tolist())
        return found

    def _excluded(self, term: Term, pod: Pod, *, itself: bool = False) -> list[int]:
        """Rows of nodes with pods that the term excludes. `itself`: the pod is one of them, as it is for other pods like it."""
        found, own = [], pod.metadata.uid
        for namespace in term.namespaces:
            for other in self.matching(namespace, term.selector):
                if other.here and (itself or other.pod.metadata.uid != own):
                    row = self._row[other.pod.spec.node_name]
                    if term.topology_key in self.nodes[row].node.metadata.labels:
                        found.append(row)
        return found

    def counted(self, pod: Pod, *, by_affinity: bool, by_taints: bool) -> Rows:
        """The nodes that a topology spread constraint of the pod counts."""
        found = np.ones(len(self.nodes), dtype=bool)
        if by_affinity and (suited := self._suited(pod)) is not None:
            found &= suited
        for _, number in self._untolerated(pod) if by_taints else ():
            found &= self._tainted != number
        return found

    def fitting(self, view: PodView, among: Rows) -> Rows:
        """Of these nodes those that the pod fits by the rule of Koordinator's plugins, its own left out."""
        found = self._open & among
        for _, bad in self._problems(view, community=False):
            found &= ~bad
        if (row := self._row.get(view.pod.spec.node_name)) is not None:
            found[row] = False
        return found & ~self._kept_out(view) if found.any() else found

    def suited(self, view: PodView, among: Rows) -> Rows:
        """Of these nodes those that are not cordoned and that suit the pod by labels and taints, whatever room they have."""
        found = self._open & among
        if (suited := self._suited(view.pod)) is not None:
            found &= suited
        for _, number in self._untolerated(view.pod):
            found &= self._tainted != number
        return found

    def has_room(self, row: int, wanted: Vector) -> bool:
        """Whether a node has so much left beside its pods, places that are held, and what is promised; "pods" are slots."""
        return all(
            int(self._slots[row] if name == "pods" else self._free_of(name)[row]) >= value
            for name, value in wanted.items()
            if value > 0 and name not in names.COUNTED_BY_CARD
        )

    def expect(self, node: str, view: PodView) -> None:
        """Count a pod that will go to a node in this round: what it requests, and whom it excludes or is excluded by."""
        self.promise(node, view.requests)
        known = self._expected.get(view.template)
        if known is None:
            known = self._expected[view.template] = _Expected(view, [term for term in compiled_terms(view) if term.sure])
            if known.terms:
                self._expected_apart.append(known)
        known.rows.append(self._row[node])

    def promise(self, node: str, requests: Vector) -> None:
        """Count a pod that is expected to go to a node in this round; a negative one is expected no more."""
        row = self._row[node]
        add_into(self._promised.setdefault(row, {}), requests)
        self._fits.clear()
        self._changed(self.nodes[row])

    def _free_of(self, name: str) -> Any:
        found = self._free.get(name)
        if found is None:
            found = self._free[name] = np.array([_free(node, name) for node in self.nodes], dtype=np.int64)
            for row, taken in self._promised.items():
                found[row] -= taken.get(name, 0)
        return found

    def _changed(self, node: NodeView) -> None:
        row = self._row[node.name]
        self._taking.clear()
        taken = self._promised.get(row, {})
        slots = node.slots - taken.get("pods", 0)
        if slots < self._slots[row]:
            self._fits.clear()  # a pod is back
        self._slots[row] = slots
        self._left.append(row)
        self._changed_rows.add(row)
        for name, left in self._free.items():
            rest = _free(node, name) - taken.get(name, 0)
            if rest < left[row]:
                self._fits.clear()  # or one is expected
            left[row] = rest


def _free(node: NodeView, name: str) -> int:
    return node.allocatable.get(name, 0) - node.held(name)


@dataclass(slots=True)
class _Expected:
    """Pods of one template that are expected, and where."""

    view: PodView
    terms: list[Term]  # its required anti-affinity
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Takers:
    """Rows in their order: the first ones as a list, for most questions end there, and the others as an array."""

    head: list[int]
    rest: Any

    @classmethod
    def of(cls, rows: Any) -> _Takers:
        return cls(rows[:HEAD].tolist(), rows[HEAD:])

    def among(self, rows: Rows | None) -> Iterator[int]:
        """Those of them that are among these (None: all)."""
        for row in self.head:
            if rows is None or rows[row]:
                yield row
        yield from (self.rest if rows is None else self.rest[rows[self.rest]]).tolist()


@dataclass(slots=True)
class _Counted:
    """Pods from which a pod is kept apart, by the number of their domain. `itself`: pods of its own template are among them."""

    key: str
    pods: Any
    itself: bool


@dataclass(slots=True)
class _Fit:
    """What is known of pods of one shape: rows of nodes that they fit, two of them at most, for one may be the pod's own; and how many of
    the changes of nodes were looked at."""

    rows: list[int]
    seen: int


def shape_of(view: PodView) -> bytes:
    """What decides where a pod fits, apart from its own node."""
    terms = anti_affinity_terms(view.pod)
    return _place(view) + _ENCODER.encode((terms, terms and view.pod.metadata.namespace))


def _place(view: PodView) -> bytes:
    """What decides where a pod fits, apart from its own node and from other pods."""
    spec, affinity = view.pod.spec, view.pod.spec.affinity
    required = affinity.node_affinity.required if affinity is not None and affinity.node_affinity is not None else None
    return _ENCODER.encode((view.requests, spec.node_selector, required, spec.tolerations))


class _TaintGroups:
    """Distinct sets of hard taints, by number."""

    def __init__(self) -> None:
        self.found: list[tuple[Taint, ...]] = []
        self._numbers: dict[bytes, int] = {}

    def of(self, node: Node) -> int:
        """Which of them a node has; -1: none."""
        taints = tuple(taint for taint in node.spec.taints if taint.effect in HARD)
        if not taints:
            return -1
        key = msgspec.json.encode([(taint.key, taint.value, taint.effect) for taint in taints])
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            self.found.append(taints)
        return self._numbers[key]
