"""Topology spread as a calculation: which nodes form domains, and how many pods each domain gives up. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import ceil
from typing import Any

import msgspec
import numpy as np

from koord.api.objects import Node, Pod, TopologySpreadConstraint
from koord.api.selectors import Requirement, Selector, SelectorError, from_label_selector
from roles.descheduler.columns import Columns
from roles.descheduler.nodefit import Placeable, compiled_affinity, untolerated
from roles.descheduler.podindex import PodIndex
from roles.descheduler.snapshot import PodView

FEW = 8  # domains of which every subset may be remembered
FEW_ROWS = 64  # nodes that are asked by themselves
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Domains:
    """The values of a topology key where the successor may come, and those where it may not. Nodes without the key are closed."""

    key: str
    open: frozenset[str]
    closed: frozenset[str]

    def refuse(self, node: Node) -> str:
        """Why the successor must not come to a node, "" when it may."""
        if node.metadata.labels.get(self.key) in self.open:
            return ""
        return f'node "{node.metadata.name}" is closed to it by its topology spread over {self.key}'


@dataclass(slots=True)
class Domain:
    """The nodes with one value of the topology key, by the value's number, and the matching pods on them, by their numbers."""

    number: int
    pods: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Uneven:
    """Domains by size, how many there are (`domains` lacks some of the empty ones), and how many pods they have."""

    domains: list[Domain]
    count: int
    size: int


class Spread:
    """A constraint as one pod has it: matchLabelKeys are merged into the selector, and the pod's own node rules decide which nodes
    count. Raises SelectorError."""

    def __init__(self, constraint: TopologySpreadConstraint, pod: Pod) -> None:
        self.pod = pod
        self._rule = compiled_affinity(pod)
        self.topology_key = constraint.topology_key
        self.max_skew = constraint.max_skew
        self.policy = constraint.when_unsatisfiable
        self.min_domains = constraint.min_domains or 1
        self.by_affinity = (constraint.node_affinity_policy or "Honor") == "Honor"
        self.by_taints = (constraint.node_taints_policy or "Ignore") == "Honor"
        selector = from_label_selector(constraint.label_selector)
        labels = pod.metadata.labels
        keyed = tuple(Requirement(key, "In", frozenset({labels[key]})) for key in constraint.match_label_keys if key in labels)
        self.selector = Selector(selector.requirements + keyed, selector.nothing)
        self.counts_itself = self.selector.matches(labels)
        spec, required = pod.spec, None
        if self.by_affinity and spec.affinity is not None and spec.affinity.node_affinity is not None:
            required = spec.affinity.node_affinity.required
        #: two constraints of which this is the same count the same nodes
        self.nodes_rule = _ENCODER.encode(
            (
                self.topology_key, self.by_affinity and spec.node_selector, required,
                self.by_taints and spec.tolerations,
            )
        )  # fmt: skip
        self.identity = (
            self.nodes_rule, self.max_skew, self.min_domains, constraint.when_unsatisfiable,
            frozenset(self.selector.requirements), self.selector.nothing,
        )  # fmt: skip

    def counts(self, node: Node) -> bool:
        """Whether the node is part of a domain."""
        if self.by_affinity and Placeable.affinity_problem(self.pod, node, self._rule):
            return False
        return not self.by_taints or untolerated(self.pod, node) is None

    def most(self, domains: int) -> int | None:
        """How many pods a domain may have when there are so many domains: with fewer than minDomains the scheduler takes one to be
        empty, and would find no place for a pod that makes a domain larger than maxSkew. None: any number."""
        return self.max_skew if domains < self.min_domains else None

    def reason(self) -> str:
        """Why a pod leaves."""
        return f"pods are spread over {self.topology_key} by more than {self.max_skew}"


def compiled(view: PodView) -> tuple[Spread, ...]:
    """The pod's constraints; remembered with what else is known of the pod. One whose selector cannot be read is left out."""
    known = view.known
    if known is not None and known.spreads is not None:
        found: tuple[Spread, ...] = known.spreads
        return found
    read = []
    for constraint in view.pod.spec.topology_spread_constraints:
        with contextlib.suppress(SelectorError):
            read.append(Spread(constraint, view.pod))
    found = tuple(read)
    if known is not None:
        known.spreads = found
    return found


def spreads(pod: Pod) -> bool:
    """Whether the pod has topology spread that must hold."""
    return any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints)


