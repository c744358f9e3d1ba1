"""What the descheduler sees of the cluster: the caches that rounds, filters and controllers share."""

from __future__ import annotations

from collections.abc import Callable

from koord import seams
from koord.api import kinds
from koord.api.objects import Node, NodeMetric, Pod, PriorityClassObject
from koord.kube.informers import InformerFactory
from koord.process.reporters import ReportTimes
from roles.descheduler.gangs import Gangs
from roles.descheduler.snapshot import FINISHED


class ClusterState:
    """Typed informers with their indexes. Pods are found by their node, their namespace and the uids of their owners."""

    def __init__(self, informers: InformerFactory, clock: Callable[[], float] = seams.now) -> None:
        self._informers = informers
        self.nodes = informers.informer(kinds.NODES, Node)
        self.pods = informers.informer(kinds.PODS, Pod)
        self.report_times = ReportTimes(clock)
        self.node_metrics = informers.informer(kinds.NODEMETRICS, NodeMetric, transform=self.report_times, optional=True)
        self.priority_classes = informers.informer(kinds.PRIORITYCLASSES, PriorityClassObject)
        self.gangs = Gangs(informers, self.pods)
        self.pods.index("node", lambda pod: pod.spec.node_name or None)
        self.pods.index("namespace", lambda pod: pod.metadata.namespace)
        self.pods.index("owner", lambda pod: [owner.uid for owner in pod.metadata.owner_references if owner.uid])

        self.pods.index("waiting", lambda pod: "unschedulable" if _waits(pod) else None)

    async def wait_synced(self) -> None:
        """Wait for the first list of each cache."""
        for informer in (self.nodes, self.pods, self.node_metrics, self.priority_classes):
            await informer.wait_synced()
        await self.gangs.wait_synced()

    def waiting(self) -> list[Pod]:
        """Pods that the scheduler has found no node for."""
        return self.pods.by_index("waiting", "unschedulable")

    def unheard(self) -> float:
        """For how many seconds it is not certain that all that happened to pods was heard."""
        return self._informers.age(kinds.PODS)

    def pods_on(self, node: str) -> list[Pod]:
        """Pods of all phases that are bound to a node."""
        return self.pods.by_index("node", node)

    def pods_in(self, namespace: str) -> list[Pod]:
        """Pods of a namespace."""
        return self.pods.by_index("namespace", namespace)

    def pods_of_owner(self, uid: str, namespace: str) -> list[Pod]:
        """Pods of a namespace that have this uid among their owner references."""
        return [pod for pod in self.pods.by_index("owner", uid) if pod.metadata.namespace == namespace]

    def pod(self, namespace: str, name: str) -> Pod | None:
        """A pod by its name."""
        return self.pods.get(f"{namespace}/{name}")

    def priority_of(self, class_name: str) -> int | None:
        """The value of a PriorityClass, None when there is no such class."""
        found = self.priority_classes.get(class_name)
        return None if found is None else found.value


def _waits(pod: Pod) -> bool:
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or pod.status.phase in FINISHED:
        return False
    return any(each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable" for each in pod.status.conditions)
