"""Whether the place of a migration is still a good one: asked when it is found, and once more right before the pod leaves (DS-MC-03)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from koord.api.objects import Node, NodeMetric, Pod, PodMigrationJob, Taint
from koord.api.quantity import QuantityError
from roles.descheduler.arrivals import expect
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import status
from roles.descheduler.migration.expectations import Expectations
from roles.descheduler.migration.spread import SpreadCounts
from roles.descheduler.nodefit import affinity_matches, tolerates, untolerated
from roles.descheduler.snapshot import Snapshots, is_ready
from roles.descheduler.spreading import Domains

CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class Targets:
    """Asks the caches about one node. `accepted` says whether the eviction of a pod was accepted."""

    def __init__(
        self, cluster: ClusterState, expectations: Expectations, accepted: Callable[[Pod], bool], clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._expectations = expectations
        self._accepted = accepted
        self._clock = clock
        self._spread = SpreadCounts(cluster, expectations)
        self.spread = self._spread.domains

    async def open_to(self, pod: Pod, names: Iterable[str] | None) -> list[str] | None:
        """Of these nodes (None: of all) those where the pod's topology spread lets its successor come; None for a pod without."""
        if not (domains := await self.spread(None, pod)):
            return None
        nodes = map(self._cluster.nodes.get, names) if names is not None else self._cluster.nodes.list()
        return list(self._open(domains, pod, nodes))

    @staticmethod
    def _open(domains: Sequence[Domains], pod: Pod, nodes: Iterable[Node | None]) -> Iterator[str]:
        """Names of those nodes but the pod's own that are open to its successor."""
        for node in nodes:
            if node is not None and node.metadata.name != pod.spec.node_name and not any(each.refuse(node) for each in domains):
                yield node.metadata.name

    def unfit(
        self,
        job: PodMigrationJob,
        pod: Pod,
        where: str,
        spread: Sequence[Domains] = (),
        node: Node | None = None,
        metric: NodeMetric | None = None,
    ) -> str:
        """Why the pod must not go to a node now, "" when it may. `node`, `metric`: the node and its report as they are, where the caller
        has just read them."""
        found = node if node is not None else self._cluster.nodes.get(where)
        if found is None:
            return f'node "{where}" does not exist'
        uneven = next((why for each in spread if (why := each.refuse(found))), "")
        return not_schedulable(found, pod) or uneven or self._hot(job, found, metric)

    def acceptable(self, job: PodMigrationJob, pod: Pod, spread: Sequence[Domains] = ()) -> tuple[str, ...] | None:
        """The nodes that the pod may go to now, as far as its job says where it may go; None: anywhere, by what is known here."""
        relief = status.relief(job)
        if relief is None:
            return () if spread and not any(self._open(spread, pod, self._cluster.nodes.list())) else None
        return tuple(name for name in relief.nodes if name not in status.avoided(job) and not self.unfit(job, pod, name, spread))

    def _hot(self, job: PodMigrationJob, node: Node, metric: NodeMetric | None) -> str:
        relief, name = status.relief(job), node.metadata.name
        if relief is None or (not relief.for_load and name in relief.nodes):
            return ""
        try:
            report = self._cluster.report_times(metric) if metric is not None else self._cluster.node_metrics.get(name)
            view = Snapshots(accepted=self._accepted).node(node, self._cluster.pods_on(name), report, now=self._clock())
        except (QuantityError, ValueError) as error:
            return f'the load of node "{name}" cannot be read: {error}'
        expect(view, self._expectations.on(name, job), self._expectations.brought, unheard=self._cluster.unheard())
        return relief.refuse(view)


def not_schedulable(node: Node, pod: Pod) -> str:
    """Why the scheduler would not put the pod on the node any more, as far as the node itself says; "" when it would."""
    name = node.metadata.name
    if node.metadata.deletion_timestamp:
        return f'node "{name}" is being deleted'
    if not is_ready(node):
        return f'node "{name}" is not ready'
    if node.spec.unschedulable and not tolerates(pod.spec.tolerations, CORDON):
        return f'node "{name}" is cordoned'
    if not affinity_matches(pod, node):
        return f'node "{name}" does not match the pod\'s node selector and affinity'
    taint = untolerated(pod, node)
    return f'node "{name}" has taint {taint.key}, which the pod does not tolerate' if taint is not None else ""
