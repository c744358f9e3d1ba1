"""The live cluster: informer events and assumed pods brought together (SCH-FW-06).

An assumed pod counts on its node from the moment of the decision until the informer shows it there or the decision is taken back
(`forget`).
"""

from __future__ import annotations

from koord.api.objects import Node
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo, PodParser


class Cache:
    """Keeps a Cluster current."""

    def __init__(self, cluster: Cluster, parser: PodParser) -> None:
        self.cluster = cluster
        self.parser = parser
        self._assumed: dict[str, str] = {}  # UIDs, with the nodes

    # ---------------------------------------------------------------- informer events

    def set_node(self, node: Node) -> NodeView:
        """A node was added or changed; returns its new view."""
        view = NodeView(node)
        self.cluster.set_node(view)
        return view

    def remove_node(self, name: str) -> None:
        """A node was deleted."""
        self.cluster.remove_node(name)

    def set_pod(self, pod: PodInfo) -> None:
        """The API shows a pod with a node: it counts there, whatever was assumed."""
        self._assumed.pop(pod.uid, None)
        self.cluster.add_pod(pod, pod.node_name)

    def remove_pod(self, uid: str) -> PodInfo | None:
        """The API shows that a pod is gone or has ended; returns it if it counted."""
        self._assumed.pop(uid, None)
        return self.cluster.remove_pod(uid)

    # ---------------------------------------------------------------- assumed pods

    def assume(self, pod: PodInfo, slot: int) -> None:
        """Count a pod on the slot that was decided. Raises ValueError when it counts somewhere already, and what a plugin's columns raise;
        it counts then all the same, until `forget`."""
        if self.cluster.slot_of_pod(pod.uid) >= 0:
            raise ValueError(f"pod {pod.key} counts on node {self.cluster.name_of(self.cluster.slot_of_pod(pod.uid))} already")
        self._assumed[pod.uid] = self.cluster.name_of(slot)
        failure = self.cluster.place(pod, slot)
        if failure is not None:
            raise failure

    def forget(self, uid: str) -> bool:
        """Take an assumption back; False when the pod is not assumed (any more)."""
        if self._assumed.pop(uid, None) is None:
            return False
        self.cluster.remove_pod(uid)
        return True

    def is_assumed(self, uid: str) -> bool:
        """Whether a pod is assumed and not yet seen on its node."""
        return uid in self._assumed

    def assumed(self) -> list[tuple[str, str]]:
        """UIDs of assumed pods with their nodes."""
        return [*self._assumed.items()]

    @property
    def assumed_count(self) -> int:
        """How many pods are assumed."""
        return len(self._assumed)
