"""Topology spread as a calculation: which nodes form domains, and how many pods each domain gives up (descheduler.md 9.9). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from koord.api.objects import Pod, TopologySpreadConstraint
from koord.kube.selectors import Requirement, Selector, from_label_selector
from roles.descheduler.nodefit import affinity_matches, untolerated
from roles.descheduler.picture import NodeView, PodView


@dataclass(slots=True)
class Domain:
    """Nodes with one value of the topology key, and the matching pods on them."""

    value: str
    nodes: list[NodeView] = field(default_factory=list)
    pods: list[PodView] = field(default_factory=list)


class Spread:
    """A constraint as one pod has it: matchLabelKeys are merged into the selector, and the pod's own node rules decide which nodes
    count. Raises SelectorError."""

    def __init__(self, constraint: TopologySpreadConstraint, pod: Pod) -> None:
        self._pod = pod
        self.topology_key = constraint.topology_key
        self.max_skew = constraint.max_skew
        self._by_affinity = (constraint.node_affinity_policy or "Honor") == "Honor"
        self._by_taints = (constraint.node_taints_policy or "Ignore") == "Honor"
        selector = from_label_selector(constraint.label_selector)
        labels = pod.metadata.labels
        keyed = tuple(Requirement(key, "In", frozenset({labels[key]})) for key in constraint.match_label_keys if key in labels)
        self.selector = Selector(selector.requirements + keyed, selector.nothing)
        spec = pod.spec
        nodes_of = (spec.node_selector, spec.affinity.node_affinity if spec.affinity else None) if self._by_affinity else ()
        self.identity = repr(
            (
                self.topology_key, self.max_skew, constraint.when_unsatisfiable, sorted(map(repr, self.selector.requirements)),
                self.selector.nothing, nodes_of, spec.tolerations if self._by_taints else (), self._by_affinity, self._by_taints,
            )
        )  # fmt: skip

    def counts(self, node: NodeView) -> bool:
        """Whether the node is part of a domain."""
        if self._by_affinity and not affinity_matches(self._pod, node.node):
            return False
        return not self._by_taints or untolerated(self._pod, node.node) is None

    def reason(self) -> str:
        """Why a pod leaves."""
        return f"pods are spread over {self.topology_key} by more than {self.max_skew}"


def moves(domains: list[Domain], average: float, max_skew: int) -> list[PodView]:
    """Pods that leave, taken from the ends of the lists. `domains` are sorted by size; their lists are changed as if the pods moved."""
    moved: list[PodView] = []
    small, large = 0, len(domains) - 1
    while small < large:
        size_large, size_small = len(domains[large].pods), len(domains[small].pods)
        if size_large <= average:
            large -= 1
            continue
        skew = size_large - size_small
        count = min(ceil(size_large - average), ceil(average - size_small), ceil((skew - max_skew) / 2))
        if skew <= max_skew or count <= 0:
            small += 1
            continue
        given = domains[large].pods[-count:]
        moved += given
        domains[large].pods = domains[large].pods[:-count]
        domains[small].pods = domains[small].pods + given
    return moved