@dataclass(slots=True)
class DomainMap:
    """The domains of the nodes that count, by number in the order of their values."""

    codes: Any
    """Of each node the number of its domain; -1: it does not count."""
    all_rows: Any
    order: Any
    """Rows of the nodes that count, domain by domain."""
    ends: Any
    """Where in it each domain begins, and the last one ends."""
    below: dict[tuple[int, ...], Any] = field(default_factory=dict)
    """Rows of the other domains, by the domains that are left out."""
    masks: dict[int, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def rows(self, number: int) -> Any:
        """The rows of the nodes of a domain."""
        return self.order[self.ends[number] : self.ends[number + 1]]

    def mask(self, number: int) -> Any:
        """The same as an array of bool."""
        found = self.masks.get(number)
        if found is None:
            found = np.zeros(len(self.codes), dtype=bool)
            found[self.rows(number)] = True
            if len(self) <= FEW:
                self.masks[number] = found
        return found

    @classmethod
    def of(cls, values: Any, counts: Any) -> DomainMap:
        """From the number of each node's value, -1 for none, and whether the node counts."""
        found = np.where(counts, values, -1)
        there = np.unique(found[found >= 0])
        numbers = np.full(int(values.max(initial=-1)) + 2, -1, dtype=np.int64)  # the last one is that of -1
        numbers[there] = np.arange(len(there))
        codes = numbers[found]
        order = np.argsort(codes, kind="stable")[np.count_nonzero(codes < 0) :]
        return cls(codes, codes >= 0, order, np.searchsorted(codes[order], np.arange(len(there) + 1)))


class DomainMaps:
    """Which nodes form which domains. Constraints that differ in their selectors only share a map."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._maps: dict[bytes, DomainMap] = {}

    def uneven(self, spreads: Sequence[tuple[Spread, Sequence[int]]], pods: PodIndex) -> list[Uneven | None]:
        """Of each constraint its domains, None where they differ by no more than maxSkew. With a constraint come the numbers of the
        matching pods in an index whose rows are those of the columns. Pods whose eviction was accepted do not count.

        All of them are counted at once: a workload has few pods, and there are many workloads."""
        of_map: dict[bytes, list[int]] = {}
        for position, (spread, _) in enumerate(spreads):
            of_map.setdefault(spread.nodes_rule, []).append(position)
        found: list[Uneven | None] = [None] * len(spreads)
        for positions in of_map.values():
            self._uneven([spreads[each] for each in positions], positions, pods, found)
        return found

    def _uneven(
        self, spreads: Sequence[tuple[Spread, Sequence[int]]], positions: Sequence[int], pods: PodIndex, found: list[Uneven | None]
    ) -> None:
        known = self.of(spreads[0][0])
        lengths = [len(numbers) for _, numbers in spreads]
        numbers = np.fromiter(chain.from_iterable(each for _, each in spreads), dtype=np.int64, count=sum(lengths))
        codes = known.codes[pods.places()[numbers]]
        counts = codes >= 0
        if pods.accepted:
            counts &= ~np.isin(numbers, list(pods.accepted))
        keys = (np.repeat(np.arange(len(spreads)), lengths) * len(known) + codes)[counts]
        order = np.argsort(keys, kind="stable")
        keys, numbers = keys[order], numbers[counts][order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        if not len(starts):
            return
        sizes = np.diff(starts, append=len(keys))
        owners, there = np.divmod(keys[starts], len(known))
        bounds = np.searchsorted(owners, np.arange(len(spreads) + 1))
        some = np.flatnonzero(bounds[1:] > bounds[:-1])
        largest, least = np.maximum.reduceat(sizes, bounds[some]), np.minimum.reduceat(sizes, bounds[some])
        least[bounds[some + 1] - bounds[some] < len(known)] = 0
        uneven = largest - least > np.array([spreads[each][0].max_skew for each in some.tolist()])
        numbered, begins, many, domains, ends = numbers.tolist(), starts.tolist(), sizes.tolist(), there.tolist(), bounds.tolist()
        for owner in some[uneven].tolist():
            rows = range(ends[owner], ends[owner + 1])
            filled = [Domain(domains[each], numbered[begins[each] : begins[each] + many[each]]) for each in rows]
            found[positions[owner]] = self._with_empty(filled, known)

    @staticmethod
    def _with_empty(filled: list[Domain], known: DomainMap) -> Uneven:
        """Of the empty domains only as many are made as pods could move into, for with a key that every node has another value of
        nearly all are empty."""
        size = sum(len(domain.pods) for domain in filled)
        if len(filled) < len(known):
            there = {domain.number for domain in filled}
            filled += [Domain(code) for code in islice((code for code in range(len(known)) if code not in there), size + 1)]
        filled.sort(key=_by_size)
        return Uneven(filled, len(known), size)

    def smaller(self, spread: Spread, filled: Sequence[Domain], average: float) -> Any:
        """The rows of the nodes whose domains have fewer pods than the average."""
        known = self.of(spread)
        full = tuple(sorted(domain.number for domain in filled if len(domain.pods) >= average))
        found = known.below.get(full)
        if found is None:
            found = known.all_rows.copy()
            for number in full:
                found[known.rows(number)] = False
            if len(known) <= FEW:
                known.below[full] = found
        return found

    def open_to(self, spread: Spread, views: Sequence[PodView]) -> Any:
        """The rows of the nodes to which the pod may come beside these matching ones without making domains differ by more than maxSkew."""
        known = self.of(spread)
        found = known.all_rows.copy()
        if not len(known):
            return found
        sizes: dict[int, int] = {}
        for view in views:
            code = int(known.codes[self.columns.row(view.pod.spec.node_name)])
            if code >= 0:
                sizes[code] = sizes.get(code, 0) + 1
        least = min(sizes.values()) if len(sizes) == len(known) and len(sizes) >= spread.min_domains else 0
        for code, size in sizes.items():
            if size + spread.counts_itself - least > spread.max_skew:
                found[known.rows(code)] = False
        return found

    def takes(self, spread: Spread, view: PodView, number: int) -> bool:
        """Whether a node of a domain takes the pod by the community's rule."""
        known = self.of(spread)
        rows = known.rows(number)
        if len(rows) <= FEW_ROWS:
            return self.columns.fits_one(view, rows)
        return bool(self.columns.elsewhere(view, community=True, among=known.mask(number)))

    def of(self, spread: Spread) -> DomainMap:
        """The domains of a constraint."""
        found = self._maps.get(spread.nodes_rule)
        if found is None:
            counts = self.columns.counted(spread.pod, by_affinity=spread.by_affinity, by_taints=spread.by_taints)
            found = self._maps[spread.nodes_rule] = DomainMap.of(self.columns.labels.column(spread.topology_key).codes, counts)
        return found


def _by_size(domain: Domain) -> tuple[int, int]:
    return len(domain.pods), domain.number


def admitted(maps: DomainMaps, view: PodView) -> Any:
    """The rows of the nodes where the pod's constraints that must hold would let it be put once it has left; None if it has none.

    Pods whose eviction was accepted do not count. A constraint that cannot be read admits no node, as the scheduler has it."""
    pod, found = view.pod, None
    for constraint in pod.spec.topology_spread_constraints:
        if constraint.when_unsatisfiable != "DoNotSchedule":
            continue
        try:
            spread = Spread(constraint, pod)
        except SelectorError:
            return np.zeros(len(maps.columns.nodes), dtype=bool)
        like = maps.columns.matching(pod.metadata.namespace, spread.selector)
        rows = maps.open_to(spread, [one for one in like if one.here and not one.accepted and one.pod is not pod])
        found = rows if found is None else found & rows
    return found


def moves(
    domains: list[Domain], average: float, max_skew: int, most: int | None = None, takes: Callable[[int, int], bool] | None = None
) -> list[int]:
    """Pods that leave, taken from the ends of the lists. `domains` are sorted by size; their lists are changed as if the pods moved.

    `most` is how many pods a domain may be given up to; None: any number. `takes` says whether a pod finds a node in a domain, by their
    numbers: what no pod can go to stays small, however uneven that is."""
    moved: list[int] = []
    small, large = 0, len(domains) - 1
    while small < large:
        size_large, size_small = len(domains[large].pods), len(domains[small].pods)
        if size_large <= average:
            large -= 1
            continue
        skew = size_large - size_small
        count = min(ceil(size_large - average), ceil(average - size_small), ceil((skew - max_skew) / 2))
        if most is not None:
            count = min(count, most - size_small)
        if skew <= max_skew or count <= 0:
            small += 1
            continue
        given = domains[large].pods[-count:]
        if takes is not None and not takes(given[-1], domains[small].number):
            stays = size_small + max_skew  # the scheduler counts it, and lets no other domain have more
            most = stays if most is None else min(most, stays)
            small += 1
            continue
        moved += given
        domains[large].pods = domains[large].pods[:-count]
        domains[small].pods = domains[small].pods + given
    return moved
