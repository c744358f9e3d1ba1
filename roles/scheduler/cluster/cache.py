"""The live cluster: informer events and assumed pods brought together (SCH-FW-06).

An assumed pod counts on its node from the moment of the decision until the informer shows it there, the decision is taken back
(`forget`), or, when a TTL is given, its binding was finished and never became visible.
"""

from __future__ import annotations

from dataclasses import dataclass

from koord.api.objects import Node, Pod
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo, PodParser


@dataclass(slots=True)
class Assumed:
    """An assumed pod. `deadline` is set when its binding was finished and a TTL applies."""

    pod: PodInfo
    node: str
    deadline: float | None = None


class Cache:
    """Keeps a Cluster current. `assume_ttl` in seconds; 0 means that an assumed pod never expires by itself."""

    def __init__(self, cluster: Cluster, parser: PodParser, *, assume_ttl: float = 0.0) -> None:
        self.cluster = cluster
        self.parser = parser
        self.assume_ttl = assume_ttl
        self._assumed: dict[str, Assumed] = {}

    # ---------------------------------------------------------------- informer events

    def set_node(self, node: Node) -> NodeView:
        """A node was added or changed; returns its new view."""
        view = NodeView(node)
        self.cluster.set_node(view)
        return view

    def remove_node(self, name: str) -> None:
        """A node was deleted."""
        self.cluster.remove_node(name)

    def parse(self, pod: Pod) -> PodInfo:
        """The PodInfo of a projection."""
        return self.parser.parse(pod)

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
        self._assumed[pod.uid] = Assumed(pod, self.cluster.name_of(slot))
        failure = self.cluster.place(pod, slot)
        if failure is not None:
            raise failure

    def forget(self, uid: str) -> bool:
        """Take an assumption back; False when the pod is not assumed (any more)."""
        if self._assumed.pop(uid, None) is None:
            return False
        self.cluster.remove_pod(uid)
        return True

    def finish_binding(self, uid: str, now: float) -> None:
        """The binding call succeeded: from now on the TTL runs, if there is one."""
        assumed = self._assumed.get(uid)
        if assumed is not None and self.assume_ttl > 0:
            assumed.deadline = now + self.assume_ttl

    def expire(self, now: float) -> list[PodInfo]:
        """Forget assumed pods whose TTL is over; returns them."""
        over = [entry.pod for entry in self._assumed.values() if entry.deadline is not None and entry.deadline <= now]
        for pod in over:
            self.forget(pod.uid)
        return over

    def is_assumed(self, uid: str) -> bool:
        """Whether a pod is assumed and not yet seen on its node."""
        return uid in self._assumed

    def assumed(self) -> list[tuple[str, str]]:
        """UIDs of assumed pods with their nodes."""
        return [(uid, entry.node) for uid, entry in self._assumed.items()]

    @property
    def assumed_count(self) -> int:
        """How many pods are assumed."""
        return len(self._assumed)
