"""Topology spread as a calculation: which nodes form domains, and how many pods each domain gives up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    """The nodes with one value of the topology key, by that value, and the matching pods on them."""

    value: str
    pods: list[PodView] = field(default_factory=list)


class Spread:
    """A constraint as one pod has it: matchLabelKeys are merged into the selector, and the pod's own node rules decide which nodes
    count. Raises SelectorError."""

    def __init__(self, constraint: TopologySpreadConstraint, pod: Pod) -> None:
        self._pod = pod
        self._rule = compiled_affinity(pod)
        self.topology_key = constraint.topology_key
        self.max_skew = constraint.max_skew
        self.min_domains = constraint.min_domains or 1
        self._by_affinity = (constraint.node_affinity_policy or "Honor") == "Honor"
        self._by_taints = (constraint.node_taints_policy or "Ignore") == "Honor"
        selector = from_label_selector(constraint.label_selector)
        labels = pod.metadata.labels
        keyed = tuple(Requirement(key, "In", frozenset({labels[key]})) for key in constraint.match_label_keys if key in labels)
        self.selector = Selector(selector.requirements + keyed, selector.nothing)
        self.counts_itself = self.selector.matches(labels)
        spec, required = pod.spec, None
        if self._by_affinity and spec.affinity is not None and spec.affinity.node_affinity is not None:
            required = spec.affinity.node_affinity.required
        #: two constraints of which this is the same count the same nodes
        self.nodes_rule = _ENCODER.encode(
            (
                self.topology_key, self._by_affinity and spec.node_selector, required,
                self._by_taints and spec.tolerations,
            )
        )  # fmt: skip
        self.identity = (
            self.nodes_rule, self.max_skew, self.min_domains, constraint.when_unsatisfiable,
            frozenset(self.selector.requirements), self.selector.nothing,
        )  # fmt: skip

    def counts(self, node: Node) -> bool:
        """Whether the node is part of a domain."""
        if self._by_affinity and Placeable.affinity_problem(self._pod, node, self._rule):
            return False
        return not self._by_taints or untolerated(self._pod, node) is None

    def most(self, domains: int) -> int | None:
        """How many pods a domain may have when there are so many domains: with fewer than minDomains the scheduler takes one to be
        empty, and would find no place for a pod that makes a domain larger than maxSkew. None: any number."""
        return self.max_skew if domains < self.min_domains else None

    def reason(self) -> str:
        """Why a pod leaves."""
        return f"pods are spread over {self.topology_key} by more than {self.max_skew}"


def spreads(pod: Pod) -> bool:
    """Whether the pod has topology spread that must hold."""
    return any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints)


@dataclass(slots=True)
class DomainMap:
    """The domains of the nodes that count: rows of a table by value, in the order of the values, and each node's value by its row, None
    for one that does not count."""

    rows: dict[str, Any]
    all_rows: Any
    value_of: list[str | None]
    below: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """Rows of the other domains, by the domains that are left out."""


class DomainMaps:
    """Which nodes form which domains. Constraints that differ in their selectors only share a map."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._maps: dict[bytes, DomainMap] = {}

    def filled(self, spread: Spread, pods: PodIndex, numbers: Sequence[int]) -> tuple[list[Domain], int, int]:
        """Domains by size, the number of all domains and of the pods in them; `numbers` are those of the matching pods in an index whose
        rows are those of the columns. Pods whose eviction was accepted do not count.

        Of the empty domains only as many are made as pods could move into, for with a key that every node has another value of
        nearly all are empty."""
        known = self._map(spread)
        value_of, filled = known.value_of, dict[str, Domain]()
        size = 0
        for number in numbers:
            value = value_of[pods.rows[number]]
            if value is None or (view := pods.pods[number]).accepted:
                continue
            domain = filled.get(value)
            if domain is None:
                domain = filled[value] = Domain(value)
            domain.pods.append(view)
            size += 1
        found = list(filled.values())
        if len(found) < len(known.rows):
            for value in known.rows:
                if len(found) - len(filled) > size:
                    break
                if value not in filled:
                    found.append(Domain(value))
        return sorted(found, key=lambda domain: (len(domain.pods), domain.value)), len(known.rows), size

    def smaller(self, spread: Spread, filled: Sequence[Domain], average: float) -> Any:
        """The rows of the nodes whose domains have fewer pods than the average."""
        known = self._map(spread)
        full = tuple(sorted(domain.value for domain in filled if len(domain.pods) >= average))
        found = known.below.get(full)
        if found is None:
            found = known.all_rows.copy()
            for value in full:
                found[known.rows[value]] = False
            if len(known.rows) <= FEW:
                known.below[full] = found
        return found

    def open_to(self, spread: Spread, views: Sequence[PodView]) -> Any:
        """The rows of the nodes to which the pod may come beside these matching ones without making domains differ by more than maxSkew."""
        known = self._map(spread)
        found = known.all_rows.copy()
        if not known.rows:
            return found
        sizes: dict[str, int] = {}
        for view in views:
            value = known.value_of[self.columns.row(view.pod.spec.node_name)]
            if value is not None:
                sizes[value] = sizes.get(value, 0) + 1
        least = min(sizes.values()) if len(sizes) == len(known.rows) and len(sizes) >= spread.min_domains else 0
        for value, size in sizes.items():
            if size + spread.counts_itself - least > spread.max_skew:
                found[known.rows[value]] = False
        return found

    def rows(self, spread: Spread, value: str) -> Any:
        """The rows of the nodes of a domain."""
        return self._map(spread).rows[value]

    def _map(self, spread: Spread) -> DomainMap:
        found = self._maps.get(spread.nodes_rule)
        if found is None:
            domains: dict[str, list[int]] = {}
            value_of: list[str | None] = [None] * len(self.columns.nodes)
            for row, node in enumerate(self.columns.nodes):
                value = node.node.metadata.labels.get(spread.topology_key)
                if value is not None and spread.counts(node.node):
                    domains.setdefault(value, []).append(row)
                    value_of[row] = value
            all_rows = np.zeros(len(self.columns.nodes), dtype=bool)
            all_rows[[row for rows in domains.values() for row in rows]] = True
            rows = {value: np.array(rows, dtype=np.int64) for value, rows in sorted(domains.items())}
            found = self._maps[spread.nodes_rule] = DomainMap(rows, all_rows, value_of)
        return found


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
    domains: list[Domain], average: float, max_skew: int, most: int | None = None, takes: Callable[[PodView, str], bool] | None = None
) -> list[PodView]:
    """Pods that leave, taken from the ends of the lists. `domains` are sorted by size; their lists are changed as if the pods moved.

    `most` is how many pods a domain may be given up to; None: any number. `takes` says whether a domain, by its value, has a node for a
    pod: what no pod can go to stays small, however uneven that is."""
    moved: list[PodView] = []
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
        if takes is not None and not takes(given[-1], domains[small].value):
            stays = size_small + max_skew  # the scheduler counts it, and lets no other domain have more
            most = stays if most is None else min(most, stays)
            small += 1
            continue
        moved += given
        domains[large].pods = domains[large].pods[:-count]
        domains[small].pods = domains[small].pods + given
    return moved
