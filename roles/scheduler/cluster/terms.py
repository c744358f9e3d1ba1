"""Selectors compiled once: requirements on labels, node selector terms, pod affinity terms, spread constraints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from koord.api.selectors import whole_number

IN = "In"
NOT_IN = "NotIn"
EXISTS = "Exists"
DOES_NOT_EXIST = "DoesNotExist"
GREATER = "Gt"
LESS = "Lt"

HOSTNAME = "kubernetes.io/hostname"


class Requirement(NamedTuple):
    """One expression on a label key; `values` is sorted and free of duplicates."""

    key: str
    op: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a set of labels meets the requirement (absent keys meet NotIn and DoesNotExist)."""
        return matches_value(self, labels.get(self.key))


def matches_value(requirement: Requirement, value: str | None) -> bool:
    """Whether one label value (None = absent) meets a requirement."""
    op = requirement.op
    if op == IN:
        return value is not None and value in requirement.values
    if op == NOT_IN:
        return value is None or value not in requirement.values
    if op == EXISTS:
        return value is not None
    if op == DOES_NOT_EXIST:
        return value is None
    if op not in (GREATER, LESS) or value is None or len(requirement.values) != 1:
        return False
    have, want = whole_number(value), whole_number(requirement.values[0])
    if have is None or want is None:
        return False
    return have > want if op == GREATER else have < want


Selector = tuple[Requirement, ...]
"""Requirements that must all hold; the empty tuple matches everything."""


def selects(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; None (no selector at all) matches nothing."""
    if selector is None:
        return False
    return all(requirement.matches(labels) for requirement in selector)


class NodeTerm(NamedTuple):
    """One node selector term: expressions on labels and on metadata.name, all of which must hold. An empty term matches no node."""

    expressions: Selector
    fields: Selector

    @property
    def empty(self) -> bool:
        """Whether the term has no requirement at all."""
        return not self.expressions and not self.fields

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node meets the term."""
        if self.empty:
            return False
        return selects(self.expressions, labels) and all(matches_value(field, name) for field in self.fields)


class PreferredNodeTerm(NamedTuple):
    """A node term with its weight (1..100)."""

    weight: int
    term: NodeTerm


class PodTerm(NamedTuple):
    """One pod (anti-)affinity term. `namespaces` are names; `namespace_selector` None selects none by label, () all."""

    topology_key: str
    selector: Selector | None
    namespaces: frozenset[str]
    namespace_selector: Selector | None

    def matches(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        """Whether a pod in `namespace` is selected by the term."""
        return self.reaches(namespace, namespace_labels) and selects(self.selector, labels)

    def reaches(self, namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term is about pods of `namespace`."""
        return namespace in self.namespaces or selects(self.namespace_selector, namespace_labels)


class WeightedPodTerm(NamedTuple):
    """A pod term with its weight (1..100, negative for anti-affinity)."""

    weight: int
    term: PodTerm


class SpreadConstraint(NamedTuple):
    """One topology spread constraint."""

    topology_key: str
    max_skew: int
    hard: bool
    selector: Selector | None
    min_domains: int
    honor_affinity: bool
    honor_taints: bool


def requirements(expressions: Any) -> Selector:
    """Compile matchExpressions (of nodes or labels)."""
    return tuple(Requirement(item.key, item.operator, tuple(sorted(set(item.values or ())))) for item in expressions or ())


def label_selector(selector: Any) -> Selector | None:
    """Compile a metav1.LabelSelector; None stays None (matches nothing), an empty one matches everything."""
    if selector is None:
        return None
    return map_selector(selector.match_labels) + requirements(selector.match_expressions)


def node_term(term: Any) -> NodeTerm:
    """Compile a NodeSelectorTerm."""
    return NodeTerm(requirements(term.match_expressions), requirements(term.match_fields))


def map_selector(labels: Mapping[str, str] | None) -> Selector:
    """Compile a plain nodeSelector map."""
    return tuple(Requirement(key, IN, (value,)) for key, value in sorted((labels or {}).items()))


def pod_term(term: Any, namespace: str, labels: Mapping[str, str]) -> PodTerm:
    """Compile a PodAffinityTerm of a pod in `namespace` with `labels` (for matchLabelKeys and mismatchLabelKeys).

    Without namespaces and namespaceSelector the term means the pod's own namespace.
    """
    selector = label_selector(term.label_selector)
    if selector is not None:
        own = tuple(Requirement(key, IN, (labels[key],)) for key in term.match_label_keys or () if key in labels)
        other = tuple(Requirement(key, NOT_IN, (labels[key],)) for key in term.mismatch_label_keys or () if key in labels)
        selector = selector + own + other
    namespaces = frozenset(term.namespaces or ())
    chosen = label_selector(term.namespace_selector)
    if not namespaces and chosen is None:
        namespaces = frozenset((namespace,))
    return PodTerm(term.topology_key, selector, namespaces, chosen)


def spread_constraint(constraint: Any, labels: Mapping[str, str]) -> SpreadConstraint:
    """Compile a TopologySpreadConstraint of a pod with `labels` (for matchLabelKeys)."""
    selector = label_selector(constraint.label_selector)
    if selector is not None:
        own = map_selector({key: labels[key] for key in constraint.match_label_keys if key in labels})
        selector = selector + own
    return SpreadConstraint(
        constraint.topology_key,
        constraint.max_skew,
        constraint.when_unsatisfiable != "ScheduleAnyway",
        selector,
        constraint.min_domains or 1,
        constraint.node_affinity_policy != "Ignore",
        constraint.node_taints_policy == "Honor",
    )
