"""RemovePodsViolatingInterPodAntiAffinity: evict pods beside which other pods run that they exclude (DS-K8S-06)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from koord.api.objects import Pod, PodAffinityTerm
from koord.api.selectors import SelectorError, from_label_selector
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import DESCHEDULE
from roles.descheduler.nodefit import anti_affinity_terms
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.community.common import CommunityArgs, least_important_first
from roles.descheduler.podindex import PodIndex

Place = tuple[str, str]  # a value of the topology key, or a node that does not have the key
NODE = "node"


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
        present = Present(nodes)
        for node in nodes:
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            for view in node.pods:
                if not view.leaving and self._chosen(view.pod):
                    present.pods.add(view)
        for node in nodes:
            if handle.pause():
                yield PAUSE
            mine = [view for view in node.pods if anti_affinity_terms(view.pod) and not view.leaving and self._chosen(view.pod)]
            for view in least_important_first(mine):
                if handle.pause():
                    yield PAUSE
                pod = view.pod
                other = present.excluded_by(pod)
                if other is None or handle.filter(pod):
                    continue
                reason = f"pod's anti-affinity excludes pod {other.metadata.namespace}/{other.metadata.name} on node {other.spec.node_name}"
                if (yield Evict(pod, reason)):
                    present.gone.add(pod.metadata.uid)


class Present:
    """The pods that are looked at, and for each distinct term where those are that it means. A term is compiled once."""

    def __init__(self, nodes: list[NodeView]) -> None:
        self.pods = PodIndex()
        self.gone: set[str] = set()  # uids of the pods that have left in this round
        self._nodes = {node.name: node for node in nodes}
        self._meant: dict[bytes, dict[Place, dict[str, Pod]]] = {}

    def excluded_by(self, pod: Pod) -> Pod | None:
        """A pod on the same node, or in the same domain, that one of the pod's terms excludes."""
        for term in anti_affinity_terms(pod):
            here = self._meant_by(term, pod.metadata.namespace).get(self._place(pod, term.topology_key), {})
            left: list[str] = []
            other: Pod | None = None
            for uid, each in here.items():
                if uid in self.gone:
                    left.append(uid)
                elif uid != pod.metadata.uid:
                    other = each
                    break
            for uid in left:  # met once, and not again
                del here[uid]
            if other is not None:
                return other
        return None

    def _meant_by(self, term: PodAffinityTerm, namespace: str) -> dict[Place, dict[str, Pod]]:
        key = msgspec.json.encode((term, "" if term.namespaces else namespace))
        found = self._meant.get(key)
        if found is None:
            found = self._meant[key] = {}
            for view in self._matching(term, namespace):
                found.setdefault(self._place(view.pod, term.topology_key), {})[view.pod.metadata.uid] = view.pod
        return found

    def _matching(self, term: PodAffinityTerm, namespace: str) -> list[PodView]:
        """Pods of the term's namespaces (none: the owner's own) and labels; a selector that cannot be read means none."""
        try:
            selector = from_label_selector(term.label_selector)
        except SelectorError:
            return []
        return [view for each in term.namespaces or (namespace,) for view in self.pods.matching(each, selector)]

    def _place(self, pod: Pod, topology_key: str) -> Place:
        name = pod.spec.node_name
        value = self._nodes[name].node.metadata.labels.get(topology_key) if name in self._nodes else None
        return (NODE, name) if value is None else ("", value)
