"""RemovePodsViolatingInterPodAntiAffinity: evict pods beside which other pods run that they exclude (DS-K8S-06)."""

from __future__ import annotations

from typing import ClassVar

from koord.api.objects import Pod, PodAffinityTerm
from roles.descheduler.framework.effects import Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import DESCHEDULE
from roles.descheduler.nodefit import anti_affinity_terms, term_matches
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.community.common import CommunityArgs, least_important_first


class RemovePodsViolatingInterPodAntiAffinityArgs(CommunityArgs):
    """RemovePodsViolatingInterPodAntiAffinity."""


class RemovePodsViolatingInterPodAntiAffinity:
    """A Deschedule plugin without memory. A pod that leaves is no violation to the others any more."""

    name: ClassVar[str] = "RemovePodsViolatingInterPodAntiAffinity"
    point: ClassVar[str] = DESCHEDULE

    def __init__(self, args: RemovePodsViolatingInterPodAntiAffinityArgs, interval: float) -> None:
        self.args = args
        self._chosen = args.chosen()

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Node by node, the least important pod first."""
        by_name = {node.name: node for node in nodes}
        present: dict[str, dict[str, Pod]] = {}  # namespace -> uid -> pod
        on_node: dict[str, list[PodView]] = {}
        for node in nodes:
            on_node[node.name] = least_important_first(view for view in node.pods if self._chosen(view.pod) and not view.leaving)
            for view in on_node[node.name]:
                present.setdefault(view.pod.metadata.namespace, {})[view.pod.metadata.uid] = view.pod
        for node in nodes:
            for view in on_node[node.name]:
                pod = view.pod
                if not anti_affinity_terms(pod) or handle.filter(pod):
                    continue
                other = self._excluded(pod, node, present, by_name)
                if other is None:
                    continue
                reason = f"pod's anti-affinity excludes pod {other.metadata.namespace}/{other.metadata.name} on node {other.spec.node_name}"
                if (yield Evict(pod, reason)):
                    del present[pod.metadata.namespace][pod.metadata.uid]

    def _excluded(self, pod: Pod, node: NodeView, present: dict[str, dict[str, Pod]], by_name: dict[str, NodeView]) -> Pod | None:
        for term in anti_affinity_terms(pod):
            for namespace in term.namespaces or (pod.metadata.namespace,):
                for other in present.get(namespace, {}).values():
                    beside = by_name.get(other.spec.node_name)
                    if other is not pod and beside is not None and _together(term, node, beside) and term_matches(term, pod, other):
                        return other
        return None


def _together(term: PodAffinityTerm, one: NodeView, other: NodeView) -> bool:
    """The same node, or nodes of one value of the term's topology key."""
    if one.name == other.name:
        return True
    value = one.node.metadata.labels.get(term.topology_key)
    return value is not None and value == other.node.metadata.labels.get(term.topology_key)
